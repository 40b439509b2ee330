//! DeBERTa (He et al. 2020, arXiv:2006.03654): BERT's blocks, with scores between content and relative positions in place of
//! positions in the input. What the second version keeps is shared with `deberta_v2`.

use crate::block::through;
use crate::config::{activation, head_size, parse, ten_to_minus, usually, yes};
use crate::head::{out, root, vocabulary};
use crate::{Batch, Encoder, Error, Head, Limits, Positions, Result, Task, Watch};
use sconce_ops::{Attention, Bias, Disentangled, LayerNorm, Linear, Pooling, Tensor, Weights, attention, embed};
use serde::Deserialize;
use serde_json::Value;

/// What both versions name alike.
#[derive(Deserialize)]
pub(crate) struct Config {
    pub(crate) vocab_size: usize,
    pub(crate) hidden_size: usize,
    pub(crate) num_hidden_layers: usize,
    pub(crate) num_attention_heads: usize,
    pub(crate) intermediate_size: usize,
    #[serde(default = "usually::<512>")]
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
    #[serde(default = "yes")]
    position_biased_input: bool,
    pos_att_type: Option<Terms>,
    embedding_size: Option<usize>,
    #[serde(default = "gelu")]
    pooler_hidden_act: String,
    #[serde(default = "yes")]
    legacy: bool,
    #[serde(default)]
    talking_head: bool,
}

/// "c2p|p2c", or a list.
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
    /// The width of the tables of words, positions and types.
    fn embedding(&self) -> usize {
        self.embedding_size.unwrap_or(self.hidden_size)
    }

    /// The farthest relative position, where positions are relative.
    pub(crate) fn reach(&self) -> Option<usize> {
        let own = usize::try_from(self.max_relative_positions).ok().filter(|n| *n > 0);
        self.relative_attention.then(|| own.unwrap_or(self.max_position_embeddings))
    }

    /// Whether content meets positions, and positions content.
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

    /// What a score is multiplied with: 1/√d, over one term more for each that positions add.
    pub(crate) fn scale(&self) -> Result<f32> {
        let (c2p, p2c) = self.terms()?;
        let terms = 1 + usize::from(c2p) + usize::from(p2c);
        Ok(1.0 / ((head_size(self.hidden_size, self.num_attention_heads)? * terms) as f32).sqrt())
    }

    pub(crate) fn limits(&self) -> Limits {
        Limits {
            vocabulary: self.vocab_size,
            // Relative positions are clamped, so that no sequence is too long for them.
            positions: if self.position_biased_input { self.max_position_embeddings } else { usize::MAX },
            types: (self.type_vocab_size > 0).then_some(self.type_vocab_size),
            counting: Positions::FromZero,
        }
    }
}

pub(crate) fn encoder(config: &Value, w: &Weights) -> Result<Box<dyn Encoder>> {
    Ok(Box::new(Deberta::load(config, w)?))
}

pub(crate) fn head(task: Task, config: &Value, w: &Weights) -> Result<Head> {
    let c: Config = parse(config)?;
    let hidden = c.hidden_size;
    let plain = |dense, out| Head { pooling: Pooling::Cls, padding: None, dense, norm: None, out };
    Ok(match task {
        Task::Classify => {
            let pooler = Linear::load(&w.sub("pooler.dense"), hidden, hidden, true)?;
            plain(Some(pooler.with(activation(&c.pooler_hidden_act)?)), out(&w.sub("classifier"), hidden, true)?)
        }
        Task::Tag => plain(None, out(&w.sub("classifier"), hidden, true)?),
        Task::Vocabulary => {
            // The head that transformers first gave DeBERTa, or the one it was published with.
            let (t, p, width) = if c.legacy {
                (w.sub("cls.predictions.transform"), w.sub("cls.predictions"), c.embedding())
            } else {
                (w.sub("lm_predictions.lm_head"), w.sub("lm_predictions.lm_head"), hidden)
            };
            let (words, decoder) = (root(w, "deberta", WORDS)?.sub("embeddings.word_embeddings"), p.sub("decoder"));
            Head {
                pooling: Pooling::Cls,
                padding: None,
                dense: Some(Linear::load(&t.sub("dense"), hidden, width, true)?.with(activation(&c.hidden_act)?)),
                norm: Some(LayerNorm::load(&t.sub("LayerNorm"), width, c.layer_norm_eps, true)?),
                out: vocabulary(&decoder, &words, [c.vocab_size, width], &[(&p, "bias"), (&decoder, "bias")])?,
            }
        }
    })
}

pub(crate) const WORDS: &str = "embeddings.word_embeddings.weight";

struct Deberta {
    embeddings: Embeddings,
    layers: Vec<Layer>,
    hidden_size: usize,
    limits: Limits,
}

impl Deberta {
    fn load(config: &Value, w: &Weights) -> Result<Deberta> {
        let c: Config = parse(config)?;
        if c.talking_head {
            return Err(Error::Config("talking_head is not supported".into()));
        }
        let w = root(w, "deberta", WORDS)?;
        let relative = c.reach().map(|span| Relative::load(&w.sub("encoder"), &c, span)).transpose()?;
        let layer = |i| {
            let w = w.sub("encoder.layer").sub(i);
            Layer::load(&w, &c, attention_of(&w.sub("attention.self"), &c, relative.as_ref())?)
        };
        Ok(Deberta {
            embeddings: Embeddings::load(&w.sub("embeddings"), &c)?,
            layers: (0..c.num_hidden_layers).map(layer).collect::<Result<_>>()?,
            hidden_size: c.hidden_size,
            limits: c.limits(),
        })
    }
}

