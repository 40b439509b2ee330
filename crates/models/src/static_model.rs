//! Static embeddings: model2vec, and sentence-transformers' StaticEmbedding. A token's vector is its row, whatever stands around it.

use crate::head::no_head;
use crate::{Batch, Encoder, Error, Head, Limits, Positions, Result, Task, Watch};
use sconce_ops::{Tensor, Weights, embed};
use serde_json::Value;

pub(crate) fn encoder(_: &Value, w: &Weights) -> Result<Box<dyn Encoder>> {
    Ok(Box::new(Static::load(w)?))
}

pub(crate) fn head(task: Task, _: &Value, _: &Weights) -> Result<Head> {
    Err(no_head(task, "a static model"))
}

struct Static {
    /// `[vocabulary, hidden]`
    rows: Tensor,
}

impl Static {
    fn load(w: &Weights) -> Result<Static> {
        // Asked for first: a vocabulary in clusters has more words than rows.
        if w.has("mapping")? {
            let what =
                "this static model maps several words to a row (`mapping`, vocabulary quantisation); not supported";
            return Err(Error::Config(what.into()));
        }
        let name = if w.has("embedding.weight")? { "embedding.weight" } else { "embeddings" };
        let dims = w.dims(name)?.unwrap_or_default();
        let [vocabulary, hidden] = *dims else {
            return Err(Error::Config(format!("a static model is a table `{name}` of two axes, not of {dims:?}")));
        };
        if !w.has("weights")? {
            return Ok(Static { rows: w.tensor(name, &dims)? });
        }
        let mut rows = w.values(name, &dims)?;
        let weights = w.values("weights", &[vocabulary])?;
        rows.chunks_mut(hidden.max(1))
            .zip(&weights)
            .for_each(|(row, weight)| row.iter_mut().for_each(|v| *v *= weight));
        Ok(Static { rows: w.put(&rows, &dims)? })
    }
}

impl Encoder for Static {
    fn forward(&self, batch: &Batch, watch: Watch<'_>) -> Result<Tensor> {
        let x = embed(&[(&self.rows, &batch.ids)])?;
        watch(0, &x);
        Ok(x)
    }

    fn hidden_size(&self) -> usize {
        self.rows.dims()[1]
    }

    fn limits(&self) -> Limits {
        Limits {
            vocabulary: self.rows.dims()[0],
            // Rows are added up, so that no text is too long for them.
            positions: usize::MAX,
            types: None,
            counting: Positions::FromZero,
        }
    }
}
