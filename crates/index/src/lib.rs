//! An index over documents: chunks, embeddings, full text and hybrid search, in one SQLite file.

pub mod chunk;
pub mod codes;
mod document;
mod error;
mod filter;
mod index;
mod indexer;
pub mod json;
mod models;
pub mod read;
mod search;
mod store;
pub mod walk;
mod watch;

pub use document::{Chunk, Document, Heading, Kind, Language, Layout, Metadata, Unit, Value};
pub use error::{Error, Result};
pub use filter::{Compare, Filter, Test};
pub use index::{
    Control, DocumentInfo, Excerpt, Failure, FileDocuments, Index, NewDocument, OpenOptions, Page, Passage, PutReport,
    Status,
};
pub use indexer::{Phase, Progress, Report, Tools, Update};
pub use models::{
    DenseModel, EmbedPrompts, Embedder, Embedding, EmbeddingKind, LateInteractionModel, ModelIdentity, Rerank,
    RerankModel, SparseModel, embedder_of, embedding_task, portable_name,
};
pub use search::{Hit, Mode, Query, Rank, Ranks, Snippet};
pub use watch::WatchOptions;
