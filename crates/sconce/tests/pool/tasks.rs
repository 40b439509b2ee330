//! A model for a task that its files do not name: a language model as a reranker.

use crate::harness::{Manager, Models, model, post};
use sconce_testkit::{json as read_json, materialize};
use serde_json::{Value, json};
use std::io::Read;

#[test]
fn language_model_reranks_in_a_pool_by_its_task_flag() {
    let (llama, reranker) = (model(), materialize("task-rerank-qwen3"));
    let declared =
        format!("model = '{}'\nflags = {{ request_timeout = 100, kv_cache_tokens = 4096 }}\n", llama.path().display());
    let manager = Manager::with(&declared, Models::Own);
    manager.wait_for_ready(1);
    let path = reranker.path().to_str().unwrap();
    let (ok, _, err) = manager.sconce(&["start", path, "--device", "cpu", "--name", "judge", "--task", "judge"]);
    assert!(!ok && err.contains("unknown task `judge`") && err.contains("rerank"), "{err}");
    let flags = ["--task", "rerank", "--request-timeout", "100"];
    let (ok, out, err) = manager.sconce(&[&["start", path, "--device", "cpu", "--name", "judge"], &flags[..]].concat());
    assert!(ok && out.contains("is ready on cpu"), "{out}{err}");
    let workers = manager.workers();
    assert!(workers.iter().any(|w| w["model"] == "judge" && w["task"] == "rerank"), "{workers:?}");
    // The path alone finds the reranker among the models.
    let golden = read_json(&reranker.path().join("golden.json"));
    let query = golden["queries"][0].as_str().unwrap_or("a query").to_string();
    let body = json!({"query": query, "documents": ["the cat sat", "a dog"]});
    let mut socket = manager.socket();
    post(&mut socket, "/v1/rerank", &body);
    let mut answer = String::new();
    socket.read_to_string(&mut answer).unwrap();
    let (head, body) = answer.split_once("\r\n\r\n").unwrap();
    assert!(head.starts_with("HTTP/1.1 200"), "{answer}");
    let body: Value = serde_json::from_str(body).unwrap_or_else(|e| panic!("{e}: {answer}"));
    assert_eq!(body["results"].as_array().map(Vec::len), Some(2), "{body}");
}
