//! What Sconce's servers say over HTTP: wire types and error codes, one module a dialect. Whoever asks and whoever answers share them.

pub mod admin;
pub mod cohere;
pub mod input;
pub mod openai;
pub mod pipeline;
pub mod pool;
pub mod tei;
pub mod time;
pub mod worker;
