//! HTTP tests of the server. They are one binary, because each would take as long to build as the
//! server itself.

#[path = "../common/mod.rs"]
mod common;
mod jobs;
mod language;
mod lifecycle;
mod memory_budget;
mod openai;
mod pipeline;
mod tei;
#[cfg(feature = "otlp")]
mod traces;
mod worker;
