//! Faults of workers, disks and clients, and their effect on the rest of the pool. Workers are fake
//! processes.

use crate::common::{KEY, Running, Stream, TestHost, is_alive, raw, send_request, signal};
use axum::http::{Method, StatusCode};
use sconce_testkit::wait_until;
use serde_json::{Value, json};
use std::io::{Read, Write};
use std::net::{TcpListener, TcpStream};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::time::{Duration, Instant};

fn worker_by_id(all: &[Value], id: &str) -> Value {
    all.iter().find(|w| w["id"] == id).unwrap_or_else(|| panic!("no {id}")).clone()
}

#[test]
fn workers_start_serve_and_stop() {
    let host = TestHost::new();
    let pool = host.run("[[model]]\nmodel = 'ok'\nname = 'chat'\nreplicas = 2");
    let workers = pool.ready(2);
    assert!(workers.iter().all(|w| w["model"] == "chat" && w["device"] == "cpu" && w["task"] == "generate"));
    // Prompts with the same prefix go to the same worker; others take turns.
    let worker_of = |text: &str| pool.chat("chat", text).1["worker"].as_str().unwrap().to_string();
    let first = worker_of("one");
    assert!((0..5).all(|_| worker_of("one") == first));
    assert_ne!(worker_of("another"), first);
    // By the model reference too; an unknown model is an error in the client's dialect.
    assert_eq!(pool.chat("ok", "one").0, StatusCode::OK);
    let (status, body) = pool.chat("gpt", "one");
    assert_eq!((status, &body["error"]["code"]), (StatusCode::NOT_FOUND, &json!("model_not_found")));
    assert_eq!(pool.get("/v1/models")["data"].as_array().unwrap().len(), 1);
    assert_eq!(pool.get("/v1/capabilities")["devices"][0]["vram_gb"], 8.0);
    let docs = pool.get("/docs");
    let page = docs.as_str().unwrap();
    assert!(page.contains("Sconce pool") && page.contains("POST /v2/workers/start"), "{page}");
    assert!(page.contains("Embed texts"), "the workers' paths too: {page}");
    assert_eq!(pool.get("/api-doc/openapi.json")["info"]["title"], "Sconce pool");
    let metrics = pool.get("/metrics");
    let text = metrics.as_str().unwrap();
    assert!(text.contains("pool_mgr_workers_total{status=\"ready\"} 2"), "{text}");
    assert!(text.contains(&format!("fake_dropped{{worker=\"{first}\"}} 0")), "{text}");
    // A drained worker gets no more requests.
    let (status, _) = pool.post(&format!("/v2/workers/{first}/drain"), json!({}));
    assert_eq!(status, StatusCode::ACCEPTED);
    assert_ne!(worker_of("one"), first);
    let pid = pool.worker(&first).unwrap()["pid"].as_u64().unwrap();
    let (status, _) = pool.post("/v2/workers/stop", json!({"worker_id": first}));
    assert_eq!(status, StatusCode::ACCEPTED);
    pool.wait("the worker to be gone", |p| p.worker(&first).is_none().then_some(()));
    assert!(!is_alive(pid));
    let (status, body) = pool.post("/v2/workers/stop", json!({"worker_id": first}));
    assert_eq!((status, &body["error_code"]), (StatusCode::NOT_FOUND, &json!("WORKER_NOT_FOUND")));
    // Another worker, started by a request.
    let (status, body) = pool.post("/v2/workers/start", json!({"model_ref": "ok", "device": "cpu", "name": "chat"}));
    assert_eq!((status, &body["state"]), (StatusCode::OK, &json!("ready")), "{body}");
}

