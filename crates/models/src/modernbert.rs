//! ModernBERT (Warner et al. 2024, arXiv:2412.13663): pre-norm blocks with gated MLPs and rotary positions. Every third layer sees
//! the whole sequence, the others a window, each kind with frequencies of its own.

use crate::block::{Scores, SelfAttention};
use crate::config::{Rope, activation, defaults, head_size, parse, refuse, table_rows};
use crate::head::{out, root, vocabulary};
use crate::{Batch, Encoder, Error, Head, Limits, Positions, Result, Task, Watch};
use sconce_ops::{Activation, Gate, LayerNorm, Linear, Pooling, Rotary, Sees, Tensor, Weights, at, embed_normed, glu};
use serde::Deserialize;
use serde_json::Value;

defaults! {
    struct Config {
        vocab_size: usize = 50368,
        hidden_size: usize = 768,
        intermediate_size: usize = 1152,
        num_hidden_layers: usize = 22,
        num_attention_heads: usize = 12,
        hidden_activation: String = "gelu".into(),
        max_position_embeddings: usize = 8192,
        norm_eps: f32 = 1e-5,
        norm_bias: bool = false,
        attention_bias: bool = false,
        mlp_bias: bool = false,
        decoder_bias: bool = true,
        local_attention: usize = 128,
        classifier_pooling: String = "cls".into(),
        classifier_bias: bool = false,
        classifier_activation: String = "gelu".into(),
        /// The newer spelling of which layers see everything, and of the frequencies.
        layer_types: Option<Vec<String>> = None,
        rope_parameters: Option<Ropes> = None,
        /// The older one.
        global_attn_every_n_layers: usize = 3,
        global_rope_theta: Option<f64> = Some(160_000.0),
        local_rope_theta: Option<f64> = Some(10_000.0),
        rope_scaling: Option<Rope> = None,
    }
}

#[derive(Clone, Default, Deserialize)]
#[serde(deny_unknown_fields)]
struct Ropes {
    full_attention: Option<Rope>,
    sliding_attention: Option<Rope>,
}

impl Config {
    /// Bases of the frequencies: of layers that see everything, of those with a window.
    fn bases(&self) -> Result<[f64; 2]> {
        let Ropes { full_attention, sliding_attention } = self.rope_parameters.clone().unwrap_or_default();
        for rope in [&full_attention, &sliding_attention, &self.rope_scaling].into_iter().flatten() {
            rope.plain()?;
        }
        let given = |rope: Option<Rope>| rope.and_then(|rope| rope.rope_theta);
        let global = given(full_attention).or(self.global_rope_theta).unwrap_or(160_000.0);
        // Without one of its own, a window turns as the rest does.
        Ok([global, given(sliding_attention).or(self.local_rope_theta).unwrap_or(global)])
    }

    /// Whether layer `i` has a window.
    fn local(&self, i: usize) -> Result<bool> {
        let Some(types) = &self.layer_types else {
            let every = self.global_attn_every_n_layers;
            return Ok(
                i.checked_rem(every).ok_or_else(|| Error::Config("global_attn_every_n_layers is 0".into()))? != 0
            );
        };
        match types.get(i).map(String::as_str) {
            Some("sliding_attention") => Ok(true),
            Some("full_attention") => Ok(false),
            Some(other) => Err(Error::Config(format!("layer type `{other}` is not supported"))),
            None => Err(Error::Config(format!("{} layer_types for {} layers", types.len(), self.num_hidden_layers))),
        }
    }
}

pub(crate) fn encoder(config: &Value, w: &Weights) -> Result<Box<dyn Encoder>> {
    Ok(Box::new(ModernBert::load(config, w)?))
}

pub(crate) fn head(task: Task, config: &Value, w: &Weights) -> Result<Head> {
    let c: Config = parse(config)?;
    let (h, hidden) = (w.sub("head"), c.hidden_size);
    let out = match task {
        Task::Classify | Task::Tag => out(&w.sub("classifier"), hidden, true)?,
        Task::Vocabulary => {
            let (decoder, words) = (w.sub("decoder"), root(w, "model", WORDS)?.sub("embeddings.tok_embeddings"));
            let biases: &[_] = if c.decoder_bias { &[(&decoder, "bias")] } else { &[] };
            vocabulary(&decoder, &words, [c.vocab_size, hidden], biases)?
        }
    };
    let pooling = match c.classifier_pooling.as_str() {
        "cls" => Pooling::Cls,
        "mean" => Pooling::Mean,
        other => return Err(Error::Config(format!("classifier_pooling `{other}` is not supported"))),
    };
    let dense = Linear::load(&h.sub("dense"), hidden, hidden, c.classifier_bias)?;
    Ok(Head {
        pooling,
        padding: None,
        dense: Some(dense.with(activation(&c.classifier_activation)?)),
        norm: Some(LayerNorm::load(&h.sub("norm"), hidden, c.norm_eps, c.norm_bias)?),
        out,
    })
}

