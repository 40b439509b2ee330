//! DeBERTa (He et al. 2020, arXiv:2006.03654): BERT's blocks with disentangled attention, which
//! adds scores between content and relative positions, in place of position embeddings at the
//! input. `deberta_v2` shares the parts that did not change.

use crate::bert::WORD_EMBEDDINGS;
use crate::block::{BERT, Layer, PostNorm, SelfAttention, Shape, run_layers};
use crate::config::{activation, default_true, default_usize, head_size, parse, refuse, ten_to_minus};
use crate::deberta_v2::Convolution;
use crate::head::{out, root, vocabulary};
use crate::{Backbone, Batch, Error, Head, LayerHook, Limits, Result, Task};
use sconce_ops::{Bias, Disentangled, LayerNorm, Linear, Tensor, Weights, embed};
use serde::Deserialize;
use serde_json::Value;

/// The `config.json` fields of both versions.
#[derive(Deserialize)]
pub(crate) struct Config {
    pub(crate) vocab_size: usize,
    pub(crate) hidden_size: usize,
    pub(crate) num_hidden_layers: usize,
    pub(crate) num_attention_heads: usize,
    pub(crate) intermediate_size: usize,
    #[serde(default = "default_usize::<512>")]
    pub(crate) max_position_embeddings: usize,
    #[serde(default)]
    type_vocab_size: usize,
    #[serde(default = "ten_to_minus::<7>")]
    pub(crate) layer_norm_eps: f32,
    #[serde(default = "gelu")]
    hidden_act: String,
    #[serde(default)]
    relative_attention: bool,
    #[serde(default)]
    max_relative_positions: i64,
    #[serde(default = "default_true")]
    position_biased_input: bool,
    pos_att_type: Option<Terms>,
    embedding_size: Option<usize>,
    #[serde(default = "gelu")]
    pooler_hidden_act: String,
    #[serde(default = "default_true")]
    legacy: bool,
    #[serde(default)]
    talking_head: bool,
}

/// `pos_att_type`: "c2p|p2c", or a list.
#[derive(Deserialize)]
#[serde(untagged)]
enum Terms {
    Joined(String),
    Listed(Vec<String>),
}

fn gelu() -> String {
    "gelu".into()
}

impl Config {
    /// The size of the word, position and type embeddings.
    fn embedding(&self) -> usize {
        self.embedding_size.unwrap_or(self.hidden_size)
    }

    /// The largest relative distance, if attention is relative.
    pub(crate) fn max_relative(&self) -> Option<usize> {
        let configured = usize::try_from(self.max_relative_positions).ok().filter(|n| *n > 0);
        self.relative_attention.then(|| configured.unwrap_or(self.max_position_embeddings))
    }

    /// Whether scores have the content-to-position (c2p) and the position-to-content (p2c) term.
    pub(crate) fn terms(&self) -> Result<(bool, bool)> {
        let terms: Vec<String> = match &self.pos_att_type {
            None => Vec::new(),
            Some(Terms::Joined(text)) => text.to_lowercase().split('|').map(|t| t.trim().to_string()).collect(),
            Some(Terms::Listed(terms)) => terms.clone(),
        };
        let has = |name: &str| terms.iter().any(|t| t == name);
        let (c2p, p2c) = (has("c2p"), has("p2c"));
        if terms.len() != usize::from(c2p) + usize::from(p2c) {
            let what = format!("pos_att_type {terms:?} is not supported; `c2p` and `p2c`, once each, are");
            return Err(Error::Config(what));
        }
        Ok((c2p, p2c))
    }

    /// The scale of the scores: 1 / √(d · terms), where terms counts content-to-content, c2p and
    /// p2c.
    pub(crate) fn scale(&self, size: usize) -> Result<f32> {
        let (c2p, p2c) = self.terms()?;
        let terms = 1 + usize::from(c2p) + usize::from(p2c);
        Ok(1.0 / ((size * terms) as f32).sqrt())
    }

    pub(crate) fn shape(&self) -> Result<Shape> {
        Ok(Shape {
            hidden: self.hidden_size,
            heads: self.num_attention_heads,
            size: head_size(self.hidden_size, self.num_attention_heads)?,
            inner: self.intermediate_size,
            activation: activation("hidden_act", &self.hidden_act)?,
            eps: self.layer_norm_eps,
        })
    }

