//! Batches: every line is answered exactly once, whatever happens to the server.

use crate::common::{Reply, Running, config, golden, options, start};
use crate::files::{BOUNDARY, form, post_form};
use sconce_server::{Config, ModelSpec, Secret};
use sconce_testkit::{materialize_llama, materialize_slow_llama, wait_for, wait_until};
use serde_json::{Value, json};
use std::collections::{BTreeMap, BTreeSet};
use std::path::{Path, PathBuf};
use tempfile::TempDir;

/// A language model without a chat template, named `m`.
fn named(dir: TempDir) -> (ModelSpec, TempDir) {
    let mut spec = ModelSpec::new(dir.path().to_str().unwrap(), options(dir.path()));
    spec.id = "m".into();
    (spec, dir)
}

fn serve(models: Vec<(ModelSpec, TempDir)>, config: Config) -> Running {
    let (specs, dirs) = models.into_iter().unzip();
    let running = start(specs, dirs, config);
    running.wait_ready();
    running
}

/// A server with a language model, an embedding model and a data folder.
fn serve_in(dir: &Path) -> Running {
    let models = vec![named(materialize_llama(2048)), golden("st-prompts")];
    serve(models, Config { data_dir: Some(dir.into()), ..config() })
}

fn line(id: &str, url: &str, body: &Value) -> String {
    json!({"custom_id": id, "method": "POST", "url": url, "body": body}).to_string() + "\n"
}

/// Lines that ask for completions of this many tokens.
fn completions(count: usize, tokens: usize) -> String {
    let body = |i: usize| json!({"model": "m", "prompt": [5 + i % 500, 6], "max_tokens": tokens, "ignore_eos": true});
    (0..count).map(|i| line(&format!("r-{i}"), "/v1/completions", &body(i))).collect()
}

fn upload(server: &Running, text: &str) -> String {
    let file = post_form(server, &form(&[("purpose", "batch")], &[("file", "in.jsonl", text)])).ok();
    file["id"].as_str().unwrap().to_owned()
}

fn create(server: &Running, file: &str, endpoint: &str) -> Reply {
    let body = json!({"input_file_id": file, "endpoint": endpoint, "completion_window": "24h",
                      "metadata": {"of": "a test"}});
    server.post("/v1/batches", &body)
}

fn begin(server: &Running, text: &str, endpoint: &str) -> String {
    let batch = create(server, &upload(server, text), endpoint).ok();
    batch["id"].as_str().unwrap().to_owned()
}

fn get(server: &Running, id: &str) -> Value {
    server.get(&format!("/v1/batches/{id}")).ok()
}

/// Waits until the batch has ended.
fn end(server: &Running, id: &str) -> Value {
    wait_for("the batch ends", || {
        let batch = get(server, id);
        let status = batch["status"].as_str().unwrap();
        match ["completed", "failed", "expired", "cancelled"].contains(&status) {
            true => Ok(batch),
            false => Err(batch.to_string()),
        }
    })
}

/// The lines of a file with results, by `custom_id`, each of which occurs once.
fn results(server: &Running, file: &Value) -> BTreeMap<String, Value> {
    let Some(file) = file.as_str() else { return BTreeMap::new() };
    let content = server.get(&format!("/v1/files/{file}/content"));
    assert_eq!(content.status, 200);
    let mut all = BTreeMap::new();
    for line in content.body.lines() {
        let line: Value = serde_json::from_str(line).unwrap();
        let twice = all.insert(line["custom_id"].as_str().unwrap().to_owned(), line);
        assert!(twice.is_none(), "{twice:?} is answered twice");
    }
    all
}

fn ids(count: usize) -> BTreeSet<String> {
    (0..count).map(|i| format!("r-{i}")).collect()
}

