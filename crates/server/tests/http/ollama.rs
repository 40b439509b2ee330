//! Ollama's API with tiny random models: chats and completions as NDJSON, embeddings, and the models
//! of the server.

use crate::common::{Reply, Running, config, golden, numbers, options, start};
use sconce_server::ModelSpec;
use sconce_testkit::{materialize_llama, wait_until, worst};
use serde_json::{Map, Value, json};
use std::path::{Path, PathBuf};
use tempfile::TempDir;

const PLAIN: &str = "{% for m in messages %}{{ m.content }}{% endfor %}";
const JSON: (&str, &str) = ("content-type", "application/json");
/// A header of requests through a proxy, which may not change the models.
const PROXIED: (&str, &str) = ("x-forwarded-for", "192.0.2.1");

/// A tiny Llama with this chat template.
fn llama(id: &str, template: &str) -> (ModelSpec, TempDir) {
    let dir = materialize_llama(2048);
    std::fs::write(dir.path().join("chat_template.jinja"), template).unwrap();
    let mut spec = ModelSpec::new(dir.path().to_str().unwrap(), options(dir.path()));
    spec.id = id.into();
    (spec, dir)
}

fn serve(models: Vec<(ModelSpec, TempDir)>) -> Running {
    let (specs, dirs) = models.into_iter().unzip();
    let running = start(specs, dirs, config());
    running.wait_ready();
    running
}

fn with(mut body: Value, more: Value) -> Value {
    body.as_object_mut().unwrap().extend(more.as_object().unwrap().clone());
    body
}

fn chat(more: Value) -> Value {
    let options = json!({"num_predict": 12, "seed": 4, "temperature": 1});
    with(json!({"model": "m", "messages": [{"role": "user", "content": "the cat"}], "options": options}), more)
}

/// The lines of a stream.
fn lines(reply: &Reply) -> Vec<Value> {
    assert_eq!((reply.status, reply.header("content-type")), (200, Some("application/x-ndjson")), "{reply:?}");
    reply.body.lines().map(|line| serde_json::from_str(line).unwrap()).collect()
}

fn fault(reply: &Reply, status: u16) -> String {
    assert_eq!(reply.status, status, "{reply:?}");
    let body: Map<String, Value> = reply.json().as_object().unwrap().clone();
    assert_eq!(body.keys().collect::<Vec<_>>(), ["error"], "{body:?}");
    body["error"].as_str().unwrap().to_owned()
}

fn is_loaded(server: &Running, id: &str) -> bool {
    server.app.models.list().iter().any(|m| m.spec.id == id && m.served.is_some())
}

#[test]
fn chat_answers_like_the_openai_path_whole_and_streamed() {
    let server = serve(vec![llama("m", PLAIN)]);
    let body = json!({"messages": [{"role": "user", "content": "the cat"}], "max_tokens": 12, "seed": 4, "temperature": 1,
        "logprobs": true, "top_logprobs": 2});
    let want = server.post("/v1/chat/completions", &body).ok();
    let (choice, usage) = (&want["choices"][0], &want["usage"]);
    let more = json!({"stream": false, "logprobs": true, "top_logprobs": 2, "model": "m:latest"});
    let reply = server.post("/api/chat", &chat(more.clone()));
    assert_eq!(reply.header("x-sconce-ignored"), None);
    let whole = reply.ok();
    assert_eq!((&whole["model"], &whole["done"]), (&json!("m:latest"), &json!(true)));
    assert_eq!(whole["message"], json!({"role": "assistant", "content": choice["message"]["content"]}));
    assert_eq!(whole["done_reason"], choice["finish_reason"]);
    assert_eq!(
        (&whole["prompt_eval_count"], &whole["eval_count"]),
        (&usage["prompt_tokens"], &usage["completion_tokens"])
    );
    assert!(whole["created_at"].as_str().unwrap().ends_with('Z'));
    let duration = |name: &str| whole[name].as_u64().unwrap();
    assert!(duration("total_duration") >= duration("prompt_eval_duration") + duration("eval_duration"), "{whole}");
    let tokens = whole["logprobs"].as_array().unwrap();
    assert_eq!(tokens.len(), choice["logprobs"]["content"].as_array().unwrap().len());
    for (token, want) in tokens.iter().zip(choice["logprobs"]["content"].as_array().unwrap()) {
        assert_eq!((&token["token"], &token["logprob"]), (&want["token"], &want["logprob"]));
        assert_eq!(token["top_logprobs"].as_array().map(Vec::len), Some(2));
    }
    let lines = lines(&server.post("/api/chat", &chat(with(more, json!({"stream": null})))));
    let (last, parts) = lines.split_last().unwrap();
    let text: String = parts.iter().map(|part| part["message"]["content"].as_str().unwrap()).collect();
    assert_eq!(json!(text), choice["message"]["content"]);
    assert!(parts.iter().all(|part| part["done"] == false && part.get("eval_count").is_none()));
    assert_eq!((&last["done"], &last["message"]["content"]), (&json!(true), &json!("")));
    assert_eq!((&last["eval_count"], &last["done_reason"]), (&usage["completion_tokens"], &choice["finish_reason"]));
    let streamed: usize = parts.iter().flat_map(|part| part["logprobs"].as_array()).map(Vec::len).sum();
    assert_eq!(streamed, tokens.len());
}