#[test]
fn killed_worker_ends_its_stream_with_an_error_and_restarts() {
    let host = TestHost::new();
    let pool = host.run("[[model]]\nmodel = 'slow'\nreplicas = 2");
    pool.ready(2);
    let mut first = pool.execute("slow", "a");
    let mut second = pool.execute("slow", "b");
    first.until("\"i\":3");
    second.until("\"i\":3");
    assert_ne!(first.worker(), second.worker(), "the second request goes to the idle worker");
    let victim = first.worker();
    signal(&pool.worker(&victim).unwrap(), "KILL");
    let text = first.rest();
    let events: Vec<&str> = text.lines().filter_map(|l| l.strip_prefix("data: ")).collect();
    let [.., error, done] = &events[..] else { panic!("{text}") };
    let error: Value = serde_json::from_str(error).unwrap_or_else(|e| panic!("{e}: {text}"));
    assert_eq!(
        (&error["type"], &error["code"], &error["retriable"]),
        (&json!("error"), &json!("WORKER_UNHEALTHY"), &json!(true))
    );
    assert_eq!(*done, "[DONE]");
    assert!(
        events.iter().all(|e| *e == "[DONE]" || serde_json::from_str::<Value>(e).is_ok()),
        "an event is incomplete"
    );
    // The other stream runs to its end, and the killed worker is restarted.
    let text = second.rest();
    assert!(text.contains("MAX_TOKENS") && text.contains("\"i\":199"), "{text}");
    let back = pool.wait("the worker to be restarted", |p| p.worker(&victim).filter(|w| w["state"] == "ready"));
    assert_eq!(back["restarts"], 1);
    assert!(back["why"].as_str().unwrap().contains("signal 9"), "{back}");
}

#[test]
fn hung_worker_is_replaced_and_its_requests_are_rerouted() {
    let host = TestHost::new();
    let pool = host.run("[[model]]\nmodel = 'ok'\nreplicas = 2");
    pool.ready(2);
    let hung = pool.chat("ok", "same prefix").1["worker"].as_str().unwrap().to_string();
    let before = pool.worker(&hung).unwrap();
    signal(&before, "STOP");
    // The prefix is at the stopped worker, whose port still accepts connections. It sends no
    // response, so another worker gets the request.
    let (status, body) = pool.chat("ok", "same prefix");
    assert_eq!(status, StatusCode::OK, "{body}");
    // On a busy machine the hung worker may be replaced before the request is sent again, and the
    // new one may miss probes too.
    let is_restarted = |w: &Value| w["restarts"].as_u64() >= Some(1);
    let is_replaced = pool.worker(&hung).is_some_and(|w| is_restarted(&w));
    assert!(body["worker"] != json!(hung) || is_replaced, "{body}");
    let after = pool.wait("the hung worker to be replaced", |p| {
        p.worker(&hung).filter(|w| w["state"] == "ready" && is_restarted(w))
    });
    assert_ne!(after["pid"], before["pid"]);
    assert!(after["why"].as_str().unwrap().contains("missed 3 probes"), "{after}");
    assert!(!is_alive(before["pid"].as_u64().unwrap()));
}

#[test]
fn failed_worker_starts_are_reported_while_others_serve() {
    let host = TestHost::new();
    let mut config = host.config("[[model]]\nmodel = 'ok'\n[[model]]\nmodel = 'crash'");
    config.timings.start = Duration::from_secs(8);
    let pool = Running::new(config);
    pool.ready(1);
    assert_eq!(pool.chat("ok", "hi").0, StatusCode::OK);
    let crashed = pool.wait("the worker to have failed", |p| {
        p.workers().into_iter().find(|w| w["model"] == "crash" && w["state"] == "failed")
    });
    assert_eq!(crashed["exit_code"], 3);
    assert!(crashed["why"].as_str().unwrap().contains("a made-up reason"), "{crashed}");
    let (status, body) = pool.chat("crash", "hi");
    assert_eq!(status, StatusCode::SERVICE_UNAVAILABLE, "{body}");
    let start_error = |start: Value| {
        let (status, body) = pool.post("/v2/workers/start", start);
        (status.as_u16(), body["error_code"].as_str().unwrap_or_default().to_string(), body)
    };
    for (start, want, code) in [
        (json!({"model_ref": "crash"}), 500, "WORKER_START_FAILED"),
        (json!({"model_ref": "mute"}), 504, "WORKER_START_TIMEOUT"),
        (json!({"model_ref": "huge"}), 503, "INSUFFICIENT_VRAM"),
        (json!({"model_ref": "missing"}), 404, "MODEL_NOT_FOUND"),
        (json!({"model_ref": "odd"}), 500, "WORKER_START_FAILED"),
        (json!({"model_ref": "ok", "device": "cuda:0"}), 409, "GPU_UNAVAILABLE"),
        (json!({"modelref": "ok"}), 400, "INVALID_REQUEST"),
    ] {
        let (status, response, body) = start_error(start);
        assert_eq!((status, response.as_str()), (want, code), "{body}");
        assert!(body["retriable"].is_boolean() && body["details"].is_object(), "{body}");
    }
    assert!(pool.workers().iter().all(|w| w["model"] != "mute"), "the killed worker is gone");
    assert_eq!(pool.chat("ok", "hi").0, StatusCode::OK);
}

