//! OpenAI's responses, of tiny random models: what a request demands holds for any output.

use crate::anthropic::named_events;
use crate::common::{Reply, Running, config};
use crate::language::{PLAIN, TAGGED, llama, serve, t5, with};
use crate::reasoning::OPENED;
use sconce_server::{Config, Secret};
use serde_json::{Map, Value, json};

fn request(more: Value) -> Value {
    with(json!({"input": "the cat", "max_output_tokens": 12, "temperature": 0}), more)
}

fn create(server: &Running, more: Value) -> Reply {
    server.post("/v1/responses", &request(more))
}

fn fault(reply: &Reply, status: u16) -> Map<String, Value> {
    assert_eq!(reply.status, status, "{reply:?}");
    reply.json()["error"].as_object().unwrap_or_else(|| panic!("{reply:?}")).clone()
}

fn text(response: &Value) -> String {
    let messages = response["output"].as_array().unwrap().iter().filter(|item| item["type"] == "message");
    messages.map(|message| message["content"][0]["text"].as_str().unwrap()).collect()
}

fn id(response: &Value) -> String {
    response["id"].as_str().unwrap().to_owned()
}

#[test]
fn streamed_response_equals_complete_response() {
    let server = serve(vec![llama("m", PLAIN)], config());
    let whole = create(&server, json!({"model": "m", "metadata": {"a": "b"}})).ok();
    assert!(id(&whole).starts_with("resp_"));
    assert_eq!((&whole["object"], &whole["model"]), (&json!("response"), &json!("m")));
    assert_eq!((&whole["status"], &whole["metadata"]), (&json!("incomplete"), &json!({"a": "b"})));
    assert_eq!(whole["incomplete_details"], json!({"reason": "max_output_tokens"}));
    let chat = json!({"messages": [{"role": "user", "content": "the cat"}], "max_tokens": 12, "temperature": 0});
    let chat = server.post("/v1/chat/completions", &chat).ok();
    assert_eq!(chat["choices"][0]["message"]["content"], text(&whole));
    let usage = &whole["usage"];
    assert_eq!((&usage["input_tokens"], &usage["output_tokens"]), (&chat["usage"]["prompt_tokens"], &json!(12)));
    assert_eq!(usage["total_tokens"], chat["usage"]["total_tokens"]);

    let events = named_events(&create(&server, json!({"stream": true})));
    for (i, event) in events.iter().enumerate() {
        assert_eq!(event["sequence_number"], json!(i));
    }
    let (last, rest) = events.split_last().unwrap();
    assert_eq!(last["type"], "response.incomplete");
    assert_eq!(text(&last["response"]), text(&whole));
    let deltas: String = rest.iter().filter_map(|event| event["delta"].as_str()).collect();
    assert_eq!(deltas, text(&whole));
    assert_eq!(
        (&events[0]["type"], &events[0]["response"]["status"]),
        (&json!("response.created"), &json!("in_progress"))
    );
    // The response is stored when its last event arrives.
    assert_eq!(server.get(&format!("/v1/responses/{}", id(&last["response"]))).ok(), last["response"]);
}

#[test]
fn a_conversation_goes_on_from_a_stored_response() {
    let server = serve(vec![llama("m", PLAIN)], config());
    let first = create(&server, json!({"instructions": "be brief"})).ok();
    let more = json!({"input": "a dog", "previous_response_id": id(&first), "instructions": "be long"});
    let second = create(&server, more).ok();
    // The same conversation, sent as a whole. Instructions are not carried over.
    let items = json!([{"role": "user", "content": "the cat"}, {"role": "assistant", "content": text(&first)},
        {"role": "user", "content": "a dog"}]);
    let whole = create(&server, json!({"input": items, "instructions": "be long", "store": false})).ok();
    assert_eq!(text(&second), text(&whole));
    assert_eq!(second["usage"]["input_tokens"], whole["usage"]["input_tokens"]);
    assert_eq!(second["previous_response_id"], id(&first));
    let third = json!({"input": "a bird", "previous_response_id": id(&second)});
    let count = server.post("/v1/responses/input_tokens", &third).ok();
    assert_eq!(count["object"], "response.input_tokens");
    assert_eq!(create(&server, third).ok()["usage"]["input_tokens"], count["input_tokens"]);

    let listed = server.get(&format!("/v1/responses/{}/input_items", id(&second))).ok();
    assert_eq!(listed["data"][0]["content"], json!([{"type": "input_text", "text": "a dog"}]));
    assert_eq!((&listed["object"], &listed["has_more"]), (&json!("list"), &json!(false)));
    let path = format!("/v1/responses/{}", id(&first));
    let deleted = server.send("DELETE", &path, &[], "").ok();
    assert_eq!(deleted, json!({"id": id(&first), "object": "response", "deleted": true}));
    assert_eq!(fault(&server.get(&path), 404)["type"], "not_found_error");
    assert_eq!(fault(&server.send("DELETE", &path, &[], ""), 404)["type"], "not_found_error");
    let orphan = fault(&create(&server, json!({"previous_response_id": id(&second)})), 400);
    assert_eq!(orphan["code"], "previous_response_not_found");
    assert_eq!(fault(&server.get(&format!("/v1/responses/{}", id(&whole))), 404)["param"], "response_id", "not stored");
}

