//! HTTP tests of the server. They are one binary, because each would take as long to build as the
//! server itself.

#[path = "../common/mod.rs"]
mod common;
mod files;
mod gateway;
mod jobs;
mod language;
mod lifecycle;
mod memory_budget;
mod openai;
mod page;
mod pipeline;
mod reasoning;
mod tei;
mod tls;
#[cfg(feature = "otlp")]
mod traces;
#[cfg(feature = "index")]
mod vector_stores;
mod worker;
