//! Servers on other hosts: routing, faults, and answers that are not what they should be.

use crate::common::remote::{Behaviour, FakeHost};
use crate::common::{KEY, Running, Stream, TestHost, raw, send_request};
use axum::http::{Method, StatusCode};
use serde_json::{Value, json};
use std::io::{Read, Write};
use std::net::{Shutdown, SocketAddr, TcpListener, TcpStream};
use std::sync::mpsc;
use std::time::{Duration, Instant};

/// Longer than it takes to find a silent host.
const FOUND: Duration = Duration::from_secs(5);
/// Until a silent host is found, and its responses end, with room for a busy machine. netns.rs holds
/// the pool to its promise.
pub(crate) const LIMIT: Duration = Duration::from_secs(40);

fn stream_request(model: &str) -> Value {
    json!({"model": model, "stream": true, "messages": [{"role": "user", "content": "hi"}]})
}

/// A request from any thread.
fn chat(address: SocketAddr, text: &str) -> (StatusCode, Value) {
    let body = json!({"model": "m", "messages": [{"role": "user", "content": text}]});
    send_request(address, Method::POST, "/v1/chat/completions", Some(body)).unwrap()
}

/// Waits until a worker has a state.
#[track_caller]
fn wait_for_state(pool: &Running, id: &str, state: &str) -> Value {
    pool.wait(&format!("{id} to be {state}"), |p| p.worker(id).filter(|w| w["state"] == state))
}

/// The error of a host that is not used.
#[track_caller]
pub(crate) fn failure(pool: &Running, id: &str) -> String {
    wait_for_state(pool, id, "failed")["why"].as_str().unwrap_or_default().to_string()
}

#[test]
fn hosts_serve_their_models_beside_local_workers() {
    let (a, b) = (FakeHost::with_key("a", &["m", "embedder", "other"], "key-of-a"), FakeHost::new("b", &["m"]));
    let host = TestHost::new();
    std::fs::write(host.path("key"), "key-of-a\n").unwrap();
    let toml = a.toml("'m', 'embedder'", "key_file = 'key'") + &b.toml("'m'", "") + "[[model]]\nmodel = 'ok'\n";
    let pool = host.run(&toml);
    let all = pool.ready(4);
    let embedder = all.iter().find(|w| w["id"] == "embedder@a").unwrap();
    assert_eq!((&embedder["task"], &embedder["device"]), (&json!("embed"), &json!("cpu@a")));
    assert_eq!((&embedder["uri"], &embedder["pid"]), (&json!(format!("http://{}", a.address)), &Value::Null));
    // Equally loaded, they take turns.
    let hosts: Vec<Value> = (0..4).map(|n| pool.chat("m", &format!("{n}")).1["host"].clone()).collect();
    assert!(hosts.contains(&json!("a")) && hosts.contains(&json!("b")), "{hosts:?}");
    assert_eq!(pool.chat("ok", "hi").0, StatusCode::OK);
    // A conversation returns to its host.
    let home = pool.chat("m", "the same prefix").1["host"].clone();
    assert!((0..4).all(|_| pool.chat("m", "the same prefix").1["host"] == home));
    // A request without a model is for the only one with its task, and the host is told which.
    let (status, body) = pool.post("/embed", json!({"inputs": "x"}));
    assert_eq!((status, &body["model"]), (StatusCode::OK, &json!("embedder")), "{body}");
    // Each model once, and none that the pool does not have.
    let models = pool.get("/v1/models");
    let mut names: Vec<&str> = models["data"].as_array().unwrap().iter().map(|m| m["id"].as_str().unwrap()).collect();
    names.sort_unstable();
    assert_eq!(names, ["embedder", "m", "ok"]);
    assert_eq!(pool.chat("other", "hi").0, StatusCode::NOT_FOUND);
    // One page of metrics for each host, without what would break the others.
    let metrics = pool.get("/metrics");
    let lines: Vec<&str> = metrics.as_str().unwrap().lines().filter(|l| l.starts_with("fake_host")).collect();
    assert_eq!(lines, ["fake_host{worker=\"a\",name=\"a\"} 1", "fake_host{worker=\"b\",name=\"b\"} 1"]);
    assert!(metrics.as_str().unwrap().contains("pool_mgr_host_reachable{host=\"a\"} 1"));
    // Jobs run on this host only.
    let (status, body) = pool.post("/execute", json!({"job_id": "j", "model": "m", "prompt": "p"}));
    assert_eq!(status, StatusCode::BAD_REQUEST, "{body}");
    assert!(body["message"].as_str().unwrap().contains("other hosts"), "{body}");
}

