//! The events of a message, and the message that they add up to.

use crate::conversation::ChatFinish;
use sconce_api::anthropic::events::{ContentDelta, MessageDelta, StreamEvent};
use sconce_api::anthropic::message::{ContentBlock, Message, StopReason, Usage};
use sconce_engine::AnswerPart;
use serde_json::{Map, Value};

/// Turns the parts of an answer into the events of a message.
pub(super) struct MessageEvents {
    id: String,
    model: String,
    /// Whether thoughts have their text.
    shows_thinking: bool,
    is_started: bool,
    open: Option<BlockKind>,
    /// Index of the open block, or of the next.
    index: usize,
}

/// Kind of a block.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum BlockKind {
    Text,
    Thinking,
    ToolUse,
}

impl MessageEvents {
    pub(super) fn new(id: String, model: String, shows_thinking: bool) -> MessageEvents {
        MessageEvents { id, model, shows_thinking, is_started: false, open: None, index: 0 }
    }

    /// The events of a part of the answer.
    pub(super) fn part(
        &mut self,
        part: AnswerPart,
        usage: Usage,
        call_id: impl FnOnce() -> String,
    ) -> Vec<StreamEvent> {
        let mut events = self.start(usage);
        match part {
            AnswerPart::Text(text) if text.is_empty() => {}
            AnswerPart::Text(text) => {
                self.open(BlockKind::Text, ContentBlock::Text { text: String::new() }, &mut events);
                events.push(self.delta(ContentDelta::TextDelta { text }));
            }
            AnswerPart::Reasoning(thinking) if thinking.is_empty() => {}
            AnswerPart::Reasoning(thinking) => {
                let block = ContentBlock::Thinking { thinking: String::new(), signature: String::new() };
                self.open(BlockKind::Thinking, block, &mut events);
                if self.shows_thinking {
                    events.push(self.delta(ContentDelta::ThinkingDelta { thinking }));
                }
            }
            AnswerPart::Call { name, .. } => {
                self.close(&mut events);
                let block = ContentBlock::ToolUse { id: call_id(), name, input: Map::new() };
                self.open(BlockKind::ToolUse, block, &mut events);
            }
            // Arguments belong to the last call: the model writes one after the other.
            AnswerPart::Arguments { text: partial_json, .. } => {
                events.push(self.delta(ContentDelta::InputJsonDelta { partial_json }));
            }
        }
        events
    }

    /// The events at the end of the answer. `is_limited`: it has `max_tokens` tokens.
    pub(super) fn end(&mut self, finish: ChatFinish, usage: Usage, is_limited: bool) -> Vec<StreamEvent> {
        let mut events = self.start(usage);
        self.close(&mut events);
        let (stop_reason, stop_sequence) = match finish {
            ChatFinish::End => (StopReason::EndTurn, None),
            ChatFinish::Stop(sequence) => (StopReason::StopSequence, Some(sequence)),
            ChatFinish::ToolCalls => (StopReason::ToolUse, None),
            ChatFinish::Length if is_limited => (StopReason::MaxTokens, None),
            ChatFinish::Length => (StopReason::ModelContextWindowExceeded, None),
        };
        let delta = MessageDelta { stop_reason: Some(stop_reason), stop_sequence };
        events.extend([StreamEvent::MessageDelta { delta, usage }, StreamEvent::MessageStop]);
        events
    }

    /// The events in front of the first block, once.
    fn start(&mut self, usage: Usage) -> Vec<StreamEvent> {
        if std::mem::replace(&mut self.is_started, true) {
            return Vec::new();
        }
        let message = Message {
            id: self.id.clone(),
            kind: "message".into(),
            role: "assistant".into(),
            model: self.model.clone(),
            content: Vec::new(),
            stop_reason: None,
            stop_sequence: None,
            usage,
        };
        vec![StreamEvent::MessageStart { message }, StreamEvent::Ping]
    }

    /// Begins a block, unless one of this kind is open.
    fn open(&mut self, kind: BlockKind, content_block: ContentBlock, events: &mut Vec<StreamEvent>) {
        if self.open == Some(kind) {
            return;
        }
        self.close(events);
        self.open = Some(kind);
        events.push(StreamEvent::ContentBlockStart { index: self.index, content_block });
    }

    fn delta(&self, delta: ContentDelta) -> StreamEvent {
        StreamEvent::ContentBlockDelta { index: self.index, delta }
    }

    /// Ends the open block.
    fn close(&mut self, events: &mut Vec<StreamEvent>) {
        let Some(kind) = self.open.take() else { return };
        if kind == BlockKind::Thinking {
            // Clients send a thought back only if it has a signature.
            events.push(self.delta(ContentDelta::SignatureDelta { signature: self.id.clone() }));
        }
        events.push(StreamEvent::ContentBlockStop { index: self.index });
        self.index += 1;
    }
}

/// Adds events up to a message.
#[derive(Default)]
pub(super) struct Accumulator {
    message: Option<Message>,
    /// Arguments of the open tool call.
    arguments: String,
}

