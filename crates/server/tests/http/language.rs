//! Chats and completions of tiny random models: the request's constraints hold for any output.

use crate::common::{Reply, Running, config, golden, request, start};
use sconce_server::{Config, ModelSpec};
use sconce_testkit::{plain_words, wait_until};
use serde_json::{Map, Value, json};
use std::io::{Read, Write};
use std::net::TcpStream;
use std::time::{Duration, Instant};
use tempfile::TempDir;

const TAGGED: &str = "{% if tools %}<tool_call>{% endif %}{% for m in messages %}{{ m.content }}{% endfor %}";
const LLAMA: &str =
    "{% if tools %}{\"name\": x, \"parameters\": y}{% endif %}{% for m in messages %}{{ m.content }}{% endfor %}";
const MISTRAL: &str = "{% if tools %}[TOOL_CALLS]{% endif %}{% for m in messages %}{{ m.content }}{% endfor %}";
const NAMED: &str = "{% if tools %}[TOOL_CALLS][ARGS]{% endif %}{% for m in messages %}{{ m.content }}{% endfor %}";
const PHI: &str = "{% for m in messages %}{{ m.content }}\
    {% if 'tools' in m %}{{ '<|tool|>' + m['tools'] + '<|/tool|>' }}{% endif %}{% endfor %}";
const PLAIN: &str = "{% for m in messages %}{{ m.content }}{% endfor %}";

/// A Llama with a vocabulary of 559 tokens and this chat template.
pub(crate) fn llama(id: &str, template: &str) -> (ModelSpec, TempDir) {
    let (mut spec, dir) = golden("task-embed-llama");
    for name in ["modules.json", "config_sentence_transformers.json", "sentence_bert_config.json"] {
        std::fs::remove_file(dir.path().join(name)).unwrap();
    }
    std::fs::write(dir.path().join("chat_template.jinja"), template).unwrap();
    let path = dir.path().join("config.json");
    let mut config: Value = sconce_testkit::json(&path);
    config["max_position_embeddings"] = json!(2048);
    std::fs::write(path, config.to_string()).unwrap();
    spec.id = id.into();
    (spec, dir)
}

fn t5() -> (ModelSpec, TempDir) {
    let (mut spec, dir) = golden("t5-seq2seq");
    std::fs::write(dir.path().join("tokenizer.json"), plain_words(67).to_string()).unwrap();
    spec.id = "t5".into();
    (spec, dir)
}

pub(crate) fn serve(models: Vec<(ModelSpec, TempDir)>, config: Config) -> Running {
    let (specs, dirs) = models.into_iter().unzip();
    let running = start(specs, dirs, config);
    running.wait_ready();
    running
}

pub(crate) fn with(mut body: Value, more: Value) -> Value {
    body.as_object_mut().unwrap().extend(more.as_object().unwrap().clone());
    body
}

pub(crate) fn chat(more: Value) -> Value {
    with(
        json!({"messages": [{"role": "user", "content": "the cat"}], "max_tokens": 12, "seed": 4, "temperature": 1}),
        more,
    )
}

/// The events of a stream, which must end with `[DONE]`.
pub(crate) fn events(reply: &Reply) -> Vec<Value> {
    assert_eq!((reply.status, reply.header("content-type")), (200, Some("text/event-stream")), "{reply:?}");
    let mut data: Vec<&str> = reply.body.split("\n\n").filter_map(|event| event.strip_prefix("data: ")).collect();
    assert_eq!(data.pop(), Some("[DONE]"), "{reply:?}");
    data.into_iter().map(|text| serde_json::from_str(text).unwrap()).collect()
}

fn fault(reply: &Reply, status: u16) -> Map<String, Value> {
    assert_eq!(reply.status, status, "{reply:?}");
    reply.json()["error"].as_object().unwrap_or_else(|| panic!("{reply:?}")).clone()
}