#[test]
fn secrets_of_clients_stay_here_and_policies_of_hosts_there() {
    let (a, host) = (FakeHost::with_key("a", &["m"], "key-of-a"), TestHost::new());
    let pool = host.run(&a.toml("'m'", "key = 'key-of-a'"));
    pool.ready(1);
    let body = json!({"model": "m", "messages": []}).to_string();
    let request = format!(
        "POST /v1/chat/completions HTTP/1.1\r\nhost: localhost\r\nauthorization: Bearer {KEY}\r\nx-api-key: {KEY}\r\n\
         cookie: session={KEY}\r\nx-mine: 1\r\nconnection: close\r\ncontent-length: {}\r\n\r\n{body}",
        body.len()
    );
    let answer = raw(pool.address, &request);
    assert!(answer.starts_with("HTTP/1.1 200") && answer.contains("x-sconce-worker: m@a"), "{answer}");
    assert!(!answer.to_lowercase().contains("set-cookie"), "{answer}");
    let received = a.received();
    let headers = &received[0].headers;
    assert!(!format!("{headers:?}").contains(KEY), "{headers:?}");
    assert_eq!(headers["authorization"], "Bearer key-of-a");
    assert_eq!(headers["x-mine"], "1");
    assert!(!serde_json::to_string(&pool.get("/v2/state")).unwrap().contains("key-of-a"));
    assert!(!std::fs::read_to_string(host.path("state/state.json")).unwrap().contains("key-of-a"));
}

#[test]
fn requests_leave_a_silent_host_and_come_back() {
    let (a, b, host) = (FakeHost::new("a", &["m"]), FakeHost::new("b", &["m"]), TestHost::new());
    let pool = host.run(&(a.toml("'m'", "") + &b.toml("'m'", "")));
    pool.ready(2);
    a.set(Behaviour::Frozen);
    let frozen = Instant::now();
    // Half of them are sent to the frozen host, over connections that stay open.
    let address = pool.address;
    std::thread::scope(|threads| {
        for n in 0..8 {
            threads.spawn(move || {
                let (status, body) = chat(address, &format!("{n}"));
                assert_eq!((status, &body["host"]), (StatusCode::OK, &json!("b")), "{body}");
                assert!(frozen.elapsed() < LIMIT, "{:?}", frozen.elapsed());
            });
        }
    });
    let why = failure(&pool, "m@a");
    assert!(why.contains("a does not answer"), "{why}");
    // From now on nothing waits for it.
    for n in 0..20 {
        let started = Instant::now();
        assert_eq!(pool.chat("m", &format!("later {n}")).1["host"], "b");
        assert!(started.elapsed() < Duration::from_secs(2), "{:?}", started.elapsed());
    }
    assert!(pool.metric("pool_mgr_request_retries_total") >= 1);
    assert_eq!(pool.metric("pool_mgr_host_reachable{host=\"a\"}"), 0);
    a.set(Behaviour::Normal);
    let thawed = Instant::now();
    wait_for_state(&pool, "m@a", "ready");
    assert!(thawed.elapsed() < LIMIT, "{:?}", thawed.elapsed());
    let hosts: Vec<Value> = (0..4).map(|n| pool.chat("m", &format!("after {n}")).1["host"].clone()).collect();
    assert!(hosts.contains(&json!("a")), "{hosts:?}");
}

