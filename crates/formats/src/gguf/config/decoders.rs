//! Configurations of language models (decoders).

use super::encoders::labels;
use super::rope::Rope;
use super::{Config, Every, Keys, layer_types, object};
use crate::FileError;
use serde_json::{Value, json};

/// Keys shared by all models with names as in Llama.
fn decoder(keys: &Keys, model_type: &str, class: &str) -> Result<Config, FileError> {
    let heads = keys.heads()?;
    let mut config = keys.base(model_type, class)?;
    config.extend(object(json!({
        "hidden_size": keys.need("embedding_length")?,
        "intermediate_size": keys.number("feed_forward_length")?,
        "num_hidden_layers": keys.layers()?,
        "num_attention_heads": heads.queries,
        "num_key_value_heads": heads.keys,
        "head_dim": heads.size,
        "max_position_embeddings": keys.need("context_length")?,
        "hidden_act": "silu",
        "tie_word_embeddings": !keys.has("output.weight"),
    })));
    if keys.metadata.bool(&keys.name("attention.causal"))? == Some(false) {
        config.insert("is_causal".into(), json!(false));
    }
    Rope::read(keys, heads.size)?.write(&mut config);
    Ok(config)
}

fn rms(keys: &Keys) -> Result<f64, FileError> {
    keys.need_float("attention.layer_norm_rms_epsilon")
}

fn with(mut config: Config, more: Value) -> Result<Config, FileError> {
    config.extend(object(more));
    Ok(config)
}

pub(super) fn llama(keys: &Keys) -> Result<Config, FileError> {
    let has = |names: &[&str]| names.iter().any(|name| keys.has(name));
    with(
        decoder(keys, "llama", "LlamaForCausalLM")?,
        json!({
            "rms_norm_eps": rms(keys)?,
            "attention_bias": has(&["blk.0.attn_q.bias", "blk.0.attn_qkv.bias"]),
            "mlp_bias": has(&["blk.0.ffn_up.bias"]),
        }),
    )
}

pub(super) fn mixtral(keys: &Keys) -> Result<Config, FileError> {
    with(
        decoder(keys, "mixtral", "MixtralForCausalLM")?,
        json!({
            "rms_norm_eps": rms(keys)?,
            "num_local_experts": keys.need("expert_count")?,
            "num_experts_per_tok": keys.need("expert_used_count")?,
            "sliding_window": null,
        }),
    )
}

pub(super) fn qwen(keys: &Keys) -> Result<Config, FileError> {
    let (heads, context, layers) = (keys.heads()?, keys.need("context_length")?, keys.layers()?);
    let rope = Rope::read(keys, heads.size)?;
    if rope.scaling.is_some() {
        return Err(keys.fault("scales RoPE, which Qwen 1 has no configuration for"));
    }
    // Newer converters write the epsilon of this RMS norm under the key of a layer norm.
    let eps = match keys.float("attention.layer_norm_rms_epsilon")? {
        None => keys.need_float("attention.layer_norm_epsilon")?,
        Some(eps) => eps,
    };
    // `seq_length` is not in the file. The 7B and the 14B were trained on sequences of a quarter of
    // their context and scale RoPE and attention beyond that length; the 72B, which has a larger
    // base, was trained on its whole context.
    let trained = if rope.theta > 10_000.0 { context } else { context / 4 };
    with(
        keys.base("qwen", "QWenLMHeadModel")?,
        json!({
            "hidden_size": keys.need("embedding_length")?,
            // Gate and up projection together.
            "intermediate_size": keys.rows("blk.0.ffn_up.weight")?.saturating_mul(2),
            "num_hidden_layers": layers,
            "num_attention_heads": heads.queries,
            "kv_channels": heads.size,
            "max_position_embeddings": context,
            "seq_length": trained,
            "use_dynamic_ntk": trained < context,
            "use_logn_attn": trained < context,
            "layer_norm_epsilon": eps,
            "rotary_emb_base": rope.theta,
            "rotary_pct": rope.partial.unwrap_or(1.0),
            "no_bias": true,
            "tie_word_embeddings": !keys.has("output.weight"),
        }),
    )
}

pub(super) fn qwen2(keys: &Keys) -> Result<Config, FileError> {
    let config = decoder(keys, "qwen2", "Qwen2ForCausalLM")?;
    with(config, json!({"rms_norm_eps": rms(keys)?, "use_sliding_window": false, "sliding_window": null}))
}

pub(super) fn qwen3(keys: &Keys) -> Result<Config, FileError> {
    let mut config = decoder(keys, "qwen3", "Qwen3ForCausalLM")?;
    // The two labels of a reranker.
    labels(keys, &mut config)?;
    with(
        config,
        json!({
            "rms_norm_eps": rms(keys)?,
            "attention_bias": keys.has("blk.0.attn_q.bias"),
            "use_sliding_window": false,
            "sliding_window": null,
        }),
    )
}

