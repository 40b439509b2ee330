//! The memory budget: what is planned counts, and the least recently used idle model is evicted.

use crate::common::{Running, config, golden, reply, request, serve, start};
use crate::lifecycle::{JSON, large_limits, large_request};
use sconce_engine::Task;
use sconce_server::{Config, ModelSpec, ModelStatus};
use sconce_testkit::wait_until;
use serde_json::json;
use std::io::Write;

/// Specs of models of the same size with these names, and that size in bytes.
fn same_size_models(names: &[&str]) -> (Vec<ModelSpec>, Vec<tempfile::TempDir>, u64) {
    let size = serve(&["st-prompts"], config()).app.models.planned_bytes();
    assert!(size > 0);
    let (specs, dirs): (Vec<_>, Vec<_>) = names.iter().map(|_| golden("st-prompts")).unzip();
    let named = specs.into_iter().zip(names).map(|(spec, name)| ModelSpec { id: (*name).into(), ..spec });
    (named.collect(), dirs, size)
}

fn status_of(server: &Running, name: &str) -> Option<ModelStatus> {
    server.app.models.list().into_iter().find(|m| m.spec.id == name).map(|m| m.status)
}

#[test]
fn memory_budget_evicts_the_least_recently_used_idle_model() {
    let (mut specs, mut dirs, size) = same_size_models(&["first", "second", "third"]);
    let (third, _dir) = (specs.pop().unwrap(), dirs.pop().unwrap());
    let server = start(specs, dirs, Config { memory_budget: Some(2 * size), ..large_limits() });
    wait_until("both models are loaded", || server.app.models.list().iter().all(|m| m.status == ModelStatus::Ready));
    // The first is least recently used but leased when the third loads: the second is evicted.
    let mut running = server.connect();
    let long = large_request(20_000).replacen('{', "{\"model\": \"first\", ", 1);
    running.write_all(request("POST", "/embed", &JSON, &long).as_bytes()).unwrap();
    wait_until("the request is running", || server.app.models.list()[0].leases == 1);
    server.post("/embed", &json!({"inputs": "a", "model": "second"})).ok();
    let load = json!({"model": third.reference, "name": "third", "wait": true});
    assert_eq!(server.post("/v1/models/load", &load).ok()["state"], "ready");
    assert_eq!(status_of(&server, "first"), Some(ModelStatus::Ready), "a leased model is not evicted");
    assert_eq!(status_of(&server, "second"), Some(ModelStatus::Unloaded));
    assert_eq!(reply(&mut running).status, 200);
}

#[test]
fn model_over_budget_loads_once_memory_is_free() {
    let (specs, dirs, size) = same_size_models(&["a", "b"]);
    let server = start(specs, dirs, Config { memory_budget: Some(size), ..large_limits() });
    let settled = |name| !matches!(status_of(&server, name), Some(ModelStatus::Loading(_)));
    wait_until("neither model is loading", || settled("a") && settled("b"));
    assert_eq!(server.get("/health").status, 200, "both models accept requests");
    let embed = |name: &str| server.post("/embed", &json!({"inputs": "x", "model": name}));
    for name in ["a", "b", "a"] {
        wait_until("this model is loaded and the other evicted", || embed(name).status == 200);
    }
    let mut running = server.connect();
    let long = large_request(20_000).replacen('{', "{\"model\": \"a\", ", 1);
    running.write_all(request("POST", "/embed", &JSON, &long).as_bytes()).unwrap();
    wait_until("the request is running", || server.app.models.list()[0].leases == 1);
    let mut refused = embed("b");
    wait_until("the error names the memory budget", || {
        refused = embed("b");
        refused.body.contains("--memory-budget")
    });
    assert_eq!((refused.status, refused.header("retry-after")), (503, Some("2")), "{refused:?}");
    assert_eq!(reply(&mut running).status, 200);
    wait_until("the other model is loaded", || embed("b").status == 200);
}

#[test]
fn model_larger_than_budget_is_refused_without_eviction() {
    let mut sizes: Vec<(u64, &str)> = ["st-prompts", "task-classify", "task-sparse"]
        .map(|name| (serve(&[name], config()).app.models.planned_bytes(), name))
        .to_vec();
    sizes.sort_unstable();
    let ((least, small), (most, large)) = (sizes[0], sizes[2]);
    assert!(least < most, "{sizes:?}");
    let server = serve(&[small], Config { memory_budget: Some(least), ..config() });
    let (spec, _dir) = golden(large);
    let refused = server.post("/v1/models/load", &json!({"model": spec.reference, "name": "large", "wait": true}));
    assert!(refused.status == 400 && refused.body.contains("MiB"), "{refused:?}");
    assert_eq!(status_of(&server, small), Some(ModelStatus::Ready));
}

/// An LLM reranker has a plan like any other model, and its memory counts.
#[test]
fn llm_reranker_counts_against_the_memory_budget() {
    let (mut spec, dir) = golden("task-rerank-qwen3");
    spec.task = Some(Task::Rerank);
    let server = start(vec![spec.clone()], vec![dir], config());
    server.wait_ready();
    let planned = server.app.models.planned_bytes();
    assert!(planned > 0);
    let (mut again, dir) = golden("task-rerank-qwen3");
    again.task = Some(Task::Rerank);
    let small = start(vec![again], vec![dir], Config { memory_budget: Some(planned - 1), ..large_limits() });
    wait_until("the model is refused", || {
        let status = status_of(&small, "task-rerank-qwen3");
        matches!(status, Some(ModelStatus::Failed(error)) if error.contains("--memory-budget"))
    });
}
