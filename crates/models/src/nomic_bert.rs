//! NomicBERT (Nussbaum et al. 2024, arXiv:2402.01613): post-norm blocks with RoPE and gated MLPs.
//! The second version (arXiv:2502.07972) has plain MLPs, of which every second is a mixture of
//! experts. Written against the hub's files.

use crate::block::{Embeddings, PostNorm, SelfAttention, Stack};
use crate::config::{RopeConfig, defaults, head_size, parse, refuse, table_rows};
use crate::dynamic_ntk::{DynamicNtk, Scaled};
use crate::head::{out, root, vocabulary};
use crate::mlp::Mlp;
use crate::{Backbone, Error, Head, Limits, Result, Task};
use sconce_ops::{
    Activation, DType, ExpertParts, ExpertShape, Experts, Gate, LayerNorm, Linear, Rotary, Table, Weights,
};
use serde::Deserialize;
use serde_json::Value;

defaults! {
    /// The hub's fields with the hub's defaults. transformers 5 has other names for them; see
    /// [`read`].
    struct Config {
        vocab_size: usize = 50257,
        pad_vocab_size_multiple: usize = 1,
        n_embd: usize = 768,
        n_layer: usize = 12,
        n_head: usize = 12,
        n_inner: Option<usize> = None,
        /// Whether `n_inner` is exact: transformers 5 does not round it up.
        #[serde(skip)]
        exact_inner: bool = false,
        n_positions: usize = 1024,
        max_trained_positions: usize = 2048,
        type_vocab_size: usize = 2,
        layer_norm_epsilon: f32 = 1e-5,
        activation_function: String = "gelu_new".into(),
        qkv_proj_bias: bool = true,
        mlp_fc1_bias: bool = true,
        mlp_fc2_bias: bool = true,
        rotary_emb_base: f64 = 10_000.0,
        rotary_emb_fraction: f64 = 0.0,
        rotary_emb_interleaved: bool = false,
        rotary_head_dim: bool = false,
        rotary_emb_scale_base: Option<f64> = None,
        rotary_scaling_factor: Option<f64> = None,
        prenorm: bool = false,
        parallel_block: bool = false,
        causal: bool = false,
        use_rms_norm: Option<bool> = None,
        norm_mlp: bool = false,
        moe_every_n_layers: usize = 0,
        moe_top_k: usize = 1,
        num_experts: usize = 0,
        num_shared_experts: usize = 0,
        expert_choice_router: bool = false,
        moe_normalize_expert_weights: bool = false,
        ffn_div: usize = 1,
    }
}

/// The configuration as transformers 5 writes it, for the gated model. Tensors have the hub's
/// names.
#[derive(Deserialize)]
struct TransformersConfig {
    vocab_size: Option<usize>,
    hidden_size: usize,
    num_hidden_layers: Option<usize>,
    num_attention_heads: Option<usize>,
    intermediate_size: Option<usize>,
    hidden_act: Option<String>,
    max_position_embeddings: Option<usize>,
    type_vocab_size: Option<usize>,
    layer_norm_eps: Option<f32>,
    rope_parameters: Option<RopeConfig>,
    /// The older spelling.
    rope_scaling: Option<RopeConfig>,
    rope_theta: Option<f64>,
    head_dim: Option<usize>,
}

