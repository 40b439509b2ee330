//! Reranking of candidates.

use super::candidates::sort;
use crate::error::{Error, Result};
use crate::models::Rerank;
use crate::store::{Reader, embedded_text};

/// The texts of candidates, as a reranker reads them.
pub(super) fn texts(reader: &Reader<'_>, candidates: &[(i64, f32)]) -> Result<Vec<(i64, String)>> {
    let mut texts = Vec::with_capacity(candidates.len());
    for (chunk, _) in candidates {
        if let Some(row) = reader.passage_row(*chunk)? {
            let text = reader.slice(row.document, row.chunk.range.clone())?;
            texts.push((*chunk, embedded_text(row.title.as_deref(), row.chunk.heading.as_deref(), &text)));
        }
    }
    Ok(texts)
}

/// Candidates in the order of a reranker's scores.
pub(super) fn rerank(query: &str, reranker: &dyn Rerank, candidates: &[(i64, String)]) -> Result<Vec<(i64, f32)>> {
    let texts: Vec<&str> = candidates.iter().map(|(_, text)| text.as_str()).collect();
    let scores = if texts.is_empty() { Vec::new() } else { reranker.scores(query, &texts)? };
    if scores.len() != texts.len() {
        let why = format!("the reranker gave {} scores for {} passages", scores.len(), texts.len());
        return Err(Error::Model(why));
    }
    let chunks = candidates.iter().map(|(chunk, _)| *chunk);
    let mut ranked: Vec<_> = chunks.zip(scores).filter(|(_, score)| !score.is_nan()).collect();
    sort(&mut ranked);
    Ok(ranked)
}
