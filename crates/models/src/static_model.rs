//! Static embeddings: model2vec, and sentence-transformers' StaticEmbedding. A token's vector is
//! its row of a table and does not depend on its context.

use crate::head::no_head;
use crate::{Backbone, Batch, Error, Head, LayerHook, Limits, Result, Task};
use sconce_ops::{Tensor, Weights, embed};
use serde_json::Value;

pub(crate) fn backbone(_: &Value, w: &Weights) -> Result<Box<dyn Backbone>> {
    Ok(Box::new(Static::load(w)?))
}

pub(crate) fn head(task: Task, _: &Value, _: &Weights) -> Result<Head> {
    Err(no_head(task, "a static model"))
}

/// Most elements of an expanded table: a gigabyte, and twice the largest known.
const MAX_ELEMENTS: usize = 1 << 28;

struct Static {
    /// `[vocabulary, hidden]`
    rows: Tensor,
}

impl Static {
    fn load(w: &Weights) -> Result<Static> {
        let name = if w.has("embedding.weight")? { "embedding.weight" } else { "embeddings" };
        let dims = w.dims(name)?.unwrap_or_default();
        let [rows, hidden] = *dims else {
            return Err(Error::Config(format!(
                "a static model needs a tensor `{name}` of two dimensions, not of shape {dims:?}"
            )));
        };
        let (mapping, weights) = (w.dims("mapping")?, w.dims("weights")?);
        if mapping.is_none() && weights.is_none() {
            return Ok(Static { rows: w.tensor(name, &dims)? });
        }
        // A clustered vocabulary (`mapping`) has more tokens than rows. Expand the table to one row
        // per token.
        let tokens = match mapping.as_deref().or(weights.as_deref()) {
            Some([tokens])
                if tokens.saturating_mul(hidden) <= MAX_ELEMENTS && (mapping.is_some() || *tokens == rows) =>
            {
                *tokens
            }
            other => {
                return Err(Error::Config(format!(
                    "`mapping` or `weights` of shape {other:?} does not fit a table of {dims:?}, or is too large"
                )));
            }
        };
        let table = w.values(name, &dims)?;
        let row: Vec<usize> = match mapping {
            Some(_) => {
                let mapping = w.values("mapping", &[tokens])?;
                let is_invalid = |row: &&f32| !(0.0..rows as f32).contains(*row) || row.fract() != 0.0;
                if let Some(invalid) = mapping.iter().find(is_invalid) {
                    return Err(Error::Config(format!("`mapping` names row {invalid} of {rows}")));
                }
                mapping.iter().map(|row| *row as usize).collect()
            }
            None => (0..tokens).collect(),
        };

        let weight = match weights {
            Some(_) => w.values("weights", &[tokens])?,
            None => vec![1.0; tokens],
        };
        let token = |(row, weight): (&usize, f32)| table[row * hidden..][..hidden].iter().map(move |v| v * weight);
        let all: Vec<f32> = row.iter().zip(weight).flat_map(token).collect();
        Ok(Static { rows: w.put(&all, &[tokens, hidden])? })
    }
}

impl Backbone for Static {
    fn forward(&self, batch: &Batch, hook: LayerHook<'_>) -> Result<Tensor> {
        let x = embed(&[(&self.rows, &batch.ids)])?;
        hook(0, &x);
        Ok(x)
    }

    fn hidden_size(&self) -> usize {
        self.rows.dims()[1]
    }

    fn limits(&self) -> Limits {
        // Tokens are independent, so the length of a sequence is not limited.
        Limits::new(self.rows.dims()[0], usize::MAX)
    }
}
