//! Functions that a model may call, and its calls.

use serde::{Deserialize, Serialize};
use serde_json::Value;
use utoipa::ToSchema;

/// Something a model may call.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, ToSchema)]
pub struct Tool {
    /// `function`: there is no other kind.
    #[serde(rename = "type")]
    pub kind: ToolKind,
    /// The function.
    pub function: Function,
}

/// Kinds of tools.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "snake_case")]
pub enum ToolKind {
    /// A function of the caller's.
    #[default]
    Function,
}

/// A function of the caller's.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, ToSchema)]
pub struct Function {
    /// What it is called.
    pub name: String,
    /// When to call it.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub description: Option<String>,
    /// A JSON schema of its arguments; none where it takes none.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schema(value_type = Option<Object>)]
    pub parameters: Option<Value>,
    /// Whether arguments must satisfy the schema. Where a call is demanded they always do.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub strict: Option<bool>,
}

/// Whether the model calls a tool.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(
    untagged,
    expecting = "\"none\", \"auto\", \"required\" or {\"type\": \"function\", \"function\": {\"name\": …}}"
)]
pub enum ToolChoice {
    /// Whatever the tool.
    Mode(ToolMode),
    /// This one.
    Named {
        /// `function`: there is no other kind.
        #[serde(rename = "type")]
        kind: ToolKind,
        /// Which.
        function: FunctionName,
    },
}

/// Whether the model calls a tool.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "snake_case")]
pub enum ToolMode {
    /// It does not.
    None,
    /// As it likes.
    Auto,
    /// It does.
    Required,
}

/// The name of a function.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct FunctionName {
    /// The name.
    pub name: String,
}

/// A call of a tool, complete.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct ToolCall {
    /// By which its result is told apart from others.
    pub id: String,
    /// `function`: there is no other kind.
    #[serde(rename = "type")]
    pub kind: ToolKind,
    /// What is called.
    pub function: FunctionCall,
}

/// A function and its arguments.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct FunctionCall {
    /// Which function.
    pub name: String,
    /// Its arguments, as JSON within a text.
    pub arguments: String,
}

/// A part of a call: the first has id, kind and name, the others more of its arguments.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct ToolCallDelta {
    /// Which of the answer's calls.
    pub index: usize,
    /// By which its result is told apart from others.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub id: Option<String>,
    /// `function`: there is no other kind.
    #[serde(rename = "type", skip_serializing_if = "Option::is_none")]
    pub kind: Option<ToolKind>,
    /// What is new of it.
    pub function: FunctionDelta,
}

/// What is new of a call.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct FunctionDelta {
    /// Which function.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub name: Option<String>,
    /// More of its arguments.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub arguments: Option<String>,
}
