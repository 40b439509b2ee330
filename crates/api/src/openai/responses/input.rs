//! Items of a conversation, as clients send them and `/v1/responses/{id}/input_items` lists them.
//!
//! An item is a struct with a `type`, not a tagged enum: serde buffers the content of a tagged enum,
//! and then neither the path of an error nor an unknown field within is known.

use crate::text_or::TextOr;
use serde::{Deserialize, Serialize};
use serde_json::Value;
use utoipa::ToSchema;

/// An item of a conversation. Which fields it has depends on its type.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, ToSchema)]
#[schema(as = ResponseInputItem)]
pub struct InputItem {
    /// Type of the item; `message` if absent.
    #[serde(rename = "type", skip_serializing_if = "Option::is_none")]
    #[schema(value_type = Option<InputItemKind>)]
    pub kind: Option<String>,
    /// Id of the item.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub id: Option<String>,
    /// Of `message`: the role.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub role: Option<ItemRole>,
    /// Of `message`: the content. Of `reasoning`: the thought.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schema(value_type = Option<InputContent>)]
    pub content: Option<TextOr<Vec<InputPart>>>,
    /// Of `reasoning`: summaries, which are read if the item has no `content`.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub summary: Option<Vec<InputPart>>,
    /// Of `function_call` and `function_call_output`: the id of the call.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub call_id: Option<String>,
    /// Of `function_call`: the name of the function.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub name: Option<String>,
    /// Of `function_call`: the arguments as a JSON string.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub arguments: Option<String>,
    /// Of `function_call_output`: the result.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schema(value_type = Option<InputContent>)]
    pub output: Option<TextOr<Vec<InputPart>>>,
    /// Ignored.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub status: Option<ItemStatus>,
    /// Ignored.
    #[serde(default, skip_serializing)]
    pub phase: Option<String>,
    /// Of `reasoning`: ignored, because only its maker can read it.
    #[serde(default, skip_serializing)]
    pub encrypted_content: Option<String>,
}

/// Type of an item.
#[derive(ToSchema)]
#[schema(as = ResponseInputItemKind, rename_all = "snake_case")]
#[allow(dead_code, reason = "read by the derive alone")]
pub enum InputItemKind {
    /// A message.
    Message,
    /// A thought of the model.
    Reasoning,
    /// A tool call of the model.
    FunctionCall,
    /// The result of a tool call.
    FunctionCallOutput,
}

/// OpenAPI schema of a content.
#[derive(ToSchema)]
#[schema(as = ResponseInputContent)]
#[serde(untagged)]
#[allow(dead_code, reason = "read by the derive alone")]
pub enum InputContent {
    /// A text.
    Text(String),
    /// Parts.
    Parts(Vec<InputPart>),
}

/// Role of a message.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "snake_case")]
pub enum ItemRole {
    /// The user.
    User,
    /// The model.
    Assistant,
    /// Instructions.
    System,
    /// Instructions.
    Developer,
}

impl ItemRole {
    /// The role's name.
    pub fn name(self) -> &'static str {
        match self {
            ItemRole::User => "user",
            ItemRole::Assistant => "assistant",
            ItemRole::System => "system",
            ItemRole::Developer => "developer",
        }
    }
}

/// A part of a content.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, ToSchema)]
#[schema(as = ResponseInputPart)]
pub struct InputPart {
    /// Type of the part.
    #[serde(rename = "type")]
    #[schema(value_type = InputPartKind)]
    pub kind: String,
    /// The text.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub text: Option<String>,
    /// Of `refusal`: the text.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub refusal: Option<String>,
    /// Ignored.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schema(value_type = Option<Vec<Object>>)]
    pub annotations: Option<Vec<Value>>,
    /// Ignored.
    #[serde(default, skip_serializing)]
    #[schema(value_type = Option<Vec<Object>>)]
    pub logprobs: Option<Vec<Value>>,
}

/// Type of a part.
#[derive(ToSchema)]
#[schema(as = ResponseInputPartKind, rename_all = "snake_case")]
#[allow(dead_code, reason = "read by the derive alone")]
pub enum InputPartKind {
    /// A text of the client.
    InputText,
    /// A text of the model.
    OutputText,
    /// A refusal of the model.
    Refusal,
    /// A thought.
    ReasoningText,
    /// The summary of a thought.
    SummaryText,
}

/// Whether an item is complete.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "snake_case")]
pub enum ItemStatus {
    /// It is being generated.
    InProgress,
    /// It is complete.
    Completed,
    /// The response ended in the middle of it.
    Incomplete,
}