pub(super) fn qwen2_moe(keys: &Keys) -> Result<Config, FileError> {
    let shared = experts_width(keys, "expert_shared_feed_forward_length", "blk.0.ffn_up_shexp.weight")?;
    with(
        qwen_moe(keys, "qwen2_moe", "Qwen2MoeForCausalLM")?,
        json!({
            "qkv_bias": keys.has("blk.0.attn_q.bias") || keys.has("blk.0.attn_qkv.bias"),
            // Not in the file; Qwen2 does not normalize the weights of the selected experts.
            "norm_topk_prob": false,
            "shared_expert_intermediate_size": shared,
        }),
    )
}

pub(super) fn qwen3_moe(keys: &Keys) -> Result<Config, FileError> {
    with(
        qwen_moe(keys, "qwen3_moe", "Qwen3MoeForCausalLM")?,
        json!({
            "attention_bias": keys.has("blk.0.attn_q.bias"),
            // Not in the file; Qwen3 normalizes the weights of the selected experts to 1.
            "norm_topk_prob": true,
        }),
    )
}

/// Keys that the MoE models of Qwen share.
fn qwen_moe(keys: &Keys, model_type: &str, class: &str) -> Result<Config, FileError> {
    let dense: Vec<usize> =
        (0..keys.layers()?).filter(|layer| !keys.has(&format!("blk.{layer}.ffn_gate_inp.weight"))).collect();
    with(
        decoder(keys, model_type, class)?,
        json!({
            "rms_norm_eps": rms(keys)?,
            // Two names for one value, depending on the transformers version.
            "num_experts": keys.need("expert_count")?,
            "num_local_experts": keys.need("expert_count")?,
            "num_experts_per_tok": keys.need("expert_used_count")?,
            "moe_intermediate_size": experts_width(keys, "expert_feed_forward_length", "blk.0.ffn_up_exps.weight")?,
            "decoder_sparse_step": 1,
            "mlp_only_layers": dense,
            "use_sliding_window": false,
            "sliding_window": null,
        }),
    )
}

/// The intermediate size of experts: the key `name`, or the rows of `tensor` if the file has no
/// such key.
fn experts_width(keys: &Keys, name: &str, tensor: &str) -> Result<u64, FileError> {
    match keys.number(name)? {
        None => Ok(keys.rows(tensor)? as u64),
        Some(found) => Ok(found),
    }
}

pub(super) fn phi(keys: &Keys) -> Result<Config, FileError> {
    with(
        decoder(keys, "phi", "PhiForCausalLM")?,
        json!({
            // Not from the key, which is always four times the hidden size, even if that is wrong.
            "intermediate_size": keys.rows("blk.0.ffn_up.weight")?,
            "layer_norm_eps": keys.need_float("attention.layer_norm_epsilon")?,
            "hidden_act": "gelu_new",
            "qk_layernorm": false,
        }),
    )
}

pub(super) fn phi3(keys: &Keys) -> Result<Config, FileError> {
    let config = decoder(keys, "phi3", "Phi3ForCausalLM")?;
    // Zero means no window.
    let window = keys.number("attention.sliding_window")?.filter(|&n| n > 0);
    let original = keys.number("rope.scaling.original_context_length")?;
    with(
        config,
        json!({
            "rms_norm_eps": rms(keys)?,
            "sliding_window": window,
            "original_max_position_embeddings": original.map_or_else(|| keys.need("context_length"), Ok)?,
        }),
    )
}

pub(super) fn stablelm(keys: &Keys) -> Result<Config, FileError> {
    with(
        decoder(keys, "stablelm", "StableLmForCausalLM")?,
        json!({
            "layer_norm_eps": keys.need_float("attention.layer_norm_epsilon")?,
            "use_parallel_residual": keys.metadata.bool(&keys.name("use_parallel_residual"))?.unwrap_or(false),
            "use_qkv_bias": keys.has("blk.0.attn_q.bias"),
            "qk_layernorm": keys.has("blk.0.attn_q_norm.weight"),
        }),
    )
}

pub(super) fn falcon(keys: &Keys, norms: u8) -> Result<Config, FileError> {
    let heads = keys.heads()?;
    // The larger models have groups of heads, or two norms; Falcon 2 has groups and one norm.
    let new = norms == 2 || heads.keys != 1 && heads.keys != heads.queries;
    let mut config = keys.base("falcon", "FalconForCausalLM")?;
    config.extend(object(json!({
        "hidden_size": keys.need("embedding_length")?,
        "ffn_hidden_size": keys.rows("blk.0.ffn_up.weight")?,
        "num_hidden_layers": keys.layers()?,
        "num_attention_heads": heads.queries,
        "num_kv_heads": heads.keys,
        "max_position_embeddings": keys.need("context_length")?,
        "layer_norm_epsilon": keys.need_float("attention.layer_norm_epsilon")?,
        "activation": "gelu",
        "alibi": false,
        "bias": keys.has("blk.0.attn_output.bias"),
        "parallel_attn": true,
        "multi_query": heads.keys != heads.queries,
        "new_decoder_architecture": new,
        "num_ln_in_parallel_attn": new.then_some(norms),
        "tie_word_embeddings": !keys.has("output.weight"),
    })));
    Rope::read(keys, heads.size)?.write(&mut config);
    Ok(config)
}

