//! vLLM's scores and pooling, and Cohere's embeddings, against the paths that compute the same.

use crate::common::{Running, config, numbers, serve};
use sconce_server::Config;
use sconce_testkit::{golden, json, worst};
use serde_json::{Value, json};

fn truncating() -> Config {
    Config { auto_truncate: true, ..config() }
}

fn scores(server: &Running, body: &Value) -> Vec<f32> {
    let reply = server.post("/score", body).ok();
    assert_eq!(reply["object"], "list");
    assert!(reply["usage"]["prompt_tokens"].as_u64() > Some(3), "{reply}");
    let data = reply["data"].as_array().unwrap();
    assert!(data.iter().enumerate().all(|(i, score)| score["index"] == i && score["object"] == "score"));
    data.iter().map(|score| score["score"].as_f64().unwrap() as f32).collect()
}

#[test]
fn rerankers_score_pairs_as_they_rerank() {
    let server = serve(&["task-rerank"], truncating());
    let cases = json(&golden("task-rerank").join("golden.json"));
    let (query, documents) = (&cases["queries"][0], &cases["documents"]);
    let ranked = server.post("/rerank", &json!({"query": query, "texts": documents})).ok();
    let mut want = vec![0.0; documents.as_array().unwrap().len()];
    for rank in ranked.as_array().unwrap() {
        want[rank["index"].as_u64().unwrap() as usize] = rank["score"].as_f64().unwrap() as f32;
    }
    for body in [
        json!({"text_1": query, "text_2": documents}),
        json!({"queries": query, "documents": documents}),
        json!({"queries": [query], "items": documents, "model": "task-rerank"}),
    ] {
        assert!(worst(&scores(&server, &body), &want) < 1e-6, "{body}");
    }
    let raw = scores(&server, &json!({"text_1": query, "text_2": documents, "use_activation": false}));
    let logits = server.post("/rerank", &json!({"query": query, "texts": documents, "raw_scores": true})).ok();
    for rank in logits.as_array().unwrap() {
        let logit = rank["score"].as_f64().unwrap() as f32;
        assert!((raw[rank["index"].as_u64().unwrap() as usize] - logit).abs() < 1e-5);
    }
    let each = json!({"text_1": [query, query], "text_2": [documents[0], documents[1]]});
    assert!(worst(&scores(&server, &each), &want[..2]) < 1e-6);
    assert_eq!(server.post("/v1/score", &each).ok()["data"].as_array().map(Vec::len), Some(2));
    // One token less of the longer pair.
    let cut = scores(&server, &json!({"text_1": "the cat", "text_2": ["a mat", "a dog"], "truncate_prompt_tokens": 6}));
    let whole = scores(&server, &json!({"text_1": "the cat", "text_2": ["a mat", "a dog"]}));
    assert_ne!(cut, whole);
}

#[test]
fn embedding_and_multi_vector_models_score_pairs() {
    let server = serve(&["st-prompts"], config());
    let (a, others) = ("hello", ["The cat sat on the mat.", "hello"]);
    let body = json!({"inputs": {"source_sentence": a, "sentences": others}});
    let cosines = numbers(&server.post("/similarity", &body).ok());
    let scored = scores(&server, &json!({"text_1": a, "text_2": others}));
    assert!(worst(&scored, &cosines) < 1e-6 && (scored[1] - 1.0).abs() < 1e-5);
    for (body, param) in [
        (json!({"text_1": ["a", "b"], "text_2": ["c", "d", "e"]}), json!("text_1")),
        (json!({"text_1": "a"}), json!("text_2")),
        (json!({"text_1": "a", "text_2": []}), json!("text_2")),
        (json!({"text_1": "a", "text_2": "b", "truncate_prompt_tokens": 0}), json!("truncate_prompt_tokens")),
        (json!({"text_1": "a", "text_2": "b", "use_activation": false}), json!("use_activation")),
    ] {
        let reply = server.post("/score", &body);
        assert_eq!((reply.status, &reply.json()["error"]["param"]), (400, &param), "{body}: {reply:?}");
    }
}

