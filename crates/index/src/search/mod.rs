//! Search: dense, BM25, sparse, late interaction, and their fusion.

mod candidates;
mod dense;
mod hits;
mod hybrid;
mod late_interaction;
mod rerank;
mod run;
mod segments;
mod snippet;

use std::ops::Range;

use crate::document::{Metadata, Unit};
use crate::filter::Filter;
use crate::models::Embedding;

pub(crate) use run::{Models, search};
pub(crate) use segments::SegmentCache;

/// How passages are ranked.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub enum Mode {
    /// By the cosine of the query's and the passage's vectors.
    Dense,
    /// By the words they share (Okapi BM25).
    Bm25,
    /// By the dot product of sparse embeddings.
    Sparse,
    /// By late interaction (MaxSim) of multi-vector embeddings, over candidates.
    MultiVector,
    /// BM25 and the index's embeddings: a weighted sum of their scores.
    #[default]
    Hybrid,
}

/// A query.
#[derive(Debug, Clone)]
pub struct Query {
    /// The text. BM25, snippets and rerankers need it; so do embeddings, unless `vector` is given.
    pub text: String,
    /// The query's embedding; `None`: the embedder computes it.
    pub vector: Option<Embedding>,
    /// How passages are ranked.
    pub mode: Mode,
    /// The most hits to return, at most [`Query::MAX_LIMIT`].
    pub limit: usize,
    /// Only passages of documents that pass. Beside the document's own metadata, a filter can use
    /// `path`, `extension` and `kind`, where the document does not define these keys itself.
    pub filter: Option<Filter>,
    /// How many passages of each ranking take part in fusion, late interaction and reranking.
    pub candidates: usize,
    /// Threads of the scan over vectors; `None`: as many as the machine has cores.
    pub threads: Option<usize>,
    /// The longest snippet, in bytes.
    pub snippet_bytes: usize,
}

impl Query {
    /// The most hits of a search.
    pub const MAX_LIMIT: usize = 1_000;

    /// A query with the defaults: hybrid, ten hits of 100 candidates, snippets of 240 bytes.
    pub fn new(text: impl Into<String>) -> Query {
        Query {
            text: text.into(),
            vector: None,
            mode: Mode::default(),
            limit: 10,
            filter: None,
            candidates: 100,
            threads: None,
            snippet_bytes: 240,
        }
    }
}

/// The place of a passage in one ranking.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Rank {
    /// 1 for the best.
    pub position: u32,
    /// The score in this ranking; greater is better.
    pub score: f32,
}

/// The places of a passage in the rankings that took part; `None`: the passage is not among the
/// candidates of the ranking, or the ranking took no part.
#[derive(Debug, Clone, Copy, Default, PartialEq)]
pub struct Ranks {
    /// By cosine; the score is the cosine.
    pub dense: Option<Rank>,
    /// By BM25.
    pub bm25: Option<Rank>,
    /// By the dot product of sparse embeddings.
    pub sparse: Option<Rank>,
    /// By late interaction.
    pub multi_vector: Option<Rank>,
    /// By the reranker.
    pub reranker: Option<Rank>,
}

/// A part of a passage's text that shows why it was found.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Snippet {
    /// The text, with line breaks as spaces.
    pub text: String,
    /// The words of the query in it: ranges of bytes in `text`, in order.
    pub highlights: Vec<Range<usize>>,
    /// The range of bytes in the document's text.
    pub range: Range<usize>,
}

/// A passage that was found.
#[derive(Debug, Clone)]
pub struct Hit {
    /// The chunk's id: [`Index::passage`](crate::Index::passage) reads around it. Ids are never
    /// used again.
    pub chunk: i64,
    /// The document's id.
    pub document: i64,
    /// The file's path as it was found, or the key of an added document.
    pub path: String,
    /// For a row of a table: its number, from 1.
    pub row: Option<u64>,
    /// The document's title.
    pub title: Option<String>,
    /// The headings above the passage, outermost first, joined by ` > `.
    pub heading: Option<String>,
    /// What `place` counts.
    pub unit: Unit,
    /// The line or page where the passage begins, from 1.
    pub place: Option<u32>,
    /// The passage's range of bytes in the document's text.
    pub range: Range<usize>,
    /// The score of the last ranking: the reranker's, or that of the fusion, or of the only one.
    /// Scores of different modes do not compare.
    pub score: f32,
    /// The places in all rankings.
    pub ranks: Ranks,
    /// The passage.
    pub text: String,
    /// The part of it that shows why it was found.
    pub snippet: Snippet,
    /// The document's metadata.
    pub metadata: Metadata,
}
