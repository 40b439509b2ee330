//! Tool calling: how tools are shown to a model, how a grammar forces calls, and how calls are
//! parsed from the answer.

mod described;
mod grammar;
mod object;
mod parser;
#[cfg(test)]
mod parser_tests;
mod style;

pub(crate) use described::describe_tools;
pub(crate) use grammar::CallGrammar;
pub(crate) use parser::{AnswerPart, ToolCallParser};
pub(crate) use style::Style;
