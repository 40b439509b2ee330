//! Rerankers that read query and document in a prompt, against the classification of that prompt.

use safetensors::tensor::TensorView;
use safetensors::{Dtype, SafeTensors, serialize_to_file};
use sconce_engine::hub::Options;
use sconce_engine::{
    Classifier, DeviceChoice, LoadOptions, Loaded, RankOptions, RankPooling, Reranker, Task, TextOrPair, Truncate,
};
use sconce_ops::Device;
use sconce_testkit::{json, materialize, values, worst};
use serde_json::json;
use std::path::Path;

/// A tiny llama-nemotron-rerank: the Llama of another golden with a head.
fn nemotron(dir: &Path) {
    for name in ["modules.json", "config_sentence_transformers.json", "sentence_bert_config.json"] {
        std::fs::remove_file(dir.join(name)).expect(name);
    }
    let mut config = json(&dir.join("config.json"));
    config["architectures"] = json!(["LlamaBidirectionalForSequenceClassification"]);
    config["model_type"] = json!("llama_bidirec");
    config["id2label"] = json!({"0": "LABEL_0"});
    config["pooling"] = json!("avg");
    config["temperature"] = json!(1.0);
    std::fs::write(dir.join("config.json"), config.to_string()).unwrap();
    let width = config["hidden_size"].as_u64().unwrap() as usize;
    let path = dir.join("model.safetensors");
    let bytes = std::fs::read(&path).unwrap();
    let file = SafeTensors::deserialize(&bytes).unwrap();
    let score: Vec<u8> = values(1, "score", width, 1.0, 0.0).iter().flat_map(|v| v.to_le_bytes()).collect();
    let mut tensors = file.tensors();
    tensors.retain(|(name, _)| name != "lm_head.weight");
    tensors.push(("score.weight".into(), TensorView::new(Dtype::F32, vec![1, width], &score).unwrap()));
    serialize_to_file(tensors, None, &path).unwrap();
}

#[test]
fn nemotron_reranks_with_the_prompt_of_its_training() {
    let dir = materialize("task-embed-llama");
    nemotron(dir.path());
    let cache = std::env::temp_dir();
    let options = LoadOptions::new(Options::new(cache.clone(), cache)).with_device(DeviceChoice::Only(Device::Cpu));
    let model = dir.path().to_str().unwrap().parse().unwrap();
    assert_eq!(Task::detect(dir.path()).unwrap(), Task::Rerank);
    let reranker = Reranker::load(&model, &options, &()).unwrap();
    let classifier = Classifier::load(&model, &options, &()).unwrap();
    let (query, documents) = ("where is the cat?", ["The cat sat on the mat.", "hello", ""]);
    let pairs = documents.map(|document| (query, document));
    let prompts = documents.map(|document| format!("question:{query} \n \n passage:{document}"));
    let texts: Vec<TextOrPair<'_>> = prompts.iter().map(|prompt| prompt.as_str().into()).collect();
    let got = reranker.logits(&pairs, RankPooling::Pooler).unwrap();
    let want = classifier.logits(&texts).unwrap();
    assert_eq!(got.tokens, want.tokens);
    assert!(worst(&got.results, &want.results.concat()) == 0.0, "{:?} {:?}", got.results, want.results);
    assert!(want.results[0] != want.results[1]);
    assert_eq!(reranker.count_tokens(&pairs).unwrap(), got.tokens);

    let error = reranker.clone().with_instruction("Be kind.").err().unwrap().to_string();
    assert!(error.contains("takes no instruction"), "{error}");
    let left = reranker.with_truncation(Truncate::Left);
    let error = left.rerank(query, &documents, RankOptions::default()).unwrap_err().to_string();
    assert!(error.contains("truncated on the right"), "{error}");
}