#[test]
fn request_without_another_worker_waits_for_its_host() {
    let (a, host) = (FakeHost::new("a", &["m"]), TestHost::new());
    let pool = host.run(&a.toml("'m'", ""));
    pool.ready(1);
    a.set(Behaviour::Frozen);
    let address = pool.address;
    std::thread::scope(|threads| {
        let waiting = threads.spawn(move || chat(address, "hi"));
        failure(&pool, "m@a");
        assert!(!waiting.is_finished());
        // A request that comes now is refused: it may be sent again later.
        assert_eq!(pool.chat("m", "hi").0, StatusCode::SERVICE_UNAVAILABLE);
        a.set(Behaviour::Normal);
        let (status, body) = waiting.join().unwrap();
        assert_eq!((status, &body["host"]), (StatusCode::OK, &json!("a")), "{body}");
    });
}

#[test]
fn stream_of_a_lost_host_ends_with_an_error_event() {
    let (a, mut b, host) = (FakeHost::new("a", &["m"]), FakeHost::new("b", &["n"]), TestHost::new());
    let pool = host.run(&(a.toml("'m'", "") + &b.toml("'n'", "")));
    pool.ready(2);
    let mut stream = Stream::open(pool.address, "/v1/chat/completions", &stream_request("m"));
    stream.until("\"i\":5}");
    assert_eq!(stream.worker(), "m@a");
    a.set(Behaviour::Frozen);
    let frozen = Instant::now();
    let text = stream.rest();
    assert!(frozen.elapsed() < LIMIT, "{:?}", frozen.elapsed());
    assert!(text.contains("m@a broke in the middle of the response") && !text.contains("[DONE]"), "{text}");
    a.set(Behaviour::Normal);
    // The same for a server that ends.
    let mut stream = Stream::open(pool.address, "/v1/chat/completions", &stream_request("n"));
    stream.until("\"i\":5}");
    b.stop();
    let text = stream.rest();
    assert!(text.contains("n@b broke in the middle of the response"), "{text}");
}

#[test]
fn busy_host_is_not_lost_while_its_stream_goes_on() {
    let (a, host) = (FakeHost::new("a", &["m"]), TestHost::new());
    let pool = host.run(&a.toml("'m'", ""));
    pool.ready(1);
    let mut stream = Stream::open(pool.address, "/v1/chat/completions", &stream_request("m"));
    stream.until("\"i\":1}");
    a.set(Behaviour::NoHealth);
    // Longer than a silent host is kept.
    let since = Instant::now();
    while since.elapsed() < FOUND {
        let next = format!("\"i\":{}}}", stream.seen.matches("\"i\"").count() + 50);
        stream.until(&next);
    }
    assert_eq!(pool.worker("m@a").unwrap()["state"], "busy");
    drop(stream);
    failure(&pool, "m@a");
}

/// Passes connections on to `to`, every byte after this time, in both directions.
fn delayed_link(to: SocketAddr, delay: Duration) -> SocketAddr {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let address = listener.local_addr().unwrap();
    let pass = move |mut from: TcpStream, mut to: TcpStream| {
        let (sender, receiver) = mpsc::channel::<(Instant, Vec<u8>)>();
        std::thread::spawn(move || {
            for (read_at, bytes) in receiver {
                std::thread::sleep((read_at + delay).saturating_duration_since(Instant::now()));
                if to.write_all(&bytes).is_err() {
                    break;
                }
            }
            let _ = to.shutdown(Shutdown::Write);
        });
        std::thread::spawn(move || {
            let mut buffer = [0; 65_536];
            while let Ok(n @ 1..) = from.read(&mut buffer) {
                if sender.send((Instant::now(), buffer[..n].to_vec())).is_err() {
                    break;
                }
            }
        });
    };
    std::thread::spawn(move || {
        for client in listener.incoming().flatten() {
            let Ok(server) = TcpStream::connect(to) else { continue };
            pass(client.try_clone().unwrap(), server.try_clone().unwrap());
            pass(server, client);
        }
    });
    address
}

#[test]
fn host_behind_a_slow_link_is_used() {
    let (a, host) = (FakeHost::new("a", &["m"]), TestHost::new());
    let address = delayed_link(a.address, Duration::from_millis(150));
    let toml = format!("[[host]]\nname = 'a'\nurl = 'http://{address}'\nmodels = ['m']\n");
    let pool = host.run(&toml);
    pool.ready(1);
    let since = Instant::now();
    while since.elapsed() < FOUND {
        let started = Instant::now();
        assert_eq!(pool.chat("m", "hi").0, StatusCode::OK);
        assert!(started.elapsed() >= Duration::from_millis(300), "the link has no delay: {:?}", started.elapsed());
    }
    assert_eq!(pool.metric("pool_mgr_request_retries_total"), 0);
}

