//! Requests that crash workers, clients that send or read nothing, and who may manage workers.

use crate::common::{KEY, Running, TestHost, is_alive, raw};
use axum::http::StatusCode;
use sconce_testkit::wait_until;
use serde_json::{Value, json};
use std::io::{Read, Write};
use std::net::TcpStream;
use std::time::{Duration, Instant};

fn chat(text: &str) -> Value {
    json!({"model": "ok", "messages": [{"role": "user", "content": text}]})
}

fn post(path: &str, headers: &str, body: &Value) -> String {
    let body = body.to_string();
    format!("POST {path} HTTP/1.1\r\n{headers}connection: close\r\ncontent-length: {}\r\n\r\n{body}", body.len())
}

/// Bytes read until the other side closes the connection; `None` after `limit`.
fn read_until_closed(socket: &mut TcpStream, limit: Duration) -> Option<usize> {
    socket.set_read_timeout(Some(Duration::from_millis(100))).unwrap();
    let (until, mut buffer, mut all) = (Instant::now() + limit, vec![0; 1 << 20], 0);
    while Instant::now() < until {
        match socket.read(&mut buffer) {
            Ok(0) => return Some(all),
            Ok(n) => all += n,
            Err(e) if e.kind() == std::io::ErrorKind::ConnectionReset => return Some(all),
            Err(_) => {}
        }
    }
    None
}

#[test]
fn crashing_request_is_retried_on_one_other_worker() {
    let host = TestHost::new();
    let pool = host.run("[[model]]\nmodel = 'ok'\nreplicas = 4");
    let before: Vec<u64> = pool.ready(4).iter().map(|w| w["pid"].as_u64().unwrap()).collect();
    let (status, body) = pool.chat("ok", "poison");
    assert_eq!((status, &body["error"]["type"]), (StatusCode::BAD_GATEWAY, &json!("server_error")), "{body}");
    pool.wait("two workers to be restarted", |p| {
        let all = p.workers();
        let restarted = all.iter().filter(|w| w["restarts"] == 1 && w["state"] == "ready").count();
        (restarted == 2).then_some(())
    });
    assert_eq!(before.iter().filter(|pid| is_alive(**pid)).count(), 2, "only one other worker got the request");
    assert_eq!(pool.metric("pool_mgr_request_retries_total"), 1);
    assert_eq!(pool.chat("ok", "hi").0, StatusCode::OK);
}

#[test]
fn requests_to_a_busy_worker_are_retried_on_all_others() {
    let host = TestHost::new();
    let pool = host.run("[[model]]\nmodel = 'ok'\nreplicas = 3");
    let ids: Vec<String> = pool.ready(3).iter().map(|w| w["id"].as_str().unwrap().to_string()).collect();
    let home = pool.chat("ok", "same prefix").1["worker"].as_str().unwrap().to_string();
    assert_eq!(pool.metric("pool_mgr_request_retries_total"), 0);
    let busy = |id: &str, status: &str| std::fs::write(host.path(&format!("busy-{id}")), status).unwrap();
    busy(&home, "503");
    let (status, body) = pool.chat("ok", "same prefix");
    assert!(status == StatusCode::OK && body["worker"] != home.as_str(), "{body}");
    assert_eq!(pool.metric("pool_mgr_request_retries_total"), 1);
    // Every worker is tried while they are busy; the client gets the last response.
    ids.iter().for_each(|id| busy(id, "429"));
    assert_eq!(pool.chat("ok", "same prefix").0, StatusCode::TOO_MANY_REQUESTS);
    assert_eq!(pool.metric("pool_mgr_request_retries_total"), 3);
    assert!(
        pool.workers().iter().all(|w| w["state"] == "ready" && w["restarts"] == 0),
        "a busy worker is not restarted"
    );
}

