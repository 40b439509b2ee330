//! Hostile, truncated or damaged files: an error that names the key or tensor, never a panic, and
//! no more memory than the file is long.

use super::super::Gguf;
use super::{open, open_bytes};
use sconce_testkit::{GgufTensor as Tensor, GgufWriter as Writer};

/// Reads everything from an opened file.
fn read_all(gguf: &Gguf) {
    let _ = gguf.config();
    let _ = (gguf.chat_template(None), gguf.chat_template(Some("tool_use")));
    let _ = gguf.pooling();
    let _ = gguf.vocabulary();
    for name in gguf.names() {
        let stored = gguf.tensor(&name).unwrap();
        assert_eq!(gguf.shape(&name).unwrap(), (stored.kind, &stored.dims[..]));
    }
}

/// Models that cover every reversed conversion, so that damage reaches it.
fn models() -> Vec<Vec<u8>> {
    let falcon = Writer::new("falcon")
        .u32("falcon.block_count", 1)
        .u32("falcon.context_length", 64)
        .u32("falcon.embedding_length", 8)
        .u32("falcon.attention.head_count", 4)
        .u32("falcon.attention.head_count_kv", 2)
        .f32("falcon.attention.layer_norm_epsilon", 1e-5)
        .tensor("token_embd.weight", &[3, 8])
        .tensor("blk.0.attn_qkv.weight", &[16, 8])
        .tensor("blk.0.ffn_up.weight", &[4, 8]);
    let mixtral = Writer::llama()
        .u32("llama.expert_count", 2)
        .u32("llama.expert_used_count", 1)
        .tensor("blk.0.ffn_gate_exps.weight", &[2, 2, 32])
        .tensor("rope_freqs.weight", &[2]);
    let gemma = Writer::new("gemma3")
        .u32("gemma3.block_count", 1)
        .u32("gemma3.context_length", 64)
        .u32("gemma3.embedding_length", 8)
        .u32("gemma3.attention.head_count", 1)
        .u32("gemma3.attention.sliding_window", 4)
        .array("gemma3.attention.sliding_window_pattern", 7, 1, &[1])
        .f32("gemma3.attention.layer_norm_rms_epsilon", 1e-5)
        .tensor("token_embd.weight", &[3, 8])
        .blocks("output_norm.weight", &[8], 1, vec![0x3c; 16]);
    let roberta = Writer::new("bert")
        .u32("bert.block_count", 1)
        .u32("bert.embedding_length", 8)
        .u32("bert.feed_forward_length", 8)
        .u32("bert.attention.head_count", 2)
        .u32("bert.pooling_type", 2)
        .f32("bert.attention.layer_norm_epsilon", 1e-5)
        .str("tokenizer.ggml.model", "gpt2")
        .u32("tokenizer.ggml.padding_token_id", 1)
        .tensor("token_embd.weight", &[3, 8])
        .tensor("token_types.weight", &[8])
        .tensor("position_embd.weight", &[4, 8]);
    let stablelm = Writer::new("stablelm")
        .u32("stablelm.attention.head_count", 2)
        .u32("stablelm.embedding_length", 16)
        .tensor("blk.0.attn_q_norm.weight", &[2, 8])
        .tensor("blk.0.attn_qkv.weight", &[48, 16]);
    [Writer::llama(), falcon, mixtral, gemma, roberta, stablelm].iter().map(Writer::bytes).collect()
}

#[test]
fn truncated_files_are_errors() {
    for bytes in models() {
        read_all(&open_bytes(&bytes).unwrap());
        // The padding of the last tensor is optional.
        for length in 0..bytes.len() - 32 {
            assert!(open_bytes(&bytes[..length]).is_err(), "cut to {length} of {}", bytes.len());
        }
    }
}

