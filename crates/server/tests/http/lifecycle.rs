//! Starting, loading, unloading, evicting and draining.

use crate::common::{Running, config, golden, options, parse, reply, request, serve, start};
use sconce_engine::Task;
use sconce_server::{Config, Listen, ModelSpec, ModelStatus, Secret};
use sconce_testkit::wait_until;
use serde_json::{Value, json};
use std::io::{Read, Write};
use std::time::{Duration, Instant};

const JSON: [(&str, &str); 1] = [("content-type", "application/json")];

fn much(texts: usize) -> String {
    let text: Value = "the cat sat on the mat ".repeat(8).into();
    json!({"inputs": vec![text; texts], "truncate": true}).to_string()
}

fn roomy() -> Config {
    Config { max_client_batch: 1_000_000, payload_limit: 1 << 30, ..config() }
}

/// Starts a long request and waits until it runs.
fn busy(server: &Running, texts: usize) -> std::net::TcpStream {
    let mut stream = server.connect();
    stream.write_all(request("POST", "/embed", &JSON, &much(texts)).as_bytes()).unwrap();
    wait_until("it is being worked on", || server.app.free_permits() < server.app.config.max_concurrent);
    stream
}

#[test]
fn who_asks_before_a_model_is_there_is_told_how_far_it_is() {
    // From a hub that accepts the connection and does not answer.
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
    let told = early.json();
    assert_eq!((&told["error_type"], &told["model"]), (&json!("Unhealthy"), &json!("slow")));
    assert!(told["stage"].is_string() && told.get("percent").is_some(), "{told}");
    let health = server.get("/health");
    assert_eq!((health.status, health.json()["stage"].is_string()), (503, true));
    let openai = server.post("/v1/embeddings", &json!({"input": "a"})).json();
    assert_eq!((&openai["error"]["code"], openai["stage"].is_string()), (&json!("model_loading"), true));
}

#[test]
fn a_server_none_of_whose_models_can_be_loaded_ends_and_says_why() {
    let dir = tempfile::tempdir().unwrap();
    let spec = ModelSpec::new(dir.path().to_str().unwrap(), crate::common::options(dir.path()));
    let runtime = tokio::runtime::Builder::new_multi_thread().enable_all().build().unwrap();
    let said =
        runtime.block_on(sconce_server::serve(config(), vec![spec], Default::default())).unwrap_err().to_string();
    assert!(said.contains("no model can be served") && said.contains("config.json"), "{said}");
}