#[test]
fn input_items_have_pages() {
    let server = serve(vec![llama("m", PLAIN)], config());
    let items: Vec<Value> = (0..5).map(|i| json!({"role": "user", "content": format!("text {i}")})).collect();
    let response = create(&server, json!({"input": items})).ok();
    let page = |query: &str| server.get(&format!("/v1/responses/{}/input_items?{query}", id(&response))).ok();
    let texts = |list: &Value| -> Vec<String> {
        let data = list["data"].as_array().unwrap();
        data.iter().map(|item| item["content"][0]["text"].as_str().unwrap().to_owned()).collect()
    };
    let first = page("limit=2&order=asc");
    assert_eq!((texts(&first), &first["has_more"]), (vec!["text 0".into(), "text 1".into()], &json!(true)));
    let next = page(&format!("limit=9&order=asc&after={}", first["last_id"].as_str().unwrap()));
    assert_eq!(texts(&next), ["text 2", "text 3", "text 4"]);
    assert_eq!(texts(&page(""))[0], "text 4");
    let wrong = server.get(&format!("/v1/responses/{}/input_items?limit=101", id(&response)));
    assert_eq!(fault(&wrong, 400)["param"], "limit");
}

#[test]
fn responses_belong_to_their_key_and_survive_a_restart() {
    let dir = tempfile::tempdir().unwrap();
    let start = |data_dir: Option<&std::path::Path>| {
        let api_keys = ["one", "two"].map(|key| Secret::new(key).unwrap()).to_vec();
        serve(vec![llama("m", PLAIN)], Config { api_keys, data_dir: data_dir.map(Into::into), ..config() })
    };
    let send = |server: &Running, key: &str, method: &str, path: &str, body: &str| {
        let bearer = format!("Bearer {key}");
        server.send(method, path, &[("content-type", "application/json"), ("authorization", &bearer)], body)
    };
    let check = |server: &Running, path: &str, continued: &str| {
        for (method, path) in
            [("GET", path.to_owned()), ("DELETE", path.to_owned()), ("GET", format!("{path}/input_items"))]
        {
            fault(&send(server, "two", method, &path, ""), 404);
        }
        let refused = fault(&send(server, "two", "POST", "/v1/responses", continued), 400);
        assert_eq!(refused["code"], "previous_response_not_found");
        send(server, "one", "GET", path, "").ok();
        send(server, "one", "POST", "/v1/responses", continued).ok();
    };
    for data_dir in [None, Some(dir.path())] {
        let server = start(data_dir);
        let response = send(&server, "one", "POST", "/v1/responses", &request(json!({})).to_string()).ok();
        let path = format!("/v1/responses/{}", id(&response));
        let continued = request(json!({"previous_response_id": id(&response), "store": false})).to_string();
        check(&server, &path, &continued);
        drop(server);
        let server = start(data_dir);
        match data_dir {
            None => drop(fault(&send(&server, "one", "GET", &path, ""), 404)),
            Some(_) => check(&server, &path, &continued),
        }
    }
    for file in std::fs::read_dir(dir.path().join("responses")).unwrap() {
        let text = std::fs::read_to_string(file.unwrap().path()).unwrap();
        assert!(!text.contains("\"one\"") && !text.contains("\"two\""), "keys are stored as hashes only");
    }
}