#[test]
fn changed_header_bytes_never_panic() {
    for bytes in models() {
        let mut changed = bytes.clone();
        // Tensor data may be anything; the header is what precedes it.
        let header = bytes.len().min(1600);
        for at in 0..header {
            for flip in [0x01, 0x80, 0xff, bytes[at]] {
                changed[at] = bytes[at] ^ flip;
                if let Ok(gguf) = open_bytes(&changed) {
                    read_all(&gguf);
                }
            }
            changed[at] = bytes[at];
        }
    }
}

/// Checks the error of an invalid file.
#[track_caller]
fn assert_error(writer: &Writer, what: &str) {
    match open(writer) {
        Ok(_) => panic!("opened; `{what}` was expected"),
        Err(error) => assert!(error.what.contains(what), "`{}` does not contain `{what}`", error.what),
    }
}

#[test]
fn unsupported_versions_and_other_files_are_rejected() {
    assert!(open_bytes(b"").err().unwrap().what.contains("not a GGUF file"));
    assert!(open_bytes(b"<html>").err().unwrap().what.contains("not a GGUF file"));
    let of = |version| Writer { version, ..Writer::llama() };
    assert_error(&of(1), "version 1");
    assert_error(&of(4), "version 4; 2 and 3 are supported");
    assert_error(&of(3u32.swap_bytes()), "big-endian");
    assert!(open(&of(2)).is_ok());
}

#[test]
fn counts_beyond_the_file_are_rejected() {
    for count in [1 << 16, 1 << 32, 1 << 60, u64::MAX] {
        assert_error(&Writer { counts: Some((count, 15)), ..Writer::llama() }, "tensor");
        assert_error(&Writer { counts: Some((4, count)), ..Writer::llama() }, "key");
        assert_error(&Writer::llama().array("long", 8, count, &[]), "`long`");
        assert_error(&Writer::llama().array("long", 12, count, &[]), "ends inside the value of `long`");
        assert_error(&Writer::llama().raw("long", 8, &count.to_le_bytes()), "ends inside the value of `long`");
    }
}

#[test]
fn invalid_metadata_values_are_rejected() {
    assert_error(&Writer::llama().raw("odd", 13, &[]), "`odd` of the unknown type 13");
    assert_error(&Writer::llama().array("odd", 13, 0, &[]), "`odd` of the unknown type 13");
    let deep: Vec<u8> = (0..1000).flat_map(|_| [9u32.to_le_bytes(), 1u32.to_le_bytes(), [0; 4]].concat()).collect();
    assert_error(&Writer::llama().raw("deep", 9, &deep), "array of arrays in the value of `deep`");
    assert_error(&Writer::llama().bool("maybe", 2), "2 for a boolean in the value of `maybe`");
    assert_error(&Writer::llama().raw("bytes", 8, b"\x01\0\0\0\0\0\0\0\xff"), "`bytes` that is not UTF-8");
    assert_error(&Writer::llama().array("bytes", 8, 1, b"\x01\0\0\0\0\0\0\0\xff"), "`bytes` that is not UTF-8");
    assert_error(&Writer::llama().u32("twice", 1).u32("twice", 1), "`twice` twice");
    assert_error(&Writer::llama().u32("general.alignment", 0), "alignment 0");
    assert_error(&Writer::llama().u32("general.alignment", 24), "alignment 24");
    assert_error(&Writer::llama().str("general.alignment", "32"), "general.alignment");
    assert_error(&Writer::llama().str("a\u{1b}[2J", "").str("a\u{1b}[2J", ""), "`a\\u{1b}[2J`");
}

