//! Anthropic's messages, of tiny random models: what a request demands holds for any output.

use crate::common::{Reply, Running, config};
use crate::language::{PLAIN, TAGGED, llama, long_answer_with, serve, t5, with};
use crate::reasoning::{LONGEST_ENDING, OPENED};
use sconce_server::{Config, Dialect, Fault, FaultKind, Secret};
use serde_json::{Value, json};

fn message(more: Value) -> Value {
    with(json!({"messages": [{"role": "user", "content": "the cat"}], "max_tokens": 12, "temperature": 0}), more)
}

fn create(server: &Running, more: Value) -> Reply {
    server.post("/v1/messages", &message(more))
}

/// The events of a stream: each has a name, which is also its type.
pub(crate) fn named_events(reply: &Reply) -> Vec<Value> {
    assert_eq!((reply.status, reply.header("content-type")), (200, Some("text/event-stream")), "{reply:?}");
    let events = reply.body.split("\n\n").filter(|event| !event.is_empty() && !event.starts_with(':'));
    let each = events.map(|event| {
        let (name, data) = event.split_once('\n').unwrap_or_else(|| panic!("an event without a name: {event}"));
        let data: Value = serde_json::from_str(data.strip_prefix("data: ").unwrap()).unwrap();
        assert_eq!(name, format!("event: {}", data["type"].as_str().unwrap()));
        data
    });
    each.collect()
}

/// The error of a reply, which names its request.
fn error(reply: &Reply, status: u16, kind: &str) -> String {
    assert_eq!(reply.status, status, "{reply:?}");
    let body = reply.json();
    assert_eq!((&body["type"], &body["error"]["type"]), (&json!("error"), &json!(kind)), "{reply:?}");
    assert_eq!(body["request_id"].as_str(), reply.header("request-id"), "{reply:?}");
    assert_eq!(reply.header("request-id"), reply.header("x-request-id"));
    body["error"]["message"].as_str().unwrap().to_owned()
}

#[test]
fn streamed_message_equals_complete_message() {
    let server = serve(vec![llama("m", PLAIN)], config());
    let whole = create(&server, json!({"model": "m"})).ok();
    assert!(whole["id"].as_str().unwrap().starts_with("msg_"));
    assert_eq!(
        (&whole["type"], &whole["role"], &whole["model"]),
        (&json!("message"), &json!("assistant"), &json!("m"))
    );
    let chat = json!({"messages": [{"role": "user", "content": "the cat"}], "max_tokens": 12, "temperature": 0});
    let chat = server.post("/v1/chat/completions", &chat).ok();
    let expected = json!([{"type": "text", "text": chat["choices"][0]["message"]["content"]}]);
    assert_eq!((&whole["content"], &whole["stop_reason"]), (&expected, &json!("max_tokens")));
    assert_eq!((&whole["stop_sequence"], &whole["usage"]["output_tokens"]), (&Value::Null, &json!(12)));
    let read =
        |usage: &Value| usage["input_tokens"].as_u64().unwrap() + usage["cache_read_input_tokens"].as_u64().unwrap();
    assert_eq!(Some(read(&whole["usage"])), chat["usage"]["prompt_tokens"].as_u64());

    let events = named_events(&create(&server, json!({"stream": true})));
    let kinds: Vec<&str> = events.iter().map(|event| event["type"].as_str().unwrap()).collect();
    assert_eq!(kinds[..3], ["message_start", "ping", "content_block_start"]);
    assert_eq!(kinds[kinds.len() - 3..], ["content_block_stop", "message_delta", "message_stop"]);
    let start = &events[0]["message"];
    assert_eq!((&start["content"], &start["stop_reason"]), (&json!([]), &Value::Null));
    assert_eq!(read(&start["usage"]), read(&whole["usage"]));
    let text: String = events.iter().filter_map(|event| event["delta"]["text"].as_str()).collect();
    assert_eq!(whole["content"][0]["text"], text);
    let end = &events[events.len() - 2];
    assert_eq!((&end["delta"]["stop_reason"], &end["usage"]["output_tokens"]), (&json!("max_tokens"), &json!(12)));
}

