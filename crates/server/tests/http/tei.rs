//! text-embeddings-inference's paths, JSON formats and headers, against reference outputs.

use crate::common::{config, numbers, serve};
use sconce_engine::Pooling;
use sconce_server::Config;
use sconce_testkit::{Arrays, golden, json, worst};
use serde_json::{Value, json};

fn cases(name: &str) -> Value {
    json(&golden(name).join("golden.json"))
}

fn arrays(name: &str) -> Arrays {
    Arrays::open(&golden(name).join("golden.safetensors"))
}

fn truncating() -> Config {
    Config { auto_truncate: true, ..config() }
}

#[test]
fn embed_matches_the_reference_and_reports_compute_headers() {
    let server = serve(&["st-prompts"], truncating());
    let (cases, arrays) = (cases("st-prompts"), arrays("st-prompts"));
    let want = arrays.f32("embeddings");
    let cases = cases.as_array().unwrap();
    let texts: Vec<&Value> = cases.iter().filter(|c| c["prompt_name"] == "query").map(|c| &c["text"]).collect();
    let reply = server.post("/embed", &json!({"inputs": texts, "prompt_name": "query"}));
    let rows = reply.ok();
    let mut compared = 0;
    for (row, i) in rows.as_array().unwrap().iter().zip((0..).filter(|i: &usize| cases[*i]["prompt_name"] == "query")) {
        assert!(worst(&numbers(row), &want.values[i * 32..][..32]) < 1e-5, "{}", cases[i]);
        compared += 1;
    }
    assert_eq!(compared, texts.len());
    let tokens: usize =
        cases.iter().filter(|c| c["prompt_name"] == "query").map(|c| c["ids"].as_array().unwrap().len()).sum();
    assert_eq!(reply.header("x-compute-tokens"), Some(tokens.to_string().as_str()));
    let characters: usize = texts.iter().map(|t| t.as_str().unwrap().chars().count()).sum();
    assert_eq!(reply.header("x-compute-characters"), Some(characters.to_string().as_str()));
    for name in ["x-compute-time", "x-total-time", "x-tokenization-time", "x-queue-time", "x-inference-time"] {
        assert!(reply.header(name).is_some_and(|v| v.parse::<u64>().is_ok()), "{name}: {reply:?}");
    }

    // A single text, a list of one, and truncated, normalized embeddings.
    let alone = server.post("/embed", &json!({"inputs": "hello"})).ok();
    assert_eq!(alone, server.post("/embed", &json!({"inputs": ["hello"]})).ok());
    let short = numbers(&server.post("/embed", &json!({"inputs": "hello", "dimensions": 8})).ok()[0]);
    let length: f32 = short.iter().map(|v| v * v).sum();
    assert!(short.len() == 8 && (length - 1.0).abs() < 1e-5);
    let cut: Vec<f32> = numbers(&alone[0])[..8].to_vec();
    assert!((short[0] / short[1] - cut[0] / cut[1]).abs() < 1e-4);
}

#[test]
fn errors_have_tei_format_and_status() {
    let server = serve(&["st-prompts"], config());
    let check = |body: &Value, status: u16, kind: &str, word: &str| {
        let reply = server.post("/embed", body);
        assert_eq!(reply.status, status, "{body}: {reply:?}");
        let error = reply.json();
        assert_eq!(error["error_type"], kind, "{body}: {error}");
        assert!(error["error"].as_str().unwrap().contains(word), "{body}: {error}");
    };
    check(&json!({"inputs": []}), 400, "Empty", "inputs");
    check(&json!({"inputs": 3}), 422, "Validation", "a list of texts");
    check(&json!({}), 422, "Validation", "missing field `inputs`");
    check(&json!({"inputs": "a", "dimensions": 0}), 422, "Validation", "dimensions");
    check(&json!({"inputs": "a", "dimensions": 33}), 422, "Validation", "1 to 32");
    check(&json!({"inputs": "a", "prompt_name": "nothing"}), 422, "Validation", "nothing");
    check(&json!({"inputs": vec!["a"; 129]}), 413, "Validation", "128");
    check(&json!({"inputs": "a", "model": "other"}), 404, "NotFound", "st-prompts");
    // Longer than the model's limit: refused without `truncate`.
    let long = "the cat sat on the mat ".repeat(100);
    check(&json!({"inputs": ["a", long]}), 422, "Validation", "allow truncation");
    assert_eq!(server.post("/embed", &json!({"inputs": long, "truncate": true})).status, 200);
    // This model supports no other task.
    for (path, body) in [
        ("/rerank", json!({"query": "a", "texts": ["b"]})),
        ("/predict", json!({"inputs": "a"})),
        ("/embed_sparse", json!({"inputs": "a"})),
    ] {
        let reply = server.post(path, &body);
        assert_eq!((reply.status, reply.json()["error_type"].as_str()), (422, Some("Validation")), "{path}: {reply:?}");
    }
}

