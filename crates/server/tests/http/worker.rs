//! A worker of a pool: jobs, cancellation, callback and heartbeat.

use crate::common::{Running, config, options, request, start};
use sconce_api::worker::Launch;
use sconce_server::{Config, Membership, ModelSpec, Secret};
use sconce_testkit::{materialize_slow_llama, wait_until};
use serde_json::{Value, json};
use std::io::{Read, Write};
use std::net::{TcpListener, TcpStream};
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

/// Layers of the model.
const LAYERS: usize = 40;

/// A Llama with a context for long answers, and slow enough that they do not end too soon.
fn model() -> (ModelSpec, tempfile::TempDir) {
    let dir = materialize_slow_llama(4096, LAYERS);
    let mut spec = ModelSpec::new(dir.path().to_str().unwrap(), options(dir.path()));
    spec.id = "llama".into();
    (spec, dir)
}

fn launch(callback: &str) -> Launch {
    Launch {
        worker_id: "w-1".into(),
        model: "the-llama".into(),
        hostname: "127.0.0.1".into(),
        callback_url: callback.into(),
        device: Some("cpu".into()),
        ..Launch::default()
    }
}

pub(crate) fn worker(callback: &str, change: impl FnOnce(&mut Config)) -> Running {
    let (spec, dir) = model();
    let membership =
        Membership { beat: Duration::from_millis(50), ..Membership::new(launch(callback), Some("k".into())) };
    let mut config = Config { worker: Some(membership), ..config() };
    change(&mut config);
    start(vec![spec], vec![dir], config)
}

fn ready_worker(callback: &str) -> Running {
    let running = worker(callback, |_| {});
    wait_until("the worker is healthy", || running.get("/health").status == 200);
    running
}

pub(crate) fn dry_run_worker() -> Running {
    ready_worker("http://localhost:9999/dry")
}

pub(crate) fn events(body: &str) -> Vec<Value> {
    let lines: Vec<&str> = body.lines().filter_map(|l| l.strip_prefix("data: ")).collect();
    let (last, events) = lines.split_last().expect("events");
    assert_eq!(*last, "[DONE]", "{body}");
    events.iter().map(|e| serde_json::from_str(e).unwrap()).collect()
}

pub(crate) fn execute(running: &Running, body: Value) -> Vec<Value> {
    let reply = running.post("/execute", &body);
    assert_eq!(reply.status, 200, "{reply:?}");
    assert!(reply.header("content-type").unwrap().starts_with("text/event-stream"));
    events(&reply.body)
}

pub(crate) fn text(events: &[Value]) -> String {
    events.iter().filter(|e| e["type"] == "token").map(|e| e["t"].as_str().unwrap()).collect()
}

/// Starts a job and reads the beginning of its stream.
pub(crate) fn start_job(running: &Running, body: &Value) -> TcpStream {
    let mut socket = running.connect();
    let head = [("content-type", "application/json")];
    socket.write_all(request("POST", "/execute", &head, &body.to_string()).as_bytes()).unwrap();
    let (mut seen, mut buffer) = (String::new(), [0; 512]);
    while !seen.contains("\"type\":\"token\"") {
        let n = socket.read(&mut buffer).unwrap();
        assert!(n > 0, "{seen}");
        seen.push_str(&String::from_utf8_lossy(&buffer[..n]));
    }
    assert!(!seen.contains("\"type\":\"end\""), "the job ended too soon for this test: {seen}");
    socket
}

pub(crate) fn has_metric(running: &Running, line: &str) -> bool {
    running.get("/metrics").body.lines().any(|l| l == line)
}

