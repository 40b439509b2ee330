//! A search from the query to the hits.

use super::candidates::{Passes, bm25, sparse};
use super::dense::dense;
use super::hits::{Rankings, hits};
use super::hybrid::fuse;
use super::late_interaction::late_interaction;
use super::rerank::{rerank, texts};
use super::segments::{SegmentCache, SegmentSet};
use super::{Hit, Mode, Query};
use crate::error::{Error, Result};
use crate::models::{Embedder, Embedding, EmbeddingKind, ModelIdentity, Rerank};
use crate::store::{Pool, Reader, mean, normalized};

/// The most candidates of a ranking.
const MAX_CANDIDATES: usize = 10_000;
/// The longest query, in bytes.
const MAX_QUERY: usize = 1 << 20;

/// The models that a search uses.
#[derive(Clone, Copy)]
pub(crate) struct Models<'a> {
    pub(crate) embedder: Option<&'a dyn Embedder>,
    pub(crate) reranker: Option<&'a dyn Rerank>,
}

/// Finds the passages of a query, best first.
pub(crate) fn search(pool: &Pool, cache: &SegmentCache, query: &Query, models: Models<'_>) -> Result<Vec<Hit>> {
    check(query)?;
    let model = pool.read(|reader| reader.model())?;
    if query.limit == 0 {
        return Ok(Vec::new());
    }
    let vector = match &model {
        Some(model) => query_vector(query, model, models.embedder)?,
        None => None,
    };
    let run = |is_last: bool| {
        pool.read(|reader| {
            let set = cache.load(reader)?;
            // The writer has replaced segments since this snapshot was taken: a newer one has them.
            if set.is_missing && !is_last {
                return Ok(None);
            }
            // Another process may have rebuilt the index while the query was embedded.
            if vector.is_some() && reader.model()? != model {
                let why = "the index was rebuilt with another model during the search; open it again".into();
                return Err(Error::Model(why));
            }
            let dimensions = model.as_ref().map_or(0, |model| model.dimensions);
            let search = Search { reader, set: &set, query, dimensions, vector: vector.as_ref() };
            search.run(models.reranker.is_some()).map(Some)
        })
    };
    let found = match run(false)? {
        None => run(true)?,
        found => found,
    };
    match (found, models.reranker) {
        (Some(Found::Hits(hits)), _) => Ok(hits),
        (Some(Found::Candidates(mut rankings, texts)), Some(reranker)) => {
            let mut best = rerank(&query.text, reranker, &texts)?;
            rankings.reranker = Some(best.clone());
            best.truncate(query.limit);
            // A candidate may be gone by now; its id belongs to no other chunk.
            pool.read(|reader| hits(reader, query, &rankings, &best))
        }
        _ => Ok(Vec::new()),
    }
}

/// What one snapshot of the database gives.
enum Found {
    Hits(Vec<Hit>),
    /// What a reranker reads. It takes seconds, and a snapshot that lasts so long would keep the
    /// writer from reusing its log.
    Candidates(Rankings, Vec<(i64, String)>),
}

fn check(query: &Query) -> Result<()> {
    let input = |why: String| Err(Error::Input(why));
    if query.limit > Query::MAX_LIMIT {
        return input(format!("{} hits are too many; ask for at most {}", query.limit, Query::MAX_LIMIT));
    }
    if query.text.len() > MAX_QUERY {
        return input(format!("the query has {} bytes; use at most {MAX_QUERY}", query.text.len()));
    }
    if query.text.trim().is_empty() && query.vector.is_none() {
        return input("the query is empty; give a text, or a vector for dense search".into());
    }
    Ok(())
}

/// The query's embedding, where the mode needs one. A dense one has length 1.
fn query_vector(query: &Query, model: &ModelIdentity, embedder: Option<&dyn Embedder>) -> Result<Option<Embedding>> {
    let wanted = match query.mode {
        Mode::Bm25 => return Ok(None),
        Mode::Dense => EmbeddingKind::Dense,
        Mode::Sparse => EmbeddingKind::Sparse,
        Mode::MultiVector => EmbeddingKind::MultiVector,
        Mode::Hybrid => model.kind,
    };
    if wanted != model.kind {
        let why = format!(
            "the index has no {wanted} embeddings but {} ones, made by {}; search by those, by BM25 or hybrid",
            model.kind, model.name
        );
        return Err(Error::Input(why));
    }
    // Also with a vector: it comes from this model, as far as the caller knows.
    if let Some(difference) = embedder.and_then(|embedder| model.difference(embedder.identity())) {
        let why = format!("the index was made with {} ({difference}); search with that model", model.name);
        return Err(Error::Model(why));
    }
    let embedding = match (&query.vector, embedder) {
        (Some(vector), _) => {
            vector.check(model).map_err(|e| Error::Input(format!("the query's vector: {e}")))?;
            vector.clone()
        }
        (None, Some(embedder)) => {
            let embedding = embedder.embed_query(&query.text)?;
            embedding.check(model)?;
            embedding
        }
        (None, None) => {
            let why = format!("the query needs an embedding: give the model {}, or search by BM25", model.name);
            return Err(Error::Input(why));
        }
    };
    Ok(Some(match embedding {
        Embedding::Dense(values) => Embedding::Dense(normalized(&values)),
        other => other,
    }))
}

