//! Llama (Touvron et al. 2023, arXiv:2302.13971) and the models with its block: SmolLM, TinyLlama,
//! Mistral (arXiv:2310.06825), Mixtral (arXiv:2401.04088), Qwen 1.5 to 3 and their MoE variants
//! (arXiv:2407.10671, arXiv:2505.09388), Phi-3 to Phi-4 (arXiv:2404.14219). They differ in biases,
//! sliding windows, QK-norm, dense MLP or mixture of experts with or without a shared expert, and
//! in whether projections are fused. Embedding models with this block have attention in both
//! directions: gte-Qwen2, llama-nemotron-embed, pplx-embed (Qwen3) and EuroBERT (`eurobert.rs`).

use crate::block::Norm;
use crate::config::{activation, check_layer_types, context, head_size, is_bidirectional, parse, refuse};
use crate::decoder::{Block, Decoder, GroupedQueryAttention, Heads, Layout, embed_tokens};
use crate::head::{self, last_token, root};
use crate::mlp::{Mlp, SharedExpert};
use crate::rope::{Rope, Scaling, rotary_dims};
use crate::{Backbone, Error, Head, Limits, LmHead, Result, Task};
use sconce_ops::{Activation, ExpertParts, Experts, Linear, Mask, Pooling, Rotary, Weights};
use serde::Deserialize;
use serde_json::Value;

#[derive(Deserialize)]
struct Config {
    model_type: String,
    vocab_size: usize,
    hidden_size: usize,
    intermediate_size: usize,
    num_hidden_layers: usize,
    num_attention_heads: usize,
    num_key_value_heads: Option<usize>,
    head_dim: Option<usize>,
    #[serde(default = "silu")]
    hidden_act: String,
    max_position_embeddings: Option<usize>,
    original_max_position_embeddings: Option<f64>,
    rms_norm_eps: Option<f32>,
    rope_theta: Option<f64>,
    rope_scaling: Option<Scaling>,
    rope_parameters: Option<Scaling>,
    partial_rotary_factor: Option<f64>,
    tie_word_embeddings: Option<bool>,
    attention_bias: Option<bool>,
    qkv_bias: Option<bool>,
    #[serde(default)]
    mlp_bias: bool,
    sliding_window: Option<usize>,
    use_sliding_window: Option<bool>,
    max_window_layers: Option<usize>,
    layer_types: Option<Vec<String>>,
    num_local_experts: Option<usize>,
    num_experts: Option<usize>,
    num_experts_per_tok: Option<usize>,
    moe_intermediate_size: Option<usize>,
    shared_expert_intermediate_size: Option<usize>,
    norm_topk_prob: Option<bool>,
    decoder_sparse_step: Option<usize>,
    #[serde(default)]
    mlp_only_layers: Vec<usize>,
    is_causal: Option<bool>,
    /// How llama-nemotron-rerank pools a sequence, and what it divides scores by.
    pooling: Option<Value>,
    temperature: Option<Value>,
    /// The dimensions of voyage-4-nano's projection.
    num_labels: Option<Value>,
    /// Whether attention is in both directions. See [`read`].
    #[serde(skip)]
    bidirectional: bool,
}

/// The model types whose attention is always in both directions.
const BIDIRECTIONAL: &[&str] = &["llama_bidirec", PPLX, "eurobert"];
/// pplx-embed: Qwen3 under a name of its own.
const PPLX: &str = "bidirectional_pplx_qwen3";

fn read(config: &Value) -> Result<Config> {
    let mut c: Config = parse(config)?;
    c.bidirectional = is_bidirectional(config) || BIDIRECTIONAL.contains(&&*c.model_type);
    if c.is(PPLX) {
        c.model_type = "qwen3".into();
    }
    Ok(c)
}

fn silu() -> String {
    "silu".into()
}

impl Config {
    fn is(&self, model_type: &str) -> bool {
        self.model_type == model_type
    }

    fn eps(&self) -> f32 {
        self.rms_norm_eps.unwrap_or(if self.is("phi3") || self.is("eurobert") { 1e-5 } else { 1e-6 })
    }

    /// The longest sequence that the model was trained for.
    fn trained(&self) -> usize {
        let default = match &*self.model_type {
            "phi3" => 4096,
            "eurobert" => 8192,
            _ => 2048,
        };
        self.max_position_embeddings.unwrap_or(default)
    }

