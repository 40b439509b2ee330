//! What Sconce's servers say over HTTP: wire types and error codes, one module a dialect. Whoever asks and whoever answers share them.
//! With the feature `client`, the HTTP client that the pool and its workers share, too.

pub mod admin;
#[cfg(feature = "client")]
pub mod client;
pub mod cohere;
pub mod input;
pub mod openai;
pub mod pipeline;
pub mod pool;
pub mod tei;
pub mod time;
pub mod worker;