#[test]
fn predict_labels_match_the_reference() {
    let server = serve(&["task-classify"], truncating());
    let cases = cases("task-classify");
    let cases = cases["cases"].as_array().unwrap();
    let texts = |c: &Value| [&c["text"], &c["text_pair"]].into_iter().filter(|t| t.is_string()).cloned().collect();
    let inputs: Vec<Value> = cases.iter().map(texts).collect();
    let all = server.post("/predict", &json!({"inputs": inputs})).ok();
    for (got, case) in all.as_array().unwrap().iter().zip(cases) {
        let got = got.as_array().unwrap();
        assert_eq!(got.len(), 3);
        for want in case["scores"].as_array().unwrap() {
            let found = got.iter().find(|g| g["label"] == want["label"]).unwrap();
            assert!((found["score"].as_f64().unwrap() - want["score"].as_f64().unwrap()).abs() < 2e-5, "{case}");
        }
        assert!(got.windows(2).all(|w| w[0]["score"].as_f64() >= w[1]["score"].as_f64()));
    }
    // The response to a single input is not nested; a pair is a single input.
    let single = server.post("/predict", &json!({"inputs": cases[1]["text"]})).ok();
    assert_eq!(single, all[1]);
    assert!(server.post("/predict", &json!({"inputs": ["a", "b"]})).ok()[0]["label"].is_string());
    assert_eq!(server.post("/predict", &json!({"inputs": ["a", "b", "c"]})).status, 422);
    let raw = server.post("/predict", &json!({"inputs": cases[1]["text"], "raw_scores": true})).ok();
    let sum: f64 = raw.as_array().unwrap().iter().map(|l| l["score"].as_f64().unwrap()).sum();
    assert!((sum - 1.0).abs() > 1e-3, "{raw}");
}

#[test]
fn rerank_matches_the_reference_in_tei_and_cohere_format() {
    let server = serve(&["task-rerank"], truncating());
    let cases = cases("task-rerank");
    let (queries, documents) = (cases["queries"].as_array().unwrap(), &cases["documents"]);
    let scores = arrays("task-rerank").f32("sigmoid").values;
    for (q, query) in queries.iter().enumerate() {
        let tei = server.post("/rerank", &json!({"query": query, "texts": documents, "return_text": true})).ok();
        let order: Vec<&Value> = tei.as_array().unwrap().iter().map(|r| &r["index"]).collect();
        assert_eq!(json!(order), cases["ranking"][q]);
        for r in tei.as_array().unwrap() {
            let d = r["index"].as_u64().unwrap() as usize;
            assert!((r["score"].as_f64().unwrap() - f64::from(scores[q * 7 + d])).abs() < 2e-5);
            assert_eq!(r["text"], documents[d]);
        }
        for path in ["/rerank", "/v1/rerank", "/v2/rerank"] {
            let body = json!({"model": "task-rerank", "query": query, "documents": documents, "top_n": 3,
                              "return_documents": true});
            let reply = server.post(path, &body).ok();
            let results = reply["results"].as_array().unwrap();
            assert_eq!(results.len(), 3);
            for (r, t) in results.iter().zip(tei.as_array().unwrap()) {
                assert_eq!((&r["index"], &r["relevance_score"]), (&t["index"], &t["score"]));
                assert_eq!(r["document"]["text"], t["text"]);
            }
            assert!(reply["usage"]["total_tokens"].as_u64() > Some(20) && reply["id"].is_string());
            assert_eq!(reply["meta"]["tokens"]["input_tokens"], reply["usage"]["total_tokens"]);
        }
    }
    // Documents may be objects; by default they are not returned.
    let body = json!({"query": "a", "documents": [{"text": "b"}, "c"]});
    let reply = server.post("/v2/rerank", &body).ok();
    assert!(reply["results"][0].get("document").is_none() && reply["meta"]["api_version"]["version"] == "2");
    // Errors are in the format of the request's API.
    let fault = server.post("/v1/rerank", &json!({"query": "a", "documents": []}));
    assert_eq!((fault.status, fault.json()["message"].is_string()), (400, true), "{fault:?}");
    let fault = server.post("/rerank", &json!({"query": "a", "documents": ["b"], "top_n": 0}));
    assert_eq!((fault.status, fault.json()["message"].is_string()), (400, true), "{fault:?}");
    let fault = server.post("/rerank", &json!({"query": "a", "texts": []}));
    assert_eq!((fault.status, &fault.json()["error_type"]), (400, &json!("Empty")), "{fault:?}");
}

