//! What stands behind an encoder for a task. Every family's head is the same steps with other names: a dense layer with an
//! activation, a norm, and the last product; some leave one out.

use crate::{Batch, Error, Result};
use sconce_ops::{LayerNorm, Linear, Pooling, Segments, Tensor, Weights, pool};
use serde_json::Value;

/// What a head is for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Task {
    /// One row of logits a sequence (`…ForSequenceClassification`).
    Classify,
    /// One row of logits a token (`…ForTokenClassification`).
    Tag,
    /// A logit a token and word of the vocabulary (`…ForMaskedLM`).
    Vocabulary,
}

/// out(norm(dense(x))).
pub struct Head {
    /// How a sequence becomes the row that a [`Task::Classify`] head reads.
    pub pooling: Pooling,
    /// An id that does not count as a sequence's last token, wherever it comes from: a decoder's classifier reads the last other.
    pub padding: Option<u32>,
    /// With its activation.
    pub dense: Option<Linear>,
    /// Behind the dense layer.
    pub norm: Option<LayerNorm>,
    /// To the logits.
    pub out: Linear,
}

impl Head {
    /// Of a sequence's first token.
    pub(crate) fn new(dense: Option<Linear>, norm: Option<LayerNorm>, out: Linear) -> Head {
        Head { pooling: Pooling::Cls, padding: None, dense, norm, out }
    }

    /// The rows that a [`Task::Classify`] head reads of hidden states `x` `[tokens, hidden]`, in f32.
    pub fn pooled(&self, x: &Tensor, batch: &Batch, skips: &[usize]) -> Result<Tensor> {
        let Some(padding) = self.padding else {
            return Ok(pool(x, &batch.segments, skips, &[self.pooling])?);
        };
        // Of nothing but padding it is the first.
        let last = |tokens: std::ops::Range<usize>| {
            let (first, ids) = (tokens.start, &batch.observe_ids()[tokens]);
            (first + ids.iter().rposition(|id| *id != padding).unwrap_or(0)) as u32
        };
        let rows: Vec<u32> = batch.segments.observe().iter().map(last).collect();
        let x = batch.rows(x, &rows)?;
        Ok(pool(&x, &Segments::new(&vec![1; rows.len()])?, &vec![0; rows.len()], &[self.pooling])?)
    }

    /// Logits of rows `x` `[rows, hidden]`: pooled ones, or one a token.
    pub fn forward(&self, x: &Tensor) -> Result<Tensor> {
        Ok(self.out.forward(&self.before(x)?)?)
    }

    /// What the last product reads.
    pub fn before(&self, x: &Tensor) -> Result<Tensor> {
        let mut x = x.clone();
        if let Some(dense) = &self.dense {
            x = dense.forward(&x)?;
        }
        if let Some(norm) = &self.norm {
            x = norm.forward(&x)?;
        }
        Ok(x)
    }
}

/// What stands behind a language model: a logit a word, of the token that comes next.
pub struct LmHead {
    /// To the logits; often the word table once more.
    pub out: Linear,
    /// What logits are multiplied with: see [`LmHead::capped`].
    pub scale: f32,
    /// cap · tanh(logit / cap) instead of a logit, where there is one: see [`LmHead::capped`].
    pub cap: Option<f32>,
}

impl LmHead {
    /// Logits of rows `x` `[rows, hidden]`, before their scale and cap.
    pub fn forward(&self, x: &Tensor) -> Result<Tensor> {
        Ok(self.out.forward(x)?)
    }

    /// Logits as they are meant, from those of [`LmHead::forward`]. On the host, where they are looked at.
    pub fn capped(&self, logits: &mut [f32]) {
        if self.scale != 1.0 {
            logits.iter_mut().for_each(|l| *l *= self.scale);
        }
        if let Some(cap) = self.cap {
            logits.iter_mut().for_each(|l| *l = cap * (*l / cap).tanh());
        }
    }
}

/// The head of a model whose words are under `words`: those again where `tied` or where the file has no head of its own.
pub(crate) fn next(w: &Weights, words: &Weights, dims: [usize; 2], tied: bool) -> Result<LmHead> {
    let own = w.sub("lm_head");
    let out = vocabulary(if tied { words } else { &own }, words, dims, &[(&own, "bias")])?;
    Ok(LmHead { out, scale: 1.0, cap: None })
}

/// A classifier that reads the last token that is no padding.
pub(crate) fn last_token(
    task: Task,
    config: &Value,
    w: &Weights,
    (hidden, architecture): (usize, &str),
) -> Result<Head> {
    match task {
        Task::Classify => {
            let padding = config.get("pad_token_id").and_then(Value::as_u64).and_then(|id| u32::try_from(id).ok());
            let out = out(&w.sub("score"), hidden, false)?;
            Ok(Head { pooling: Pooling::LastToken, padding, dense: None, norm: None, out })
        }
        Task::Tag | Task::Vocabulary => Err(no_head(task, architecture)),
    }
}

/// The last product, `hidden` → as many logits as the file has.
pub(crate) fn out(w: &Weights, hidden: usize, bias: bool) -> Result<Linear> {
    let logits = w.dims("weight")?.and_then(|dims| dims.first().copied()).unwrap_or(0);
    Ok(Linear::load(w, hidden, logits.max(1), bias)?)
}

/// The last product over a vocabulary whose weight is the word table (`tied`) unless the head has one of its own, with the bias
/// under the first of `biases` that the file has.
pub(crate) fn vocabulary(
    own: &Weights,
    tied: &Weights,
    dims: [usize; 2],
    biases: &[(&Weights, &str)],
) -> Result<Linear> {
    let w = if own.has("weight")? { own } else { tied };
    let linear = Linear::load(w, dims[1], dims[0], false)?;
    for (w, name) in biases {
        if w.has(name)? {
            return Ok(linear.with_bias(w.tensor(name, &[dims[0]])?)?);
        }
    }
    Ok(linear)
}

/// The branch `prefix` if the file keeps the encoder there (a model with a head does), else the root.
pub(crate) fn root(w: &Weights, prefix: &str, probe: &str) -> Result<Weights> {
    Ok(if w.sub(prefix).has(probe)? { w.sub(prefix) } else { w.clone() })
}

/// That the architecture has no head for the task.
pub(crate) fn no_head(task: Task, architecture: &str) -> Error {
    let what = match task {
        Task::Classify => "sequence classification",
        Task::Tag => "token classification",
        Task::Vocabulary => "masked language modelling",
    };
    Error::Config(format!("{architecture} has no head for {what}"))
}