    fn heads(&self) -> Result<Heads> {
        let (count, kv_heads) = (self.num_attention_heads, self.num_key_value_heads);
        // The default of Mistral and Mixtral is 8.
        let default = if self.is("mistral") || self.is("mixtral") { 8 } else { count };
        let size = match self.head_dim {
            Some(size) => size,
            None => head_size(self.hidden_size, count)?,
        };
        Heads::checked(count, kv_heads.unwrap_or(default), size)
    }

    /// Whether the QKV projection has a bias, and whether the output projection has one.
    fn biases(&self) -> (bool, bool) {
        match &*self.model_type {
            "qwen2" => (true, false),
            "qwen2_moe" => (self.qkv_bias.unwrap_or(true), false),
            _ => [self.attention_bias.unwrap_or(false); 2].into(),
        }
    }

    /// Fails for kinds of attention that are not supported, and where versions of transformers
    /// disagree on which layers have the sliding window.
    fn check_window(&self) -> Result<()> {
        if let Some(types) = &self.layer_types {
            check_layer_types(types, self.num_hidden_layers)?;
        }
        let windowed = self.use_sliding_window.unwrap_or(false) && self.layer_types.is_none();
        refuse(windowed && self.is("qwen2_moe"), || {
            "use_sliding_window of qwen2_moe needs layer_types, which name the layers with the window".into()
        })
    }

    /// The sliding window of a layer, if it has one.
    fn window(&self, layer: usize) -> Option<usize> {
        let window = self.sliding_window?;
        if let Some(types) = &self.layer_types {
            return types.get(layer).filter(|kind| *kind == "sliding_attention").map(|_| window);
        }
        let windowed = match &*self.model_type {
            "mistral" | "mixtral" | "phi3" => true,
            // 28 is the default of transformers.
            "qwen2" | "qwen3" | "qwen3_moe" => {
                self.use_sliding_window.unwrap_or(false) && layer >= self.max_window_layers.unwrap_or(28)
            }
            _ => false,
        };
        windowed.then_some(window)
    }

    fn mask(&self, layer: usize) -> Result<Mask> {
        Ok(match (self.window(layer), self.bidirectional) {
            (None, false) => Mask::Causal,
            (None, true) => Mask::All,
            (Some(window), false) => Mask::CausalWindow(window),
            // As in transformers: the whole window on each side.
            (Some(window), true) if self.is_causal == Some(false) => Mask::Window(window),
            (Some(_), true) => {
                let what = "a sliding window in both directions is supported with `is_causal: false` only";
                return Err(Error::Config(what.into()));
            }
        })
    }

    /// The number of experts of a layer; `None` for a dense MLP.
    fn experts(&self, layer: usize) -> Option<usize> {
        match &*self.model_type {
            "mixtral" => Some(self.num_local_experts.unwrap_or(8)),
            "qwen2_moe" | "qwen3_moe" => {
                let step = self.decoder_sparse_step.unwrap_or(1).max(1);
                let experts = self.num_experts.unwrap_or(if self.is("qwen2_moe") { 60 } else { 128 });
                let sparse = experts > 0 && (layer + 1).is_multiple_of(step) && !self.mlp_only_layers.contains(&layer);
                sparse.then_some(experts)
            }
            _ => None,
        }
    }

    fn rotary(&self, w: &Weights, size: usize, positions: usize) -> Result<Rotary> {
        // `rope_parameters`, the newer spelling, has all the fields.
        let scaling = self.rope_parameters.as_ref().or(self.rope_scaling.as_ref());
        let part = scaling.and_then(|s| s.partial_rotary_factor).or(self.partial_rotary_factor).unwrap_or(1.0);
        let is_phi = self.is("phi3");
        refuse(part != 1.0 && !is_phi, || "partial_rotary_factor other than 1 is supported for phi3 only".into())?;
        let default = match &*self.model_type {
            "mixtral" => 1e6,
            "eurobert" => 250_000.0,
            _ => 10_000.0,
        };
        let theta = scaling.and_then(|s| s.rope_theta).or(self.rope_theta).unwrap_or(default);
        let original = self.original_max_position_embeddings.filter(|_| is_phi);
        Rope { theta, dims: rotary_dims(size, part)?, positions, trained: self.trained(), original, scaling }.rotary(w)
    }
}

