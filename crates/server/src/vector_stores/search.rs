//! Searches in a vector store.

use super::fault::index_fault;
use super::store::Store;
use crate::error::Fault;
use sconce_api::openai::vector_stores::{ContentPart, FileStatus, Ranker, SearchResult};
use sconce_index::{Embedder, Filter, Hit, Index, Mode, Query};
use std::collections::HashMap;

/// A search.
#[derive(Debug)]
pub(crate) struct Search {
    /// At least one.
    pub(crate) queries: Vec<String>,
    pub(crate) filter: Option<Filter>,
    pub(crate) limit: usize,
    pub(crate) ranker: Ranker,
    pub(crate) threshold: f64,
}

impl Search {
    /// The results of all queries, best first. A passage that several queries find has its best
    /// score.
    pub(crate) fn run(
        &self,
        store: &Store,
        index: &Index,
        embedder: &dyn Embedder,
    ) -> Result<Vec<SearchResult>, Fault> {
        let mut found: HashMap<i64, (f64, Hit)> = HashMap::new();
        for text in &self.queries {
            let query = Query {
                mode: self.mode(),
                limit: self.limit,
                filter: self.filter.clone(),
                snippet_bytes: 0,
                ..Query::new(text.as_str())
            };
            for hit in index.search(&query, Some(embedder), None).map_err(index_fault)? {
                // A cosine may be negative.
                let score = f64::from(hit.score).clamp(0.0, 1.0);
                let best = found.entry(hit.chunk).or_insert((score, hit));
                best.0 = best.0.max(score);
            }
        }
        let mut found: Vec<(f64, Hit)> = found.into_values().filter(|(score, _)| *score >= self.threshold).collect();
        found.sort_by(|(a, one), (b, other)| b.total_cmp(a).then(one.chunk.cmp(&other.chunk)));
        Ok(found.into_iter().filter_map(|(score, hit)| result(store, score, hit)).take(self.limit).collect())
    }

    fn mode(&self) -> Mode {
        match self.ranker {
            Ranker::Auto | Ranker::Default20241115 => Mode::Hybrid,
            Ranker::None => Mode::Dense,
        }
    }
}

/// A hit as a result; `None` if its file is not in the store any more, or not again so far.
fn result(store: &Store, score: f64, hit: Hit) -> Option<SearchResult> {
    let file = store.file(&hit.path).ok().filter(|file| file.status == FileStatus::Completed)?;
    Some(SearchResult {
        file_id: file.file_id,
        filename: file.filename,
        score,
        attributes: file.attributes,
        content: vec![ContentPart::text(hit.text)],
    })
}
