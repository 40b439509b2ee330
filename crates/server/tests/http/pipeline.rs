//! huggingface_hub's `InferenceClient` with a URL, and token classification.

use crate::common::{config, numbers, serve};
use sconce_server::Config;
use sconce_testkit::{golden, json};
use serde_json::json;

#[test]
fn the_root_does_whatever_the_first_model_does() {
    let embeds = serve(&["st-prompts", "task-classify"], config());
    let want = embeds.post("/embed", &json!({"inputs": "hello"})).ok();
    let sent = json!({"inputs": "hello", "normalize": true, "truncation_direction": "Right"});
    assert_eq!(embeds.post("/", &sent).ok(), want);
    assert_eq!(embeds.post("/invocations", &json!({"inputs": ["hello"]})).ok(), want);
    let sent = json!({"inputs": {"source_sentence": "hello", "sentences": ["hello", "cat"]}, "parameters": {}});
    let cosines = numbers(&embeds.post("/", &sent).ok());
    assert!(cosines.len() == 2 && (cosines[0] - 1.0).abs() < 1e-5);
    // The model name that the client sends by default.
    assert_eq!(embeds.post("/v1/embeddings", &json!({"input": "a", "model": "dummy"})).ok()["model"], "st-prompts");

    let labels = serve(&["task-classify"], config());
    let all = labels.post("/", &json!({"inputs": "hello world", "parameters": {"top_k": 2}})).ok();
    let flat = labels.post("/predict", &json!({"inputs": "hello world"})).ok();
    assert_eq!(all, json!([[flat[0], flat[1]]]));
    let raw = json!({"inputs": "hello world", "parameters": {"function_to_apply": "none"}});
    let want = labels.post("/predict", &json!({"inputs": "hello world", "raw_scores": true})).ok();
    assert_eq!(labels.post("/", &raw).ok()[0], want);
    let soft = json!({"inputs": "hello world", "parameters": {"function_to_apply": "softmax"}});
    assert_eq!(labels.post("/", &soft).ok()[0], flat);

    let ranks = serve(&["task-rerank"], config());
    assert_eq!(ranks.post("/", &json!({"query": "a", "texts": ["b"]})).ok()[0]["index"], 0);
    let strange = ranks.post("/", &json!({"inputs": "a"}));
    assert_eq!((strange.status, &strange.json()["error_type"]), (422, &json!("Validation")));
}

#[test]
fn tokens_get_the_references_labels() {
    let server = serve(&["task-tag"], Config { auto_truncate: true, ..config() });
    let cases = json(&golden("task-tag").join("golden.json"));
    let mut entities = 0;
    for case in cases["cases"].as_array().unwrap() {
        for strategy in ["none", "simple", "first", "average", "max"] {
            let body = json!({"inputs": case["text"], "parameters": {"aggregation_strategy": strategy}});
            let got = server.post("/tag", &body).ok();
            assert_eq!(server.post("/", &body).ok(), got);
            let want = case[strategy].as_array().unwrap();
            assert_eq!(got.as_array().unwrap().len(), want.len(), "{strategy}: {case}");
            for (got, want) in got.as_array().unwrap().iter().zip(want) {
                let key = if strategy == "none" { "entity" } else { "entity_group" };
                assert_eq!((&got[key], &got["start"], &got["end"]), (&want[key], &want["start"], &want["end"]));
                assert_eq!(got["word"], want["word"]);
                assert!((got["score"].as_f64().unwrap() - want["score"].as_f64().unwrap()).abs() < 1e-4);
                entities += 1;
            }
        }
    }
    assert!(entities > 20);
    let refused = server.post("/tag", &json!({"inputs": "a", "parameters": {"ignore_labels": ["B-PER"]}}));
    assert_eq!(refused.status, 422);
    assert_eq!(server.post("/tag", &json!({"inputs": ["a", "b"]})).ok().as_array().unwrap().len(), 2);
}