#[test]
fn client_that_reads_nothing_is_disconnected() {
    let host = TestHost::new();
    let mut config = host.config("[[model]]\nmodel = 'ok'");
    config.client_timeout = Duration::from_secs(5);
    let pool = Running::new(config);
    pool.ready(1);
    let mut stuck = TcpStream::connect(pool.address).unwrap();
    let headers = format!("host: localhost\r\nauthorization: Bearer {KEY}\r\ncontent-type: application/json\r\n");
    stuck.write_all(post("/v1/chat/completions", &headers, &chat("large")).as_bytes()).unwrap();
    pool.wait("the request to be running", |p| (p.workers()[0]["active"] == 1).then_some(()));
    pool.wait("the request to be cancelled", |p| (p.workers()[0]["active"] == 0).then_some(()));
    // The client still does not read, and finds its connection closed.
    wait_until("the connection is closed", || stuck.write_all(b"x").is_err());
    // A slow reader gets the whole response.
    let mut slow = TcpStream::connect(pool.address).unwrap();
    slow.write_all(post("/v1/chat/completions", &headers, &chat("large")).as_bytes()).unwrap();
    let (mut all, mut buffer) = (0, vec![0; 4 << 20]);
    loop {
        match slow.read(&mut buffer).unwrap() {
            0 => break,
            n => all += n,
        }
        std::thread::sleep(Duration::from_millis(30));
    }
    assert!(all > 64 << 20, "{all}");
}

#[test]
fn silent_client_is_disconnected() {
    let host = TestHost::new();
    let mut config = host.config("");
    config.client_timeout = Duration::from_secs(1);
    let pool = Running::new(config);
    for sent in ["", "PRI * HT", "GET /health HTTP/1.1\r\nho"] {
        let mut silent = TcpStream::connect(pool.address).unwrap();
        silent.write_all(sent.as_bytes()).unwrap();
        assert!(read_until_closed(&mut silent, Duration::from_secs(30)).is_some(), "{sent:?}");
    }
    // A connection that has sent nothing does not delay the shutdown.
    let _silent = TcpStream::connect(pool.address).unwrap();
    let started_at = Instant::now();
    pool.end();
    assert!(started_at.elapsed() < Duration::from_secs(30), "{:?}", started_at.elapsed());
}

#[test]
fn connections_over_the_limit_wait() {
    let host = TestHost::new();
    let mut config = host.config("");
    config.max_connections = 1;
    let pool = Running::new(config);
    // An answer shows that the first connection is accepted; it stays open.
    let mut first = TcpStream::connect(pool.address).unwrap();
    first.write_all(b"GET /ping HTTP/1.1\r\nhost: localhost\r\n\r\n").unwrap();
    first.read_exact(&mut [0]).unwrap();
    let mut second = TcpStream::connect(pool.address).unwrap();
    second.set_read_timeout(Some(Duration::from_millis(500))).unwrap();
    second.write_all(b"GET /ping HTTP/1.1\r\nhost: localhost\r\nconnection: close\r\n\r\n").unwrap();
    let mut byte = [0];
    assert!(second.read(&mut byte).is_err(), "the second connection is not accepted yet");
    drop(first);
    second.set_read_timeout(Some(Duration::from_secs(10))).unwrap();
    second.read_exact(&mut byte).unwrap();
}

#[test]
fn managing_workers_without_api_key_is_limited_to_localhost() {
    let host = TestHost::new();
    let mut config = host.config("[[model]]\nmodel = 'ok'");
    config.api_key = None;
    let pool = Running::new(config);
    pool.ready(1);
    let status = |request: &str| raw(pool.address, request).split(' ').nth(1).unwrap_or_default().to_string();
    let state = |headers: &str| status(&format!("GET /v2/state HTTP/1.1\r\n{headers}connection: close\r\n\r\n"));
    assert_eq!(state("host: localhost:9200\r\n"), "200");
    for remote in [
        "host: evil.example\r\n",
        "host: localhost\r\norigin: http://evil.example\r\n",
        "host: localhost\r\nx-forwarded-for: 192.0.2.1\r\n",
    ] {
        assert_eq!(state(remote), "403", "{remote}");
        let start = json!({"model_ref": "ok"});
        let headers = format!("{remote}content-type: application/json\r\n");
        assert_eq!(status(&post("/v2/workers/start", &headers, &start)), "403", "{remote}");
        assert_eq!(status(&post("/v2/workers/x/drain", &headers, &json!({}))), "403", "{remote}");
        // Model requests are allowed from everywhere, but not under another host name.
        let expected = if remote.contains("host: evil") { "403" } else { "200" };
        assert_eq!(status(&post("/v1/chat/completions", &headers, &chat("hi"))), expected, "{remote}");
    }
    let refused = raw(pool.address, "GET /v2/state HTTP/1.1\r\nhost: evil.example\r\nconnection: close\r\n\r\n");
    assert!(refused.contains("\"FORBIDDEN\"") && !refused.contains("KEY"), "{refused}");
    for kind in ["", "content-type: text/plain\r\n", "content-type: application/x-www-form-urlencoded\r\n"] {
        let headers = format!("host: localhost\r\n{kind}");
        assert_eq!(status(&post("/v2/workers/start", &headers, &json!({"model_ref": "ok"}))), "415", "{kind}");
        assert_eq!(status(&post("/v2/workers/stop", &headers, &json!({"worker_id": "x"}))), "415", "{kind}");
    }
    assert_eq!(pool.workers().len(), 1, "no worker was started");
}

