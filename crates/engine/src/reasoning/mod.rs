//! Models that reason: they write a thought between two markers before they answer.
//!
//! [`Reasoning`] says how a model does so, from its chat template. [`AnswerParser`] separates
//! thought, text and tool calls in the text of an answer. [`Thought`] follows the tokens of an
//! active sequence: it ends a thought that reached its budget, and says when structured output
//! begins.

mod answer_parser;
mod parser;
mod syntax;
mod thought;

pub use answer_parser::{AnswerParser, ParsedAnswer};
pub use syntax::{Reasoning, ReasoningEffort, ReasoningSyntax, Thoughts};
pub(crate) use thought::{Divided, Thought, ThoughtRules};
