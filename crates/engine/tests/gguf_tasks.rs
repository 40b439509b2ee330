//! Embedders and rerankers in GGUF, as llama.cpp's converter wrote them
//! (tools/goldens/gguf_embedders.py), against the folders they were converted from.

use sconce_engine::hub::{self, Files, Options, Reference};
use sconce_engine::{
    BeamSearch, DTypeChoice, DeviceChoice, EmbedOptions, Embedder, LoadOptions, Loaded, MultiVectorEncoder, Prompt,
    RankOptions, Reranker, Search, Seq2SeqOptions, Task, TaskModel, TextOrTokens, supports,
};
use sconce_ops::{DType, Device, Rung, WeightFormat};
use sconce_testkit::{Array, Arrays, GgufWriter, cosine, golden, json, materialize, worst};
use serde_json::Value;
use std::path::{Path, PathBuf};

fn options() -> LoadOptions {
    let cache = std::env::temp_dir();
    LoadOptions::new(Options::new(cache.clone(), cache)).with_device(DeviceChoice::Only(Device::Cpu))
}

fn reference(path: &Path) -> Reference {
    path.to_str().unwrap().parse().unwrap()
}

fn embedder(path: &Path) -> Embedder {
    embedder_with(path, options())
}

fn embedder_with(path: &Path, options: LoadOptions) -> Embedder {
    Embedder::load(&reference(path), &options, &()).unwrap()
}

fn gguf_path(name: &str) -> PathBuf {
    golden(name).join("model.gguf")
}

/// The texts of a golden that tokenize alike in both formats: a GGUF file does not record NFC
/// normalization.
fn texts(name: &str) -> Vec<String> {
    let answers = json(&golden(name).join("golden.json"));
    let cases = answers.get("cases").unwrap_or(&answers).as_array().unwrap();
    let all = cases.iter().filter(|c| c["prompt_name"].is_null()).map(|c| c["text"].as_str().unwrap().to_string());
    all.filter(|text| !text.contains('\u{301}')).collect()
}

#[test]
fn bert_gguf_embeddings_equal_its_folder() {
    let (file, folder) = (embedder(&gguf_path("gguf-bert")), embedder(&golden("st-prompts")));
    let texts = texts("st-prompts");
    assert!(texts.len() > 3);
    let none = Prompt::Text(String::new());
    let (got, want) = (file.embed(&texts, &none).unwrap(), folder.embed(&texts, &none).unwrap());
    for (i, text) in texts.iter().enumerate().filter(|(i, _)| !want.truncated.contains(i)) {
        assert_eq!(got.tokens[i], want.tokens[i], "{text:?}");
        assert!(worst(got.row(i), want.row(i)) <= 1e-6, "{text:?}");
    }
    assert!(file.plan().unread.is_empty(), "{:?}", file.plan().unread);
    assert_eq!(file.prompts().count(), 0);
    assert_eq!(Task::detect(&gguf_path("gguf-bert")).unwrap(), Task::Embed);
}

/// The families of encoders: the same weights and vocabulary in both formats.
#[test]
fn encoders_in_gguf_equal_their_folders() {
    let texts = [
        "",
        "hello",
        "The cat sat on the mat.",
        "A man is eating food, and they said that it was well made.",
        "caf\u{e9} 12345",
        "[MASK] the cat",
    ];
    for name in ["modern-bert", "jina-bert-v2", "jina-bert-v2-code", "nomic-bert-moe", "jina-bert-v3"] {
        let dir = materialize(&format!("gguf-{name}"));
        let path = dir.path().join("model.gguf");
        let (file, folder) = (embedder(&path), embedder(dir.path()));
        let none = Prompt::Text(String::new());
        let (got, want) = (file.embed(&texts, &none).unwrap(), folder.embed(&texts, &none).unwrap());
        let off = worst(&got.values, &want.values);
        assert_eq!(got.tokens, want.tokens, "{name}");
        assert!(off <= 2e-6, "{name}: off by {off:.1e}");
        assert!(file.plan().unread.is_empty(), "{name}: {:?}", file.plan().unread);
        assert_eq!(Task::detect(&path).unwrap(), Task::Embed, "{name}");
    }
}

