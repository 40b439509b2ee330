//! Translates messages of blocks into messages of a chat.

use crate::error::Fault;
use sconce_api::anthropic::request::{InputBlock, InputMessage, Role};
use sconce_api::text_or::TextOr;
use serde_json::{Map, Value, json};
use std::collections::BTreeMap;

type ChatMessage = Map<String, Value>;

/// The messages of a chat: the system prompt, then the conversation. Consecutive messages of one
/// role are one turn.
pub(super) fn chat_messages(
    system: Option<TextOr<Vec<InputBlock>>>,
    messages: Vec<InputMessage>,
) -> Result<Vec<ChatMessage>, Fault> {
    if messages.is_empty() {
        return Err(Fault::invalid("there are no messages; send at least one").at("messages"));
    }
    if messages.last().is_some_and(|last| last.role == Role::Assistant) {
        let what = "the last message is the assistant's; beginning the answer for the model is not supported: end \
                    with a message of the user";
        return Err(Fault::invalid(what).at("messages"));
    }
    let mut chat = Chat::default();
    if let Some(system) = system {
        let text = texts(located(system, "system"))?.join("\n");
        if !text.is_empty() {
            chat.push(json!({"role": "system", "content": text}));
        }
    }
    let mut turn: Option<(Role, Vec<Located>)> = None;
    for (i, InputMessage { role, content }) in messages.into_iter().enumerate() {
        let blocks = located(content, &format!("messages[{i}].content"));
        match &mut turn {
            Some((current, all)) if *current == role => all.extend(blocks),
            _ => {
                if let Some((role, blocks)) = turn.replace((role, blocks)) {
                    chat.add(role, blocks)?;
                }
            }
        }
    }
    if let Some((role, blocks)) = turn {
        chat.add(role, blocks)?;
    }
    Ok(chat.messages)
}

/// A block, and the path of its field, for errors.
struct Located {
    path: String,
    block: InputBlock,
}

/// The blocks of a content at `path`.
fn located(content: TextOr<Vec<InputBlock>>, path: &str) -> Vec<Located> {
    match content {
        TextOr::Text(text) => {
            let block = InputBlock { kind: "text".into(), text: Some(text), ..InputBlock::default() };
            vec![Located { path: path.to_owned(), block }]
        }
        TextOr::Other(blocks) => {
            let each = blocks.into_iter().enumerate();
            each.map(|(i, block)| Located { path: format!("{path}[{i}]"), block }).collect()
        }
    }
}

/// The texts of blocks that must be texts.
fn texts(blocks: Vec<Located>) -> Result<Vec<String>, Fault> {
    let each = blocks.into_iter().map(|Located { path, block }| match block.kind.as_str() {
        "text" => required(block.text, &path, "text", "text"),
        _ => Err(unsupported(&block.kind, &path, "here")),
    });
    each.collect()
}

fn unsupported(kind: &str, path: &str, place: &str) -> Fault {
    let what = match kind {
        "image" | "document" | "search_result" => format!("this model accepts text only, no block of type `{kind}`"),
        _ => format!("blocks of type `{kind}` are not supported {place}"),
    };
    Fault::invalid(what).at(path)
}

/// A field that a block of this kind must have.
fn required<T>(field: Option<T>, path: &str, kind: &str, name: &str) -> Result<T, Fault> {
    field
        .ok_or_else(|| Fault::invalid(format!("a block of type `{kind}` needs `{name}`")).at(&format!("{path}.{name}")))
}

/// The messages so far.
#[derive(Default)]
struct Chat {
    messages: Vec<ChatMessage>,
    /// Names of the tools called so far, by the ids of the calls.
    calls: BTreeMap<String, String>,
}

impl Chat {
    fn push(&mut self, message: Value) {
        if let Value::Object(message) = message {
            self.messages.push(message);
        }
    }

    fn add(&mut self, role: Role, blocks: Vec<Located>) -> Result<(), Fault> {
        match role {
            Role::User => self.add_user(blocks),
            Role::Assistant => self.add_assistant(blocks),
            Role::System => {
                let text = texts(blocks)?.join("\n");
                self.push(json!({"role": "system", "content": text}));
                Ok(())
            }
        }
    }

    /// A turn of the user: results of tools, each a message, and texts.
    fn add_user(&mut self, blocks: Vec<Located>) -> Result<(), Fault> {
        let mut said: Vec<String> = Vec::new();
        for Located { path, block } in blocks {
            match block.kind.as_str() {
                "text" => said.push(required(block.text, &path, "text", "text")?),
                "tool_result" => {
                    self.add_user_text(&mut said);
                    self.add_result(block, &path)?;
                }
                kind => return Err(unsupported(kind, &path, "in a message of the user")),
            }
        }
        self.add_user_text(&mut said);
        Ok(())
    }

    fn add_user_text(&mut self, said: &mut Vec<String>) {
        if !said.is_empty() {
            self.push(json!({"role": "user", "content": std::mem::take(said).join("\n")}));
        }
    }

    /// The result of a call.
    fn add_result(&mut self, block: InputBlock, path: &str) -> Result<(), Fault> {
        let id = required(block.tool_use_id, path, "tool_result", "tool_use_id")?;
        let Some(name) = self.calls.get(&id) else {
            let what = format!("no earlier block of type `tool_use` has the id `{id}`");
            return Err(Fault::invalid(what).at(&format!("{path}.tool_use_id")));
        };
        let content = block.content.map(|content| located(content, &format!("{path}.content"))).unwrap_or_default();
        let mut text = texts(content)?.join("\n");
        if block.is_error == Some(true) {
            // Chat templates have no other place for it.
            text.insert_str(0, "Error: ");
        }
        let message = json!({"role": "tool", "tool_call_id": id, "name": name, "content": text});
        self.push(message);
        Ok(())
    }