impl Encoder for Deberta {
    fn forward(&self, batch: &Batch, watch: Watch<'_>) -> Result<Tensor> {
        let x = self.embeddings.forward(batch)?;
        through(x, &self.layers, watch, |_, layer, x| layer.forward(x, batch))
    }

    fn hidden_size(&self) -> usize {
        self.hidden_size
    }

    fn limits(&self) -> Limits {
        self.limits
    }
}

/// norm(project(word + position + type)), each but the first where the model has it.
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

/// Relative positions before a layer projects them. They do not depend on the input, so each layer does so once, at load.
pub(crate) struct Relative {
    /// `[2·span, hidden]`
    pub(crate) rows: Tensor,
    pub(crate) span: usize,
    /// Where logarithmic steps end.
    pub(crate) far: Option<usize>,
}

impl Relative {
    pub(crate) fn load(w: &Weights, c: &Config, span: usize) -> Result<Relative> {
        let rows = w.sub("rel_embeddings").tensor("weight", &[span.saturating_mul(2), c.hidden_size])?;
        Ok(Relative { rows, span, far: None })
    }

    /// The terms of a layer that projects positions to `keys` and `queries`.
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
            far: self.far,
        }))
    }
}

/// Post-norm block: h = norm(x + Attn(x)); y = norm(h + Mlp(h)).
pub(crate) struct Layer {
    attention: SelfAttention,
    output: Linear,
    attention_norm: LayerNorm,
    up: Linear,
    down: Linear,
    norm: LayerNorm,
}

impl Layer {
    pub(crate) fn load(w: &Weights, c: &Config, attention: SelfAttention) -> Result<Layer> {
        let norm = |w: &Weights| LayerNorm::load(w, c.hidden_size, c.layer_norm_eps, true);
        Ok(Layer {
            attention,
            output: Linear::load(&w.sub("attention.output.dense"), c.hidden_size, c.hidden_size, true)?,
            attention_norm: norm(&w.sub("attention.output.LayerNorm"))?,
            up: Linear::load(&w.sub("intermediate.dense"), c.hidden_size, c.intermediate_size, true)?
                .with(activation(&c.hidden_act)?),
            down: Linear::load(&w.sub("output.dense"), c.intermediate_size, c.hidden_size, true)?,
            norm: norm(&w.sub("output.LayerNorm"))?,
        })
    }

    pub(crate) fn forward(&self, x: &Tensor, b: &Batch) -> Result<Tensor> {
        let h = self.output.forward_normed(&self.attention.forward(x, b)?, x, &self.attention_norm)?;
        Ok(self.down.forward_normed(&self.up.forward(&h)?, &h, &self.norm)?)
    }
}

/// softmax((Q Kᵀ + Q Rₖᵀ + R_q Kᵀ) / √(terms · d)) V over each sequence, with the rows of R by distance.
pub(crate) struct SelfAttention {
    pub(crate) qkv: Linear,
    /// Whether query, key and value of a head lie together, or those of all heads.
    pub(crate) by_head: bool,
    pub(crate) heads: usize,
    pub(crate) size: usize,
    pub(crate) scale: f32,
    pub(crate) bias: Bias,
}

impl SelfAttention {
    fn forward(&self, x: &Tensor, b: &Batch) -> Result<Tensor> {
        let (tokens, heads, size) = (b.segments.tokens(), self.heads, self.size);
        let (dims, axis) = if self.by_head { ([tokens, heads, 3, size], 2) } else { ([tokens, 3, heads, size], 1) };
        let qkv = self.qkv.forward(x)?.reshape(&dims)?;
        let (q, k, v) = (qkv.select(axis, 0)?, qkv.select(axis, 1)?, qkv.select(axis, 2)?); // [tokens, heads, size]
        let y = attention(&q, &k, &v, &Attention { bias: self.bias.clone(), ..b.attention(self.scale) })?;
        Ok(y.reshape(&[tokens, heads * size])?)
    }
}

/// The first version's: one projection, head by head, in which keys have no bias.
fn attention_of(w: &Weights, c: &Config, relative: Option<&Relative>) -> Result<SelfAttention> {
    let (hidden, heads) = (c.hidden_size, c.num_attention_heads);
    let size = head_size(hidden, heads)?;
    let (q, v) = (w.values("q_bias", &[hidden])?, w.values("v_bias", &[hidden])?);
    let zeros = vec![0.0; size];
    let joint: Vec<f32> = q.chunks(size).zip(v.chunks(size)).flat_map(|(q, v)| [q, &zeros, v].concat()).collect();
    let qkv = Linear::load(&w.sub("in_proj"), hidden, 3 * hidden, false)?.with_bias(w.put(&joint, &[3 * hidden])?)?;
    let (c2p, p2c) = c.terms()?;
    let bias = relative.map_or(Ok(Bias::None), |relative| {
        let keys = c2p.then(|| Linear::load(&w.sub("pos_proj"), hidden, hidden, false)).transpose()?;
        let queries = p2c.then(|| Linear::load(&w.sub("pos_q_proj"), hidden, hidden, true)).transpose()?;
        relative.bias(keys, queries, heads)
    })?;
    Ok(SelfAttention { qkv, by_head: true, heads, size, scale: c.scale()?, bias })
}