    pub(crate) fn limits(&self) -> Limits {
        // Relative positions are clamped, so they do not limit the length of a sequence.
        let positions = if self.position_biased_input { self.max_position_embeddings } else { usize::MAX };
        let types = (self.type_vocab_size > 0).then_some(self.type_vocab_size);
        Limits { types, ..Limits::new(self.vocab_size, positions) }
    }
}

pub(crate) fn backbone(config: &Value, w: &Weights) -> Result<Box<dyn Backbone>> {
    let c: Config = parse(config)?;
    refuse(c.talking_head, || "talking_head is not supported".into())?;
    let (w, shape) = (root(w, "deberta", WORD_EMBEDDINGS)?, c.shape()?);
    let relative = c.max_relative().map(|span| Relative::load(&w.sub("encoder"), &c, span)).transpose()?;
    let layer = |i| block(&w.sub("encoder.layer").sub(i), &c, &shape, relative.as_ref());
    Ok(Box::new(Deberta {
        embeddings: Embeddings::load(&w.sub("embeddings"), &c)?,
        layers: (0..c.num_hidden_layers).map(layer).collect::<Result<_>>()?,
        convolution: None,
        hidden_size: c.hidden_size,
        limits: c.limits(),
    }))
}

pub(crate) fn head(task: Task, config: &Value, w: &Weights) -> Result<Head> {
    let c: Config = parse(config)?;
    let hidden = c.hidden_size;
    Ok(match task {
        Task::Classify => {
            let pooler = Linear::load(&w.sub("pooler.dense"), hidden, hidden, true)?;
            Head::new(
                Some(pooler.with(activation("pooler_hidden_act", &c.pooler_hidden_act)?)),
                None,
                out(&w.sub("classifier"), hidden, true)?,
            )
        }
        Task::Tag => Head::new(None, None, out(&w.sub("classifier"), hidden, true)?),
        Task::Vocabulary => {
            // With `legacy`, the head is the one that transformers first had for DeBERTa; without,
            // it is the one of the published checkpoints.
            let (t, p, width) = if c.legacy {
                (w.sub("cls.predictions.transform"), w.sub("cls.predictions"), c.embedding())
            } else {
                (w.sub("lm_predictions.lm_head"), w.sub("lm_predictions.lm_head"), hidden)
            };
            let (words, decoder) =
                (root(w, "deberta", WORD_EMBEDDINGS)?.sub("embeddings.word_embeddings"), p.sub("decoder"));
            let dense =
                Linear::load(&t.sub("dense"), hidden, width, true)?.with(activation("hidden_act", &c.hidden_act)?);
            let norm = LayerNorm::load(&t.sub("LayerNorm"), width, c.layer_norm_eps, true)?;
            let out = vocabulary(&decoder, &words, [c.vocab_size, width], &[(&p, "bias"), (&decoder, "bias")])?;
            Head::new(Some(dense), Some(norm), out)
        }
    })
}

/// DeBERTa of either version.
pub(crate) struct Deberta {
    pub(crate) embeddings: Embeddings,
    pub(crate) layers: Vec<PostNorm>,
    /// Version 2 only; parallel to the first block.
    pub(crate) convolution: Option<Convolution>,
    pub(crate) hidden_size: usize,
    pub(crate) limits: Limits,
}

impl Backbone for Deberta {
    fn forward(&self, batch: &Batch, hook: LayerHook<'_>) -> Result<Tensor> {
        run_layers(self.embeddings.forward(batch)?, &self.layers, hook, |i, layer, x| {
            let y = layer.forward(x, batch)?;
            match self.convolution.as_ref().filter(|_| i == 0) {
                Some(convolution) => convolution.forward(x, &y, batch),
                None => Ok(y),
            }
        })
    }

    fn hidden_size(&self) -> usize {
        self.hidden_size
    }

    fn limits(&self) -> Limits {
        self.limits
    }
}

/// norm(project(word + position + type)); all but the word embeddings are optional.
pub(crate) struct Embeddings {
    words: Tensor,
    positions: Option<Tensor>,
    types: Option<Tensor>,
    project: Option<Linear>,
    norm: LayerNorm,
}

