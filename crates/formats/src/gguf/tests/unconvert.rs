//! Reversal of llama.cpp's conversion: rows, names and values.

use super::super::ggml;
use super::{floats, open};
use sconce_testkit::GgufWriter as Writer;
use serde_json::json;

/// The original row index of each row.
fn rows(gguf: &super::Gguf, name: &str, width: usize) -> Vec<usize> {
    floats(gguf, name).chunks(width).map(|row| row[0] as usize / width).collect()
}

#[test]
fn attention_rows_are_unpermuted() {
    let gguf = open(&Writer::llama().tensor("blk.0.attn_q.bias", &[8])).unwrap();
    // Two heads of four: in the file the halves alternate.
    assert_eq!(rows(&gguf, "model.layers.0.self_attn.q_proj.weight", 32), [0, 2, 1, 3, 4, 6, 5, 7]);
    assert_eq!(rows(&gguf, "model.layers.0.self_attn.k_proj.weight", 32), [0, 2, 1, 3]);
    assert_eq!(floats(&gguf, "model.layers.0.self_attn.q_proj.bias"), [0.0, 2.0, 1.0, 3.0, 4.0, 6.0, 5.0, 7.0]);
    assert_eq!(gguf.config().unwrap()["attention_bias"], json!(true));
}

#[test]
fn quantized_rows_are_unpermuted_whole() {
    // A row of 64 in Q4_0 is two blocks of 18 bytes.
    let bytes: Vec<u8> = (0..4u8).flat_map(|row| [row; 36]).collect();
    let mut writer = Writer::llama();
    writer.tensors.pop();
    let gguf = open(&writer.blocks("blk.0.attn_k.weight", &[4, 64], 2, bytes)).unwrap();
    let stored = gguf.tensor("model.layers.0.self_attn.k_proj.weight").unwrap();
    assert_eq!((stored.kind, &stored.dims[..]), (2, &[4, 64][..]));
    let firsts: Vec<u8> = stored.bytes.chunks(36).map(|row| row[35]).collect();
    assert_eq!(firsts, [0, 2, 1, 3]);
}

#[test]
fn fused_qkv_is_split_and_unpermuted() {
    let mut writer = Writer::llama();
    writer.tensors.truncate(2);
    let gguf = open(&writer.tensor("blk.0.attn_qkv.weight", &[16, 32])).unwrap();
    assert_eq!(rows(&gguf, "model.layers.0.self_attn.q_proj.weight", 32), [0, 2, 1, 3, 4, 6, 5, 7]);
    assert_eq!(rows(&gguf, "model.layers.0.self_attn.k_proj.weight", 32), [8, 10, 9, 11]);
    assert_eq!(rows(&gguf, "model.layers.0.self_attn.v_proj.weight", 32), [12, 13, 14, 15]);
}

#[test]
fn falcon_qkv_rows_are_regrouped() {
    let writer = Writer::new("falcon")
        .u32("falcon.embedding_length", 4)
        .u32("falcon.attention.head_count", 4)
        .u32("falcon.attention.head_count_kv", 2)
        .tensor("blk.0.attn_qkv.weight", &[8, 4]);
    let gguf = open(&writer).unwrap();
    // Four queries, two keys, two values of one row each become two queries, a key, a value; and
    // again.
    assert_eq!(rows(&gguf, "transformer.h.0.self_attention.query_key_value.weight", 4), [0, 1, 4, 6, 2, 3, 5, 7]);
}

#[test]
fn gpt_neox_qkv_rows_are_regrouped() {
    let writer = Writer::new("gptneox")
        .u32("gptneox.embedding_length", 4)
        .u32("gptneox.attention.head_count", 2)
        .tensor("blk.0.attn_qkv.weight", &[12, 4])
        .tensor("blk.0.attn_qkv.bias", &[12]);
    let gguf = open(&writer).unwrap();
    // For each of two heads of two rows: query, key, value.
    let order = [0, 1, 4, 5, 8, 9, 2, 3, 6, 7, 10, 11];
    assert_eq!(rows(&gguf, "gpt_neox.layers.0.attention.query_key_value.weight", 4), order);
    assert_eq!(floats(&gguf, "gpt_neox.layers.0.attention.query_key_value.bias"), order.map(|row| row as f32));
}

#[test]
fn experts_are_read_stacked_and_separate() {
    let moe = || Writer::llama().u32("llama.expert_count", 2).u32("llama.expert_used_count", 1);
    let stacked = open(&moe().tensor("blk.0.ffn_down_exps.weight", &[2, 2, 32])).unwrap();
    let separate = moe().tensor("blk.0.ffn_down.0.weight", &[2, 32]);
    let more: Vec<f32> = (64..128).map(|n| n as f32).collect();
    let separate = open(&separate.values("blk.0.ffn_down.1.weight", &[2, 32], &more)).unwrap();
    for expert in 0..2 {
        let name = format!("model.layers.0.block_sparse_moe.experts.{expert}.w2.weight");
        assert_eq!(floats(&stacked, &name)[0], 64.0 * expert as f32);
        assert_eq!(floats(&stacked, &name), floats(&separate, &name));
        assert_eq!(stacked.tensor(&name).unwrap().dims, [2, 32]);
    }
    assert_eq!(stacked.names(), separate.names());
    let both = moe().tensor("blk.0.ffn_down_exps.weight", &[2, 2, 32]).tensor("blk.0.ffn_down.0.weight", &[2, 32]);
    assert!(open(&both).err().unwrap().what.contains("`model.layers.0.block_sparse_moe.experts.0.w2.weight`"));
}