#[test]
fn a_batch_has_a_file_of_results_and_one_of_errors() {
    let dir = tempfile::tempdir().unwrap();
    let server = serve_in(dir.path());
    let text = completions(20, 4)
        + &line("bad", "/v1/completions", &json!({"model": "m", "prompt": "x", "max_tokens": 99_999}));
    let file = upload(&server, &text);
    let created = create(&server, &file, "/v1/completions").ok();
    assert_eq!((&created["object"], &created["status"]), (&json!("batch"), &json!("validating")));
    assert_eq!(created["expires_at"].as_u64().unwrap() - created["created_at"].as_u64().unwrap(), 24 * 3_600);
    // The batch has its own link to the content.
    assert_eq!(server.send("DELETE", &format!("/v1/files/{file}"), &[], "").status, 200);
    let batch = end(&server, created["id"].as_str().unwrap());
    assert_eq!(batch["status"], "completed", "{batch}");
    assert_eq!(batch["request_counts"], json!({"total": 21, "completed": 20, "failed": 1}));
    assert_eq!(
        (&batch["metadata"], &batch["model"], &batch["errors"]),
        (&json!({"of": "a test"}), &json!("m"), &json!(null))
    );
    for time in ["in_progress_at", "finalizing_at", "completed_at"] {
        assert!(batch[time].as_u64() >= batch["created_at"].as_u64(), "{time}: {batch}");
    }
    assert!(batch["failed_at"].is_null() && batch["cancelled_at"].is_null());
    let good = results(&server, &batch["output_file_id"]);
    assert_eq!(good.keys().cloned().collect::<BTreeSet<_>>(), ids(20));
    for result in good.values() {
        assert!(result["id"].as_str().unwrap().starts_with("batch_req_") && result["error"].is_null(), "{result}");
        assert_eq!(result["response"]["status_code"], 200);
        assert_eq!(result["response"]["body"]["usage"]["completion_tokens"], 4);
        assert!(!result["response"]["request_id"].as_str().unwrap().is_empty());
    }
    let bad = &results(&server, &batch["error_file_id"])["bad"];
    assert_eq!((&bad["response"]["status_code"], &bad["error"]), (&json!(400), &json!(null)));
    assert_eq!(bad["response"]["body"]["error"]["type"], "invalid_request_error");
    assert_eq!((&batch["usage"]["output_tokens"], &batch["usage"]["input_tokens"]), (&json!(80), &json!(40)));
    let output = server.get(&format!("/v1/files/{}", batch["output_file_id"].as_str().unwrap())).ok();
    assert_eq!(output["purpose"], "batch_output");
    assert_eq!(output["expires_at"].as_u64().unwrap() - output["created_at"].as_u64().unwrap(), 2_592_000);
    // Only the record is left of an ended batch.
    let folder = dir.path().join("batches").join(batch["id"].as_str().unwrap());
    assert_eq!(std::fs::read_dir(folder).unwrap().count(), 1);
    let list = server.get("/v1/batches?limit=1").ok();
    assert_eq!((&list["data"][0], &list["has_more"]), (&batch, &json!(false)));
}

#[test]
fn embeddings_are_answered_as_alone() {
    let dir = tempfile::tempdir().unwrap();
    let server = serve_in(dir.path());
    let body = |i: usize| json!({"model": "st-prompts", "input": format!("text number {i}")});
    let text: String = (0..30).map(|i| line(&format!("r-{i}"), "/v1/embeddings", &body(i))).collect();
    let batch = end(&server, &begin(&server, &text, "/v1/embeddings"));
    assert_eq!((&batch["status"], &batch["error_file_id"]), (&json!("completed"), &json!(null)), "{batch}");
    let all = results(&server, &batch["output_file_id"]);
    assert_eq!(all.len(), 30);
    for i in [0, 7, 29] {
        let alone = server.post("/v1/embeddings", &body(i)).ok();
        assert_eq!(all[&format!("r-{i}")]["response"]["body"]["data"], alone["data"]);
    }
}

