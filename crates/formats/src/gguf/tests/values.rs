//! Metadata keys, vocabulary, chat templates and configuration.

use super::super::{Pooling, kind_name};
use super::open;
use sconce_testkit::GgufWriter as Writer;
use serde_json::json;

#[test]
fn metadata_values_are_read_by_type() {
    let writer = Writer::llama()
        .str("a.text", "Grüße")
        .f32("a.float", 1e-6)
        .raw("a.long", 10, &u64::MAX.to_le_bytes())
        .raw("a.minus", 5, &(-3i32).to_le_bytes())
        .raw("a.nan", 12, &f64::NAN.to_le_bytes())
        .array("a.bytes", 0, 3, &[1, 2, 255])
        .bool("a.yes", 1);
    let gguf = open(&writer).unwrap();
    let metadata = gguf.metadata();
    assert_eq!(metadata.str("a.text").unwrap(), Some("Grüße"));
    assert_eq!(metadata.f64("a.float").unwrap(), Some(1e-6));
    assert_eq!(metadata.u64("a.long").unwrap(), Some(u64::MAX));
    assert_eq!(metadata.f64("a.minus").unwrap(), Some(-3.0));
    assert_eq!(metadata.bool("a.yes").unwrap(), Some(true));
    assert_eq!(metadata.bytes("a.bytes").unwrap(), Some(&[1, 2, 255][..]));
    assert_eq!(metadata.u64("a.missing").unwrap(), None);
    for wrong in
        [metadata.u64("a.minus").map(|_| ()), metadata.str("a.float").map(|_| ()), metadata.f64("a.nan").map(|_| ())]
    {
        assert!(wrong.unwrap_err().what.contains("`a."));
    }
    assert!(metadata.strs("a.bytes").unwrap_err().what.contains("`a.bytes` that is not an array of texts"));
}

#[test]
fn vocabulary_is_read_and_validated() {
    let more = Writer::llama().u32("tokenizer.ggml.eot_token_id", 2).bool("tokenizer.ggml.add_bos_token", 1);
    let gguf = open(&more.strs("tokenizer.ggml.merges", &["a b"])).unwrap();
    let vocabulary = gguf.vocabulary().unwrap();
    assert_eq!(vocabulary.model, "llama");
    assert_eq!(vocabulary.tokens, ["<unk>", "a", "b"]);
    assert_eq!(vocabulary.scores.unwrap(), [0.0, -1.0, -2.0]);
    assert_eq!(vocabulary.types.unwrap(), [2, 1, 1]);
    assert_eq!(vocabulary.merges.unwrap(), ["a b"]);
    assert_eq!((vocabulary.bos, vocabulary.eos, vocabulary.eot), (Some(1), None, Some(2)));
    assert_eq!((vocabulary.add_bos, vocabulary.add_eos), (Some(true), None));
    let beyond = open(&Writer::llama().u32("tokenizer.ggml.eos_token_id", 3)).unwrap();
    assert!(beyond.vocabulary().unwrap_err().what.contains("3 for `tokenizer.ggml.eos_token_id`, but only 3 tokens"));
    let none = open(&Writer::llama().u32("tokenizer.ggml.eos_token_id", u32::MAX)).unwrap();
    assert_eq!(none.vocabulary().unwrap().eos, None);
    let uneven = Writer::new("llama").strs("tokenizer.ggml.tokens", &["a"]).f32s("tokenizer.ggml.scores", &[0.0, 1.0]);
    assert!(open(&uneven).unwrap().vocabulary().unwrap_err().what.contains("2 `tokenizer.ggml.scores` for 1 tokens"));
}

