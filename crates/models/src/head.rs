//! Task heads. The heads of all families have the same steps under different names: a dense layer
//! with an activation, a norm, and the output projection; some omit a step.

use crate::{Batch, Error, Result};
use sconce_ops::{LayerNorm, Linear, Pooling, Segments, Tensor, Weights, pool};
use serde_json::Value;

/// The task of a head.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Task {
    /// Logits per sequence (`…ForSequenceClassification`).
    Classify,
    /// Logits per token (`…ForTokenClassification`).
    Tag,
    /// Logits over the vocabulary per token (`…ForMaskedLM`).
    Vocabulary,
}

/// A task head: out(norm(dense(x))).
pub struct Head {
    /// How a [`Task::Classify`] head pools a sequence.
    pub pooling: Pooling,
    /// The padding id. A decoder's classifier reads the last token with another id, even where the
    /// caller put padding into the text.
    pub padding: Option<u32>,
    /// The end token, whose last occurrence T5's classifier reads. Its tokenizer appends one to
    /// every text.
    pub end: Option<u32>,
    /// Whether dense layer and norm see every token and the pooling follows them, before the output
    /// projection (EuroBERT).
    pub late: bool,
    /// The dense layer with its activation.
    pub dense: Option<Linear>,
    /// The norm after the dense layer.
    pub norm: Option<LayerNorm>,
    /// The output projection to logits.
    pub out: Linear,
}

impl Head {
    /// A head that pools a sequence's first token (CLS).
    pub(crate) fn new(dense: Option<Linear>, norm: Option<LayerNorm>, out: Linear) -> Head {
        Head { pooling: Pooling::Cls, padding: None, end: None, late: false, dense, norm, out }
    }

    /// Pools hidden states `x` `[tokens, hidden]` for a [`Task::Classify`] head, to f32.
    pub fn pooled(&self, x: &Tensor, batch: &Batch, skips: &[usize]) -> Result<Tensor> {
        if self.late {
            // One row per token, in f32. The lengths are not those of the batch, so a running CUDA
            // graph capture must not follow them.
            let tokens: usize = batch.segments.observe().iter().map(|tokens| tokens.len()).sum();
            let rows = pool(x, &Segments::new(&vec![1; tokens])?, &vec![0; tokens], &[Pooling::Mean])?;
            return Ok(pool(&self.before(&rows)?, &batch.segments, skips, &[self.pooling])?);
        }
        if self.padding.is_none() && self.end.is_none() {
            return Ok(pool(x, &batch.segments, skips, &[self.pooling])?);
        }
        let last = |tokens: std::ops::Range<usize>| {
            let (first, ids) = (tokens.start, &batch.observe_ids()[tokens]);
            let row = match self.end {
                // Token ids without an end token are those of a sanity check.
                Some(end) => ids.iter().rposition(|id| *id == end).unwrap_or(ids.len() - 1),
                // In a sequence of padding alone it is the first token.
                None => ids.iter().rposition(|id| Some(*id) != self.padding).unwrap_or(0),
            };
            (first + row) as u32
        };
        let rows: Vec<u32> = batch.segments.observe().iter().map(last).collect();
        let x = batch.rows(x, &rows)?;
        Ok(pool(&x, &Segments::new(&vec![1; rows.len()])?, &vec![0; rows.len()], &[self.pooling])?)
    }

    /// Logits of rows `x` `[rows, hidden]`, one row per sequence (pooled) or per token.
    pub fn forward(&self, x: &Tensor) -> Result<Tensor> {
        match self.late {
            true => Ok(self.out.forward(x)?),
            false => Ok(self.out.forward(&self.before(x)?)?),
        }
    }

    /// The input of the output projection: norm(dense(x)).
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

/// The head of a language model: logits of the next token over the vocabulary.
pub struct LmHead {
    /// The output projection, often tied to the token embeddings.
    pub out: Linear,
    /// The factor of the logits; [`LmHead::capped`] applies it.
    pub scale: f32,
    /// Soft-capping, cap · tanh(logit / cap); [`LmHead::capped`] applies it.
    pub cap: Option<f32>,
}

impl LmHead {
    /// Logits of rows `x` `[rows, hidden]`, before scale and soft-capping.
    pub fn forward(&self, x: &Tensor) -> Result<Tensor> {
        Ok(self.out.forward(x)?)
    }

    /// Applies scale and soft-capping to the logits of [`LmHead::forward`], on the host.
    pub fn capped(&self, logits: &mut [f32]) {
        if self.scale != 1.0 {
            logits.iter_mut().for_each(|l| *l *= self.scale);
        }
        if let Some(cap) = self.cap {
            logits.iter_mut().for_each(|l| *l = cap * (*l / cap).tanh());
        }
    }
}

/// Loads the LM head of a model whose token embeddings are `embed_tokens`. It shares their weight
/// if `tied` or if the file has no `lm_head.weight`.
pub(crate) fn lm_head(w: &Weights, embed_tokens: &Weights, dims: [usize; 2], tied: bool) -> Result<LmHead> {
    let lm_head = w.sub("lm_head");
    let out = vocabulary(if tied { embed_tokens } else { &lm_head }, embed_tokens, dims, &[(&lm_head, "bias")])?;
    Ok(LmHead { out, scale: 1.0, cap: None })
}

/// A classifier that reads the last token that is not padding.
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
            Ok(Head { pooling: Pooling::LastToken, padding, ..Head::new(None, None, out) })
        }
        Task::Tag | Task::Vocabulary => Err(no_head(task, architecture)),
    }
}

/// The output projection, from `hidden` to as many logits as the file has rows.
pub(crate) fn out(w: &Weights, hidden: usize, bias: bool) -> Result<Linear> {
    let logits = w.dims("weight")?.and_then(|dims| dims.first().copied()).unwrap_or(0);
    Ok(Linear::load(w, hidden, logits.max(1), bias)?)
}

/// The output projection over the vocabulary. Its weight is `untied` if the file has that, else the
/// embedding table `tied`. Its bias is the first of `biases` that the file has.
pub(crate) fn vocabulary(
    untied: &Weights,
    tied: &Weights,
    dims: [usize; 2],
    biases: &[(&Weights, &str)],
) -> Result<Linear> {
    let w = if untied.has("weight")? { untied } else { tied };
    let linear = Linear::load(w, dims[1], dims[0], false)?;
    for (w, name) in biases {
        if w.has(name)? {
            return Ok(linear.with_bias(w.tensor(name, &[dims[0]])?)?);
        }
    }
    Ok(linear)
}

/// The tensors under `prefix` if the encoder is there (as in a model with a head), else the root.
pub(crate) fn root(w: &Weights, prefix: &str, probe: &str) -> Result<Weights> {
    Ok(if w.sub(prefix).has(probe)? { w.sub(prefix) } else { w.clone() })
}

/// The error that the architecture has no head for the task.
pub(crate) fn no_head(task: Task, architecture: &str) -> Error {
    let what = match task {
        Task::Classify => "sequence classification",
        Task::Tag => "token classification",
        Task::Vocabulary => "masked language modelling",
    };
    Error::Config(format!("{architecture} has no head for {what}"))
}
