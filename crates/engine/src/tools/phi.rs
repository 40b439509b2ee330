//! Tool calling for Phi-4-mini: its template reads the tools from the system message, as text, and
//! knows neither calls nor results.

use sconce_text::chat::Message;
use serde_json::{Map, Value, json};

/// The system message of conversations that have none, as published with the model.
const SYSTEM: &str = "You are a helpful assistant with some tools.";

/// Puts the tools into the system message, and calls and results into texts.
pub(crate) fn phi_messages(messages: &[Message], tools: Option<&Value>) -> Result<Vec<Message>, String> {
    let mut all: Vec<Map<String, Value>> = messages.iter().cloned().map(Map::from).map(plain).collect();
    if let Some(tools) = tools {
        let functions = tools.as_array().into_iter().flatten().map(|tool| tool.get("function").unwrap_or(tool));
        let functions: Vec<&Value> = functions.collect();
        if all.first().and_then(|first| first.get("role")).and_then(Value::as_str) != Some("system") {
            all.insert(0, Map::from_iter([("role".into(), json!("system")), ("content".into(), json!(SYSTEM))]));
        }
        if let Some(first) = all.first_mut() {
            first.insert("tools".into(), json!(functions).to_string().into());
        }
    }
    all.into_iter().map(Message::try_from).collect()
}

fn plain(mut message: Map<String, Value>) -> Map<String, Value> {
    if message.get("role").and_then(Value::as_str) == Some("tool") {
        message.insert("role".into(), json!("tool_response"));
    }
    let calls = message.shift_remove("tool_calls");
    let calls = calls.as_ref().and_then(Value::as_array).filter(|calls| !calls.is_empty());
    let text = match message.get("content") {
        None | Some(Value::Null) => String::new(),
        Some(Value::String(text)) => text.clone(),
        // A list of parts is for the template to refuse.
        Some(_) => return message,
    };
    let calls = calls.map(|calls| {
        let one = |call: &Value| {
            let function = &call["function"];
            json!({"name": function["name"], "arguments": function["arguments"]})
        };
        let calls: Vec<Value> = calls.iter().map(one).collect();
        format!("<|tool_call|>{}<|/tool_call|>", json!(calls))
    });
    // The template joins the content to other texts, so it must be one.
    message.insert("content".into(), (text + &calls.unwrap_or_default()).into());
    message
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn tools_calls_and_results_become_texts() {
        let messages = json!([
            {"role": "user", "content": "Weather in Paris?"},
            {"role": "assistant", "content": null, "tool_calls": [
                {"id": "1", "function": {"name": "weather", "arguments": {"city": "Paris"}}}]},
            {"role": "tool", "tool_call_id": "1", "content": "sunny"},
        ]);
        let messages: Vec<Message> = serde_json::from_value(messages).unwrap();
        let tools = json!([{"type": "function", "function": {"name": "weather", "parameters": {}}}]);
        let all = phi_messages(&messages, Some(&tools)).unwrap();
        assert_eq!((all.len(), all[0].role()), (4, "system"));
        assert_eq!(all[0].get("tools").unwrap(), r#"[{"name":"weather","parameters":{}}]"#);
        let call = r#"<|tool_call|>[{"name":"weather","arguments":{"city":"Paris"}}]<|/tool_call|>"#;
        assert_eq!(all[2].get("content").unwrap(), call);
        assert!(all[2].get("tool_calls").is_none());
        assert_eq!((all[3].role(), all[3].get("content").unwrap()), ("tool_response", &json!("sunny")));
        let parts = json!([{"role": "user", "content": [{"type": "text", "text": "hi"}]}]);
        let parts: Vec<Message> = serde_json::from_value(parts).unwrap();
        assert_eq!(phi_messages(&parts, None).unwrap(), parts);
        // Without tools nothing is added.
        assert_eq!(phi_messages(&messages[..1], None).unwrap(), &messages[..1]);
    }
}