#[test]
fn streamed_chat_equals_complete_chat() {
    let server = serve(vec![llama("m", PLAIN)], config());
    let whole = server.post("/v1/chat/completions", &chat(json!({"n": 2, "logprobs": true, "top_logprobs": 2}))).ok();
    assert_eq!((&whole["object"], &whole["model"]), (&json!("chat.completion"), &json!("m")));
    let texts: Vec<&str> = (0..2).map(|i| whole["choices"][i]["message"]["content"].as_str().unwrap()).collect();
    assert!(texts[0] != texts[1] && !texts[0].is_empty());
    let usage = &whole["usage"];
    assert_eq!(
        usage["total_tokens"],
        json!(usage["prompt_tokens"].as_u64().unwrap() + usage["completion_tokens"].as_u64().unwrap())
    );
    let body = chat(
        json!({"n": 2, "stream": true, "stream_options": {"include_usage": true}, "logprobs": true, "top_logprobs": 2}),
    );
    let events = events(&server.post("/v1/chat/completions", &body));
    let (last, chunks) = events.split_last().unwrap();
    assert_eq!((&last["choices"], &last["usage"]["completion_tokens"]), (&json!([]), &usage["completion_tokens"]));
    let (mut streamed, mut logprobs) = (vec![String::new(); 2], vec![Vec::new(); 2]);
    for (i, event) in chunks.iter().enumerate() {
        let choice = &event["choices"][0];
        let index = choice["index"].as_u64().unwrap() as usize;
        assert_eq!(choice["delta"]["role"], if i < 2 { json!("assistant") } else { Value::Null });
        assert!(event.as_object().unwrap().contains_key("usage") && event["usage"].is_null());
        streamed[index].push_str(choice["delta"]["content"].as_str().unwrap_or_default());
        logprobs[index].extend(choice["logprobs"]["content"].as_array().cloned().unwrap_or_default());
    }
    assert_eq!(streamed, texts);
    for (i, logprobs) in logprobs.into_iter().enumerate() {
        assert_eq!(whole["choices"][i]["logprobs"]["content"], Value::from(logprobs));
        assert_eq!(whole["choices"][i]["finish_reason"], "length");
    }
}

