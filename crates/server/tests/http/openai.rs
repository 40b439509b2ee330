//! OpenAI's embeddings and models, vLLM's classify, images.

use crate::common::{config, numbers, serve};
use sconce_server::Config;
use sconce_testkit::{Arrays, golden, json, worst};
use serde_json::{Value, json};

fn base64(bytes: &[u8]) -> String {
    const DIGITS: &[u8] = b"ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/";
    let triple = |chunk: &[u8]| {
        let n = chunk.iter().fold(0u32, |n, b| n << 8 | u32::from(*b)) << (8 * (3 - chunk.len()));
        let digit = |i: usize| if i > chunk.len() { '=' } else { DIGITS[(n >> (18 - 6 * i) & 63) as usize] as char };
        (0..4).map(digit).collect::<String>()
    };
    bytes.chunks(3).map(triple).collect()
}

#[test]
fn float_and_base64_embeddings_match_embed() {
    let server = serve(&["st-prompts"], config());
    let texts = json!(["hello", "The cat sat on the mat."]);
    let want = server.post("/embed", &json!({"inputs": texts})).ok();
    let body = json!({"input": texts, "model": "st-prompts", "user": "me"});
    let reply = server.post("/v1/embeddings", &body);
    let list = reply.ok();
    assert_eq!((&list["object"], &list["model"]), (&json!("list"), &json!("st-prompts")));
    assert_eq!(reply.header("x-sconce-ignored"), None);
    assert_eq!(list["usage"]["prompt_tokens"], list["usage"]["total_tokens"]);
    for (i, data) in list["data"].as_array().unwrap().iter().enumerate() {
        assert_eq!((&data["object"], &data["index"]), (&json!("embedding"), &json!(i)));
        assert_eq!(data["embedding"], want[i]);
    }
    let body = json!({"input": texts, "model": "st-prompts", "encoding_format": "base64", "dimensions": 8});
    let short = server.post("/embed", &json!({"inputs": texts, "dimensions": 8})).ok();
    for (i, data) in server.post("/v1/embeddings", &body).ok()["data"].as_array().unwrap().iter().enumerate() {
        let bytes: Vec<u8> = numbers(&short[i]).iter().flat_map(|v| v.to_le_bytes()).collect();
        assert_eq!(data["embedding"], base64(&bytes));
    }
}

#[test]
fn errors_are_nested_and_name_the_field() {
    let server = serve(&["st-prompts"], config());
    let check = |body: &Value, status: u16, kind: &str, param: Value, code: Value| {
        let reply = server.post("/v1/embeddings", body);
        assert_eq!(reply.status, status, "{body}: {reply:?}");
        let error = &reply.json()["error"];
        assert_eq!((&error["type"], &error["param"], &error["code"]), (&json!(kind), &param, &code), "{body}: {error}");
        assert!(error["message"].is_string());
    };
    let bad = "invalid_request_error";
    check(&json!({"input": []}), 400, bad, json!("input"), Value::Null);
    check(&json!({"model": "st-prompts"}), 400, bad, json!("input"), Value::Null);
    check(&json!({"input": "a", "model": "gpt-9"}), 404, "not_found_error", json!("model"), json!("model_not_found"));
    check(&json!({"input": "a", "dimensions": 900}), 400, bad, json!("dimensions"), Value::Null);
    check(&json!({"input": "a", "encoding_format": "int3"}), 400, bad, json!("encoding_format"), Value::Null);
    let long = "the cat ".repeat(500);
    check(&json!({"input": long}), 400, bad, json!("input"), json!("context_length_exceeded"));
    // Exactly the fields without effect are named.
    let reply = server.post("/v1/embeddings", &json!({"input": "a", "colour": 1, "deep": {"er": 1}}));
    assert_eq!((reply.status, reply.header("x-sconce-ignored")), (200, Some("colour,deep")));
}

