//! The page at `/`: its headers, who may read it, and the paths that it reads.

use crate::common::{Running, config, golden, options, reply, request, serve, start};
use sconce_server::{Config, ModelSpec, Secret};
use serde_json::json;
use std::io::Write;

/// Paths of the page: itself, a module, a style sheet, an image.
const FILES: [(&str, &str); 4] = [
    ("/", "text/html; charset=utf-8"),
    ("/page/main.js", "text/javascript; charset=utf-8"),
    ("/page/style.css", "text/css; charset=utf-8"),
    ("/page/icon.svg", "image/svg+xml"),
];

fn with_key() -> Config {
    Config { api_keys: Secret::new("key").into_iter().collect(), ..config() }
}

#[test]
fn files_have_types_and_a_strict_policy() {
    let server = serve(&["st-prompts"], config());
    for (path, kind) in FILES {
        let reply = server.get(path);
        assert_eq!((reply.status, reply.header("content-type")), (200, Some(kind)), "{path}");
        let policy = reply.header("content-security-policy").unwrap();
        for part in [
            "default-src 'none'",
            "script-src 'self'",
            "style-src 'self'",
            "connect-src 'self'",
            "base-uri 'none'",
            "form-action 'none'",
            "frame-ancestors 'none'",
            "require-trusted-types-for 'script'",
        ] {
            assert!(policy.contains(part), "{part} is not in {policy}");
        }
        assert!(!policy.contains("unsafe") && !policy.contains('*') && !policy.contains("http"), "{policy}");
        for (name, value) in [
            ("x-content-type-options", "nosniff"),
            ("x-frame-options", "DENY"),
            ("referrer-policy", "no-referrer"),
            ("cache-control", "no-cache"),
        ] {
            assert_eq!(reply.header(name), Some(value), "{path}");
        }
        assert_eq!(reply.header("content-length"), Some(reply.body.len().to_string().as_str()), "{path}");
    }
    let index = server.get("/").body;
    assert!(index.starts_with("<!doctype html>") && index.contains("page/main.js"), "{index}");
}

#[test]
fn known_files_are_not_sent_again() {
    let server = serve(&["st-prompts"], config());
    for (path, _) in FILES {
        let tag = server.get(path).header("etag").unwrap().to_owned();
        for given in [tag.clone(), format!("\"other\", W/{tag}"), "*".into()] {
            let reply = server.send("GET", path, &[("if-none-match", &given)], "");
            assert_eq!((reply.status, reply.body.as_str()), (304, ""), "{path} {given}");
            assert_eq!(reply.header("etag"), Some(tag.as_str()));
        }
        assert_eq!(server.send("GET", path, &[("if-none-match", "\"other\"")], "").status, 200);
        let head = server.send("HEAD", path, &[], "");
        assert_eq!((head.status, head.body.as_str()), (200, ""));
    }
}

#[test]
fn other_files_are_not_there() {
    let server = serve(&["st-prompts"], config());
    for path in ["/page/absent.js", "/page/", "/page/../Cargo.toml", "/page/%2e%2e/src/lib.rs", "/page/chat", "/page"] {
        let reply = server.get(path);
        assert_eq!(reply.status, 404, "{path}: {reply:?}");
        assert!(reply.json()["error"].is_string(), "{reply:?}");
    }
    assert_eq!(server.send("POST", "/page/main.js", &[], "").status, 405);
    // The task of the first model, as before.
    assert_eq!(server.post("/", &json!({"inputs": "a"})).status, 200);
}

#[test]
fn no_page_leaves_the_paths_of_programs() {
    let server = serve(&["st-prompts"], Config { page: false, ..config() });
    assert_eq!(server.get("/").status, 405);
    assert_eq!(server.get("/page/main.js").status, 404);
    assert_eq!(server.post("/", &json!({"inputs": "a"})).status, 200);
    assert_eq!(server.get("/v1/status").status, 200);
    let keyed = serve(&["st-prompts"], Config { page: false, ..with_key() });
    assert_eq!((keyed.get("/").status, keyed.get("/page/main.js").status), (401, 401));
}

#[test]
fn page_needs_no_key_and_its_data_do() {
    let server = serve(&["st-prompts"], with_key());
    for (path, _) in FILES {
        assert_eq!(server.get(path).status, 200, "{path}");
    }
    for path in ["/v1/status", "/v1/plan", "/metrics", "/v1/models"] {
        assert_eq!(server.get(path).status, 401, "{path}");
        assert_eq!(server.send("GET", path, &[("authorization", "Bearer key")], "").status, 200, "{path}");
    }
    assert_eq!(server.post("/", &json!({"inputs": "a"})).status, 401);
    assert_eq!(server.send("POST", "/page/main.js", &[], "").status, 401);
}