#[test]
fn a_file_with_errors_fails_before_any_line_is_answered() {
    let dir = tempfile::tempdir().unwrap();
    let server = serve_in(dir.path());
    let good = completions(1, 1);
    let other = |id: &str, change: Value| {
        let mut line: Value = serde_json::from_str(good.trim()).unwrap();
        line["custom_id"] = json!(id);
        line.as_object_mut().unwrap().extend(change.as_object().unwrap().clone());
        line.to_string() + "\n"
    };
    let text = good.clone()
        + &good
        + "not json\n"
        + &other("url", json!({"url": "/v1/embeddings"}))
        + &other("model", json!({"body": {"model": "gpt-17", "prompt": "x"}}))
        + &other("stream", json!({"body": {"prompt": "x", "stream": true}}))
        + &other("method", json!({"method": "GET"}));
    let batch = end(&server, &begin(&server, &text, "/v1/completions"));
    assert_eq!((&batch["status"], &batch["request_counts"]["completed"]), (&json!("failed"), &json!(0)));
    assert!(batch["failed_at"].is_u64() && batch["output_file_id"].is_null() && batch["in_progress_at"].is_null());
    let errors = batch["errors"]["data"].as_array().unwrap();
    let errors: Vec<(u64, &str)> =
        errors.iter().map(|error| (error["line"].as_u64().unwrap(), error["code"].as_str().unwrap())).collect();
    let expected = [
        (2, "duplicate_custom_id"),
        (3, "invalid_json_line"),
        (4, "invalid_url"),
        (5, "model_not_found"),
        (6, "unsupported_parameter"),
        (7, "invalid_method"),
    ];
    assert_eq!(errors, expected);
    let empty = end(&server, &begin(&server, "\n", "/v1/completions"));
    assert_eq!(
        (&empty["errors"]["data"][0]["code"], &empty["errors"]["data"][0]["line"]),
        (&json!("empty_file"), &json!(null))
    );
}

#[test]
fn wrong_requests_for_batches_name_the_field() {
    let dir = tempfile::tempdir().unwrap();
    let server = serve_in(dir.path());
    let file = upload(&server, &completions(1, 1));
    let wrong = post_form(&server, &form(&[("purpose", "user_data")], &[("file", "a", "a")])).ok();
    let body = json!({"input_file_id": file, "endpoint": "/v1/completions", "completion_window": "24h"});
    for (field, value, status, param) in [
        ("input_file_id", json!("file-x"), 404, "input_file_id"),
        ("input_file_id", wrong["id"].clone(), 400, "input_file_id"),
        ("endpoint", json!("/v1/rerank"), 400, "endpoint"),
        ("completion_window", json!("1h"), 400, "completion_window"),
        ("metadata", json!({"a": "x".repeat(513)}), 400, "metadata"),
        ("output_expires_after", json!({"anchor": "created_at", "seconds": 60}), 400, "output_expires_after"),
    ] {
        let mut body = body.clone();
        body[field] = value;
        let reply = server.post("/v1/batches", &body);
        assert_eq!((reply.status, &reply.json()["error"]["param"]), (status, &json!(param)), "{reply:?}");
    }
    for (method, path) in
        [("GET", "/v1/batches/batch_x"), ("DELETE", "/v1/batches/batch_x"), ("POST", "/v1/batches/batch_x/cancel")]
    {
        let reply = server.send(method, path, &[], "");
        assert_eq!((reply.status, &reply.json()["error"]["param"]), (404, &json!("batch_id")), "{method} {path}");
    }
    assert_eq!(server.get("/v1/batches?limit=101").status, 400);
    let without = serve(vec![golden("st-prompts")], config());
    assert_eq!(without.get("/v1/batches").json()["error"]["code"], "no_data_dir");
}

