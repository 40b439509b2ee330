//! A language model of a few thousand weights in GGUF (one layer, one head, seven tokens), and its
//! load options.

use sconce_engine::Device;
use sconce_engine::hub::Options;
use sconce_engine::{DeviceChoice, Error, Llm, LlmOptions, LoadOptions};
use std::path::{Path, PathBuf};

/// The path of this run's file.
pub fn path() -> PathBuf {
    tempfile::tempdir().expect("a temporary directory").keep().join("model.gguf")
}

pub fn options(file: &Path) -> LoadOptions {
    let cache = file.with_file_name("cache");
    LoadOptions::new(Options::new(&cache, &cache)).with_device(DeviceChoice::Only(Device::Cpu)).with_batch_tokens(Some(16))
}

pub fn load(file: &Path) -> Result<Llm, Error> {
    let reference = file.to_str().expect("a path").parse()?;
    // Bounds what a mutated file can request of the machine's memory.
    let llm = LlmOptions::default().with_context(Some(32)).with_sequences(1);
    Llm::load(&reference, &options(file).with_llm(llm), &())
}

/// The encoded file with that chat template.
pub fn gguf(template: &str) -> Vec<u8> {
    const WIDTH: u64 = 32;
    let tokens = ["<unk>", "<s>", "</s>", "\u{2581}", "a", "b", "ab"];
    let mut keys = Vec::new();
    let mut key =
        |name: &str, kind: u32, value: &[u8]| keys.push([&text(name), &kind.to_le_bytes()[..], value].concat());
    let list =
        |kind: u32, items: Vec<u8>| [&kind.to_le_bytes()[..], &(tokens.len() as u64).to_le_bytes(), &items].concat();
    key("general.architecture", 8, &text("llama"));
    for (name, value) in [
        ("block_count", 1),
        ("context_length", 64),
        ("embedding_length", WIDTH as u32),
        ("feed_forward_length", WIDTH as u32),
        ("attention.head_count", 1),
    ] {
        key(&format!("llama.{name}"), 4, &value.to_le_bytes());
    }
    key("llama.attention.layer_norm_rms_epsilon", 6, &1e-5f32.to_le_bytes());
    key("tokenizer.ggml.model", 8, &text("llama"));
    key("tokenizer.ggml.tokens", 9, &list(8, tokens.iter().flat_map(|token| text(token)).collect()));
    key("tokenizer.ggml.scores", 9, &list(6, (0..tokens.len()).flat_map(|i| (-(i as f32)).to_le_bytes()).collect()));
    key(
        "tokenizer.ggml.token_type",
        9,
        &list(5, [2i32, 3, 3, 1, 1, 1, 1].iter().flat_map(|t| t.to_le_bytes()).collect()),
    );
    key("tokenizer.ggml.bos_token_id", 4, &1u32.to_le_bytes());
    key("tokenizer.ggml.eos_token_id", 4, &2u32.to_le_bytes());
    key("tokenizer.chat_template", 8, &text(template));
    let square = |name: &str| (format!("blk.0.{name}.weight"), vec![WIDTH, WIDTH]);
    let mut tensors = vec![
        ("token_embd.weight".to_string(), vec![WIDTH, tokens.len() as u64]),
        ("output_norm.weight".into(), vec![WIDTH]),
        ("blk.0.attn_norm.weight".into(), vec![WIDTH]),
        ("blk.0.ffn_norm.weight".into(), vec![WIDTH]),
    ];
    tensors.extend(["attn_q", "attn_k", "attn_v", "attn_output", "ffn_gate", "ffn_up", "ffn_down"].map(square));
    let counts = [tensors.len() as u64, keys.len() as u64].map(u64::to_le_bytes).concat();
    let mut out = [&b"GGUF"[..], &3u32.to_le_bytes(), &counts, &keys.concat()].concat();
    let mut data: Vec<u8> = Vec::new();
    for (name, dims) in &tensors {
        out.extend(text(name));
        out.extend((dims.len() as u32).to_le_bytes());
        out.extend(dims.iter().flat_map(|d| d.to_le_bytes()));
        out.extend(0u32.to_le_bytes());
        out.extend((data.len() as u64).to_le_bytes());
        // Rows of 32 floats keep the data aligned.
        data.extend((0..dims.iter().product()).flat_map(|i: u64| ((i % 7) as f32 / 64.0).to_le_bytes()));
    }
    out.resize(out.len().next_multiple_of(32), 0);
    out.extend(data);
    out
}

fn text(value: &str) -> Vec<u8> {
    [&(value.len() as u64).to_le_bytes()[..], value.as_bytes()].concat()
}
