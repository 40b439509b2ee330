//! Synthetic weights, computed from a formula: for a golden with a realistic hidden size, the
//! repository stores only the names and shapes of the tensors.
//!
//! Element i of the tensor `name` is shift + scale · u, with u in [−1, 1) from the top 24 bits of a
//! SplitMix64 stream seeded by the name and the golden's seed. `tools/goldens/formula.py`
//! computes the same bits.

use crate::Rng;
use serde_json::{Value, json};
use std::path::{Path, PathBuf};

/// Copies the golden `name` into a temporary directory and writes the weights that each of its
/// `tensors.json` describes, so that the directory looks like a model on the hub.
pub fn materialize(name: &str) -> tempfile::TempDir {
    let dir = tempfile::tempdir().expect("a directory for temporary files");
    copy_golden(&crate::golden(name), dir.path());
    dir
}

/// A tiny Llama that generates text, with this context: the embedder `task-embed-llama` without the
/// files that make it one.
pub fn materialize_llama(context: usize) -> tempfile::TempDir {
    let dir = materialize("task-embed-llama");
    for name in ["modules.json", "config_sentence_transformers.json", "sentence_bert_config.json"] {
        std::fs::remove_file(dir.path().join(name)).expect(name);
    }
    let path = dir.path().join("config.json");
    let mut config = crate::json(&path);
    config["max_position_embeddings"] = json!(context);
    std::fs::write(&path, config.to_string()).expect("config.json");
    dir
}

/// Like [`materialize_llama`], with this many layers of random weights: so slow that a second
/// request arrives while the first is still being answered.
pub fn materialize_slow_llama(context: usize, layers: usize) -> tempfile::TempDir {
    let dir = materialize_llama(context);
    let path = dir.path().join("config.json");
    let mut config = crate::json(&path);
    config["num_hidden_layers"] = json!(layers);
    std::fs::write(&path, config.to_string()).expect("config.json");
    let mut spec = crate::json(&crate::golden("task-embed-llama").join("tensors.json"));
    let tensors = spec["tensors"].as_object_mut().expect("tensors");
    let first: Vec<_> =
        tensors.iter().filter(|(name, _)| name.contains(".layers.0.")).map(|(n, t)| (n.clone(), t.clone())).collect();
    for (name, tensor) in first {
        tensors.extend((1..layers).map(|i| (name.replace(".0.", &format!(".{i}.")), tensor.clone())));
    }
    write_weights(&spec, dir.path());
    dir
}

fn copy_golden(from: &Path, to: &Path) {
    for entry in std::fs::read_dir(from).unwrap_or_else(|e| panic!("{}: {e}", from.display())) {
        let path = entry.expect("an entry").path();
        let target = to.join(path.file_name().expect("a name"));
        if path.is_dir() {
            std::fs::create_dir(&target).expect("a directory");
            copy_golden(&path, &target);
        } else if path.ends_with("tensors.json") {
            write_weights(&crate::json(&path), to);
        } else {
            std::fs::copy(&path, &target).expect("a copy");
        }
    }
}

/// Writes the weights that `spec` describes into `dir`.
fn write_weights(spec: &Value, dir: &Path) {
    let file: PathBuf = dir.join(spec.get("file").and_then(Value::as_str).unwrap_or("model.safetensors"));
    let seed = spec["seed"].as_u64().expect("a seed");
    let tensors: Vec<(String, Vec<usize>, Vec<u8>)> = spec["tensors"]
        .as_object()
        .expect("tensors")
        .iter()
        .map(|(name, t)| {
            let shape: Vec<usize> =
                t["shape"].as_array().expect("a shape").iter().map(|n| n.as_u64().expect("a size") as usize).collect();
            let number = |key: &str| t[key].as_f64().expect("a number") as f32;
            let bytes = values(seed, name, shape.iter().product(), number("scale"), number("shift"));
            (name.clone(), shape, bytes.iter().flat_map(|v| v.to_le_bytes()).collect())
        })
        .collect();
    let views = tensors.iter().map(|(name, shape, bytes)| {
        let view = safetensors::tensor::TensorView::new(safetensors::Dtype::F32, shape.clone(), bytes);
        (name.clone(), view.unwrap_or_else(|e| panic!("{name}: {e}")))
    });
    safetensors::serialize_to_file(views, None, &file).unwrap_or_else(|e| panic!("{}: {e}", file.display()));
}

/// The first `n` elements of a tensor.
pub fn values(seed: u64, name: &str, n: usize, scale: f32, shift: f32) -> Vec<f32> {
    let fnv = |h: u64, b: u8| (h ^ u64::from(b)).wrapping_mul(0x0100_0000_01b3);
    let mut rng = Rng::new(name.bytes().fold(0xcbf2_9ce4_8422_2325, fnv) ^ seed);
    (0..n).map(|_| shift + scale * rng.unit_f32()).collect()
}

/// A `tokenizer.json` of `n` tokens: padding, an end token that is appended to every text, and
/// `w2`, `w3`, … separated by spaces.
pub fn plain_words(n: usize) -> Value {
    let words = (2..n).map(|i| (format!("w{i}"), json!(i)));
    let vocab: serde_json::Map<_, _> =
        [("<pad>".into(), json!(0)), ("</s>".into(), json!(1))].into_iter().chain(words).collect();
    let special = |id: u32, content: &str| {
        json!({"id": id, "content": content, "special": true, "single_word": false, "lstrip": false, "rstrip": false,
               "normalized": false})
    };
    let end = json!({"SpecialToken": {"id": "</s>", "type_id": 0}});
    json!({
        "version": "1.0", "truncation": null, "padding": null, "normalizer": null, "decoder": null,
        "added_tokens": [special(0, "<pad>"), special(1, "</s>")],
        "pre_tokenizer": {"type": "WhitespaceSplit"},
        "model": {"type": "WordLevel", "vocab": vocab, "unk_token": "<pad>"},
        "post_processor": {
            "type": "TemplateProcessing",
            "single": [{"Sequence": {"id": "A", "type_id": 0}}, end],
            "pair": [{"Sequence": {"id": "A", "type_id": 0}}, {"Sequence": {"id": "B", "type_id": 1}}],
            "special_tokens": {"</s>": {"id": "</s>", "ids": [1], "tokens": ["</s>"]}},
        },
    })
}