#[test]
fn job_streams_started_token_metrics_and_end_events() {
    let running = dry_run_worker();
    let job = json!({"job_id": "j", "prompt": "the cat sat", "max_tokens": 12, "temperature": 0, "odd": 1});
    let reply = running.post("/execute", &job);
    assert_eq!(reply.header("x-sconce-ignored"), Some("odd"));
    let all = events(&reply.body);
    let first = &all[0];
    assert_eq!((&first["type"], &first["job_id"], &first["model"]), (&json!("started"), &json!("j"), &json!("llama")));
    assert!(first["started_at"].as_str().unwrap().ends_with('Z'));
    let tokens: Vec<&Value> = all.iter().filter(|e| e["type"] == "token").collect();
    assert!(tokens.iter().enumerate().all(|(i, t)| t["i"] == i), "{tokens:?}");
    let [.., metrics, end] = &all[..] else { panic!("{all:?}") };
    assert!(metrics["type"] == "metrics" && metrics["tokens_per_sec"].as_f64().unwrap() > 0.0, "{metrics}");
    assert!(metrics["vram_bytes"].as_u64().unwrap() > 0);
    assert_eq!(
        (&end["type"], &end["stop_reason"], &end["tokens_out"]),
        (&json!("end"), &json!("MAX_TOKENS"), &json!(12))
    );
    assert!(end["decode_time_ms"].is_u64() && end.get("stop_sequence_matched").is_none());
    // The same job with a stop string from its own output.
    let whole = text(&all);
    assert_eq!(text(&execute(&running, job.clone())), whole);
    let stop: String = whole.trim_start().chars().skip(3).take(3).collect();
    let mut stopped = job.clone();
    stopped["stop"] = json!([stop]);
    let all = execute(&running, stopped);
    let end = all.last().unwrap();
    assert_eq!((&end["stop_reason"], &end["stop_sequence_matched"]), (&json!("STOP_SEQUENCE"), &json!(stop)));
    assert!(!text(&all).contains(&stop) && whole.starts_with(&text(&all)));
    // The same seed gives the same answer.
    let seeded = json!({"job_id": "s", "prompt": "a", "max_tokens": 20, "temperature": 1.5, "seed": 7, "top_k": 50});
    assert_eq!(text(&execute(&running, seeded.clone())), text(&execute(&running, seeded)));
    assert!(has_metric(&running, "worker_requests_total{outcome=\"success\"} 5"));
    assert!(running.get("/metrics").body.contains("worker_tokens_generated_total "));
    assert!(running.get("/metrics").body.contains("worker_inference_duration_ms_count 5"));
}

#[test]
fn job_errors_name_every_invalid_field() {
    let running = dry_run_worker();
    let reply = running
        .post("/execute", &json!({"job_id": "j", "prompt": "", "max_tokens": 9999, "stop": ["a", "b", "c", "d", "e"]}));
    let body = reply.json();
    assert_eq!((reply.status, &body["code"], &body["retriable"]), (400, &json!("INVALID_REQUEST"), &json!(false)));
    let fields: Vec<&str> = body["errors"].as_array().unwrap().iter().map(|e| e["field"].as_str().unwrap()).collect();
    assert_eq!(fields, ["prompt", "max_tokens", "stop"]);
    assert_eq!(body["errors"][1]["value"], 9999);
    // A prompt longer than the context is refused by the engine, before the stream begins.
    let long = running.post("/execute", &json!({"job_id": "j", "prompt": "the cat ".repeat(4000), "max_tokens": 2}));
    assert_eq!((long.status, &long.json()["code"]), (400, &json!("INVALID_REQUEST")), "{long:?}");
    assert!(has_metric(&running, "worker_requests_total{outcome=\"invalid\"} 2"));
}

#[test]
fn cancelled_job_ends_within_100_ms_and_cancel_is_idempotent() {
    let running = dry_run_worker();
    let mut quickest = Duration::MAX;
    for try_ in 0..3 {
        let name = format!("long-{try_}");
        let long = json!({"job_id": name, "prompt": "the cat", "max_tokens": 2048, "temperature": 0});
        let mut socket = start_job(&running, &long);
        let since = Instant::now();
        let reply = running.post("/cancel", &json!({"job_id": name}));
        assert_eq!((reply.status, &reply.json()["status"]), (202, &json!("cancelling")));
        let mut rest = String::new();
        let _ = socket.read_to_string(&mut rest);
        quickest = quickest.min(since.elapsed());
        assert!(rest.contains("\"stop_reason\":\"CANCELLED\"") && rest.contains("[DONE]"), "{rest}");
        assert!(!rest.contains("MAX_TOKENS"));
    }
    assert!(quickest < Duration::from_millis(100), "{quickest:?}");
    assert_eq!(running.post("/cancel", &json!({"job_id": "long-0"})).status, 202);
    assert_eq!(running.post("/cancel", &json!({"job_id": "unknown"})).status, 202);
    assert!(has_metric(&running, "worker_requests_total{outcome=\"cancelled\"} 3"));
}

#[test]
fn client_disconnect_cancels_its_job() {
    let running = dry_run_worker();
    let long = json!({"job_id": "gone", "prompt": "the cat", "max_tokens": 2048, "temperature": 0});
    drop(start_job(&running, &long));
    wait_until("the job is cancelled", || has_metric(&running, "worker_requests_total{outcome=\"cancelled\"} 1"));
    let models = running.app.models.list();
    let sconce_engine::TaskModel::Generate(llm) = &models[0].served.as_ref().unwrap().model else { panic!() };
    wait_until("the model is idle", || llm.activity().running == 0);
}

