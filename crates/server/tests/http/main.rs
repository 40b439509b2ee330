//! HTTP tests of the server. They are one binary, because each would take as long to build as the
//! server itself.

mod anthropic;
mod batches;
#[path = "../common/mod.rs"]
mod common;
mod files;
mod gateway;
mod jobs;
mod language;
mod lifecycle;
mod llama_cpp;
mod memory_budget;
mod ollama;
mod openai;
mod page;
mod pipeline;
mod reasoning;
mod responses;
mod tei;
mod tls;
#[cfg(feature = "otlp")]
mod traces;
#[cfg(feature = "index")]
mod vector_stores;
mod vllm;
mod worker;