#[test]
fn gemma_norm_weights_are_reduced_by_one() {
    let half = |values: [f32; 2]| values.iter().flat_map(|&v| half::f16::from_f32(v).to_le_bytes()).collect();
    let writer = Writer::new("gemma").values("output_norm.weight", &[2], &[1.5, 0.25]).blocks(
        "blk.0.attn_norm.weight",
        &[2],
        ggml::F16,
        half([3.0, 0.5]),
    );
    let gguf = open(&writer).unwrap();
    assert_eq!(floats(&gguf, "model.norm.weight"), [0.5, -0.75]);
    assert_eq!(floats(&gguf, "model.layers.0.input_layernorm.weight"), [2.0, -0.5]);
    let blocks = Writer::new("gemma").blocks("output_norm.weight", &[32], 8, vec![0; 34]);
    assert!(open(&blocks).err().unwrap().what.contains("norm stored as Q8_0"));
}

#[test]
fn bert_embedding_tables_regain_their_shape() {
    let writer = Writer::new("bert")
        .str("tokenizer.ggml.model", "t5")
        .u32("tokenizer.ggml.padding_token_id", 1)
        .tensor("token_types.weight", &[4])
        .tensor("position_embd.weight", &[2, 4]);
    let gguf = open(&writer).unwrap();
    assert_eq!(gguf.tensor("embeddings.token_type_embeddings.weight").unwrap().dims, [1, 4]);
    let positions = gguf.tensor("embeddings.position_embeddings.weight").unwrap();
    assert_eq!(positions.dims, [4, 4]);
    let expected = [0.0, 0.0, 0.0, 0.0, 0.0, 0.0, 0.0, 0.0, 0.0, 1.0, 2.0, 3.0, 4.0, 5.0, 6.0, 7.0];
    assert_eq!(floats(&gguf, "embeddings.position_embeddings.weight"), expected);
}

#[test]
fn unknown_tensors_keep_their_names() {
    for name in ["blk.0.attn_q.scale", "blk.00.attn_v.weight", "blk.+0.attn_v.weight", "output.other.weight"] {
        let gguf = open(&Writer::llama().tensor(name, &[4])).unwrap();
        assert!(gguf.names().contains(&name.to_owned()));
    }
}

#[test]
fn llama3_rope_scaling_is_derived_from_frequencies() {
    // The formula of the paper's code, in f32 as in the converter.
    let divisors = |theta: f64, factor: f64, low: f64, high: f64, context: f64| -> Vec<f32> {
        let one = |i: u32| {
            let wave = std::f64::consts::TAU * theta.powf(f64::from(2 * i) / 128.0);
            let smooth = (context / wave - low) / (high - low);
            match (wave < context / high, wave > context / low) {
                (true, _) => 1.0,
                (_, true) => factor as f32,
                _ => (1.0 / ((1.0 - smooth) / factor + smooth)) as f32,
            }
        };
        (0..64).map(one).collect()
    };
    let scaling = |values: Vec<f32>| {
        let writer = Writer::new("llama")
            .u32("llama.block_count", 1)
            .u32("llama.context_length", 64)
            .u32("llama.embedding_length", 128)
            .u32("llama.attention.head_count", 1)
            .f32("llama.rope.freq_base", 500_000.0)
            .f32("llama.attention.layer_norm_rms_epsilon", 1e-5)
            .tensor("token_embd.weight", &[3, 128])
            .values("rope_freqs.weight", &[values.len() as u64], &values);
        open(&writer).unwrap().config().map(|config| config["rope_scaling"].clone())
    };
    let found = |factor: f64, low: f64, high: f64, context: u64| {
        json!({"rope_type": "llama3", "factor": factor, "low_freq_factor": low, "high_freq_factor": high,
               "original_max_position_embeddings": context})
    };
    assert_eq!(scaling(divisors(500_000.0, 32.0, 1.0, 4.0, 8192.0)).unwrap(), found(32.0, 1.0, 4.0, 8192));
    assert_eq!(scaling(divisors(500_000.0, 8.0, 1.0, 4.0, 4096.0)).unwrap(), found(8.0, 1.0, 4.0, 4096));
    // Twice the factors at twice the length are the same.
    assert_eq!(scaling(divisors(500_000.0, 8.0, 2.0, 5.0, 4096.0)).unwrap(), found(8.0, 1.0, 2.5, 2048));
    assert_eq!(scaling(vec![1.0; 64]).unwrap(), json!(null));
    let mut odd = divisors(500_000.0, 8.0, 1.0, 4.0, 8192.0);
    odd[30] *= 1.01;
    assert!(scaling(odd).unwrap_err().what.contains("`rope_freqs.weight`"));
    assert!(scaling(vec![2.0; 3]).is_err());
}
