//! Broken and hostile files: each gives a clear error; none a crash, a hang or a wrong answer.

use proptest::sample::select;
use sconce_engine::hub::{Files, Options};
use sconce_engine::{DeviceChoice, EmbedOptions, Embedder, ErrorClass, LoadOptions, Prompt, Task, TextOrTokens};
use sconce_ops::{DType, Device, Policy, Rung, Withdrawn};
use sconce_testkit::{DamagedFile, check, golden, json, materialize, mutations};
use serde_json::{Value, json};
use std::cell::Cell;
use std::path::Path;
use std::time::{Duration, Instant};
use tempfile::TempDir;

fn options() -> LoadOptions {
    let nowhere = std::env::temp_dir().join("sconce-no-cache");
    LoadOptions::new(Options::new(&nowhere, &nowhere))
        .with_device(DeviceChoice::Only(Device::Cpu))
        .with_batch_tokens(Some(64))
}

/// A copy of a tiny model that a test may damage.
fn copy_model(name: &str) -> TempDir {
    let tmp = TempDir::new().unwrap();
    copy_dir(&golden(name), tmp.path());
    tmp
}

fn copy_dir(from: &Path, to: &Path) {
    std::fs::create_dir_all(to).unwrap();
    for entry in std::fs::read_dir(from).unwrap().flatten() {
        let target = to.join(entry.file_name());
        if entry.file_type().unwrap().is_dir() {
            copy_dir(&entry.path(), &target);
        } else {
            std::fs::copy(entry.path(), target).unwrap();
        }
    }
}

fn load_and_embed(dir: &Path) -> Result<Vec<f32>, String> {
    let reference = dir.to_str().unwrap().parse().map_err(|e: sconce_engine::hub::HubError| e.to_string())?;
    let embedder = Embedder::load(&reference, &options(), &()).map_err(|e| e.to_string())?;
    let e = embedder.embed(&["the cat sat", ""], &Prompt::Default).map_err(|e| e.to_string())?;
    Ok(e.values)
}

/// The error after `spoil` has changed one file.
fn error_after(file: &str, spoil: impl FnOnce(Vec<u8>) -> Vec<u8>) -> String {
    let model = copy_model("st-cls-dense");
    let path = model.path().join(file);
    let bytes = spoil(std::fs::read(&path).unwrap());
    std::fs::write(&path, bytes).unwrap();
    let error = load_and_embed(model.path()).expect_err(file);
    assert!(!error.contains("internal error"), "{error}");
    error
}

fn error_with(file: &str, key: &str, value: Value) -> String {
    error_after(file, |bytes| {
        let mut config: Value = serde_json::from_slice(&bytes).unwrap();
        config[key] = value;
        config.to_string().into_bytes()
    })
}

#[test]
fn truncated_and_inconsistent_safetensors_are_refused_by_name() {
    let spoils: [fn(Vec<u8>) -> Vec<u8>; 6] = [
        |b| b[..b.len() - 1].to_vec(),
        |b| b[..100].to_vec(),
        |_| Vec::new(),
        |b| [&u64::MAX.to_le_bytes(), &b[8..]].concat(),
        |b| [&b[..], b"more"].concat(),
        |b| b.iter().map(|c| if *c == b'[' { b'{' } else { *c }).collect(),
    ];
    for spoil in spoils {
        let error = error_after("model.safetensors", spoil);
        assert!(error.contains("model.safetensors"), "{error}");
    }
}

#[test]
fn config_fields_that_contradict_the_weights_are_refused() {
    for (key, value) in [
        ("hidden_size", json!(64)),
        ("vocab_size", json!(1_000_000_000_000u64)),
        ("max_position_embeddings", json!(1u64 << 62)),
        ("num_hidden_layers", json!(1_000_000_000)),
        ("intermediate_size", json!(63)),
        ("type_vocab_size", json!(7)),
    ] {
        let error = error_with("config.json", key, value);
        assert!(error.contains("weight "), "{key}: {error}");
    }
    for (key, value) in [
        ("num_attention_heads", json!(0)),
        ("num_attention_heads", json!(5)),
        ("hidden_act", json!("telu")),
        ("position_embedding_type", json!("relative_key")),
        ("model_type", json!("mamba")),
        ("hidden_size", json!(-1)),
        ("layer_norm_eps", json!("small")),
        ("is_decoder", json!(true)),
    ] {
        let error = error_with("config.json", key, value);
        assert!(error.contains("config.json"), "{key}: {error}");
    }
}