#[test]
fn a_cancelled_batch_keeps_what_is_done_and_can_be_deleted() {
    let dir = tempfile::tempdir().unwrap();
    let models = vec![named(materialize_slow_llama(2048, 12))];
    let server = serve(models, Config { data_dir: Some(dir.path().into()), batch_lines: 2, ..config() });
    let id = begin(&server, &completions(500, 30), "/v1/completions");
    wait_until("some lines are answered", || get(&server, &id)["request_counts"]["completed"].as_u64() > Some(0));
    let path = format!("/v1/batches/{id}");
    assert_eq!(server.send("DELETE", &path, &[], "").status, 409, "it still runs");
    // A client's request is answered beside it.
    let client = json!({"model": "m", "prompt": "x", "max_tokens": 2});
    server.post("/v1/completions", &client).ok();
    let cancelling = server.send("POST", &format!("{path}/cancel"), &[], "").ok();
    assert!(["cancelling", "cancelled"].contains(&cancelling["status"].as_str().unwrap()), "{cancelling}");
    let batch = end(&server, &id);
    assert_eq!(batch["status"], "cancelled");
    assert!(batch["cancelling_at"].is_u64() && batch["cancelled_at"].is_u64());
    let (good, rest) = (results(&server, &batch["output_file_id"]), results(&server, &batch["error_file_id"]));
    assert!(!good.is_empty() && !rest.is_empty());
    assert_eq!(good.keys().chain(rest.keys()).cloned().collect::<BTreeSet<_>>(), ids(500));
    assert_eq!(good.len() + rest.len(), 500);
    assert!(rest.values().all(|line| line["error"]["code"] == "batch_cancelled" && line["response"].is_null()));
    assert_eq!(batch["request_counts"], json!({"total": 500, "completed": good.len(), "failed": rest.len()}));
    assert_eq!(server.send("POST", &format!("{path}/cancel"), &[], "").status, 409, "it has ended");
    assert_eq!(server.send("DELETE", &path, &[], "").ok(), json!({"id": id, "object": "batch", "deleted": true}));
    assert_eq!((server.get(&path).status, server.get("/v1/batches").ok()["data"].clone()), (404, json!([])));
    assert_eq!(std::fs::read_dir(dir.path().join("batches")).unwrap().count(), 0);
}

/// The journal of the only batch.
fn journal(dir: &Path) -> PathBuf {
    let folder = std::fs::read_dir(dir.join("batches")).unwrap().next().unwrap().unwrap().path();
    folder.join("results.jsonl")
}

/// Starts a server for a batch that takes a while.
fn serve_slowly(dir: &Path) -> Running {
    let models = vec![named(materialize_slow_llama(2048, 8))];
    serve(models, Config { data_dir: Some(dir.into()), batch_lines: 4, ..config() })
}

fn answered(server: &Running, id: &str) -> usize {
    let counts = get(server, id)["request_counts"].clone();
    counts["completed"].as_u64().unwrap() as usize + counts["failed"].as_u64().unwrap() as usize
}

#[test]
fn a_restarted_server_answers_every_line_once() {
    let dir = tempfile::tempdir().unwrap();
    let mut before = 0;
    let mut id = None;
    for torn in [&b""[..], b"{\"id\":\"batch_req_1\",\"custom_id\":\"r-7", b"{"] {
        let server = serve_slowly(dir.path());
        let id = id.get_or_insert_with(|| begin(&server, &completions(400, 40), "/v1/completions"));
        wait_until("more lines are answered", || answered(&server, id) > before);
        drop(server);
        // As if the process had been killed while it wrote a line.
        let path = journal(dir.path());
        let mut recorded = std::fs::read(&path).unwrap();
        before = recorded.iter().filter(|byte| **byte == b'\n').count();
        assert!(before > 0 && before < 400, "{before}");
        recorded.extend(torn);
        std::fs::write(&path, recorded).unwrap();
    }
    let (server, id) = (serve_slowly(dir.path()), id.unwrap());
    let batch = end(&server, &id);
    assert_eq!(batch["request_counts"], json!({"total": 400, "completed": 400, "failed": 0}), "{batch}");
    let good = results(&server, &batch["output_file_id"]);
    assert_eq!(good.keys().cloned().collect::<BTreeSet<_>>(), ids(400));
    assert!(good.values().all(|line| line["response"]["body"]["usage"]["completion_tokens"] == 40));
}

