//! An index over documents: chunks, embeddings, full text and hybrid search, in one SQLite file.

mod document;
mod error;

pub use document::{Chunk, Document, Heading, Kind, Language, Layout, Metadata, Unit, Value};
pub use error::{Error, Result};
