//! ONNX Runtime and ONNX models for tests.

use crate::{golden, json, materialize, values};
use serde_json::Value;
use std::path::{Path, PathBuf};
use std::process::Command;
use tempfile::TempDir;

/// The version that tests run, from the package index.
const VERSION: &str = "1.31.0";

/// A golden whose weights are in an ONNX graph alone: `tools/goldens/onnx_graphs.py` exported it.
pub fn materialize_onnx(name: &str) -> TempDir {
    with_graphs(name, "", &[("", "model")])
}

/// A golden of a two-tower model whose weights are in a graph for each tower, in the folder `onnx`.
pub fn materialize_towers(name: &str) -> TempDir {
    with_graphs(name, "onnx", &[("-text", "text_model"), ("-vision", "vision_model")])
}

/// A golden with graphs of it in place of its weights: the ends of the graphs' names among the
/// goldens, and the names that they get in `folder`.
fn with_graphs(name: &str, folder: &str, graphs: &[(&str, &str)]) -> TempDir {
    let dir = materialize(name);
    let spec = json(&golden(name).join("tensors.json"));
    let seed = spec["seed"].as_u64().expect("a seed");
    let mut tensors: Vec<(&String, &Value)> = spec["tensors"].as_object().expect("tensors").iter().collect();
    tensors.sort_by_key(|(name, _)| *name);
    let mut bytes = Vec::new();
    for (name, tensor) in tensors {
        let shape = tensor["shape"].as_array().expect("a shape");
        let count = shape.iter().map(|n| n.as_u64().expect("a size") as usize).product();
        let number = |key: &str| tensor[key].as_f64().expect("a number") as f32;
        bytes.extend(values(seed, name, count, number("scale"), number("shift")).iter().flat_map(|v| v.to_le_bytes()));
    }
    let target = dir.path().join(folder);
    std::fs::create_dir_all(&target).expect(folder);
    let write = |file: &str, bytes: &[u8]| std::fs::write(target.join(file), bytes).expect(file);
    write("weights.bin", &bytes);
    for (end, file) in graphs {
        let graph = golden("onnx").join(format!("{name}{end}.onnx"));
        let bytes = std::fs::read(&graph).unwrap_or_else(|e| panic!("{}: {e}", graph.display()));
        write(&format!("{file}.onnx"), &bytes);
    }
    std::fs::remove_file(dir.path().join("model.safetensors")).expect("model.safetensors");
    dir
}

/// The library of ONNX Runtime: the one that `ORT_DYLIB_PATH` names, else that of the Python
/// package, which is installed into the cache of the tests once.
pub fn onnxruntime() -> PathBuf {
    if let Some(path) = std::env::var_os("ORT_DYLIB_PATH") {
        return path.into();
    }
    let home = || std::env::var_os("HOME").map(|home| Path::new(&home).join(".cache/sconce"));
    let cache = std::env::var_os("SCONCE_CACHE").map(PathBuf::from).or_else(home).expect("HOME");
    let folder = cache.join(format!("onnxruntime-{VERSION}"));
    if !folder.exists() {
        std::fs::create_dir_all(&cache).expect("the cache");
        let partial = tempfile::tempdir_in(&cache).expect("a folder in the cache");
        let target = partial.path().to_str().expect("a path in UTF-8");
        let package = format!("onnxruntime=={VERSION}");
        let pip = ["-m", "pip", "install", "--quiet", "--no-deps", "--target", target, &package];
        let status = Command::new("python3").args(pip).status().expect("python3 with pip");
        assert!(status.success(), "pip cannot install {package}");
        // Another test may have been faster.
        let _ = std::fs::rename(partial.path(), &folder);
    }
    let capi = folder.join("onnxruntime/capi");
    let names = std::fs::read_dir(&capi).unwrap_or_else(|e| panic!("{}: {e}", capi.display()));
    let mut names = names.filter_map(|entry| entry.ok()?.file_name().into_string().ok());
    let is_library = |name: &String| {
        name.strip_prefix("lib").unwrap_or(name).strip_prefix("onnxruntime").is_some_and(|rest| rest.starts_with('.'))
    };
    capi.join(names.find(is_library).expect("the library in the package"))
}
