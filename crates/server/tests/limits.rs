//! Limits of a server: keys, sizes, time-outs, concurrency.

mod common;

use common::{config, reply, request, serve, start};
use sconce_server::{Config, Secret};
use sconce_testkit::wait_until;
use serde_json::{Value, json};
use std::io::{Read, Write};
use std::time::{Duration, Instant};

#[test]
fn requests_need_a_valid_api_key() {
    let keys = ["first", "second"].iter().filter_map(|k| Secret::new(k)).collect();
    let server = serve(&["st-prompts"], Config { api_keys: keys, ..config() });
    let body = json!({"inputs": "a"}).to_string();
    let send = |path: &str, key: Option<&str>| {
        let mut head = vec![("content-type", "application/json")];
        head.extend(key.map(|key| ("authorization", key)));
        server.send("POST", path, &head, &body)
    };
    for key in [None, Some("Bearer wrong"), Some("Bearer firs"), Some("first"), Some("Basic first"), Some("Bearer ")] {
        let refused = send("/embed", key);
        assert_eq!(refused.status, 401, "{key:?}");
        assert_eq!(
            (&refused.json()["error_type"], refused.header("www-authenticate")),
            (&json!("Unauthorized"), Some("Bearer"))
        );
    }
    for key in ["Bearer first", "bearer second"] {
        assert_eq!(send("/embed", Some(key)).status, 200, "{key}");
    }
    let plain =
        |key: &str| server.send("POST", "/embed", &[("content-type", "application/json"), ("x-api-key", key)], &body);
    assert_eq!((plain("second").status, plain("wrong").status), (200, 401));
    let openai = send("/v1/embeddings", Some("Bearer wrong")).json();
    assert_eq!(
        (&openai["error"]["type"], &openai["error"]["code"]),
        (&json!("authentication_error"), &json!("invalid_api_key"))
    );
    // Unknown paths need a key too; the health check needs none.
    assert_eq!(server.get("/nothing").status, 401);
    assert_eq!(server.get("/metrics").status, 401);
    assert_eq!(server.get("/health").status, 200);
}

#[test]
fn responses_have_request_ids() {
    let server = serve(&["st-prompts"], config());
    let given = server.send("GET", "/health", &[("x-request-id", "mine-7")], "");
    assert_eq!(given.header("x-request-id"), Some("mine-7"));
    let (a, b) = (server.get("/health"), server.get("/nothing"));
    assert!(a.header("x-request-id").unwrap().len() == 32 && a.header("x-request-id") != b.header("x-request-id"));
    let long = "x".repeat(129);
    assert_eq!(server.send("GET", "/health", &[("x-request-id", &long)], "").header("x-request-id").unwrap().len(), 32);
}

#[test]
fn invalid_requests_get_the_matching_error_status() {
    let server = serve(&["st-prompts"], Config { payload_limit: 10_000, ..config() });
    let json_head = [("content-type", "application/json")];
    let check = |reply: common::Reply, status: u16, kind: &str| {
        assert_eq!((reply.status, reply.json()["error_type"].as_str()), (status, Some(kind)), "{reply:?}");
    };
    check(server.get("/nothing"), 404, "NotFound");
    check(server.get("/embed"), 405, "Validation");
    check(server.send("POST", "/embed", &[], "{}"), 415, "Validation");
    check(server.send("POST", "/embed", &[("content-type", "text/plain")], "{}"), 415, "Validation");
    check(server.send("POST", "/embed", &json_head, "{"), 422, "Validation");
    check(server.send("POST", "/embed", &json_head, ""), 422, "Validation");
    check(server.send("POST", "/embed", &json_head, "{\"inputs\": \"a\"} x"), 422, "Validation");
    check(server.send("POST", "/embed", &json_head, "\u{feff}{}"), 422, "Validation");
    let openai = server.get("/v1/nothing");
    assert_eq!((openai.status, &openai.json()["error"]["type"]), (404, &json!("not_found_error")));
    let deep = format!("{{\"inputs\": \"a\", \"x\": {}1{}}}", "[".repeat(4000), "]".repeat(4000));
    // Ignored fields may be nested deeply; the response names them.
    let ignored = server.send("POST", "/embed", &json_head, &deep);
    assert_eq!((ignored.status, ignored.header("x-sconce-ignored")), (200, Some("x")), "{ignored:?}");
    let deep = format!("{{\"inputs\": {}1{}}}", "[".repeat(4000), "]".repeat(4000));
    check(server.send("POST", "/embed", &json_head, &deep), 422, "Validation");
    // At the limit, one byte over it, and chunked without a declared length.
    let of = |n: usize| {
        let empty = json!({"inputs": "a", "x": ""}).to_string().len();
        json!({"inputs": "a", "x": " ".repeat(n - empty)}).to_string()
    };
    let fits = server.send("POST", "/embed", &json_head, &of(10_000));
    assert_eq!((fits.status, fits.header("x-sconce-ignored")), (200, Some("x")));
    check(server.send("POST", "/embed", &json_head, &of(10_001)), 413, "Validation");
    let mut stream = server.connect();
    stream.write_all(b"POST /embed HTTP/1.1\r\nhost: localhost\r\ncontent-type: application/json\r\ntransfer-encoding: chunked\r\nconnection: close\r\n\r\n").unwrap();
    for _ in 0..20 {
        let _ = write!(stream, "3e8\r\n{}\r\n", "[".repeat(1000));
    }
    check(reply(&mut stream), 413, "Validation");
    assert_eq!(server.post("/embed", &json!({"inputs": "a"})).status, 200);
}