#[test]
fn host_that_ends_is_routed_around_and_taken_back() {
    let (mut a, b, host) = (FakeHost::new("a", &["m"]), FakeHost::new("b", &["m"]), TestHost::new());
    let pool = host.run(&(a.toml("'m'", "") + &b.toml("'m'", "")));
    pool.ready(2);
    a.stop();
    for n in 0..6 {
        let (status, body) = pool.chat("m", &format!("{n}"));
        assert_eq!((status, &body["host"]), (StatusCode::OK, &json!("b")), "{body}");
    }
    failure(&pool, "m@a");
    a.restart();
    wait_for_state(&pool, "m@a", "ready");
    // A model that the host no longer serves.
    a.stop();
    failure(&pool, "m@a");
    a.state.models.lock().unwrap().clear();
    a.restart();
    pool.wait("the model to be missed", |p| {
        let why = p.worker("m@a")?["why"].as_str()?.to_string();
        why.contains("a does not serve `m` now; it serves: none").then_some(())
    });
}

#[test]
fn overloaded_host_and_failing_proxy_are_passed_over() {
    let (a, b, host) = (FakeHost::new("a", &["m"]), FakeHost::new("b", &["m"]), TestHost::new());
    let pool = host.run(&(a.toml("'m'", "") + &b.toml("'m'", "")));
    pool.ready(2);
    for status in [429, 503, 502, 401, 403] {
        a.set(Behaviour::Status(status));
        for n in 0..4 {
            let (got, body) = pool.chat("m", &format!("{status} {n}"));
            assert_eq!((got, &body["host"]), (StatusCode::OK, &json!("b")), "{status}: {body}");
        }
    }
    // An error that is the request's own is the client's.
    a.set(Behaviour::Status(422));
    b.set(Behaviour::Status(422));
    assert_eq!(pool.chat("m", "x").0, StatusCode::UNPROCESSABLE_ENTITY);
    // A wrong key of the pool is not a wrong key of the client.
    a.set(Behaviour::Status(401));
    b.set(Behaviour::Status(401));
    let (status, body) = pool.chat("m", "x");
    assert_eq!(status, StatusCode::BAD_GATEWAY, "{body}");
    assert!(body["error"]["message"].as_str().unwrap().contains("refuses the key of this pool"), "{body}");
}

#[test]
fn hostile_answers_are_bounded() {
    let (a, host) = (FakeHost::new("a", &["m"]), TestHost::new());
    let pool = host.run(&a.toml("'m'", "request_timeout = 1"));
    pool.ready(1);
    for behaviour in [Behaviour::ManyHeaders, Behaviour::LongHeader, Behaviour::Redirect] {
        a.set(behaviour);
        let (status, body) = pool.chat("m", "hi");
        assert_eq!(status, StatusCode::BAD_GATEWAY, "{behaviour:?}: {body}");
        a.set(Behaviour::Normal);
        wait_for_state(&pool, "m@a", "ready");
    }
    assert!(a.received().iter().all(|request| request.path == "/v1/chat/completions"), "no redirect was followed");
    // Requests that take too long: before the response, and in it.
    for behaviour in [Behaviour::Silent, Behaviour::Trickle] {
        a.set(behaviour);
        let started = Instant::now();
        let answer =
            pool.try_request(Method::POST, "/v1/chat/completions", Some(json!({"model": "m", "messages": []})));
        assert!(answer.as_ref().map_or(true, |(status, _)| *status == StatusCode::BAD_GATEWAY), "{answer:?}");
        assert!(started.elapsed() < Duration::from_secs(10), "{:?}", started.elapsed());
    }
    a.set(Behaviour::Normal);
    assert_eq!(pool.chat("m", "hi").0, StatusCode::OK);
    drop(pool);
    // A list of models that never ends, or has too many headers.
    for behaviour in [Behaviour::EndlessPage, Behaviour::ManyHeaders, Behaviour::LongHeader] {
        a.set(behaviour);
        let pool = host.run(&a.toml("'m'", ""));
        let why = failure(&pool, "m@a");
        assert!(why.contains("a does not answer") && why.len() < 1000, "{behaviour:?}: {why}");
    }
}