fn read(config: &Value) -> Result<Config> {
    if config.get("n_embd").is_some() || config.get("hidden_size").is_none() {
        return parse(config);
    }
    let n: TransformersConfig = parse(config)?;
    let rope = n.rope_parameters.or(n.rope_scaling).unwrap_or_default();
    let trained = n.max_position_embeddings.unwrap_or(2048);
    let factor = dynamic_factor(&rope)?;
    let heads = n.num_attention_heads.unwrap_or(12);
    refuse(n.head_dim.is_some_and(|size| size.checked_mul(heads) != Some(n.hidden_size)), || {
        format!("head_dim other than hidden_size {} by {heads} heads is not supported", n.hidden_size)
    })?;
    Ok(Config {
        vocab_size: n.vocab_size.unwrap_or(30528),
        n_embd: n.hidden_size,
        n_layer: n.num_hidden_layers.unwrap_or(12),
        n_head: heads,
        n_inner: Some(n.intermediate_size.unwrap_or(3072)),
        exact_inner: true,
        // transformers lets a scaled model read texts of any length. So many times the trained
        // length is what the factor is for.
        n_positions: factor.map_or(trained, |factor| (trained as f64 * factor.max(1.0)) as usize),
        max_trained_positions: trained,
        rotary_scaling_factor: factor,
        type_vocab_size: n.type_vocab_size.unwrap_or(2),
        layer_norm_epsilon: n.layer_norm_eps.unwrap_or(1e-12),
        activation_function: match n.hidden_act.as_deref() {
            None | Some("silu") => "swiglu".into(),
            Some("gelu") => "geglu".into(),
            Some(other) => return Err(Error::Config(format!("hidden_act `{other}` is not supported in NomicBERT"))),
        },
        qkv_proj_bias: false,
        mlp_fc1_bias: false,
        mlp_fc2_bias: false,
        rotary_emb_base: rope.rope_theta.or(n.rope_theta).unwrap_or(1000.0),
        rotary_emb_fraction: 1.0,
        ..Config::default()
    })
}

/// The factor of dynamic NTK scaling in transformers' RoPE parameters, which may have no other
/// scaling.
fn dynamic_factor(rope: &RopeConfig) -> Result<Option<f64>> {
    if rope.scaling() != Some("dynamic") {
        rope.check_unscaled()?;
        return Ok(None);
    }
    refuse(rope.partial_rotary_factor.is_some_and(|f| f != 1.0), || {
        "partial_rotary_factor other than 1 is not supported".into()
    })?;
    refuse(rope.factor.is_none(), || "rope_parameters of the type dynamic have no factor".into())?;
    Ok(rope.factor)
}

impl Config {
    fn check(&self) -> Result<()> {
        let unsupported = [
            ("prenorm", self.prenorm),
            ("parallel_block", self.parallel_block),
            ("causal", self.causal),
            ("use_rms_norm", self.use_rms_norm == Some(true)),
            ("norm_mlp", self.norm_mlp),
            ("rotary_emb_interleaved", self.rotary_emb_interleaved),
            ("rotary_head_dim", self.rotary_head_dim),
            ("rotary_emb_scale_base (xPos)", self.rotary_emb_scale_base.is_some()),
            ("num_shared_experts", self.num_shared_experts > 0),
            ("expert_choice_router", self.expert_choice_router),
            ("moe_normalize_expert_weights", self.moe_normalize_expert_weights),
            ("ffn_div", self.ffn_div != 1),
        ];
        let found = unsupported.iter().find(|(_, set)| *set).map(|(name, _)| *name);
        refuse(found.is_some(), || format!("{} is not supported in NomicBERT", found.unwrap_or_default()))
    }

    /// The number of elements of a head that RoPE rotates.
    fn rotary_dims(&self) -> Result<usize> {
        let dims = head_size(self.n_embd, self.n_head)? as f64 * self.rotary_emb_fraction;
        refuse(!(dims >= 2.0 && dims % 2.0 == 0.0 && self.rotary_emb_fraction <= 1.0), || {
            format!(
                "rotary_emb_fraction {} is not supported: RoPE would rotate {dims} elements of a head",
                self.rotary_emb_fraction
            )
        })?;
        Ok(dims as usize)
    }

    /// The activation of a dense MLP, and whether the MLP is gated.
    fn activation(&self) -> Result<(Activation, bool)> {
        Ok(match self.activation_function.as_str() {
            "swiglu" => (Activation::Silu, true),
            "geglu" => (Activation::Gelu, true),
            "glu" => (Activation::Sigmoid, true),
            "gelu" => (Activation::Gelu, false),
            other => return Err(Error::Config(format!("activation_function `{other}` is not supported in NomicBERT"))),
        })
    }

