//! Items of a conversation: checked, stored, and translated into messages of a chat.

use super::id;
use crate::error::Fault;
use crate::storage::responses::StoredResponse;
use sconce_api::openai::responses::input::{InputItem, InputPart, ItemRole, ItemStatus};
use sconce_api::openai::responses::output::{OutputItem, OutputPart, ReasoningPart};
use sconce_api::text_or::TextOr;
use serde_json::{Map, Value, json};
use std::collections::BTreeMap;

type ChatMessage = Map<String, Value>;

/// The items of a request, checked and complete: each has a type and an id, and contents are lists
/// of parts.
pub(super) fn normalized(input: Option<TextOr<Vec<InputItem>>>) -> Result<Vec<InputItem>, Fault> {
    let items = match input {
        None => Vec::new(),
        Some(TextOr::Text(text)) => {
            let content = Some(TextOr::Text(text));
            vec![InputItem { role: Some(ItemRole::User), content, ..InputItem::default() }]
        }
        Some(TextOr::Other(items)) => items,
    };
    items.into_iter().enumerate().map(|(i, item)| complete(item, &format!("input[{i}]"))).collect()
}

/// Checks and completes the item at `path`.
fn complete(mut item: InputItem, path: &str) -> Result<InputItem, Fault> {
    let kind = item.kind.get_or_insert_with(|| "message".into()).clone();
    let needs = |is_set: bool, name: &str| match is_set {
        true => Ok(()),
        false => Err(Fault::invalid(format!("an item of type `{kind}` needs `{name}`")).at(&format!("{path}.{name}"))),
    };
    let prefix = match kind.as_str() {
        "message" => {
            needs(item.role.is_some(), "role")?;
            needs(item.content.is_some(), "content")?;
            "msg_"
        }
        "reasoning" => "rs_",
        "function_call" => {
            needs(item.call_id.is_some(), "call_id")?;
            needs(item.name.is_some(), "name")?;
            needs(item.arguments.is_some(), "arguments")?;
            "fc_"
        }
        "function_call_output" => {
            needs(item.call_id.is_some(), "call_id")?;
            needs(item.output.is_some(), "output")?;
            "fco_"
        }
        "item_reference" => {
            let what = "items are not referred to by id: use `previous_response_id`, or send the items themselves";
            return Err(Fault::invalid(what).at(path));
        }
        other => {
            let what = format!("items of type `{other}` are not supported");
            return Err(Fault::invalid(what).at(&format!("{path}.type")));
        }
    };
    if item.id.is_none() {
        item.id = Some(id(prefix));
    }
    item.status = Some(ItemStatus::Completed);
    let (text_kind, annotations) = match item.role {
        Some(ItemRole::Assistant) => ("output_text", Some(Vec::new())),
        _ if kind == "reasoning" => ("reasoning_text", None),
        _ => ("input_text", None),
    };
    let part = |text| InputPart { kind: text_kind.into(), text: Some(text), annotations, ..InputPart::default() };
    if let Some(TextOr::Text(text)) = &mut item.content {
        item.content = Some(TextOr::Other(vec![part(std::mem::take(text))]));
    }
    let parts = |field: &Option<TextOr<Vec<InputPart>>>, name: &str| match field {
        Some(TextOr::Other(parts)) => check_parts(parts, &format!("{path}.{name}")),
        Some(TextOr::Text(_)) | None => Ok(()),
    };
    parts(&item.content, "content")?;
    parts(&item.output, "output")?;
    check_parts(item.summary.as_deref().unwrap_or_default(), &format!("{path}.summary"))?;
    Ok(item)
}

/// Checks that parts are texts.
fn check_parts(parts: &[InputPart], path: &str) -> Result<(), Fault> {
    for (i, part) in parts.iter().enumerate() {
        let (kind, text, name) = match part.kind.as_str() {
            "refusal" => ("refusal", &part.refusal, "refusal"),
            kind @ ("input_text" | "output_text" | "text" | "reasoning_text" | "summary_text") => {
                (kind, &part.text, "text")
            }
            other => {
                let what = format!("this model accepts text only, no part of type `{other}`");
                return Err(Fault::invalid(what).at(&format!("{path}[{i}].type")));
            }
        };
        if text.is_none() {
            return Err(
                Fault::invalid(format!("a part of type `{kind}` needs `{name}`")).at(&format!("{path}[{i}].{name}"))
            );
        }
    }
    Ok(())
}