#[test]
fn worker_reports_health_progress_and_capabilities() {
    let running = worker("http://localhost:9999/dry", |_| {});
    // These paths answer while the model loads and afterwards.
    let early = running.get("/health");
    assert!([200, 503].contains(&early.status) && early.json()["worker_id"] == "w-1", "{early:?}");
    let progress = running.get("/v1/loading/progress");
    let stages = events(&progress.body);
    assert_eq!(stages.last().unwrap()["stage"], "ready", "{progress:?}");
    let last = stages.last().unwrap();
    assert!(last["vram_mb"].is_u64());
    assert_eq!((&last["layers_loaded"], &last["layers_total"]), (&json!(LAYERS), &json!(LAYERS)));
    wait_until("the worker is healthy", || running.get("/health").status == 200);
    let health = running.get("/health").ok();
    for (key, want) in [
        ("status", json!("healthy")),
        ("model", json!("the-llama")),
        ("resident", json!(true)),
        ("quant_kind", json!("f32")),
        ("context_length", json!(4096)),
        ("device", json!("cpu")),
        ("backend", json!("cpu")),
    ] {
        assert_eq!(health[key], want, "{key}: {health}");
    }
    for key in ["vram_bytes_used", "vocab_size"] {
        assert!(health[key].as_u64().unwrap() > 0, "{key}: {health}");
    }
    assert!(
        ["BPE", "WordPiece", "Unigram", "WordLevel"].contains(&health["tokenizer_kind"].as_str().unwrap()),
        "{health}"
    );
    assert_eq!(running.get("/v1/ready").ok(), json!({"ready": true, "state": "ready", "model_loaded": true}));
    let want = json!({"capabilities": ["cpu"], "device": "cpu", "backend": "cpu"});
    assert_eq!(running.get("/v1/capabilities").ok(), want);
    let quickest = (0..5).map(|_| {
        let since = Instant::now();
        running.get("/health");
        since.elapsed()
    });
    assert!(quickest.min().unwrap() < Duration::from_millis(10));
    assert!(running.get("/metrics").body.lines().any(|l| l.starts_with("worker_vram_bytes ") && !l.ends_with(" 0")));
}

/// Callbacks that the fake manager received: head and body.
type Callbacks = Arc<Mutex<Vec<(String, Value)>>>;

fn manager(refuse: usize) -> (String, Callbacks) {
    refusing_manager(refuse, "503 No", "{}")
}

/// A fake manager that refuses this many callbacks with this response.
fn refusing_manager(refuse: usize, status: &'static str, response: &'static str) -> (String, Callbacks) {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let url = format!("http://{}/ready", listener.local_addr().unwrap());
    let callbacks = Arc::new(Mutex::new(Vec::new()));
    let received = callbacks.clone();
    std::thread::spawn(move || {
        for stream in listener.incoming() {
            let mut stream = stream.unwrap();
            let received = received.clone();
            std::thread::spawn(move || {
                let (mut seen, mut buffer) = (Vec::new(), [0; 4096]);
                loop {
                    let Ok(n @ 1..) = stream.read(&mut buffer) else { return };
                    seen.extend_from_slice(&buffer[..n]);
                    let text = String::from_utf8_lossy(&seen).into_owned();
                    let Some((head, body)) = text.split_once("\r\n\r\n") else { continue };
                    let Ok(value) = serde_json::from_str(body) else { continue };
                    let mut all = received.lock().unwrap();
                    let (status, response) = if all.len() < refuse { (status, response) } else { ("200 OK", "{}") };
                    all.push((head.to_lowercase(), value));
                    drop(all);
                    seen.clear();
                    write!(stream, "HTTP/1.1 {status}\r\ncontent-length: {}\r\n\r\n{response}", response.len())
                        .unwrap();
                }
            });
        }
    });
    (url, callbacks)
}

#[test]
fn ready_callback_is_retried_and_followed_by_heartbeats() {
    let (url, callbacks) = manager(2);
    let running = ready_worker(&url);
    wait_until("heartbeats arrive", || callbacks.lock().unwrap().len() > 5);
    let all = callbacks.lock().unwrap().clone();
    for (head, callback) in &all[..3] {
        assert!(head.contains("authorization: bearer k"), "{head}");
        assert_eq!((&callback["worker_id"], &callback["model_ref"]), (&json!("w-1"), &json!("the-llama")));
        assert_eq!(callback["uri"], format!("http://{}", running.address()));
        assert_eq!(callback["capabilities"], json!(["cpu"]));
        assert!(callback["vram_bytes"].as_u64().unwrap() > 0);
    }
    let (_, heartbeat) = &all[4];
    let worker = &heartbeat["worker"];
    assert_eq!(
        (&worker["id"], &worker["port"], &worker["status"]),
        (&json!("w-1"), &json!(running.address().port()), &json!("ready"))
    );
    assert!(heartbeat["timestamp"].as_str().unwrap().ends_with('Z') && worker["version"].is_string());
    let path = |n: usize| all[n].0.split(' ').nth(1).unwrap().to_string();
    assert_eq!((path(2).as_str(), path(4).as_str()), ("/ready", "/v1/worker-heartbeat"));
}

