//! Items that the model generates.

use super::input::ItemStatus;
use crate::openai::chat::TokenLogprob;
use serde::{Deserialize, Serialize};
use serde_json::Value;
use utoipa::ToSchema;

/// An item that the model generates.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, ToSchema)]
#[serde(tag = "type", rename_all = "snake_case")]
#[schema(as = ResponseOutputItem)]
pub enum OutputItem {
    /// A thought.
    Reasoning(ReasoningItem),
    /// A text for the user.
    Message(OutputMessage),
    /// A tool call.
    FunctionCall(FunctionCallItem),
}

impl OutputItem {
    /// The id of the item.
    pub fn id(&self) -> &str {
        match self {
            OutputItem::Reasoning(item) => &item.id,
            OutputItem::Message(item) => &item.id,
            OutputItem::FunctionCall(item) => &item.id,
        }
    }
}

/// A thought of a model that reasons.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, ToSchema)]
pub struct ReasoningItem {
    /// Unique id.
    pub id: String,
    /// The thought, if the request asks for a summary. It is not abridged.
    pub summary: Vec<ReasoningPart>,
    /// The thought, if the request asks for no summary.
    pub content: Vec<ReasoningPart>,
    /// Whether it is complete.
    pub status: ItemStatus,
}

/// A part of a thought.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(tag = "type", rename_all = "snake_case")]
pub enum ReasoningPart {
    /// The thought.
    ReasoningText {
        /// The text.
        text: String,
    },
    /// The thought, in place of a summary.
    SummaryText {
        /// The text.
        text: String,
    },
}

/// A text for the user.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, ToSchema)]
pub struct OutputMessage {
    /// Unique id.
    pub id: String,
    /// `assistant`.
    pub role: String,
    /// The text.
    pub content: Vec<OutputPart>,
    /// Whether it is complete.
    pub status: ItemStatus,
}

/// A part of a message.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, ToSchema)]
#[serde(tag = "type", rename_all = "snake_case")]
#[schema(as = ResponseOutputPart)]
pub enum OutputPart {
    /// A text.
    OutputText {
        /// The text.
        text: String,
        /// Always empty.
        #[schema(value_type = Vec<Object>)]
        annotations: Vec<Value>,
        /// The logprobs of its tokens, if `include` asks for them.
        logprobs: Vec<TokenLogprob>,
    },
    /// A thought.
    ReasoningText {
        /// The text.
        text: String,
    },
}

/// A tool call.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct FunctionCallItem {
    /// Unique id.
    pub id: String,
    /// Id of the call, which the item with its result repeats.
    pub call_id: String,
    /// Name of the function.
    pub name: String,
    /// Arguments as a JSON string.
    pub arguments: String,
    /// Whether it is complete.
    pub status: ItemStatus,
}
