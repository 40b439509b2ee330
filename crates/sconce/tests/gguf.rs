//! Commands on GGUF files that are not chat models.

mod common;

use common::{err, numbers, out, parse};
use sconce_testkit::{golden, materialize, worst};

fn file(name: &str) -> String {
    golden(name).join("model.gguf").to_str().unwrap().into()
}

#[test]
fn embed_of_gguf_matches_the_original_folder() {
    let folder = golden("st-prompts");
    let embed = |model: &str| {
        let got = parse(&out(&["embed", "-m", model, "--json", "--prompt", "", "the cat sat", "a dog"], b""));
        got["embeddings"].as_array().unwrap().iter().flat_map(numbers).collect::<Vec<f32>>()
    };
    let (got, want) = (embed(&file("gguf-bert")), embed(folder.to_str().unwrap()));
    assert!(got.len() == 64 && worst(&got, &want) < 1e-6);
    assert!(out(&["plan", &file("gguf-bert")], b"").contains("task        embed"));
    let stderr = err(&["tag", "-m", &file("gguf-bert"), "x"], b"");
    assert!(stderr.contains("this is a model for embed"), "{stderr}");
}

#[test]
fn llm_rerank_follows_the_instruction() {
    let model = file("gguf-qwen3-rerank");
    let rerank = |more: &[&str]| {
        let all = [&["rerank", "-m", &model, "--json", "--query", "the cat?", "the cat", "a dog"], more].concat();
        let got = parse(&out(&all, b""));
        let score = |i: usize| got["results"][i]["score"].as_f64().unwrap();
        [score(0), score(1)]
    };
    let (usual, instructed) = (rerank(&[]), rerank(&["--instruction", "Find a dog"]));
    assert!(usual[0] >= usual[1] && usual.iter().all(|s| (0.0..=1.0).contains(s)) && usual != instructed);
    let other = materialize("task-rerank");
    let other = other.path().to_str().unwrap();
    let stderr = err(&["rerank", "-m", other, "--query", "q", "--instruction", "i", "d"], b"");
    assert!(stderr.contains("takes no instruction"), "{stderr}");
}
