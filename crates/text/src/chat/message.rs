//! A chat message.

use serde::{Deserialize, Serialize};
use serde_json::{Map, Value, json};

/// A chat message: a role, usually a content, and other fields that a template may read (`name`,
/// `tool_calls`, `tool_call_id`, `reasoning_content`, …).
///
/// The JSON object is stored unchanged: some templates print a whole message, and then the order of
/// its fields is part of the prompt.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(try_from = "Map<String, Value>", into = "Map<String, Value>")]
pub struct Message(Map<String, Value>);

impl Message {
    /// A text message.
    pub fn new(role: &str, content: &str) -> Message {
        let mut fields = Map::new();
        fields.insert("role".into(), json!(role));
        fields.insert("content".into(), json!(content));
        Message(fields)
    }

    /// The role.
    pub fn role(&self) -> &str {
        self.0.get("role").and_then(Value::as_str).unwrap_or_default()
    }

    /// Any field.
    pub fn get(&self, field: &str) -> Option<&Value> {
        self.0.get(field)
    }

    /// Parses the arguments of tool calls into objects.
    ///
    /// OpenAI's clients send them as JSON in a string; most templates expect an object. A string
    /// that is not a JSON object stays unchanged.
    pub fn with_objects_as_arguments(mut self) -> Message {
        let calls = self.0.get_mut("tool_calls").and_then(Value::as_array_mut);
        for call in calls.into_iter().flatten() {
            let Some(arguments) = call.pointer_mut("/function/arguments") else { continue };
            if let Value::String(text) = arguments
                && let Ok(object @ Value::Object(_)) = serde_json::from_str(text)
            {
                *arguments = object;
            }
        }
        self
    }

    /// The message as the template sees it. Reasoning text has had three names. As in transformers,
    /// a template finds it as `reasoning_content`, and the gpt-oss template as `thinking`.
    pub(super) fn for_template(&self) -> Value {
        let named = ["reasoning_content", "thinking", "reasoning"].into_iter();
        let thought = named.filter_map(|name| self.0.get(name)).find(|v| !v.is_null());
        let Some(thought) = thought else { return Value::Object(self.0.clone()) };
        let mut fields = Map::new();
        fields.insert("thinking".into(), thought.clone());
        fields.extend(self.0.clone());
        fields.insert("reasoning_content".into(), thought.clone());
        Value::Object(fields)
    }
}

impl From<Message> for Map<String, Value> {
    fn from(message: Message) -> Map<String, Value> {
        message.0
    }
}

impl TryFrom<Map<String, Value>> for Message {
    type Error = String;

    fn try_from(fields: Map<String, Value>) -> Result<Message, String> {
        let objects = |v: &Value| v.as_array().is_some_and(|items| items.iter().all(Value::is_object));
        match fields.get("role") {
            Some(Value::String(_)) => {}
            Some(_) => return Err("the role of a message must be a string".into()),
            None => return Err("a message needs a role".into()),
        }
        match fields.get("content") {
            None | Some(Value::Null | Value::String(_)) => {}
            Some(parts) if objects(parts) => {}
            Some(_) => return Err("the content of a message must be a string or a list of parts".into()),
        }
        match fields.get("tool_calls") {
            None | Some(Value::Null) => {}
            Some(calls) if objects(calls) => {}
            Some(_) => return Err("the tool_calls of a message must be a list of objects".into()),
        }
        Ok(Message(fields))
    }
}