#[test]
fn chat_templates_pooling_and_type_names_are_read() {
    let writer = Writer::llama().str("tokenizer.chat_template.tool_use", "{{ tools }}").u32("llama.pooling_type", 3);
    let gguf = open(&writer).unwrap();
    assert_eq!(gguf.chat_template(None).unwrap(), Some("{{ messages }}"));
    assert_eq!(gguf.chat_template(Some("tool_use")).unwrap(), Some("{{ tools }}"));
    assert_eq!(gguf.chat_template(Some("rag")).unwrap(), None);
    assert_eq!(gguf.pooling().unwrap(), Some(Pooling::Last));
    assert_eq!((kind_name(12), kind_name(4)), (Some("Q4_K"), None));
}

#[test]
fn llama_config_matches_transformers() {
    let config = open(&Writer::llama()).unwrap().config().unwrap();
    let expected = json!({
        "model_type": "llama",
        "architectures": ["LlamaForCausalLM"],
        "vocab_size": 3,
        "hidden_size": 32,
        "intermediate_size": 16,
        "num_hidden_layers": 1,
        "num_attention_heads": 2,
        "num_key_value_heads": 1,
        "head_dim": 4,
        "max_position_embeddings": 64,
        "rms_norm_eps": 1e-5,
        "hidden_act": "silu",
        "attention_bias": false,
        "mlp_bias": false,
        "tie_word_embeddings": true,
        "rope_theta": 10_000.0,
        "rope_scaling": null,
        "rope_parameters": {"rope_type": "default", "rope_theta": 10_000.0},
        "bos_token_id": 1,
        "eos_token_id": null,
        "pad_token_id": null,
    });
    assert_eq!(config, expected);
}

#[test]
fn qwen_is_trained_on_a_quarter_of_its_context() {
    let config = |base: f32| {
        let writer = Writer::new("qwen")
            .u32("qwen.block_count", 1)
            .u32("qwen.context_length", 8192)
            .u32("qwen.embedding_length", 8)
            .u32("qwen.attention.head_count", 2)
            .f32("qwen.rope.freq_base", base)
            .f32("qwen.attention.layer_norm_rms_epsilon", 1e-6)
            .tensor("token_embd.weight", &[3, 8])
            .tensor("blk.0.ffn_up.weight", &[5, 8]);
        open(&writer).unwrap().config().unwrap()
    };
    let scaled = config(10_000.0);
    assert_eq!((&scaled["seq_length"], &scaled["use_dynamic_ntk"]), (&json!(2048), &json!(true)));
    assert_eq!((&scaled["intermediate_size"], &scaled["kv_channels"]), (&json!(10), &json!(4)));
    // The 72B.
    let unscaled = config(1_000_000.0);
    assert_eq!((&unscaled["seq_length"], &unscaled["use_logn_attn"]), (&json!(8192), &json!(false)));
}

#[test]
fn per_layer_arrays_must_be_constant() {
    let mut writer = Writer::new("llama").i32s("llama.attention.head_count", &[2, 2]).u32("llama.embedding_length", 32);
    writer = writer.tensor("blk.0.attn_q.weight", &[8, 32]);
    assert!(open(&writer).is_ok());
    let other = Writer::new("llama").i32s("llama.attention.head_count", &[2, 4]).u32("llama.embedding_length", 32);
    let error = open(&other.tensor("blk.0.attn_q.weight", &[8, 32])).err().unwrap();
    assert!(error.what.contains("`llama.attention.head_count` that differs between layers"));
}

#[test]
fn custom_alignment_is_respected() {
    let gguf = open(&Writer::llama().aligned(4096)).unwrap();
    assert_eq!(super::floats(&gguf, "model.norm.weight")[31], 31.0);
}

#[test]
fn named_chat_templates_do_not_replace_the_default() {
    let writer = Writer::llama().str("tokenizer.chat_template.tool_use", "{{ bos_token }}tools");
    let gguf = open(&writer.str("tokenizer.chat_template.rag", "{{ another }}")).unwrap();
    assert_eq!(gguf.chat_template(Some("tool_use")).unwrap(), Some("{{ bos_token }}tools"));
    assert!(gguf.chat_template(None).unwrap().is_some_and(|source| source.contains("messages")));
}