#[test]
fn required_tool_calls_are_valid_for_any_sample() {
    let templates = [
        ("tagged", TAGGED),
        ("llama", LLAMA),
        ("mistral", MISTRAL),
        ("named", NAMED),
        ("phi", PHI),
        ("described", PLAIN),
    ];
    let server = serve(templates.iter().map(|(id, template)| llama(id, template)).collect(), config());
    let reference = json!({"type": "object", "properties": {"x": {"$ref": "#/$defs/x"}}, "required": ["x"],
        "additionalProperties": false, "$defs": {"x": {"enum": ["a", "b\"}"]}}});
    let tools = json!([
        {"type": "function", "function": {"name": "f", "parameters": reference}},
        {"type": "function", "function": {"name": "g"}},
    ]);
    let (mut several, mut names) = (0, std::collections::BTreeSet::new());
    for (model, _) in templates {
        for seed in 0..6 {
            let more =
                json!({"model": model, "tools": tools, "tool_choice": "required", "seed": seed, "max_tokens": 900});
            let answer = server.post("/v1/chat/completions", &chat(more.clone())).ok();
            let choice = &answer["choices"][0];
            assert_eq!(
                (&choice["finish_reason"], &choice["message"]["content"]),
                (&json!("tool_calls"), &Value::Null),
                "{answer}"
            );
            let calls = choice["message"]["tool_calls"].as_array().unwrap();
            several += usize::from(calls.len() > 1);
            for call in calls {
                let arguments: Value = serde_json::from_str(call["function"]["arguments"].as_str().unwrap()).unwrap();
                let name = call["function"]["name"].as_str().unwrap();
                names.insert(name.to_owned());
                match name {
                    "f" => assert!([json!({"x": "a"}), json!({"x": "b\"}"})].contains(&arguments), "{answer}"),
                    _ => assert_eq!((name, arguments), ("g", json!({}))),
                }
                assert_eq!(
                    call["id"].as_str().unwrap().len(),
                    if ["mistral", "named"].contains(&model) { 9 } else { 37 }
                );
            }
            let streamed = events(&server.post("/v1/chat/completions", &with(chat(more), json!({"stream": true}))));
            assert_eq!(assemble_calls(&streamed), names_and_arguments(calls), "{model} {seed}");
        }
    }
    assert!(several > 0 && names.len() == 2, "{several} {names:?}");
    // A named function, without parallel calls.
    let named = json!({"model": "tagged", "tools": tools, "parallel_tool_calls": false, "max_tokens": 900,
        "tool_choice": {"type": "function", "function": {"name": "g"}}});
    let answer = server.post("/v1/chat/completions", &chat(named)).ok();
    let calls = names_and_arguments(answer["choices"][0]["message"]["tool_calls"].as_array().unwrap());
    // A random model may write whitespace between the braces.
    let arguments: Value = serde_json::from_str(&calls[0].1).unwrap();
    assert_eq!((calls.len(), calls[0].0.as_str(), arguments), (1, "g", json!({})));
    // Either calls or JSON of a schema.
    let either = json!({"model": "tagged", "tools": tools, "max_tokens": 900, "response_format": {"type": "json_schema",
        "json_schema": {"name": "n", "schema": {"enum": ["yes", "no"]}}}});
    let mut kinds = std::collections::BTreeSet::new();
    for seed in 0..24 {
        let answer = server.post("/v1/chat/completions", &with(chat(either.clone()), json!({"seed": seed}))).ok();
        let message = &answer["choices"][0]["message"];
        match message["content"].as_str() {
            Some(text) => assert!(["\"yes\"", "\"no\""].contains(&text.trim()), "{message}"),
            None => assert!(!message["tool_calls"].as_array().unwrap().is_empty()),
        }
        kinds.insert(message["content"].is_null());
    }
    assert_eq!(kinds.len(), 2, "the samples contain calls and JSON");
}

fn names_and_arguments(calls: &[Value]) -> Vec<(String, String)> {
    let text = |v: &Value| v.as_str().unwrap().to_owned();
    calls.iter().map(|call| (text(&call["function"]["name"]), text(&call["function"]["arguments"]))).collect()
}

/// Names and arguments of streamed calls.
fn assemble_calls(events: &[Value]) -> Vec<(String, String)> {
    let mut all = Vec::<(String, String)>::new();
    for event in events {
        let delta = &event["choices"][0]["delta"];
        assert_eq!(delta["content"].as_str().unwrap_or_default(), "", "calls are not part of the content");
        for part in delta["tool_calls"].as_array().into_iter().flatten() {
            let function = &part["function"];
            if let Some(name) = function["name"].as_str() {
                assert!(part["id"].is_string() && part["type"] == "function");
                all.push((name.into(), String::new()));
            }
            assert_eq!(part["index"], json!(all.len() - 1));
            all.last_mut().unwrap().1.push_str(function["arguments"].as_str().unwrap());
        }
    }
    all
}