#[test]
fn sparse_and_m3_embeddings_match_the_reference() {
    let server = serve(&["task-sparse", "task-m3", "task-colbert"], truncating());
    for model in ["task-sparse", "task-m3"] {
        let cases = cases(model);
        let (cases, key) = (cases["cases"].as_array().unwrap(), if model == "task-m3" { "sparse" } else { "weights" });
        let texts: Vec<&Value> = cases.iter().map(|c| &c["text"]).collect();
        let all = server.post("/embed_sparse", &json!({"inputs": texts, "model": model})).ok();
        for (got, case) in all.as_array().unwrap().iter().zip(cases) {
            let want = case[key].as_object().unwrap();
            assert_eq!(got.as_array().unwrap().len(), want.len(), "{case}");
            for value in got.as_array().unwrap() {
                let want = want[&value["index"].to_string()].as_f64().unwrap();
                assert!((value["value"].as_f64().unwrap() - want).abs() < 1e-4, "{model} {case}");
            }
        }
    }
    let dense = arrays("task-m3").f32("dense").values;
    let m3 = server.post("/embed", &json!({"inputs": ["", "hello"], "model": "task-m3"})).ok();
    assert!(worst(&numbers(&m3[1]), &dense[32..64]) < 1e-5);
    let tokens = server.post("/embed_all", &json!({"inputs": "the cat sat", "model": "task-colbert"})).ok();
    assert!(tokens[0].as_array().unwrap().len() > 3 && tokens[0][0].as_array().unwrap().len() == 16);
}

#[test]
fn similarity_is_the_cosine() {
    let server = serve(&["st-prompts"], config());
    let body = json!({"inputs": {"source_sentence": "hello", "sentences": ["hello", "The cat sat on the mat."]}});
    let cosines = numbers(&server.post("/similarity", &body).ok());
    let rows = server.post("/embed", &json!({"inputs": ["hello", "The cat sat on the mat."]})).ok();
    let want = sconce_testkit::cosine(&numbers(&rows[0]), &numbers(&rows[1])) as f32;
    assert!((cosines[0] - 1.0).abs() < 1e-5 && (cosines[1] - want).abs() < 1e-5, "{cosines:?} {want}");
    let empty = json!({"inputs": {"source_sentence": "a", "sentences": []}, "parameters": {"truncate": true}});
    assert_eq!(server.post("/similarity", &empty).status, 400);
}

#[test]
fn info_lists_models_and_executed_ops() {
    let server = serve(&["st-prompts", "task-classify"], config());
    server.post("/embed", &json!({"inputs": "hello"})).ok();
    let info = server.get("/info").ok();
    assert_eq!((&info["model_id"], &info["model_dtype"]), (&json!("st-prompts"), &json!("f32")));
    assert_eq!(info["max_client_batch_size"], 128);
    let models = info["models"].as_array().unwrap();
    assert_eq!((&models[0]["task"], &models[1]["task"]), (&json!("embed"), &json!("classify")));
    let ran = models[0]["ran"].as_array().unwrap();
    assert!(!ran.is_empty() && ran.iter().all(|r| r["rung"] == "fused" && r["device"] == "cpu"), "{ran:?}");
    assert!(models[1]["ran"].as_array().unwrap().is_empty(), "this model had no requests");
    assert!(models[0]["planned_bytes"].as_u64() > Some(1000) && models[0]["peak_bytes"].as_u64() > Some(1000));
    for path in ["/health", "/ping"] {
        assert_eq!(server.get(path).status, 200);
    }
}