#[test]
fn stop_sequences_are_named() {
    let server = serve(vec![llama("m", PLAIN)], config());
    let text = create(&server, json!({})).ok()["content"][0]["text"].as_str().unwrap().to_owned();
    let stop: String = text.chars().skip(2).take(2).collect();
    let stopped = create(&server, json!({"stop_sequences": ["never to be said", stop]})).ok();
    assert_eq!((&stopped["stop_reason"], &stopped["stop_sequence"]), (&json!("stop_sequence"), &json!(stop)));
    let said = stopped["content"][0]["text"].as_str().unwrap_or_default();
    assert!(text.starts_with(said) && !said.contains(&stop), "{text:?} {said:?}");
}

#[test]
fn demanded_tools_are_called_with_valid_arguments() {
    let server = serve(vec![llama("tagged", TAGGED), llama("plain", PLAIN)], config());
    let schema = json!({"type": "object", "properties": {"x": {"enum": ["a", "b"]}}, "required": ["x"],
        "additionalProperties": false});
    let tools = json!([{"name": "f", "description": "d", "input_schema": schema},
        {"name": "g", "input_schema": {"type": "object", "properties": {}, "additionalProperties": false}}]);
    let choices = [json!({"type": "any"}), json!({"type": "tool", "name": "f"})];
    for (model, choice) in
        ["tagged", "plain"].into_iter().flat_map(|model| choices.iter().map(move |choice| (model, choice)))
    {
        let choice = with(choice.clone(), json!({"disable_parallel_tool_use": true}));
        let more = json!({"model": model, "tools": tools, "tool_choice": choice, "temperature": 1, "seed": 4, "max_tokens": 900});
        let whole = create(&server, more.clone()).ok();
        assert_eq!(
            (&whole["stop_reason"], whole["content"].as_array().unwrap().len()),
            (&json!("tool_use"), 1),
            "{whole}"
        );
        let block = &whole["content"][0];
        let valid = match block["name"].as_str() {
            Some("f") => ["a", "b"].iter().any(|x| block["input"] == json!({"x": x})),
            _ => choice["type"] == "any" && block["name"] == "g" && block["input"] == json!({}),
        };
        assert!(block["type"] == "tool_use" && valid, "{whole}");
        assert!(block["id"].as_str().unwrap().starts_with("toolu_"), "{whole}");
        let events = named_events(&create(&server, with(more, json!({"stream": true}))));
        let start = events.iter().find(|event| event["type"] == "content_block_start").unwrap();
        assert_eq!((&start["content_block"]["name"], &start["content_block"]["input"]), (&block["name"], &json!({})));
        let input: String = events.iter().filter_map(|event| event["delta"]["partial_json"].as_str()).collect();
        assert_eq!(serde_json::from_str::<Value>(&input).unwrap(), block["input"]);
    }
}

#[test]
fn results_of_tools_and_thoughts_are_part_of_the_conversation() {
    let server = serve(vec![llama("m", PLAIN)], config());
    let tools = json!([{"name": "f", "input_schema": {"type": "object"}}]);
    let messages = |result: &str| {
        json!([
            {"role": "user", "content": "the cat"},
            {"role": "assistant", "content": [
                {"type": "thinking", "thinking": "a thought", "signature": "msg_1"},
                {"type": "tool_use", "id": "toolu_1", "name": "f", "input": {}},
            ]},
            {"role": "user", "content": [{"type": "tool_result", "tool_use_id": "toolu_1", "content": result}]},
        ])
    };
    let count = |result: &str| {
        let body = json!({"messages": messages(result), "tools": tools, "system": [{"type": "text", "text": "s"}]});
        server.post("/v1/messages/count_tokens", &body).ok()["input_tokens"].as_u64().unwrap()
    };
    assert!(count("one two three four") > count("one"));
    let more = json!({"messages": messages("one"), "tools": tools, "system": "s", "tool_choice": {"type": "none"}});
    let reply = create(&server, more).ok();
    assert!(reply["usage"]["output_tokens"].as_u64() > Some(0));
}

