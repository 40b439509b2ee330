//! A fake `sconce` command without models. Its behaviour depends on the name of the model:
//! - `slow` sends a word every 30 ms,
//! - `crash` exits before it is ready,
//! - `mute` never calls back,
//! - `port` finds its port taken twice,
//! - `late` waits for a file `go`,
//! - `huge` does not fit,
//! - `eater` leaves no free memory once it is planned,
//! - `missing` does not exist,
//! - `odd` exists but cannot be planned.
//!
//! It also depends on the message: at `poison` it exits, at `large` it responds with 64 MiB. With a
//! file `busy-ID` the worker ID responds with the status in that file. With a file `gpu` the host
//! has a GPU.

use axum::body::{Body, Bytes};
use axum::extract::{DefaultBodyLimit, Path, State};
use axum::http::{StatusCode, header};
use axum::response::{IntoResponse, Response};
use axum::routing::{get, post};
use axum::{Json, Router};
use futures_util::StreamExt;
use http_body_util::Full;
use sconce_testkit::wait_until_async;
use serde_json::{Value, json};
use std::collections::HashSet;
use std::path::PathBuf;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;

struct Fake {
    id: String,
    model: String,
    key: String,
    /// Streams that were dropped before their end.
    dropped: AtomicU64,
    cancelled: Mutex<HashSet<String>>,
    /// Jobs of `/v1/jobs` whose events nobody has collected yet.
    created: Mutex<HashSet<String>>,
}

/// Runs the command that the wrapper passes in `FAKE_ARGS`.
pub(crate) fn main() {
    let Ok(text) = std::env::var("FAKE_ARGS") else { return };
    let args: Vec<&str> = text.lines().collect();
    let flag = |name: &str| args.iter().find_map(|a| a.strip_prefix(&format!("--{name}="))).map(String::from);
    let free = file("free");
    match args[0] {
        "devices" => {
            let gib = 1u64 << 30;
            let left: u64 = std::fs::read_to_string(&free).ok().and_then(|n| n.parse().ok()).unwrap_or(8 * gib);
            let cpu = json!({"device": "cpu", "description": "a fake", "free_bytes": left, "total_bytes": 8 * gib, "best": true});
            let gpu = json!({"device": "cuda:0", "description": "a fake", "free_bytes": gib, "total_bytes": gib, "best": false});
            let devices = if file("gpu").exists() { vec![cpu, gpu] } else { vec![cpu] };
            print(&json!({"devices": devices, "auto": "cpu"}));
        }
        "plan" => {
            let model = args[args.len() - 1];
            if model == "missing" || model == "odd" {
                eprintln!("error: there is no plan for {model}");
                std::process::exit(1);
            }
            if model == "eater" {
                std::fs::write(free, "1000").unwrap();
            }
            let bytes = if model == "huge" { 100u64 << 30 } else { 1 << 20 };
            print(&json!({"task": "generate", "weights_bytes": bytes, "cache_bytes": 0, "workspace_bytes": 0,
                "runs": true, "verdict": "it will run"}));
        }
        "pull" => match args[args.len() - 1] {
            "missing" => std::process::exit(1),
            _ => print(&json!({"directory": "/somewhere"})),
        },
        "worker" => {
            let (id, model) = (flag("worker-id").unwrap(), flag("model").unwrap());
            match model.as_str() {
                "crash" => {
                    eprintln!("error: a made-up reason");
                    std::process::exit(3);
                }
                "port" => {
                    let mark = file("tries");
                    let tries = std::fs::read_to_string(&mark).unwrap_or_default();
                    std::fs::write(&mark, format!("{tries}x")).unwrap();
                    if tries.len() < 2 {
                        std::process::exit(98);
                    }
                }
                _ => {}
            }
            let port: u16 = flag("port").unwrap().parse().unwrap();
            let runtime = tokio::runtime::Builder::new_multi_thread().worker_threads(2).enable_all().build().unwrap();
            let limit: usize = flag("payload-limit").map_or(2_000_000, |n| n.parse().unwrap());
            runtime.block_on(serve((id, model, port), flag("callback-url").unwrap(), limit));
        }
        other => panic!("unknown command {other}"),
    }
}

/// A file through which a test and its fakes communicate.
fn file(name: &str) -> PathBuf {
    PathBuf::from(std::env::var("FAKE_DIR").unwrap()).join(name)
}

/// Prints to the descriptor that the wrapper connects to the manager: the test harness uses
/// standard output.
fn print(value: &Value) {
    use std::io::Write;
    let mut out = std::fs::OpenOptions::new().write(true).open("/dev/fd/3").unwrap();
    writeln!(out, "{value}").unwrap();
    std::process::exit(0);
}

