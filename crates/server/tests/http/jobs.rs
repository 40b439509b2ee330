//! Jobs that one request creates and another streams: `/v1/jobs`.

use crate::common::{Running, request};
use crate::worker::{dry_run_worker, events, execute, has_metric, start_job, text, worker};
use sconce_server::Secret;
use sconce_testkit::wait_until;
use serde_json::{Value, json};
use std::io::{Read, Write};
use std::time::Duration;

fn job(id: &str, max_tokens: u64) -> Value {
    json!({"job_id": id, "prompt": "the cat sat", "max_tokens": max_tokens, "temperature": 0})
}

/// Creates a job and returns the path of its events.
fn create(running: &Running, job: &Value) -> String {
    let created = running.post("/v1/jobs", job).ok();
    assert_eq!(created["job_id"], job["job_id"]);
    created["sse_url"].as_str().unwrap().to_string()
}

/// A worker whose jobs wait for a client for this long.
fn worker_with_lifetime(job_lifetime: Duration) -> Running {
    let running = worker("http://localhost:9999/dry", |config| {
        config.worker.as_mut().unwrap().job_lifetime = job_lifetime;
    });
    wait_until("the worker is healthy", || running.get("/health").status == 200);
    running
}

#[test]
fn created_job_streams_the_events_of_execute_once() {
    let running = dry_run_worker();
    let whole = text(&execute(&running, job("j", 12)));
    for id in ["j", "a/b ?é%2F"] {
        let path = create(&running, &job(id, 12));
        let reply = running.get(&path);
        assert_eq!((reply.status, reply.header("x-accel-buffering")), (200, Some("no")), "{reply:?}");
        let all = events(&reply.body);
        assert_eq!((&all[0]["type"], &all[0]["job_id"]), (&json!("started"), &json!(id)));
        assert_eq!((text(&all), &all.last().unwrap()["stop_reason"]), (whole.clone(), &json!("MAX_TOKENS")));
        let again = running.get(&path);
        assert_eq!((again.status, &again.json()["code"]), (404, &json!("INVALID_REQUEST")), "{again:?}");
    }
    assert!(has_metric(&running, "worker_requests_total{outcome=\"success\"} 3"));
    let unknown = running.get("/v1/jobs/unknown/stream");
    assert!(unknown.status == 404 && unknown.json()["message"].as_str().unwrap().contains("`unknown`"), "{unknown:?}");
    let invalid = running.post("/v1/jobs", &json!({"prompt": ""}));
    let fields: Vec<Value> = invalid.json()["errors"].as_array().unwrap().iter().map(|e| e["field"].clone()).collect();
    assert_eq!((invalid.status, fields), (400, vec![json!("job_id"), json!("prompt")]));
    assert_eq!(running.get("/v1/jobs").status, 405);
}

#[test]
fn stream_is_taken_once_and_deletion_cancels_the_job() {
    let running = dry_run_worker();
    let path = create(&running, &job("long", 2048));
    let duplicate = running.post("/v1/jobs", &job("long", 2048));
    assert_eq!((duplicate.status, &duplicate.json()["code"]), (409, &json!("INVALID_REQUEST")), "{duplicate:?}");
    let mut socket = running.connect();
    socket.write_all(request("GET", &path, &[], "").as_bytes()).unwrap();
    socket.read_exact(&mut [0]).unwrap();
    let second = running.get(&path);
    assert!(second.status == 409 && second.body.contains("one stream"), "{second:?}");
    let deleted = running.send("DELETE", "/v1/jobs/long", &[], "");
    assert_eq!((deleted.status, &deleted.json()["status"]), (202, &json!("cancelling")), "{deleted:?}");
    let mut rest = String::new();
    let _ = socket.read_to_string(&mut rest);
    assert!(rest.contains("\"stop_reason\":\"CANCELLED\"") && rest.contains("[DONE]"), "{rest}");
    // Idempotent, and no error for a job that does not exist.
    let again = running.send("DELETE", "/v1/jobs/long", &[], "");
    assert_eq!((again.status, &again.json()["status"]), (202, &json!("not_found")));
    // The events of a job that is cancelled before its stream is taken end with CANCELLED too.
    let path = create(&running, &job("early", 2048));
    assert_eq!(running.post("/cancel", &json!({"job_id": "early"})).status, 202);
    assert_eq!(events(&running.get(&path).body).last().unwrap()["stop_reason"], "CANCELLED");
    // Events of `/execute` cannot be taken either.
    let _executing = start_job(&running, &job("executing", 2048));
    assert_eq!(running.get("/v1/jobs/executing/stream").status, 409);
}