/// EmbeddingGemma with its Dense layers, written as llama.cpp's converter writes it: norms are 1 + w,
/// and the file has neither prompts nor the scale of attention scores.
#[test]
fn embedding_gemma_in_gguf_equals_its_folder() {
    let dir = materialize("task-embed-gemma");
    let path = dir.path().join("model.gguf");
    std::fs::write(&path, embedding_gemma(dir.path()).bytes()).unwrap();
    let (file, folder) = (embedder(&path), embedder(dir.path()));
    let cases = json(&golden("task-embed-gemma").join("golden.json"));
    let ids = |case: &Value| case["ids"].as_array().unwrap().iter().map(|id| id.as_u64().unwrap() as u32).collect();
    let ids: Vec<Vec<u32>> = cases["cases"].as_array().unwrap().iter().map(ids).collect();
    let inputs: Vec<_> = ids.iter().map(|ids| TextOrTokens::Tokens(ids)).collect();
    let options = EmbedOptions::default();
    let (got, want) = (file.embed_with(&inputs, &options).unwrap(), folder.embed_with(&inputs, &options).unwrap());
    assert!(inputs.len() > 5 && want.tokens.iter().any(|n| *n > 17), "{:?}", want.tokens);
    assert_eq!((got.dimension, got.tokens.clone()), (want.dimension, want.tokens.clone()));
    let off = worst(&got.values, &want.values);
    assert!(off <= 1e-5, "off by {off:.1e}");
    assert!(file.plan().unread.is_empty(), "{:?}", file.plan().unread);
    assert_eq!(Task::detect(&path).unwrap(), Task::Embed);
    let [query, none] = [Prompt::Named("query".into()), Prompt::Default];
    assert_eq!(file.prompt(&query).unwrap(), folder.prompt(&query).unwrap());
    assert_eq!(file.prompt(&none).unwrap(), "");
    let error = Task::Generate.plan(&Files::local(&path), Device::Cpu, &self::options()).unwrap_err().to_string();
    assert!(error.contains("use_bidirectional_attention") || error.contains("embed"), "{error}");
    // The older files lack the Dense layers. Without them the vectors are other ones.
    let mut plain = embedding_gemma(dir.path());
    plain.tensors.retain(|t| !t.name.starts_with("dense_"));
    std::fs::write(&path, plain.bytes()).unwrap();
    let plain = embedder(&path).embed_with(&inputs, &options).unwrap();
    assert!(plain.dimension == got.dimension && worst(&plain.values, &want.values) > 0.01);
}