/// Tensors without elements fit any shape with a zero in it, so sizes must be checked by
/// themselves.
#[test]
fn empty_tensors_do_not_bypass_size_checks() {
    let empty =
        |name: &str, dims: &str| format!("\"{name}\":{{\"dtype\":\"F32\",\"shape\":{dims},\"data_offsets\":[0,0]}}");
    let file = |entries: &[String]| {
        let header = format!("{{{}}}", entries.join(","));
        [&(header.len() as u64).to_le_bytes()[..], header.as_bytes()].concat()
    };
    let model = copy_model("st-cls-dense");
    let mut config = json(&model.path().join("config.json"));
    config["hidden_size"] = json!(0);
    config["num_hidden_layers"] = json!(0);
    config["max_position_embeddings"] = json!(1u64 << 40);
    config["vocab_size"] = json!(5);
    config["type_vocab_size"] = json!(1);
    std::fs::write(model.path().join("config.json"), config.to_string()).unwrap();
    let weights = file(&[
        empty("embeddings.word_embeddings.weight", "[5,0]"),
        empty("embeddings.position_embeddings.weight", "[1099511627776,0]"),
        empty("embeddings.token_type_embeddings.weight", "[1,0]"),
        empty("embeddings.LayerNorm.weight", "[0]"),
        empty("embeddings.LayerNorm.bias", "[0]"),
    ]);
    std::fs::write(model.path().join("model.safetensors"), weights).unwrap();
    let error = load_and_embed(model.path()).unwrap_err();
    assert!(error.contains("does not divide"), "{error}");

    let model = copy_model("st-cls-dense");
    let dense = model.path().join("2_Dense");
    let mut config = json(&dense.join("config.json"));
    config["out_features"] = json!(0);
    std::fs::write(dense.join("config.json"), config.to_string()).unwrap();
    let weights = file(&[empty("linear.weight", "[0,32]"), empty("linear.bias", "[0]")]);
    std::fs::write(dense.join("model.safetensors"), weights).unwrap();
    assert!(load_and_embed(model.path()).unwrap_err().contains("is empty"));
}

#[test]
fn weight_in_an_unsupported_dtype_is_an_error() {
    let error = error_after("model.safetensors", |b| {
        let header = 8 + u64::from_le_bytes(b[..8].try_into().unwrap()) as usize;
        let text = String::from_utf8(b[8..header].to_vec()).unwrap();
        let at = text.find("encoder.layer.0.output.dense.bias").unwrap();
        let spoiled = text[..at].to_string() + &text[at..].replacen("\"F32\"", "\"U32\"", 1);
        assert_eq!(spoiled.len(), text.len());
        [&b[..8], spoiled.as_bytes(), &b[header..]].concat()
    });
    assert!(error.contains("encoder.layer.0.output.dense.bias") && error.contains("U32"), "{error}");
}

