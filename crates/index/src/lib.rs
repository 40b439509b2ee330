//! An index over documents: chunks, embeddings, full text and hybrid search, in one SQLite file.

pub mod codes;
mod document;
mod error;
mod filter;
mod index;
mod indexer;
mod models;
mod search;
mod store;
mod watch;

pub use document::{Chunk, Document, Heading, Kind, Language, Layout, Metadata, Unit, Value};
pub use error::{Error, Result};
pub use filter::{Compare, Filter, Test};
pub use index::{Control, DocumentInfo, Failure, Index, NewDocument, OpenOptions, Page, Passage, Status};
pub use indexer::{Phase, Progress, Report, Tools, Update};
pub use models::{
    DenseModel, EmbedPrompts, Embedder, Embedding, EmbeddingKind, LateInteractionModel, ModelIdentity, Rerank,
    RerankModel, SparseModel,
};
pub use search::{Hit, Mode, Query, Rank, Ranks, Snippet};
pub use watch::WatchOptions;
