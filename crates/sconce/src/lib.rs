//! Run transformer models on CPU, CUDA and Metal: embeddings, reranking, classification, token
//! classification, sparse and multi-vector retrieval, image–text models, T5 and language models.
//!
//! ```no_run
//! use sconce::{Embedder, LoadOptions, Prompt};
//!
//! let options = LoadOptions::from_env()?;
//! let embedder = Embedder::load(&"minilm".parse()?, &options, &())?;
//! let embeddings = embedder.embed(&["A man is eating food."], &Prompt::Default)?;
//! assert_eq!(embeddings.row(0).len(), 384);
//! # Ok::<(), Box<dyn std::error::Error>>(())
//! ```
//!
//! The feature `cli`, which is on by default, adds the command `sconce`; a program that needs only
//! the library turns default features off. Also on by default: `index`, an index over documents that
//! is searched by embeddings and by words, and `onnx`, which can run models through ONNX Runtime.
//! `cuda` and `metal` add those devices.

pub use sconce_engine::*;

/// An index over documents: chunks, embeddings, full text and hybrid search, in one SQLite file.
#[cfg(feature = "index")]
pub use sconce_index as index;
/// ONNX Runtime as a second engine.
#[cfg(feature = "onnx")]
pub use sconce_onnx as onnx;
