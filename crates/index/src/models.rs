//! The models that an index uses, behind traits, and their implementations by the engine.

mod engine;
mod load;

use serde::{Deserialize, Serialize};

use crate::error::{Error, Result};

pub use engine::{DenseModel, EmbedPrompts, LateInteractionModel, RerankModel, SparseModel};
pub use load::{embedder_of, embedding_task, portable_name};

/// The form of an embedding.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum EmbeddingKind {
    /// One vector.
    Dense,
    /// Weights of some tokens of the vocabulary (SPLADE).
    Sparse,
    /// A vector per token (ColBERT).
    MultiVector,
}

impl std::fmt::Display for EmbeddingKind {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.pad(match self {
            EmbeddingKind::Dense => "dense",
            EmbeddingKind::Sparse => "sparse",
            EmbeddingKind::MultiVector => "multi-vector",
        })
    }
}

/// What the embeddings of an index depend on. Two models with the same identity give the same
/// embeddings.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct ModelIdentity {
    /// The name that a person uses for the model, and that loads it again.
    pub name: String,
    /// The weights: the commit that they belong to, or a hash of their files.
    pub revision: String,
    /// The form of the embeddings.
    pub kind: EmbeddingKind,
    /// The dimensions of a vector; 0 for sparse embeddings.
    pub dimensions: usize,
    /// The text before each passage.
    pub passage_prompt: String,
    /// The text before each query.
    pub query_prompt: String,
}

impl ModelIdentity {
    /// Why embeddings of `self`, the model of an index, do not fit those of `other`; `None`: they
    /// do. A model may move: its name does not count.
    pub fn difference(&self, other: &ModelIdentity) -> Option<String> {
        let quoted = |text: &str| format!("`{text}`");
        let pairs = [
            ("kind of embeddings", self.kind.to_string(), other.kind.to_string()),
            ("dimensions", self.dimensions.to_string(), other.dimensions.to_string()),
            ("prompt of passages", quoted(&self.passage_prompt), quoted(&other.passage_prompt)),
            ("prompt of queries", quoted(&self.query_prompt), quoted(&other.query_prompt)),
            ("revision", self.revision.clone(), other.revision.clone()),
        ];
        let (what, of_index, of_other) = pairs.into_iter().find(|(_, a, b)| a != b)?;
        Some(format!("{what}: the index has {of_index}, the model has {of_other}"))
    }
}

/// The embedding of a text.
#[derive(Debug, Clone, PartialEq)]
pub enum Embedding {
    /// One vector.
    Dense(Vec<f32>),
    /// Ids of tokens, ascending, with their weights.
    Sparse(Vec<(u32, f32)>),
    /// A vector per token.
    MultiVector {
        /// How many vectors.
        rows: usize,
        /// The vectors, one after another.
        values: Vec<f32>,
    },
}

impl Embedding {
    /// Its form.
    pub fn kind(&self) -> EmbeddingKind {
        match self {
            Embedding::Dense(_) => EmbeddingKind::Dense,
            Embedding::Sparse(_) => EmbeddingKind::Sparse,
            Embedding::MultiVector { .. } => EmbeddingKind::MultiVector,
        }
    }

    /// Checks that the embedding has the form that `identity` promises and only finite numbers.
    pub(crate) fn check(&self, identity: &ModelIdentity) -> Result<()> {
        let wrong = |why: String| Err(Error::Model(format!("{}: {why}", identity.name)));
        if self.kind() != identity.kind {
            return wrong(format!("expected a {} embedding, got a {} one", identity.kind, self.kind()));
        }
        let (is_sized, is_finite) = match self {
            Embedding::Dense(values) => (values.len() == identity.dimensions, is_finite(values)),
            Embedding::Sparse(weights) => {
                (weights.is_sorted_by(|a, b| a.0 < b.0), weights.iter().all(|(_, weight)| weight.is_finite()))
            }
            Embedding::MultiVector { rows, values } => {
                (rows.checked_mul(identity.dimensions) == Some(values.len()), is_finite(values))
            }
        };
        match (is_sized, is_finite) {
            (false, _) => wrong("an embedding has the wrong size or order; the index would be damaged".into()),
            (_, false) => wrong("an embedding has infinities or NaN; use another dtype (--dtype f32)".into()),
            _ => Ok(()),
        }
    }
}

fn is_finite(values: &[f32]) -> bool {
    values.iter().all(|value| value.is_finite())
}

/// A model that embeds passages and queries.
pub trait Embedder: Send + Sync {
    /// What its embeddings depend on.
    fn identity(&self) -> &ModelIdentity;
    /// How many tokens a text has, special tokens not counted.
    fn count_tokens(&self, text: &str) -> usize;
    /// The longest passage in tokens, special tokens and the prompt not counted.
    fn max_tokens(&self) -> usize;
    /// The embeddings of passages, in their order. The embedding of a passage must not depend on
    /// the others.
    fn embed_passages(&self, texts: &[&str]) -> Result<Vec<Embedding>>;
    /// The embedding of a query.
    fn embed_query(&self, text: &str) -> Result<Embedding>;
}

/// A model that reads a query and a passage together.
pub trait Rerank: Send + Sync {
    /// The relevance of each passage to the query, in the order of the passages; greater is better.
    fn scores(&self, query: &str, passages: &[&str]) -> Result<Vec<f32>>;
}
