//! What a search returns of the best chunks.

use super::snippet::Terms;
use super::{Hit, Query, Rank, Ranks};
use crate::error::Result;
use crate::store::Reader;

/// The rankings that took part in a search; each has the best first.
#[derive(Default)]
pub(super) struct Rankings {
    pub(super) dense: Option<Vec<(i64, f32)>>,
    pub(super) bm25: Option<Vec<(i64, f32)>>,
    pub(super) sparse: Option<Vec<(i64, f32)>>,
    pub(super) multi_vector: Option<Vec<(i64, f32)>>,
    pub(super) reranker: Option<Vec<(i64, f32)>>,
}

impl Rankings {
    /// The places of a chunk.
    fn ranks(&self, chunk: i64) -> Ranks {
        let rank = |ranking: &Option<Vec<(i64, f32)>>| {
            let ranking = ranking.as_ref()?;
            let at = ranking.iter().position(|(other, _)| *other == chunk)?;
            Some(Rank { position: at as u32 + 1, score: ranking[at].1 })
        };
        Ranks {
            dense: rank(&self.dense),
            bm25: rank(&self.bm25),
            sparse: rank(&self.sparse),
            multi_vector: rank(&self.multi_vector),
            reranker: rank(&self.reranker),
        }
    }
}

/// The hits of the best chunks.
pub(super) fn hits(reader: &Reader<'_>, query: &Query, rankings: &Rankings, best: &[(i64, f32)]) -> Result<Vec<Hit>> {
    let terms = Terms::new(&query.text);
    let mut hits = Vec::with_capacity(best.len());
    for (id, score) in best {
        let Some(row) = reader.passage_row(*id)? else { continue };
        let range = row.chunk.range;
        let text = reader.slice(row.document, range.clone())?;
        hits.push(Hit {
            chunk: *id,
            document: row.document,
            path: row.path,
            row: row.row,
            title: row.title,
            heading: row.chunk.heading,
            unit: row.unit,
            place: row.chunk.place,
            score: *score,
            ranks: rankings.ranks(*id),
            snippet: terms.snippet(&text, range.start, query.snippet_bytes),
            text,
            range,
            metadata: row.metadata,
        });
    }
    Ok(hits)
}
