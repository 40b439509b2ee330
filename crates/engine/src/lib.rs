//! Load, tokenize, schedule and run models: the Rust API of Sconce.
//!
//! ```no_run
//! use sconce_engine::{Embedder, LoadOptions, Prompt, source};
//!
//! let options = LoadOptions::from_env()?;
//! let embedder = Embedder::load(&"minilm".parse()?, &options, &())?;
//! let embeddings = embedder.embed(&["A man is eating food."], &Prompt::Default)?;
//! assert_eq!(embeddings.row(0).len(), 384);
//! # Ok::<(), Box<dyn std::error::Error>>(())
//! ```

mod embedder;
mod error;
mod load;
mod options;
mod plan;
mod run;
mod schedule;
mod sentence;
pub mod source;
mod text;
mod verdict;

pub use embedder::{Embedder, Embeddings, Prompt, plan};
pub use error::{Error, Result};
pub use load::Checkpoint;
pub use options::{DeviceChoice, LoadOptions};
pub use plan::Plan;
pub use verdict::{Verdict, verdict_path};

/// What runs underneath: devices, dtypes, rungs, cases.
pub use sconce_ops as ops;
