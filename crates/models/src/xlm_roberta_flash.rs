//! XLM-RoBERTa in the layout of its flash-attention code: RoBERTa's post-norm blocks with a fused
//! QKV projection and, if the configuration says so, RoPE instead of a position table. jina-
//! reranker-v2, jina-colbert-v2 and jina-embeddings-v3 (Sturua et al. 2024, arXiv:2409.10173); the
//! last one also has a low-rank update (LoRA) of every matrix for each of its tasks.

use crate::block::{Embeddings, Layer, PostNorm, SelfAttention, Shape, run_layers};
use crate::config::{RopeConfig, activation, defaults, head_size, parse, refuse, table_rows};
use crate::head::root;
use crate::lora::{EmbeddingUpdate, LoraConfig, LowRank, linear, of_task, table, word_table};
use crate::mlp::Mlp;
use crate::{Backbone, Batch, Error, Head, LayerHook, Limits, Result, Task, roberta};
use sconce_ops::{Activation, LayerNorm, Linear, Rotary, Tensor, Weights, activate};
use serde_json::Value;

defaults! {
    struct Config {
        model_type: String = String::new(),
        vocab_size: usize = 250_002,
        hidden_size: usize = 1024,
        num_hidden_layers: usize = 24,
        num_attention_heads: usize = 16,
        intermediate_size: usize = 4096,
        hidden_act: String = "gelu".into(),
        max_position_embeddings: usize = 8194,
        type_vocab_size: usize = 1,
        layer_norm_eps: f32 = 1e-5,
        pad_token_id: u32 = 1,
        position_embedding_type: Option<String> = None,
        rotary_emb_base: Option<f64> = None,
        rope_parameters: Option<RopeConfig> = None,
        /// The older spelling.
        rope_scaling: Option<RopeConfig> = None,
        rope_theta: Option<f64> = None,
        is_decoder: bool = false,
    }
}

impl Config {
    /// Whether positions are rotary: the hub's code, and always in transformers.
    fn is_rotary(&self) -> Result<bool> {
        match self.position_embedding_type.as_deref() {
            None | Some("rotary") => Ok(true),
            Some("absolute") if self.model_type != TRANSFORMERS_TYPE => Ok(false),
            Some(other) => Err(Error::Config(format!(
                "position_embedding_type `{other}` is not supported in this layout; rotary and absolute are"
            ))),
        }
    }

    fn rotary(&self, w: &Weights, size: usize, positions: usize) -> Result<Rotary> {
        refuse(!size.is_multiple_of(2), || format!("RoPE needs heads of an even size, not {size}"))?;
        let rope = self.rope_parameters.clone().or_else(|| self.rope_scaling.clone()).unwrap_or_default();
        rope.check_unscaled()?;
        let default = if self.model_type == TRANSFORMERS_TYPE { 20_000.0 } else { 10_000.0 };
        let base = rope.rope_theta.or(self.rope_theta).or(self.rotary_emb_base).unwrap_or(default);
        Ok(Rotary::new(w, &Rotary::frequencies(base, size), positions)?)
    }
}

const TRANSFORMERS_TYPE: &str = "jina_embeddings_v3";

/// The tensor names of the hub's files, or those of transformers' own code.
struct Names {
    embedding_norm: &'static str,
    layers: &'static str,
    /// Fused, or query, key and value.
    qkv: &'static [&'static str],
    output: &'static str,
    norms: [&'static str; 2],
}

const HUB: Names = Names {
    embedding_norm: "emb_ln",
    layers: "encoder.layers",
    qkv: &["mixer.Wqkv"],
    output: "mixer.out_proj",
    norms: ["norm1", "norm2"],
};
const TRANSFORMERS: Names = Names {
    embedding_norm: "embeddings.LayerNorm",
    layers: "layers",
    qkv: &["self_attn.q_proj", "self_attn.k_proj", "self_attn.v_proj"],
    output: "self_attn.o_proj",
    norms: ["post_attention_layernorm", "post_mlp_layernorm"],
};

