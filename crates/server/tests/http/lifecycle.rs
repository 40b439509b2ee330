//! Starting, loading, unloading and draining.

use crate::common::{Running, config, golden, options, parse, reply, request, serve, start};
use sconce_server::{Config, Listen, ModelSpec, ModelStatus, Secret};
use sconce_testkit::wait_until;
use serde_json::{Value, json};
use std::io::{Read, Write};
use std::time::{Duration, Instant};

pub(crate) const JSON: [(&str, &str); 1] = [("content-type", "application/json")];

pub(crate) fn large_request(texts: usize) -> String {
    let text: Value = "the cat sat on the mat ".repeat(8).into();
    json!({"inputs": vec![text; texts], "truncate": true}).to_string()
}

pub(crate) fn large_limits() -> Config {
    Config { max_client_batch: 1_000_000, payload_limit: 1 << 30, ..config() }
}

/// Starts a long request and waits until it runs.
fn start_long_request(server: &Running, texts: usize) -> std::net::TcpStream {
    let mut stream = server.connect();
    stream.write_all(request("POST", "/embed", &JSON, &large_request(texts)).as_bytes()).unwrap();
    wait_until("the request is running", || server.app.free_permits() < server.app.config.max_concurrent);
    stream
}

#[test]
fn requests_during_loading_get_503_with_progress() {
    // The hub accepts the connection and never answers.
    let silent = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
    let dir = tempfile::tempdir().unwrap();
    let mut options = crate::common::options(dir.path());
    options.hub.offline = false;
    options.hub.endpoint = format!("http://{}", silent.local_addr().unwrap());
    let mut slow = ModelSpec::new("some/model", options);
    slow.id = "slow".into();
    let server = start(vec![slow], vec![dir], config());
    let early = server.post("/embed", &json!({"inputs": "a"}));
    assert_eq!((early.status, early.header("retry-after")), (503, Some("2")), "{early:?}");
    let body = early.json();
    assert_eq!((&body["error_type"], &body["model"]), (&json!("Unhealthy"), &json!("slow")));
    assert!(body["stage"].is_string() && body.get("percent").is_some(), "{body}");
    let health = server.get("/health");
    assert_eq!((health.status, health.json()["stage"].is_string()), (503, true));
    let openai = server.post("/v1/embeddings", &json!({"input": "a"})).json();
    assert_eq!((&openai["error"]["code"], openai["stage"].is_string()), (&json!("model_loading"), true));
}

#[test]
fn server_without_loadable_models_exits_with_the_reason() {
    let dir = tempfile::tempdir().unwrap();
    let spec = ModelSpec::new(dir.path().to_str().unwrap(), crate::common::options(dir.path()));
    let runtime = tokio::runtime::Builder::new_multi_thread().enable_all().build().unwrap();
    let error =
        runtime.block_on(sconce_server::serve(config(), vec![spec], Default::default())).unwrap_err().to_string();
    assert!(error.contains("no model can be served") && error.contains("config.json"), "{error}");
}

#[test]
fn failed_load_does_not_affect_other_models() {
    let (good, dir) = golden("st-prompts");
    let mut bad = good.clone();
    (bad.reference, bad.id) = ("/nowhere/at/all".into(), "bad".into());
    let server = start(vec![good, bad], vec![dir], config());
    wait_until("no model is loading", || {
        server.app.models.list().iter().all(|m| !matches!(m.status, ModelStatus::Loading(_)))
    });
    assert_eq!(server.post("/embed", &json!({"inputs": "a"})).status, 200);
    let failed = server.post("/embed", &json!({"inputs": "a", "model": "bad"}));
    assert_eq!(failed.status, 503);
    assert!(failed.json()["error"].as_str().unwrap().contains("no such directory"), "{failed:?}");
    assert!(failed.header("retry-after").is_some(), "every 503 has Retry-After");
    assert_eq!(server.get("/health").status, 503, "a model given at start-up failed");
}

#[test]
fn draining_finishes_running_requests_and_accepts_no_connections() {
    let mut server = serve(&["st-prompts"], large_limits());
    let mut running = start_long_request(&server, 30_000);
    server.app.stop.drain();
    wait_until("new connections are refused", || std::net::TcpStream::connect(server.address()).is_err());
    assert!(!server.has_ended());
    assert_eq!(reply(&mut running).status, 200);
    server.join();
}