#[test]
fn generate_uses_the_template_unless_raw() {
    let template = "{% for m in messages %}{{ m.role }}{{ m.content }}{% endfor %}";
    let server = serve(vec![llama("m", template)]);
    let options = json!({"num_predict": 12, "seed": 4, "temperature": 1});
    let generate = |more: Value| {
        let body = with(json!({"model": "m", "prompt": "the cat", "stream": false, "options": options}), more);
        server.post("/api/generate", &body).ok()
    };
    let templated = generate(json!({"system": "the mat"}));
    let messages = json!([{"role": "system", "content": "the mat"}, {"role": "user", "content": "the cat"}]);
    let chatted = server.post("/api/chat", &chat(json!({"messages": messages, "stream": false}))).ok();
    assert_eq!(templated["response"], chatted["message"]["content"]);
    assert_eq!(templated["prompt_eval_count"], chatted["prompt_eval_count"]);
    // A raw prompt is the prompt of /v1/completions, with the token that begins every text.
    let raw = generate(json!({"raw": true}));
    let body = json!({"prompt": "the cat", "max_tokens": 12, "seed": 4, "temperature": 1});
    let completed = server.post("/v1/completions", &body).ok();
    assert_eq!(raw["response"], completed["choices"][0]["text"]);
    assert_eq!(raw["prompt_eval_count"], completed["usage"]["prompt_tokens"]);
    let lines = lines(
        &server.post("/api/generate", &json!({"model": "m", "prompt": "the cat", "raw": true, "options": options})),
    );
    let text: String = lines.iter().map(|line| line["response"].as_str().unwrap()).collect();
    assert_eq!(json!(text), raw["response"]);
    assert_eq!(lines.last().unwrap()["done"], true);
}

#[test]
fn formats_hold_for_any_sample() {
    let server = serve(vec![llama("m", PLAIN)]);
    let schema = json!({"type": "object", "properties": {"x": {"enum": ["a", "b"]}}, "required": ["x"],
        "additionalProperties": false});
    let options = json!({"num_predict": 900, "temperature": 1, "seed": 1});
    let answer = server.post("/api/chat", &chat(json!({"format": schema, "stream": false, "options": options}))).ok();
    let made: Value = serde_json::from_str(answer["message"]["content"].as_str().unwrap()).unwrap();
    assert!([json!({"x": "a"}), json!({"x": "b"})].contains(&made), "{answer}");
    let body = json!({"model": "m", "prompt": "the cat", "format": schema, "stream": false, "options": options});
    let answer = server.post("/api/generate", &body).ok();
    let made: Value = serde_json::from_str(answer["response"].as_str().unwrap()).unwrap();
    assert!([json!({"x": "a"}), json!({"x": "b"})].contains(&made), "{answer}");
}