#[test]
fn completions_accept_texts_lists_and_token_ids() {
    let server = serve(vec![llama("m", PLAIN)], config());
    let body = |more: Value| with(json!({"prompt": "the cat", "max_tokens": 8, "seed": 1, "temperature": 1}), more);
    let answer = server.post("/v1/completions", &body(json!({}))).ok();
    let text = answer["choices"][0]["text"].as_str().unwrap().to_owned();
    assert_eq!(answer["object"], "text_completion");
    let several =
        server.post("/v1/completions", &body(json!({"prompt": ["the cat", "a dog"], "n": 2, "echo": true}))).ok();
    let choices = several["choices"].as_array().unwrap();
    assert_eq!(choices.iter().map(|c| c["index"].as_u64().unwrap()).collect::<Vec<_>>(), [0, 1, 2, 3]);
    assert_eq!(choices[0]["text"], format!("the cat{text}"));
    assert!(choices[2]["text"].as_str().unwrap().starts_with("a dog"));
    let streamed = events(&server.post("/v1/completions", &body(json!({"stream": true}))));
    let joined: String = streamed.iter().map(|e| e["choices"][0]["text"].as_str().unwrap()).collect();
    assert_eq!(joined, text);
    assert!(streamed.iter().all(|event| event.get("usage").is_none()));
    let by_token = server.post("/v1/completions", &body(json!({"prompt": [[5, 6], [7]], "logprobs": 1}))).ok();
    let logprobs = &by_token["choices"][1]["logprobs"];
    let of = |name: &str| logprobs[name].as_array().unwrap().len();
    assert_eq!([of("tokens"), of("token_logprobs"), of("top_logprobs"), of("text_offset")], [8; 4], "{by_token}");
    assert_eq!(by_token["usage"]["prompt_tokens"], 3);
}

#[test]
fn echoed_prompt_has_logprobs_and_is_not_counted_as_completion() {
    let server = serve(vec![llama("m", PLAIN)], config());
    let body = |more: Value| with(json!({"prompt": [5, 6, 7], "max_tokens": 4, "echo": true, "logprobs": 2}), more);
    let reply = server.post("/v1/completions", &body(json!({"n": 2, "seed": 1, "ignore_eos": true}))).ok();
    assert_eq!(
        (&reply["usage"]["prompt_tokens"], &reply["usage"]["completion_tokens"]),
        (&json!(3), &json!(8)),
        "{reply}"
    );
    for choice in reply["choices"].as_array().unwrap() {
        let logprobs = &choice["logprobs"];
        let of = |name: &str| logprobs[name].as_array().unwrap().clone();
        assert_eq!([of("tokens").len(), of("token_logprobs").len(), of("top_logprobs").len()], [7; 3], "{logprobs}");
        // The first token has no logprob, but is in the list.
        assert!(of("token_logprobs")[0].is_null() && of("top_logprobs")[0].is_null(), "{logprobs}");
        assert!(of("token_logprobs")[1..].iter().all(|p| p.as_f64().unwrap() <= 0.0));
        let tokens = of("tokens");
        let lengths = tokens.iter().map(|t| t.as_str().unwrap().chars().count());
        let offsets: Vec<usize> = lengths.scan(0, |at, length| Some(std::mem::replace(at, *at + length))).collect();
        assert_eq!(of("text_offset"), json!(offsets).as_array().unwrap().clone());
    }
    // `max_tokens` 0 with `echo` scores a text.
    let scored = server.post("/v1/completions", &body(json!({"max_tokens": 0}))).ok();
    assert_eq!(scored["choices"][0]["logprobs"]["tokens"].as_array().unwrap().len(), 3, "{scored}");
    assert_eq!(scored["usage"]["completion_tokens"], 0);
    assert_eq!(
        fault(&server.post("/v1/completions", &body(json!({"max_tokens": 0, "echo": false}))), 400)["param"],
        "max_tokens"
    );
}

#[test]
fn too_many_choices_per_request_are_refused() {
    let server = serve(vec![llama("m", PLAIN)], config());
    let body = |more: Value| with(json!({"prompt": ["the", "cat"], "max_tokens": 1}), more);
    assert_eq!(fault(&server.post("/v1/completions", &body(json!({"n": 65}))), 400)["param"], "n");
    let constrained = json!({"n": 20, "structured_outputs": {"regex": "a+"}});
    assert_eq!(fault(&server.post("/v1/completions", &body(constrained)), 400)["param"], "n");
    server.post("/v1/completions", &body(json!({"n": 3}))).ok();
}

