//! OpenAI's dialect.

pub mod classify;
pub mod embeddings;
pub mod error;
pub mod models;
