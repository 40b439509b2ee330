//! llama.cpp's paths with tiny random models: the request's constraints hold for any output.

use crate::common::{Reply, Running, config, golden, serve as serve_goldens, start};
use sconce_server::{Config, ModelSpec};
use serde_json::{Value, json};
use tempfile::TempDir;

const TEMPLATE: &str = "{% for m in messages %}<{{ m.role }}>{{ m.content }}</s>{% endfor %}\
                        {% if add_generation_prompt %}<assistant>{% endif %}";

/// A Llama with a vocabulary of 559 tokens and a chat template.
fn llama() -> (ModelSpec, TempDir) {
    let (mut spec, dir) = golden("task-embed-llama");
    for name in ["modules.json", "config_sentence_transformers.json", "sentence_bert_config.json"] {
        std::fs::remove_file(dir.path().join(name)).unwrap();
    }
    std::fs::write(dir.path().join("chat_template.jinja"), TEMPLATE).unwrap();
    let path = dir.path().join("config.json");
    let mut settings: Value = sconce_testkit::json(&path);
    settings["max_position_embeddings"] = json!(2048);
    std::fs::write(path, settings.to_string()).unwrap();
    spec.id = "m".into();
    (spec, dir)
}

fn serve(config: Config) -> Running {
    let (spec, dir) = llama();
    let running = start(vec![spec], vec![dir], config);
    running.wait_ready();
    running
}

fn completion(more: Value) -> Value {
    let mut body = json!({"prompt": "the cat", "n_predict": 8, "seed": 4, "temperature": 1, "ignore_eos": true});
    body.as_object_mut().unwrap().extend(more.as_object().unwrap().clone());
    body
}

/// The events of a stream without `[DONE]`.
fn events(reply: &Reply) -> Vec<Value> {
    assert_eq!((reply.status, reply.header("content-type")), (200, Some("text/event-stream")), "{reply:?}");
    let data = reply.body.split("\n\n").filter_map(|event| event.strip_prefix("data: "));
    data.map(|text| serde_json::from_str(text).unwrap()).collect()
}

fn fault(reply: &Reply, status: u16) -> Value {
    assert_eq!(reply.status, status, "{reply:?}");
    assert_eq!(reply.json()["error"]["code"], status, "{reply:?}");
    reply.json()["error"].clone()
}

#[test]
fn streamed_completion_equals_complete_completion() {
    let server = serve(config());
    let whole = server.post("/completion", &completion(json!({"return_tokens": true}))).ok();
    assert_eq!(
        (&whole["stop"], &whole["stop_type"], &whole["truncated"]),
        (&json!(true), &json!("limit"), &json!(false))
    );
    assert_eq!((&whole["tokens_predicted"], &whole["model"]), (&json!(8), &json!("m")));
    assert_eq!(whole["tokens"].as_array().unwrap().len(), 8);
    let timings = &whole["timings"];
    assert_eq!((&timings["predicted_n"], &timings["cache_n"]), (&json!(8), &json!(0)));
    assert!(timings.as_object().unwrap().values().all(|value| value.as_f64().unwrap() >= 0.0), "{timings}");
    let settings = &whole["generation_settings"];
    assert_eq!(
        (&settings["n_predict"], &settings["seed"], &settings["ignore_eos"]),
        (&json!(8), &json!(4), &json!(true))
    );
    let biases = settings["logit_bias"].as_array().unwrap();
    assert!(!biases.is_empty() && biases.iter().all(|bias| bias["bias"].is_null()), "{settings}");

    let stream = server.post("/completions", &completion(json!({"stream": true, "timings_per_token": true})));
    let mut events = events(&stream);
    let last = events.pop().unwrap();
    assert_eq!((&last["stop"], &last["content"], &last["stop_type"]), (&json!(true), &json!(""), &json!("limit")));
    assert!(events.iter().all(|event| event["stop"] == false && event["timings"]["predicted_n"].as_u64() > Some(0)));
    let text: String = events.iter().map(|event| event["content"].as_str().unwrap()).collect();
    let tokens: Vec<&Value> = events.iter().flat_map(|event| event["tokens"].as_array().unwrap()).collect();
    assert_eq!(whole["content"], text);
    assert_eq!(tokens, whole["tokens"].as_array().unwrap().iter().collect::<Vec<_>>());
}

