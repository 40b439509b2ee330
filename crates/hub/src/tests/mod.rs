mod cached;
mod gguf;
mod hub;
mod layouts;
mod names;
mod server;
mod short;
mod wheel;
mod zips;

use std::cell::Cell;
use std::collections::BTreeMap;
use std::fs;
use std::path::Path;
use std::sync::Mutex;
use std::time::Duration;

use proptest::collection::vec;
use proptest::prelude::Strategy;
use proptest::sample::select;
use sconce_testkit::{DamagedFile, Rng, check, mutations};
use tempfile::TempDir;

use super::*;

/// Records progress.
#[derive(Default)]
struct RecordedProgress(Mutex<Vec<String>>, Mutex<u64>);

impl RecordedProgress {
    fn lines(&self) -> String {
        self.0.lock().unwrap().join("\n")
    }
}

impl Progress for RecordedProgress {
    fn note(&self, line: &str) {
        self.0.lock().unwrap().push(line.to_owned());
    }
    fn begin(&self, what: &str, _: u64) {
        self.0.lock().unwrap().push(format!("begin {what}"));
    }
    fn advance(&self, bytes: u64) {
        *self.1.lock().unwrap() += bytes;
    }
    fn end(&self) {}
}

/// Caches in a directory of their own, an unreachable hub, and no pip. Time-outs are long for a
/// busy machine; only the test of time-outs shortens them.
fn options(tmp: &TempDir) -> Options {
    let mut options = Options::new(tmp.path().join("hub"), tmp.path().join("sconce"));
    options.endpoint = unreachable_endpoint();
    options.timeouts = Timeouts { connect: Duration::from_secs(20), idle: Duration::from_secs(20) };
    options.pip = vec![vec!["sconce-test-no-such-pip".to_owned()]];
    options
}

/// An address where connections are refused.
fn unreachable_endpoint() -> String {
    let listener = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
    format!("http://{}", listener.local_addr().unwrap())
}

/// Pseudo-random bytes, different for every length and the same on every run.
fn noise(length: usize) -> Vec<u8> {
    Rng::new(length as u64).bytes(length)
}

const WEIGHTS: usize = 600_000;

/// A sentence-transformers repository, with files that are selected and files that are not.
fn model_files() -> BTreeMap<String, Vec<u8>> {
    let modules = r#"[{"idx":0,"name":"0","path":"","type":"sentence_transformers.models.Transformer"},
        {"idx":1,"name":"1","path":"1_Pooling","type":"sentence_transformers.models.Pooling"},
        {"idx":2,"name":"2","path":"2_Dense","type":"sentence_transformers.models.Dense"},
        {"idx":3,"name":"3","path":"3_Normalize","type":"sentence_transformers.models.Normalize"}]"#;
    [
        ("config.json", b"{}".to_vec()),
        ("modules.json", modules.into()),
        ("tokenizer.json", noise(5000)),
        ("tokenizer_config.json", b"{\"a\":1}".to_vec()),
        ("sentence_bert_config.json", b"{\"max_seq_length\":256}".to_vec()),
        ("vocab.txt", noise(999)),
        ("1_Pooling/config.json", b"{\"mean\":true}".to_vec()),
        ("2_Dense/config.json", b"{\"in\":3}".to_vec()),
        ("2_Dense/model.safetensors", noise(700)),
        ("2_Dense/pytorch_model.bin", noise(701)),
        ("model.safetensors", noise(WEIGHTS)),
        ("pytorch_model.bin", noise(11)),
        ("consolidated.safetensors", noise(12)),
        ("onnx/model.onnx", noise(13)),
        ("onnx/config.json", noise(14)),
        ("README.md", noise(15)),
    ]
    .into_iter()
    .map(|(name, bytes)| (name.to_owned(), bytes))
    .collect()
}

const WANTED: [&str; 10] = [
    "1_Pooling/config.json",
    "2_Dense/config.json",
    "2_Dense/model.safetensors",
    "config.json",
    "model.safetensors",
    "modules.json",
    "sentence_bert_config.json",
    "tokenizer.json",
    "tokenizer_config.json",
    "vocab.txt",
];

/// All files under `dir`, links followed, sorted.
fn tree(dir: &Path) -> Vec<String> {
    fn walk(dir: &Path, at: &str, out: &mut Vec<String>) {
        for entry in fs::read_dir(dir).into_iter().flatten() {
            let entry = entry.unwrap();
            let name = format!("{at}{}", entry.file_name().to_string_lossy());
            match entry.path().is_dir() {
                true => walk(&entry.path(), &format!("{name}/"), out),
                false => out.push(name),
            }
        }
    }
    let mut out = Vec::new();
    walk(dir, "", &mut out);
    out.sort();
    out
}

fn write_files(dir: &Path, files: &BTreeMap<String, Vec<u8>>) {
    for (name, bytes) in files {
        let path = dir.join(name);
        fs::create_dir_all(path.parent().unwrap()).unwrap();
        fs::write(path, bytes).unwrap();
    }
}

/// Checks that the error contains each of `words`.
#[track_caller]
fn expect_error<T: std::fmt::Debug>(result: Result<T, HubError>, words: &[&str]) -> HubError {
    let error = result.unwrap_err();
    for word in words {
        assert!(error.to_string().contains(word), "{word:?} is not in: {error}");
    }
    error
}

fn hub_ref(text: &str) -> Reference {
    text.parse().unwrap()
}
