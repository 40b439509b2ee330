//! Every supported family is in the registry of models.

use super::super::family::NAMES;
use super::open;
use sconce_models::backbone;
use sconce_ops::{DType, Device, Place, Weights};
use sconce_testkit::GgufWriter as Writer;
use std::collections::BTreeSet;
use std::sync::Arc;

/// A file with every key that the configuration of any family needs.
fn complete_file(name: &str) -> Writer {
    let key = |key: &str| format!("{name}.{key}");
    let numbers = [
        ("block_count", 1),
        ("context_length", 64),
        ("embedding_length", 8),
        ("feed_forward_length", 8),
        ("attention.head_count", 1),
        ("attention.relative_buckets_count", 4),
        ("attention.sliding_window", 4),
        ("expert_feed_forward_length", 8),
        ("expert_shared_feed_forward_length", 8),
        ("expert_used_count", 1),
    ];
    let writer = numbers.into_iter().fold(Writer::new(name), |writer, (name, n)| writer.u32(&key(name), n));
    writer
        .f32(&key("attention.layer_norm_rms_epsilon"), 1e-5)
        .f32(&key("attention.layer_norm_epsilon"), 1e-5)
        .tensor("token_embd.weight", &[3, 8])
        .tensor("position_embd.weight", &[4, 8])
        .tensor("blk.0.ffn_up.weight", &[8, 8])
}

#[test]
fn every_gguf_family_is_in_the_model_registry() {
    let types = |writer: Writer| writer.tensor("token_types.weight", &[2, 8]);
    let mut files: Vec<Writer> = NAMES
        .iter()
        .map(|name| match *name {
            "qwen2moe" | "qwen3moe" => complete_file(name).u32(&format!("{name}.expert_count"), 2),
            "nomic-bert-moe" => types(complete_file(name))
                .u32("nomic-bert-moe.moe_every_n_layers", 2)
                .u32("nomic-bert-moe.expert_count", 2),
            "jina-bert-v3" => types(complete_file(name)).f32("jina-bert-v3.rope.freq_base", 1e4),
            name => types(complete_file(name)),
        })
        .collect();
    files.push(complete_file("llama").u32("llama.expert_count", 2));
    files.push(complete_file("bert"));
    files.push(types(complete_file("bert")).str("tokenizer.ggml.model", "gpt2"));
    files.push(types(complete_file("bert")).str("tokenizer.ggml.model", "t5"));
    files.push(complete_file("t5").tensor("enc.blk.1.attn_rel_b.weight", &[4, 1]));
    let mut kinds = BTreeSet::new();
    for file in files {
        let gguf = Arc::new(open(&file).unwrap());
        let config = gguf.config().unwrap_or_else(|error| panic!("{}: {error}", gguf.architecture()));
        kinds.insert(config["model_type"].to_string());
        let weights = Weights::new(gguf, DType::F32, Place::phantom(Device::Cpu));
        // The tensors are missing, so other errors are expected.
        if let Err(error) = backbone(&config, &weights) {
            assert!(!error.to_string().contains("is not supported; these are"), "{error}");
        }
    }
    assert_eq!(kinds.len(), 24, "{kinds:?}");
}

/// Settings that the equivalent configuration cannot hold.
#[test]
fn encoders_with_scaled_rope_are_refused() {
    let types = |name: &str| complete_file(name).tensor("token_types.weight", &[2, 8]);
    for name in ["nomic-bert", "modern-bert", "jina-bert-v3"] {
        let file = types(name).f32(&format!("{name}.rope.freq_base"), 1e4);
        assert!(open(&file).unwrap().config().is_ok(), "{name}");
        let scaled = file.clone().str(&format!("{name}.rope.scaling.type"), "linear");
        let scaled = scaled.f32(&format!("{name}.rope.scaling.factor"), 4.0);
        let partial = file.u32(&format!("{name}.rope.dimension_count"), 4);
        for (file, key) in [(scaled, "rope.scaling.type"), (partial, "rope.dimension_count")] {
            let error = open(&file).unwrap().config().unwrap_err().to_string();
            assert!(error.contains(key), "{name}: {error}");
        }
    }
}
