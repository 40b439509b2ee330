//! Configurations of encoders, and of T5 with or without its decoder.

use super::rope::Rope;
use super::{Config, Every, Keys, layer_types, object};
use crate::FileError;
use serde_json::{Value, json};

pub(super) fn t5(keys: &Keys, decoder: bool, gated: bool, bias_per_layer: bool) -> Result<Config, FileError> {
    let (model_type, name) = if bias_per_layer { ("umt5", "UMT5") } else { ("t5", "T5") };
    let class = if decoder { "ForConditionalGeneration" } else { "EncoderModel" };
    let heads = keys.heads()?;
    let layers = keys.layers()?;
    let eps = match keys.float("attention.layer_norm_rms_epsilon")? {
        None => keys.need_float("attention.layer_norm_epsilon")?,
        Some(eps) => eps,
    };
    let tied = !keys.has("output.weight");
    let mut config = keys.base(model_type, &format!("{name}{class}"))?;
    config.extend(object(json!({
        "d_model": keys.need("embedding_length")?,
        "d_kv": heads.size,
        "d_ff": keys.need("feed_forward_length")?,
        "num_layers": layers,
        "num_decoder_layers": keys.number("decoder_block_count")?.unwrap_or(layers as u64),
        "num_heads": heads.queries,
        "n_positions": keys.need("context_length")?,
        "relative_attention_num_buckets": keys.need("attention.relative_buckets_count")?,
        // Not in the file; the same for every T5.
        "relative_attention_max_distance": 128,
        "layer_norm_epsilon": eps,
        "feed_forward_proj": if gated { "gated-gelu" } else { "relu" },
        "is_gated_act": gated,
        "dense_act_fn": if gated { "gelu_new" } else { "relu" },
        "decoder_start_token_id": keys.number("decoder_start_token_id")?.unwrap_or(0),
        "is_encoder_decoder": decoder,
        "tie_word_embeddings": tied,
        // T5 scales the input of a head that is tied to its embeddings.
        "scale_decoder_outputs": tied,
    })));
    Ok(config)
}

/// BERT, RoBERTa and XLM-RoBERTa.
pub(super) fn bert(keys: &Keys, model_type: &str, class: &str) -> Result<Config, FileError> {
    let classifies = keys.has("cls.weight") || keys.has("cls.output.weight");
    let class = format!("{class}{}", if classifies { "ForSequenceClassification" } else { "Model" });
    let mut config = keys.base(model_type, &class)?;
    config.extend(object(json!({
        "hidden_size": keys.need("embedding_length")?,
        "intermediate_size": keys.need("feed_forward_length")?,
        "num_hidden_layers": keys.layers()?,
        "num_attention_heads": keys.heads()?.queries,
        "max_position_embeddings": positions(keys)?,
        "type_vocab_size": keys.rows("token_types.weight")?,
        "layer_norm_eps": keys.need_float("attention.layer_norm_epsilon")?,
        "hidden_act": "gelu",
        "position_embedding_type": "absolute",
    })));
    labels(keys, &mut config)?;
    Ok(config)
}

pub(super) fn distilbert(keys: &Keys) -> Result<Config, FileError> {
    let classifies = keys.has("cls.output.weight");
    let class = if classifies { "DistilBertForSequenceClassification" } else { "DistilBertModel" };
    let mut config = keys.base("distilbert", class)?;
    config.extend(object(json!({
        "dim": keys.need("embedding_length")?,
        "hidden_dim": keys.rows("blk.0.ffn_up.weight")?,
        "n_layers": keys.layers()?,
        "n_heads": keys.heads()?.queries,
        "max_position_embeddings": positions(keys)?,
        "activation": "gelu",
        "sinusoidal_pos_embds": false,
    })));
    labels(keys, &mut config)?;
    Ok(config)
}

/// Uses the keys of the model's repository on the hub, as its tensor names do. `mixture`: the second
/// version, with a mixture of experts. The converter drops the bias of its experts.
pub(super) fn nomic_bert(keys: &Keys, mixture: bool) -> Result<Config, FileError> {
    check_rope(keys)?;
    let context = keys.need("context_length")?;
    let mut config = keys.base("nomic_bert", "NomicBertModel")?;
    config.extend(object(json!({
        "n_embd": keys.need("embedding_length")?,
        "n_inner": keys.need("feed_forward_length")?,
        "n_layer": keys.layers()?,
        "n_head": keys.heads()?.queries,
        // The converter writes the trained length, not the extended one.
        "n_positions": context,
        "max_trained_positions": context,
        "type_vocab_size": keys.rows("token_types.weight")?,
        "layer_norm_epsilon": keys.need_float("attention.layer_norm_epsilon")?,
        "rotary_emb_base": keys.float("rope.freq_base")?.unwrap_or(10_000.0),
        "rotary_emb_fraction": 1.0,
        "rotary_emb_interleaved": false,
        "rotary_emb_scale_base": null,
        "rotary_scaling_factor": null,
        // The converter accepts no other.
        "activation_function": if mixture { "gelu" } else { "swiglu" },
        "qkv_proj_bias": keys.has("blk.0.attn_qkv.bias"),
        "mlp_fc1_bias": keys.has("blk.0.ffn_up.bias"),
        "mlp_fc2_bias": keys.has("blk.0.ffn_down.bias"),
        "prenorm": false,
        "causal": false,
    })));
    if mixture {
        config.insert("moe_every_n_layers".into(), json!(keys.need("moe_every_n_layers")?));
        config.insert("num_experts".into(), json!(keys.need("expert_count")?));
        config.insert("moe_top_k".into(), json!(keys.need("expert_used_count")?));
    }
    Ok(config)
}