#[test]
fn payload_limit_applies_to_workers_too() {
    let host = TestHost::new();
    let pool = host.run("payload_limit = 5000000\n[[model]]\nmodel = 'ok'");
    pool.ready(1);
    assert_eq!(pool.chat("ok", &"x".repeat(4_000_000)).0, StatusCode::OK);
    assert_eq!(pool.chat("ok", &"x".repeat(6_000_000)).0, StatusCode::PAYLOAD_TOO_LARGE);
}

#[test]
fn devices_are_listed_before_any_start_despite_a_broken_binary() {
    let host = TestHost::new();
    let pool = host.run("[binaries]\ncuda = './no-such-command'");
    let devices = pool.wait("the devices", |p| {
        let all = p.get("/v1/capabilities")["devices"].as_array().unwrap().clone();
        (!all.is_empty()).then_some(all)
    });
    assert_eq!((devices.len(), &devices[0]["id"]), (1, &json!("cpu")));
    assert_eq!(pool.metric("pool_mgr_gpu_vram_total_bytes{device=\"cpu\"}"), 8 << 30);
    let (status, body) = pool.post("/v2/workers/start", json!({"model_ref": "ok"}));
    assert_eq!(status, StatusCode::OK, "{body}");
    let (status, body) = pool.post("/v2/workers/start", json!({"model_ref": "ok", "device": "cuda"}));
    assert_eq!((status, &body["error_code"]), (StatusCode::CONFLICT, &json!("GPU_UNAVAILABLE")));
}

#[test]
fn gpu_id_starts_a_worker_on_that_gpu() {
    let host = TestHost::new();
    std::fs::write(host.path("gpu"), "").unwrap();
    let pool = host.run("");
    let start = |body: Value| pool.post("/v2/workers/start", body);
    let (status, body) = start(json!({"model_ref": "ok", "gpu_id": 0}));
    assert_eq!((status, &body["device"]), (StatusCode::OK, &json!("cuda:0")), "{body}");
    let (status, body) = start(json!({"model_ref": "ok", "gpu_id": 7}));
    assert_eq!((status, &body["error_code"]), (StatusCode::CONFLICT, &json!("GPU_UNAVAILABLE")), "{body}");
    assert!(body["message"].as_str().unwrap().contains("cpu, cuda:0"), "{body}");
    for invalid in [json!({"gpu_id": 0, "device": "cpu"}), json!({"gpu_id": -1}), json!({"gpu_id": "0"})] {
        let mut request = invalid.clone();
        request["model_ref"] = json!("ok");
        let (status, body) = start(request);
        let code = &body["error_code"];
        assert_eq!((status, code), (StatusCode::BAD_REQUEST, &json!("INVALID_REQUEST")), "{invalid}: {body}");
    }
}

#[test]
fn free_memory_is_measured_again_after_planning() {
    let host = TestHost::new();
    let pool = host.run("");
    let (status, body) = pool.post("/v2/workers/start", json!({"model_ref": "eater"}));
    assert_eq!((status, &body["error_code"]), (StatusCode::SERVICE_UNAVAILABLE, &json!("INSUFFICIENT_VRAM")), "{body}");
}

#[test]
fn manager_listens_on_other_addresses() {
    for address in ["::1", "127.0.0.2", "0.0.0.0"] {
        let host = TestHost::new();
        let mut config = host.config("[[model]]\nmodel = 'ok'");
        config.hostname = address.into();
        // Not every machine has IPv6.
        if std::net::TcpListener::bind((address, 0)).is_err() {
            continue;
        }
        let pool = Running::new(config);
        pool.ready(1);
        assert_eq!(pool.chat("ok", "hi").0, StatusCode::OK, "{address}");
    }
}
