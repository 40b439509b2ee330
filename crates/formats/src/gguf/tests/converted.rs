//! Compares with llama.cpp's converter: directories of `tools/goldens/gguf_models.py`, each with a
//! model as transformers saved it and as llama.cpp converted it. They are not committed;
//! `SCONCE_GGUF_MODELS` names their folder.

use super::super::Gguf;
use safetensors::SafeTensors;
use serde_json::Value;
use std::path::{Path, PathBuf};

/// Keys that our models do not read: training, caches, versions, and keys of transformers' own
/// classes.
const UNREAD: [&str; 33] = [
    "_sliding_window_pattern",
    "add_cross_attention",
    "attention_dropout",
    "attention_probs_dropout_prob",
    "attn_pdrop",
    "classifier_dropout",
    "dropout",
    "dropout_rate",
    "dtype",
    "embd_pdrop",
    "hidden_dropout",
    "hidden_dropout_prob",
    "initializer_factor",
    "initializer_range",
    "is_decoder",
    "max_window_layers",
    "output_router_logits",
    "pretraining_tp",
    "qa_dropout",
    "resid_pdrop",
    "router_aux_loss_coef",
    "router_jitter_noise",
    "seq_classif_dropout",
    "summary_activation",
    "summary_first_dropout",
    "summary_proj_to_labels",
    "summary_type",
    "summary_use_proj",
    "transformers_version",
    "use_bidirectional_attention",
    "use_cache",
    // Class names of a single label.
    "id2label",
    "label2id",
];

#[test]
#[ignore = "needs models that tools/goldens/gguf_models.py makes; SCONCE_GGUF_MODELS=DIR"]
fn converted_models_equal_the_originals() {
    let root = PathBuf::from(std::env::var_os("SCONCE_GGUF_MODELS").expect("SCONCE_GGUF_MODELS"));
    let mut wrong = Vec::new();
    let mut models: Vec<_> = std::fs::read_dir(&root).unwrap().map(|entry| entry.unwrap().path()).collect();
    models.sort();
    for dir in &models {
        let name = dir.file_name().unwrap().to_str().unwrap();
        let problems = compare(name, dir);
        println!("{name}: {}", if problems.is_empty() { "as expected" } else { "DIFFERS" });
        wrong.extend(problems.into_iter().map(|problem| format!("{name}: {problem}")));
    }
    assert!(wrong.is_empty() && models.len() > 40, "{} models\n{}", models.len(), wrong.join("\n"));
}

fn compare(model: &str, dir: &Path) -> Vec<String> {
    let mut files: Vec<_> = std::fs::read_dir(dir).unwrap().map(|entry| entry.unwrap().path()).collect();
    files.sort();
    let first = files.into_iter().find(|path| path.extension().is_some_and(|e| e == "gguf")).unwrap();
    let gguf = match Gguf::open(&[first]) {
        Ok(gguf) => gguf,
        Err(e) => return vec![e.to_string()],
    };
    let mut problems = tensors(model, &gguf, dir);
    match gguf.config() {
        Err(e) => problems.push(e.to_string()),
        Ok(ours) => {
            let theirs: Value = serde_json::from_slice(&std::fs::read(dir.join("config.json")).unwrap()).unwrap();
            for (key, theirs) in theirs.as_object().unwrap() {
                let is_same =
                    if key == "rope_parameters" { same_rope(&ours[key], theirs) } else { same(&ours[key], theirs) };
                if !is_unread(model, key) && !is_same {
                    problems.push(format!("{key} is {theirs}, we read {}", ours[key]));
                }
            }
        }
    }
    problems
}

fn is_unread(model: &str, key: &str) -> bool {
    let encoder = model.contains("bert") || model == "t5-encoder";
    UNREAD.contains(&key)
        || encoder && key == "tie_word_embeddings"
        // The generator gives all models the same vocabulary, without the special tokens of these.
        || (encoder || model.contains("t5")) && key.ends_with("_token_id") && key != "decoder_start_token_id"
        // The converter writes the trained length.
        || model == "nomic-bert" && key.ends_with("positions")
        // Without a sliding window all layers are alike, and only the original has the keys.
        || model.starts_with("qwen") && ["layer_types", "sliding_window"].contains(&key)
        // The converter writes Mistral as its family, Llama.
        || model == "mistral" && ["architectures", "model_type"].contains(&key)
        // The head size is hidden size / heads; null means the same.
        || model.starts_with("mixtral") && key == "head_dim"
        // transformers writes these keys for an encoder alone, too.
        || model == "t5-encoder" && ["num_decoder_layers", "scale_decoder_outputs"].contains(&key)
}