#[test]
fn seq2seq_model_serves_completions() {
    let server = serve(vec![t5()], config());
    let body = |more: Value| with(json!({"prompt": "w5 w6", "max_tokens": 6}), more);
    let answer = server.post("/v1/completions", &body(json!({"prompt": ["w5 w6", "w9"]}))).ok();
    let text = answer["choices"][0]["text"].as_str().unwrap();
    assert_eq!((answer["usage"]["prompt_tokens"].as_u64(), answer["choices"].as_array().unwrap().len()), (Some(5), 2));
    let greedy = events(&server.post("/v1/completions", &body(json!({"stream": true, "temperature": 0}))));
    let joined: String = greedy.iter().map(|e| e["choices"][0]["text"].as_str().unwrap()).collect();
    assert_eq!(joined, text);
    // As token ids, including the end-of-sequence token.
    assert_eq!(server.post("/v1/completions", &body(json!({"prompt": [5, 6, 1]}))).ok()["choices"][0]["text"], text);
    assert_eq!(fault(&server.post("/v1/completions", &body(json!({"stop": "x"}))), 400)["param"], "stop");
    assert_eq!(fault(&server.post("/v1/completions", &body(json!({"echo": true}))), 400)["param"], "echo");
    let long = "w7 ".repeat(5000);
    assert_eq!(
        fault(&server.post("/v1/completions", &body(json!({"prompt": long}))), 400)["code"],
        "context_length_exceeded"
    );
    assert_eq!(fault(&server.post("/v1/chat/completions", &chat(json!({}))), 400)["param"], "model");
}

#[test]
fn invalid_chat_requests_name_the_field() {
    let server = serve(vec![llama("m", PLAIN)], config());
    let bad = [
        (json!({"temperature": -1}), "temperature"),
        (json!({"n": 200}), "n"),
        (json!({"stop": ["a", "b", "c", "d", "e"]}), "stop"),
        (json!({"messages": []}), "messages"),
        (json!({"messages": [{"content": "no role"}]}), "messages[0]"),
        (json!({"tool_choice": "required"}), "tool_choice"),
        (json!({"modalities": ["audio"]}), "modalities"),
        (json!({"logit_bias": {"9999999": 1}}), "logit_bias"),
        (json!({"tools": [{"type": "function", "function": {"name": "no name"}}]}), "tools[0].function.name"),
    ];
    for (more, param) in bad {
        let error = fault(&server.post("/v1/chat/completions", &chat(more.clone())), 400);
        assert_eq!((&error["param"], &error["type"]), (&json!(param), &json!("invalid_request_error")), "{more}");
    }
    for more in
        [json!({"max_tokens": 1_000_000}), json!({"messages": [{"role": "user", "content": "cat ".repeat(5000)}]})]
    {
        let error = fault(&server.post("/v1/chat/completions", &chat(more)), 400);
        assert_eq!(error["code"], "context_length_exceeded");
    }
    let reply = server.post(
        "/v1/chat/completions",
        &chat(json!({"no_such": 1, "tools": [{"type": "function",
        "function": {"name": "f", "strict": true}}]})),
    );
    reply.ok();
    assert_eq!(reply.header("x-sconce-ignored"), Some("no_such,tools[0].function.strict"));
}

/// Starts a long answer and reads its beginning.
fn long_answer(server: &Running) -> TcpStream {
    let body = chat(json!({"stream": true, "max_tokens": 1900, "ignore_eos": true})).to_string();
    let mut stream = server.connect();
    let head = [("content-type", "application/json")];
    stream.write_all(request("POST", "/v1/chat/completions", &head, &body).as_bytes()).unwrap();
    let mut some = [0; 64];
    stream.read_exact(&mut some).unwrap();
    assert!(some.starts_with(b"HTTP/1.1 200"));
    stream
}

