//! Weights that the device reads in place from the mapped file: they are not copied, and the
//! results equal the goldens.

use metal_sim_sconce::{allocated, lent};
use sconce_engine::hub::Options;
use sconce_engine::{DeviceChoice, Embedder, GenerationParams, Llm, LoadOptions, Loaded, Prompt, Request, Start};
use sconce_ops::{DType, Device};
use sconce_testkit::{Arrays, golden, json, materialize, worst};
use std::path::Path;
use std::sync::{Mutex, PoisonError};

const NAME: &str = "task-embed-llama";

/// The counters are per process: one test at a time.
static ALONE: Mutex<()> = Mutex::new(());

fn options(device: Device, cache: &Path) -> LoadOptions {
    LoadOptions::new(Options::new(cache, cache)).with_device(DeviceChoice::Only(device))
}

/// Shifts the tensors of a safetensors file until the first of them begins `over` bytes after a
/// multiple of 64.
fn shift_tensors(file: &Path, over: usize) {
    let bytes = std::fs::read(file).expect("weights");
    let (length, rest) = bytes.split_first_chunk::<8>().expect("a length");
    let (header, tensors) = rest.split_at(u64::from_le_bytes(*length) as usize);
    let header = header.trim_ascii_end();
    // Spaces after the header count as a part of it.
    let spaces = (64 + over - (8 + header.len()) % 64) % 64;
    let length = ((header.len() + spaces) as u64).to_le_bytes();
    std::fs::write(file, [&length[..], header, &vec![b' '; spaces], tensors].concat()).expect("weights");
}

/// Embeds the golden's texts from a file shifted like that. Returns the worst error, and the bytes
/// of all weights, of those read in place, and of all other allocations.
fn embed_shifted(over: usize) -> (f32, [u64; 3]) {
    let (cache, dir) = (tempfile::tempdir().expect("a folder"), materialize(NAME));
    shift_tensors(&dir.path().join("model.safetensors"), over);
    let (before, lent_before) = (allocated(), lent());
    let reference = dir.path().to_str().expect("a path").parse().expect("a reference");
    let embedder = Embedder::load(&reference, &options(Device::Metal(0), cache.path()).with_dtype(DType::F32), &())
        .expect("a model");
    let lent = lent() - lent_before;
    let bytes = [embedder.plan().weights, lent, allocated() - before - lent];
    let want = Arrays::open(&golden(NAME).join("golden.safetensors")).f32("embeddings");
    let answers = json(&golden(NAME).join("golden.json"));
    let mut off = 0f32;
    for (i, case) in answers["cases"].as_array().expect("cases").iter().enumerate() {
        let prompt = case["prompt_name"].as_str().map_or(Prompt::Default, |name| Prompt::Named(name.into()));
        let got = embedder.embed(&[case["text"].as_str().expect("a text")], &prompt).expect("a vector");
        off = off.max(worst(got.row(0), &want.values[i * want.dims[1]..][..want.dims[1]]));
    }
    (off, bytes)
}

#[test]
fn aligned_weights_are_read_in_place() {
    let _alone = ALONE.lock().unwrap_or_else(PoisonError::into_inner);
    let before = lent();
    let (off, [weights, in_place, copied]) = embed_shifted(0);
    assert!(off <= 1e-5, "off by {off}");
    assert!(in_place > 0 && copied < weights, "of {weights} bytes {in_place} are read in place, {copied} are copied");
    // They are freed with the model; otherwise the file would stay mapped.
    assert_eq!(lent(), before);
}

/// Unaligned weights are copied, and no result changes.
#[test]
fn unaligned_weights_are_copied() {
    let _alone = ALONE.lock().unwrap_or_else(PoisonError::into_inner);
    for over in [1, 4, 8] {
        let (off, [_, in_place, _]) = embed_shifted(over);
        assert!(off <= 1e-5, "{over}: off by {off}");
        assert_eq!(in_place, 0, "{over}");
    }
}

#[test]
fn quantized_blocks_are_read_in_place() {
    let _alone = ALONE.lock().unwrap_or_else(PoisonError::into_inner);
    let (cache, file) = (tempfile::tempdir().expect("a folder"), golden("gguf-qwen3-rerank").join("model.gguf"));
    let reference = file.to_str().expect("a path").parse().expect("a reference");
    let params = GenerationParams::default().with_temperature(0.0);
    let start = Start::Tokens(vec![5, 6, 7, 8]);
    let request = Request { start, params: Some(params), max_tokens: Some(4), ignore_end: true, ..Request::default() };
    let before = lent();
    let generate = |device| {
        let llm = Llm::load(&reference, &options(device, cache.path()), &()).expect("a model");
        assert_eq!(lent() > before, device != Device::Cpu, "{device}");
        llm.generate(std::slice::from_ref(&request)).remove(0).expect("an answer").answers.remove(0).text
    };
    assert_eq!(generate(Device::Metal(0)), generate(Device::Cpu));
}
