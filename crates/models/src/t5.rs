//! The encoder of T5 (Raffel et al. 2019, arXiv:1910.10683), mT5 and UMT5: pre-norm blocks,
//! relative position biases instead of position embeddings, and unscaled scores. Also Sentence-T5
//! and GTR. `t5_decoder.rs` has the decoder; this file ignores its tensors.

use crate::block::{Layer, Norm, PreNorm, SelfAttention, run_layers, skip_last};
use crate::config::{activation, defaults, parse, refuse};
use crate::decoder;
use crate::head::{no_head, out, root};
use crate::mlp::Mlp;
use crate::{Backbone, Batch, Error, Head, LayerHook, Limits, Result, Task};
use sconce_ops::{Activation, Bias, Linear, RmsNorm, Tensor, Weights};
use serde_json::Value;

defaults! {
    pub(crate) struct Config {
        pub model_type: String = String::new(),
        vocab_size: Option<usize> = None,
        pub d_model: usize = 512,
        pub d_kv: usize = 64,
        d_ff: Option<usize> = None,
        num_layers: Option<usize> = None,
        /// Defaults to the number of encoder layers.
        num_decoder_layers: Option<usize> = None,
        num_heads: Option<usize> = None,
        relative_attention_num_buckets: usize = 32,
        relative_attention_max_distance: usize = 128,
        layer_norm_epsilon: f32 = 1e-6,
        feed_forward_proj: Option<String> = None,
        /// Whether the LM head is tied to the token embeddings.
        pub tie_word_embeddings: Option<bool> = None,
        /// Whether the LM head was tied in training; newer files set `tie_word_embeddings` for
        /// every T5.
        pub scale_decoder_outputs: Option<bool> = None,
        pub decoder_start_token_id: Option<u32> = None,
        eos_token_id: u32 = 1,
    }
}

/// Sizes, with the defaults of the model type: T5's differ from those of mT5 and UMT5.
pub(crate) struct Sizes {
    pub vocabulary: usize,
    inner: usize,
    layers: usize,
    pub decoder_layers: usize,
    pub heads: usize,
    gated: bool,
    activation: Activation,
}

impl Config {
    pub(crate) fn sizes(&self) -> Result<Sizes> {
        let of = |given: Option<usize>, t5, multilingual| {
            given.unwrap_or(if self.model_type == "t5" { t5 } else { multilingual })
        };
        let default = if self.model_type == "t5" { "relu" } else { "gated-gelu" };
        let projection = self.feed_forward_proj.as_deref().unwrap_or(default);
        let (gated, name) = projection.strip_prefix("gated-").map_or((false, projection), |name| (true, name));
        // In T5, "gated-gelu" means the tanh approximation.
        let name = if gated && name == "gelu" { "gelu_new" } else { name };
        let (heads, sizes) = (of(self.num_heads, 8, 6), (self.relative_attention_num_buckets, self.d_kv));
        refuse(heads.checked_mul(sizes.1).is_none_or(|n| n == 0), || {
            format!("{heads} heads of {} are not supported", sizes.1)
        })?;
        refuse(sizes.0 < 4 || self.relative_attention_max_distance <= sizes.0 / 4, || {
            format!(
                "relative_attention_num_buckets {} with relative_attention_max_distance {} is not supported",
                sizes.0, self.relative_attention_max_distance
            )
        })?;
        let layers = of(self.num_layers, 6, 8);
        Ok(Sizes {
            vocabulary: of(self.vocab_size, 32128, 250112),
            inner: of(self.d_ff, 2048, 1024),
            layers,
            decoder_layers: self.num_decoder_layers.unwrap_or(layers),
            heads,
            gated,
            activation: activation("feed_forward_proj", name)?,
        })
    }

    /// The relative position bias of layer `layer` under `block`. All layers share the table of the
    /// first one, except in UMT5, where every layer has its own.
    pub(crate) fn bias(&self, s: &Sizes, block: &Weights, layer: usize, both: bool) -> Result<Bias> {
        let table_layer = if self.model_type == "umt5" { layer } else { 0 };
        let table = block.sub(table_layer).sub("layer.0.SelfAttention.relative_attention_bias");
        let table = table.values("weight", &[self.relative_attention_num_buckets, s.heads])?;
        Ok(Bias::Buckets { table: table.into(), far: self.relative_attention_max_distance, both })
    }

    /// The fused projection of `names` (of q, k and v) of the attention under `w`.
    pub(crate) fn projections(&self, s: &Sizes, w: &Weights, names: &[&str]) -> Result<Linear> {
        let parts: Vec<Weights> = names.iter().map(|name| w.sub(name)).collect();
        Ok(Linear::stacked(&parts, self.d_model, s.heads * self.d_kv, false)?)
    }

    /// The output projection of the attention under `w`.
    pub(crate) fn output(&self, s: &Sizes, w: &Weights) -> Result<Linear> {
        Ok(Linear::load(&w.sub("o"), s.heads * self.d_kv, self.d_model, false)?)
    }