    /// The vocabulary size, padded as in the hub's code.
    fn vocabulary(&self) -> usize {
        self.vocab_size.checked_next_multiple_of(self.pad_vocab_size_multiple).unwrap_or(self.vocab_size)
    }

    /// The intermediate size of an MLP.
    fn inner(&self, gated: bool) -> Result<usize> {
        let n = self.n_inner.or(self.n_embd.checked_mul(4));
        let n = if gated && !self.exact_inner { n.and_then(|n| n.checked_next_multiple_of(256)) } else { n };
        n.ok_or_else(|| Error::Config(format!("n_inner {:?} is not supported", self.n_inner)))
    }

    fn is_mixture(&self, layer: usize) -> bool {
        self.moe_every_n_layers > 0 && layer % self.moe_every_n_layers == 1
    }
}

pub(crate) fn backbone(config: &Value, w: &Weights) -> Result<Box<dyn Backbone>> {
    let c = read(config)?;
    c.check()?;
    let dims = c.rotary_dims()?;
    let w = encoder_root(w)?;
    // Without a factor, the hub's code extends the table beyond the trained length.
    let scaling = match c.rotary_scaling_factor.filter(|factor| *factor != 0.0) {
        Some(factor) => {
            let factor = ("rotary_scaling_factor", factor);
            Some(DynamicNtk::new(factor, c.rotary_emb_base, dims, c.max_trained_positions)?)
        }
        None => None,
    };
    let positions = c.n_positions;
    let limits = Limits {
        types: Some(c.type_vocab_size).filter(|rows| *rows > 0),
        ..Limits::new(c.vocabulary(), table_rows(positions, dims)?)
    };
    let tables = w.sub("embeddings");
    let types = |rows| tables.sub("token_type_embeddings").tensor("weight", &[rows, c.n_embd]);
    let own_rows = if scaling.is_some() { positions.min(c.max_trained_positions) } else { positions };
    let rotary = Rotary::new(&w, &Rotary::frequencies(c.rotary_emb_base, dims), own_rows)?;
    let load = |i| block(&w.sub("encoder.layers").sub(i), &c, c.is_mixture(i), &rotary);
    let embeddings = Embeddings {
        words: Table::load(&tables.sub("word_embeddings"), "weight", [limits.vocabulary, c.n_embd])?,
        positions: None,
        types: limits.types.map(types).transpose()?,
        norm: LayerNorm::load(&w.sub("emb_ln"), c.n_embd, c.layer_norm_epsilon, true)?,
    };
    let layers = (0..c.n_layer).map(load).collect::<Result<_>>()?;
    let encoder = Stack::new(embeddings, layers, c.n_embd, limits);
    Ok(match scaling {
        Some(scaling) => Box::new(Scaled { encoder, scaling }),
        None => Box::new(encoder),
    })
}

pub(crate) fn head(task: Task, config: &Value, w: &Weights) -> Result<Head> {
    let c = read(config)?;
    let (hidden, bert) = (c.n_embd, encoder_root(w)?);
    let classifier = || out(&w.sub("classifier"), hidden, true);
    Ok(match task {
        Task::Classify => {
            let pooler = Linear::load(&bert.sub("pooler.dense"), hidden, hidden, true)?.with(Activation::Tanh);
            Head::new(Some(pooler), None, classifier()?)
        }
        Task::Tag => Head::new(None, None, classifier()?),
        Task::Vocabulary => {
            let p = w.sub("cls.predictions");
            let (t, decoder, words) = (p.sub("transform"), p.sub("decoder"), bert.sub("embeddings.word_embeddings"));
            let silu = c.activation_function == "swiglu";
            // The hub's transform has a bias if its MLPs do; that of transformers always has one.
            let dense = Linear::load(&t.sub("dense"), hidden, hidden, c.mlp_fc1_bias || t.has("dense.bias")?)?;
            let dense = dense.with(if silu { Activation::Silu } else { Activation::Gelu });
            let norm = LayerNorm::load(&t.sub("layer_norm"), hidden, c.layer_norm_epsilon, true)?;
            let out = vocabulary(&decoder, &words, [c.vocabulary(), hidden], &[(&decoder, "bias"), (&p, "bias")])?;
            Head::new(Some(dense), Some(norm), out)
        }
    })
}

