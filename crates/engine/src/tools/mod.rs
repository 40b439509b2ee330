//! Tool calling: how tools are shown to a model, how a grammar forces calls, and how calls are
//! parsed from the answer.

mod described;
mod grammar;
mod object;
mod parser;
#[cfg(test)]
mod parser_tests;
mod syntax;

pub(crate) use described::describe_tools;
pub use grammar::{CallGrammar, ToolFunction};
pub use parser::{AnswerPart, ToolCall, ToolCallParser};
pub use syntax::ToolSyntax;