#[test]
fn invalid_tensors_are_rejected() {
    let with = |change: fn(&mut Tensor)| {
        let mut writer = Writer::llama();
        change(writer.tensors.last_mut().unwrap());
        writer
    };
    let name = "`blk.0.attn_k.weight`";
    for (change, what) in [
        ((|t| t.kind = 4) as fn(&mut Tensor), "its type 4 is unknown"),
        (|t| t.kind = 43, "its type 43 is unknown"),
        (|t| t.kind = 12, "not whole blocks of 256 in Q4_K"),
        (|t| t.dims = vec![32, 0], "not all larger than 0"),
        (|t| t.dims = vec![1 << 32, 1 << 32], "larger than any memory"),
        (|t| t.dims = vec![1 << 63, 2], "larger than any memory"),
        (|t| t.dims = vec![32, 1 << 40], "beyond the end"),
        (|t| t.dims = vec![2; 5], "a tensor of 5 dimensions"),
        (|t| t.dims = vec![], "a tensor of 0 dimensions"),
        (|t| t.dims = vec![32, 3], "do not divide into 1 heads"),
        (|t| t.offset = Some(8), "no multiple of the alignment 32"),
        (|t| t.offset = Some(1 << 20), "beyond the end"),
        (|t| t.offset = Some(u64::MAX - 31), "beyond the end"),
    ] {
        assert_error(&with(change), name);
        assert_error(&with(change), what);
    }
    assert_error(&with(|t| t.offset = Some(0)), "`blk.0.attn_k.weight` and `token_embd.weight` in the same place");
    assert_error(&with(|t| t.name = "token_embd.weight".into()), "the tensor `token_embd.weight` twice");
    let twice = "\n".repeat(1000);
    assert_error(&Writer::llama().tensor(&twice, &[1]).tensor(&twice, &[1]), "`\\n\\n");
}

#[test]
fn position_table_without_dimensions_is_rejected() {
    let roberta = Writer::new("bert").str("tokenizer.ggml.model", "gpt2").u32("tokenizer.ggml.padding_token_id", 1);
    assert_error(&roberta.blocks("position_embd.weight", &[], 0, vec![0; 4]), "`position_embd.weight`");
}

#[test]
fn unsupported_models_are_rejected() {
    assert_error(&Writer::new("mamba"), "architecture `mamba`; these are supported: llama");
    assert_error(&Writer::new("qwen2vl"), "architecture `qwen2vl`; these are supported: llama");
    assert_error(&Writer::llama().str("general.type", "adapter"), "type `adapter`");
    assert_error(&Writer::new("bert").str("tokenizer.ggml.model", "rwkv"), "tokenizer `rwkv`");
    let layers = |n: i32| Writer::llama().i32s("llama.attention.sliding_window", &[n]);
    assert!(open(&layers(0)).is_ok());
    let bare = open(&Writer::new("llama")).unwrap();
    assert!(bare.config().unwrap_err().what.contains("`llama.attention.head_count`"));
    let many = open(
        &Writer::new("gemma2")
            .u32("gemma2.block_count", u32::MAX)
            .u32("gemma2.attention.head_count", 1)
            .u32("gemma2.embedding_length", 8)
            .tensor("token_embd.weight", &[1, 8]),
    )
    .unwrap();
    assert!(many.config().unwrap_err().what.contains("4294967295 layers, but holds 1 tensors"));
    let scaled = open(&Writer::llama().f32("llama.logit_scale", 0.5)).unwrap();
    assert!(scaled.config().unwrap_err().what.contains("`llama.logit_scale`"));
}

#[test]
fn huge_head_size_is_rejected_without_allocation() {
    let key = |size: u64| Writer::new("llama").raw("llama.attention.key_length", 10, &size.to_le_bytes());
    let writer =
        key(1 << 60).u32("llama.attention.head_count", 1).u32("llama.embedding_length", 8).u32("llama.block_count", 1);
    let writer = writer.u32("llama.context_length", 8).tensor("token_embd.weight", &[1, 8]).values(
        "rope_freqs.weight",
        &[1],
        &[2.0],
    );
    assert!(open(&writer).unwrap().config().unwrap_err().what.contains("divides 1 frequencies"));
}

#[test]
fn many_tiny_experts_are_rejected() {
    let writer = Writer::llama().u32("llama.expert_count", 512).blocks(
        "blk.0.ffn_up_exps.weight",
        &[512, 1, 1],
        24,
        vec![0; 512],
    );
    assert_error(&writer, "512 slices of 1 bytes");
}