/// The text of checked parts.
fn joined(parts: &[InputPart]) -> String {
    let texts = parts.iter().filter_map(|part| part.text.as_deref().or(part.refusal.as_deref()));
    texts.collect::<Vec<_>>().join("\n")
}

fn text_of(content: Option<&TextOr<Vec<InputPart>>>) -> String {
    match content {
        Some(TextOr::Text(text)) => text.clone(),
        Some(TextOr::Other(parts)) => joined(parts),
        None => String::new(),
    }
}

/// The items of stored responses: the input and output of each.
pub(super) fn history(responses: Vec<StoredResponse>) -> Vec<InputItem> {
    let each = responses.into_iter().flat_map(|StoredResponse { input, response }| {
        input.into_iter().chain(response.output.into_iter().map(of_output))
    });
    each.collect()
}

/// An item of the model as the input of a later turn.
fn of_output(item: OutputItem) -> InputItem {
    let part = |kind: &str, text| InputPart { kind: kind.into(), text: Some(text), ..InputPart::default() };
    let blank = InputItem { status: Some(ItemStatus::Completed), ..InputItem::default() };
    match item {
        OutputItem::Message(message) => {
            let text = |said| match said {
                OutputPart::OutputText { text, .. } | OutputPart::ReasoningText { text } => part("output_text", text),
            };
            InputItem {
                kind: Some("message".into()),
                id: Some(message.id),
                role: Some(ItemRole::Assistant),
                content: Some(TextOr::Other(message.content.into_iter().map(text).collect())),
                ..blank
            }
        }
        OutputItem::Reasoning(thought) => {
            let text = |thought| match thought {
                ReasoningPart::ReasoningText { text } | ReasoningPart::SummaryText { text } => {
                    part("reasoning_text", text)
                }
            };
            let parts = thought.content.into_iter().chain(thought.summary);
            InputItem {
                kind: Some("reasoning".into()),
                id: Some(thought.id),
                content: Some(TextOr::Other(parts.map(text).collect())),
                ..blank
            }
        }
        OutputItem::FunctionCall(call) => InputItem {
            kind: Some("function_call".into()),
            id: Some(call.id),
            call_id: Some(call.call_id),
            name: Some(call.name),
            arguments: Some(call.arguments),
            ..blank
        },
    }
}

/// The messages of a chat: instructions, then the items of earlier responses and of the request.
pub(super) fn chat_messages(
    instructions: Option<&str>,
    history: &[InputItem],
    input: &[InputItem],
) -> Result<Vec<ChatMessage>, Fault> {
    let mut chat = Chat::default();
    if let Some(instructions) = instructions.filter(|text| !text.is_empty()) {
        chat.push(json!({"role": "system", "content": instructions}));
    }
    for item in history {
        chat.add(item, "previous_response_id")?;
    }
    for (i, item) in input.iter().enumerate() {
        chat.add(item, &format!("input[{i}]"))?;
    }
    chat.end_turn();
    Ok(chat.messages)
}

/// The messages so far.
#[derive(Default)]
struct Chat {
    messages: Vec<ChatMessage>,
    /// What the model says in one message: thoughts, text and calls.
    turn: AssistantTurn,
    /// Names of the functions called so far, by the ids of the calls.
    calls: BTreeMap<String, String>,
}

#[derive(Default)]
struct AssistantTurn {
    thoughts: Vec<String>,
    text: Option<String>,
    calls: Vec<Value>,
}

impl Chat {
    fn push(&mut self, message: Value) {
        if let Value::Object(message) = message {
            self.messages.push(message);
        }
    }

    /// Ends the message of the model.
    fn end_turn(&mut self) {
        let AssistantTurn { thoughts, text, calls } = std::mem::take(&mut self.turn);
        if thoughts.is_empty() && text.is_none() && calls.is_empty() {
            return;
        }
        let content = if calls.is_empty() { text.unwrap_or_default().into() } else { json!(text) };
        let mut message = json!({"role": "assistant", "content": content});
        if !thoughts.is_empty() {
            message["reasoning_content"] = thoughts.join("\n").into();
        }
        if !calls.is_empty() {
            message["tool_calls"] = calls.into();
        }
        self.push(message);
    }