#[test]
fn worker_serves_when_callback_fails_and_dry_run_sends_none() {
    // Nothing listens on that port any more.
    let port = TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap().port();
    let running = ready_worker(&format!("http://127.0.0.1:{port}/ready"));
    assert_eq!(
        execute(&running, json!({"job_id": "j", "prompt": "a", "max_tokens": 2})).last().unwrap()["type"],
        "end"
    );
    let (url, callbacks) = manager(0);
    let dry = ready_worker(&format!("{url}?localhost:9999"));
    // Time for a callback that must not come.
    std::thread::sleep(Duration::from_millis(300));
    assert!(callbacks.lock().unwrap().is_empty());
    drop(dry);
}

#[test]
fn worker_unknown_to_its_manager_exits() {
    let (url, callbacks) = refusing_manager(usize::MAX, "404 Not Found", r#"{"error_code": "WORKER_NOT_FOUND"}"#);
    let mut running = worker(&url, |_| {});
    wait_until("the worker has ended", || running.has_ended());
    running.join();
    assert_eq!(callbacks.lock().unwrap().len(), 3);
}

#[test]
fn execute_needs_an_api_key_and_reports_worker_error_codes() {
    let running = worker("http://localhost:9999/dry", |config| config.api_keys = vec![Secret::new("k").unwrap()]);
    wait_until("the worker is healthy", || running.get("/health").status == 200);
    let job = json!({"job_id": "j", "prompt": "a", "max_tokens": 2}).to_string();
    let send = |head: &[(&str, &str)]| running.send("POST", "/execute", head, &job);
    let none = send(&[("content-type", "application/json")]);
    assert_eq!((none.status, &none.json()["code"]), (401, &json!("MISSING_API_KEY")), "{none:?}");
    let wrong = send(&[("content-type", "application/json"), ("authorization", "Bearer x")]);
    assert_eq!((wrong.status, &wrong.json()["code"]), (401, &json!("INVALID_API_KEY")));
    assert_eq!(send(&[("content-type", "application/json"), ("authorization", "Bearer k")]).status, 200);
}

#[test]
fn shutdown_finishes_running_jobs_and_refuses_new_ones() {
    let mut running = dry_run_worker();
    let long = json!({"job_id": "last", "prompt": "the cat", "max_tokens": 2048, "temperature": 0});
    let mut socket = start_job(&running, &long);
    let other = json!({"job_id": "other", "prompt": "the cat", "max_tokens": 2048, "temperature": 0});
    let mut cancelled = start_job(&running, &other);
    // A web page in a local browser must not shut the worker down.
    assert_eq!(running.send("POST", "/shutdown", &[("origin", "http://evil.example")], "").status, 403);
    assert_eq!(running.send("POST", "/shutdown", &[], "").status, 202);
    // While draining, the worker reports its state, cancels jobs and refuses new ones.
    assert_eq!(running.get("/health").json()["status"], "draining");
    assert_eq!(running.get("/v1/ready").json()["state"], "draining");
    let refused = running.post("/execute", &json!({"job_id": "new", "prompt": "a"}));
    assert_eq!((refused.status, &refused.json()["code"]), (503, &json!("WORKER_UNHEALTHY")), "{refused:?}");
    assert_eq!(running.post("/cancel", &json!({"job_id": "other"})).status, 202);
    let mut end = String::new();
    let _ = cancelled.read_to_string(&mut end);
    assert!(end.contains("CANCELLED"), "{end}");
    let mut rest = Vec::new();
    let _ = socket.read_to_end(&mut rest);
    let rest = String::from_utf8_lossy(&rest);
    assert!(
        rest.contains("\"type\":\"end\"") && rest.contains("MAX_TOKENS"),
        "{}",
        &rest[rest.len().saturating_sub(300)..]
    );
    wait_until("the worker has ended", || running.has_ended());
    running.join();
}

#[test]
fn execute_is_not_found_on_a_plain_server() {
    let (spec, dir) = model();
    let running = start(vec![spec], vec![dir], config());
    running.wait_ready();
    assert_eq!(running.post("/execute", &json!({"job_id": "j", "prompt": "a"})).status, 404);
}
