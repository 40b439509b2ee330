//! Packed batches: the tokens of several sequences, concatenated without padding.

use crate::{Error, Result};
use sconce_ops::replay::{BatchLayout, Fill, PerBatch};
use sconce_ops::{Attention, Keys, KvCache, Pages, Place, Rotary, Segments, Tensor};
use std::ops::Range;
use std::sync::Arc;

/// One tokenized text.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Sequence {
    /// Token ids.
    pub ids: Vec<u32>,
    /// Token type (segment) ids; empty means 0 for every token.
    pub types: Vec<u32>,
    /// Attention mask: only the first `keys` tokens serve as keys; `None` means all. ColBERT's
    /// expansion tokens attend to others, but no token attends to them.
    pub keys: Option<usize>,
    /// Tokens that stand for labels and words, for models that score pairs of them (GLiNER).
    pub marks: Option<Marks>,
}

/// The tokens of a sequence that stand for labels and words, as positions in the sequence.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Marks {
    /// The token of each label.
    pub labels: Vec<u32>,
    /// The tokens that stand for each word, at least one.
    pub words: Vec<Range<u32>>,
}

/// How position ids are assigned.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Positions {
    /// 0, 1, 2, …
    #[default]
    FromZero,
    /// From padding id + 1; padding tokens keep the padding id as their position, as in fairseq
    /// (RoBERTa, MPNet).
    AfterPadding(u32),
}

impl Marks {
    /// The ends of labels and words.
    fn ends(&self) -> impl Iterator<Item = u32> {
        self.labels.iter().map(|label| label + 1).chain(self.words.iter().map(|word| word.end))
    }
}

/// The sizes of a model's embedding tables.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Limits {
    /// Rows of the token embedding table.
    pub vocabulary: usize,
    /// The longest sequence.
    pub positions: usize,
    /// Rows of the token type table; `None` if the model ignores types.
    pub types: Option<usize>,
    /// How position ids are assigned.
    pub counting: Positions,
}

impl Limits {
    /// Limits of a model without token types whose positions start at zero.
    pub fn new(vocabulary: usize, positions: usize) -> Limits {
        Limits { vocabulary, positions, types: None, counting: Positions::FromZero }
    }
}

/// A packed batch on its device.
#[derive(Clone, Debug)]
pub struct Batch {
    /// Token ids, `[tokens]`.
    pub ids: Tensor,
    /// Position ids, `[tokens]`.
    pub positions: Tensor,
    /// Token types, `[tokens]`.
    pub types: Tensor,
    /// The token range of each sequence.
    pub segments: Segments,
    /// The key tokens of each sequence; see [`Sequence::keys`].
    pub keys: Segments,
    /// The task whose low-rank update (LoRA) applies, an index into [`Backbone::tasks`]; `None`
    /// means the model's own weights.
    ///
    /// [`Backbone::tasks`]: crate::Backbone::tasks
    pub task: Option<usize>,
    /// A copy of the ids on the host.
    host_ids: PerBatch<Vec<u32>>,
    /// The marks of each sequence, on the host.
    marks: PerBatch<Vec<Option<Marks>>>,
    /// The KV cache, for a decode batch.
    pub kv: Option<KvView>,
    /// The rows whose hidden states the caller needs; `None` means all.
    output_rows: Option<Tensor>,
    /// RoPE of this batch, for a model whose frequencies depend on the lengths of sequences; `None`
    /// means the model's own.
    pub(crate) rotary: Option<BatchRotary>,
    /// Where the batch's tensors are.
    place: Place,
}

/// RoPE tables with a row for each token of a batch.
#[derive(Clone, Debug)]
pub(crate) struct BatchRotary {
    tables: Rotary,
    /// 0, 1, 2, …: the row of each token, `[tokens]`.
    rows: Tensor,
}

impl BatchRotary {
    /// Rotates the heads of `x` `[tokens, heads, size]`.
    pub(crate) fn forward(&self, x: &Tensor) -> Result<Tensor> {
        Ok(self.tables.forward(x, &self.rows)?)
    }
}

/// The part of the paged KV cache that a batch writes and reads.
#[derive(Clone, Debug)]
pub struct KvView {
    /// Keys and values of all layers.
    pub cache: KvCache,
    /// The cache row that each token of the batch is written to, `[tokens]`.
    pub rows: Tensor,
    /// The pages of each sequence, which include its tokens from earlier batches.
    pub pages: Pages,
}

/// The next tokens of a sequence in the KV cache.
#[derive(Clone, Debug)]
pub struct TokenChunk {
    /// Token ids.
    pub ids: Vec<u32>,
    /// How many tokens of the sequence precede them.
    pub start: usize,
    /// The page table of the whole sequence.
    pub table: Arc<[u32]>,
    /// How many of the chunk's hidden states the caller needs, counted from the last one.
    pub wanted: usize,
}