async fn serve((id, model, port): (String, String, u16), callback: String, limit: usize) {
    let key = std::env::var("SCONCE_API_KEY").unwrap();
    let mute = model == "mute";
    let fake = Arc::new(Fake {
        id: id.clone(),
        model: model.clone(),
        key: key.clone(),
        dropped: AtomicU64::new(0),
        cancelled: Mutex::default(),
        created: Mutex::default(),
    });
    let router = Router::new()
        .route("/health", get(health))
        .route("/execute", post(execute))
        .route("/cancel", post(cancel))
        .route("/metrics", get(metrics))
        .route("/v1/models", get(models))
        .route("/openapi.json", get(async || Json(json!({"paths": {"/embed": {"post": {"summary": "Embed texts"}}}}))))
        .route("/v1/jobs", post(create))
        .route("/v1/jobs/{id}/stream", get(stream))
        .route("/v1/chat/completions", post(chat))
        .layer(DefaultBodyLimit::max(limit))
        .with_state(fake);
    let listener = match tokio::net::TcpListener::bind(("127.0.0.1", port)).await {
        Ok(listener) => listener,
        Err(_) => std::process::exit(98),
    };
    tokio::spawn(async move {
        if mute {
            return;
        }
        wait_until_async("the file go is there", || model != "late" || file("go").exists()).await;
        let body = json!({"worker_id": id, "vram_bytes": 1, "uri": format!("http://127.0.0.1:{port}"), "model_ref": model,
            "capabilities": ["cpu"]});
        let client = hyper_util::client::legacy::Client::builder(hyper_util::rt::TokioExecutor::new()).build_http();
        loop {
            let request = axum::http::Request::post(&callback)
                .header(header::AUTHORIZATION, format!("Bearer {key}"))
                .header(header::CONTENT_TYPE, "application/json")
                .body(Full::new(Bytes::from(body.to_string())))
                .unwrap();
            if client.request(request).await.is_ok_and(|r| r.status().is_success()) {
                return;
            }
            tokio::time::sleep(Duration::from_millis(50)).await;
        }
    });
    axum::serve(listener, router).await.unwrap();
}

async fn health(State(fake): State<Arc<Fake>>) -> Json<Value> {
    let resident = fake.model != "late" || file("go").exists();
    Json(
        json!({"status": "healthy", "worker_id": fake.id, "model": fake.model, "resident": resident, "quant_kind": "f32",
        "vram_bytes_used": 1, "tokenizer_kind": "none", "vocab_size": 1, "context_length": 1, "uptime_seconds": 1,
        "device": "cpu", "backend": "cpu"}),
    )
}

async fn models(State(fake): State<Arc<Fake>>) -> Json<Value> {
    Json(json!({"object": "list", "data": [{"id": fake.model, "object": "model"}]}))
}

async fn metrics(State(fake): State<Arc<Fake>>) -> String {
    format!(
        "# HELP fake_dropped D\n# TYPE fake_dropped counter\nfake_dropped {}\n",
        fake.dropped.load(Ordering::Relaxed)
    )
}

async fn chat(State(fake): State<Arc<Fake>>, headers: axum::http::HeaderMap, Json(body): Json<Value>) -> Response {
    if headers.get(header::AUTHORIZATION).is_none_or(|v| v != &format!("Bearer {}", fake.key)) {
        return StatusCode::UNAUTHORIZED.into_response();
    }
    if let Ok(status) = std::fs::read_to_string(file(&format!("busy-{}", fake.id))) {
        return (StatusCode::from_bytes(status.as_bytes()).unwrap(), "busy").into_response();
    }
    match body["messages"][0]["content"].as_str() {
        Some("poison") => std::process::exit(139),
        Some("large") => return vec![b'x'; 64 << 20].into_response(),
        _ => {}
    }
    Json(json!({"worker": fake.id, "model": body["model"]})).into_response()
}

async fn cancel(State(fake): State<Arc<Fake>>, Json(body): Json<Value>) -> StatusCode {
    fake.cancelled.lock().unwrap().insert(body["job_id"].as_str().unwrap().into());
    StatusCode::ACCEPTED
}

/// Counts a stream that the client dropped.
struct Watch(Arc<Fake>, bool);

impl Drop for Watch {
    fn drop(&mut self) {
        if !self.1 {
            self.0.dropped.fetch_add(1, Ordering::Relaxed);
        }
    }
}

async fn create(State(fake): State<Arc<Fake>>, Json(body): Json<Value>) -> Response {
    let Some(job) = body["job_id"].as_str() else { return StatusCode::BAD_REQUEST.into_response() };
    fake.created.lock().unwrap().insert(job.into());
    Json(json!({"job_id": job, "sse_url": format!("/v1/jobs/{job}/stream")})).into_response()
}

async fn stream(State(fake): State<Arc<Fake>>, Path(job): Path<String>) -> Response {
    match fake.created.lock().unwrap().remove(&job) {
        true => events(fake.clone(), job),
        false => StatusCode::NOT_FOUND.into_response(),
    }
}

async fn execute(State(fake): State<Arc<Fake>>, Json(body): Json<Value>) -> Response {
    events(fake, body["job_id"].as_str().unwrap_or_default().to_string())
}

/// The events of a job.
fn events(fake: Arc<Fake>, job: String) -> Response {
    let words = if fake.model == "slow" { 200 } else { 3 };
    let watch = Watch(fake.clone(), false);
    let events = futures_util::stream::unfold((0u64, watch), move |(i, mut watch): (u64, Watch)| {
        let (fake, job) = (fake.clone(), job.clone());
        async move {
            if i > words + 1 {
                return None;
            }
            tokio::time::sleep(Duration::from_millis(if i == 0 { 0 } else { 30 })).await;
            let cancelled = fake.cancelled.lock().unwrap().contains(&job);
            let (event, next) = match i {
                _ if cancelled => (end("CANCELLED"), words + 1),
                0 => (json!({"type": "started", "job_id": job, "model": fake.model, "started_at": "now"}), 0),
                n if n <= words => (json!({"type": "token", "t": "word ", "i": n - 1}), n),
                _ => (end("MAX_TOKENS"), i),
            };
            let done = if event["type"] == "end" { "data: [DONE]\n\n" } else { "" };
            if !done.is_empty() {
                watch.1 = true;
            }
            Some((Ok::<_, std::convert::Infallible>(format!("data: {event}\n\n{done}")), (next + 1, watch)))
        }
    });
    let body = Body::from_stream(events.boxed());
    ([(header::CONTENT_TYPE, "text/event-stream")], body).into_response()
}

fn end(reason: &str) -> Value {
    json!({"type": "end", "tokens_out": 1, "decode_time_ms": 1, "stop_reason": reason})
}