#[test]
fn options_without_effect_are_named_and_invalid_requests_refused() {
    let server = serve(vec![llama("m", PLAIN), golden("st-prompts")]);
    let options = json!({"num_predict": 2, "mirostat": 1, "num_ctx": 512, "num_gpu": 1});
    let reply = server.post("/api/chat", &chat(json!({"options": options, "stream": false, "think": true})));
    reply.ok();
    assert_eq!(reply.header("x-sconce-ignored"), Some("options.mirostat,options.num_ctx,options.num_gpu,think"));
    let generate = |more: Value| server.post("/api/generate", &with(json!({"model": "m", "prompt": "a"}), more));
    for (more, why) in [
        (json!({"template": "{{ .Prompt }}"}), "`template`"),
        (json!({"context": [1, 2]}), "/api/chat"),
        (json!({"images": ["AAEC"]}), "`images`"),
        (json!({"suffix": "b"}), "fill in the middle"),
        (json!({"raw": true, "system": "b"}), "`system`"),
        (json!({"format": "xml"}), "\"json\""),
        (json!({"keep_alive": "soon"}), "\"5m\""),
        (json!({"think": "much"}), "\"medium\""),
        (json!({"model": ""}), "/api/tags"),
        (json!({"options": {"temperature": -1}}), "temperature"),
    ] {
        let message = fault(&generate(more.clone()), 400);
        assert!(message.contains(why), "{more}: {message}");
    }
    let image = json!([{"role": "user", "content": "a", "images": ["AAEC"]}]);
    assert!(fault(&server.post("/api/chat", &chat(json!({"messages": image}))), 400).contains("read text only"));
    assert!(fault(&generate(json!({"model": "nobody:latest"})), 404).contains("`nobody`"));
    fault(&generate(json!({"model": "st-prompts"})), 400);
    fault(&server.post("/api/nothing", &json!({})), 404);
    fault(&server.get("/api/chat"), 405);
    assert!(fault(&server.post("/api/chat", &json!({"messages": []})), 400).contains("`model`"));
}

#[test]
fn keep_alive_unloads_and_the_next_request_loads_again() {
    let server = serve(vec![llama("m", PLAIN)]);
    let load = server.post("/api/generate", &json!({"model": "m"})).ok();
    assert_eq!((&load["done_reason"], &load["response"]), (&json!("load"), &json!("")));
    // At the end of a request with a `keep_alive` of 0 the model goes, and a later one waits for it.
    server.post("/api/chat", &chat(json!({"keep_alive": 0, "stream": false}))).ok();
    wait_until("the model is unloaded", || !is_loaded(&server, "m"));
    assert_eq!(server.get("/api/ps").ok()["models"], json!([]));
    assert_eq!(server.get("/api/tags").ok()["models"].as_array().map(Vec::len), Some(1));
    let again = server.post("/api/chat", &chat(json!({"stream": false}))).ok();
    assert!(again["load_duration"].as_u64() > Some(0), "{again}");
    assert!(is_loaded(&server, "m"));
    let unload = server.post("/api/chat", &json!({"model": "m:latest", "messages": [], "keep_alive": "0s"})).ok();
    assert_eq!((&unload["done_reason"], &unload["message"]["content"]), (&json!("unload"), &json!("")));
    wait_until("the model is unloaded", || !is_loaded(&server, "m"));
    server.post("/api/generate", &json!({"model": "m", "keep_alive": "20ms"})).ok();
    wait_until("the model is unloaded after its time", || !is_loaded(&server, "m"));
    fault(&server.post("/api/generate", &json!({"model": "nobody", "keep_alive": 0})), 404);
}

