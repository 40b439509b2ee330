//! Tool calling for models whose chat template has no tools: the system message describes the
//! tools, and earlier calls and results become plain messages.

use sconce_text::chat::Message;
use serde_json::{Map, Value, json};

/// The text that describes the tools.
fn description(tools: &Value) -> String {
    let each = tools.as_array().into_iter().flatten().map(|tool| tool.get("function").unwrap_or(tool).to_string());
    let list: Vec<String> = each.collect();
    format!(
        "You can call functions. Each line between <tools> and </tools> describes one in JSON:\n<tools>\n{}\n</tools>\nTo call a \
         function, write its name and its arguments as JSON between tags, and nothing else:\n<tool_call>\n{{\"name\": \"the \
         function\", \"arguments\": {{\"an argument\": \"its value\"}}}}\n</tool_call>",
        list.join("\n")
    )
}

/// Adds the description of the tools to the conversation.
pub(crate) fn describe_tools(messages: &[Message], tools: Option<&Value>) -> Result<Vec<Message>, String> {
    let messages = messages.iter().cloned().map(Map::from).collect();
    described(messages, tools).into_iter().map(Message::try_from).collect()
}

fn described(messages: Vec<Map<String, Value>>, tools: Option<&Value>) -> Vec<Map<String, Value>> {
    let mut all: Vec<Map<String, Value>> = messages.into_iter().map(plain).collect();
    let Some(tools) = tools else { return all };
    let text = description(tools);
    match all.first_mut().filter(|first| first.get("role").and_then(Value::as_str) == Some("system")) {
        Some(first) => {
            let before = first.get("content").and_then(Value::as_str).unwrap_or_default();
            let both = if before.is_empty() { text } else { format!("{before}\n\n{text}") };
            first.insert("content".into(), both.into());
        }
        None => all.insert(0, message("system", &text)),
    }
    all
}

/// Rewrites tool calls and results as messages that any template can render.
fn plain(message: Map<String, Value>) -> Map<String, Value> {
    let text = message.get("content").and_then(Value::as_str).unwrap_or_default();
    match message.get("role").and_then(Value::as_str) {
        Some("tool") => self::message("user", &format!("<tool_response>\n{text}\n</tool_response>")),
        Some("assistant") if message.get("tool_calls").is_some_and(Value::is_array) => {
            let calls = message.get("tool_calls").and_then(Value::as_array).into_iter().flatten();
            let calls = calls.map(|call| {
                let function = &call["function"];
                let written = json!({"name": function["name"], "arguments": function["arguments"]});
                format!("<tool_call>\n{written}\n</tool_call>")
            });
            let parts: Vec<String> = (!text.is_empty()).then(|| text.to_owned()).into_iter().chain(calls).collect();
            let mut message = message;
            message.remove("tool_calls");
            message.insert("content".into(), parts.join("\n").into());
            message
        }
        _ => message,
    }
}

fn message(role: &str, content: &str) -> Map<String, Value> {
    [("role".to_owned(), json!(role)), ("content".to_owned(), json!(content))].into_iter().collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn tools_and_calls_are_written_into_messages() {
        let tools = json!([{"type": "function", "function": {"name": "f", "parameters": {}}}]);
        let messages = json!([
            {"role": "user", "content": "hi"},
            {"role": "assistant", "content": null, "tool_calls": [{"id": "1", "function": {"name": "f", "arguments": {"a": 1}}}]},
            {"role": "tool", "tool_call_id": "1", "content": "42"},
        ]);
        let messages: Vec<Map<String, Value>> = serde_json::from_value(messages).unwrap();
        let all = described(messages.clone(), Some(&tools));
        assert_eq!(all.len(), 4);
        assert!(all[0]["content"].as_str().unwrap().contains(r#"{"name":"f","parameters":{}}"#));
        assert_eq!(all[2]["content"], "<tool_call>\n{\"name\":\"f\",\"arguments\":{\"a\":1}}\n</tool_call>");
        assert!(!all[2].contains_key("tool_calls"));
        assert_eq!(all[3], message("user", "<tool_response>\n42\n</tool_response>"));
        // An existing system message is extended.
        let system = described([vec![message("system", "Be brief.")], messages].concat(), Some(&tools));
        assert_eq!(system.len(), 4);
        assert!(system[0]["content"].as_str().unwrap().starts_with("Be brief.\n\nYou can call functions."));
    }
}
