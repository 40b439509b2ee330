//! OpenAI's dialect.

pub mod chat;
pub mod common;
pub mod completions;
pub mod error;
pub mod models;
pub mod tools;
