//! Reranking of candidates.

use super::candidates::sort;
use crate::error::{Error, Result};
use crate::models::Rerank;
use crate::store::{Reader, embedded_text};

/// The candidates in the order of a reranker's scores.
pub(super) fn rerank(
    reader: &Reader<'_>,
    (query, reranker): (&str, &dyn Rerank),
    candidates: &[(i64, f32)],
) -> Result<Vec<(i64, f32)>> {
    let (mut chunks, mut texts) = (Vec::new(), Vec::new());
    for (chunk, _) in candidates {
        if let Some(row) = reader.passage_row(*chunk)? {
            let text = reader.slice(row.document, row.chunk.range.clone())?;
            chunks.push(*chunk);
            texts.push(embedded_text(row.title.as_deref(), row.chunk.heading.as_deref(), &text));
        }
    }
    let texts: Vec<&str> = texts.iter().map(String::as_str).collect();
    let scores = if texts.is_empty() { Vec::new() } else { reranker.scores(query, &texts)? };
    if scores.len() != chunks.len() {
        let why = format!("the reranker gave {} scores for {} passages", scores.len(), chunks.len());
        return Err(Error::Model(why));
    }
    let mut ranked: Vec<_> = chunks.into_iter().zip(scores).filter(|(_, score)| !score.is_nan()).collect();
    sort(&mut ranked);
    Ok(ranked)
}
