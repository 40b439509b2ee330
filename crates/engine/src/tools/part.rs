//! The parts of an answer.

/// A parsed part of an answer.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum AnswerPart {
    /// Text for the user.
    Text(String),
    /// A thought of a model that reasons.
    Reasoning(String),
    /// Start of a tool call.
    Call {
        /// Index of the call within the answer.
        index: usize,
        /// Function name.
        name: String,
    },
    /// Further arguments of a call.
    Arguments {
        /// Index of the call within the answer.
        index: usize,
        /// New text.
        text: String,
    },
}

/// A complete tool call.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct ToolCall {
    /// Function name.
    pub name: String,
    /// Arguments, a JSON object as the model wrote it. The model may have made a mistake.
    pub arguments: String,
}
