//! BERT (Devlin et al. 2018, arXiv:1810.04805): embeddings, then a stack of post-norm blocks. Also MiniLM, E5, BGE and GTE.

use crate::config::{activation, head_size, parse};
use crate::head::{out, root, vocabulary};
use crate::{Batch, Encoder, Error, Head, Limits, Positions, Result, Task, Watch};
use sconce_ops::{Activation, LayerNorm, Linear, Pooling, Tensor, Weights, at, attention, embed};
use serde::Deserialize;
use serde_json::Value;

#[derive(Deserialize)]
struct Config {
    vocab_size: usize,
    hidden_size: usize,
    num_hidden_layers: usize,
    num_attention_heads: usize,
    intermediate_size: usize,
    max_position_embeddings: usize,
    type_vocab_size: usize,
    layer_norm_eps: f32,
    hidden_act: String,
    position_embedding_type: Option<String>,
    #[serde(default)]
    is_decoder: bool,
}

pub(crate) fn encoder(config: &Value, w: &Weights) -> Result<Box<dyn Encoder>> {
    Ok(Box::new(Bert::load(config, w)?))
}

pub(crate) fn head(task: Task, config: &Value, w: &Weights) -> Result<Head> {
    let c: Config = parse(config)?;
    let hidden = c.hidden_size;
    let bert = root(w, "bert", WORDS)?;
    let plain = |dense, out| Head { pooling: Pooling::Cls, dense, norm: None, out };
    Ok(match task {
        Task::Classify => {
            let pooler = Linear::load(&bert.sub("pooler.dense"), hidden, hidden, true)?.with(Activation::Tanh);
            plain(Some(pooler), out(&w.sub("classifier"), hidden, true)?)
        }
        Task::Tag => plain(None, out(&w.sub("classifier"), hidden, true)?),
        Task::Vocabulary => {
            let p = w.sub("cls.predictions");
            let (words, decoder) = (bert.sub("embeddings.word_embeddings"), p.sub("decoder"));
            let t = p.sub("transform");
            Head {
                pooling: Pooling::Cls,
                dense: Some(Linear::load(&t.sub("dense"), hidden, hidden, true)?.with(activation(&c.hidden_act)?)),
                norm: Some(LayerNorm::load(&t.sub("LayerNorm"), hidden, c.layer_norm_eps, true)?),
                out: vocabulary(&decoder, &words, [c.vocab_size, hidden], &[(&p, "bias"), (&decoder, "bias")])?,
            }
        }
    })
}

const WORDS: &str = "embeddings.word_embeddings.weight";

struct Bert {
    embeddings: Embeddings,
    layers: Vec<Layer>,
    hidden_size: usize,
    limits: Limits,
}

impl Bert {
    fn load(config: &Value, w: &Weights) -> Result<Bert> {
        let c: Config = parse(config)?;
        if let Some(kind) = c.position_embedding_type.as_deref().filter(|k| *k != "absolute") {
            return Err(Error::Config(format!("position_embedding_type `{kind}` is not supported; absolute is")));
        }
        if c.is_decoder {
            return Err(Error::Config("a BERT decoder (is_decoder) is not supported".into()));
        }
        head_size(c.hidden_size, c.num_attention_heads)?;
        let w = root(w, "bert", WORDS)?;
        let layer = |i| Layer::load(&w.sub("encoder.layer").sub(i), &c);
        Ok(Bert {
            embeddings: Embeddings::load(&w.sub("embeddings"), &c)?,
            layers: (0..c.num_hidden_layers).map(layer).collect::<Result<_>>()?,
            hidden_size: c.hidden_size,
            limits: Limits {
                vocabulary: c.vocab_size,
                positions: c.max_position_embeddings,
                types: Some(c.type_vocab_size),
                counting: Positions::FromZero,
            },
        })
    }
}

impl Encoder for Bert {
    fn forward(&self, batch: &Batch, watch: Watch<'_>) -> Result<Tensor> {
        let mut x = self.embeddings.forward(batch)?;
        watch(0, &x);
        for (i, layer) in self.layers.iter().enumerate() {
            let _at = at("layer", i);
            x = layer.forward(&x, batch)?;
            watch(i + 1, &x);
        }
        Ok(x)
    }

