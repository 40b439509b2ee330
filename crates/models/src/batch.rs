//! What a model is given: tokens of several sequences, one after another.

use crate::{Error, Result};
use sconce_ops::{Attention, Place, Segments, Tensor};

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
    /// The ids once more, on the host: for rows that are found by their id.
    pub host_ids: Vec<u32>,
}

impl Batch {
    /// Packs and uploads. Ids are checked here, once, because a GPU would read beyond its tables without a word.
    pub fn new(sequences: &[Sequence], limits: Limits, place: &Place) -> Result<Batch> {
        let lengths: Vec<usize> = sequences.iter().map(|s| s.ids.len()).collect();
        let segments = Segments::new(&lengths)?;
        let seen: Vec<usize> = sequences.iter().map(|s| s.keys.unwrap_or(s.ids.len())).collect();
        let keys = segments.heads(&seen)?;
        let (mut ids, mut positions, mut types) = (Vec::new(), Vec::new(), Vec::new());
        for s in sequences {
            check("position", s.ids.len().saturating_sub(1) as u32, limits.positions)?;
            for id in &s.ids {
                check("token id", *id, limits.vocabulary)?;
            }
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
            types.extend(s.types.iter().copied().chain(std::iter::repeat(0)).take(s.ids.len()));
        }
        Ok(Batch {
            ids: Tensor::from_u32(&ids, place)?,
            positions: Tensor::from_u32(&positions, place)?,
            types: Tensor::from_u32(&types, place)?,
            segments,
            keys,
            host_ids: ids,
        })
    }

    /// Self-attention over this batch.
    pub fn attention(&self, scale: f32) -> Attention {
        Attention { keys: self.keys.clone(), ..Attention::over(&self.segments, scale) }
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