#[test]
fn wrong_key_is_reported_at_once() {
    let (a, host) = (FakeHost::with_key("a", &["m"], "right"), TestHost::new());
    let pool = host.run(&a.toml("'m'", "key = 'wrong-secret'"));
    let why = failure(&pool, "m@a");
    assert!(why.contains("refuses the key") && why.contains("key_env") && !why.contains("wrong-secret"), "{why}");
    let (status, body) = pool.chat("m", "hi");
    assert_eq!(status, StatusCode::SERVICE_UNAVAILABLE, "{body}");
}

#[test]
fn drained_host_gets_no_requests_and_stays_drained() {
    let (a, b, host) = (FakeHost::new("a", &["m"]), FakeHost::new("b", &["m"]), TestHost::new());
    let toml = a.toml("'m'", "") + &b.toml("'m'", "");
    let pool = host.run(&toml);
    pool.ready(2);
    let mut stream = Stream::open(pool.address, "/v1/chat/completions", &stream_request("m"));
    stream.until("\"i\":1}");
    let (drained, other) = match stream.worker().as_str() {
        "m@a" => ("m@a", "b"),
        _ => ("m@b", "a"),
    };
    let (status, body) = pool.post(&format!("/v2/workers/{drained}/drain"), json!({}));
    assert_eq!((status, &body["state"]), (StatusCode::ACCEPTED, &json!("draining")), "{body}");
    assert!((0..4).all(|n| pool.chat("m", &format!("{n}")).1["host"] == other));
    // Its stream goes on.
    stream.until("\"i\":100}");
    drop(stream);
    // Across a restart of the manager, too.
    pool.wait("the state to be saved", |p| (p.saved_state()["drained"] == json!([drained])).then_some(()));
    let pool = Running::new(pool.crash());
    wait_for_state(&pool, drained, "draining");
    assert!((0..4).all(|n| pool.chat("m", &format!("{n}")).1["host"] == other));
    // A stopped one is gone until the manager starts again; its server still runs.
    assert_eq!(pool.post("/v2/workers/stop", json!({"worker_id": drained})).0, StatusCode::ACCEPTED);
    pool.wait("the worker to be gone", |p| p.worker(drained).is_none().then_some(()));
    let ended = pool.get("/v2/state")["ended"].clone();
    assert!(ended[0]["why"].as_str().unwrap().contains("still runs"), "{ended}");
    let config = pool.end();
    let pool = Running::new(config);
    pool.ready(2);
}

#[test]
fn pool_that_is_its_own_host_is_found_out() {
    let host = TestHost::new();
    let port = TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap().port();
    let toml = format!(
        "[[model]]\nmodel = 'ok'\n[[host]]\nname = 'self'\nurl = 'http://127.0.0.1:{port}'\nmodels = ['ok']\nkey = '{KEY}'\n"
    );
    let mut config = host.config(&toml);
    config.port = port;
    let pool = Running::new(config);
    pool.ready(1);
    pool.wait("the circle to be found", |p| {
        let why = p.worker("ok@self")?["why"].as_str()?.to_string();
        why.contains("leads back to this pool").then_some(())
    });
    assert!((0..4).all(|n| pool.chat("ok", &format!("{n}")).0 == StatusCode::OK));
}

/// A pool on another host restarts workers there; this one routes between hosts.
#[test]
fn a_host_may_be_a_pool() {
    let (inner_host, outer_host) = (TestHost::new(), TestHost::new());
    let inner = inner_host.run("[[model]]\nmodel = 'ok'\n");
    inner.ready(1);
    let toml = format!("[[host]]\nname = 'inner'\nurl = 'http://{}'\nmodels = ['ok']\nkey = '{KEY}'\n", inner.address);
    let outer = outer_host.run(&toml);
    outer.ready(1);
    let (status, body) = outer.chat("ok", "hi");
    assert_eq!((status, &body["model"]), (StatusCode::OK, &json!("ok")), "{body}");
}
