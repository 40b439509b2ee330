//! The API documentation: the manager's own paths, and those of its workers that it routes.

use super::manage::pages;
use super::routing_key::tasks;
use crate::core::Endpoint;
use crate::manager::Manager;
use axum::Json;
use axum::extract::State;
use axum::response::Html;
use serde_json::{Map, Value, json};
use std::fmt::Write;
use std::sync::Arc;

/// The manager's own paths: method, path, summary.
const OWN_PATHS: [(&str, &str, &str); 12] = [
    ("get", "/v2/state", "Devices, workers, and the last workers that ended"),
    (
        "post",
        "/v2/workers/start",
        "Start a worker: {model_ref, gpu_id or device, name, flags}; responds when it is ready",
    ),
    ("post", "/v2/workers/stop", "Drain a worker and end it: {worker_id}"),
    ("post", "/v2/workers/{id}/drain", "Send a worker no more requests; running ones finish"),
    ("get", "/v1/capabilities", "The devices of this host"),
    ("get", "/v1/models", "The models of all workers"),
    ("get", "/health", "Whether a worker accepts requests"),
    ("get", "/ping", "The same as /health"),
    ("get", "/metrics", "Prometheus metrics of the manager and of all workers"),
    ("get", "/openapi.json", "This documentation as OpenAPI"),
    ("post", "/v2/internal/workers/ready", "A worker reports that it is ready"),
    ("post", "/v1/worker-heartbeat", "A worker reports that it is alive"),
];

/// Paths of workers that the manager handles by job.
const JOB_PATHS: [&str; 2] = ["/cancel", "/execute"];

/// The OpenAPI document. Without a worker it has the manager's own paths only.
async fn document(pool: &Manager) -> Value {
    let mut worker = json!({});
    // Other hosts may have another version, and may be hostile.
    let serving = pool.core().serving().into_iter().filter(|one| matches!(one.endpoint, Endpoint::Port(_)));
    for one in serving {
        let page = pages(pool, "/openapi.json", vec![one]).await.pop();
        if let Some(Ok(document)) = page.map(|(_, page)| serde_json::from_slice(&page)) {
            worker = document;
            break;
        }
    }
    merge(worker)
}

fn merge(mut document: Value) -> Value {
    if !document.is_object() {
        document = json!({});
    }
    let routed = |path: &str| tasks(path).is_some() || JOB_PATHS.contains(&path) || path.starts_with("/v1/jobs");
    let paths = document["paths"].as_object().cloned().unwrap_or_default();
    let mut paths: Map<String, Value> = paths.into_iter().filter(|(path, _)| routed(path)).collect();
    for (method, path, summary) in OWN_PATHS {
        let operation = json!({"tags": ["Pool"], "summary": summary, "responses": {"200": {"description": "Success"}}});
        // The manager's own paths replace those of workers.
        paths.insert(path.into(), json!({method: operation}));
    }
    document["openapi"] = json!("3.1.0");
    let description = "Models on all devices of a host behind one address: the APIs of its workers, and its own";
    document["info"] =
        json!({"title": "Sconce pool", "description": description, "version": env!("CARGO_PKG_VERSION")});
    document["paths"] = Value::Object(paths);
    document
}

pub(crate) async fn openapi(State(pool): State<Arc<Manager>>) -> Json<Value> {
    Json(document(&pool).await)
}

pub(crate) async fn page(State(pool): State<Arc<Manager>>) -> Html<String> {
    Html(html(&document(&pool).await))
}

/// An HTML page of all paths. It loads nothing from elsewhere.
fn html(document: &Value) -> String {
    let mut rows = String::new();
    for (path, item) in document["paths"].as_object().into_iter().flatten() {
        for (method, operation) in item.as_object().into_iter().flatten() {
            let text = |value: &Value| escaped(value.as_str().unwrap_or_default());
            let (tag, summary) = (text(&operation["tags"][0]), text(&operation["summary"]));
            let (method, path) = (escaped(&method.to_uppercase()), escaped(path));
            // Writing to a string cannot fail.
            let _ = writeln!(rows, "<tr><td>{tag}</td><td><code>{method} {path}</code></td><td>{summary}</td></tr>");
        }
    }
    format!(
        "<!doctype html><html lang=en><meta charset=utf-8><title>Sconce pool {version}</title>\n\
         <style>body{{font:16px/1.5 system-ui;margin:2em auto;max-width:60em;padding:0 1em}}\
         td{{padding:.2em 1em .2em 0;vertical-align:top}}</style>\n\
         <h1>Sconce pool {version}</h1><p>Paths of this manager and of its workers. All fields are in \
         <a href=/openapi.json>/openapi.json</a>.\n<table>\n{rows}</table></html>\n",
        version = env!("CARGO_PKG_VERSION")
    )
}

fn escaped(text: &str) -> String {
    text.replace('&', "&amp;").replace('<', "&lt;").replace('>', "&gt;")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn documentation_has_own_paths_and_routed_paths_of_workers() {
        let operation = json!({"tags": ["OpenAI"], "summary": "a <b>"});
        let worker = json!({"info": {"title": "Sconce"}, "components": {"schemas": {}}, "paths": {
            "/v1/chat/completions": {"post": operation}, "/v1/jobs/{id}": {"delete": operation},
            "/v1/models": {"get": operation}, "/v1/ready": {"get": operation}, "/shutdown": {"post": operation}}});
        let merged = merge(worker);
        let paths = merged["paths"].as_object().unwrap();
        for there in ["/v1/chat/completions", "/v1/jobs/{id}", "/v2/workers/start", "/health"] {
            assert!(paths.contains_key(there), "{there}");
        }
        assert!(!paths.contains_key("/v1/ready") && !paths.contains_key("/shutdown"), "not routed to workers");
        assert_eq!(paths["/v1/models"]["get"]["tags"], json!(["Pool"]));
        assert_eq!((&merged["info"]["title"], &merged["components"]), (&json!("Sconce pool"), &json!({"schemas": {}})));
        let page = html(&merged);
        assert!(page.contains("POST /v1/chat/completions") && page.contains("a &lt;b&gt;"), "{page}");
        assert!(html(&merge(json!([]))).contains("/v2/state"), "without a worker");
    }
}