#[test]
fn page_under_a_foreign_host_name_is_refused() {
    let server = serve(&["st-prompts"], config());
    for (path, _) in FILES {
        let mut stream = server.connect();
        let rebound = request("GET", path, &[], "").replace("host: localhost", "host: evil.example");
        stream.write_all(rebound.as_bytes()).unwrap();
        assert_eq!(reply(&mut stream).status, 403, "{path}");
    }
}

/// What `/v1/status` says about the only model.
fn model(server: &Running) -> serde_json::Value {
    let status = server.get("/v1/status").ok();
    assert_eq!(status["models"].as_array().unwrap().len(), 1, "{status}");
    status["models"][0].clone()
}

#[test]
fn status_has_memory_devices_and_what_ran() {
    let server = serve(&["st-prompts"], Config { memory_budget: Some(1 << 30), ..config() });
    server.post("/embed", &json!({"inputs": ["a", "b"]})).ok();
    let status = server.get("/v1/status").ok();
    assert_eq!(status["version"], env!("CARGO_PKG_VERSION"));
    assert_eq!((&status["requests"]["running"], &status["requests"]["limit"]), (&json!(0), &json!(512)));
    assert_eq!(status["memory"]["budget_bytes"], json!(1 << 30));
    let device = &status["devices"][0];
    // The tests have no verdict of doctor.
    assert_eq!((&device["device"], &device["doctor"]), (&json!("cpu"), &json!(null)));
    assert!(device["free_bytes"].as_u64() <= device["total_bytes"].as_u64());
    let model = model(&server);
    assert_eq!(
        (&model["id"], &model["state"], &model["task"]),
        (&json!("st-prompts"), &json!("ready"), &json!("embed"))
    );
    let memory = &model["memory"];
    let bytes = |name: &str| memory[name].as_u64().unwrap();
    assert!(bytes("weights_bytes") > 0 && bytes("peak_bytes") >= bytes("weights_bytes"), "{memory}");
    assert!(bytes("planned_bytes") >= bytes("weights_bytes") && bytes("cache_bytes") == 0, "{memory}");
    assert_eq!(status["memory"]["planned_bytes"], memory["planned_bytes"]);
    assert!(model["ran"].as_array().unwrap().iter().any(|r| r["calls"].as_u64() > Some(0)), "{model}");
    assert_eq!(model["generation"], json!(null));
}

#[test]
fn plan_has_every_op_call_and_counts_what_ran() {
    let server = serve(&["st-prompts"], config());
    let sum = |plan: &serde_json::Value, field: &str| {
        plan["steps"].as_array().unwrap().iter().map(|s| s[field].as_u64().unwrap()).sum::<u64>()
    };
    server.post("/embed", &json!({"inputs": "a"})).ok();
    let plan = server.get("/v1/plan").ok();
    assert_eq!(plan, server.get("/v1/plan?model=st-prompts").ok());
    assert_eq!((&plan["model"], &plan["device"], &plan["graph"]), (&json!("st-prompts"), &json!("cpu"), &json!(null)));
    let served = server.app.models.list()[0].served.clone().unwrap();
    assert_eq!(sum(&plan, "calls"), served.model.loaded().plan().steps.len() as u64);
    for step in plan["steps"].as_array().unwrap() {
        assert_eq!(step["rung"], "fused", "{step}");
        assert!(step["ran"].as_u64() > Some(0), "{step}");
    }
    let missing = server.get("/v1/plan?model=absent");
    assert_eq!((missing.status, &missing.json()["error"]["code"]), (404, &json!("model_not_found")));
}

#[test]
fn status_says_why_a_model_is_not_there() {
    let (good, dir) = golden("st-prompts");
    let bad = ModelSpec::new("bad=/nowhere", options(dir.path()));
    let server = start(vec![good, bad], vec![dir], config());
    sconce_testkit::wait_until("the bad model has failed", || {
        let status = server.get("/v1/status").ok();
        let bad = status["models"].as_array().unwrap().iter().find(|m| m["id"] == "bad").unwrap().clone();
        if bad["state"] == "failed" {
            assert!(bad["error"].as_str().unwrap().contains("/nowhere"), "{bad}");
            assert_eq!((&bad["memory"], &bad["queue"]), (&json!(null), &json!(null)));
        }
        bad["state"] == "failed"
    });
    let absent = server.get("/v1/plan?model=bad");
    assert_eq!(absent.status, 404, "{absent:?}");
}
