//! Every architecture against its reference, layer by layer and head by head, and alone against
//! batched.

mod common;

use common::{Golden, family};
use sconce_ops::case::devices;
use sconce_testkit::Suite;
use serde_json::json;

fn bert(kind: &str) {
    family(
        kind,
        &["bert-base", "bert-mlm", "bert-mlm-legacy", "bert-reranker", "bert-sequence", "bert-token"],
        &["bert-token", "bert-base"],
    );
}

fn distilbert(kind: &str) {
    let heads = ["distilbert-mlm", "distilbert-sequence", "distilbert-token"];
    family(
        kind,
        &[&["distilbert-tiny", "distilbert-base"][..], &heads].concat(),
        &["distilbert-tiny", "distilbert-base"],
    );
}

fn roberta(kind: &str) {
    let models = ["roberta-tiny", "roberta-base", "xlm-roberta-tiny", "xlm-roberta-large"];
    let heads = ["roberta-mlm", "roberta-sequence", "roberta-token", "xlm-roberta-sequence", "camembert-mlm"];
    family(kind, &[&models[..], &heads].concat(), &["roberta-tiny", "xlm-roberta-tiny", "roberta-base"]);
}

fn xlm_roberta_flash(kind: &str) {
    let models = ["flash-tiny", "flash-transformers", "flash-tasks", "flash-tasks-large"];
    family(kind, &[&models[..], &["flash-mlm", "flash-sequence"]].concat(), &["flash-tiny", "flash-tasks"]);
}

fn mpnet(kind: &str) {
    family(
        kind,
        &["mpnet-tiny", "mpnet-base", "mpnet-mlm", "mpnet-sequence", "mpnet-token"],
        &["mpnet-tiny", "mpnet-base"],
    );
}

fn electra(kind: &str) {
    let models = ["electra-tiny", "electra-small", "electra-base", "electra-discriminator"];
    let heads = ["electra-mlm", "electra-sequence", "electra-token"];
    family(kind, &[&models[..], &heads].concat(), &["electra-tiny", "electra-base"]);
}

fn jina_bert(kind: &str) {
    let models = ["jina-tiny", "jina-eight-heads", "jina-code-tiny", "jina-base", "jina-code-base"];
    family(kind, &[&models[..], &["jina-mlm", "jina-sequence"]].concat(), &["jina-tiny", "jina-code-tiny"]);
}

fn nomic_bert(kind: &str) {
    let models =
        ["nomic-tiny", "nomic-base", "nomic-moe-tiny", "nomic-moe-base", "nomic-dynamic", "nomic-dynamic-transformers"];
    family(kind, &[&models[..], &["nomic-mlm", "nomic-sequence"]].concat(), &["nomic-tiny", "nomic-moe-tiny"]);
}

fn gte(kind: &str) {
    let models = ["gte-new-tiny", "gte-new-multilingual", "gte-new-unscaled", "gte-model", "gte-new-base"];
    family(kind, &[&models[..], &["gte-new-mlm", "gte-new-sequence", "gte-new-token"]].concat(), &["gte-new-tiny"]);
}

fn modernbert(kind: &str) {
    let models = ["modernbert-tiny", "modernbert-base", "modernbert-biases", "modernbert-layer-types"];
    let heads = ["modernbert-mlm", "modernbert-sequence-cls", "modernbert-sequence-mean", "modernbert-token"];
    family(kind, &[&models[..], &heads].concat(), &["modernbert-tiny"]);
}

/// Language models with attention in both directions.
fn bidirectional(kind: &str) {
    let gemma = ["embedding-gemma", "embedding-gemma-wide"];
    let llama = ["llama-bidirec", "llama-bidirec-sequence", "mistral-bidirectional", "qwen2-bidirectional"];
    let qwen3 = ["pplx-embed", "voyage-4-nano"];
    family(kind, &[&gemma[..], &llama, &qwen3].concat(), &["embedding-gemma", "llama-bidirec"]);
}

fn eurobert(kind: &str) {
    let sequence = ["eurobert-sequence-late", "eurobert-sequence-mean", "eurobert-sequence-bos"];
    let models = ["eurobert", "eurobert-wide", "eurobert-mlm", "eurobert-token"];
    family(kind, &[&models[..], &sequence].concat(), &["eurobert"]);
}

fn t5(kind: &str) {
    let models = ["t5-relu", "t5-gated", "t5-base", "t5-whole", "mt5-tiny", "mt5-small", "umt5-tiny"];
    let heads = ["t5-token", "t5-sequence", "t5-sequence-gated"];
    family(kind, &[&models[..], &heads].concat(), &["t5-relu", "t5-gated", "mt5-tiny"]);
}