/// `task-embed-gemma` under llama.cpp's names.
fn embedding_gemma(dir: &Path) -> GgufWriter {
    const NAMES: [(&str, &str); 13] = [
        ("input_layernorm", "attn_norm"),
        ("self_attn.q_proj", "attn_q"),
        ("self_attn.k_proj", "attn_k"),
        ("self_attn.v_proj", "attn_v"),
        ("self_attn.o_proj", "attn_output"),
        ("self_attn.q_norm", "attn_q_norm"),
        ("self_attn.k_norm", "attn_k_norm"),
        ("post_attention_layernorm", "post_attention_norm"),
        ("pre_feedforward_layernorm", "ffn_norm"),
        ("post_feedforward_layernorm", "post_ffw_norm"),
        ("mlp.gate_proj", "ffn_gate"),
        ("mlp.up_proj", "ffn_up"),
        ("mlp.down_proj", "ffn_down"),
    ];
    let config = json(&dir.join("config.json"));
    let number = |key: &str| config[key].as_u64().unwrap() as u32;
    let words = number("vocab_size") as usize;
    let tokens: Vec<String> = (0..words).map(|i| format!("<{i}>")).collect();
    let mut writer = GgufWriter::new("gemma-embedding")
        .u32("gemma-embedding.block_count", number("num_hidden_layers"))
        .u32("gemma-embedding.context_length", number("max_position_embeddings"))
        .u32("gemma-embedding.embedding_length", number("hidden_size"))
        .u32("gemma-embedding.feed_forward_length", number("intermediate_size"))
        .u32("gemma-embedding.attention.head_count", number("num_attention_heads"))
        .u32("gemma-embedding.attention.head_count_kv", number("num_key_value_heads"))
        .u32("gemma-embedding.attention.key_length", number("head_dim"))
        .u32("gemma-embedding.attention.value_length", number("head_dim"))
        .u32("gemma-embedding.attention.sliding_window", number("sliding_window"))
        .u32("gemma-embedding.attention.sliding_window_pattern", 2)
        .f32("gemma-embedding.attention.layer_norm_rms_epsilon", 1e-6)
        .f32("gemma-embedding.rope.freq_base", number("rope_theta") as f32)
        .f32("gemma-embedding.rope.freq_base_swa", number("rope_local_base_freq") as f32)
        .u32("gemma-embedding.pooling_type", 1)
        .str("tokenizer.ggml.model", "llama")
        .strs("tokenizer.ggml.tokens", &tokens.iter().map(String::as_str).collect::<Vec<_>>())
        .f32s("tokenizer.ggml.scores", &vec![0.0; words])
        .i32s("tokenizer.ggml.token_type", &[vec![2, 3, 3], vec![1; words - 3]].concat())
        .u32("tokenizer.ggml.bos_token_id", 1)
        .u32("tokenizer.ggml.eos_token_id", 2)
        .bool("tokenizer.ggml.add_eos_token", 1);
    let scale = (number("head_dim") as f32 / config["query_pre_attn_scalar"].as_f64().unwrap() as f32).sqrt();
    let weights = Arrays::open(&dir.join("model.safetensors"));
    let mut add = |from: &str, to: &str, change: &dyn Fn(f32) -> f32| {
        let Array { values, dims } = weights.f32(from);
        let dims: Vec<u64> = dims.iter().map(|n| *n as u64).collect();
        let values: Vec<f32> = values.into_iter().map(change).collect();
        writer = writer.clone().values(to, &dims, &values);
    };
    add("embed_tokens.weight", "token_embd.weight", &|v| v);
    add("norm.weight", "output_norm.weight", &|v| v + 1.0);
    for layer in 0..number("num_hidden_layers") {
        for (from, to) in NAMES {
            let change: &dyn Fn(f32) -> f32 = match to {
                // The file's model divides scores by the root of the head size.
                "attn_q_norm" => &|v| (v + 1.0) * scale,
                _ if to.ends_with("norm") => &|v| v + 1.0,
                _ => &|v| v,
            };
            add(&format!("layers.{layer}.{from}.weight"), &format!("blk.{layer}.{to}.weight"), change);
        }
    }
    for (folder, to) in [("2_Dense", "dense_2.weight"), ("3_Dense", "dense_3.weight")] {
        let Array { values, dims } = Arrays::open(&dir.join(folder).join("model.safetensors")).f32("linear.weight");
        let dims: Vec<u64> = dims.iter().map(|n| *n as u64).collect();
        writer = writer.values(to, &dims, &values);
    }
    writer
}

/// Encoders keep quantized blocks, in layers, word embeddings and experts. Their products also
/// quantize activations, so vectors are compared by their cosine.
#[test]
fn quantized_encoders_keep_their_blocks() {
    let texts = ["hello", "The cat sat on the mat.", "A man is eating food, and they said that it was well made."];
    let dir = tempfile::tempdir().unwrap();
    for name in ["bert", "modern-bert", "jina-bert-v2", "jina-bert-v2-code", "nomic-bert-moe", "jina-bert-v3"] {
        let original = GgufWriter::parse(&std::fs::read(gguf_path(&format!("gguf-{name}"))).unwrap());
        let save = |as_floats: bool| {
            let path = dir.path().join(format!("{name}-{as_floats}.gguf"));
            std::fs::write(&path, original.clone().in_q8_0(as_floats).bytes()).unwrap();
            path
        };
        let (blocks, floats) = (embedder(&save(false)), embedder(&save(true)));
        let none = Prompt::Text(String::new());
        let (got, want) = (blocks.embed(&texts, &none).unwrap(), floats.embed(&texts, &none).unwrap());
        for (got, want) in got.rows().zip(want.rows()) {
            let similarity = cosine(got, want);
            assert!(similarity >= 0.999, "{name}: {similarity}");
        }
        let (kept, widened) = (blocks.plan(), floats.plan());
        assert_eq!((kept.weight_format, widened.weight_format), (WeightFormat::File, WeightFormat::Activations));
        assert_eq!(kept.dtype, DType::F32);
        assert!(kept.weights < widened.weights, "{name}: {} of {}", kept.weights, widened.weights);
        for step in kept.steps.iter().filter(|step| step.op == "linear") {
            assert!(step.detail.contains("q8_0"), "{name}: {} {}", step.op, step.detail);
        }
        let words = kept.steps.iter().find(|step| step.op == "embed").unwrap();
        assert!(words.detail.contains("q8_0"), "{name}: {}", words.detail);
        for (device, dtype) in [(Device::Cuda(0), DType::F16), (Device::Metal(0), DType::F16)] {
            let options = options().with_batch_tokens(Some(64));
            let plan = Task::Embed.plan(&Files::local(&save(false)), device, &options).unwrap();
            assert_eq!((plan.weight_format, plan.dtype), (WeightFormat::File, dtype), "{name} on {device}");
            for step in &plan.steps {
                assert_eq!(step.rung, Ok(Rung::Fused), "{name}: {} on {device}", step.op);
            }
        }
        let forced = embedder_with(&save(false), options().with_dtype(DType::F32));
        let off = worst(&forced.embed(&texts, &none).unwrap().values, &want.values);
        assert!(off <= 2e-6, "{name} in f32: off by {off:.1e}");
    }
}

