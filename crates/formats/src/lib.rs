//! Reads the files of a model: safetensors, torch checkpoints and GGUF. All of them are untrusted: sizes are bounded, shapes are
//! checked, nothing is run.

mod checkpoint;
mod error;
pub mod gguf;
mod json;
mod model;
mod torch;

pub use checkpoint::{Checkpoint, trim_allocator};
pub use error::{FileError, Result};
pub use json::{bytes, json, optional_json};
pub use model::{Model, is_gguf};