#[test]
fn second_stop_signal_does_not_wait_for_requests() {
    let mut server = serve(&["st-prompts"], large_limits());
    let _running = start_long_request(&server, 300_000);
    server.app.stop.drain();
    wait_until("new connections are refused", || std::net::TcpStream::connect(server.address()).is_err());
    assert!(!server.has_ended());
    server.app.stop.now();
    let started_at = Instant::now();
    server.join();
    assert!(started_at.elapsed() < Duration::from_secs(15), "{:?}", started_at.elapsed());
}

#[cfg(unix)]
#[test]
fn unix_socket_serves_and_is_removed_at_exit() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("sconce.sock");
    // A socket left over from a killed server is replaced.
    drop(std::os::unix::net::UnixListener::bind(&path).unwrap());
    let mut server = serve(&["st-prompts"], Config { listen: Listen::Unix(path.clone()), ..config() });
    let mut stream = std::os::unix::net::UnixStream::connect(&path).unwrap();
    stream.write_all(request("POST", "/embed", &JSON, &json!({"inputs": "a"}).to_string()).as_bytes()).unwrap();
    assert_eq!(reply(&mut stream).status, 200);
    server.app.stop.drain();
    server.join();
    assert!(!path.exists());
}

#[test]
fn models_are_loaded_and_unloaded_at_run_time() {
    let server = serve(&["st-prompts"], config());
    let (spec, _dir) = golden("task-classify");
    let body = json!({"model": spec.reference, "name": "labels"});
    let accepted = server.post("/v1/models/load", &body);
    assert_eq!((accepted.status, &accepted.json()["state"]), (202, &json!("loading")), "{accepted:?}");
    wait_until("the model is loaded", || {
        server.post("/predict", &json!({"inputs": "a", "model": "labels"})).status == 200
    });
    assert_eq!(server.get("/v1/models").ok()["data"][1]["id"], "labels");
    let again = server.post("/v1/models/load", &body);
    assert_eq!((again.status, &again.json()["error"]["param"]), (409, &json!("name")));
    let unloaded = server.post("/v1/models/unload", &json!({"model": "labels"}));
    assert_eq!(unloaded.ok()["state"], "unloaded");
    assert_eq!(server.post("/predict", &json!({"inputs": "a", "model": "labels"})).status, 404);
    assert_eq!(server.post("/v1/models/unload", &json!({"model": "labels"})).status, 404);
    // With `wait` the model is loaded, or the error known, when the response arrives.
    let body = json!({"model": spec.reference, "name": "labels", "wait": true});
    assert_eq!(server.post("/v1/models/load", &body).ok()["state"], "ready");
    assert_eq!(server.post("/predict", &json!({"inputs": "a", "model": "labels"})).status, 200);
    for (bad, param) in [
        (json!({"model": "/nowhere", "wait": true}), "model"),
        (json!({"model": spec.reference, "name": "x", "task": "dance"}), "task"),
        (json!({"model": spec.reference, "name": "x", "device": "abacus"}), "device"),
        (json!({"model": spec.reference, "name": "x", "dtype": "i1"}), "dtype"),
    ] {
        let refused = server.post("/v1/models/load", &bad);
        assert_eq!((refused.status, &refused.json()["error"]["param"]), (400, &json!(param)), "{refused:?}");
    }
    assert_eq!(server.app.models.list().len(), 2, "failed loads leave no entry");
    assert_eq!(server.get("/health").status, 200);
}

/// A web page whose own name resolves to this machine (DNS rebinding) is refused on every path.
#[test]
fn foreign_host_names_are_refused_without_a_key() {
    let status = |config: Config, host: &str| {
        let server = serve(&["st-prompts"], config);
        let mut all = ["GET /info", "GET /health", "GET /docs", "POST /embed"].map(|line| {
            let (method, path) = line.split_once(' ').unwrap();
            let body = if method == "POST" { "{\"inputs\": \"a\"}" } else { "" };
            let mut stream = server.connect();
            let sent = request(method, path, &JSON, body).replace("host: localhost", &format!("host: {host}"));
            stream.write_all(sent.as_bytes()).unwrap();
            reply(&mut stream).status
        });
        all.sort_unstable();
        (all[0], all[3])
    };
    assert_eq!(status(config(), "evil.example"), (403, 403));
    assert_eq!(status(config(), "evil.example:8080"), (403, 403));
    assert_eq!(status(config(), "127.0.0.1:8080"), (200, 200));
    let named = Config { allowed_hosts: vec!["ai.example".into()], ..config() };
    assert_eq!(status(named.clone(), "ai.example"), (200, 200));
    assert_eq!(status(named, "evil.example"), (403, 403));
}