const EMBEDDING_NORM: &str = "emb_ln.weight";

/// Whether files that declare XLM-RoBERTa have this layout.
pub(crate) fn is_layout(w: &Weights) -> Result<bool> {
    Ok(root(w, "roberta", EMBEDDING_NORM)?.has(EMBEDDING_NORM)?)
}

pub(crate) fn backbone(config: &Value, w: &Weights) -> Result<Box<dyn Backbone>> {
    let (c, lora): (Config, LoraConfig) = (parse(config)?, parse(config)?);
    refuse(c.is_decoder, || "a decoder (is_decoder) is not supported; encoders are".into())?;
    let size = head_size(c.hidden_size, c.num_attention_heads)?;
    let shape = Shape {
        hidden: c.hidden_size,
        heads: c.num_attention_heads,
        size,
        inner: c.intermediate_size,
        activation: activation("hidden_act", &c.hidden_act)?,
        eps: c.layer_norm_eps,
    };
    let hub = root(w, "roberta", EMBEDDING_NORM)?;
    let (w, names) = match hub.has(EMBEDDING_NORM)? {
        true => (hub, &HUB),
        false => (root(w, "roberta", "embeddings.LayerNorm.weight")?, &TRANSFORMERS),
    };
    let is_rotary = c.is_rotary()?;
    let limits = limits(&c, size, is_rotary)?;
    let has_tasks = !lora.tasks().is_empty();
    refuse(has_tasks && !is_rotary, || "lora_adaptations with absolute positions are not supported".into())?;
    refuse(has_tasks && limits.types.is_none(), || "lora_adaptations without token types are not supported".into())?;
    let rotary = is_rotary.then(|| c.rotary(&w, size, limits.positions)).transpose()?;
    let tables = w.sub("embeddings");
    let (words, types) = (tables.sub("word_embeddings"), tables.sub("token_type_embeddings"));
    let rows = c.max_position_embeddings;
    let embeddings = Embeddings {
        words: word_table(&words, c.vocab_size, c.hidden_size)?,
        positions: (!is_rotary)
            .then(|| tables.sub("position_embeddings").tensor("weight", &[rows, c.hidden_size]))
            .transpose()?,
        types: limits.types.map(|rows| table(&types, rows, c.hidden_size)).transpose()?,
        norm: LayerNorm::load(&w.sub(names.embedding_norm), c.hidden_size, c.layer_norm_eps, true)?,
    };
    let updates = match limits.types.filter(|_| has_tasks) {
        Some(rows) => EmbeddingUpdate::load((&words, c.vocab_size), (&types, rows), &lora, c.hidden_size)?,
        None => Vec::new(),
    };
    let load = |i| Block::load(&w.sub(names.layers).sub(i), (&shape, &lora), names, rotary.as_ref());
    let layers = (0..c.num_hidden_layers).map(load).collect::<Result<_>>()?;
    let tasks = lora.lora_adaptations.unwrap_or_default();
    Ok(Box::new(Encoder { embeddings, updates, layers, hidden_size: c.hidden_size, limits, tasks }))
}

fn limits(c: &Config, size: usize, is_rotary: bool) -> Result<Limits> {
    let types = Some(c.type_vocab_size).filter(|rows| *rows > 0);
    if is_rotary {
        return Ok(Limits { types, ..Limits::new(c.vocab_size, table_rows(c.max_position_embeddings, size)?) });
    }
    let (positions, counting) = roberta::positions(c.max_position_embeddings, c.pad_token_id)?;
    Ok(Limits { types, counting, ..Limits::new(c.vocab_size, positions) })
}

pub(crate) fn head(task: Task, config: &Value, w: &Weights) -> Result<Head> {
    let c: Config = parse(config)?;
    roberta::fairseq(task, w, "roberta", [c.vocab_size, c.hidden_size], c.layer_norm_eps)
}

struct Encoder {
    embeddings: Embeddings,
    /// One for each task.
    updates: Vec<EmbeddingUpdate>,
    layers: Vec<Block>,
    hidden_size: usize,
    limits: Limits,
    tasks: Vec<String>,
}