/// Resident memory of this process in KiB.
fn resident() -> u64 {
    let status = std::fs::read_to_string("/proc/self/status").unwrap_or_default();
    let line = status.lines().find(|line| line.starts_with("VmRSS")).unwrap_or_default();
    line.split_whitespace().nth(1).and_then(|n| n.parse().ok()).unwrap_or_default()
}

#[test]
fn oversized_body_is_refused_without_buffering() {
    let server = serve(&["st-prompts"], config());
    let mut stream = server.connect();
    let head = format!(
        "POST /embed HTTP/1.1\r\nhost: localhost\r\ncontent-type: application/json\r\ncontent-length: {}\r\n\r\n",
        100_000_000
    );
    stream.write_all(head.as_bytes()).unwrap();
    // The declared length is enough: the server answers before any byte of the body.
    let mut status_line = [0; 12];
    stream.read_exact(&mut status_line).unwrap();
    assert_eq!(&status_line, b"HTTP/1.1 413");
    // A chunked body has no declared length: the server reads it up to the limit only.
    let before = resident();
    let mut stream = server.connect();
    let head = "POST /embed HTTP/1.1\r\nhost: localhost\r\ncontent-type: application/json\r\ntransfer-encoding: chunked\r\n\r\n";
    stream.write_all(head.as_bytes()).unwrap();
    let (mut sent, chunk) = (0, vec![b' '; 1 << 20]);
    for _ in 0..100 {
        let piece = [format!("{:x}\r\n", chunk.len()).as_bytes(), &chunk, b"\r\n"].concat();
        if stream.write_all(&piece).is_err() {
            break;
        }
        sent += chunk.len();
    }
    assert!(sent < 50 << 20, "the server read {sent} bytes");
    assert!(resident() < before + (40 << 10), "{} KiB more", resident() - before);
    assert_eq!(server.post("/embed", &json!({"inputs": "a"})).status, 200);
}

#[test]
fn malformed_http_closes_only_its_connection() {
    let server = serve(&["st-prompts"], config());
    for bad in [
        &b"\0\0\0\0"[..],
        b"GET / HTTP/9.9\r\n\r\n",
        b"GET /health\r\n\r\n",
        b"POST /embed HTTP/1.1\r\ncontent-length: -5\r\n\r\n",
        b"POST /embed HTTP/1.1\r\ncontent-length: 5\r\ncontent-length: 6\r\n\r\nabcdef",
        b"POST /embed HTTP/1.1\r\ntransfer-encoding: chunked\r\ncontent-type: application/json\r\n\r\nZZ\r\n",
        b"GET / HTTP/1.1\r\nhost: localhost\r\n bad: fold\r\n\r\n",
        b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\nnonsense that is no frame",
    ] {
        let mut stream = server.connect();
        stream.write_all(bad).unwrap();
        stream.shutdown(std::net::Shutdown::Write).unwrap();
        let mut response = Vec::new();
        let _ = stream.read_to_end(&mut response);
        let status = String::from_utf8_lossy(&response).split(' ').nth(1).map(str::to_owned);
        assert!(!matches!(status.as_deref(), Some("200" | "500")), "{bad:?}: {response:?}");
    }
    let mut stream = server.connect();
    let _ = stream.write_all(format!("GET / HTTP/1.1\r\nx: {}\r\n\r\n", "a".repeat(1 << 20)).as_bytes());
    let mut response = Vec::new();
    let _ = stream.read_to_end(&mut response);
    assert!(response.is_empty() || response.starts_with(b"HTTP/1.1 431"), "{:?}", String::from_utf8_lossy(&response));
    assert_eq!(server.get("/health").status, 200);
}