#[test]
fn models_are_listed_and_found_by_id_or_alias() {
    let (mut spec, dir) = crate::common::golden("st-prompts");
    spec.aliases.push("org/name".into());
    let server = crate::common::start(vec![spec], vec![dir], config());
    server.wait_ready();
    let list = server.get("/v1/models").ok();
    assert_eq!((&list["object"], &list["data"][0]["id"]), (&json!("list"), &json!("st-prompts")));
    assert!(list["data"][0]["created"].as_u64() > Some(1_700_000_000));
    assert_eq!(server.get("/v1/models/st-prompts").ok(), list["data"][0]);
    assert_eq!(server.get("/v1/models/org/name").ok(), list["data"][0]);
    assert_eq!(server.get("/v1/models/org%2Fname").ok(), list["data"][0]);
    let absent = server.get("/v1/models/nothing");
    assert_eq!((absent.status, &absent.json()["error"]["code"]), (404, &json!("model_not_found")));
    assert_eq!(server.post("/v1/embeddings", &json!({"input": "a", "model": "org/name"})).ok()["model"], "st-prompts");
}

#[test]
fn classify_response_has_vllm_format() {
    let server = serve(&["task-classify"], config());
    let want = json(&golden("task-classify").join("golden.json"));
    let case = &want["cases"][1];
    let reply = server.post("/v1/classify", &json!({"input": [case["text"], "a"], "model": "task-classify"})).ok();
    assert!(reply["id"].as_str().unwrap().starts_with("classify-"));
    let first = &reply["data"][0];
    assert_eq!((&first["label"], &first["num_classes"], &first["index"]), (&json!("negative"), &json!(3), &json!(0)));
    for (probability, want) in numbers(&first["probs"]).iter().zip(case["scores"].as_array().unwrap()) {
        assert!((f64::from(*probability) - want["score"].as_f64().unwrap()).abs() < 2e-5);
    }
    assert!(reply["usage"]["prompt_tokens"].as_u64() > Some(3));
    assert_eq!(server.post("/v1/classify", &json!({"input": "a"})).ok()["data"].as_array().unwrap().len(), 1);
}

#[test]
fn images_and_texts_share_one_embedding_space() {
    let config = Config { payload_limit: 20_000_000, auto_truncate: true, ..config() };
    let server = serve(&["task-clip", "st-prompts"], config);
    let cases = json(&golden("task-clip").join("golden.json"));
    let arrays = Arrays::open(&golden("task-clip").join("golden.safetensors"));
    let (images, texts) = (arrays.f32("image_embeds").values, arrays.f32("text_embeds").values);
    let unit = |row: &[f32]| -> Vec<f32> {
        let length = row.iter().map(|v| v * v).sum::<f32>().sqrt();
        row.iter().map(|v| v / length).collect()
    };
    let image = |i: usize| {
        let name = cases["images"][i].as_str().unwrap();
        let bytes = std::fs::read(golden("task-images").join(name)).unwrap();
        let kind = if name.ends_with("png") { "png" } else { "jpeg" };
        format!("data:image/{kind};base64,{}", base64(&bytes))
    };
    let input = json!([{"image": image(5)}, {"text": cases["texts"][0]["text"]}, {"image": image(4)}]);
    for path in ["/v1/embeddings", "/v1/images/embeddings"] {
        let reply = server.post(path, &json!({"input": input, "model": "task-clip"})).ok();
        let row = |i: usize| numbers(&reply["data"][i]["embedding"]);
        assert!(worst(&row(0), &unit(&images[5 * 24..6 * 24])) < 2e-3);
        assert!(worst(&row(1), &unit(&texts[..24])) < 1e-4);
        assert!(worst(&row(2), &unit(&images[4 * 24..5 * 24])) < 2e-2);
    }
    // Without a model name, images go to the CLIP model.
    assert_eq!(server.post("/v1/embeddings", &json!({"input": {"image": image(5)}})).ok()["model"], "task-clip");
    for (image, word) in [
        ("http://127.0.0.1:1/a.png", "not fetched"),
        ("file:///etc/passwd", "not fetched"),
        ("data:image/png;base64,AAAA", "cannot be used"),
        ("data:image/png;base64,*", "not base64"),
    ] {
        let reply = server.post("/v1/embeddings", &json!({"input": [{"image": image}]}));
        assert_eq!(reply.status, 400, "{image}: {reply:?}");
        assert!(reply.json()["error"]["message"].as_str().unwrap().contains(word), "{image}: {reply:?}");
    }
    let refused = server.post("/v1/embeddings", &json!({"input": [{"image": image(5)}], "model": "st-prompts"}));
    assert_eq!((refused.status, &refused.json()["error"]["param"]), (400, &json!("model")));
}
