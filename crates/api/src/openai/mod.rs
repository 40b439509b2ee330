//! OpenAI's dialect.

pub mod error;
pub mod models;