#[test]
fn a_batch_expires_with_what_is_done() {
    let dir = tempfile::tempdir().unwrap();
    let server = serve_slowly(dir.path());
    let id = begin(&server, &completions(400, 40), "/v1/completions");
    wait_until("some lines are answered", || answered(&server, &id) > 0);
    drop(server);
    let path = journal(dir.path()).with_file_name("batch.json");
    let mut record: Value = sconce_testkit::json(&path);
    record["expires_at"] = record["created_at"].clone();
    std::fs::write(&path, record.to_string()).unwrap();
    let server = serve_slowly(dir.path());
    let batch = end(&server, &id);
    assert_eq!(batch["status"], "expired", "{batch}");
    assert!(batch["expired_at"].is_u64() && batch["completed_at"].is_null());
    let (good, rest) = (results(&server, &batch["output_file_id"]), results(&server, &batch["error_file_id"]));
    assert!(!good.is_empty() && good.len() + rest.len() == 400);
    assert!(rest.values().all(|line| line["error"]["code"] == "batch_expired"));
}

#[test]
fn files_and_batches_belong_to_their_key() {
    let dir = tempfile::tempdir().unwrap();
    let api_keys: Vec<Secret> = ["ours", "theirs"].map(|key| Secret::new(key).unwrap()).into();
    let config = Config { data_dir: Some(dir.path().into()), api_keys, ..config() };
    let server = serve(vec![named(materialize_llama(2048)), golden("st-prompts")], config);
    let send = |key: &str, method: &str, path: &str, kind: &str, body: &str| {
        let key = format!("Bearer {key}");
        server.send(method, path, &[("content-type", kind), ("authorization", &key)], body)
    };
    let kind = format!("multipart/form-data; boundary={BOUNDARY}");
    let file = form(&[("purpose", "batch")], &[("file", "in.jsonl", &completions(5, 2))]);
    let file = send("ours", "POST", "/v1/files", &kind, &file).ok()["id"].as_str().unwrap().to_owned();
    let json_kind = "application/json";
    let body = json!({"input_file_id": file, "endpoint": "/v1/completions", "completion_window": "24h"}).to_string();
    assert_eq!(send("theirs", "POST", "/v1/batches", json_kind, &body).status, 404);
    let id = send("ours", "POST", "/v1/batches", json_kind, &body).ok()["id"].as_str().unwrap().to_owned();
    let path = format!("/v1/batches/{id}");
    let batch = wait_for("the batch ends", || {
        let batch = send("ours", "GET", &path, json_kind, "").ok();
        if batch["status"] == "completed" { Ok(batch) } else { Err(batch.to_string()) }
    });
    assert_eq!(batch["request_counts"]["completed"], 5, "the lines have the owner's key");
    let output = format!("/v1/files/{}", batch["output_file_id"].as_str().unwrap());
    let content = format!("{output}/content");
    let cancel = format!("{path}/cancel");
    for (method, path) in
        [("GET", &path), ("DELETE", &path), ("POST", &cancel), ("GET", &output), ("DELETE", &output), ("GET", &content)]
    {
        assert_eq!(send("theirs", method, path, json_kind, "").status, 404, "{method} {path}");
        let nobody = server.send(method, path, &[], "");
        assert_eq!(nobody.status, 401, "{method} {path}");
    }
    for list in ["/v1/batches", "/v1/files"] {
        let of = |key: &str| send(key, "GET", list, json_kind, "").ok()["data"].as_array().unwrap().len();
        assert_eq!((of("ours") > 0, of("theirs")), (true, 0), "{list}");
    }
    assert_eq!(send("ours", "GET", &content, json_kind, "").body.lines().count(), 5);
    // Keys are not on the disk.
    let record = std::fs::read_to_string(dir.path().join("batches").join(&id).join("batch.json")).unwrap();
    assert!(record.contains("\"owner\"") && !record.contains("ours"), "{record}");
}