#[test]
fn a_model_that_cannot_be_loaded_leaves_the_others_alone() {
    let (good, dir) = golden("st-prompts");
    let mut bad = good.clone();
    (bad.reference, bad.id) = ("/nowhere/at/all".into(), "bad".into());
    let server = start(vec![good, bad], vec![dir], config());
    wait_until("all have settled", || {
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
fn draining_finishes_what_runs_and_accepts_nothing_new() {
    let mut server = serve(&["st-prompts"], roomy());
    let mut running = busy(&server, 30_000);
    server.app.stop.drain();
    wait_until("nobody is accepted", || std::net::TcpStream::connect(server.address()).is_err());
    assert!(!server.has_ended());
    assert_eq!(reply(&mut running).status, 200);
    server.join();
}

#[test]
fn a_second_signal_does_not_wait() {
    let mut server = serve(&["st-prompts"], roomy());
    let _running = busy(&server, 300_000);
    server.app.stop.drain();
    wait_until("nobody is accepted", || std::net::TcpStream::connect(server.address()).is_err());
    assert!(!server.has_ended());
    server.app.stop.now();
    let started_at = Instant::now();
    server.join();
    assert!(started_at.elapsed() < Duration::from_secs(15), "{:?}", started_at.elapsed());
}

#[cfg(unix)]
#[test]
fn a_socket_in_the_file_system_serves_and_is_taken_away() {
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
fn models_come_and_go_at_run_time() {
    let server = serve(&["st-prompts"], config());
    let (spec, _dir) = golden("task-classify");
    let body = json!({"model": spec.reference, "name": "labels"});
    let told = server.post("/v1/models/load", &body);
    assert_eq!((told.status, &told.json()["state"]), (202, &json!("loading")), "{told:?}");
    wait_until("it is there", || server.post("/predict", &json!({"inputs": "a", "model": "labels"})).status == 200);
    assert_eq!(server.get("/v1/models").ok()["data"][1]["id"], "labels");
    let again = server.post("/v1/models/load", &body);
    assert_eq!((again.status, &again.json()["error"]["param"]), (409, &json!("name")));
    let gone = server.post("/v1/models/unload", &json!({"model": "labels"}));
    assert_eq!(gone.ok()["state"], "unloaded");
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

#[test]
fn loading_is_for_who_has_the_key_or_is_on_this_machine() {
    let open = serve(&["st-prompts"], config());
    let body = json!({"model": "/nowhere"}).to_string();
    for head in [("x-forwarded-for", "1.2.3.4"), ("forwarded", "for=1.2.3.4"), ("origin", "http://localhost")] {
        assert_eq!(open.send("POST", "/v1/models/load", &[JSON[0], head], &body).status, 403, "{head:?}");
    }
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
fn a_model_that_is_unloaded_finishes_what_it_is_asked() {
    let server = serve(&["st-prompts"], roomy());
    let mut running = busy(&server, 20_000);
    assert_eq!(server.post("/v1/models/unload", &json!({"model": "st-prompts"})).status, 200);
    assert!(server.app.models.planned_bytes() > 0, "its memory is still reserved");
    assert_eq!(reply(&mut running).status, 200);
    wait_until("its memory is free", || server.app.models.planned_bytes() == 0);
}

#[test]
fn a_model_that_nobody_uses_rests_until_the_next_request() {
    let server = serve(&["st-prompts"], Config { idle_timeout: Some(Duration::from_millis(150)), ..config() });
    wait_until("it rests", || server.app.models.list()[0].status == ModelStatus::Unloaded);
    wait_until("its memory is free", || server.app.models.planned_bytes() == 0);
    assert_eq!(server.get("/v1/models").ok()["data"][0]["id"], "st-prompts", "it accepts requests");
    assert_eq!(server.get("/health").status, 200);
    let waking = server.post("/embed", &json!({"inputs": "a"}));
    assert_eq!((waking.status, waking.header("retry-after")), (503, Some("2")));
    wait_until("it is back", || server.post("/embed", &json!({"inputs": "a"})).status == 200);
}

/// Several models of one size with their names, and that size.
fn alike(names: &[&str]) -> (Vec<ModelSpec>, Vec<tempfile::TempDir>, u64) {
    let size = serve(&["st-prompts"], config()).app.models.planned_bytes();
    assert!(size > 0);
    let (specs, dirs): (Vec<_>, Vec<_>) = names.iter().map(|_| golden("st-prompts")).unzip();
    let named = specs.into_iter().zip(names).map(|(spec, name)| ModelSpec { id: (*name).into(), ..spec });
    (named.collect(), dirs, size)
}

fn standing(server: &Running, name: &str) -> Option<ModelStatus> {
    server.app.models.list().into_iter().find(|m| m.spec.id == name).map(|m| m.status)
}

#[test]
fn where_room_is_short_the_one_unused_the_longest_goes_and_never_one_in_use() {
    let (mut specs, mut dirs, size) = alike(&["first", "second", "third"]);
    let (third, _dir) = (specs.pop().unwrap(), dirs.pop().unwrap());
    let server = start(specs, dirs, Config { memory_budget: Some(2 * size), ..roomy() });
    wait_until("both are there", || server.app.models.list().iter().all(|m| m.status == ModelStatus::Ready));
    // The first is least recently used but leased when the third loads: the second is evicted.
    let mut running = server.connect();
    let long = much(20_000).replacen('{', "{\"model\": \"first\", ", 1);
    running.write_all(request("POST", "/embed", &JSON, &long).as_bytes()).unwrap();
    wait_until("it is being worked on", || server.app.models.list()[0].leases == 1);
    server.post("/embed", &json!({"inputs": "a", "model": "second"})).ok();
    let load = json!({"model": third.reference, "name": "third", "wait": true});
    assert_eq!(server.post("/v1/models/load", &load).ok()["state"], "ready");
    assert_eq!(standing(&server, "first"), Some(ModelStatus::Ready), "it is leased");
    assert_eq!(standing(&server, "second"), Some(ModelStatus::Unloaded));
    assert_eq!(reply(&mut running).status, 200);
}

#[test]
fn what_has_no_room_now_comes_when_there_is_room() {
    let (specs, dirs, size) = alike(&["a", "b"]);
    let server = start(specs, dirs, Config { memory_budget: Some(size), ..roomy() });
    let settled = |name| !matches!(standing(&server, name), Some(ModelStatus::Loading(_)));
    wait_until("both have settled", || settled("a") && settled("b"));
    assert_eq!(server.get("/health").status, 200, "both accept requests");
    let ask = |name: &str| server.post("/embed", &json!({"inputs": "x", "model": name}));
    for name in ["a", "b", "a"] {
        wait_until("it comes, and the other goes", || ask(name).status == 200);
    }
    let mut running = server.connect();
    let long = much(20_000).replacen('{', "{\"model\": \"a\", ", 1);
    running.write_all(request("POST", "/embed", &JSON, &long).as_bytes()).unwrap();
    wait_until("it is being worked on", || server.app.models.list()[0].leases == 1);
    let mut said = ask("b");
    wait_until("it is told why not", || {
        said = ask("b");
        said.body.contains("--memory-budget")
    });
    assert_eq!((said.status, said.header("retry-after")), (503, Some("2")), "{said:?}");
    assert_eq!(reply(&mut running).status, 200);
    wait_until("it comes after all", || ask("b").status == 200);
}

#[test]
fn what_never_has_room_is_refused_with_numbers_and_evicts_nobody() {
    let mut sizes: Vec<(u64, &str)> = ["st-prompts", "task-classify", "task-sparse"]
        .map(|name| (serve(&[name], config()).app.models.planned_bytes(), name))
        .to_vec();
    sizes.sort_unstable();
    let ((least, small), (most, large)) = (sizes[0], sizes[2]);
    assert!(least < most, "{sizes:?}");
    let server = serve(&[small], Config { memory_budget: Some(least), ..config() });
    let (spec, _dir) = golden(large);
    let refused = server.post("/v1/models/load", &json!({"model": spec.reference, "name": "large", "wait": true}));
    assert!(refused.status == 400 && refused.body.contains("MiB"), "{refused:?}");
    assert_eq!(standing(&server, small), Some(ModelStatus::Ready));
}

#[test]
fn a_classifier_is_found_behind_a_reranker() {
    let server = serve(&["task-rerank", "task-classify"], config());
    server.post("/predict", &json!({"inputs": "a"})).ok();
    server.post("/v1/classify", &json!({"input": "a"})).ok();
    let unfit = server.post("/predict", &json!({"inputs": "a", "model": "task-rerank"}));
    assert_eq!(unfit.status, 422, "{unfit:?}");
}

#[test]
fn one_connection_serves_many_requests_and_http2_too() {
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
fn metrics_count_requests_models_and_what_really_ran() {
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
fn the_document_describes_every_path_and_how_it_fails() {
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
    assert!(page.body.contains("POST /v1/embeddings") && !page.body.contains("http"), "nothing is fetched");
}

/// A language model that reranks has a plan like any other model, and its memory counts.
#[test]
fn a_language_model_that_reranks_is_held_to_the_budget() {
    let (mut spec, dir) = golden("task-rerank-qwen3");
    spec.task = Some(Task::Rerank);
    let server = start(vec![spec.clone()], vec![dir], config());
    server.wait_ready();
    let planned = server.app.models.planned_bytes();
    assert!(planned > 0);
    let (mut again, dir) = golden("task-rerank-qwen3");
    again.task = Some(Task::Rerank);
    let small = start(vec![again], vec![dir], Config { memory_budget: Some(planned - 1), ..roomy() });
    wait_until(
        "it is refused",
        || matches!(standing(&small, "task-rerank-qwen3"), Some(ModelStatus::Failed(why)) if why.contains("--memory-budget")),
    );
}

/// A T5 in a GGUF file is served like one in a directory.
#[test]
fn a_t5_in_gguf_is_served() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("t5.gguf");
    std::fs::write(&path, sconce_testkit::GgufWriter::t5().bytes()).unwrap();
    let spec = ModelSpec::new(path.to_str().unwrap(), options(dir.path()));
    let server = start(vec![spec], vec![dir], config());
    server.wait_ready();
    let answer = server.post("/v1/completions", &json!({"prompt": "a b", "max_tokens": 4})).ok();
    assert_eq!(answer["choices"].as_array().map(Vec::len), Some(1), "{answer}");
}