const WORDS: &str = "embeddings.tok_embeddings.weight";

struct ModernBert {
    words: Tensor,
    norm: LayerNorm,
    layers: Vec<Layer>,
    final_norm: LayerNorm,
    /// Of layers that see everything, of those with a window.
    rotary: [Rotary; 2],
    hidden_size: usize,
    limits: Limits,
}

impl ModernBert {
    fn load(config: &Value, w: &Weights) -> Result<ModernBert> {
        let c: Config = parse(config)?;
        let size = head_size(c.hidden_size, c.num_attention_heads)?;
        refuse(size % 2 != 0, || format!("rotary positions need heads of an even size, not {size}"))?;
        let w = root(w, "model", WORDS)?;
        let norm = |w: &Weights| LayerNorm::load(w, c.hidden_size, c.norm_eps, c.norm_bias);
        let words = w.sub("embeddings.tok_embeddings").tensor("weight", &[c.vocab_size, c.hidden_size])?;
        let positions = table_rows(c.max_position_embeddings, size)?;
        let [global, local] = c.bases()?.map(|base| Rotary::new(&w, &Rotary::frequencies(base, size), positions));
        Ok(ModernBert {
            words,
            norm: norm(&w.sub("embeddings.norm"))?,
            layers: (0..c.num_hidden_layers)
                .map(|i| Layer::load(&w.sub("layers").sub(i), &c, i))
                .collect::<Result<_>>()?,
            final_norm: norm(&w.sub("final_norm"))?,
            rotary: [global?, local?],
            hidden_size: c.hidden_size,
            limits: Limits { vocabulary: c.vocab_size, positions, types: None, counting: Positions::FromZero },
        })
    }
}

impl Encoder for ModernBert {
    fn forward(&self, batch: &Batch, watch: Watch<'_>) -> Result<Tensor> {
        let mut x = embed_normed(&[(&self.words, &batch.ids)], &self.norm)?;
        for (i, layer) in self.layers.iter().enumerate() {
            watch(i, &x);
            let _at = at("layer", i);
            x = layer.forward(&x, batch, &self.rotary[usize::from(layer.sees != Sees::All)])?;
        }
        let x = self.final_norm.forward(&x)?;
        watch(self.layers.len(), &x);
        Ok(x)
    }

    fn hidden_size(&self) -> usize {
        self.hidden_size
    }

    fn limits(&self) -> Limits {
        self.limits
    }
}

/// Pre-norm block: h = x + Attn(norm(x)); y = h + Mlp(norm(h)).
struct Layer {
    /// The first layer reads embeddings that are normalised already.
    attention_norm: Option<LayerNorm>,
    attention: SelfAttention,
    sees: Sees,
    norm: LayerNorm,
    up: Linear,
    activation: Activation,
    down: Linear,
}

impl Layer {
    fn load(w: &Weights, c: &Config, i: usize) -> Result<Layer> {
        let norm = |name| LayerNorm::load(&w.sub(name), c.hidden_size, c.norm_eps, c.norm_bias);
        let linear = |name, k, n, bias| Linear::load(&w.sub(name), k, n, bias);
        let (n, inner) = (c.hidden_size, c.intermediate_size);
        Ok(Layer {
            attention_norm: (i > 0).then(|| norm("attn_norm")).transpose()?,
            attention: SelfAttention {
                qkv: linear("attn.Wqkv", n, n.saturating_mul(3), c.attention_bias)?,
                output: linear("attn.Wo", n, n, c.attention_bias)?,
                heads: c.num_attention_heads,
                size: head_size(n, c.num_attention_heads)?,
            },
            sees: if c.local(i)? { Sees::Window(c.local_attention / 2) } else { Sees::All },
            norm: norm("mlp_norm")?,
            up: linear("mlp.Wi", n, inner.saturating_mul(2), c.mlp_bias)?,
            activation: activation(&c.hidden_activation)?,
            down: linear("mlp.Wo", inner, n, c.mlp_bias)?,
        })
    }

    fn forward(&self, x: &Tensor, b: &Batch, rotary: &Rotary) -> Result<Tensor> {
        let scores = Scores { sees: self.sees, rotary: Some(rotary), ..Scores::scaled(self.attention.size) };
        let normed = self.attention_norm.as_ref().map(|norm| norm.forward(x)).transpose()?;
        let h = self.attention.forward_residual(normed.as_ref().unwrap_or(x), b, &scores, x)?;
        let up = glu(&self.up.forward(&self.norm.forward(&h)?)?, self.activation, Gate::First)?;
        Ok(self.down.forward_residual(&up, &h)?)
    }
}