#[test]
fn token_id_inputs_embed_like_their_texts() {
    let server = serve(&["st-legacy"], truncating());
    let tokens = server.post("/tokenize", &json!({"inputs": "a man"})).ok();
    let ids: Value = tokens[0].as_array().unwrap().iter().map(|t| t["id"].clone()).collect();
    let want = server.post("/embed", &json!({"inputs": "a man"})).ok();
    let got = server.post("/embed", &json!({"inputs": ids})).ok();
    assert!(worst(&numbers(&got[0]), &numbers(&want[0])) < 1e-5, "{ids}");
    let mixed = server.post("/embed", &json!({"inputs": [ids, ids]})).ok();
    assert_eq!((mixed.as_array().unwrap().len(), &mixed[1]), (2, &got[0]));
    let openai = server.post("/v1/embeddings", &json!({"input": ids, "model": "st-legacy"})).ok();
    assert_eq!(openai["data"][0]["embedding"], got[0]);
    assert_eq!(openai["usage"]["prompt_tokens"], ids.as_array().unwrap().len());
    // A token id outside of the vocabulary fails only its request, with an error that names it.
    let unknown = server.post("/embed", &json!({"inputs": [1_000_000]}));
    assert_eq!(unknown.status, 422, "{unknown:?}");
    assert!(unknown.json()["error"].as_str().unwrap().contains("1000000"));
}

#[test]
fn truncation_direction_selects_the_removed_end() {
    let server = serve(&["st-legacy"], config());
    let (head, tail) = ("hello ".repeat(200), "cat ".repeat(200));
    let vector = |text: &str, direction: &str| {
        let body = json!({"inputs": text, "truncate": true, "truncation_direction": direction});
        numbers(&server.post("/embed", &body).ok()[0])
    };
    let both = format!("{head}{tail}");
    assert!(worst(&vector(&both, "Right"), &vector(&head, "right")) < 1e-5);
    assert!(worst(&vector(&both, "Left"), &vector(&both, "Right")) > 1e-3);
    let refused = server.post("/embed", &json!({"inputs": both, "truncate": false}));
    assert_eq!((refused.status, &refused.json()["error_type"]), (422, &json!("Validation")), "{refused:?}");
}

#[test]
fn normalization_is_optional_and_embed_all_returns_token_vectors() {
    let server = serve(&["st-prompts"], config());
    let length = |row: &Value| numbers(row).iter().map(|v| v * v).sum::<f32>().sqrt();
    let raw = server.post("/embed", &json!({"inputs": "hello", "normalize": false})).ok();
    let unit = server.post("/embed", &json!({"inputs": "hello"})).ok();
    assert!((length(&unit[0]) - 1.0).abs() < 1e-5 && (length(&raw[0]) - 1.0).abs() > 1e-2, "{}", length(&raw[0]));
    let scaled: Vec<f32> = numbers(&raw[0]).iter().map(|v| v / length(&raw[0])).collect();
    assert!(worst(&scaled, &numbers(&unit[0])) < 1e-5);
    let all = server.post("/embed_all", &json!({"inputs": ["hello", "The cat sat on the mat."]})).ok();
    let tokens = server.post("/tokenize", &json!({"inputs": ["hello", "The cat sat on the mat."]})).ok();
    for i in 0..2 {
        assert_eq!(all[i].as_array().unwrap().len(), tokens[i].as_array().unwrap().len());
        assert_eq!(all[i][0].as_array().unwrap().len(), 32);
    }
}