impl Encoder {
    fn embed(&self, b: &Batch) -> Result<Tensor> {
        let e = &self.embeddings;
        let Some(update) = of_task(&self.updates, b.task)? else { return e.forward(b) };
        let x = e.words.embed(&b.ids, &[(&update.types, &b.types)])?;
        update.forward_normed(&x, &b.ids, &e.norm)
    }
}

impl Backbone for Encoder {
    fn forward(&self, batch: &Batch, hook: LayerHook<'_>) -> Result<Tensor> {
        run_layers(self.embed(batch)?, &self.layers, hook, |_, layer, x| layer.forward(x, batch))
    }

    fn hidden_size(&self) -> usize {
        self.hidden_size
    }

    fn limits(&self) -> Limits {
        self.limits
    }

    fn tasks(&self) -> &[String] {
        &self.tasks
    }
}

/// A post-norm block, in which a task may update every matrix.
struct Block {
    plain: PostNorm,
    /// The matrix of the MLP's first layer, without its activation.
    up: Linear,
    activation: Activation,
    down: Linear,
    updates: Vec<Update>,
}

/// The updates of a block for one task.
struct Update {
    qkv: LowRank,
    output: LowRank,
    up: LowRank,
    down: LowRank,
}

impl Block {
    fn load(w: &Weights, (s, lora): (&Shape, &LoraConfig), names: &Names, rotary: Option<&Rotary>) -> Result<Block> {
        let (n, m) = (s.hidden, w.sub("mlp"));
        let norm = |name| LayerNorm::load(&w.sub(name), n, s.eps, true);
        let qkv = match names.qkv {
            [fused] => linear(&w.sub(fused), n, n.saturating_mul(3))?,
            parts => Linear::stacked(&parts.iter().map(|name| w.sub(name)).collect::<Vec<_>>(), n, n, true)?,
        };
        let output = linear(&w.sub(names.output), n, n)?;
        let (up, down) = (linear(&m.sub("fc1"), n, s.inner)?, linear(&m.sub("fc2"), s.inner, n)?);
        let mut updates = Vec::new();
        if !lora.tasks().is_empty() {
            let of = |name: &str, k, n| LowRank::load(&w.sub(name), lora, k, n);
            let qkv = of(names.qkv[0], n, n.saturating_mul(3))?;
            let (output, up) = (of(names.output, n, n)?, of("mlp.fc1", n, s.inner)?);
            let down = of("mlp.fc2", s.inner, n)?;
            for (((qkv, output), up), down) in qkv.into_iter().zip(output).zip(up).zip(down) {
                updates.push(Update { qkv, output, up, down });
            }
        }
        let attention = SelfAttention::new(qkv, output, s.heads, s.size);
        Ok(Block {
            plain: PostNorm {
                attention: SelfAttention { rotary: rotary.cloned(), ..attention },
                attention_norm: norm(names.norms[0])?,
                mlp: Mlp::Plain { up: up.clone().with(s.activation), down: down.clone() },
                norm: norm(names.norms[1])?,
            },
            up,
            activation: s.activation,
            down,
            updates,
        })
    }
}

impl Layer for Block {
    fn forward(&self, x: &Tensor, b: &Batch) -> Result<Tensor> {
        let Some(update) = of_task(&self.updates, b.task)? else { return self.plain.forward(x, b) };
        let PostNorm { attention, attention_norm, norm, .. } = &self.plain;
        let qkv = attention.qkv.forward_residual(x, &update.qkv.forward(x)?)?;
        let mixed = attention.mix(&qkv, b)?;
        let residual = update.output.forward_residual(&mixed, x)?;
        let h = attention.output.forward_normed(&mixed, &residual, attention_norm)?;
        // The activation follows the sum with the update.
        let inner = activate(&self.up.forward_residual(&h, &update.up.forward(&h)?)?, self.activation)?;
        let residual = update.down.forward_residual(&inner, &h)?;
        Ok(self.down.forward_normed(&inner, &residual, norm)?)
    }
}