    /// Adds a checked item, the field `path` of the request.
    fn add(&mut self, item: &InputItem, path: &str) -> Result<(), Fault> {
        let call_id = item.call_id.clone().unwrap_or_default();
        match (item.kind.as_deref().unwrap_or("message"), item.role) {
            ("message", Some(ItemRole::Assistant)) => {
                if self.turn.text.is_some() {
                    self.end_turn();
                }
                self.turn.text = Some(text_of(item.content.as_ref()));
            }
            ("reasoning", _) => {
                if self.turn.text.is_some() || !self.turn.calls.is_empty() {
                    self.end_turn();
                }
                let content = text_of(item.content.as_ref());
                let thought =
                    if content.is_empty() { joined(item.summary.as_deref().unwrap_or_default()) } else { content };
                if !thought.is_empty() {
                    self.turn.thoughts.push(thought);
                }
            }
            ("function_call", _) => {
                let name = item.name.clone().unwrap_or_default();
                self.calls.insert(call_id.clone(), name.clone());
                let function = json!({"name": name, "arguments": item.arguments.clone().unwrap_or_default()});
                self.turn.calls.push(json!({"id": call_id, "type": "function", "function": function}));
            }
            ("function_call_output", _) => {
                self.end_turn();
                let Some(name) = self.calls.get(&call_id) else {
                    let what = format!("no earlier item of type `function_call` has the `call_id` `{call_id}`");
                    return Err(Fault::invalid(what).at(&format!("{path}.call_id")));
                };
                let content = text_of(item.output.as_ref());
                let message = json!({"role": "tool", "tool_call_id": call_id, "name": name, "content": content});
                self.push(message);
            }
            (_, role) => {
                self.end_turn();
                let role = role.unwrap_or(ItemRole::User).name();
                self.push(json!({"role": role, "content": text_of(item.content.as_ref())}));
            }
        }
        Ok(())
    }
}

fn role(message: &ChatMessage) -> &str {
    message.get("role").and_then(Value::as_str).unwrap_or_default()
}

/// How many messages at the beginning are instructions, which always stay.
fn instructions(messages: &[ChatMessage]) -> usize {
    messages.iter().take_while(|message| matches!(role(message), "system" | "developer")).count()
}

/// Where the turns of the user begin after the first one.
pub(super) fn later_turns(messages: &[ChatMessage]) -> Vec<usize> {
    let first = instructions(messages);
    let each = messages.iter().enumerate().skip(first + 1);
    each.filter(|(_, message)| role(message) == "user").map(|(i, _)| i).collect()
}