#[test]
fn pooling_is_chosen_per_request_or_for_the_server() {
    let server = serve(&["st-max", "task-m3", "task-rerank"], config());
    let embed = |body: Value| server.post("/embed", &body);
    let all = server.post("/embed_all", &json!({"inputs": "The cat sat."})).ok();
    let (first, last) = (numbers(&all[0][0]), numbers(all[0].as_array().unwrap().last().unwrap()));
    for (pooling, want) in [("cls", &first), ("last", &last), ("last_token", &last)] {
        let body = json!({"inputs": "The cat sat.", "pooling": pooling, "normalize": false});
        assert!(worst(&numbers(&embed(body).ok()[0]), want) < 1e-5, "{pooling}");
        let body = json!({"input": "The cat sat.", "pooling": pooling, "normalize": false});
        let openai = server.post("/v1/embeddings", &body).ok();
        assert!(worst(&numbers(&openai["data"][0]["embedding"]), want) < 1e-5, "{pooling}");
    }
    assert_eq!(embed(json!({"inputs": "The cat sat.", "pooling": "none"})).ok(), all);
    for (path, body, why) in [
        ("/embed", json!({"inputs": "a", "pooling": "none", "dimensions": 4}), "dimensions"),
        ("/embed", json!({"inputs": "a", "pooling": "median"}), "median"),
        ("/embed", json!({"inputs": "a", "pooling": "cls", "model": "task-m3"}), "leave out `pooling`"),
        ("/v1/embeddings", json!({"input": "a", "pooling": "none"}), "/embed_all"),
    ] {
        let response = server.post(path, &body);
        assert!(response.status >= 400 && response.body.contains(why), "{path} {body}: {}", response.body);
    }
    let documents = json!(["The cat sat on the mat.", "hello"]);
    let score = |pooling: &str| {
        let body = json!({"query": "cat", "texts": documents, "raw_scores": true, "pooling": pooling});
        let ranks = server.post("/rerank", &body).ok();
        let body = json!({"query": "cat", "documents": documents, "pooling": pooling, "model": "task-rerank"});
        let same = server.post("/v1/rerank", &body).ok()["results"][0]["index"].clone();
        assert_eq!(same, ranks[0]["index"], "{pooling}");
        ranks[0]["score"].as_f64().unwrap()
    };
    assert!(score("pooler") != score("cls") && score("cls") != score("mean"));

    let cls = serve(&["st-max"], Config { pooling: Some(Pooling::Cls), ..config() });
    let own = cls.post("/embed", &json!({"inputs": "The cat sat.", "normalize": false})).ok();
    assert!(worst(&numbers(&own[0]), &first) < 1e-5);
    assert_eq!(cls.get("/info").ok()["model_type"]["embedding"]["pooling"], "cls");
}

#[test]
fn tokenize_and_decode_round_trip() {
    let server = serve(&["task-classify"], config());
    let text = "The cat sat";
    let tokens = server.post("/tokenize", &json!({"inputs": text})).ok();
    let tokens = tokens[0].as_array().unwrap();
    let (first, last) = (&tokens[0], &tokens[tokens.len() - 1]);
    assert_eq!((&first["special"], &first["start"], &last["special"]), (&json!(true), &Value::Null, &json!(true)));
    let characters: Vec<char> = text.chars().collect();
    for token in &tokens[1..tokens.len() - 1] {
        let range = token["start"].as_u64().unwrap() as usize..token["stop"].as_u64().unwrap() as usize;
        assert_eq!(token["text"], characters[range].iter().collect::<String>(), "{token}");
    }
    let bare = server.post("/tokenize", &json!({"inputs": text, "add_special_tokens": false})).ok();
    assert_eq!(bare[0].as_array().unwrap().len(), tokens.len() - 2);
    let ids: Vec<&Value> = tokens.iter().map(|t| &t["id"]).collect();
    assert_eq!(server.post("/decode", &json!({"ids": ids})).ok(), json!(["the cat sat"]));
    assert_eq!(server.post("/decode", &json!({"ids": [ids, ids]})).ok(), json!(["the cat sat", "the cat sat"]));
    let whole = server.post("/decode", &json!({"ids": ids, "skip_special_tokens": false})).ok();
    assert!(whole[0].as_str().unwrap().contains("[CLS]"), "{whole}");
    assert_eq!(server.post("/tokenize", &json!({"inputs": []})).status, 400);
    assert_eq!(server.post("/decode", &json!({"ids": [-1]})).status, 422);
}

#[test]
fn max_tokens_per_doc_truncates_documents() {
    let server = serve(&["task-rerank"], config());
    let rank = |document: &str, limit: Option<usize>| {
        let body =
            json!({"query": "the cat", "documents": [document], "max_tokens_per_doc": limit, "return_documents": true});
        let reply = server.post("/v2/rerank", &body).ok();
        (reply["results"][0]["relevance_score"].as_f64().unwrap(), reply["results"][0]["document"]["text"].clone())
    };
    let (cut, given) = rank("A man is eating food", Some(2));
    assert_eq!((cut, given), (rank("A man", None).0, json!("A man is eating food")));
    assert_ne!(cut, rank("A man is eating food", None).0);
    assert_eq!(rank("A man", Some(50)).0, rank("A man", None).0);
}