#[test]
fn modules_outside_the_folder_or_with_code_are_refused() {
    let with = |entry: Value| {
        error_after("modules.json", |b| {
            let mut modules: Vec<Value> = serde_json::from_slice(&b).unwrap();
            modules[2] = entry;
            json!(modules).to_string().into_bytes()
        })
    };
    let entry = |class: &str, path: &str| json!({"idx": 2, "name": "2", "path": path, "type": class});
    assert!(with(entry("custom_code.Evil", "2_Dense")).contains("not run"));
    assert!(with(entry("sentence_transformers.models.Dense", "../../etc")).contains("leads out"));
    assert!(with(entry("sentence_transformers.models.Dense", "/etc")).contains("leads out"));
    assert!(with(entry("sentence_transformers.models.LSTM", "2_Dense")).contains("not supported"));
    assert!(error_with("2_Dense/config.json", "activation_function", json!("os.system")).contains("os.system"));
    assert!(error_with("2_Dense/config.json", "out_features", json!(u64::MAX)).contains("weight "));
    assert!(error_with("2_Dense/config.json", "in_features", json!(31)).contains("31"));
    assert!(error_with("1_Pooling/config.json", "pooling_mode", json!("median")).contains("median"));
    assert!(error_with("sentence_bert_config.json", "max_seq_length", json!(0)).contains("out of range"));
    assert!(error_with("config_sentence_transformers.json", "default_prompt_name", json!("x")).contains("`x`"));
}

#[test]
fn tokenizer_of_another_model_is_refused() {
    let error = error_after("tokenizer.json", |b| {
        let mut t: Value = serde_json::from_slice(&b).unwrap();
        let words = t["model"]["vocab"].as_object_mut().unwrap();
        words.values_mut().for_each(|id| *id = json!(id.as_u64().unwrap() + 5000));
        t.to_string().into_bytes()
    });
    assert!(error.contains("belong together") || error.contains("tokenizer"), "{error}");
    assert!(error_after("tokenizer.json", |b| b[..b.len() / 2].to_vec()).contains("tokenizer.json"));
    assert!(error_after("tokenizer.json", |_| b"{}".to_vec()).contains("tokenizer.json"));
}

#[test]
fn nan_weights_are_found_while_loading() {
    let error = error_after("model.safetensors", |mut b| {
        let header = 8 + u64::from_le_bytes(b[..8].try_into().unwrap()) as usize;
        b[header..].fill(0xff);
        b
    });
    assert!(error.contains("NaN"), "{error}");
}

#[test]
fn unreadable_checkpoints_and_empty_folders_are_refused_by_name() {
    let model = copy_model("st-cls-dense");
    std::fs::remove_file(model.path().join("golden.safetensors")).unwrap();
    std::fs::rename(model.path().join("model.safetensors"), model.path().join("pytorch_model.bin")).unwrap();
    let error = load_and_embed(model.path()).unwrap_err();
    // A torch checkpoint is parsed, without running its code, if it is one; this is not.
    assert!(error.contains("pytorch_model.bin") && error.contains("not a checkpoint of torch"), "{error}");
    std::fs::rename(model.path().join("pytorch_model.bin"), model.path().join("model.ckpt")).unwrap();
    let error = load_and_embed(model.path()).unwrap_err();
    assert!(error.contains("model.ckpt"), "{error}");
    assert!(load_and_embed(TempDir::new().unwrap().path()).unwrap_err().contains("config.json"));
}

#[test]
fn plan_check_refuses_missing_memory_and_kernels() {
    let plan_with = |policy: Policy, device| {
        let options = options().with_policy(policy).with_batch_tokens(None);
        Task::Embed.plan(&Files::local(&golden("st-cls-dense")), device, &options).unwrap()
    };
    let p = plan_with(Policy::default(), Device::Cpu);
    p.check(p.weights + p.workspace).unwrap();
    let error = p.check(p.weights + p.workspace - 1).unwrap_err().to_string();
    assert!(error.contains("model needs") && error.contains("free") && error.contains("--batch-tokens"), "{error}");
    assert!(!error.contains("KV cache"), "{error}");
    assert!(p.check(p.weights - 1).unwrap_err().to_string().contains("--dtype bf16"));

    let attention = Withdrawn { op: "attention".into(), kind: "cuda".into(), dtype: DType::F16, rung: Rung::Fused };
    let fused = Policy::default().with_force(Some(Rung::Fused)).with_withdrawn(vec![attention]);
    let error = plan_with(fused, Device::Cuda(0)).check(u64::MAX).unwrap_err().to_string();
    assert!(error.contains("cuda:0 cannot run") && error.contains("attention in f16 (first in layer 0)"), "{error}");
}

