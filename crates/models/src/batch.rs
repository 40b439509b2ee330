//! What a model is given: tokens of several sequences, one after another.

use crate::{Error, Result};
use sconce_ops::replay::{Fill, Given, PerBatch};
use sconce_ops::{Attention, Keys, KvCache, Pages, Place, Segments, Tensor};
use std::sync::Arc;

/// One tokenized text.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Sequence {
    /// Token ids.
    pub ids: Vec<u32>,
    /// Which of two texts each token belongs to; empty means the first throughout.
    pub types: Vec<u32>,
    /// How many tokens, from the first on, the others look at; none means all. ColBERT's expansions look and are not seen.
    pub keys: Option<usize>,
}

/// How places in a sequence are counted.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Positions {
    /// 0, 1, 2, …
    #[default]
    FromZero,
    /// From behind the padding id, which itself stays where it is: fairseq's way (RoBERTa, MPNet).
    BehindPadding(u32),
}

/// The largest ids a model's tables hold.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Limits {
    /// Rows of the word table.
    pub vocabulary: usize,
    /// The longest sequence.
    pub positions: usize,
    /// Rows of the type table; none where types do not count.
    pub types: Option<usize>,
    /// How places are counted.
    pub counting: Positions,
}

impl Limits {
    /// Of a model that counts its places from zero and has no types.
    pub fn new(vocabulary: usize, positions: usize) -> Limits {
        Limits { vocabulary, positions, types: None, counting: Positions::FromZero }
    }
}

/// A packed batch on its device.
#[derive(Clone, Debug)]
pub struct Batch {
    /// Token ids, `[tokens]`.
    pub ids: Tensor,
    /// Each token's place in its sequence, `[tokens]`.
    pub positions: Tensor,
    /// Token types, `[tokens]`.
    pub types: Tensor,
    /// Where the sequences lie.
    pub segments: Segments,
    /// Where their tokens lie that are looked at.
    pub keys: Segments,
    /// The ids once more, on the host.
    host_ids: PerBatch<Vec<u32>>,
    /// Where their keys and values are kept, of sequences that go on.
    pub kept: Option<KvView>,
    /// The rows whose results are wanted; none means all.
    wanted: Option<Tensor>,
    /// Where all of it is.
    place: Place,
}

/// The part of a cache that a batch writes and reads.
#[derive(Clone, Debug)]
pub struct KvView {
    /// Keys and values of all layers.
    pub cache: KvCache,
    /// The row of each token of the batch, `[tokens]`.
    pub rows: Tensor,
    /// The rows of each sequence, those of earlier batches first.
    pub pages: Pages,
}

/// The next tokens of a sequence that has a cache.
#[derive(Clone, Debug)]
pub struct TokenChunk {
    /// The tokens.
    pub ids: Vec<u32>,
    /// How many came before them.
    pub start: usize,
    /// The cache's pages of the whole sequence.
    pub table: Arc<[u32]>,
    /// Which of the piece's results are wanted: the last ones, so many.
    pub wanted: usize,
}

impl Batch {
    /// Packs and uploads. Ids are checked here, once, because a GPU would read beyond its tables without a word.
    pub fn new(sequences: &[Sequence], limits: Limits, place: &Place) -> Result<Batch> {
        Batch::filled(sequences, None, limits, place)
    }

    /// The same, filled up so that a captured pass serves it: with tokens of the first id, in sequences behind all others.
    pub fn filled(sequences: &[Sequence], fill: Option<Fill>, limits: Limits, place: &Place) -> Result<Batch> {
        let lengths: Vec<usize> = sequences.iter().map(|s| s.ids.len()).collect();
        let segments = match fill {
            Some(fill) => Segments::filled(&lengths, fill)?,
            None => Segments::new(&lengths)?,
        };
        let fillers = sequences.len()..segments.count();
        let seen = sequences.iter().map(|s| s.keys.unwrap_or(s.ids.len()));
        let seen: Vec<usize> = seen.chain(fillers.map(|i| segments.observe().range(i).len())).collect();
        let keys = segments.heads(&seen)?;
        let room = || Vec::with_capacity(segments.tokens());
        let (mut ids, mut positions, mut types): (Vec<u32>, Vec<u32>, Vec<u32>) = (room(), room(), room());
        for s in sequences {
            check("position", s.ids.len().saturating_sub(1) as u32, limits.positions)?;
            check("token id", s.ids.iter().copied().max().unwrap_or(0), limits.vocabulary)?;
            // Tokens without a type are of the first.
            for t in s.types.iter().chain(&[0]) {
                check("token type", *t, limits.types.unwrap_or(usize::MAX))?;
            }
            if !s.types.is_empty() && s.types.len() != s.ids.len() {
                return Err(Error::Input(format!("{} token types for {} tokens", s.types.len(), s.ids.len())));
            }
            ids.extend_from_slice(&s.ids);
            match limits.counting {
                Positions::FromZero => positions.extend(0..s.ids.len() as u32),
                Positions::BehindPadding(padding) => {
                    let mut place = padding;
                    positions.extend(s.ids.iter().map(|id| {
                        place += u32::from(*id != padding);
                        if *id == padding { padding } else { place }
                    }));
                }
            }
            types.extend_from_slice(&s.types);
            types.resize(ids.len(), 0);
        }
        ids.resize(segments.tokens(), 0);
        types.resize(segments.tokens(), 0);
        // Within every table, as the first place is.
        let first = match limits.counting {
            Positions::FromZero => 0,
            Positions::BehindPadding(padding) => padding,
        };
        positions.resize(segments.tokens(), first);
        Ok(Batch {
            ids: Tensor::from_u32(&ids, place)?,
            positions: Tensor::from_u32(&positions, place)?,
            types: Tensor::from_u32(&types, place)?,
            segments,
            keys,
            host_ids: PerBatch::new(ids),
            kept: None,
            wanted: None,
            place: place.clone(),
        })
    }