#[test]
fn modern_bert_reranker_in_gguf_equals_its_folder() {
    let dir = materialize("gguf-modern-bert-rank");
    let path = dir.path().join("model.gguf");
    let score = |path: &Path| {
        let reranker = Reranker::load(&reference(path), &options(), &()).unwrap();
        let documents = ["The cat sat on the mat.", "hello world", ""];
        let mut ranked =
            reranker.rerank("where is the cat?", &documents, RankOptions::default().with_raw(true)).unwrap().ranked;
        ranked.sort_by_key(|r| r.index);
        ranked.into_iter().map(|r| r.score).collect::<Vec<_>>()
    };
    let (got, want) = (score(&path), score(dir.path()));
    assert!(worst(&got, &want) <= 1e-5, "{got:?} {want:?}");
    assert_eq!(Task::detect(&path).unwrap(), Task::Rerank);
}

/// The file is quantized to q8_0, so embeddings are compared by their cosine.
#[test]
fn decoder_gguf_pools_the_last_token() {
    let (file, dir) = (embedder(&gguf_path("gguf-qwen3-embed")), materialize("task-embed-qwen3"));
    let (folder, texts) = (embedder(dir.path()), texts("task-embed-qwen3"));
    let (got, want) = (file.embed(&texts, &Prompt::Default), folder.embed(&texts, &Prompt::Default));
    let (got, want) = (got.unwrap(), want.unwrap());
    for (i, text) in texts.iter().enumerate().filter(|(i, _)| !want.truncated.contains(i)) {
        assert_eq!(got.tokens[i], want.tokens[i], "{text:?}");
        let similarity = cosine(got.row(i), want.row(i));
        assert!(similarity >= 0.999, "{text:?}: {similarity}");
    }
    assert_eq!(Task::detect(&gguf_path("gguf-qwen3-embed")).unwrap(), Task::Embed);
}

#[test]
fn reranker_gguf_scores_equal_its_folder() {
    let (path, dir) = (gguf_path("gguf-qwen3-rerank"), materialize("task-rerank-qwen3"));
    let load = |path: &Path| Reranker::load(&reference(path), &options(), &()).unwrap();
    let documents = ["The cat sat on the mat.", "Paris", ""];
    let raw = RankOptions::default().with_raw(true);
    let score = |reranker: &Reranker| {
        let mut ranked = reranker.rerank("where is the cat?", &documents, raw).unwrap().ranked;
        ranked.sort_by_key(|r| r.index);
        ranked.into_iter().map(|r| r.score).collect::<Vec<_>>()
    };
    let (got, want) = (score(&load(&path)), score(&load(dir.path())));
    assert!(worst(&got, &want) <= 0.05 * worst(&want, &[0.0; 3]), "{got:?} {want:?}");
    let error = Embedder::load(&reference(&path), &options(), &()).err().unwrap().to_string();
    assert!(error.contains("sconce rerank"), "{error}");
    assert_eq!(Task::detect(&path).unwrap(), Task::Classify);
    assert!(Task::Classify.plan(&Files::local(&path), Device::Cpu, &options()).is_ok());
}