#[test]
fn prompts_may_be_texts_tokens_and_both() {
    let server = serve(config());
    let tokens = server.post("/tokenize", &json!({"content": "the cat", "add_special": true})).ok()["tokens"].clone();
    let of = |prompt: Value| server.post("/completion", &completion(json!({"prompt": prompt}))).ok();
    let one = of(json!("the cat"));
    assert_eq!(of(tokens.clone())["content"], one["content"]);
    assert_eq!(of(json!({"prompt_string": "the cat"}))["content"], one["content"]);
    let several = of(json!([tokens, "the cat"]));
    assert_eq!(several[0]["content"], several[1]["content"]);
    assert_eq!((&several[0]["index"], &several[1]["index"]), (&json!(0), &json!(1)));
    assert!(of(json!([1, "the cat", 2]))["content"].is_string());
    let answers = server.post("/completion", &completion(json!({"n": 2}))).ok();
    assert_eq!(answers.as_array().unwrap().len(), 2);
    let prompt_only = server.post("/completion", &completion(json!({"n_predict": 0}))).ok();
    assert_eq!((&prompt_only["content"], &prompt_only["tokens_predicted"]), (&json!(""), &json!(0)));
}

#[test]
fn probabilities_have_ids() {
    let server = serve(config());
    let logprobs = server.post("/completion", &completion(json!({"n_probs": 3}))).ok();
    let all = logprobs["completion_probabilities"].as_array().unwrap();
    assert_eq!(all.len(), 8);
    for token in all {
        assert!(token["id"].is_u64() && token["logprob"].as_f64() <= Some(0.0) && token["bytes"].is_array(), "{token}");
        assert_eq!(token["top_logprobs"].as_array().unwrap().len(), 3);
    }
    let after = json!({"n_probs": 5, "post_sampling_probs": true, "top_k": 2});
    let after = server.post("/completion", &completion(after)).ok();
    for token in after["completion_probabilities"].as_array().unwrap() {
        let top: Vec<f64> =
            token["top_probs"].as_array().unwrap().iter().map(|t| t["prob"].as_f64().unwrap()).collect();
        assert!(top.len() <= 2 && (top.iter().sum::<f64>() - 1.0).abs() < 1e-4, "{token}");
    }
}

#[test]
fn response_has_the_requested_fields() {
    let server = serve(config());
    let fields = json!({"response_fields": ["content", "generation_settings/n_predict", "absent"]});
    let reply = server.post("/completion", &completion(fields)).ok();
    assert_eq!(reply.as_object().unwrap().len(), 2);
    assert_eq!(reply["generation_settings/n_predict"], 8);
}

#[test]
fn biases_exclude_texts_and_tokens() {
    let server = serve(config());
    let first = server.post("/completion", &completion(json!({"return_tokens": true}))).ok();
    let tokens: Vec<u64> = first["tokens"].as_array().unwrap().iter().map(|t| t.as_u64().unwrap()).collect();
    let bias: Vec<Value> = tokens.iter().map(|token| json!([token, false])).collect();
    let without = json!({"logit_bias": bias, "return_tokens": true});
    let other = server.post("/completion", &completion(without)).ok();
    assert!(other["tokens"].as_array().unwrap().iter().all(|t| !tokens.contains(&t.as_u64().unwrap())), "{other}");
    let by_text = json!({"logit_bias": {"the": -100}});
    assert_eq!(server.post("/completion", &completion(by_text)).status, 200);
}

