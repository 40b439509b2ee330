//! OpenAI's dialect.

pub mod chat;
pub mod classify;
pub mod common;
pub mod completions;
pub mod embeddings;
pub mod error;
pub mod models;
pub mod tools;