/// The messages without the `count` oldest of these turns.
pub(super) fn without_oldest(messages: &[ChatMessage], turns: &[usize], count: usize) -> Vec<ChatMessage> {
    let Some(start) = count.checked_sub(1).and_then(|last| turns.get(last)) else { return messages.to_vec() };
    let kept = messages.iter().enumerate().filter(|(i, _)| *i < instructions(messages) || i >= start);
    kept.map(|(_, message)| message.clone()).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn translated(input: Value) -> Result<Value, Fault> {
        let items = normalized(serde_json::from_value(input).unwrap())?;
        chat_messages(None, &[], &items).map(|messages| json!(messages))
    }

    #[test]
    fn a_text_is_a_message_of_the_user() {
        assert_eq!(translated(json!("a")).unwrap(), json!([{"role": "user", "content": "a"}]));
        let items = normalized(Some(TextOr::Text("a".into()))).unwrap();
        let item = json!(items[0]);
        assert_eq!(
            (&item["type"], &item["role"], &item["status"]),
            (&json!("message"), &json!("user"), &json!("completed"))
        );
        assert_eq!(item["content"], json!([{"type": "input_text", "text": "a"}]));
        assert!(item["id"].as_str().unwrap().starts_with("msg_"));
    }

    #[test]
    fn thoughts_texts_and_calls_of_a_turn_are_one_message() {
        let input = json!([
            {"role": "user", "content": "a"},
            {"type": "reasoning", "id": "rs_1", "summary": [{"type": "summary_text", "text": "t"}]},
            {"type": "message", "role": "assistant", "content": [{"type": "output_text", "text": "b", "annotations": []}]},
            {"type": "function_call", "call_id": "1", "name": "f", "arguments": "{}"},
            {"type": "function_call", "call_id": "2", "name": "g", "arguments": "{}"},
            {"type": "function_call_output", "call_id": "1", "output": "r"},
            {"type": "function_call_output", "call_id": "2", "output": [{"type": "input_text", "text": "q"}]},
            {"type": "reasoning", "id": "rs_2", "summary": [], "content": [{"type": "reasoning_text", "text": "u"}]},
            {"role": "assistant", "content": "c"},
            {"role": "developer", "content": [{"type": "input_text", "text": "d"}, {"type": "input_text", "text": "e"}]},
        ]);
        let call =
            |id: &str, name: &str| json!({"id": id, "type": "function", "function": {"name": name, "arguments": "{}"}});
        let expected = json!([
            {"role": "user", "content": "a"},
            {"role": "assistant", "content": "b", "reasoning_content": "t", "tool_calls": [call("1", "f"), call("2", "g")]},
            {"role": "tool", "tool_call_id": "1", "name": "f", "content": "r"},
            {"role": "tool", "tool_call_id": "2", "name": "g", "content": "q"},
            {"role": "assistant", "content": "c", "reasoning_content": "u"},
            {"role": "developer", "content": "d\ne"},
        ]);
        assert_eq!(translated(input).unwrap(), expected);
    }

    #[test]
    fn a_call_without_text_has_no_content() {
        let input = json!([{"type": "function_call", "call_id": "1", "name": "f", "arguments": "{}"}]);
        assert_eq!(translated(input).unwrap()[0]["content"], Value::Null);
    }

    #[test]
    fn output_comes_back_as_the_model_said_it() {
        let output: Vec<OutputItem> = serde_json::from_value(json!([
            {"type": "reasoning", "id": "rs_1", "summary": [], "content": [{"type": "reasoning_text", "text": "t"}],
                "status": "completed"},
            {"type": "message", "id": "msg_1", "role": "assistant", "status": "completed",
                "content": [{"type": "output_text", "text": "a", "annotations": [], "logprobs": []}]},
            {"type": "function_call", "id": "fc_1", "call_id": "1", "name": "f", "arguments": "{}", "status": "completed"},
        ]))
        .unwrap();
        // Clients send it back as they got it; the server also knows it.
        let sent = normalized(serde_json::from_value(json!(output)).unwrap()).unwrap();
        let known: Vec<InputItem> = output.into_iter().map(of_output).collect();
        let messages = chat_messages(Some("s"), &known, &[]).unwrap();
        assert_eq!(messages, chat_messages(Some("s"), &[], &sent).unwrap());
        assert_eq!(json!(messages)[0], json!({"role": "system", "content": "s"}));
        assert_eq!(json!(messages)[1]["reasoning_content"], "t");
    }

    #[test]
    fn invalid_items_are_named() {
        for (item, param) in [
            (json!({"content": "a"}), "input[0].role"),
            (json!({"role": "user"}), "input[0].content"),
            (json!({"type": "computer_call"}), "input[0].type"),
            (json!({"type": "item_reference", "id": "msg_1"}), "input[0]"),
            (json!({"type": "function_call", "call_id": "1", "name": "f"}), "input[0].arguments"),
            (json!({"type": "function_call_output", "call_id": "1", "output": "a"}), "input[0].call_id"),
            (json!({"role": "user", "content": [{"type": "input_image"}]}), "input[0].content[0].type"),
            (json!({"role": "user", "content": [{"type": "input_text"}]}), "input[0].content[0].text"),
        ] {
            assert_eq!(translated(json!([item])).unwrap_err().param.as_deref(), Some(param), "{item}");
        }
    }

    #[test]
    fn the_oldest_turns_are_left_out_first() {
        let of = |roles: &[&str]| -> Vec<ChatMessage> {
            let each = roles.iter().map(|role| json!({"role": role}).as_object().unwrap().clone());
            each.collect()
        };
        let all = of(&["system", "user", "assistant", "user", "tool", "user"]);
        let turns = later_turns(&all);
        assert_eq!(turns, [3, 5]);
        assert_eq!(without_oldest(&all, &turns, 0), all);
        assert_eq!(without_oldest(&all, &turns, 1), of(&["system", "user", "tool", "user"]));
        assert_eq!(without_oldest(&all, &turns, 2), of(&["system", "user"]));
        assert!(later_turns(&of(&["user"])).is_empty() && later_turns(&[]).is_empty());
    }
}