    fn hidden_size(&self) -> usize {
        self.hidden_size
    }

    fn limits(&self) -> Limits {
        self.limits
    }
}

/// norm(word + position + type).
struct Embeddings {
    words: Tensor,
    positions: Tensor,
    types: Tensor,
    norm: LayerNorm,
}

impl Embeddings {
    fn load(w: &Weights, c: &Config) -> Result<Embeddings> {
        let table = |name, rows| w.sub(name).tensor("weight", &[rows, c.hidden_size]);
        Ok(Embeddings {
            words: table("word_embeddings", c.vocab_size)?,
            positions: table("position_embeddings", c.max_position_embeddings)?,
            types: table("token_type_embeddings", c.type_vocab_size)?,
            norm: LayerNorm::load(&w.sub("LayerNorm"), c.hidden_size, c.layer_norm_eps, true)?,
        })
    }

    fn forward(&self, b: &Batch) -> Result<Tensor> {
        let x = embed(&[(&self.words, &b.ids), (&self.positions, &b.positions), (&self.types, &b.types)])?;
        Ok(self.norm.forward(&x)?)
    }
}

/// Post-norm block: h = norm(x + Attn(x)); y = norm(h + Mlp(h)).
struct Layer {
    attention: SelfAttention,
    attention_norm: LayerNorm,
    up: Linear,
    down: Linear,
    norm: LayerNorm,
}

impl Layer {
    fn load(w: &Weights, c: &Config) -> Result<Layer> {
        let norm = |w: &Weights| LayerNorm::load(w, c.hidden_size, c.layer_norm_eps, true);
        Ok(Layer {
            attention: SelfAttention::load(&w.sub("attention"), c)?,
            attention_norm: norm(&w.sub("attention.output.LayerNorm"))?,
            up: Linear::load(&w.sub("intermediate.dense"), c.hidden_size, c.intermediate_size, true)?
                .with(activation(&c.hidden_act)?),
            down: Linear::load(&w.sub("output.dense"), c.intermediate_size, c.hidden_size, true)?,
            norm: norm(&w.sub("output.LayerNorm"))?,
        })
    }

    fn forward(&self, x: &Tensor, b: &Batch) -> Result<Tensor> {
        let h = self.attention_norm.forward_residual(&self.attention.forward(x, b)?, x)?;
        let mlp = self.down.forward(&self.up.forward(&h)?)?;
        Ok(self.norm.forward_residual(&mlp, &h)?)
    }
}

/// softmax(Q Kᵀ / √d) V over each sequence, then a projection.
struct SelfAttention {
    qkv: Linear,
    output: Linear,
    heads: usize,
    size: usize,
}

impl SelfAttention {
    fn load(w: &Weights, c: &Config) -> Result<SelfAttention> {
        let parts = ["query", "key", "value"].map(|name| w.sub("self").sub(name));
        Ok(SelfAttention {
            qkv: Linear::stacked(&parts, c.hidden_size, c.hidden_size, true)?,
            output: Linear::load(&w.sub("output.dense"), c.hidden_size, c.hidden_size, true)?,
            heads: c.num_attention_heads,
            size: head_size(c.hidden_size, c.num_attention_heads)?,
        })
    }

    fn forward(&self, x: &Tensor, b: &Batch) -> Result<Tensor> {
        let tokens = b.segments.tokens();
        let qkv = self.qkv.forward(x)?.reshape(&[tokens, 3, self.heads, self.size])?;
        let (q, k, v) = (qkv.select(1, 0)?, qkv.select(1, 1)?, qkv.select(1, 2)?); // [tokens, heads, size]
        let y = attention(&q, &k, &v, &b.attention(1.0 / (self.size as f32).sqrt()))?;
        Ok(self.output.forward(&y.reshape(&[tokens, self.heads * self.size])?)?)
    }
}
