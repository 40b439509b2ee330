//! Falcon (Almazrouei et al. 2023, arXiv:2311.16867): attention and MLP side by side, keys that all heads share (7B) or groups of
//! them (40B, 180B, and the 11B of the second generation); the RefinedWeb models have ALiBi and one half behind the other.

use crate::block::{Norm, alibi_slopes};
use crate::config::{activation, context, head_size, parse, ten_to_minus, usually, yes};
use crate::decoder::{Block, Decoder, GroupedQueryAttention, Heads, Second, words};
use crate::head::{self, last_token, root};
use crate::mlp::Mlp;
use crate::rope::{Rope, Scaling};
use crate::{Encoder, Head, Limits, LmHead, Result, Task};
use sconce_ops::{Bias, Linear, Rotary, Weights};
use serde::Deserialize;
use serde_json::Value;

#[derive(Deserialize)]
struct Config {
    vocab_size: usize,
    hidden_size: usize,
    num_hidden_layers: usize,
    num_attention_heads: usize,
    num_kv_heads: Option<usize>,
    ffn_hidden_size: Option<usize>,
    #[serde(default = "usually::<2048>")]
    max_position_embeddings: usize,
    #[serde(default = "ten_to_minus::<5>")]
    layer_norm_epsilon: f32,
    activation: Option<String>,
    rope_theta: Option<f64>,
    rope_scaling: Option<Scaling>,
    rope_parameters: Option<Scaling>,
    #[serde(default = "yes")]
    multi_query: bool,
    #[serde(default = "yes")]
    parallel_attn: bool,
    #[serde(default)]
    new_decoder_architecture: bool,
    num_ln_in_parallel_attn: Option<usize>,
    #[serde(default)]
    bias: bool,
    #[serde(default)]
    alibi: bool,
    #[serde(default = "yes")]
    tie_word_embeddings: bool,
}

impl Config {
    fn heads(&self) -> Result<Heads> {
        let count = self.num_attention_heads;
        let shared = match (self.new_decoder_architecture, self.multi_query) {
            (true, _) => self.num_kv_heads.unwrap_or(count),
            (false, true) => 1,
            (false, false) => count,
        };
        Heads::checked(count, shared, head_size(self.hidden_size, count)?)
    }
}

/// The file's row for each row of queries, keys and values below each other. A group there is its queries, its key and its value.
fn grouped(heads: Heads) -> impl Fn(usize) -> usize {
    let Heads { count, shared, size } = heads;
    let queries = count / shared;
    move |row| {
        let (head, element) = (row / size, row % size);
        let (group, within) = match head {
            _ if head < count => (head / queries, head % queries),
            _ if head < count + shared => (head - count, queries),
            _ => (head - count - shared, queries + 1),
        };
        (group * (queries + 2) + within) * size + element
    }
}

const WORDS: &str = "word_embeddings.weight";

pub(crate) fn encoder(config: &Value, w: &Weights) -> Result<Box<dyn Encoder>> {
    let c: Config = parse(config)?;
    let (heads, n) = (c.heads()?, c.hidden_size);
    let w = root(w, "transformer", WORDS)?;
    let positions = context(config, c.max_position_embeddings);
    let scaling = c.rope_parameters.as_ref().or(c.rope_scaling.as_ref());
    let rotary = Rope {
        theta: scaling.and_then(|s| s.rope_theta).or(c.rope_theta).unwrap_or(10_000.0),
        dims: heads.size,
        positions,
        trained: c.max_position_embeddings,
        original: None,
        scaling,
    };
    let rotary = if c.alibi { None } else { Some(rotary.rotary(&w)?) };
    let load = |i| block(&w.sub("h").sub(i), &c, heads, &rotary, i);
    Ok(Box::new(Decoder {
        words: words(&w.sub("word_embeddings"), c.vocab_size, n)?,
        scale: 1.0,
        positions: None,
        layers: (0..c.num_hidden_layers).map(load).collect::<Result<_>>()?,
        norm: Norm::layer(&w.sub("ln_f"), n, c.layer_norm_epsilon, true)?,
        heads,
        limits: Limits::new(c.vocab_size, positions),
    }))
}

pub(crate) fn head(task: Task, config: &Value, w: &Weights) -> Result<Head> {
    last_token(task, config, w, (parse::<Config>(config)?.hidden_size, "Falcon"))
}

pub(crate) fn next(config: &Value, w: &Weights) -> Result<LmHead> {
    let c: Config = parse(config)?;
    let words = root(w, "transformer", WORDS)?.sub("word_embeddings");
    head::next(w, &words, [c.vocab_size, c.hidden_size], c.tie_word_embeddings)
}

fn block(w: &Weights, c: &Config, heads: Heads, rotary: &Option<Rotary>, layer: usize) -> Result<Block> {
    let (a, m, n) = (w.sub("self_attention"), w.sub("mlp"), c.hidden_size);
    let norm = |name| Norm::layer(&w.sub(name), n, c.layer_norm_epsilon, true);
    let (parallel, two) = match c.new_decoder_architecture {
        true => (true, c.num_ln_in_parallel_attn.unwrap_or(2) == 2),
        false => (c.parallel_attn, false),
    };
    let (attention_norm, second) = match (parallel, two) {
        (true, true) => (norm("ln_attn")?, Second::Beside(norm("ln_mlp")?)),
        (true, false) => (norm("input_layernorm")?, Second::Shared),
        (false, _) => (norm("input_layernorm")?, Second::Behind(norm("post_attention_layernorm")?)),
    };
    let rows = heads.rows().iter().sum();
    let qkv = Linear::reordered(&a.sub("query_key_value"), n, rows, &grouped(heads), c.bias)?;
    let output = Linear::load(&a.sub("dense"), heads.rows()[0], n, c.bias)?;
    let inner = c.ffn_hidden_size.unwrap_or(n.saturating_mul(4));
    let act = activation(c.activation.as_deref().unwrap_or("gelu"))?;
    // They are added before the scale.
    let slopes = || alibi_slopes(heads.count).map(|slope| slope * heads.scale()).collect();
    Ok(Block {
        attention_norm,
        attention: GroupedQueryAttention {
            rotary: rotary.clone(),
            bias: if c.alibi { Bias::Alibi(slopes()) } else { Bias::None },
            ..GroupedQueryAttention::new(qkv, output, heads, layer)
        },
        second,
        mlp: Mlp::Plain {
            up: Linear::load(&m.sub("dense_h_to_4h"), n, inner, c.bias)?.with(act),
            down: Linear::load(&m.sub("dense_4h_to_h"), inner, n, c.bias)?,
        },
    })
}
