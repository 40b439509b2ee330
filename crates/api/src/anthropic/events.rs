//! Events of a streamed message.

use super::error::ErrorBody;
use super::message::{ContentBlock, Message, StopReason, Usage};
use serde::{Deserialize, Serialize};
use utoipa::ToSchema;

/// An event of a streamed message.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, ToSchema)]
#[serde(tag = "type", rename_all = "snake_case")]
#[schema(as = MessageStreamEvent)]
pub enum StreamEvent {
    /// The message begins.
    MessageStart {
        /// The message, without content.
        message: Message,
    },
    /// A block begins.
    ContentBlockStart {
        /// Index of the block.
        index: usize,
        /// The block, empty.
        content_block: ContentBlock,
    },
    /// A block grows.
    ContentBlockDelta {
        /// Index of the block.
        index: usize,
        /// The new part.
        delta: ContentDelta,
    },
    /// A block is complete.
    ContentBlockStop {
        /// Index of the block.
        index: usize,
    },
    /// The message ends.
    MessageDelta {
        /// Why it ended.
        delta: MessageDelta,
        /// Token usage of the whole message.
        usage: Usage,
    },
    /// The last event.
    MessageStop,
    /// Keeps the connection alive.
    Ping,
    /// The message failed. The last event.
    Error {
        /// The error.
        error: ErrorBody,
        /// The id of the request.
        request_id: Option<String>,
    },
}

impl StreamEvent {
    /// The name of the event, which is also its `type`.
    pub fn name(&self) -> &'static str {
        match self {
            StreamEvent::MessageStart { .. } => "message_start",
            StreamEvent::ContentBlockStart { .. } => "content_block_start",
            StreamEvent::ContentBlockDelta { .. } => "content_block_delta",
            StreamEvent::ContentBlockStop { .. } => "content_block_stop",
            StreamEvent::MessageDelta { .. } => "message_delta",
            StreamEvent::MessageStop => "message_stop",
            StreamEvent::Ping => "ping",
            StreamEvent::Error { .. } => "error",
        }
    }
}

/// The new part of a block.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(tag = "type", rename_all = "snake_case")]
pub enum ContentDelta {
    /// Of a text.
    TextDelta {
        /// New text.
        text: String,
    },
    /// Of a thought.
    ThinkingDelta {
        /// New text of the thought.
        thinking: String,
    },
    /// The signature of a thought, at its end.
    SignatureDelta {
        /// The signature.
        signature: String,
    },
    /// Of a tool call.
    InputJsonDelta {
        /// New text of the arguments, which are JSON as a whole.
        partial_json: String,
    },
}

/// Why a message ended.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct MessageDelta {
    /// Why the message ended.
    pub stop_reason: Option<StopReason>,
    /// The stop sequence that ended it.
    pub stop_sequence: Option<String>,
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    #[test]
    fn events_are_named_by_their_type() {
        let body = ErrorBody { kind: "api_error".into(), message: "m".into() };
        let events = [
            StreamEvent::ContentBlockStart { index: 0, content_block: ContentBlock::Text { text: String::new() } },
            StreamEvent::ContentBlockDelta { index: 1, delta: ContentDelta::TextDelta { text: "a".into() } },
            StreamEvent::ContentBlockStop { index: 0 },
            StreamEvent::MessageDelta { delta: MessageDelta::default(), usage: Usage::default() },
            StreamEvent::MessageStop,
            StreamEvent::Ping,
            StreamEvent::Error { error: body, request_id: None },
        ];
        for event in events {
            assert_eq!(serde_json::to_value(&event).unwrap()["type"], event.name());
        }
        let delta = ContentDelta::InputJsonDelta { partial_json: "{".into() };
        assert_eq!(serde_json::to_value(delta).unwrap(), json!({"type": "input_json_delta", "partial_json": "{"}));
    }
}