pub(super) fn gemma(keys: &Keys) -> Result<Config, FileError> {
    gemma_base(keys, "gemma", "GemmaForCausalLM")
}

fn gemma_base(keys: &Keys, model_type: &str, class: &str) -> Result<Config, FileError> {
    with(
        decoder(keys, model_type, class)?,
        json!({
            "rms_norm_eps": rms(keys)?,
            "hidden_act": "gelu_pytorch_tanh",
            "hidden_activation": "gelu_pytorch_tanh",
            "attention_bias": false,
        }),
    )
}

pub(super) fn gemma2(keys: &Keys) -> Result<Config, FileError> {
    let window = keys.number("attention.sliding_window")?.unwrap_or(4096);
    with(
        gemma_base(keys, "gemma2", "Gemma2ForCausalLM")?,
        json!({
            "attn_logit_softcapping": keys.float("attn_logit_softcapping")?.unwrap_or(50.0),
            "final_logit_softcapping": keys.float("final_logit_softcapping")?.unwrap_or(30.0),
            "query_pre_attn_scalar": scalar(keys, 46)?,
            "sliding_window": window,
            "layer_types": layer_types(keys, window, Every::Last(2))?,
        }),
    )
}

pub(super) fn gemma3(keys: &Keys) -> Result<Config, FileError> {
    let window = keys.number("attention.sliding_window")?.unwrap_or(0);
    let global = Rope::read(keys, keys.heads()?.size)?.parameters();
    let local = keys.float("rope.freq_base_swa")?.unwrap_or(10_000.0);
    with(
        gemma_base(keys, "gemma3_text", "Gemma3ForCausalLM")?,
        json!({
            "attn_logit_softcapping": null,
            "final_logit_softcapping": keys.float("final_logit_softcapping")?.filter(|&cap| cap != 0.0),
            "query_pre_attn_scalar": scalar(keys, 62)?,
            "sliding_window": window,
            "layer_types": layer_types(keys, window, Every::Last(6))?,
            "rope_local_base_freq": local,
            "rope_parameters": {
                "full_attention": global,
                "sliding_attention": {"rope_type": "default", "rope_theta": local},
            },
        }),
    )
}

pub(super) fn gemma_embedding(keys: &Keys) -> Result<Config, FileError> {
    let mut config = gemma3(keys)?;
    // Other code reads the key as a window of another width than that of this model.
    config.remove("is_causal");
    with(
        config,
        json!({
            "architectures": ["Gemma3TextModel"],
            "use_bidirectional_attention": true,
            // Not in the file; the same as the head size.
            "query_pre_attn_scalar": keys.heads()?.size,
        }),
    )
}

/// `query_pre_attn_scalar`: attention scores are divided by its root. It is not in the file. It is
/// the head size in all models of a generation but the 27B, which has `largest` layers and uses the
/// hidden size divided by the number of heads.
fn scalar(keys: &Keys, largest: usize) -> Result<u64, FileError> {
    let heads = keys.heads()?;
    let wide = keys.layers()? == largest;
    if wide { Ok(keys.need("embedding_length")? / heads.queries as u64) } else { Ok(heads.size as u64) }
}

pub(super) fn gpt2(keys: &Keys) -> Result<Config, FileError> {
    let (hidden, context) = (keys.need("embedding_length")?, keys.need("context_length")?);
    let inner = keys.rows("blk.0.ffn_up.weight")? as u64;
    let config = keys.base("gpt2", "GPT2LMHeadModel")?;
    with(
        config,
        json!({
            "n_embd": hidden,
            "n_layer": keys.layers()?,
            "n_head": keys.heads()?.queries,
            "n_inner": (inner != hidden.saturating_mul(4)).then_some(inner),
            "n_positions": context,
            "n_ctx": context,
            "layer_norm_epsilon": keys.need_float("attention.layer_norm_epsilon")?,
            "activation_function": "gelu_new",
            "scale_attn_weights": true,
            "scale_attn_by_inverse_layer_idx": false,
            "reorder_and_upcast_attn": false,
            "tie_word_embeddings": !keys.has("output.weight"),
            // The converter transposed the Conv1D weights (in → out) to those of a Linear, and
            // quantized blocks cannot be transposed back.
            "conv1d": false,
        }),
    )
}

pub(super) fn gpt_neox(keys: &Keys) -> Result<Config, FileError> {
    let rope = Rope::read(keys, keys.heads()?.size)?;
    // Not in the file: the 20B, which has 44 layers, approximates GELU; Pythia and StableLM-alpha
    // do not.
    let activation = if keys.layers()? == 44 { "gelu_fast" } else { "gelu" };
    with(
        decoder(keys, "gpt_neox", "GPTNeoXForCausalLM")?,
        json!({
            "layer_norm_eps": keys.need_float("attention.layer_norm_epsilon")?,
            "hidden_act": activation,
            "rotary_emb_base": rope.theta,
            "rotary_pct": rope.partial.unwrap_or(1.0),
            "attention_bias": keys.has("blk.0.attn_qkv.bias"),
            "use_parallel_residual": keys.metadata.bool(&keys.name("use_parallel_residual"))?.unwrap_or(true),
        }),
    )
}