#[test]
fn grammars_hold_and_their_errors_have_a_place() {
    let server = serve(config());
    let grammar = json!({"grammar": "root ::= \"a\"{3}", "ignore_eos": false});
    let reply = server.post("/completion", &completion(grammar)).ok();
    assert_eq!((&reply["content"], &reply["stop_type"]), (&json!("aaa"), &json!("eos")));
    let bad = json!({"grammar": "root ::= this is (not valid GBNF", "ignore_eos": false});
    let error = fault(&server.post("/completion", &completion(bad)), 400);
    assert!(error["message"].as_str().unwrap().contains("line 1, column 33"), "{error}");
    // Levels without brackets would need as much stack.
    let deep = json!({"grammar": format!("root ::= \"a\"{}", "*".repeat(100_000)), "ignore_eos": false});
    let error = fault(&server.post("/completion", &completion(deep)), 400);
    assert!(error["message"].as_str().unwrap().contains("marks"), "{error}");
    let chat = json!({"messages": [{"role": "user", "content": "x"}], "grammar": "root ::= \"b\"{2}", "max_tokens": 9});
    let reply = server.post("/v1/chat/completions", &chat).ok();
    assert_eq!(reply["choices"][0]["message"]["content"], "bb");
}

#[test]
fn progress_and_timings_come_if_requested() {
    let server = serve(config());
    let prompt = "the cat ".repeat(40);
    let body = json!({"prompt": prompt, "stream": true, "return_progress": true});
    let events = events(&server.post("/completion", &completion(body)));
    let progress: Vec<&Value> = events.iter().map(|e| &e["prompt_progress"]).filter(|p| !p.is_null()).collect();
    let (first, last) = (progress.first().unwrap(), progress.last().unwrap());
    assert_eq!((&first["processed"], first["time_ms"].as_f64()), (&first["cache"], Some(0.0)));
    assert_eq!(last["processed"], last["total"]);
    let chat = json!({"messages": [{"role": "user", "content": prompt}], "max_tokens": 2, "timings_per_token": true});
    let reply = server.post("/chat/completions", &chat).ok();
    assert_eq!(reply["timings"]["predicted_n"], reply["usage"]["completion_tokens"]);
    let plain = json!({"messages": [{"role": "user", "content": "x"}], "max_tokens": 2});
    assert!(server.post("/v1/chat/completions", &plain).ok().get("timings").is_none());
}

#[test]
fn templates_are_applied_and_messages_continued() {
    let server = serve(config());
    let user = json!({"role": "user", "content": "a"});
    let assistant = json!({"role": "assistant", "content": "b"});
    let applied = |more: Value| {
        let mut body = json!({"messages": [user, assistant]});
        body.as_object_mut().unwrap().extend(more.as_object().unwrap().clone());
        server.post("/apply-template", &body).ok()["prompt"].clone()
    };
    assert_eq!(applied(json!({})), "<user>a</s><assistant>b</s><assistant>");
    assert_eq!(applied(json!({"add_generation_prompt": false})), "<user>a</s><assistant>b</s>");
    assert_eq!(applied(json!({"continue_final_message": true})), "<user>a</s><assistant>b");
    // What the template writes behind a message may contain its text.
    let markup = json!({"messages": [user, {"role": "assistant", "content": "<"}], "continue_final_message": true});
    assert_eq!(server.post("/apply-template", &markup).ok()["prompt"], "<user>a</s><assistant><");
    let both = json!({"messages": [user, assistant], "add_generation_prompt": true, "continue_final_message": true});
    assert_eq!(fault(&server.post("/chat/completions", &both), 400)["param"], "continue_final_message");
    let two = json!({"messages": [user, assistant, assistant]});
    assert_eq!(fault(&server.post("/chat/completions", &two), 400)["param"], "messages");
    let count = server.post("/chat/completions/input_tokens", &json!({"messages": [user]})).ok();
    assert!(count["input_tokens"].as_u64() > Some(1), "{count}");
}

#[test]
fn texts_become_tokens_and_texts_again() {
    let server = serve(config());
    let tokens = server.post("/tokenize", &json!({"content": "the cat"})).ok()["tokens"].clone();
    let text = server.post("/detokenize", &json!({"tokens": tokens})).ok();
    assert_eq!(text["content"].as_str().unwrap().trim(), "the cat");
    let pieces = server.post("/tokenize", &json!({"content": "the cat", "with_pieces": true})).ok();
    assert!(pieces["tokens"].as_array().unwrap().iter().all(|t| t["id"].is_u64() && !t["piece"].is_null()), "{pieces}");
    // TEI's format stays as it was.
    let tei = server.post("/tokenize", &json!({"inputs": "the cat"})).ok();
    assert!(tei[0][0]["id"].is_u64(), "{tei}");
}