pub(super) fn modern_bert(keys: &Keys) -> Result<Config, FileError> {
    check_rope(keys)?;
    let class = if keys.has("cls.output.weight") { "ForSequenceClassification" } else { "Model" };
    let window = keys.number("attention.sliding_window")?.unwrap_or(0);
    let mut config = keys.base("modernbert", &format!("ModernBert{class}"))?;
    config.extend(object(json!({
        "hidden_size": keys.need("embedding_length")?,
        "intermediate_size": keys.need("feed_forward_length")?,
        "num_hidden_layers": keys.layers()?,
        "num_attention_heads": keys.heads()?.queries,
        "max_position_embeddings": keys.need("context_length")?,
        "norm_eps": keys.need_float("attention.layer_norm_epsilon")?,
        "norm_bias": keys.has("output_norm.bias"),
        "attention_bias": keys.has("blk.0.attn_qkv.bias"),
        "mlp_bias": keys.has("blk.0.ffn_up.bias"),
        "classifier_bias": keys.has("cls.bias"),
        "hidden_activation": keys.metadata.str(&keys.name("hidden_activation"))?.unwrap_or("gelu"),
        "layer_types": layer_types(keys, window, Every::First(3))?,
        "local_attention": window,
        "global_rope_theta": keys.float("rope.freq_base")?.unwrap_or(160_000.0),
        "local_rope_theta": keys.float("rope.freq_base_swa")?.unwrap_or(10_000.0),
        // Files without the key are of models that pool by the mean.
        "classifier_pooling": match keys.number("classifier.pooling_type")? {
            None | Some(1) => "mean",
            Some(2) => "cls",
            Some(other) => {
                return Err(keys.fault(format!("pools {other} for its classifier; mean (1) and cls (2) are supported")));
            }
        },
    })));
    labels(keys, &mut config)?;
    Ok(config)
}

/// JinaBERT v2 declares BERT, as on the hub.
pub(super) fn jina_bert(keys: &Keys) -> Result<Config, FileError> {
    let mut config = keys.base("bert", "JinaBertModel")?;
    config.extend(encoder(keys)?);
    config.extend(object(json!({"position_embedding_type": "alibi", "feed_forward_type": "geglu"})));
    Ok(config)
}

/// The keys of jina-embeddings-v3, without those of its tasks.
pub(super) fn jina_v3(keys: &Keys) -> Result<Config, FileError> {
    check_rope(keys)?;
    let mut config = keys.base("xlm-roberta", "XLMRobertaModel")?;
    config.extend(encoder(keys)?);
    config.extend(object(json!({
        "position_embedding_type": "rotary",
        "rotary_emb_base": keys.need_float("rope.freq_base")?,
    })));
    Ok(config)
}

/// The sizes of an encoder without a position table, under BERT's keys.
fn encoder(keys: &Keys) -> Result<Config, FileError> {
    Ok(object(json!({
        "hidden_size": keys.need("embedding_length")?,
        "intermediate_size": keys.need("feed_forward_length")?,
        "num_hidden_layers": keys.layers()?,
        "num_attention_heads": keys.heads()?.queries,
        "max_position_embeddings": keys.need("context_length")?,
        "type_vocab_size": keys.rows("token_types.weight")?,
        "layer_norm_eps": keys.need_float("attention.layer_norm_epsilon")?,
        "hidden_act": "gelu",
    })))
}

/// Refuses RoPE that is scaled or rotates a part of each head: these families have no configuration
/// for it.
fn check_rope(keys: &Keys) -> Result<(), FileError> {
    let rope = Rope::read(keys, keys.heads()?.size)?;
    if rope.scaling.is_some() {
        let name = keys.name("rope.scaling.type");
        return Err(keys.fault(format!("scales RoPE (`{name}`), which is not supported in an encoder")));
    }
    if rope.partial.is_some() {
        let name = keys.name("rope.dimension_count");
        return Err(keys.fault(format!("rotates a part of each head (`{name}`), which is not supported in an encoder")));
    }
    Ok(())
}

/// Rows of the position embeddings, including RoBERTa's leading rows.
fn positions(keys: &Keys) -> Result<usize, FileError> {
    let found = keys.gguf.shape("embeddings.position_embeddings.weight").and_then(|(_, dims)| dims.first().copied());
    found.ok_or_else(|| keys.fault("holds no `position_embd.weight`; the model is incomplete"))
}

/// Adds the label names, or the number of labels, if there are any.
pub(super) fn labels(keys: &Keys, config: &mut Config) -> Result<(), FileError> {
    let Some(labels) = keys.metadata.strs(&keys.name("classifier.output_labels"))? else {
        if keys.has("cls.output.weight") {
            config.insert("num_labels".into(), json!(keys.rows("cls.output.weight")?));
        }
        return Ok(());
    };
    let named = labels.clone().enumerate().map(|(id, label)| (id.to_string(), json!(label))).collect();
    let numbered = labels.enumerate().map(|(id, label)| (label.to_owned(), json!(id))).collect();
    config.insert("id2label".into(), Value::Object(named));
    config.insert("label2id".into(), Value::Object(numbered));
    Ok(())
}