/// Quantized weights stay as they are unless `--dtype` asks for floats, and our kernels take them.
#[test]
fn blocks_stay_quantized_on_every_device() {
    let smollm = hub::resolve(&"smollm".parse().unwrap(), &Options::from_env().unwrap(), &())
        .expect("SmolLM2 comes from the package registry");
    let plan = |device, dtype: DTypeChoice| {
        let options = options().with_dtype(dtype).with_batch_tokens(Some(64));
        Task::Generate.plan(&smollm, device, &options).unwrap()
    };
    for (device, dtype) in [(Device::Cpu, DType::F32), (Device::Cuda(0), DType::F16), (Device::Metal(0), DType::F16)] {
        let (blocks, floats) = (plan(device, DTypeChoice::Default), plan(device, dtype.into()));
        assert_eq!((blocks.weight_format, floats.weight_format), (WeightFormat::File, WeightFormat::Activations));
        assert_eq!((blocks.dtype, floats.dtype), (dtype, dtype), "{device}");
        for step in &blocks.steps {
            assert_eq!(step.rung, Ok(Rung::Fused), "{} on {device}", step.op);
        }
        // 32 elements of a matrix are 20 bytes in q4_1; vectors are in f32 or f16 in both.
        assert!(blocks.weights < floats.weights / 3 * 2, "{} {}", blocks.weights, floats.weights);
        assert!(blocks.dtype_reason.contains("as in the files"), "{}", blocks.dtype_reason);
        // The KV cache has its own number in the error.
        let error = blocks.check(blocks.bytes() - 1).unwrap_err().to_string();
        assert!(error.contains(" weights, ") && error.contains(" KV cache, "), "{error}");
    }
}

/// A T5 in GGUF has the same task as one in a folder.
#[test]
fn t5_gguf_is_detected_planned_and_loaded() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("t5.gguf");
    std::fs::write(&path, GgufWriter::t5().bytes()).unwrap();
    let files = Files::local(&path);
    assert_eq!(Task::detect(&path).unwrap(), Task::Seq2Seq);
    let support = supports(Device::Cpu, &files, &options()).unwrap();
    assert!(support.is_full() && support.task == Task::Seq2Seq, "{:?}", support.refusals);
    let TaskModel::Seq2Seq(model) = support.task.load(&files, &options(), &()).unwrap() else { panic!("no T5") };
    let answers = model.generate(&["a b"], &Seq2SeqOptions::default().with_max_tokens(Some(4))).unwrap();
    assert_eq!(answers[0].answers.len(), 1);
    // More beams than vocabulary: fewer answers come back than were requested, and the call does
    // not wait for the others.
    let search = BeamSearch { num_beams: 10, num_return_sequences: 10, ..BeamSearch::default() };
    let options = Seq2SeqOptions::default()
        .with_search(Some(Search::Beams(search)))
        .with_max_tokens(Some(1))
        .with_ignore_end(false);
    let found = model.generate(&["a b"], &options).unwrap().remove(0).answers;
    assert!((1..=7).contains(&found.len()) && found.iter().all(|answer| answer.score.is_some()), "{found:?}");
}

#[test]
fn multi_vector_and_tag_tasks_refuse_gguf() {
    let path = gguf_path("gguf-bert");
    let error = MultiVectorEncoder::load(&reference(&path), &options(), &()).err().unwrap().to_string();
    assert!(error.contains("a model for embed"), "{error}");
    assert!(
        Task::Tag
            .plan(&Files::local(&path), Device::Cpu, &options())
            .unwrap_err()
            .to_string()
            .contains("a model for embed")
    );
}

/// The files of tools/goldens/gguf_embedders.py, in f32: the same vectors to the last bits.
#[test]
#[ignore = "needs models that tools/goldens/gguf_embedders.py makes; SCONCE_GGUF_EMBEDDERS=DIR"]
fn converted_embedders_equal_their_folders() {
    let root = PathBuf::from(std::env::var_os("SCONCE_GGUF_EMBEDDERS").expect("SCONCE_GGUF_EMBEDDERS"));
    let texts =
        ["hello", "Hello, World!", "The cat sat on the mat.", "A man is eating food.", "numbers 12345 and 6.78", ""];
    let mut seen = 0;
    for dir in std::fs::read_dir(root).unwrap().map(|entry| entry.unwrap().path()) {
        let file = dir.join("model.gguf");
        if !dir.join("modules.json").exists() {
            continue;
        }
        let none = Prompt::Text(String::new());
        let (got, want) = (embedder(&file).embed(&texts, &none).unwrap(), embedder(&dir).embed(&texts, &none).unwrap());
        let off = worst(&got.values, &want.values);
        println!("{}: {off:.1e}", dir.display());
        assert!(got.tokens == want.tokens && off <= 2e-6, "{}: off by {off:.1e}", dir.display());
        seen += 1;
    }
    assert!(seen >= 3);
}
