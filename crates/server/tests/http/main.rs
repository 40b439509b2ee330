//! What clients see of the server. One binary: each would take as long to build as the server itself.

#[path = "../common/mod.rs"]
mod common;
mod language;
mod lifecycle;
mod openai;
mod pipeline;
mod tei;
mod traces;
mod worker;