#[test]
fn client_disconnect_frees_its_permit() {
    let server = serve(vec![llama("m", PLAIN)], Config { max_concurrent: 2, ..config() });
    let (leaving, staying) = (long_answer(&server), long_answer(&server));
    assert_eq!(server.app.free_permits(), 0);
    let error = fault(&server.post("/v1/chat/completions", &chat(json!({}))), 429);
    assert_eq!(error["code"], "rate_limit_exceeded");
    drop(leaving);
    let started_at = Instant::now();
    wait_until("one permit is free", || server.app.free_permits() == 1);
    assert!(started_at.elapsed() < Duration::from_secs(20), "{:?}", started_at.elapsed());
    server.post("/v1/chat/completions", &chat(json!({}))).ok();
    // A client that disconnects while it waits for a complete answer frees its permit too.
    drop(staying);
    wait_until("both permits are free", || server.app.free_permits() == 2);
    let body = chat(json!({"max_tokens": 1900, "ignore_eos": true})).to_string();
    let mut stream = server.connect();
    let head = [("content-type", "application/json")];
    stream.write_all(request("POST", "/v1/chat/completions", &head, &body).as_bytes()).unwrap();
    wait_until("the request is running", || server.app.free_permits() == 1);
    drop(stream);
    wait_until("its permit is free", || server.app.free_permits() == 2);
}

#[test]
fn slow_reader_does_not_block_other_requests() {
    let server = serve(vec![llama("m", PLAIN)], config());
    let free = server.app.free_permits();
    let mut slow = long_answer(&server);
    server.post("/v1/chat/completions", &chat(json!({}))).ok();
    // The answer is generated to the end although the client does not read.
    wait_until("the answer is complete", || server.app.free_permits() == free);
    let mut rest = String::new();
    slow.read_to_string(&mut rest).unwrap();
    assert!(rest.contains("\"finish_reason\":\"length\"") && rest.contains("data: [DONE]"));
}

#[test]
fn stream_over_request_timeout_ends_with_an_error() {
    // A fast machine finishes the answer within a long timeout: then a shorter one decides.
    let ends_with_timeout = |millis| {
        let request_timeout = Some(Duration::from_millis(millis));
        let server = serve(vec![llama("m", PLAIN)], Config { request_timeout, ..config() });
        let mut rest = String::new();
        long_answer(&server).read_to_string(&mut rest).unwrap();
        assert!(rest.contains("data: [DONE]"), "{rest}");
        match rest.split("data: ").find(|event| event.contains("\"error\"")) {
            Some(error) => assert!(error.contains("\"code\":\"timeout\""), "{error}"),
            None => assert!(rest.contains("\"finish_reason\":\"length\""), "{rest}"),
        }
        !rest.contains("\"finish_reason\":\"length\"")
    };
    assert!([300, 100, 30].into_iter().any(ends_with_timeout), "no answer was stopped");
}

#[test]
fn metrics_count_generated_choices_and_tokens() {
    let server = serve(vec![llama("m", PLAIN)], config());
    server.post("/v1/chat/completions", &chat(json!({"n": 2}))).ok();
    server
        .post("/v1/completions", &json!({"prompt": "a", "max_tokens": 3, "stop": ["e", "a", "o", " "], "seed": 1}))
        .ok();
    let metrics = server.get("/metrics").body;
    let value = |line: &str| {
        let found = metrics.lines().find(|l| l.starts_with(line)).unwrap_or_else(|| panic!("{line}: {metrics}"));
        found.rsplit(' ').next().unwrap().parse::<f64>().unwrap()
    };
    assert!(value("vllm:request_success_total{finished_reason=\"length\",model_name=\"m\"}") >= 2.0);
    assert_eq!(value("vllm:e2e_request_latency_seconds_count{model_name=\"m\"}"), 3.0);
    assert!(value("vllm:inter_token_latency_seconds_count{model_name=\"m\"}") >= 10.0);
    assert_eq!(value("te_request_success{method=\"v1/chat/completions\"}"), 1.0);
}