#[test]
fn half_formats_need_half_the_memory() {
    let of = |dtype| {
        Task::Embed.plan(&Files::local(&golden("st-cls-dense")), Device::Cuda(0), &options().with_dtype(dtype)).unwrap()
    };
    let (full, half) = (of(DType::F32), of(DType::BF16));
    // The Dense module after the pooling stays in f32, as does the scalar that records its dtype.
    let dense = json(&golden("st-cls-dense/2_Dense/config.json"));
    let dense = 4 * (dense["in_features"].as_u64().unwrap() + 1) * dense["out_features"].as_u64().unwrap() + 4;
    assert_eq!(full.weights - dense, 2 * (half.weights - dense));
}

/// Mutations of every file of a model. Any error is fine; a panic, a hang or a crash is not.
#[test]
fn mutated_files_never_crash_the_engine() {
    let files = [
        "config.json",
        "model.safetensors",
        "tokenizer.json",
        "tokenizer_config.json",
        "modules.json",
        "sentence_bert_config.json",
        "config_sentence_transformers.json",
        "1_Pooling/config.json",
        "2_Dense/config.json",
        "2_Dense/model.safetensors",
    ];
    let model = copy_model("st-cls-dense");
    let (survived, refused) = (Cell::new(0), Cell::new(0));
    let damage = mutations(1..=4, b"0129-.eE\"[]{}:, \x00\xff", &[b"99999999999", b"-1", b"null", b"[]", b"\0"]);
    check(600, &(select(files.to_vec()), damage), |(file, damage)| {
        let path = model.path().join(file);
        // Most of a safetensors file is weights, where a flipped bit is just another weight: aim at
        // its header.
        let reach = if file.ends_with(".safetensors") { 2000 } else { usize::MAX };
        let _damaged = DamagedFile::new(&path, &damage, reach);
        let start = Instant::now();
        match load_and_embed(model.path()) {
            Ok(_) => survived.set(survived.get() + 1),
            Err(e) if e.contains("internal error") => panic!("{file}: {e}"),
            Err(_) => refused.set(refused.get() + 1),
        }
        assert!(start.elapsed() < Duration::from_secs(30), "{file} took too long");
    });
    let (survived, refused) = (survived.get(), refused.get());
    assert!(survived > 20 && refused > 200, "{survived} survived, {refused} refused: too few of either");
}

/// A number that overflows for one text only, so that loading succeeds, is the model's fault and
/// not the text's.
#[test]
fn nan_from_weights_is_reported_as_a_model_error() {
    let model = materialize("st-cls-dense");
    let path = model.path().join("model.safetensors");
    let mut bytes = std::fs::read(&path).unwrap();
    let (header, metadata) = safetensors::SafeTensors::read_metadata(&bytes).unwrap();
    let words = metadata.tensors().into_iter().find(|(name, _)| name.ends_with("word_embeddings.weight")).unwrap().1;
    let (rows, width) = (words.shape[0], words.shape[1]);
    // The last token of the vocabulary is not among those of the sanity check.
    let last = header + 8 + words.data_offsets.0 + (rows - 1) * width * 4;
    bytes[last..last + 4].copy_from_slice(&f32::NAN.to_le_bytes());
    std::fs::write(&path, bytes).unwrap();
    let reference = model.path().to_str().unwrap().parse().unwrap();
    let embedder = Embedder::load(&reference, &options(), &()).unwrap();
    let sound: &[u32] = &[1, 2, 3];
    let poisoned: &[u32] = &[1, rows as u32 - 1, 3];
    let inputs = [TextOrTokens::Tokens(sound), TextOrTokens::Tokens(poisoned)];
    let error = embedder.embed_with(&inputs, &EmbedOptions::default()).unwrap_err();
    assert_eq!(error.class(), ErrorClass::Unsound, "{error}");
    assert!(error.to_string().contains("text 2") && error.to_string().contains("NaN"), "{error}");
    assert!(embedder.embed_with(&inputs[..1], &EmbedOptions::default()).is_ok());
}
