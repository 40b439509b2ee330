//! Wire types of OpenAI's API, and of vLLM's `/v1/classify`.

pub mod batches;
pub mod chat;
pub mod classify;
pub mod common;
pub mod completions;
pub mod embeddings;
pub mod error;
pub mod files;
pub mod lists;
pub mod models;
pub mod responses;
pub mod tools;
pub mod vector_stores;