    /// Packs the next tokens of several sequences, whose earlier ones `cache` keeps in pages of `page` rows.
    pub fn decode(pieces: &[TokenChunk], page: usize, cache: &KvCache, limits: Limits, place: &Place) -> Result<Batch> {
        let segments = Segments::new(&pieces.iter().map(|p| p.ids.len()).collect::<Vec<_>>())?;
        let tables = pieces.iter().map(|p| (p.table.clone(), p.start + p.ids.len())).collect();
        let pages = Pages::new(tables, page)?;
        let tables = pages.observe();
        let (mut ids, mut positions, mut rows, mut wanted) = (Vec::new(), Vec::new(), Vec::new(), Vec::new());
        for (i, p) in pieces.iter().enumerate() {
            let end = p.start + p.ids.len();
            check("position", end.saturating_sub(1) as u32, limits.positions)?;
            for id in &p.ids {
                check("token id", *id, limits.vocabulary)?;
            }
            ids.extend_from_slice(&p.ids);
            positions.extend(p.start as u32..end as u32);
            rows.extend((p.start..end).map(|j| tables.row(i, j) as u32));
            wanted.extend((ids.len() - p.wanted.min(p.ids.len()))..ids.len());
        }
        let seen = pieces.iter().flat_map(|p| p.table.iter()).map(|table| (*table as usize + 1) * page - 1);
        if let Some(row) = seen.max().filter(|row| *row >= cache.rows()) {
            return Err(Error::Input(format!("row {row} of a cache of {}", cache.rows())));
        }
        let all = wanted.len() == ids.len();
        let wanted: Vec<u32> = wanted.into_iter().map(|row| row as u32).collect();
        Ok(Batch {
            ids: Tensor::from_u32(&ids, place)?,
            positions: Tensor::from_u32(&positions, place)?,
            // No language model has types.
            types: Tensor::from_u32(&[0], place)?,
            keys: segments.clone(),
            segments,
            host_ids: PerBatch::new(ids),
            kept: Some(KvView { cache: cache.clone(), rows: Tensor::from_u32(&rows, place)?, pages }),
            wanted: if all { None } else { Some(Tensor::from_u32(&wanted, place)?) },
            place: place.clone(),
        })
    }

    /// What a CUDA graph's dynamic parameters are computed from; `skips[i]` tokens at the head of sequence `i` are not pooled.
    pub fn given(&self, skips: &[usize]) -> Given {
        let keys = match &self.kept {
            Some(kept) => Keys::Paged(kept.pages.clone()),
            None => self.keys.clone().into(),
        };
        Given { segments: self.segments.clone(), keys: vec![keys], skips: skips.to_vec() }
    }

    /// The ids: for rows that are found by their id. A CUDA graph that is captured meanwhile becomes untracked.
    pub fn observe_ids(&self) -> &[u32] {
        self.host_ids.observe()
    }

    /// The rows of `x` `[tokens, n]` whose results are wanted.
    pub(crate) fn wanted(&self, x: &Tensor) -> Result<Tensor> {
        match &self.wanted {
            Some(rows) => Ok(sconce_ops::embed(&[(x, rows)])?),
            None => Ok(x.clone()),
        }
    }

    /// These rows of `x` `[tokens, n]`.
    pub(crate) fn rows(&self, x: &Tensor, rows: &[u32]) -> Result<Tensor> {
        Ok(sconce_ops::embed(&[(x, &Tensor::from_u32(rows, &self.place)?)])?)
    }

    /// Self-attention over this batch.
    pub fn attention(&self, scale: f32) -> Attention {
        Attention { keys: self.keys.clone().into(), ..Attention::over(&self.segments, scale) }
    }
}

fn check(what: &str, id: u32, rows: usize) -> Result<()> {
    if (id as usize) < rows {
        return Ok(());
    }
    Err(Error::Input(format!("{what} {id} is beyond the model's {rows}; do tokenizer and model belong together?")))
}

#[cfg(test)]
mod tests {
    use super::*;

    const LIMITS: Limits = Limits { vocabulary: 10, positions: 3, types: Some(2), counting: Positions::FromZero };

    fn batch(ids: &[u32], types: &[u32]) -> Result<Batch> {
        Batch::new(&[Sequence { ids: ids.to_vec(), types: types.to_vec(), keys: None }], LIMITS, &Place::cpu())
    }

    #[test]
    fn what_does_not_fit_the_tables_is_refused() {
        assert!(batch(&[1, 9, 3], &[0, 1, 1]).is_ok());
        assert!(batch(&[10], &[]).is_err());
        assert!(batch(&[1, 2, 3, 4], &[]).is_err());
        assert!(batch(&[1], &[2]).is_err());
        assert!(batch(&[1, 2], &[0]).is_err());
        assert!(batch(&[], &[]).is_err());
    }
}