#[test]
fn loading_models_needs_an_api_key_or_localhost() {
    let open = serve(&["st-prompts"], config());
    let body = json!({"model": "/nowhere"}).to_string();
    let foreign = [("origin", "http://localhost:3000"), ("origin", "http://evil.example"), ("origin", "null")];
    for head in [("x-forwarded-for", "1.2.3.4"), ("forwarded", "for=1.2.3.4")].into_iter().chain(foreign) {
        assert_eq!(open.send("POST", "/v1/models/load", &[JSON[0], head], &body).status, 403, "{head:?}");
    }
    // The server's own page: the origin is the host that the request names.
    let own = open.send("POST", "/v1/models/load", &[JSON[0], ("origin", "http://localhost")], &body);
    assert_ne!(own.status, 403, "{own:?}");
    // DNS rebinding: a page whose own name resolves to this machine.
    let mut stream = open.connect();
    let rebound = request("POST", "/v1/models/unload", &JSON, "{\"model\": \"st-prompts\"}")
        .replace("host: localhost", "host: evil.example");
    stream.write_all(rebound.as_bytes()).unwrap();
    assert_eq!(reply(&mut stream).status, 403);
    assert_eq!(open.post("/embed", &json!({"inputs": "a"})).status, 200);

    let keyed = serve(&["st-prompts"], Config { api_keys: Secret::new("key").into_iter().collect(), ..config() });
    assert_eq!(keyed.send("POST", "/v1/models/unload", &JSON, "{\"model\": \"st-prompts\"}").status, 401);
    let head = [JSON[0], ("authorization", "Bearer key"), ("x-forwarded-for", "1.2.3.4")];
    assert_eq!(keyed.send("POST", "/v1/models/unload", &head, "{\"model\": \"st-prompts\"}").status, 200);
}

#[test]
fn unloaded_model_finishes_running_requests() {
    let server = serve(&["st-prompts"], large_limits());
    let mut running = start_long_request(&server, 20_000);
    assert_eq!(server.post("/v1/models/unload", &json!({"model": "st-prompts"})).status, 200);
    assert!(server.app.models.planned_bytes() > 0, "the model's memory is still reserved");
    assert_eq!(reply(&mut running).status, 200);
    wait_until("the model's memory is free", || server.app.models.planned_bytes() == 0);
}

#[test]
fn idle_model_is_unloaded_and_reloaded_on_request() {
    let server = serve(&["st-prompts"], Config { idle_timeout: Some(Duration::from_millis(150)), ..config() });
    wait_until("the model is unloaded", || server.app.models.list()[0].status == ModelStatus::Unloaded);
    wait_until("the model's memory is free", || server.app.models.planned_bytes() == 0);
    assert_eq!(server.get("/v1/models").ok()["data"][0]["id"], "st-prompts", "an unloaded model is still listed");
    assert_eq!(server.get("/health").status, 200);
    let reloading = server.post("/embed", &json!({"inputs": "a"}));
    assert_eq!((reloading.status, reloading.header("retry-after")), (503, Some("2")));
    wait_until("the model is reloaded", || server.post("/embed", &json!({"inputs": "a"})).status == 200);
}

#[test]
fn classify_requests_without_a_model_skip_rerankers() {
    let server = serve(&["task-rerank", "task-classify"], config());
    server.post("/predict", &json!({"inputs": "a"})).ok();
    server.post("/v1/classify", &json!({"input": "a"})).ok();
    let refused = server.post("/predict", &json!({"inputs": "a", "model": "task-rerank"}));
    assert_eq!(refused.status, 422, "{refused:?}");
}

#[test]
fn connections_are_reused_and_http2_is_accepted() {
    let server = serve(&["st-prompts"], config());
    let mut stream = server.connect();
    for _ in 0..3 {
        let body = json!({"inputs": "a"}).to_string();
        let text = request("POST", "/embed", &JSON, &body).replace("connection: close\r\n", "");
        stream.write_all(text.as_bytes()).unwrap();
        let mut bytes = vec![0; 64 << 10];
        let read = stream.read(&mut bytes).unwrap();
        assert_eq!(parse(&bytes[..read]).status, 200);
    }
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
    let status = runtime.block_on(async {
        let stream = tokio::net::TcpStream::connect(server.address()).await.unwrap();
        let io = hyper_util::rt::TokioIo::new(stream);
        let executor = hyper_util::rt::TokioExecutor::new();
        let (mut client, connection) =
            hyper::client::conn::http2::handshake::<_, _, String>(executor, io).await.unwrap();
        tokio::spawn(connection);
        let request = hyper::Request::post("http://localhost/embed").header("content-type", "application/json");
        let answer = client.send_request(request.body(json!({"inputs": "a"}).to_string()).unwrap()).await.unwrap();
        (answer.status(), answer.version())
    });
    assert_eq!(status, (hyper::StatusCode::OK, hyper::Version::HTTP_2));
}