#[test]
fn only_local_requests_may_change_the_models() {
    let server = serve(vec![llama("m", PLAIN)]);
    let post = |path: &str, body: &Value| server.send("POST", path, &[JSON, PROXIED], &body.to_string());
    let reply = post("/api/chat", &chat(json!({"keep_alive": 0, "stream": false})));
    reply.ok();
    assert_eq!(reply.header("x-sconce-ignored"), Some("keep_alive"));
    fault(&post("/api/generate", &json!({"model": "m", "keep_alive": 0})), 403);
    fault(&post("/api/pull", &json!({"model": "org/tiny"})), 403);
    let delete = server.send("DELETE", "/api/delete", &[JSON, PROXIED], r#"{"model": "m"}"#);
    assert!(fault(&delete, 403).contains("--api-key"));
    let page = server.send("POST", "/api/pull", &[JSON, ("origin", "http://localhost:3000")], r#"{"model": "a/b"}"#);
    fault(&page, 403);
    assert!(is_loaded(&server, "m"));
}

#[test]
fn embeddings_are_normalized_and_texts_truncated() {
    let server = serve(vec![golden("st-prompts")]);
    let texts = json!(["hello", "The cat sat on the mat."]);
    let want = server.post("/embed", &json!({"inputs": texts})).ok();
    let answer = server.post("/api/embed", &json!({"model": "st-prompts:latest", "input": texts})).ok();
    assert_eq!((&answer["embeddings"], &answer["model"]), (&want, &json!("st-prompts:latest")));
    assert!(answer["total_duration"].as_u64() > Some(0) && answer["prompt_eval_count"].as_u64() > Some(5));
    let one = server.post("/api/embed", &json!({"model": "st-prompts", "input": "hello", "dimensions": 8})).ok();
    let short = server.post("/embed", &json!({"inputs": "hello", "dimensions": 8})).ok();
    assert_eq!(one["embeddings"], short);
    let plain = server.post("/api/embeddings", &json!({"model": "st-prompts", "prompt": "hello"})).ok();
    let raw = server.post("/embed", &json!({"inputs": "hello", "normalize": false})).ok();
    assert!(worst(&numbers(&plain["embedding"]), &numbers(&raw[0])) == 0.0);
    // Texts that are too long are truncated, unless the request refuses that.
    let long = "the cat ".repeat(500);
    let cut = server.post("/api/embed", &json!({"model": "st-prompts", "input": long})).ok();
    let truncated = server.post("/embed", &json!({"inputs": long, "truncate": true})).ok();
    assert_eq!(cut["embeddings"], truncated);
    fault(&server.post("/api/embed", &json!({"model": "st-prompts", "input": long, "truncate": false})), 400);
    let reply = server.post(
        "/api/embed",
        &json!({"model": "st-prompts", "input": long, "options": {"num_ctx": 6, "temperature": 0}}),
    );
    assert_eq!(
        (&reply.ok()["prompt_eval_count"], reply.header("x-sconce-ignored")),
        (&json!(6), Some("options.temperature"))
    );
    let none = server.post("/api/embed", &json!({"model": "st-prompts", "input": ""})).ok();
    assert_eq!((&none["embeddings"], &none["prompt_eval_count"]), (&json!([]), &json!(0)));
    fault(&server.post("/api/embed", &json!({"model": "st-prompts", "input": [1, 2]})), 400);
    fault(&server.post("/api/embed", &json!({"model": "st-prompts", "input": "a", "dimensions": 900})), 400);
}

#[test]
fn models_are_listed_and_described() {
    let server = serve(vec![golden("st-prompts"), llama("org/m:Q4_0", PLAIN)]);
    let tags = server.get("/api/tags").ok();
    let first = &tags["models"][0];
    assert_eq!((&first["name"], &first["model"]), (&json!("st-prompts:latest"), &json!("st-prompts:latest")));
    assert_eq!(tags["models"][1]["name"], "org/m:Q4_0");
    assert!(first["size"].as_u64() > Some(1000) && first["digest"].as_str().unwrap().len() == 64, "{first}");
    assert_eq!(first["details"]["format"], "safetensors");
    let ps = server.get("/api/ps").ok();
    let running = &ps["models"][0];
    assert_eq!((&running["digest"], &running["size_vram"]), (&first["digest"], &json!(0)));
    // Without a time-out the models stay.
    assert!(running["expires_at"].as_str().unwrap() > "2100" && running["context_length"].as_u64() > Some(10));
    let show = server.post("/api/show", &json!({"model": "st-prompts:latest"})).ok();
    let family = show["details"]["family"].as_str().unwrap();
    assert_eq!(
        (&show["capabilities"], &show["model_info"]["general.architecture"]),
        (&json!(["embedding"]), &json!(family))
    );
    assert!(show["model_info"]["general.parameter_count"].as_u64() > Some(100));
    assert!(show["model_info"][format!("{family}.embedding_length")].as_u64() > Some(7), "{show}");
    let show = server.post("/api/show", &json!({"name": "org/m:Q4_0"})).ok();
    assert_eq!((&show["capabilities"], &show["template"]), (&json!(["completion", "tools"]), &json!(PLAIN)));
    fault(&server.post("/api/show", &json!({"model": "nobody"})), 404);
    fault(&server.post("/api/show", &json!({})), 400);
    let version = server.get("/api/version").ok();
    assert_eq!(version["sconce"], env!("CARGO_PKG_VERSION"));
    assert!(version["version"].as_str().unwrap().split('.').all(|part| part.parse::<u32>().is_ok()));
}

/// Puts the model in `from` into the hub's cache as `org/tiny`.
fn cache(hub: &Path, from: &Path) -> PathBuf {
    let (folder, commit) = (hub.join("models--org--tiny"), "0123456789abcdef0123456789abcdef01234567");
    let snapshot = folder.join("snapshots").join(commit);
    copy(from, &snapshot);
    std::fs::create_dir_all(folder.join("refs")).unwrap();
    std::fs::write(folder.join("refs/main"), commit).unwrap();
    folder
}

fn copy(from: &Path, to: &Path) {
    std::fs::create_dir_all(to).unwrap();
    for entry in std::fs::read_dir(from).unwrap().flatten() {
        let target = to.join(entry.file_name());
        match entry.path().is_dir() {
            true => copy(&entry.path(), &target),
            false => assert!(std::fs::copy(entry.path(), target).is_ok()),
        }
    }
}

#[test]
fn models_are_pulled_served_and_deleted() {
    let source = sconce_testkit::materialize("st-prompts");
    let (spec, dir) = golden("st-prompts");
    let folder = cache(&dir.path().join("hub"), source.path());
    let own = dir.path().to_owned();
    let server = serve(vec![(spec, dir)]);
    let pulled = lines(&server.post("/api/pull", &json!({"model": "hf.co/org/tiny:latest"})));
    assert_eq!(
        (&pulled[0]["status"], &pulled.last().unwrap()["status"]),
        (&json!("pulling manifest"), &json!("success"))
    );
    assert_eq!(
        server.post("/api/pull", &json!({"name": "org/tiny", "stream": false})).ok(),
        json!({"status": "success"})
    );
    assert_eq!(server.get("/api/tags").ok()["models"][1]["name"], "org/tiny:latest");
    assert!(!is_loaded(&server, "org/tiny"), "the first request loads it");
    let want = server.post("/api/embed", &json!({"model": "st-prompts", "input": "hello"})).ok();
    let body = json!({"model": "hf.co/org/tiny:latest", "input": "hello"});
    assert_eq!(server.post("/api/embed", &body).ok()["embeddings"], want["embeddings"]);
    let delete = |model: &str| server.send("DELETE", "/api/delete", &[JSON], &json!({"model": model}).to_string());
    let deleted = delete("org/tiny:latest");
    assert_eq!((deleted.status, deleted.body.as_str()), (200, ""));
    assert!(!folder.exists() && server.get("/api/tags").ok()["models"].as_array().map(Vec::len) == Some(1));
    fault(&delete("org/tiny"), 404);
    // A user's own folder is never deleted, nor anything outside of the caches.
    assert!(fault(&delete("st-prompts"), 400).contains("your own file or folder"));
    fault(&delete("../hub"), 400);
    fault(&delete(own.to_str().unwrap()), 400);
    assert!(own.join("config.json").exists() && is_loaded(&server, "st-prompts"));
    // Offline, and not in the cache any more.
    assert!(fault(&server.post("/api/pull", &json!({"model": "org/tiny", "stream": false})), 400).contains("offline"));
    let failed = lines(&server.post("/api/pull", &json!({"model": "org/tiny"})));
    assert!(failed.last().unwrap()["error"].as_str().unwrap().contains("org/tiny"), "{failed:?}");
    fault(&server.post("/api/pull", &json!({"model": "../../etc"})), 400);
    assert!(
        fault(&server.post("/api/pull", &json!({"model": own.to_str().unwrap()})), 400).contains("/v1/models/load")
    );
}