    /// A turn of the model: thoughts, texts and calls in one message.
    fn add_assistant(&mut self, blocks: Vec<Located>) -> Result<(), Fault> {
        let (mut thoughts, mut said, mut calls) = (Vec::new(), Vec::new(), Vec::new());
        for Located { path, block } in blocks {
            match block.kind.as_str() {
                "text" => said.push(required(block.text, &path, "text", "text")?),
                "thinking" => thoughts.push(required(block.thinking, &path, "thinking", "thinking")?),
                // Only its maker can read it.
                "redacted_thinking" => {}
                "tool_use" => {
                    let id = required(block.id, &path, "tool_use", "id")?;
                    let name = required(block.name, &path, "tool_use", "name")?;
                    let arguments = Value::Object(block.input.unwrap_or_default()).to_string();
                    self.calls.insert(id.clone(), name.clone());
                    let function = json!({"name": name, "arguments": arguments});
                    calls.push(json!({"id": id, "type": "function", "function": function}));
                }
                kind => return Err(unsupported(kind, &path, "in a message of the assistant")),
            }
        }
        let content = if said.is_empty() && !calls.is_empty() { Value::Null } else { said.join("\n").into() };
        let mut message = json!({"role": "assistant", "content": content});
        if !thoughts.is_empty() {
            message["reasoning_content"] = thoughts.join("\n").into();
        }
        if !calls.is_empty() {
            message["tool_calls"] = calls.into();
        }
        self.push(message);
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn translated(system: Value, messages: Value) -> Result<Value, Fault> {
        let system = serde_json::from_value(system).unwrap();
        chat_messages(system, serde_json::from_value(messages).unwrap()).map(|messages| json!(messages))
    }

    #[test]
    fn a_system_prompt_is_the_first_message() {
        let user = json!([{"role": "user", "content": "a"}]);
        for system in [json!("s\nt"), json!([{"type": "text", "text": "s"}, {"type": "text", "text": "t"}])] {
            let expected = json!([{"role": "system", "content": "s\nt"}, {"role": "user", "content": "a"}]);
            assert_eq!(translated(system, user.clone()).unwrap(), expected);
        }
        assert_eq!(translated(json!(""), user.clone()).unwrap(), user);
    }

    #[test]
    fn consecutive_messages_of_a_role_are_one_turn() {
        let messages = json!([
            {"role": "user", "content": "a"},
            {"role": "user", "content": [{"type": "text", "text": "b"}]},
            {"role": "assistant", "content": "c"},
            {"role": "user", "content": "d"},
        ]);
        let expected = json!([
            {"role": "user", "content": "a\nb"},
            {"role": "assistant", "content": "c"},
            {"role": "user", "content": "d"},
        ]);
        assert_eq!(translated(Value::Null, messages).unwrap(), expected);
    }

    #[test]
    fn calls_and_results_are_messages_of_tools() {
        let messages = json!([
            {"role": "user", "content": "a"},
            {"role": "assistant", "content": [
                {"type": "thinking", "thinking": "t", "signature": "s"},
                {"type": "redacted_thinking", "data": "x"},
                {"type": "text", "text": "b"},
                {"type": "tool_use", "id": "1", "name": "f", "input": {"x": 1}},
                {"type": "tool_use", "id": "2", "name": "g", "input": {}},
            ]},
            {"role": "user", "content": [
                {"type": "tool_result", "tool_use_id": "1", "content": "r", "is_error": true},
                {"type": "tool_result", "tool_use_id": "2", "content": [{"type": "text", "text": "q"}]},
                {"type": "text", "text": "c"},
            ]},
        ]);
        let expected = json!([
            {"role": "user", "content": "a"},
            {"role": "assistant", "content": "b", "reasoning_content": "t", "tool_calls": [
                {"id": "1", "type": "function", "function": {"name": "f", "arguments": "{\"x\":1}"}},
                {"id": "2", "type": "function", "function": {"name": "g", "arguments": "{}"}},
            ]},
            {"role": "tool", "tool_call_id": "1", "name": "f", "content": "Error: r"},
            {"role": "tool", "tool_call_id": "2", "name": "g", "content": "q"},
            {"role": "user", "content": "c"},
        ]);
        assert_eq!(translated(Value::Null, messages).unwrap(), expected);
    }

    #[test]
    fn invalid_blocks_are_named() {
        let user = |block: Value| json!([{"role": "user", "content": [{"type": "text", "text": "a"}, block]}]);
        for (messages, param) in [
            (json!([]), "messages"),
            (json!([{"role": "user", "content": "a"}, {"role": "assistant", "content": "b"}]), "messages"),
            (user(json!({"type": "text"})), "messages[0].content[1].text"),
            (user(json!({"type": "image"})), "messages[0].content[1]"),
            (user(json!({"type": "tool_use", "id": "1", "name": "f", "input": {}})), "messages[0].content[1]"),
            (user(json!({"type": "tool_result", "tool_use_id": "1"})), "messages[0].content[1].tool_use_id"),
            (user(json!({"type": "tool_result"})), "messages[0].content[1].tool_use_id"),
        ] {
            assert_eq!(
                translated(Value::Null, messages.clone()).unwrap_err().param.as_deref(),
                Some(param),
                "{messages}"
            );
        }
        let image = translated(Value::Null, user(json!({"type": "image"}))).unwrap_err();
        assert!(image.message.contains("text only"), "{image}");
    }
}