/// Whether RoPE parameters are equivalent: a missing partial factor means the whole head, and of
/// Llama 3's three lengths only the ratios count.
fn same_rope(ours: &Value, theirs: &Value) -> bool {
    if theirs.get("rope_type").is_none() {
        return same(ours, theirs);
    }
    let (mut ours, mut theirs) = (ours.clone(), theirs.clone());
    for side in [&mut ours, &mut theirs] {
        let fields = side.as_object_mut().unwrap();
        if fields.get("partial_rotary_factor").and_then(Value::as_f64) == Some(1.0) {
            fields.remove("partial_rotary_factor");
        }
        if fields["rope_type"] == "llama3" {
            let length = fields.remove("original_max_position_embeddings").unwrap().as_f64().unwrap();
            for name in ["low_freq_factor", "high_freq_factor"] {
                fields[name] = (length / fields[name].as_f64().unwrap()).round().into();
            }
        }
    }
    same(&ours, &theirs)
}

fn same(ours: &Value, theirs: &Value) -> bool {
    match (ours, theirs) {
        (Value::Number(a), Value::Number(b)) => a.as_f64() == b.as_f64(),
        (Value::Array(a), Value::Array(b)) => a.len() == b.len() && a.iter().zip(b).all(|(a, b)| same(a, b)),
        (Value::Object(a), Value::Object(b)) => {
            a.len() == b.len() && a.iter().all(|(key, a)| b.get(key).is_some_and(|b| same(a, b)))
        }
        _ => ours == theirs,
    }
}

fn tensors(model: &str, gguf: &Gguf, dir: &Path) -> Vec<String> {
    let mut problems = Vec::new();
    let bytes = std::fs::read(dir.join("model.safetensors")).unwrap();
    let theirs = SafeTensors::deserialize(&bytes).unwrap();
    let mut names = gguf.names();
    for (name, tensor) in theirs.tensors() {
        // Models with a head have a prefix that the converter drops, and so do we.
        let name = name.strip_prefix("roberta.").unwrap_or(&name);
        let tied = name.ends_with("embed_tokens.weight") && model.contains("t5");
        let Some(ours) = gguf.tensor(name) else {
            // The converter drops the pooler and copies of the embeddings.
            if !name.starts_with("pooler.") && !tied {
                problems.push(format!("{name} is missing"));
            }
            continue;
        };
        names.retain(|n| n != name);
        let transposed =
            model == "gpt2" && ["c_attn.weight", "c_proj.weight", "c_fc.weight"].iter().any(|n| name.ends_with(n));
        let mut dims = tensor.shape().to_vec();
        let mut values = floats(tensor.data());
        if transposed {
            values = (0..values.len()).map(|i| values[i % dims[0] * dims[1] + i / dims[0]]).collect();
            dims.reverse();
        }
        if model.contains("roberta") && name == "embeddings.position_embeddings.weight" {
            // RoBERTa's positions begin at 2, so the first two rows are unused.
            values[..2 * dims[1]].fill(0.0);
        }
        // 1 + w rounds at 2⁻²⁴ for w below 1.
        let close = if model.starts_with("gemma") && name.ends_with("norm.weight") { 2.4e-7 } else { 0.0 };
        let differ =
            |(a, b): (&f32, &f32)| if close == 0.0 { a.to_bits() != b.to_bits() } else { (a - b).abs() > close };
        let quantized = ours.kind == Q8_0 && model.ends_with("q8");
        let got = if quantized { q8_0(&ours.bytes) } else { floats(&ours.bytes) };
        let differ = |pair| if quantized { q8_differs(pair) } else { differ(pair) };
        if ours.kind != 0 && !quantized || ours.dims != dims || got.len() != values.len() {
            problems.push(format!("{name} is {dims:?}, we read {:?} in {}", ours.dims, ours.kind));
        } else if got.iter().zip(&values).any(differ) {
            problems.push(format!("{name} differs"));
        }
    }
    problems.extend(names.into_iter().map(|name| format!("{name} is not in the original")));
    problems
}

const Q8_0: u32 = 8;

/// Dequantizes blocks of 32 signed bytes after an F16 scale.
fn q8_0(bytes: &[u8]) -> Vec<f32> {
    let block = |block: &[u8; 34]| {
        let scale = half::f16::from_le_bytes([block[0], block[1]]).to_f32();
        block[2..].iter().map(|&q| scale * f32::from(q as i8)).collect::<Vec<_>>()
    };
    bytes.as_chunks().0.iter().flat_map(block).collect()
}

/// Misplaced rows differ by far more: weights deviate by 0.5, a step of Q8_0 is about a hundredth.
fn q8_differs((ours, theirs): (&f32, &f32)) -> bool {
    (ours - theirs).abs() > 0.012
}

fn floats(bytes: &[u8]) -> Vec<f32> {
    bytes.as_chunks().0.iter().map(|b| f32::from_le_bytes(*b)).collect()
}
