//! Messages of a chat request, as chat templates expect them.

use crate::error::Fault;
use sconce_engine::Reasoning;
use serde_json::{Map, Value, json};

/// Fields that clients send the thoughts of earlier answers in.
const THOUGHT_FIELDS: [&str; 3] = ["reasoning_content", "reasoning", "thinking"];

/// What a chat template understands.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Normalization {
    /// The role `developer`; otherwise it is `system`.
    has_developer_role: bool,
    /// Thoughts of earlier answers; otherwise they are left out.
    keeps_thoughts: bool,
}

impl Normalization {
    /// From the source of the template.
    pub(super) fn of(template: Option<&str>) -> Normalization {
        Normalization {
            has_developer_role: template.is_some_and(|text| text.contains("developer")),
            keeps_thoughts: template.is_some_and(Reasoning::is_kept_by),
        }
    }
}

/// Normalizes messages for chat templates: joins content parts, and maps unknown roles.
pub(super) fn normalized(
    messages: &[Map<String, Value>],
    normalization: Normalization,
) -> Result<Vec<Map<String, Value>>, Fault> {
    if messages.is_empty() {
        return Err(Fault::invalid("`messages` is empty; send at least one").at("messages"));
    }
    let each = messages.iter().enumerate().map(|(i, message)| {
        let invalid = |field: &str, what: String| Fault::invalid(what).at(&format!("messages[{i}].{field}"));
        for field in ["name", "tool_call_id"] {
            if message.get(field).is_some_and(|value| !value.is_string() && !value.is_null()) {
                return Err(invalid(field, format!("the `{field}` of a message must be a string")));
            }
        }
        if message
            .get("content")
            .is_some_and(|content| !content.is_string() && !content.is_null() && !content.is_array())
        {
            return Err(invalid("content", "the `content` of a message must be a string or a list of parts".into()));
        }
        let calls = message.get("tool_calls").filter(|calls| !calls.is_null());
        // Arguments may be a JSON string, as at OpenAI, or an object: templates read both.
        let is_call = |call: &Value| call["id"].is_string() && call["function"]["name"].is_string();
        if calls.is_some_and(|calls| !calls.as_array().is_some_and(|all| all.iter().all(is_call))) {
            return Err(invalid(
                "tool_calls",
                "each of a message's `tool_calls` needs an `id` and a `function` with a `name`".into(),
            ));
        }
        let mut message = message.clone();
        if message.get("reasoning_content").is_some_and(|thought| !thought.is_string() && !thought.is_null()) {
            return Err(invalid("reasoning_content", "the `reasoning_content` of a message must be a string".into()));
        }
        if !normalization.keeps_thoughts {
            for field in THOUGHT_FIELDS {
                message.shift_remove(field);
            }
        }
        if !normalization.has_developer_role && message.get("role").is_some_and(|role| role == "developer") {
            message.insert("role".into(), json!("system"));
        }
        if let Some(Value::Array(parts)) = message.get("content") {
            let text = joined(parts).map_err(|what| invalid("content", what))?;
            message.insert("content".into(), text.into());
        }
        Ok(message)
    });
    each.collect()
}

/// Joins the text of content parts with line breaks.
fn joined(parts: &[Value]) -> Result<String, String> {
    let texts = parts.iter().map(|part| match part.get("type").and_then(Value::as_str) {
        Some("text") => {
            part.get("text").and_then(Value::as_str).ok_or("a content part of type `text` needs a `text`".to_owned())
        }
        Some("refusal") => part
            .get("refusal")
            .and_then(Value::as_str)
            .ok_or("a content part of type `refusal` needs a `refusal`".to_owned()),
        Some(other) => Err(format!("this model accepts text only, no content part of type `{other}`")),
        None => Err("a content part needs a `type`".into()),
    });
    Ok(texts.collect::<Result<Vec<_>, _>>()?.join("\n"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn text_parts_are_joined_and_images_refused() {
        let messages = json!([
            {"role": "developer", "content": "Be brief."},
            {"role": "user", "content": [{"type": "text", "text": "a"}, {"type": "text", "text": "b"}]},
        ]);
        let messages: Vec<Map<String, Value>> = serde_json::from_value(messages).unwrap();
        let developer = Normalization::of(Some("{% if m.role == 'developer' %}"));
        let joined = normalized(&messages, Normalization::default()).unwrap();
        assert_eq!((&joined[0]["role"], &joined[1]["content"]), (&json!("system"), &json!("a\nb")));
        assert_eq!(normalized(&messages, developer).unwrap()[0]["role"], "developer");
        let image = json!([{"role": "user", "content": [{"type": "image_url", "image_url": {"url": "data:,"}}]}]);
        let fault = normalized(&serde_json::from_value::<Vec<_>>(image).unwrap(), developer).unwrap_err();
        assert_eq!(fault.param.as_deref(), Some("messages[0].content"));
        assert!(fault.message.contains("image_url"));
        assert!(normalized(&[], developer).is_err());
    }

    #[test]
    fn thoughts_are_kept_for_templates_that_read_them() {
        let message = json!([{"role": "assistant", "reasoning_content": "Hm.", "content": "Yes."}]);
        let messages: Vec<Map<String, Value>> = serde_json::from_value(message).unwrap();
        let kept = |template| normalized(&messages, Normalization::of(template)).unwrap()[0].clone();
        assert_eq!(kept(Some("{{ m.content.split('</think>')[-1] }}")).len(), 2);
        assert_eq!(kept(Some("{{ m.reasoning_content }}{{ m.content }}"))["reasoning_content"], "Hm.");
        let wrong = json!([{"role": "assistant", "reasoning_content": 3}]);
        let fault =
            normalized(&serde_json::from_value::<Vec<_>>(wrong).unwrap(), Normalization::default()).unwrap_err();
        assert_eq!(fault.param.as_deref(), Some("messages[0].reasoning_content"));
    }
}