pub(crate) fn backbone(config: &Value, w: &Weights) -> Result<Box<dyn Backbone>> {
    let c = read(config)?;
    c.check_window()?;
    let heads = c.heads()?;
    let projection = projection(&c, &w.sub("linear"))?;
    let w = root(w, "model", EMBED_TOKENS)?;
    let positions = context(config, c.trained());
    let rotary = c.rotary(&w, heads.size, positions)?;
    let load = |i| block(&w.sub("layers").sub(i), &c, heads, &rotary, i);
    Ok(Box::new(Decoder {
        embed_tokens: embed_tokens(&w.sub("embed_tokens"), c.vocab_size, c.hidden_size)?,
        scale: 1.0,
        positions: None,
        layers: (0..c.num_hidden_layers).map(load).collect::<Result<_>>()?,
        norm: Norm::rms(&w.sub("norm"), c.hidden_size, c.eps())?,
        heads,
        limits: Limits::new(c.vocab_size, positions),
        projection,
        causal: !c.bidirectional,
    }))
}

pub(crate) const EMBED_TOKENS: &str = "embed_tokens.weight";

pub(crate) fn head(task: Task, config: &Value, w: &Weights) -> Result<Head> {
    let c = read(config)?;
    let head = last_token(task, config, w, (c.hidden_size, &c.model_type))?;
    if !c.is("llama_bidirec") {
        return Ok(head);
    }
    refuse(c.temperature.is_some_and(|t| t.as_f64() != Some(1.0)), || {
        "a temperature other than 1 is not supported".into()
    })?;
    let pooling = match c.pooling.as_ref().and_then(Value::as_str).unwrap_or("avg") {
        "avg" => Pooling::Mean,
        "cls" => Pooling::Cls,
        "last" => Pooling::LastToken,
        other => return Err(Error::Config(format!("pooling `{other}` is not supported"))),
    };
    Ok(Head { pooling, padding: None, ..head })
}

/// voyage-4-nano projects its last hidden states.
fn projection(c: &Config, w: &Weights) -> Result<Option<Linear>> {
    if !c.bidirectional || !c.is("qwen3") {
        return Ok(None);
    }
    // transformers writes `num_labels` as names of labels, so files that it wrote have no number.
    let named = c.num_labels.as_ref().and_then(Value::as_u64).and_then(|n| usize::try_from(n).ok());
    let Some(dims) = w.dims("weight")? else { return Ok(None) };
    let dimensions = named.or(dims.first().copied()).unwrap_or_default();
    Ok(Some(Linear::load(w, c.hidden_size, dimensions, false)?))
}

/// The head of an LLM reranker: logits of the answers `tokens`. It uses the file's `score.weight` if
/// there is one, else the rows of the LM head.
pub(crate) fn answer_head(config: &Value, w: &Weights, tokens: &[u32]) -> Result<Head> {
    let c = read(config)?;
    let (lm_head, rows) = (w.sub("lm_head"), tokens.iter().map(|token| *token as usize).collect::<Vec<_>>());
    let out = match (w.has("score.weight")?, c.tie_word_embeddings.unwrap_or(false) || !lm_head.has("weight")?) {
        (true, _) => Linear::load(&w.sub("score"), c.hidden_size, tokens.len(), false)?,
        (false, true) => {
            let table = root(w, "model", EMBED_TOKENS)?.sub("embed_tokens");
            Linear::select_rows(&table, c.hidden_size, c.vocab_size, &rows)?
        }
        (false, false) => Linear::select_rows(&lm_head, c.hidden_size, c.vocab_size, &rows)?,
    };
    Ok(Head { pooling: Pooling::LastToken, ..Head::new(None, None, out) })
}

pub(crate) fn lm_head(config: &Value, w: &Weights) -> Result<LmHead> {
    let c = read(config)?;
    let embed_tokens = root(w, "model", EMBED_TOKENS)?.sub("embed_tokens");
    head::lm_head(w, &embed_tokens, [c.vocab_size, c.hidden_size], c.tie_word_embeddings.unwrap_or(false))
}

