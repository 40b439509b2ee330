//! Tools (functions) that a model may call, and tool calls.

use serde::{Deserialize, Serialize};
use serde_json::Value;
use utoipa::ToSchema;

/// A tool that the model may call.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, ToSchema)]
pub struct Tool {
    /// Always `function`.
    #[serde(rename = "type")]
    pub kind: ToolKind,
    /// The function.
    pub function: Function,
}

/// Kind of a tool.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "snake_case")]
pub enum ToolKind {
    /// A function of the client.
    #[default]
    Function,
}

/// A function of the client.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, ToSchema)]
pub struct Function {
    /// Name of the function.
    pub name: String,
    /// What the function does, and when to call it.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub description: Option<String>,
    /// JSON schema of its arguments; absent if it takes none.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schema(value_type = Option<Object>)]
    pub parameters: Option<Value>,
    /// Whether arguments must satisfy the schema. With `tool_choice` `required` or a named function
    /// they always do.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub strict: Option<bool>,
}

/// Whether the model may or must call a tool.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(
    untagged,
    expecting = "\"none\", \"auto\", \"required\" or {\"type\": \"function\", \"function\": {\"name\": …}}"
)]
pub enum ToolChoice {
    /// `none`, `auto` or `required`.
    Mode(ToolMode),
    /// This function must be called.
    Named {
        /// Always `function`.
        #[serde(rename = "type")]
        kind: ToolKind,
        /// The function.
        function: FunctionName,
    },
}

/// Whether the model may or must call a tool.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "snake_case")]
pub enum ToolMode {
    /// The model must not call a tool.
    None,
    /// The model decides.
    Auto,
    /// The model must call a tool.
    Required,
}

/// The name of a function.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct FunctionName {
    /// Name of the function.
    pub name: String,
}

/// A complete tool call.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct ToolCall {
    /// Id of the call, which the message with its result repeats.
    pub id: String,
    /// Always `function`.
    #[serde(rename = "type")]
    pub kind: ToolKind,
    /// The function call.
    pub function: FunctionCall,
}

/// A function and its arguments.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct FunctionCall {
    /// Name of the function.
    pub name: String,
    /// Arguments as a JSON string.
    pub arguments: String,
}

/// A streamed part of a tool call: the first has id, kind and name, the others further arguments.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct ToolCallDelta {
    /// Index of the call within the answer.
    pub index: usize,
    /// Id of the call, which the message with its result repeats.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub id: Option<String>,
    /// Always `function`.
    #[serde(rename = "type", skip_serializing_if = "Option::is_none")]
    pub kind: Option<ToolKind>,
    /// The new part of the function call.
    pub function: FunctionDelta,
}

/// New part of a function call.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct FunctionDelta {
    /// Name of the function.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub name: Option<String>,
    /// Further arguments.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub arguments: Option<String>,
}