#[test]
fn counted_tokens_are_those_of_the_message() {
    let server = serve(vec![llama("m", PLAIN)], config());
    let usage = &create(&server, json!({})).ok()["usage"];
    let read = usage["input_tokens"].as_u64().unwrap() + usage["cache_read_input_tokens"].as_u64().unwrap();
    let body = json!({"messages": [{"role": "user", "content": "the cat"}]});
    assert_eq!(server.post("/v1/messages/count_tokens", &body).ok(), json!({"input_tokens": read}));
    // A longer prompt with the same beginning reads it from the prefix cache.
    let long = json!({"messages": [{"role": "user", "content": "the cat ".repeat(60)}], "max_tokens": 1});
    server.post("/v1/messages", &long).ok();
    assert!(server.post("/v1/messages", &long).ok()["usage"]["cache_read_input_tokens"].as_u64() > Some(0));
}

#[test]
fn answers_end_with_the_context() {
    let server = serve(vec![llama("m", PLAIN)], config());
    let whole = create(&server, json!({"max_tokens": 1_000_000})).ok();
    if whole["stop_reason"] != "end_turn" {
        assert_eq!(whole["stop_reason"], "model_context_window_exceeded", "{whole}");
    }
    let long = json!({"messages": [{"role": "user", "content": "cat ".repeat(5000)}]});
    let message = error(&create(&server, long), 400, "invalid_request_error");
    assert!(message.starts_with("prompt is too long"), "{message}");
}

#[test]
fn errors_have_anthropics_shape_and_name_the_field() {
    let server = serve(vec![llama("m", PLAIN), t5()], Config { payload_limit: 100_000, ..config() });
    let bad = [
        (json!({"temperature": -1}), "temperature: "),
        (json!({"max_tokens": 0}), "max_tokens: "),
        (json!({"stop_sequences": ["a", "b", "c", "d", "e"]}), "stop_sequences: "),
        (json!({"messages": []}), "messages: "),
        (json!({"messages": [{"role": "user", "content": [{"type": "image"}]}]}), "messages[0].content[0]: "),
        (json!({"messages": [{"role": "critic", "content": "a"}]}), "messages[0].role: "),
        (
            json!({"messages": [{"role": "user", "content": [{"type": "text", "text": 5}]}]}),
            "messages[0].content[0].text: ",
        ),
        (json!({"tool_choice": {"type": "any"}}), "tool_choice: "),
        (json!({"tools": [{"name": "a b", "input_schema": {}}]}), "tools[0].name: "),
        (json!({"tools": [{"type": "web_search_20250305", "name": "s", "input_schema": {}}]}), "tools[0].type: "),
        (json!({"thinking": {"type": "enabled", "budget_tokens": 12}}), "thinking.budget_tokens: "),
        (json!({"model": "t5"}), "model: "),
    ];
    for (more, start) in bad {
        let message = error(&create(&server, more.clone()), 400, "invalid_request_error");
        assert!(message.starts_with(start), "{more}: {message}");
    }
    error(&create(&server, json!({"model": "claude"})), 404, "not_found_error");
    error(&server.post("/v1/messages/nothing", &json!({})), 404, "not_found_error");
    error(&server.get("/v1/messages"), 405, "invalid_request_error");
    let large = json!({"messages": [{"role": "user", "content": "x".repeat(200_000)}]});
    error(&create(&server, large), 413, "request_too_large");
    let reply = create(
        &server,
        json!({"no_such": 1, "metadata": {"user_id": "u"}, "messages":
        [{"role": "user", "content": [{"type": "text", "text": "a", "colour": 1, "cache_control": {"type": "ephemeral"}}]}]}),
    );
    reply.ok();
    assert_eq!(reply.header("x-sconce-ignored"), Some("messages.0.content.0.colour,no_such"));
}

