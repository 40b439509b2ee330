//! huggingface_hub's `InferenceClient` with a URL, and token classification.

use crate::common::{config, numbers, serve};
use sconce_server::Config;
use sconce_testkit::{golden, json};
use serde_json::json;

#[test]
fn root_path_runs_the_first_models_task() {
    let embedder = serve(&["st-prompts", "task-classify"], config());
    let want = embedder.post("/embed", &json!({"inputs": "hello"})).ok();
    let body = json!({"inputs": "hello", "normalize": true, "truncation_direction": "Right"});
    assert_eq!(embedder.post("/", &body).ok(), want);
    assert_eq!(embedder.post("/invocations", &json!({"inputs": ["hello"]})).ok(), want);
    let body = json!({"inputs": {"source_sentence": "hello", "sentences": ["hello", "cat"]}, "parameters": {}});
    let cosines = numbers(&embedder.post("/", &body).ok());
    assert!(cosines.len() == 2 && (cosines[0] - 1.0).abs() < 1e-5);
    // The model name that the client sends by default.
    assert_eq!(embedder.post("/v1/embeddings", &json!({"input": "a", "model": "dummy"})).ok()["model"], "st-prompts");

    let classifier = serve(&["task-classify"], config());
    let all = classifier.post("/", &json!({"inputs": "hello world", "parameters": {"top_k": 2}})).ok();
    let flat = classifier.post("/predict", &json!({"inputs": "hello world"})).ok();
    assert_eq!(all, json!([[flat[0], flat[1]]]));
    let raw = json!({"inputs": "hello world", "parameters": {"function_to_apply": "none"}});
    let want = classifier.post("/predict", &json!({"inputs": "hello world", "raw_scores": true})).ok();
    assert_eq!(classifier.post("/", &raw).ok()[0], want);
    let soft = json!({"inputs": "hello world", "parameters": {"function_to_apply": "softmax"}});
    assert_eq!(classifier.post("/", &soft).ok()[0], flat);

    let reranker = serve(&["task-rerank"], config());
    assert_eq!(reranker.post("/", &json!({"query": "a", "texts": ["b"]})).ok()[0]["index"], 0);
    let refused = reranker.post("/", &json!({"inputs": "a"}));
    assert_eq!((refused.status, &refused.json()["error_type"]), (422, &json!("Validation")));
}

#[test]
fn token_labels_match_the_reference() {
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

#[test]
fn labels_of_a_request_match_the_gliner_package() {
    let server = serve(&["gliner-deberta"], Config { auto_truncate: true, ..config() });
    let golden = json(&golden("gliner-deberta").join("golden.json"));
    let cases = golden["cases"].as_array().unwrap();
    let texts: Vec<_> = cases.iter().map(|case| &case["text"]).collect();
    for (i, options) in golden["options"].as_array().unwrap().iter().enumerate() {
        let parameters = json!({"labels": golden["labels"], "threshold": options["threshold"],
            "nested": options["flat_ner"] == false, "multi_label": options["multi_label"]});
        let body = json!({"inputs": texts, "parameters": parameters});
        let got = server.post("/tag", &body).ok();
        assert_eq!(server.post("/", &body).ok(), got);
        for (got, case) in got.as_array().unwrap().iter().zip(cases) {
            let want = case["found"][i].as_array().unwrap();
            assert_eq!(got.as_array().unwrap().len(), want.len(), "{options}: {case}");
            for (got, want) in got.as_array().unwrap().iter().zip(want) {
                let found = [&got["entity_group"], &got["start"], &got["end"], &got["word"]];
                assert_eq!(found, [&want["label"], &want["start"], &want["end"], &want["text"]]);
                assert!((got["score"].as_f64().unwrap() - want["score"].as_f64().unwrap()).abs() < 1e-4);
            }
        }
    }
    for parameters in [json!({}), json!({"labels": []}), json!({"labels": ["a"], "aggregation_strategy": "first"})] {
        assert_eq!(server.post("/tag", &json!({"inputs": "a", "parameters": parameters})).status, 422);
    }
    let mark = json!({"labels": ["a <<ENT>> b"]});
    for (parameters, field) in [
        (json!({"labels": ["a"], "threshold": 1.5}), "parameters.threshold"),
        (json!({"labels": ["a"], "threshold": -1}), "parameters.threshold"),
        (json!({"labels": ["a"], "stride": 8}), "parameters.stride"),
        (json!({"labels": ["a"], "ignore_labels": ["O", "b"]}), "parameters.ignore_labels"),
    ] {
        let refused = server.post("/tag", &json!({"inputs": "a", "parameters": parameters}));
        let error = refused.json();
        assert!(refused.status == 422 && error["error_type"] == "Validation", "{error}");
        let name = field.rsplit('.').next().unwrap();
        assert!(error["error"].as_str().unwrap().contains(name), "{error}");
    }
    let many: Vec<String> = (0..100_000).map(|i| i.to_string()).collect();
    for parameters in [mark, json!({"labels": many}), json!({"labels": ["x".repeat(50_000)]})] {
        let refused = server.post("/tag", &json!({"inputs": ["a", "b"], "parameters": parameters}));
        assert!(refused.status == 422 && refused.json()["error"].as_str().unwrap().contains("label"));
    }
    // The labels fit the model, and leave no space for a text.
    let refused = server.post("/tag", &json!({"inputs": "a", "parameters": {"labels": many[..200]}}));
    assert!(refused.status == 422 && refused.json()["error"].as_str().unwrap().contains("labels"));
    let tagger = serve(&["task-tag"], config());
    assert_eq!(tagger.post("/tag", &json!({"inputs": "a", "parameters": {"threshold": 7}})).status, 422);
    assert_eq!(tagger.post("/tag", &json!({"inputs": "a", "parameters": {"labels": ["b"]}})).status, 422);
}