#[test]
fn demanded_functions_are_called_with_valid_arguments() {
    let server = serve(vec![llama("tagged", TAGGED), llama("plain", PLAIN)], config());
    let schema = json!({"type": "object", "properties": {"x": {"enum": ["a", "b"]}}, "required": ["x"],
        "additionalProperties": false});
    let tools = json!([{"type": "function", "name": "f", "parameters": schema, "strict": true}]);
    for model in ["tagged", "plain"] {
        let more = json!({"model": model, "tools": tools, "tool_choice": "required", "parallel_tool_calls": false,
            "temperature": 1, "seed": 4, "max_output_tokens": 900});
        let whole = create(&server, more.clone()).ok();
        assert_eq!((&whole["status"], &whole["tools"][0]["name"]), (&json!("completed"), &json!("f")), "{whole}");
        let call = &whole["output"][0];
        assert_eq!((&call["type"], &call["name"]), (&json!("function_call"), &json!("f")), "{whole}");
        let arguments: Value = serde_json::from_str(call["arguments"].as_str().unwrap()).unwrap();
        assert!(["a", "b"].iter().any(|x| arguments == json!({"x": x})), "{whole}");
        // The result goes back with the call, or with the id of the response alone.
        let result = json!({"type": "function_call_output", "call_id": call["call_id"], "output": "sunny"});
        let items = json!([{"role": "user", "content": "the cat"}, call, result]);
        let base = json!({"model": model, "tools": tools, "tool_choice": "none"});
        let stateless = create(&server, with(base.clone(), json!({"input": items}))).ok();
        let stateful = json!({"input": [result], "previous_response_id": id(&whole)});
        let stateful = create(&server, with(base, stateful)).ok();
        assert_eq!(stateful["usage"]["input_tokens"], stateless["usage"]["input_tokens"]);

        let events = named_events(&create(&server, with(more, json!({"stream": true, "store": false}))));
        let last = events.last().unwrap();
        assert_eq!(last["type"], "response.completed");
        let arguments: String = events
            .iter()
            .filter(|event| event["type"] == "response.function_call_arguments.delta")
            .map(|event| event["delta"].as_str().unwrap())
            .collect();
        assert_eq!(last["response"]["output"][0]["arguments"], arguments);
        assert!(serde_json::from_str::<Value>(&arguments).is_ok());
    }
}

#[test]
fn texts_satisfy_a_schema() {
    let server = serve(vec![llama("m", PLAIN)], config());
    let format = json!({"type": "json_schema", "name": "n", "schema": {"enum": ["yes", "no"]}});
    let response =
        create(&server, json!({"text": {"format": format}, "temperature": 1, "seed": 4, "max_output_tokens": 200}))
            .ok();
    assert!(["\"yes\"", "\"no\""].contains(&text(&response).trim()), "{response}");
    assert_eq!(response["text"]["format"]["name"], "n");
    let more = json!({"include": ["message.output_text.logprobs"], "top_logprobs": 2});
    let logprobs = create(&server, more).ok()["output"][0]["content"][0]["logprobs"].clone();
    assert_eq!((logprobs.as_array().unwrap().len(), logprobs[0]["top_logprobs"].as_array().unwrap().len()), (12, 2));
}

#[test]
fn long_conversations_are_truncated_on_request() {
    let server = serve(vec![llama("m", PLAIN)], config());
    let items: Vec<Value> = (0..40).map(|_| json!({"role": "user", "content": "cat ".repeat(200)})).collect();
    let refused = fault(&create(&server, json!({"input": items})), 400);
    assert_eq!((&refused["code"], &refused["param"]), (&json!("context_length_exceeded"), &Value::Null));
    let truncated = create(&server, json!({"input": items, "truncation": "auto"})).ok();
    assert!(truncated["usage"]["input_tokens"].as_u64().unwrap() > 100, "{truncated}");
    let one = json!({"input": "cat ".repeat(5000), "truncation": "auto"});
    assert_eq!(fault(&create(&server, one), 400)["code"], "context_length_exceeded");
}

