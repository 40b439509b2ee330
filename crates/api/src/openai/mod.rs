//! OpenAI's dialect.

pub mod chat;
pub mod common;
pub mod completions;
pub mod tools;