#[test]
fn taken_port_is_replaced_by_another() {
    let host = TestHost::new();
    let pool = host.run("");
    let (status, body) = pool.post("/v2/workers/start", json!({"model_ref": "port"}));
    assert_eq!(status, StatusCode::OK, "{body}");
    assert_eq!(std::fs::read_to_string(host.path("tries")).unwrap(), "xxx");
    drop(pool);
    // One of two ports is taken by another program.
    let host = TestHost::new();
    let (listener, free_port) = loop {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let port = listener.local_addr().unwrap().port();
        if port < u16::MAX && TcpListener::bind(("127.0.0.1", port + 1)).is_ok() {
            break (listener, port + 1);
        }
    };
    let port = listener.local_addr().unwrap().port();
    let pool = host.run(&format!("worker_ports = '{port}-{free_port}'\n[[model]]\nmodel = 'ok'"));
    assert_eq!(pool.ready(1)[0]["uri"], format!("http://127.0.0.1:{free_port}"));
    let (status, body) = pool.post("/v2/workers/start", json!({"model_ref": "ok"}));
    assert_eq!((status, &body["error_code"]), (StatusCode::INTERNAL_SERVER_ERROR, &json!("WORKER_START_FAILED")));
    assert!(body["message"].as_str().unwrap().contains("worker_ports"), "{body}");
}

#[test]
fn failed_state_write_is_reported_and_serving_continues() {
    let host = TestHost::new();
    std::fs::create_dir_all(host.path("state/state.json.new")).unwrap();
    let pool = host.run("[[model]]\nmodel = 'ok'");
    pool.ready(1);
    let state = pool.get("/v2/state");
    assert!(state["disk_error"].as_str().unwrap().contains("state.json"), "{state}");
    assert!(pool.get("/metrics").as_str().unwrap().contains("pool_mgr_state_saved 0"));
    assert_eq!(pool.chat("ok", "hi").0, StatusCode::OK);
    assert_eq!(pool.post("/v2/workers/start", json!({"model_ref": "ok"})).0, StatusCode::OK);
    std::fs::remove_dir(host.path("state/state.json.new")).unwrap();
    pool.wait("the state to be written", |p| p.get("/v2/state")["disk_error"].is_null().then_some(()));
    let saved_state = std::fs::read_to_string(host.path("state/state.json")).unwrap();
    assert_eq!(serde_json::from_str::<Value>(&saved_state).unwrap()["workers"].as_array().unwrap().len(), 2);
}