impl Accumulator {
    pub(super) fn add(&mut self, event: StreamEvent) {
        if let StreamEvent::MessageStart { message } = event {
            self.message = Some(message);
            return;
        }
        let Some(message) = &mut self.message else { return };
        match event {
            StreamEvent::ContentBlockStart { content_block, .. } => message.content.push(content_block),
            StreamEvent::ContentBlockDelta { delta, .. } => match (message.content.last_mut(), delta) {
                (Some(ContentBlock::Text { text }), ContentDelta::TextDelta { text: more }) => text.push_str(&more),
                (Some(ContentBlock::Thinking { thinking, .. }), ContentDelta::ThinkingDelta { thinking: more }) => {
                    thinking.push_str(&more);
                }
                (Some(ContentBlock::Thinking { signature, .. }), ContentDelta::SignatureDelta { signature: whole }) => {
                    *signature = whole;
                }
                (_, ContentDelta::InputJsonDelta { partial_json }) => self.arguments.push_str(&partial_json),
                _ => {}
            },
            StreamEvent::ContentBlockStop { .. } => {
                if let Some(ContentBlock::ToolUse { input, .. }) = message.content.last_mut() {
                    *input = parsed(std::mem::take(&mut self.arguments));
                }
            }
            StreamEvent::MessageDelta { delta, usage } => {
                message.stop_reason = delta.stop_reason;
                message.stop_sequence = delta.stop_sequence;
                message.usage = usage;
            }
            StreamEvent::MessageStart { .. }
            | StreamEvent::MessageStop
            | StreamEvent::Ping
            | StreamEvent::Error { .. } => {}
        }
    }

    /// The message; `None` if it never began.
    pub(super) fn finish(self) -> Option<Message> {
        self.message
    }
}

/// The arguments of a call. Those that are no object, because the answer ended in the middle or the
/// model made a mistake, are under the key that Anthropic's guide to streamed tools has for them.
fn parsed(arguments: String) -> Map<String, Value> {
    match serde_json::from_str(&arguments) {
        Ok(Value::Object(input)) => input,
        _ if arguments.trim().is_empty() => Map::new(),
        _ => Map::from_iter([("INVALID_JSON".to_owned(), arguments.into())]),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    fn text(text: &str) -> AnswerPart {
        AnswerPart::Text(text.into())
    }

    fn arguments(index: usize, text: &str) -> AnswerPart {
        AnswerPart::Arguments { index, text: text.into() }
    }

    /// The events of these parts, and the message.
    fn events(parts: Vec<AnswerPart>, finish: ChatFinish, shows_thinking: bool) -> (Vec<StreamEvent>, Message) {
        let mut builder = MessageEvents::new("msg_1".into(), "m".into(), shows_thinking);
        let usage = Usage { input_tokens: 3, ..Usage::default() };
        let mut calls = 0;
        let mut all = Vec::new();
        for part in parts {
            all.extend(builder.part(part, usage, || {
                calls += 1;
                format!("toolu_{calls}")
            }));
        }
        all.extend(builder.end(finish, Usage { output_tokens: 7, ..usage }, true));
        let mut message = Accumulator::default();
        all.iter().cloned().for_each(|event| message.add(event));
        (all, message.finish().unwrap())
    }

    fn names(events: &[StreamEvent]) -> Vec<&'static str> {
        events.iter().map(StreamEvent::name).collect()
    }

    #[test]
    fn a_text_is_one_block() {
        let (events, message) = events(vec![text("a"), text(""), text("b")], ChatFinish::End, true);
        let expected = [
            "message_start",
            "ping",
            "content_block_start",
            "content_block_delta",
            "content_block_delta",
            "content_block_stop",
            "message_delta",
            "message_stop",
        ];
        assert_eq!(names(&events), expected);
        assert_eq!(message.content, [ContentBlock::Text { text: "ab".into() }]);
        assert_eq!((message.stop_reason, message.usage.output_tokens), (Some(StopReason::EndTurn), 7));
    }

    #[test]
    fn thoughts_texts_and_calls_are_blocks_in_their_order() {
        let call = |index, name: &str| AnswerPart::Call { index, name: name.into() };
        let parts = vec![
            AnswerPart::Reasoning("think".into()),
            AnswerPart::Reasoning("ing".into()),
            text("text"),
            call(0, "f"),
            arguments(0, "{\"x\":"),
            arguments(0, " 1}"),
            call(1, "g"),
        ];
        let (events, message) = events(parts, ChatFinish::ToolCalls, true);
        let starts = events.iter().filter_map(|event| match event {
            StreamEvent::ContentBlockStart { index, .. } => Some(*index),
            _ => None,
        });
        assert_eq!(starts.collect::<Vec<_>>(), [0, 1, 2, 3]);
        let stops = events.iter().filter(|event| event.name() == "content_block_stop").count();
        assert_eq!(stops, 4);
        let expected = json!([
            {"type": "thinking", "thinking": "thinking", "signature": "msg_1"},
            {"type": "text", "text": "text"},
            {"type": "tool_use", "id": "toolu_1", "name": "f", "input": {"x": 1}},
            {"type": "tool_use", "id": "toolu_2", "name": "g", "input": {}},
        ]);
        assert_eq!(json!(message.content), expected);
        assert_eq!(message.stop_reason, Some(StopReason::ToolUse));
    }

    #[test]
    fn omitted_thoughts_have_a_signature_alone() {
        let (_, message) = events(vec![AnswerPart::Reasoning("a".into()), text("b")], ChatFinish::End, false);
        let thought = ContentBlock::Thinking { thinking: String::new(), signature: "msg_1".into() };
        assert_eq!(message.content[0], thought);
    }

    #[test]
    fn an_answer_without_text_has_no_content() {
        let (_, message) = events(Vec::new(), ChatFinish::Stop("x".into()), true);
        assert!(message.content.is_empty());
        assert_eq!((message.stop_reason, message.stop_sequence), (Some(StopReason::StopSequence), Some("x".into())));
    }

    #[test]
    fn arguments_that_are_cut_off_are_kept() {
        let parts = vec![AnswerPart::Call { index: 0, name: "f".into() }, arguments(0, "{\"x\": ")];
        let (_, message) = events(parts, ChatFinish::Length, true);
        assert_eq!(json!(message.content)[0]["input"], json!({"INVALID_JSON": "{\"x\": "}));
        assert_eq!(message.stop_reason, Some(StopReason::MaxTokens));
    }
}