/// Settings that change the result and are not supported are refused with an explanation before
/// anything runs.
fn unsupported_settings_are_refused() {
    let cases = [
        ("distilbert-tiny", "activation", json!("telu"), "telu"),
        ("roberta-tiny", "position_embedding_type", json!("relative_key"), "relative_key"),
        ("roberta-tiny", "is_decoder", json!(true), "decoder"),
        ("roberta-tiny", "pad_token_id", json!(41), "pad_token_id"),
        ("flash-tiny", "position_embedding_type", json!("alibi"), "alibi"),
        ("flash-tiny", "is_decoder", json!(true), "decoder"),
        ("flash-tiny", "max_position_embeddings", json!(1u64 << 40), "positions"),
        ("flash-transformers", "rope_parameters", json!({"rope_type": "yarn", "factor": 2.0}), "rope_parameters"),
        ("flash-tiny", "rope_scaling", json!({"type": "linear", "factor": 2.0}), "rope_scaling"),
        ("flash-tasks", "lora_rank", json!(0), "lora_rank"),
        ("flash-tasks", "position_embedding_type", json!("absolute"), "lora_adaptations"),
        ("mpnet-tiny", "relative_attention_num_buckets", json!(16), "16"),
        ("electra-tiny", "num_attention_heads", json!(5), "heads"),
        ("jina-tiny", "position_embedding_type", json!("absolute"), "alibi"),
        ("jina-tiny", "feed_forward_type", json!("original"), "geglu"),
        ("nomic-tiny", "prenorm", json!(true), "prenorm"),
        ("nomic-tiny", "rotary_emb_interleaved", json!(true), "rotary_emb_interleaved"),
        ("nomic-tiny", "rotary_emb_scale_base", json!(512), "rotary_emb_scale_base"),
        ("nomic-tiny", "rotary_emb_fraction", json!(0.0), "rotary_emb_fraction"),
        ("nomic-tiny", "n_positions", json!(1u64 << 40), "positions"),
        ("nomic-tiny", "rotary_scaling_factor", json!(-1.0), "rotary_scaling_factor"),
        ("nomic-moe-tiny", "moe_normalize_expert_weights", json!(true), "moe_normalize_expert_weights"),
        ("gte-new-tiny", "layer_norm_type", json!("rms_norm"), "rms_norm"),
        ("gte-new-tiny", "position_embedding_type", json!("absolute"), "rope"),
        ("gte-new-tiny", "rope_scaling", json!({"type": "linear", "factor": 2.0}), "ntk"),
        ("gte-new-tiny", "logn_attention_scale", json!(true), "logn_attention_scale"),
        ("modernbert-tiny", "rope_scaling", json!({"rope_type": "yarn", "factor": 2.0}), "yarn"),
        ("modernbert-tiny", "hidden_activation", json!("telu"), "hidden_activation"),
        ("modernbert-tiny", "layer_types", json!(["full_attention"]), "layer_types"),
        ("modernbert-tiny", "global_attn_every_n_layers", json!(0), "global_attn_every_n_layers"),
        ("llama-bidirec", "layer_types", json!(["chunked_attention"]), "layer_types"),
        ("llama-bidirec", "rope_scaling", json!({"rope_type": "spiral"}), "rope_scaling"),
        ("embedding-gemma", "layer_types", json!(["full_attention"]), "layer_types"),
        ("embedding-gemma", "hidden_activation", json!("telu"), "hidden_activation"),
        ("eurobert", "rope_parameters", json!({"rope_type": "spiral"}), "rope_parameters"),
        ("eurobert", "hidden_act", json!("telu"), "hidden_act"),
        ("llama-bidirec-sequence", "temperature", json!(0.02), "temperature"),
        ("llama-bidirec-sequence", "pooling", json!("weighted_avg"), "weighted_avg"),
        ("eurobert-sequence-late", "classifier_pooling", json!("max"), "max"),
        ("t5-relu", "feed_forward_proj", json!("gated-telu"), "telu"),
        ("t5-relu", "relative_attention_num_buckets", json!(2), "buckets"),
        ("t5-sequence", "decoder_start_token_id", json!(99), "decoder_start_token_id"),
        ("t5-relu", "num_heads", json!(u64::MAX), "heads"),
    ];
    for (name, field, value, word) in cases {
        let why = Golden::open(name).refusal(field, value);
        assert!(why.contains(word), "{name} {field}: {why}");
    }
}

fn main() {
    Suite::new(devices())
        .on_each("bert", bert)
        .on_each("distilbert", distilbert)
        .on_each("roberta", roberta)
        .on_each("xlm_roberta_flash", xlm_roberta_flash)
        .on_each("mpnet", mpnet)
        .on_each("electra", electra)
        .on_each("jina_bert", jina_bert)
        .on_each("nomic_bert", nomic_bert)
        .on_each("gte", gte)
        .on_each("modernbert", modernbert)
        .on_each("bidirectional", bidirectional)
        .on_each("eurobert", eurobert)
        .on_each("t5", t5)
        .test("unsupported_settings_are_refused", unsupported_settings_are_refused)
        .run()
}