/// The root of the encoder's tensors.
fn encoder_root(w: &Weights) -> Result<Weights> {
    root(&root(w, "bert", NORM)?, "nomic_bert", NORM)
}

const NORM: &str = "emb_ln.weight";

fn block(w: &Weights, c: &Config, mixture: bool, rotary: &Rotary) -> Result<PostNorm> {
    let (a, m, n) = (w.sub("attn"), w.sub("mlp"), c.n_embd);
    let norm = |name| LayerNorm::load(&w.sub(name), n, c.layer_norm_epsilon, true);
    let qkv = Linear::load(&a.sub("Wqkv"), n, n.saturating_mul(3), c.qkv_proj_bias)?;
    let output = Linear::load(&a.sub("out_proj"), n, n, c.qkv_proj_bias)?;
    Ok(PostNorm {
        attention: SelfAttention {
            rotary: Some(rotary.clone()),
            ..SelfAttention::new(qkv, output, c.n_head, head_size(n, c.n_head)?)
        },
        attention_norm: norm("norm1")?,
        mlp: if mixture { experts(&m, c)? } else { mlp(&m, c)? },
        norm: norm("norm2")?,
    })
}

fn mlp(w: &Weights, c: &Config) -> Result<Mlp> {
    let (activation, gated) = c.activation()?;
    let (n, inner) = (c.n_embd, c.inner(gated)?);
    let down = Linear::load(&w.sub("fc2"), inner, n, c.mlp_fc2_bias)?;
    Ok(if gated {
        let gate_up = Linear::stacked(&[w.sub("fc11"), w.sub("fc12")], n, inner, c.mlp_fc1_bias)?;
        Mlp::Gated { gate_up, activation, gate: Gate::Second, down }
    } else {
        Mlp::Plain { up: Linear::load(&w.sub("fc1"), n, inner, c.mlp_fc1_bias)?.with(activation), down }
    })
}

fn experts(w: &Weights, c: &Config) -> Result<Mlp> {
    let (activation, gated) = c.activation()?;
    refuse(gated, || format!("experts with the activation_function `{}` are not supported", c.activation_function))?;
    let (n, rows, count) = (c.n_embd, c.inner(false)?, c.num_experts);
    let router = w.sub("router.layer").in_dtype(DType::F32).tensor("weight", &[count, n])?;
    refuse(count.checked_mul(rows).is_none(), || format!("{count} experts of {rows} are too many"))?;
    let e = w.sub("experts");
    // The hub's files stack the experts; GGUF files are split into them.
    let is_stacked = e.has("mlp.w1")?;
    let part = |stacked: &str, name: &str, (k, rows): (usize, usize), transposed| {
        let shape = ExpertShape { experts: count, rows: c.inner(false)?, columns: n, transposed };
        let one = |i: usize| match is_stacked {
            true => Experts::part(&e.sub("mlp"), stacked, i, shape),
            false => Linear::load(&e.sub(i).sub(name), k, rows, false),
        };
        Ok::<_, Error>((0..count).map(one).collect::<Result<Vec<_>, _>>()?)
    };
    let (up, down) = (part("w1", "up", (n, rows), false)?, part("w2", "down", (rows, n), true)?);
    let bias = if e.has("bias")? { Some(e.tensor("bias", &[n])?) } else { None };
    let parts = ExpertParts { up: &up, down: &down, bias };
    Ok(Mlp::Experts(Box::new(Experts::new(router, parts, activation, c.moe_top_k)?)))
}