#[test]
fn pooling_returns_what_the_model_is_for() {
    let server = serve(&["st-prompts", "task-classify"], config());
    let texts = json!(["hello", "The cat sat on the mat."]);
    let pool = |more: Value| {
        let mut body = json!({"input": texts});
        body.as_object_mut().unwrap().extend(more.as_object().unwrap().clone());
        let reply = server.post("/pooling", &body).ok();
        assert_eq!(reply["object"], "list");
        let data = reply["data"].as_array().unwrap().clone();
        assert!(data.iter().enumerate().all(|(i, one)| one["index"] == i && one["object"] == "pooling"));
        data.into_iter().map(|one| one["data"].clone()).collect::<Vec<Value>>()
    };
    let embedded = server.post("/embed", &json!({"inputs": texts, "model": "st-prompts"})).ok();
    assert_eq!(json!(pool(json!({}))), embedded);
    assert_eq!(json!(pool(json!({"task": "embed", "model": "st-prompts"}))), embedded);
    let base64 = server.post("/v1/embeddings", &json!({"input": texts, "encoding_format": "base64"})).ok();
    assert_eq!(pool(json!({"encoding_format": "base64"}))[1], base64["data"][1]["embedding"]);
    let tokens = server.post("/embed_all", &json!({"inputs": texts, "model": "st-prompts"})).ok();
    assert_eq!(json!(pool(json!({"task": "token_embed", "use_activation": false}))), tokens);
    let unit = pool(json!({"task": "token_embed"}));
    for row in unit[1].as_array().unwrap() {
        let length: f32 = numbers(row).iter().map(|v| v * v).sum();
        assert!((length - 1.0).abs() < 1e-5);
    }
    assert_eq!(unit[1].as_array().map(Vec::len), tokens[1].as_array().map(Vec::len));
    // A text of tokens and texts is an input as any other.
    let mixed = json!({"input": [[2, "a"], "b"], "task": "token_embed", "model": "st-prompts"});
    assert_eq!(server.post("/pooling", &mixed).ok()["data"].as_array().map(Vec::len), Some(2));
    let classified = server.post("/v1/classify", &json!({"input": texts, "model": "task-classify"})).ok();
    for body in [json!({"task": "classify"}), json!({"model": "task-classify"})] {
        let rows = pool(body);
        for (row, want) in rows.iter().zip(classified["data"].as_array().unwrap()) {
            assert!(worst(&numbers(row), &numbers(&want["probs"])) < 1e-6);
        }
    }
    for (body, param) in [
        (json!({"input": "a", "task": "classify", "model": "st-prompts"}), "model"),
        (json!({"input": "a", "task": "token_embed", "dimensions": 4}), "dimensions"),
        (json!({"input": "a", "embed_dtype": "float16"}), "embed_dtype"),
        (json!({"input": "a", "add_special_tokens": false}), "add_special_tokens"),
        (json!({"input": {"image": "AAEC"}}), "input"),
    ] {
        let reply = server.post("/pooling", &body);
        assert_eq!((reply.status, &reply.json()["error"]["param"]), (400, &json!(param)), "{body}: {reply:?}");
    }
}

#[test]
fn cohere_embeddings_have_every_format() {
    let server = serve(&["st-prompts"], config());
    let texts = json!(["hello", "The cat sat on the mat."]);
    let want = server.post("/embed", &json!({"inputs": texts})).ok();
    let types = json!(["float", "int8", "uint8", "binary", "ubinary", "base64"]);
    let body = json!({"model": "st-prompts", "texts": texts, "embedding_types": types});
    let reply = server.post("/v2/embed", &body);
    assert_eq!(reply.header("x-sconce-ignored"), None);
    let answer = reply.ok();
    assert_eq!((&answer["response_type"], &answer["texts"]), (&json!("embeddings_by_type"), &texts));
    let made = &answer["embeddings"];
    assert_eq!(made["float"], want);
    assert!(answer["meta"]["billed_units"]["input_tokens"].as_u64() > Some(5));
    let base64 = server.post("/v1/embeddings", &json!({"input": texts, "encoding_format": "base64"})).ok();
    assert_eq!(made["base64"][0], base64["data"][0]["embedding"]);
    for (i, row) in want.as_array().unwrap().iter().enumerate() {
        let row = numbers(row);
        let (int8, uint8) = (numbers(&made["int8"][i]), numbers(&made["uint8"][i]));
        assert!(int8.iter().zip(&uint8).all(|(signed, unsigned)| signed + 128.0 == *unsigned));
        let length = |v: &[f32]| v.iter().map(|x| x * x).sum::<f32>().sqrt();
        let cosine = row.iter().zip(&int8).map(|(a, b)| a * b).sum::<f32>() / length(&row) / length(&int8);
        assert!(cosine > 0.999, "{cosine}");
        let (binary, ubinary) = (numbers(&made["binary"][i]), numbers(&made["ubinary"][i]));
        assert_eq!(binary.len(), row.len().div_ceil(8));
        for (b, (signed, unsigned)) in binary.iter().zip(&ubinary).enumerate() {
            assert_eq!(signed + 128.0, *unsigned);
            let bits = row[b * 8..].iter().take(8).enumerate();
            assert_eq!(bits.fold(0u32, |byte, (j, v)| byte | u32::from(*v > 0.0) << (7 - j)) as f32, *unsigned);
        }
    }
    let inputs = json!([{"content": [{"type": "text", "text": "hello"}]}]);
    assert_eq!(server.post("/v2/embed", &json!({"inputs": inputs})).ok()["embeddings"]["float"][0], want[0]);
    // The model's prompt for queries.
    let prompted = server.post("/embed", &json!({"inputs": "hello", "prompt_name": "query"})).ok();
    let query = server.post("/v2/embed", &json!({"texts": ["hello"], "input_type": "search_query"})).ok();
    assert_eq!(query["embeddings"]["float"], prompted);
    assert_ne!(prompted[0], want[0]);
    let long = "the cat ".repeat(500);
    server.post("/v2/embed", &json!({"texts": [long]})).ok();
    for body in [
        json!({"texts": [long], "truncate": "NONE"}),
        json!({"texts": []}),
        json!({}),
        json!({"texts": ["a"], "images": ["data:image/png;base64,AAAA"]}),
        json!({"texts": ["a"], "input_type": "image"}),
        json!({"texts": ["a"], "embedding_types": []}),
        json!({"texts": ["a"], "embedding_types": ["float16"]}),
        json!({"texts": ["a"], "output_dimension": 9000}),
        json!({"images": ["data:image/png;base64,AAAA"]}),
        json!({"inputs": [{"content": []}]}),
    ] {
        let reply = server.post("/v2/embed", &body);
        assert_eq!((reply.status, reply.json()["message"].is_string()), (400, true), "{body}: {reply:?}");
    }
}