#[test]
fn disconnect_from_the_stream_cancels_the_job() {
    let running = dry_run_worker();
    let path = create(&running, &job("gone", 2048));
    let mut socket = running.connect();
    socket.write_all(request("GET", &path, &[], "").as_bytes()).unwrap();
    socket.read_exact(&mut [0]).unwrap();
    drop(socket);
    wait_until("the job is cancelled", || has_metric(&running, "worker_requests_total{outcome=\"cancelled\"} 1"));
}

#[test]
fn job_that_nobody_streams_is_dropped() {
    let running = worker_with_lifetime(Duration::from_millis(200));
    let path = create(&running, &job("j", 2048));
    // The id is checked before the model.
    let mut without_model = job("j", 1);
    without_model["model"] = json!("absent");
    assert_eq!(running.post("/v1/jobs", &without_model).status, 409);
    wait_until("the job is gone", || running.post("/v1/jobs", &without_model).status == 400);
    assert_eq!(running.get(&path).status, 404);
    wait_until("the model is idle", || running.app.free_permits() == 512);
}

#[test]
fn number_of_waiting_jobs_is_limited() {
    let running = worker_with_lifetime(Duration::from_secs(600));
    let paths: Vec<String> = (0..256).map(|n| create(&running, &job(&format!("j-{n}"), 1))).collect();
    let refused = running.post("/v1/jobs", &job("one-more", 1));
    let body = refused.json();
    assert_eq!((refused.status, &body["code"], &body["retriable"]), (503, &json!("WORKER_UNHEALTHY"), &json!(true)));
    assert!(refused.header("retry-after").is_some());
    assert_eq!(running.get(&paths[0]).status, 200);
    create(&running, &job("one-more", 1));
}

#[test]
fn draining_worker_waits_until_events_are_collected() {
    let mut running = dry_run_worker();
    let path = create(&running, &job("last", 4));
    wait_until("the job is done", || has_metric(&running, "worker_requests_total{outcome=\"success\"} 1"));
    assert_eq!(running.send("POST", "/shutdown", &[], "").status, 202);
    assert_eq!(running.post("/v1/jobs", &job("late", 4)).status, 503);
    // Time to end, which must not happen yet.
    std::thread::sleep(Duration::from_millis(300));
    assert!(!running.has_ended());
    assert_eq!(events(&running.get(&path).body).last().unwrap()["stop_reason"], "MAX_TOKENS");
    wait_until("the worker has ended", || running.has_ended());
    running.join();
}

#[test]
fn jobs_need_the_api_key_and_a_known_host() {
    let running = worker("http://localhost:9999/dry", |config| config.api_keys = vec![Secret::new("k").unwrap()]);
    wait_until("the worker is healthy", || running.get("/health").status == 200);
    let body = job("j", 2).to_string();
    let json_type = ("content-type", "application/json");
    for (method, path) in [("POST", "/v1/jobs"), ("GET", "/v1/jobs/j/stream"), ("DELETE", "/v1/jobs/j")] {
        let none = running.send(method, path, &[json_type], &body);
        assert_eq!((none.status, &none.json()["code"]), (401, &json!("MISSING_API_KEY")), "{method} {path}");
        let wrong = running.send(method, path, &[json_type, ("authorization", "Bearer x")], &body);
        assert_eq!((wrong.status, &wrong.json()["code"]), (401, &json!("INVALID_API_KEY")), "{method} {path}");
    }
    let open = dry_run_worker();
    for (method, path) in [("POST", "/v1/jobs"), ("GET", "/v1/jobs/j/stream"), ("DELETE", "/v1/jobs/j")] {
        let mut socket = open.connect();
        let text = request(method, path, &[json_type], &body).replace("host: localhost", "host: evil.example");
        socket.write_all(text.as_bytes()).unwrap();
        let refused = crate::common::reply(&mut socket);
        assert_eq!((refused.status, &refused.json()["code"]), (403, &json!("INVALID_REQUEST")), "{method} {path}");
    }
}
