//! Tool calling: how tools are shown to a model, how a grammar forces calls, and how calls are
//! parsed from the answer.

mod described;
mod grammar;
mod marks;
mod object;
mod parser;
#[cfg(test)]
mod parser_tests;
mod part;
mod phi;
mod python;
mod syntax;
#[cfg(test)]
mod syntax_tests;

pub(crate) use described::describe_tools;
pub use grammar::{CallGrammar, ToolFunction};
pub(crate) use marks::partial_mark;
pub use parser::ToolCallParser;
pub use part::{AnswerPart, ToolCall};
pub(crate) use phi::phi_messages;
pub use syntax::ToolSyntax;