#[test]
fn restarted_manager_adopts_its_workers_under_load() {
    let host = TestHost::new();
    let toml = "[[model]]\nmodel = 'ok'\nreplicas = 2";
    let pool = host.run(toml);
    pool.ready(2);
    let (status, started) = pool.post("/v2/workers/start", json!({"model_ref": "ok", "name": "extra"}));
    assert_eq!(status, StatusCode::OK);
    let pids = |all: &[Value]| -> Vec<(String, u64)> {
        all.iter().map(|w| (w["id"].as_str().unwrap().into(), w["pid"].as_u64().unwrap_or(0))).collect()
    };
    let before = pids(&pool.workers());
    let (address, stop) = (pool.address, Arc::new(AtomicBool::new(false)));
    let answered = Arc::new([const { AtomicUsize::new(0) }; 4]);
    // Waits until each client has had some more answers, however slow the machine is.
    let some_more = |wanted: usize| {
        let before = answered.each_ref().map(|n| n.load(Ordering::Relaxed));
        let has_more = |(now, before): (&AtomicUsize, usize)| now.load(Ordering::Relaxed) >= before + wanted;
        wait_until("each client has more answers", || answered.iter().zip(before).all(has_more));
    };
    // Each request: when it began, when it ended, and whether it succeeded.
    let load: Vec<_> = (0..answered.len())
        .map(|n| {
            let (stop, answered) = (stop.clone(), answered.clone());
            std::thread::spawn(move || {
                let body = json!({"model": "ok", "messages": [{"role": "user", "content": format!("{n}")}]});
                let mut all = Vec::new();
                while !stop.load(Ordering::Relaxed) {
                    let started_at = Instant::now();
                    let answer = send_request(address, Method::POST, "/v1/chat/completions", Some(body.clone()));
                    let succeeded = matches!(&answer, Ok((StatusCode::OK, _)));
                    all.push((
                        started_at,
                        Instant::now(),
                        succeeded,
                        if succeeded { String::new() } else { format!("{answer:?}") },
                    ));
                    answered[n].fetch_add(usize::from(succeeded), Ordering::Relaxed);
                    std::thread::sleep(Duration::from_millis(5));
                }
                all
            })
        })
        .collect();
    some_more(6);
    let crashed = Instant::now();
    let config = pool.crash();
    assert!(before.iter().all(|(_, pid)| is_alive(*pid)), "workers outlive a crashed manager");
    // For a while, the clients find no manager.
    std::thread::sleep(Duration::from_millis(200));
    let pool = Running::new(config);
    let all = pool.ready(3);
    let back = Instant::now();
    assert_eq!(pids(&all), before, "the same processes");
    assert!(all.iter().all(|w| w["restarts"] == 0));
    assert_eq!(worker_by_id(&all, started["worker_id"].as_str().unwrap())["model"], "extra");
    some_more(6);
    stop.store(true, Ordering::Relaxed);
    for thread in load {
        let all = thread.join().unwrap();
        let wrong: Vec<_> = all
            .iter()
            .filter(|(started_at, ended, succeeded, _)| !succeeded && (*ended < crashed || *started_at > back))
            .collect();
        assert!(wrong.is_empty(), "requests failed while a manager ran: {wrong:?}");
    }
    // A worker that died while no manager ran is restarted.
    let victim = all[0]["id"].as_str().unwrap().to_string();
    let config = pool.crash();
    signal(&all[0], "KILL");
    let pool = Running::new(config);
    let back = pool.wait("the worker to be restarted", |p| p.worker(&victim).filter(|w| w["state"] == "ready"));
    assert_ne!(back["pid"], all[0]["pid"]);
    // So is an adopted worker that dies.
    let other = pool.workers().into_iter().find(|w| w["id"] != victim).unwrap();
    signal(&other, "KILL");
    let id = other["id"].as_str().unwrap();
    pool.wait("the other worker to be restarted", |p| {
        p.worker(id).filter(|w| w["state"] == "ready" && w["pid"] != other["pid"])
    });
}

#[test]
fn worker_removed_from_the_pool_file_is_stopped() {
    let host = TestHost::new();
    let pool = host.run("[[model]]\nmodel = 'ok'\nreplicas = 2");
    pool.ready(2);
    let pids: Vec<u64> = pool.workers().iter().map(|w| w["pid"].as_u64().unwrap()).collect();
    pool.crash();
    let pool = host.run("[[model]]\nmodel = 'ok'");
    pool.wait("one worker to remain", |p| (p.workers().len() == 1).then_some(()));
    // The pool forgets a worker a moment before its process is gone.
    pool.wait("the other process to end", |_| (pids.iter().filter(|pid| is_alive(**pid)).count() == 1).then_some(()));
}