impl Batch {
    /// Packs and uploads sequences. Ids are checked here, once, because a GPU kernel would silently
    /// read beyond its tables.
    pub fn new(sequences: &[Sequence], limits: Limits, place: &Place) -> Result<Batch> {
        Batch::filled(sequences, None, limits, place)
    }

    /// Like [`Batch::new`], padded to the size of a captured CUDA graph with sequences of token 0
    /// at the end.
    pub fn filled(sequences: &[Sequence], fill: Option<Fill>, limits: Limits, place: &Place) -> Result<Batch> {
        let lengths: Vec<usize> = sequences.iter().map(|s| s.ids.len()).collect();
        let segments = match fill {
            Some(fill) => Segments::filled(&lengths, fill)?,
            None => Segments::new(&lengths)?,
        };
        let fillers = sequences.len()..segments.count();
        let key_lengths = sequences.iter().map(|s| s.keys.unwrap_or(s.ids.len()));
        let key_lengths: Vec<usize> = key_lengths.chain(fillers.map(|i| segments.observe().range(i).len())).collect();
        let keys = segments.heads(&key_lengths)?;
        let buffer = || Vec::with_capacity(segments.tokens());
        let (mut ids, mut positions, mut types): (Vec<u32>, Vec<u32>, Vec<u32>) = (buffer(), buffer(), buffer());
        for s in sequences {
            check("position", s.ids.len().saturating_sub(1) as u32, limits.positions)?;
            check("token id", s.ids.iter().copied().max().unwrap_or(0), limits.vocabulary)?;
            // Tokens without a type have type 0.
            for t in s.types.iter().chain(&[0]) {
                check("token type", *t, limits.types.unwrap_or(usize::MAX))?;
            }
            if !s.types.is_empty() && s.types.len() != s.ids.len() {
                return Err(Error::Input(format!("{} token types for {} tokens", s.types.len(), s.ids.len())));
            }
            if let Some(end) = s.marks.iter().flat_map(Marks::ends).find(|end| *end as usize > s.ids.len()) {
                let tokens = s.ids.len();
                return Err(Error::Input(format!("a label or a word ends at token {end} of {tokens}")));
            }
            ids.extend_from_slice(&s.ids);
            match limits.counting {
                Positions::FromZero => positions.extend(0..s.ids.len() as u32),
                Positions::AfterPadding(padding) => {
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
        // The first position is a valid row of every position table.
        let first = match limits.counting {
            Positions::FromZero => 0,
            Positions::AfterPadding(padding) => padding,
        };
        positions.resize(segments.tokens(), first);
        Ok(Batch {
            ids: Tensor::from_u32(&ids, place)?,
            positions: Tensor::from_u32(&positions, place)?,
            types: Tensor::from_u32(&types, place)?,
            segments,
            keys,
            task: None,
            host_ids: PerBatch::new(ids),
            marks: PerBatch::new(sequences.iter().map(|s| s.marks.clone()).collect()),
            kv: None,
            output_rows: None,
            rotary: None,
            place: place.clone(),
        })
    }

    /// The same batch for a task: see [`Batch::task`].
    pub fn for_task(self, task: Option<usize>) -> Batch {
        Batch { task, ..self }
    }

    /// The same batch with RoPE of its own: the frequencies of a sequence, from its length.
    pub(crate) fn with_rotary(&self, frequencies: impl Fn(usize) -> Vec<f32>) -> Result<Batch> {
        let lengths: Vec<usize> = self.segments.observe().iter().map(|tokens| tokens.len()).collect();
        let each: Vec<Vec<f32>> = lengths.iter().map(|length| frequencies(*length)).collect();
        let parts: Vec<(&[f32], usize)> = each.iter().map(Vec::as_slice).zip(lengths).collect();
        let tables = Rotary::by_sequence(&self.place, &parts)?;
        let rows = self.upload(&(0..self.segments.tokens() as u32).collect::<Vec<_>>())?;
        Ok(Batch { rotary: Some(BatchRotary { tables, rows }), ..self.clone() })
    }

    /// Packs the next tokens of several sequences whose earlier keys and values are in `cache`, in
    /// pages of `page` rows.
    pub fn decode(chunks: &[TokenChunk], page: usize, cache: &KvCache, limits: Limits, place: &Place) -> Result<Batch> {
        let segments = Segments::new(&chunks.iter().map(|p| p.ids.len()).collect::<Vec<_>>())?;
        let tables = chunks.iter().map(|p| (p.table.clone(), p.start + p.ids.len())).collect();
        let pages = Pages::new(tables, page)?;
        let tables = pages.observe();
        let (mut ids, mut positions, mut rows, mut output_rows) = (Vec::new(), Vec::new(), Vec::new(), Vec::new());
        for (i, p) in chunks.iter().enumerate() {
            let end = p.start + p.ids.len();
            check("position", end.saturating_sub(1) as u32, limits.positions)?;
            for id in &p.ids {
                check("token id", *id, limits.vocabulary)?;
            }
            ids.extend_from_slice(&p.ids);
            positions.extend(p.start as u32..end as u32);
            rows.extend((p.start..end).map(|j| tables.row(i, j) as u32));
            output_rows.extend((ids.len() - p.wanted.min(p.ids.len()))..ids.len());
        }
        let last_rows = chunks.iter().flat_map(|p| p.table.iter()).map(|table| (*table as usize + 1) * page - 1);
        if let Some(row) = last_rows.max().filter(|row| *row >= cache.rows()) {
            return Err(Error::Input(format!("row {row} is beyond the KV cache of {} rows", cache.rows())));
        }
        let all = output_rows.len() == ids.len();
        let output_rows: Vec<u32> = output_rows.into_iter().map(|row| row as u32).collect();
        Ok(Batch {
            ids: Tensor::from_u32(&ids, place)?,
            positions: Tensor::from_u32(&positions, place)?,
            // Language models have no token types.
            types: Tensor::from_u32(&[0], place)?,
            keys: segments.clone(),
            segments,
            task: None,
            host_ids: PerBatch::new(ids),
            marks: PerBatch::new(Vec::new()),
            kv: Some(KvView { cache: cache.clone(), rows: Tensor::from_u32(&rows, place)?, pages }),
            output_rows: if all { None } else { Some(Tensor::from_u32(&output_rows, place)?) },
            rotary: None,
            place: place.clone(),
        })
    }

    /// The data that a CUDA graph's dynamic parameters are computed from. The first `skips[i]`
    /// tokens of sequence `i` are not pooled.
    pub fn layout(&self, skips: &[usize]) -> BatchLayout {
        let keys = match &self.kv {
            Some(kv) => Keys::Paged(kv.pages.clone()),
            None => self.keys.clone().into(),
        };
        BatchLayout { segments: self.segments.clone(), keys: vec![keys], skips: skips.to_vec() }
    }

    /// The ids on the host, for models that select rows by token id. A running CUDA graph capture
    /// becomes untracked.
    pub fn observe_ids(&self) -> &[u32] {
        self.host_ids.observe()
    }

    /// Each sequence's ids, one token later: `start`, and then all but the last. A running CUDA
    /// graph capture becomes untracked.
    pub(crate) fn shifted_ids(&self, start: u32) -> Result<Tensor> {
        let mut ids = self.observe_ids().to_vec();
        for sequence in self.segments.observe().iter() {
            ids[sequence.clone()].rotate_right(1);
            ids[sequence.start] = start;
        }
        Ok(Tensor::from_u32(&ids, &self.place)?)
    }

    /// The marks of each sequence but those that fill a batch up. A running CUDA graph capture becomes
    /// untracked.
    pub fn observe_marks(&self) -> &[Option<Marks>] {
        self.marks.observe()
    }

    /// Uploads ids or row numbers to the place of the batch.
    pub(crate) fn upload(&self, numbers: &[u32]) -> Result<Tensor> {
        Ok(Tensor::from_u32(numbers, &self.place)?)
    }

    /// The rows of `x` `[tokens, n]` whose hidden states the caller needs.
    pub(crate) fn select_outputs(&self, x: &Tensor) -> Result<Tensor> {
        match &self.output_rows {
            Some(rows) => Ok(sconce_ops::embed(&[(x, rows)])?),
            None => Ok(x.clone()),
        }
    }

    /// Selects `rows` of `x` `[tokens, n]`.
    pub(crate) fn rows(&self, x: &Tensor, rows: &[u32]) -> Result<Tensor> {
        Ok(sconce_ops::embed(&[(x, &Tensor::from_u32(rows, &self.place)?)])?)
    }

    /// Parameters of self-attention over this batch.
    pub fn attention(&self, scale: f32) -> Attention {
        Attention { keys: self.keys.clone().into(), ..Attention::full(&self.segments, scale) }
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
        Batch::new(
            &[Sequence { ids: ids.to_vec(), types: types.to_vec(), ..Sequence::default() }],
            LIMITS,
            &Place::cpu(),
        )
    }

    #[test]
    fn ids_types_and_lengths_beyond_limits_are_refused() {
        assert!(batch(&[1, 9, 3], &[0, 1, 1]).is_ok());
        assert!(batch(&[10], &[]).is_err());
        assert!(batch(&[1, 2, 3, 4], &[]).is_err());
        assert!(batch(&[1], &[2]).is_err());
        assert!(batch(&[1, 2], &[0]).is_err());
        assert!(batch(&[], &[]).is_err());
    }
}