fn block(w: &Weights, c: &Config, heads: Heads, rotary: &Rotary, layer: usize) -> Result<Block> {
    let (a, n) = (w.sub("self_attn"), c.hidden_size);
    let norm = |w: &Weights, name, size| Norm::rms(&w.sub(name), size, c.eps());
    let (qkv_bias, output_bias) = c.biases();
    let qkv = match c.is("phi3") {
        true => Linear::load(&a.sub("qkv_proj"), n, heads.rows().iter().sum(), qkv_bias)?,
        false => heads.projections(&a, n, qkv_bias)?,
    };
    let output = Linear::load(&a.sub("o_proj"), heads.rows()[0], n, output_bias)?;
    let norms = match c.is("qwen3") || c.is("qwen3_moe") {
        true => Some([norm(&a, "q_norm", heads.size)?, norm(&a, "k_norm", heads.size)?]),
        false => None,
    };
    Ok(Block {
        attention_norm: norm(w, "input_layernorm", n)?,
        attention: GroupedQueryAttention {
            norms,
            rotary: Some(rotary.clone()),
            mask: c.mask(layer)?,
            ..GroupedQueryAttention::new(qkv, output, heads, layer)
        },
        layout: Layout::Sequential(norm(w, "post_attention_layernorm", n)?),
        mlp: mlp(w, c, layer)?,
    })
}

fn mlp(w: &Weights, c: &Config, layer: usize) -> Result<Mlp> {
    let (n, act) = (c.hidden_size, activation("hidden_act", &c.hidden_act)?);
    let Some(count) = c.experts(layer) else {
        let m = w.sub("mlp");
        let gate_up = match c.is("phi3") {
            true => Linear::load(&m.sub("gate_up_proj"), n, c.intermediate_size.saturating_mul(2), c.mlp_bias)?,
            false => Linear::stacked(&[m.sub("gate_proj"), m.sub("up_proj")], n, c.intermediate_size, c.mlp_bias)?,
        };
        return Ok(Mlp::gated(gate_up, act, Linear::load(&m.sub("down_proj"), c.intermediate_size, n, c.mlp_bias)?));
    };
    let mixtral = c.is("mixtral");
    let m = w.sub(if mixtral { "block_sparse_moe" } else { "mlp" });
    let names = if mixtral { ["w1", "w3", "w2"] } else { ["gate_proj", "up_proj", "down_proj"] };
    // The defaults of transformers.
    let (inner, top) = match &*c.model_type {
        "mixtral" => (c.intermediate_size, 2),
        "qwen2_moe" => (c.moe_intermediate_size.unwrap_or(1408), 4),
        _ => (c.moe_intermediate_size.unwrap_or(768), 8),
    };
    let (top, renormalize) = (c.num_experts_per_tok.unwrap_or(top), mixtral || c.norm_topk_prob.unwrap_or(false));
    let experts = experts(&m, names, act, MoeShape { count, n, inner, top, renormalize })?;
    Ok(match c.is("qwen2_moe") {
        true => Mlp::SharedExpert { experts, shared: Box::new(shared_expert(&m, c, act)?) },
        false => Mlp::Experts(experts),
    })
}

fn shared_expert(m: &Weights, c: &Config, activation: Activation) -> Result<SharedExpert> {
    let (e, n, inner) = (m.sub("shared_expert"), c.hidden_size, c.shared_expert_intermediate_size.unwrap_or(5632));
    Ok(SharedExpert {
        gate_up: Linear::stacked(&[e.sub("gate_proj"), e.sub("up_proj")], n, inner, false)?,
        activation,
        down: Linear::load(&e.sub("down_proj"), inner, n, false)?,
        scale: Linear::load(&m.sub("shared_expert_gate"), n, 1, false)?.with(Activation::Sigmoid),
    })
}

struct MoeShape {
    count: usize,
    n: usize,
    inner: usize,
    top: usize,
    /// Whether the routing weights of the selected experts are renormalized to sum to one.
    renormalize: bool,
}

fn experts(m: &Weights, [gate, up, down]: [&str; 3], act: Activation, s: MoeShape) -> Result<Box<Experts>> {
    refuse(s.count > 4096, || format!("{} experts in a layer are not supported; at most 4096 are", s.count))?;
    let all = m.sub("experts");
    let expert = |e: usize| all.sub(e);
    let ups = (0..s.count).map(|e| Linear::stacked(&[expert(e).sub(gate), expert(e).sub(up)], s.n, s.inner, false));
    let downs = (0..s.count).map(|e| Linear::load(&expert(e).sub(down), s.inner, s.n, false));
    let (ups, downs) = (ups.collect::<Result<Vec<_>, _>>()?, downs.collect::<Result<Vec<_>, _>>()?);
    let router = m.in_dtype(sconce_ops::DType::F32).sub("gate").tensor("weight", &[s.count, s.n])?;
    let parts = ExpertParts { up: &ups, down: &downs, bias: None };
    let experts = Experts::new(router, parts, act, s.top)?.gated()?;
    Ok(Box::new(if s.renormalize { experts.renormalised() } else { experts }))
}