impl Embeddings {
    pub(crate) fn load(w: &Weights, c: &Config) -> Result<Embeddings> {
        let width = c.embedding();
        let table = |name, rows| w.sub(name).tensor("weight", &[rows, width]);
        let positions = c.position_biased_input.then(|| table("position_embeddings", c.max_position_embeddings));
        let types = (c.type_vocab_size > 0).then(|| table("token_type_embeddings", c.type_vocab_size));
        if !c.position_biased_input {
            w.skip("position_embeddings.weight");
        }
        w.skip("word_embeddings._weight");
        let project = (width != c.hidden_size).then(|| Linear::load(&w.sub("embed_proj"), width, c.hidden_size, false));
        Ok(Embeddings {
            words: table("word_embeddings", c.vocab_size)?,
            positions: positions.transpose()?,
            types: types.transpose()?,
            project: project.transpose()?,
            norm: LayerNorm::load(&w.sub("LayerNorm"), c.hidden_size, c.layer_norm_eps, true)?,
        })
    }

    pub(crate) fn forward(&self, b: &Batch) -> Result<Tensor> {
        let mut tables = vec![(&self.words, &b.ids)];
        tables.extend(self.positions.as_ref().map(|t| (t, &b.positions)));
        tables.extend(self.types.as_ref().map(|t| (t, &b.types)));
        let mut x = embed(&tables)?;
        if let Some(project) = &self.project {
            x = project.forward(&x)?;
        }
        Ok(self.norm.forward(&x)?)
    }
}

/// Relative position embeddings before a layer's projection. They do not depend on the input, so
/// each layer projects them once, at load.
pub(crate) struct Relative {
    /// `[2·span, hidden]`
    pub(crate) rows: Tensor,
    pub(crate) span: usize,
    /// The distance at which the logarithmic buckets end (`max_relative_positions`).
    pub(crate) max_distance: Option<usize>,
}

impl Relative {
    pub(crate) fn load(w: &Weights, c: &Config, span: usize) -> Result<Relative> {
        let rows = w.sub("rel_embeddings").tensor("weight", &[span.saturating_mul(2), c.hidden_size])?;
        Ok(Relative { rows, span, max_distance: None })
    }

    /// The disentangled bias of a layer: `keys` projects positions for c2p, `queries` for p2c.
    pub(crate) fn bias(&self, keys: Option<Linear>, queries: Option<Linear>, heads: usize) -> Result<Bias> {
        let table = |linear: Linear| -> Result<Tensor> {
            let size = linear.outputs() / heads;
            Ok(linear.forward(&self.rows)?.reshape(&[2 * self.span, heads, size])?)
        };
        if keys.is_none() && queries.is_none() {
            return Ok(Bias::None);
        }
        Ok(Bias::Disentangled(Disentangled {
            keys: keys.map(table).transpose()?,
            queries: queries.map(table).transpose()?,
            span: self.span,
            far: self.max_distance,
        }))
    }
}

/// A block of the first version: one QKV projection interleaved by head, in which keys have no
/// bias.
fn block(layer: &Weights, c: &Config, s: &Shape, relative: Option<&Relative>) -> Result<PostNorm> {
    let (w, hidden, size) = (layer.sub("attention.self"), s.hidden, s.size);
    let (q, v) = (w.values("q_bias", &[hidden])?, w.values("v_bias", &[hidden])?);
    let zeros = vec![0.0; size];
    let joint: Vec<f32> = q.chunks(size).zip(v.chunks(size)).flat_map(|(q, v)| [q, &zeros, v].concat()).collect();
    let qkv = Linear::load(&w.sub("in_proj"), hidden, 3 * hidden, false)?.with_bias(w.put(&joint, &[3 * hidden])?)?;
    let (c2p, p2c) = c.terms()?;
    let bias = relative.map_or(Ok(Bias::None), |relative| {
        let keys = c2p.then(|| Linear::load(&w.sub("pos_proj"), hidden, hidden, false)).transpose()?;
        let queries = p2c.then(|| Linear::load(&w.sub("pos_q_proj"), hidden, hidden, true)).transpose()?;
        relative.bias(keys, queries, s.heads)
    })?;
    let block = PostNorm::with_qkv(qkv, layer, s, &BERT)?;
    let attention = SelfAttention { by_head: true, scale: c.scale(size)?, bias, ..block.attention };
    Ok(PostNorm { attention, ..block })
}
