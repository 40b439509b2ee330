//! Static embeddings: model2vec, and sentence-transformers' StaticEmbedding. A token's vector is its row, whatever stands around it.

use crate::head::no_head;
use crate::{Batch, Encoder, Error, Head, LayerHook, Limits, Result, Task};
use sconce_ops::{Tensor, Weights, embed};
use serde_json::Value;

pub(crate) fn encoder(_: &Value, w: &Weights) -> Result<Box<dyn Encoder>> {
    Ok(Box::new(Static::load(w)?))
}

pub(crate) fn head(task: Task, _: &Value, _: &Weights) -> Result<Head> {
    Err(no_head(task, "a static model"))
}

/// Numbers of a table that is written out: a gigabyte, and twice the largest known.
const LARGEST: usize = 1 << 28;

struct Static {
    /// `[vocabulary, hidden]`
    rows: Tensor,
}

impl Static {
    fn load(w: &Weights) -> Result<Static> {
        let name = if w.has("embedding.weight")? { "embedding.weight" } else { "embeddings" };
        let dims = w.dims(name)?.unwrap_or_default();
        let [rows, hidden] = *dims else {
            return Err(Error::Config(format!("a static model is a table `{name}` of two axes, not of {dims:?}")));
        };
        let (mapping, weights) = (w.dims("mapping")?, w.dims("weights")?);
        if mapping.is_none() && weights.is_none() {
            return Ok(Static { rows: w.tensor(name, &dims)? });
        }
        // A vocabulary in clusters has more words than rows: the table is written out, a row a word.
        let words = match mapping.as_deref().or(weights.as_deref()) {
            Some([words]) if words.saturating_mul(hidden) <= LARGEST && (mapping.is_some() || *words == rows) => *words,
            other => return Err(Error::Config(format!("words of {other:?} over a table of {dims:?} are too many"))),
        };
        let table = w.values(name, &dims)?;
        let row: Vec<usize> = match mapping {
            Some(_) => {
                let mapping = w.values("mapping", &[words])?;
                let whole = |row: &&f32| !(0.0..rows as f32).contains(*row) || row.fract() != 0.0;
                if let Some(lost) = mapping.iter().find(whole) {
                    return Err(Error::Config(format!("`mapping` leads to row {lost} of {rows}")));
                }
                mapping.iter().map(|row| *row as usize).collect()
            }
            None => (0..words).collect(),
        };

        let weight = match weights {
            Some(_) => w.values("weights", &[words])?,
            None => vec![1.0; words],
        };
        let word = |(row, weight): (&usize, f32)| table[row * hidden..][..hidden].iter().map(move |v| v * weight);
        let all: Vec<f32> = row.iter().zip(weight).flat_map(word).collect();
        Ok(Static { rows: w.put(&all, &[words, hidden])? })
    }
}

impl Encoder for Static {
    fn forward(&self, batch: &Batch, watch: LayerHook<'_>) -> Result<Tensor> {
        let x = embed(&[(&self.rows, &batch.ids)])?;
        watch(0, &x);
        Ok(x)
    }

    fn hidden_size(&self) -> usize {
        self.rows.dims()[1]
    }

    fn limits(&self) -> Limits {
        // Rows are added up, so that no text is too long for them.
        Limits::new(self.rows.dims()[0], usize::MAX)
    }
}