#[test]
fn keys_and_limits_have_anthropics_statuses() {
    let api_keys = vec![Secret::new("s3cret").unwrap()];
    let server = serve(vec![llama("m", PLAIN)], Config { api_keys, max_concurrent: 1, ..config() });
    error(&create(&server, json!({})), 401, "authentication_error");
    let body = message(json!({})).to_string();
    let version = ("anthropic-version", "2023-06-01");
    let send = |key: &str| {
        let head = [("content-type", "application/json"), ("x-api-key", key), version];
        server.send("POST", "/v1/messages?beta=true", &head, &body)
    };
    error(&send("wrong"), 401, "authentication_error");
    send("s3cret").ok();
    let _running = long_answer_with(&server, &[("x-api-key", "s3cret")]);
    error(&send("s3cret"), 429, "rate_limit_error");
    for kind in [FaultKind::Loading, FaultKind::Unhealthy, FaultKind::Memory] {
        let response = Fault::new(kind, "later").response(Dialect::Anthropic);
        assert_eq!((response.status().as_u16(), response.headers().contains_key("retry-after")), (529, true));
    }
}

#[test]
fn thoughts_are_blocks_with_a_budget() {
    let server = serve(vec![llama("opened", OPENED)], config());
    let mut thoughts = 0;
    for i in 0..8 {
        let messages = json!([{"role": "user", "content": format!("the cat {i}")}]);
        let thinking = json!({"type": "enabled", "budget_tokens": 6});
        let more = json!({"messages": messages, "thinking": thinking, "max_tokens": 40});
        let whole = create(&server, more.clone()).ok();
        let Some(block) = whole["content"].as_array().unwrap().iter().find(|block| block["type"] == "thinking") else {
            continue;
        };
        thoughts += 1;
        assert_eq!((block, &block["signature"]), (&whole["content"][0], &whole["id"]), "{whole}");
        let tokens = whole["usage"]["output_tokens_details"]["thinking_tokens"].as_u64().unwrap();
        assert!((1..20).contains(&tokens), "{whole}");
        let events = named_events(&create(&server, with(more.clone(), json!({"stream": true}))));
        let joined =
            |field: &str| -> String { events.iter().filter_map(|event| event["delta"][field].as_str()).collect() };
        assert_eq!(block["thinking"], joined("thinking"));
        assert!(joined("signature").starts_with("msg_"));
        // A thought can be left out of the answer, but not out of its tokens.
        let omitted = json!({"type": "enabled", "budget_tokens": 6, "display": "omitted"});
        let omitted = create(&server, with(more, json!({"thinking": omitted}))).ok();
        assert_eq!(
            (&omitted["content"][0]["thinking"], &omitted["usage"]["output_tokens"]),
            (&json!(""), &whole["usage"]["output_tokens"])
        );
        // The model's template reads earlier thoughts.
        let count = |content: Value| {
            let messages =
                json!([messages[0], {"role": "assistant", "content": content}, {"role": "user", "content": "a"}]);
            server.post("/v1/messages/count_tokens", &json!({"messages": messages})).ok()["input_tokens"].as_u64()
        };
        assert!(count(json!([block, {"type": "text", "text": "b"}])) > count(json!("b")));
        let disabled = json!({"messages": messages, "thinking": {"type": "disabled"}});
        let disabled = create(&server, disabled).ok();
        // The template opens a thought in any case, so it is ended at once.
        let ending = disabled["usage"]["output_tokens_details"]["thinking_tokens"].as_u64().unwrap();
        assert!(ending < LONGEST_ENDING, "{disabled}");
        assert!(disabled["content"].as_array().unwrap().iter().all(|block| block["type"] == "text"), "{disabled}");
    }
    assert!(thoughts > 0, "no answer had a thought");
}