#[test]
fn metrics_count_requests_models_and_op_calls_by_rung() {
    let server = serve(&["st-prompts"], config());
    server.post("/embed", &json!({"inputs": "a"})).ok();
    server.post("/embed", &json!({"inputs": "a", "dimensions": 999}));
    server.post("/embed", &json!({"inputs": "a", "model": "none"}));
    server.post("/embed", &json!({"inputs": []}));
    let reply = server.get("/metrics");
    assert!(reply.header("content-type").unwrap().starts_with("text/plain; version=0.0.4"));
    for line in [
        "te_request_count{method=\"embed\"} 4",
        "te_request_success{method=\"embed\"} 1",
        "te_request_failure{err=\"validation\",method=\"embed\"} 1",
        "te_request_failure{err=\"notfound\",method=\"embed\"} 1",
        "te_request_failure{err=\"empty\",method=\"embed\"} 1",
        "te_request_duration_count 1",
        "te_request_input_length_sum 5",
        "sconce_requests_running{method=\"embed\"} 0",
        "sconce_model_state{model=\"st-prompts\",state=\"ready\"} 1",
        "sconce_model_leases{model=\"st-prompts\"} 0",
        "sconce_op_calls_total{op=\"layer_norm\",device=\"cpu\",dtype=\"f32\",rung=\"fused\",model=\"st-prompts\"}",
        "sconce_build_info{version=",
        "te_queue_size 0",
        "te_batch_next_size 1",
    ] {
        assert!(reply.body.contains(line), "{line}: {}", reply.body);
    }
}

#[test]
fn openapi_document_describes_every_path_and_its_errors() {
    let server = serve(&["st-prompts"], config());
    let document = server.get("/openapi.json").ok();
    assert_eq!(server.get("/api-doc/openapi.json").ok(), document);
    for path in [
        "/embed",
        "/embed_all",
        "/embed_sparse",
        "/predict",
        "/rerank",
        "/similarity",
        "/v1/embeddings",
        "/v1/models",
        "/v1/models/{id}",
        "/v1/rerank",
        "/v2/rerank",
        "/v1/classify",
        "/v1/models/load",
        "/v2/embed",
        "/score",
        "/v1/score",
        "/pooling",
        "/api/chat",
        "/api/generate",
        "/api/embed",
        "/api/embeddings",
        "/api/tags",
        "/api/ps",
        "/api/show",
        "/api/pull",
        "/api/version",
        "/info",
        "/health",
        "/metrics",
    ] {
        let item = &document["paths"][path];
        let operation = item.get("post").or(item.get("get")).unwrap_or_else(|| panic!("{path}"));
        assert!(operation["responses"].get("200").is_some() && operation["responses"].get("401").is_some(), "{path}");
    }
    // Every `$ref` resolves.
    fn refs<'a>(value: &'a Value, all: &mut Vec<&'a str>) {
        match value {
            Value::Object(map) => map.iter().for_each(|(key, value)| match value {
                Value::String(to) if key == "$ref" => all.push(to),
                value => refs(value, all),
            }),
            Value::Array(list) => list.iter().for_each(|value| refs(value, all)),
            _ => {}
        }
    }
    let mut all = Vec::new();
    refs(&document, &mut all);
    assert!(all.len() > 20);
    for to in all {
        let pointer = to.strip_prefix('#').unwrap();
        assert!(document.pointer(pointer).is_some(), "{to}");
    }
    let page = server.get("/docs");
    assert!(
        page.body.contains("POST /v1/embeddings") && !page.body.contains("http"),
        "the page loads no external resources"
    );
}

/// A T5 in a GGUF file is served like one in a directory.
#[test]
fn gguf_t5_is_served() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("t5.gguf");
    std::fs::write(&path, sconce_testkit::GgufWriter::t5().bytes()).unwrap();
    let spec = ModelSpec::new(path.to_str().unwrap(), options(dir.path()));
    let server = start(vec![spec], vec![dir], config());
    server.wait_ready();
    let answer = server.post("/v1/completions", &json!({"prompt": "a b", "max_tokens": 4})).ok();
    assert_eq!(answer["choices"].as_array().map(Vec::len), Some(1), "{answer}");
}