#[test]
fn invalid_requests_name_the_field() {
    let server = serve(vec![llama("m", PLAIN), t5()], config());
    let bad = [
        (json!({"background": true}), "background"),
        (json!({"tools": [{"type": "web_search"}]}), "tools[0].type"),
        (json!({"tools": [{"type": "function", "name": "a b"}]}), "tools[0].name"),
        (json!({"tool_choice": "required"}), "tool_choice"),
        (json!({"max_output_tokens": 0}), "max_output_tokens"),
        (json!({"temperature": -1}), "temperature"),
        (json!({"input": []}), "input"),
        (
            json!({"input": [{"role": "user", "content": [{"type": "input_image", "image_url": "data:,"}]}]}),
            "input[0].content[0].type",
        ),
        (json!({"input": [{"role": "critic", "content": "a"}]}), "input[0].role"),
        (json!({"input": [{"type": "function_call_output", "call_id": "1", "output": "a"}]}), "input[0].call_id"),
        (json!({"previous_response_id": "resp_../../etc"}), "previous_response_id"),
        (json!({"model": "t5"}), "model"),
    ];
    for (more, param) in bad {
        let error = fault(&create(&server, more.clone()), 400);
        assert_eq!((&error["param"], &error["type"]), (&json!(param), &json!("invalid_request_error")), "{more}");
    }
    assert_eq!(fault(&create(&server, json!({"model": "gpt-9"})), 404)["code"], "model_not_found");
    let reply = create(&server, json!({"no_such": 1, "text": {"verbosity": "low"}}));
    reply.ok();
    assert_eq!(reply.header("x-sconce-ignored"), Some("no_such,text.verbosity"));
    let response = create(&server, json!({})).ok();
    let streamed = server.get(&format!("/v1/responses/{}?stream=true", id(&response)));
    assert_eq!(fault(&streamed, 400)["param"], "stream");
}

#[test]
fn thoughts_are_items() {
    let server = serve(vec![llama("opened", OPENED)], config());
    let mut thoughts = 0;
    for i in 0..8 {
        let more = json!({"input": format!("the cat {i}"), "reasoning": {"effort": "low"}, "max_output_tokens": 40});
        let whole = create(&server, more.clone()).ok();
        let item = &whole["output"][0];
        if item["type"] != "reasoning" {
            continue;
        }
        thoughts += 1;
        let thought = item["content"][0]["text"].as_str().unwrap();
        assert_eq!((&item["content"][0]["type"], &item["summary"]), (&json!("reasoning_text"), &json!([])), "{whole}");
        assert!(whole["usage"]["output_tokens_details"]["reasoning_tokens"].as_u64() > Some(0), "{whole}");
        let joined = |events: &[Value], kind: &str| -> String {
            let deltas = events.iter().filter(|event| event["type"] == kind);
            deltas.map(|event| event["delta"].as_str().unwrap()).collect()
        };
        let events = named_events(&create(&server, with(more.clone(), json!({"stream": true}))));
        assert_eq!(joined(&events, "response.reasoning_text.delta"), thought);
        assert_eq!(joined(&events, "response.output_text.delta"), text(&whole));
        let summary = json!({"reasoning": {"effort": "low", "summary": "auto"}, "stream": true});
        let events = named_events(&create(&server, with(more, summary)));
        assert_eq!(joined(&events, "response.reasoning_summary_text.delta"), thought);
        let output = &events.last().unwrap()["response"]["output"];
        assert_eq!(output[0]["summary"], json!([{"type": "summary_text", "text": thought}]));
        // A thought is part of the conversation, sent back or stored.
        let items = [json!({"role": "user", "content": format!("the cat {i}")})];
        let items: Vec<Value> = items
            .iter()
            .chain(whole["output"].as_array().unwrap())
            .chain([&json!({"role": "user", "content": "a"})])
            .cloned()
            .collect();
        let count = |body: Value| server.post("/v1/responses/input_tokens", &body).ok()["input_tokens"].clone();
        let stored = json!({"input": "a", "previous_response_id": id(&whole)});
        assert_eq!(count(json!({"input": items})), count(stored));
    }
    assert!(thoughts > 0, "no answer had a thought");
}
