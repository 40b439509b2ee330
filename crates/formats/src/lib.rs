//! Reads the files of a model: safetensors, torch checkpoints and GGUF. All of them are untrusted:
//! sizes are limited, shapes are checked, and no code in them runs.

mod checkpoint;
mod error;
pub mod gguf;
mod json;
mod model;
mod torch;

pub use checkpoint::{Checkpoint, trim_allocator};
pub use error::{FileError, Result};
pub use json::{bytes, json, optional_json};
pub use model::{GLINER_CONFIG, Model, is_gguf};