#[test]
fn client_disconnect_cancels_its_request_and_slow_reader_blocks_no_other() {
    let host = TestHost::new();
    let pool = host.run("[[model]]\nmodel = 'slow'");
    pool.ready(1);
    let mut client = pool.execute("slow", "a");
    client.until("\"i\":1");
    assert_eq!(pool.workers()[0]["active"], 1);
    assert_eq!(pool.workers()[0]["state"], "busy");
    drop(client);
    pool.wait("the worker to see the disconnect", |p| {
        let page = p.get("/metrics");
        let mut lines = page.as_str().unwrap().lines();
        lines.any(|l| l.starts_with("fake_dropped{") && l.ends_with(" 1")).then_some(())
    });
    pool.wait("the worker to be idle", |p| (p.workers()[0]["active"] == 0).then_some(()));
    // One byte at a time, with other requests in between.
    let mut slow = pool.execute("slow", "b");
    let mut byte = [0];
    for _ in 0..20 {
        slow.socket.read_exact(&mut byte).unwrap();
        std::thread::sleep(Duration::from_millis(10));
        assert_eq!(pool.chat("slow", "hi").0, StatusCode::OK);
    }
    // Cancelled by its job id through the manager, whatever content type the client sends.
    let body = json!({"job_id": "b"}).to_string();
    let head =
        format!("POST /cancel HTTP/1.1\r\nhost: localhost\r\nauthorization: Bearer {KEY}\r\nconnection: close\r\n");
    let response = raw(pool.address, &format!("{head}content-length: {}\r\n\r\n{body}", body.len()));
    assert!(response.starts_with("HTTP/1.1 202"), "{response}");
    let text = slow.rest();
    assert!(text.contains("CANCELLED") && !text.contains("\"i\":199"), "{text}");
    assert_eq!(pool.post("/cancel", json!({"job_id": "unknown"})).0, StatusCode::ACCEPTED);
}

#[test]
fn malformed_and_unauthorized_requests_are_refused() {
    let host = TestHost::new();
    let pool = host.run("[[model]]\nmodel = 'ok'");
    pool.ready(1);
    for garbage in [
        &b"\0\xff\xfe garbage\r\n\r\n"[..],
        b"GET / HTTP/9.9\r\n\r\n",
        b"POST /execute HTTP/1.1\r\ncontent-length: x\r\n\r\n",
    ] {
        let mut socket = TcpStream::connect(pool.address).unwrap();
        socket.set_read_timeout(Some(Duration::from_secs(10))).unwrap();
        socket.write_all(garbage).unwrap();
        let mut answer = Vec::new();
        let _ = socket.read_to_end(&mut answer);
        let text = String::from_utf8_lossy(&answer);
        assert!(text.is_empty() || text.starts_with("HTTP/1.1 4"), "{text}");
    }
    // Too large.
    let big = json!({"model": "ok", "messages": [{"role": "user", "content": "x".repeat(3_000_000)}]});
    let response = Stream::open(pool.address, "/v1/chat/completions", &big).rest();
    assert!(response.starts_with("HTTP/1.1 413"), "{}", &response[..response.len().min(200)]);
    // Deeply nested JSON does not harm the manager; the worker refuses it.
    let mut socket = TcpStream::connect(pool.address).unwrap();
    let deep = "[".repeat(500_000);
    let head = format!(
        "POST /v1/chat/completions HTTP/1.1\r\nhost: localhost\r\nauthorization: Bearer {KEY}\r\ncontent-type: application/json\r\nconnection: close\r\ncontent-length: {}\r\n\r\n",
        deep.len()
    );
    socket.write_all((head + &deep).as_bytes()).unwrap();
    let mut answer = String::new();
    let _ = socket.read_to_string(&mut answer);
    assert!(answer.starts_with("HTTP/1.1 4"), "{answer}");
    // Without the key, and with a forged ready callback.
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
    let without_key = sconce_pool::ManagerClient { url: format!("http://{}", pool.address), key: None };
    let status = |path: &str| runtime.block_on(without_key.request(Method::GET, path, None)).unwrap().0;
    assert_eq!(
        (status("/v2/state"), status("/v1/models"), status("/health")),
        (StatusCode::UNAUTHORIZED, StatusCode::UNAUTHORIZED, StatusCode::OK)
    );
    let callback =
        json!({"worker_id": "ok-1", "vram_bytes": 1, "uri": "http://evil:1", "model_ref": "ok", "capabilities": []});
    let (status, _) = pool.post("/v2/internal/workers/ready", callback);
    assert_eq!(status, StatusCode::UNAUTHORIZED, "the clients' key must not be accepted from workers");
    assert_eq!(pool.request(Method::DELETE, "/v2/state", None).0, StatusCode::METHOD_NOT_ALLOWED);
    assert_eq!(pool.request(Method::GET, "/nothing", None).0, StatusCode::NOT_FOUND);
    assert_eq!(pool.chat("ok", "hi").0, StatusCode::OK);
}