/// A search in one snapshot of the database.
struct Search<'a> {
    reader: &'a Reader<'a>,
    set: &'a SegmentSet,
    query: &'a Query,
    dimensions: usize,
    vector: Option<&'a Embedding>,
}

impl Search<'_> {
    fn run(&self, is_reranked: bool) -> Result<Found> {
        let passes = Passes::new(self.query.filter.as_ref(), self.reader, self.set);
        // A single ranking needs no more than the hits, unless a reranker orders them anew.
        let is_joined = self.query.mode == Mode::Hybrid || is_reranked;
        let limit = self.query.limit;
        let count = if is_joined { limit.max(self.query.candidates.min(MAX_CANDIDATES)) } else { limit };
        let rankings = self.rankings(&passes, count)?;
        let mut best = match self.query.mode {
            Mode::Hybrid => {
                let embeddings = [&rankings.dense, &rankings.sparse, &rankings.multi_vector];
                let embeddings = embeddings.into_iter().flatten().next();
                fuse(rankings.bm25.as_deref().unwrap_or_default(), embeddings.map_or(&[], Vec::as_slice))
            }
            Mode::Dense => rankings.dense.clone().unwrap_or_default(),
            Mode::Bm25 => rankings.bm25.clone().unwrap_or_default(),
            Mode::Sparse => rankings.sparse.clone().unwrap_or_default(),
            Mode::MultiVector => rankings.multi_vector.clone().unwrap_or_default(),
        };
        if is_reranked {
            best.truncate(count);
            return Ok(Found::Candidates(rankings, texts(self.reader, &best)?));
        }
        best.truncate(limit);
        Ok(Found::Hits(hits(self.reader, self.query, &rankings, &best)?))
    }

    /// The rankings of the mode. Those that only choose candidates are not among them.
    fn rankings(&self, passes: &Passes<'_>, count: usize) -> Result<Rankings> {
        let mut rankings = Rankings::default();
        if matches!(self.query.mode, Mode::Bm25 | Mode::Hybrid) {
            rankings.bm25 = Some(bm25(self.reader, &self.query.text, passes, count)?);
        }
        match self.vector {
            None => {}
            Some(Embedding::Dense(vector)) => rankings.dense = Some(self.dense(vector, passes, count)?),
            Some(Embedding::Sparse(terms)) => rankings.sparse = Some(sparse(self.reader, terms, passes, count)?),
            Some(Embedding::MultiVector { values, .. }) => {
                rankings.multi_vector = Some(self.multi_vector(values, passes, count)?);
            }
        }
        Ok(rankings)
    }

    fn dense(&self, vector: &[f32], passes: &Passes<'_>, count: usize) -> Result<Vec<(i64, f32)>> {
        let cores = || std::thread::available_parallelism().map_or(1, usize::from);
        let threads = self.query.threads.unwrap_or_else(cores);
        dense(self.reader, self.set, (vector, passes), (count, threads))
    }

    /// Late interaction over the best by BM25 and the best by the mean of the vectors.
    fn multi_vector(&self, values: &[f32], passes: &Passes<'_>, count: usize) -> Result<Vec<(i64, f32)>> {
        let dimensions = self.dimensions;
        let candidates = count.max(self.query.candidates.min(MAX_CANDIDATES));
        let by_words = bm25(self.reader, &self.query.text, passes, candidates)?;
        let by_mean = self.dense(&mean(values, dimensions), passes, candidates)?;
        let mut chunks: Vec<i64> = by_words.iter().chain(&by_mean).map(|(chunk, _)| *chunk).collect();
        chunks.sort_unstable();
        chunks.dedup();
        let mut ranked = late_interaction(self.reader, (values, dimensions), chunks)?;
        ranked.truncate(count);
        Ok(ranked)
    }
}