#[test]
fn silent_connections_time_out() {
    let server = serve(&["st-prompts"], Config { silence: Duration::from_millis(300), ..config() });
    let assert_times_out = |sent: &[u8], what: &str| {
        let mut stream = server.connect();
        stream.write_all(sent).unwrap();
        let started_at = Instant::now();
        let _ = stream.read_to_end(&mut Vec::new());
        assert!(started_at.elapsed() < Duration::from_secs(30), "{what}");
        assert!(started_at.elapsed() > Duration::from_millis(200), "{what}: too soon");
    };
    assert_times_out(b"", "no bytes");
    assert_times_out(b"P", "the first byte of HTTP/1 and HTTP/2 requests");
    assert_times_out(b"POST /embed HTTP/1.1\r\nhost: localhost\r\nx-slow: ", "half of a header");
    assert_times_out(b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n", "a preface without settings");
    // A body that never arrives times out with the request.
    let server = serve(&["st-prompts"], Config { request_timeout: Some(Duration::from_millis(300)), ..config() });
    let mut stream = server.connect();
    stream.write_all(b"POST /embed HTTP/1.1\r\nhost: localhost\r\ncontent-type: application/json\r\nconnection: close\r\ncontent-length: 10\r\n\r\n{").unwrap();
    assert_eq!(reply(&mut stream).status, 408);
    assert_eq!(server.app.free_permits(), server.app.config.max_concurrent);
}

#[test]
fn cors_allows_only_configured_origins() {
    let preflight = [("origin", "https://a.example"), ("access-control-request-method", "POST")];
    let closed = serve(&["st-prompts"], config());
    assert_eq!(closed.send("OPTIONS", "/embed", &preflight, "").header("access-control-allow-origin"), None);
    let keys = Secret::new("key").into_iter().collect();
    let open =
        serve(&["st-prompts"], Config { cors_origins: vec!["https://a.example".into()], api_keys: keys, ..config() });
    // A browser's preflight has no key.
    let response = open.send("OPTIONS", "/embed", &preflight, "");
    assert_eq!((response.status, response.header("access-control-allow-origin")), (200, Some("https://a.example")));
    let other = [("origin", "https://b.example"), ("access-control-request-method", "POST")];
    assert_eq!(open.send("OPTIONS", "/embed", &other, "").header("access-control-allow-origin"), None);
    // `*` would not let a page send its key.
    let with_key = [preflight[0], preflight[1], ("access-control-request-headers", "authorization,content-type")];
    let response = open.send("OPTIONS", "/embed", &with_key, "");
    assert_eq!(response.header("access-control-allow-headers"), Some("authorization,content-type"));
    // A page must be able to read the error.
    let refused = open.send("POST", "/embed", &[("origin", "https://a.example")], "{}");
    assert_eq!((refused.status, refused.header("access-control-allow-origin")), (401, Some("https://a.example")));
}

/// A request that takes a while.
fn large_request(texts: usize) -> String {
    let text: Value = "the cat sat on the mat ".repeat(8).into();
    json!({"inputs": vec![text; texts], "truncate": true}).to_string()
}

fn large_limits() -> Config {
    Config { max_client_batch: 1_000_000, payload_limit: 1 << 30, ..config() }
}

#[test]
fn requests_over_max_concurrent_get_429_with_retry_after() {
    let server = serve(&["st-prompts"], Config { max_concurrent: 1, ..large_limits() });
    let mut busy = server.connect();
    busy.write_all(
        request("POST", "/embed", &[("content-type", "application/json")], &large_request(20_000)).as_bytes(),
    )
    .unwrap();
    wait_until("the only permit is taken", || server.app.free_permits() == 0);
    let refused = server.post("/embed", &json!({"inputs": "a"}));
    assert_eq!((refused.status, refused.header("retry-after")), (429, Some("1")), "{refused:?}");
    assert_eq!(refused.json()["error_type"], "Overloaded");
    assert_eq!(server.post("/v1/embeddings", &json!({"input": "a"})).json()["error"]["code"], "rate_limit_exceeded");
    assert_eq!(server.get("/health").status, 200, "the health check needs no permit");
    assert_eq!(reply(&mut busy).status, 200);
    wait_until("the permit is free again", || server.app.free_permits() == 1);
    assert_eq!(server.post("/embed", &json!({"inputs": "a"})).status, 200);
}

#[test]
fn client_disconnect_frees_its_permit_and_counts_one_cancellation() {
    let server = serve(&["st-prompts"], Config { max_concurrent: 1, ..large_limits() });
    let mut client = server.connect();
    client
        .write_all(
            request("POST", "/embed", &[("content-type", "application/json")], &large_request(20_000)).as_bytes(),
        )
        .unwrap();
    wait_until("the request is running", || server.app.free_permits() == 0);
    let dropped_at = Instant::now();
    drop(client);
    wait_until("its permit is free", || server.app.free_permits() == 1);
    assert!(dropped_at.elapsed() < Duration::from_secs(20));
    let metrics = server.get("/metrics").body;
    assert!(metrics.contains("te_request_failure{err=\"cancelled\",method=\"embed\"} 1"), "{metrics}");
    assert!(!metrics.contains("te_request_success{method=\"embed\"}"), "{metrics}");
    assert_eq!(server.app.models.list()[0].leases, 0);
    assert_eq!(server.post("/embed", &json!({"inputs": "a"})).status, 200);
}

#[test]
fn request_over_timeout_is_ended() {
    let server = serve(&["st-prompts"], Config { request_timeout: Some(Duration::from_millis(400)), ..large_limits() });
    let late = server.send("POST", "/embed", &[("content-type", "application/json")], &large_request(200_000));
    assert!(late.status == 504 || late.status == 408, "{late:?}");
    wait_until("its permit is free", || server.app.free_permits() == server.app.config.max_concurrent);
    assert_eq!(server.post("/embed", &json!({"inputs": "a"})).status, 200);
}

#[test]
fn invalid_request_does_not_affect_concurrent_ones() {
    let server = serve(&["st-prompts"], config());
    let statuses: Vec<(bool, u16)> = std::thread::scope(|scope| {
        let send = |i: usize| {
            let bad = i.is_multiple_of(3);
            let body = if bad { json!({"inputs": ["a", 1]}) } else { json!({"inputs": ["a", "b"]}) };
            (bad, server.post("/embed", &body).status)
        };
        let all: Vec<_> = (0..24).map(|i| scope.spawn(move || send(i))).collect();
        all.into_iter().map(|t| t.join().unwrap()).collect()
    });
    assert!(statuses.iter().all(|(bad, status)| *status == if *bad { 422 } else { 200 }), "{statuses:?}");
}

#[test]
fn slow_reader_does_not_hold_its_permit() {
    let server = serve(&["st-prompts"], Config { max_concurrent: 1, ..large_limits() });
    let mut slow = server.connect();
    slow.write_all(
        request("POST", "/embed", &[("content-type", "application/json")], &large_request(20_000)).as_bytes(),
    )
    .unwrap();
    wait_until("the request is running", || server.app.free_permits() == 0);
    // The response has megabytes; the permit must be free before the client has read it.
    let mut byte = [0];
    slow.read_exact(&mut byte).unwrap();
    wait_until("the permit is free", || server.app.free_permits() == 1);
    slow.read_exact(&mut byte).unwrap();
    assert_eq!(server.post("/embed", &json!({"inputs": "a"})).status, 200);
}

#[test]
fn server_without_models_is_healthy() {
    assert_eq!(start(Vec::new(), Vec::new(), config()).get("/health").status, 200);
}