    pub(crate) fn norm(&self, w: &Weights) -> Result<RmsNorm> {
        Ok(RmsNorm::load(w, self.d_model, self.layer_norm_epsilon)?)
    }

    pub(crate) fn mlp(&self, s: &Sizes, w: &Weights) -> Result<Mlp> {
        let down = Linear::load(&w.sub("wo"), s.inner, self.d_model, false)?;
        if s.gated {
            let gate_up = Linear::stacked(&[w.sub("wi_0"), w.sub("wi_1")], self.d_model, s.inner, false)?;
            return Ok(Mlp::gated(gate_up, s.activation, down));
        }
        let up = Linear::load(&w.sub("wi"), self.d_model, s.inner, false)?.with(s.activation);
        Ok(Mlp::Plain { up, down })
    }
}

pub(crate) fn backbone(config: &Value, w: &Weights) -> Result<Box<dyn Backbone>> {
    Ok(Box::new(T5::load(config, w)?))
}

pub(crate) fn head(task: Task, config: &Value, w: &Weights) -> Result<Head> {
    let c: Config = parse(config)?;
    match task {
        Task::Tag => {
            let out = out(&w.sub("classifier"), c.d_model, true)?;
            Ok(Head::new(None, None, out))
        }
        // Over the decoder's hidden states.
        Task::Classify => {
            let h = w.sub("classification_head");
            let dense = Linear::load(&h.sub("dense"), c.d_model, c.d_model, true)?.with(Activation::Tanh);
            let head = Head::new(Some(dense), None, out(&h.sub("out_proj"), c.d_model, true)?);
            Ok(Head { end: Some(c.eos_token_id), ..head })
        }
        Task::Vocabulary => Err(no_head(task, "T5's encoder")),
    }
}

pub(crate) struct T5 {
    /// The token embeddings, which the decoder and the LM head may share.
    pub embed_tokens: Linear,
    layers: Vec<PreNorm>,
    norm: RmsNorm,
    limits: Limits,
}

/// The root of the model's tensors, with or without a task head.
pub(crate) fn model_root(w: &Weights) -> Result<Weights> {
    root(w, "transformer", "encoder.final_layer_norm.weight")
}

impl T5 {
    pub(crate) fn load(config: &Value, w: &Weights) -> Result<T5> {
        let c: Config = parse(config)?;
        let s = c.sizes()?;
        let w = model_root(w)?;
        let encoder = w.sub("encoder");
        let shared = if w.has("shared.weight")? { w.sub("shared") } else { encoder.sub("embed_tokens") };
        let embed_tokens = decoder::embed_tokens(&shared, s.vocabulary, c.d_model)?;
        // A state dict has this table under each of its names.
        encoder.skip("embed_tokens.weight");
        let block = encoder.sub("block");
        let load = |i| load_block(&block.sub(i), &c, &s, c.bias(&s, &block, i, true)?);
        let layers = (0..s.layers).map(load).collect::<Result<Vec<_>>>()?;
        if layers.is_empty() {
            return Err(Error::Config("num_layers is 0".into()));
        }
        Ok(T5 {
            embed_tokens,
            layers,
            norm: c.norm(&encoder.sub("final_layer_norm"))?,
            // Distances beyond the last bucket share it, so the length of a sequence is not
            // limited.
            limits: Limits::new(s.vocabulary, usize::MAX),
        })
    }
}

impl Backbone for T5 {
    fn forward(&self, batch: &Batch, hook: LayerHook<'_>) -> Result<Tensor> {
        let x = self.embed_tokens.embed(&batch.ids, 1.0, None)?;
        let last = self.layers.len();
        let x = run_layers(x, &self.layers, &mut skip_last(last, hook), |_, layer, x| layer.forward(x, batch))?;
        let x = self.norm.forward(&x)?;
        hook(last, &x);
        Ok(x)
    }

    fn hidden_size(&self) -> usize {
        self.embed_tokens.inputs()
    }

    fn limits(&self) -> Limits {
        self.limits
    }
}

fn load_block(w: &Weights, c: &Config, s: &Sizes, bias: Bias) -> Result<PreNorm> {
    let a = w.sub("layer.0.SelfAttention");
    let (qkv, output) = (c.projections(s, &a, &["q", "k", "v"])?, c.output(s, &a)?);
    Ok(PreNorm {
        attention: SelfAttention { scale: 1.0, bias, ..SelfAttention::new(qkv, output, s.heads, c.d_kv) },
        attention_norm: Some(Norm::Rms(c.norm(&w.sub("layer.0.layer_norm"))?)),
        mlp: c.mlp(s, &w.sub("layer.1.DenseReluDense"))?,
        norm: Norm::Rms(c.norm(&w.sub("layer.1.layer_norm"))?),
    })
}
