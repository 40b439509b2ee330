//! Wire types and error codes of Sconce's HTTP APIs, one module per API, shared by clients and
//! servers. The feature `client` adds the HTTP client of the pool and its workers.

pub mod admin;
pub mod anthropic;
#[cfg(feature = "client")]
pub mod client;
pub mod cohere;
pub mod hosts;
pub mod input;
pub mod llama_cpp;
pub mod ollama;
pub mod openai;
pub mod pipeline;
pub mod pool;
pub mod status;
pub mod tei;
pub mod text_or;
pub mod time;
pub mod timings;
#[cfg(feature = "client")]
pub mod trust;
pub mod vllm;
pub mod worker;
