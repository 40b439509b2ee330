//! Jobs that one request creates and another streams, through the manager.

use crate::common::{KEY, Running, TestHost, raw};
use axum::http::{Method, StatusCode};
use serde_json::{Value, json};
use std::io::{Read, Write};
use std::net::TcpStream;
use std::time::Duration;

fn job(id: &str) -> Value {
    json!({"job_id": id, "prompt": format!("A prompt of its own: {id}"), "max_tokens": 10})
}

fn request(method: &str, path: &str, key: &str) -> String {
    format!("{method} {path} HTTP/1.1\r\nhost: localhost\r\nauthorization: Bearer {key}\r\nconnection: close\r\n\r\n")
}

fn stream(pool: &Running, id: &str) -> String {
    raw(pool.address, &request("GET", &format!("/v1/jobs/{id}/stream"), KEY))
}

fn active(pool: &Running) -> u64 {
    pool.workers().iter().map(|w| w["active"].as_u64().unwrap()).sum()
}

#[test]
fn job_is_streamed_from_the_worker_that_created_it() {
    let host = TestHost::new();
    let pool = host.run("[[model]]\nmodel = 'ok'\nreplicas = 3");
    pool.ready(3);
    let ids: Vec<String> = (0..6).map(|n| format!("j-{n}")).collect();
    for id in &ids {
        let (status, body) = pool.post("/v1/jobs", job(id));
        assert_eq!((status, &body["sse_url"]), (StatusCode::OK, &json!(format!("/v1/jobs/{id}/stream"))), "{body}");
    }
    // A job counts as load of its worker before its events are streamed.
    assert_eq!(active(&pool), 6);
    assert!(pool.workers().iter().all(|w| w["active"] == 2), "{:?}", pool.workers());
    for id in ids.iter().rev() {
        let answer = stream(&pool, id);
        assert!(answer.starts_with("HTTP/1.1 200") && answer.contains("x-sconce-worker"), "{answer}");
        assert!(answer.contains(&format!("\"job_id\":\"{id}\"")) && answer.contains("MAX_TOKENS"), "{answer}");
        assert!(stream(&pool, id).starts_with("HTTP/1.1 404"), "the events are streamed once");
    }
    pool.wait("the workers to be idle", |p| (active(p) == 0).then_some(()));
    let unknown = stream(&pool, "unknown");
    assert!(unknown.starts_with("HTTP/1.1 404") && unknown.contains("INVALID_REQUEST"), "{unknown}");
    let (status, _) = pool.post("/v1/jobs", json!({"prompt": "p"}));
    assert_eq!(status, StatusCode::BAD_REQUEST, "the worker's answer");
    assert_eq!(active(&pool), 0);
}

#[test]
fn streamed_and_waiting_jobs_keep_their_ids_and_can_be_cancelled() {
    let host = TestHost::new();
    let pool = host.run("[[model]]\nmodel = 'slow'\nreplicas = 2");
    pool.ready(2);
    assert_eq!(pool.post("/v1/jobs", job("j")).0, StatusCode::OK);
    let (status, body) = pool.post("/v1/jobs", job("j"));
    assert_eq!((status, &body["code"]), (StatusCode::CONFLICT, &json!("INVALID_REQUEST")), "{body}");
    let mut socket = TcpStream::connect(pool.address).unwrap();
    socket.set_read_timeout(Some(Duration::from_secs(120))).unwrap();
    socket.write_all(request("GET", "/v1/jobs/j/stream", KEY).as_bytes()).unwrap();
    let (mut seen, mut buffer) = (String::new(), [0; 4096]);
    while !seen.contains("\"type\":\"token\"") {
        let n = match socket.read(&mut buffer) {
            Err(e) if e.kind() == std::io::ErrorKind::Interrupted => continue,
            read => read.unwrap(),
        };
        assert!(n > 0, "{seen}");
        seen.push_str(&String::from_utf8_lossy(&buffer[..n]));
    }
    let second = stream(&pool, "j");
    assert!(second.starts_with("HTTP/1.1 409") && second.contains("one stream"), "{second}");
    assert_eq!(pool.request(Method::DELETE, "/v1/jobs/j", None).0, StatusCode::ACCEPTED);
    let mut rest = Vec::new();
    let _ = socket.read_to_end(&mut rest);
    let rest = seen + &String::from_utf8_lossy(&rest);
    assert!(rest.contains("CANCELLED") && rest.contains("[DONE]"), "{rest}");
    assert_eq!(pool.request(Method::DELETE, "/v1/jobs/j", None).0, StatusCode::ACCEPTED, "idempotent");
}

#[test]
fn job_that_nobody_streams_releases_its_worker() {
    let host = TestHost::new();
    let mut config = host.config("[[model]]\nmodel = 'ok'");
    config.job_lifetime = Duration::from_secs(1);
    let pool = Running::new(config);
    pool.ready(1);
    assert_eq!(pool.post("/v1/jobs", job("j")).0, StatusCode::OK);
    assert_eq!(active(&pool), 1);
    pool.wait("the worker to be idle", |p| (active(p) == 0).then_some(()));
    assert!(stream(&pool, "j").starts_with("HTTP/1.1 404"));
}

#[test]
fn jobs_need_the_key_of_the_manager() {
    let host = TestHost::new();
    let pool = host.run("[[model]]\nmodel = 'ok'");
    pool.ready(1);
    assert_eq!(pool.post("/v1/jobs", job("j")).0, StatusCode::OK);
    for (method, path) in [("POST", "/v1/jobs"), ("GET", "/v1/jobs/j/stream"), ("DELETE", "/v1/jobs/j")] {
        let answer = raw(pool.address, &request(method, path, "wrong"));
        assert!(answer.starts_with("HTTP/1.1 401") && answer.contains("INVALID_API_KEY"), "{answer}");
        let head = format!("{method} {path} HTTP/1.1\r\nhost: localhost\r\nconnection: close\r\n\r\n");
        let answer = raw(pool.address, &head);
        assert!(answer.starts_with("HTTP/1.1 401") && answer.contains("MISSING_API_KEY"), "{answer}");
    }
    let heartbeat = raw(pool.address, &request("POST", "/v1/worker-heartbeat", KEY));
    assert!(heartbeat.starts_with("HTTP/1.1 401"), "only workers have the token: {heartbeat}");
    assert!(stream(&pool, "j").contains("MAX_TOKENS"), "still there");
}
