//! llama.cpp's own test vocabularies with its expected ids.

use super::reader::Metadata;
use super::*;
use std::fs;
use std::path::PathBuf;

/// Vocabularies with inputs and expected ids; a missing one fails the test.
const SETS: &str = "bert-bge command-r deepseek-coder deepseek-llm falcon gemma-4 gpt-2 llama-bpe llama-spm mpt phi-3 qwen2 \
    qwen35 refact starcoder";
/// Vocabularies without expected ids.
const OTHERS: &str = "aquila baichuan gpt-neox nomic-bert-moe";
const TEXTS: [&str; 6] = [
    "Hello, y'all! How are you 😁 ?我想在apple工作1314151天～",
    "  two  spaces\n\n\nlines\t\ttabs ",
    "Ünïcödé 12345 ½ ≠ ∑",
    "<|im_start|>user\n</s><s>[CLS]<unk>",
    "안녕하세요 नमस्ते مرحبا 🏳️‍🌈",
    "for (int i = 0; i < 10; ++i) { x[i] += 1'000; }",
];

fn models() -> PathBuf {
    let dir = std::env::var_os("SCONCE_LLAMA_MODELS");
    dir.map(PathBuf::from)
        .expect("SCONCE_LLAMA_MODELS must name the folder of ggml-vocab-*.gguf in llama.cpp's sources")
}

pub(super) fn read(name: &str) -> Metadata {
    let path = models().join(format!("ggml-vocab-{name}.gguf"));
    Metadata::read(&fs::read(&path).unwrap_or_else(|e| panic!("{}: {e}", path.display())))
}

#[test]
#[ignore = "needs llama.cpp's vocabularies: SCONCE_LLAMA_MODELS=vendor/llama.cpp/models of the sdist of llama-cpp-python"]
fn ids_match_llama_cpp() {
    let mut wrong = Vec::new();
    for name in SETS.split_whitespace() {
        let file = read(name);
        let v = file.vocabulary();
        let plain = tokenizer(&v, Specials::Text).unwrap_or_else(|e| panic!("{name}: {e}"));
        let parsed = tokenizer(&v, Specials::Parsed).unwrap();
        let read_file = |end: &str| fs::read_to_string(models().join(format!("ggml-vocab-{name}.gguf.{end}"))).unwrap();
        let (inputs, outputs) = (read_file("inp"), read_file("out"));
        let mark = "\n__ggml_vocab_test__\n";
        let inputs: Vec<&str> = inputs.strip_suffix(mark).unwrap_or(&inputs).split(mark).collect();
        let outputs: Vec<&str> = outputs.lines().collect();
        assert!(inputs.len() >= 40, "{name} has {} cases", inputs.len());
        assert_eq!(inputs.len(), outputs.len(), "{name}");
        for (input, expected) in inputs.iter().zip(outputs) {
            let expected: Vec<u32> = expected.split_whitespace().map(|id| id.parse().unwrap()).collect();
            let got = ids(&plain, input, false);
            if got != expected {
                wrong.push(format!("{name}: {input:?}\n   is {got:?}\n  not {expected:?}"));
            }
            let text = parsed.decode(&got, false).unwrap();
            if v.model != "bert" && text != *input {
                wrong.push(format!("{name}: {input:?} is decoded as {text:?}"));
            }
        }
    }
    assert!(wrong.is_empty(), "{} wrong\n{}", wrong.len(), wrong.join("\n"));
}

#[test]
#[ignore = "needs llama.cpp's vocabularies, as above"]
fn all_vocabularies_build_and_round_trip() {
    for name in SETS.split_whitespace().chain(OTHERS.split_whitespace()) {
        let file = read(name);
        let v = file.vocabulary();
        let plain = tokenizer(&v, Specials::Text).unwrap_or_else(|e| panic!("{name}: {e}"));
        let parsed = tokenizer(&v, Specials::Parsed).unwrap_or_else(|e| panic!("{name}: {e}"));
        let control: Vec<u32> =
            (0..v.tokens.len() as u32).filter(|id| v.types.as_ref().is_some_and(|t| t[*id as usize] == 3)).collect();
        for text in TEXTS {
            let got = ids(&plain, text, false);
            assert!(!got.iter().any(|id| control.contains(id) && Some(*id) != v.unk), "{name}: {text:?} is {got:?}");
            if !matches!(v.model, "bert" | "t5") {
                assert_eq!(parsed.decode(&got, false).unwrap(), text, "{name}");
            }
        }
        // A run of line ends that is a token must become that token: llama.cpp ensures it for
        // Gemma.
        let lines: String = "\n".repeat(40);
        for run in (1..=40).map(|n| &lines[..n]).filter(|run| v.model == "gemma4" && v.tokens.contains(run)) {
            assert_eq!(ids(&plain, run, false).len(), 1, "{name}: {} line ends", run.len());
        }
        for id in control {
            let token = v.tokens[id as usize];
            assert_eq!(ids(&parsed, token, false), [id], "{name}: {token:?}");
            assert_eq!(parsed.decode(&[id], false).unwrap(), token, "{name}");
        }
    }
}