#[test]
fn server_says_what_it_has() {
    let server = serve(config());
    let props = server.get("/props").ok();
    assert_eq!((&props["model_alias"], &props["chat_template"]), (&json!("m"), &json!(TEMPLATE)));
    assert_eq!(props["default_generation_settings"]["n_ctx"], 2048);
    let slots = server.get("/slots").ok();
    assert_eq!(slots.as_array().unwrap().len(), props["total_slots"].as_u64().unwrap() as usize);
    assert!(slots.as_array().unwrap().iter().all(|slot| slot["is_processing"] == false));
    assert_eq!(fault(&server.post("/props", &json!({})), 405)["type"], "not_supported_error");
    assert_eq!(server.get("/lora-adapters").ok(), json!([]));
    assert_eq!(server.get("/models").ok()["data"][0]["id"], "m");
}

#[test]
fn infill_needs_a_model_for_code() {
    let server = serve(config());
    let body = json!({"input_prefix": "a", "input_suffix": "b"});
    assert_eq!(fault(&server.post("/infill", &body), 400)["type"], "not_supported_error");
    let extra = json!({"input_prefix": "a", "input_suffix": "b", "input_extra": [{"filename": "x"}]});
    assert_eq!(fault(&server.post("/infill", &extra), 400)["type"], "invalid_request_error");
}

#[test]
fn errors_are_in_llama_cpp_s_format() {
    let server = serve(config());
    let long = completion(json!({"prompt": "the cat ".repeat(3000)}));
    let error = fault(&server.post("/completion", &long), 400);
    assert_eq!((&error["type"], &error["n_ctx"]), (&json!("exceed_context_size_error"), &json!(2048)));
    assert!(error["n_prompt_tokens"].as_u64() > Some(2048));
    for (more, param) in [
        (json!({"n_predict": -2}), "n_predict"),
        (json!({"n_probs": 1000}), "n_probs"),
        (json!({"n_probs": 100, "n": 26}), "n_probs"),
        (json!({"repeat_last_n": -5}), "repeat_last_n"),
        (json!({"prompt": [99999]}), "prompt"),
        (json!({"prompt": []}), "prompt"),
        (json!({"grammar": "root ::= \"a\"", "json_schema": {}}), "grammar"),
    ] {
        assert_eq!(fault(&server.post("/completion", &completion(more)), 400)["param"], param);
    }
    // OpenAI's format is without the numbers.
    let chat = json!({"messages": [{"role": "user", "content": "the cat ".repeat(3000)}]});
    let reply = server.post("/v1/chat/completions", &chat).json();
    assert_eq!(reply["error"]["code"], "context_length_exceeded");
    assert!(reply.get("n_ctx").is_none());
}

#[test]
fn embeddings_have_a_vector_per_text_or_token() {
    let server = serve_goldens(&["st-prompts"], config());
    let pooled = server.post("/embedding", &json!({"content": "a text"})).ok();
    assert_eq!((pooled.as_array().unwrap().len(), pooled[0]["embedding"].as_array().unwrap().len()), (1, 1));
    let several = server.post("/embeddings", &json!({"input": ["a", "b"], "pooling": "none"})).ok();
    assert_eq!(several.as_array().unwrap().len(), 2);
    assert!(several[0]["embedding"][0].is_array());
    fault(&server.post("/embedding", &json!({})), 400);
}

/// Other systems have one address of loopback.
#[cfg(target_os = "linux")]
#[test]
fn server_listens_at_further_addresses() {
    let server = serve(Config { more_hosts: vec!["127.0.0.2".into()], ..config() });
    let address = std::net::SocketAddr::from(([127, 0, 0, 2], server.address().port()));
    let mut stream = std::net::TcpStream::connect(address).unwrap();
    let request = crate::common::request("GET", "/health", &[], "");
    std::io::Write::write_all(&mut stream, request.as_bytes()).unwrap();
    assert_eq!(crate::common::reply(&mut stream).status, 200);
    assert_eq!(server.get("/health").status, 200);
}
