//! What servers on other hosts are asked for: models that they no longer serve, keys that they no
//! longer accept, and paths that a pool does not pass on.

use crate::common::TestHost;
use crate::common::remote::{Behaviour, FakeHost};
use crate::remote::{LIMIT, failure};
use axum::http::{Method, StatusCode};
use serde_json::json;
use std::time::Instant;

#[test]
fn host_restarted_with_another_model_is_passed_over() {
    let (a, b, host) = (FakeHost::new("a", &["m"]), FakeHost::new("b", &["m"]), TestHost::new());
    let pool = host.run(&(a.toml("'m'", "") + &b.toml("'m'", "")));
    pool.ready(2);
    *a.state.models.lock().unwrap() = vec!["n".to_string()];
    let since = Instant::now();
    for n in 0..4 {
        let (status, body) = pool.chat("m", &format!("{n}"));
        assert_eq!((status, &body["host"]), (StatusCode::OK, &json!("b")), "{body}");
    }
    // Long before its models are read again without a reason.
    let why = failure(&pool, "m@a");
    assert!(why.contains("a does not serve `m` now; it serves: n"), "{why}");
    assert!(since.elapsed() < LIMIT, "{:?}", since.elapsed());
    // If no host has the model, the client gets the answer of the last one.
    b.state.models.lock().unwrap().clear();
    assert_eq!(pool.chat("m", "x").0, StatusCode::NOT_FOUND);
    failure(&pool, "m@b");
    assert_eq!(pool.chat("m", "x").0, StatusCode::SERVICE_UNAVAILABLE);
}

#[test]
fn key_that_a_host_no_longer_accepts_is_reported_soon() {
    let (a, b, host) = (FakeHost::new("a", &["m"]), FakeHost::new("b", &["m"]), TestHost::new());
    let pool = host.run(&(a.toml("'m'", "") + &b.toml("'m'", "")));
    pool.ready(2);
    a.set(Behaviour::WrongKey);
    for n in 0..4 {
        assert_eq!(pool.chat("m", &format!("{n}")).1["host"], "b");
    }
    let why = failure(&pool, "m@a");
    assert!(why.contains("refuses the key of this pool"), "{why}");
    a.set(Behaviour::Normal);
    pool.ready(2);
}

#[test]
fn files_and_vector_stores_of_a_host_are_not_reached_through_a_pool() {
    let (a, host) = (FakeHost::with_key("a", &["m"], "key-of-a"), TestHost::new());
    let pool = host.run(&a.toml("'m'", "key = 'key-of-a'"));
    pool.ready(1);
    for path in ["/v1/files", "/v1/files/file-1/content", "/v1/vector_stores", "/v1/vector_stores/vs_1/search"] {
        for method in [Method::GET, Method::POST, Method::DELETE] {
            let body = (method == Method::POST).then(|| json!({"model": "m", "query": "x"}));
            let (status, answer) = pool.request(method.clone(), path, body);
            assert_eq!(status, StatusCode::NOT_FOUND, "{method} {path}: {answer}");
        }
    }
    assert!(a.received().is_empty(), "{:?}", a.received());
}
