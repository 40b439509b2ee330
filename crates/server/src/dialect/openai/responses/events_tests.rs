use super::super::request::new_response;
use super::*;
use sconce_api::openai::responses::request::ResponseRequest;
use serde_json::{Value, json};

const PLAIN: Options = Options { has_summaries: false, has_logprobs: false };

fn text(text: &str) -> AnswerPart {
    AnswerPart::Text(text.into())
}

fn thought(text: &str) -> AnswerPart {
    AnswerPart::Reasoning(text.into())
}

fn started(options: Options) -> (ResponseEvents, Vec<ResponseStreamEvent>) {
    let response = new_response(ResponseRequest::default(), "resp_1".into(), 1, "m".into());
    let mut builder = ResponseEvents::new(response, options);
    let events = builder.start();
    (builder, events)
}

/// The events of these parts, and the response.
fn events(parts: Vec<AnswerPart>, finish: &ChatFinish, options: Options) -> (Vec<Value>, Value) {
    let (mut builder, mut all) = started(options);
    let mut calls = 0;
    for part in parts {
        all.extend(builder.part(part, Vec::new(), || {
            calls += 1;
            format!("call_{calls}")
        }));
    }
    let usage = ResponseUsage { output_tokens: 7, ..ResponseUsage::default() };
    all.extend(builder.end(finish, usage, 2));
    all.push(builder.last());
    let json: Vec<Value> = all.iter().map(|event| json!(event)).collect();
    for (i, (event, json)) in all.iter().zip(&json).enumerate() {
        assert_eq!((&json["sequence_number"], &json["type"]), (&json!(i), &json!(event.event.name())));
    }
    (json, json!(builder.into_response()))
}

fn names(events: &[Value]) -> Vec<&str> {
    events.iter().map(|event| event["type"].as_str().unwrap().trim_start_matches("response.")).collect()
}

#[test]
fn a_text_is_a_message_of_one_part() {
    let (events, response) = events(vec![text("a"), text(""), text("b")], &ChatFinish::End, PLAIN);
    let expected = [
        "created",
        "in_progress",
        "output_item.added",
        "content_part.added",
        "output_text.delta",
        "output_text.delta",
        "output_text.done",
        "content_part.done",
        "output_item.done",
        "completed",
    ];
    assert_eq!(names(&events), expected);
    assert_eq!(events[2]["item"]["content"], json!([]));
    assert_eq!((&events[6]["text"], &events[7]["part"]["text"]), (&json!("ab"), &json!("ab")));
    assert_eq!(events[8]["item"], response["output"][0]);
    assert_eq!(events[9]["response"], response);
    assert_eq!((&response["status"], &response["completed_at"]), (&json!("completed"), &json!(2)));
    assert_eq!(response["output"][0]["content"][0]["text"], "ab");
    assert!(events[4..8].iter().all(|event| event["item_id"] == response["output"][0]["id"]));
}

#[test]
fn thoughts_texts_and_calls_are_items_in_their_order() {
    let call = |index, name: &str| AnswerPart::Call { index, name: name.into() };
    let arguments = |index, text: &str| AnswerPart::Arguments { index, text: text.into() };
    let parts = vec![
        thought("th"),
        thought("ink"),
        text("text"),
        call(0, "f"),
        arguments(0, "{\"x\":"),
        arguments(0, " 1}"),
        call(1, "g"),
        arguments(1, "{}"),
    ];
    let (events, response) = events(parts, &ChatFinish::ToolCalls, PLAIN);
    let output = response["output"].as_array().unwrap();
    assert_eq!(
        output.iter().map(|item| item["type"].as_str().unwrap()).collect::<Vec<_>>(),
        ["reasoning", "message", "function_call", "function_call"]
    );
    assert_eq!(output[0]["content"], json!([{"type": "reasoning_text", "text": "think"}]));
    assert_eq!(output[0]["summary"], json!([]));
    assert_eq!((&output[2]["name"], &output[2]["arguments"]), (&json!("f"), &json!("{\"x\": 1}")));
    assert_eq!((&output[3]["call_id"], &output[3]["arguments"]), (&json!("call_2"), &json!("{}")));
    assert!(output.iter().all(|item| item["status"] == "completed"));
    let reasoning = [
        "output_item.added",
        "content_part.added",
        "reasoning_text.delta",
        "reasoning_text.delta",
        "reasoning_text.done",
        "content_part.done",
        "output_item.done",
    ];
    assert_eq!(names(&events)[2..9], reasoning);
    let last_call =
        ["output_item.added", "function_call_arguments.delta", "function_call_arguments.done", "output_item.done"];
    let all = names(&events);
    assert_eq!(all[all.len() - 5..all.len() - 1], last_call);
    let indices = events.iter().filter(|event| event["type"] == "response.output_item.done");
    assert_eq!(indices.map(|event| event["output_index"].as_u64().unwrap()).collect::<Vec<_>>(), [0, 1, 2, 3]);
}

#[test]
fn thoughts_are_summaries_on_request() {
    let options = Options { has_summaries: true, ..PLAIN };
    let (events, response) = events(vec![thought("a"), thought("b"), text("c")], &ChatFinish::End, options);
    let reasoning = [
        "output_item.added",
        "reasoning_summary_part.added",
        "reasoning_summary_text.delta",
        "reasoning_summary_text.delta",
        "reasoning_summary_text.done",
        "reasoning_summary_part.done",
        "output_item.done",
    ];
    assert_eq!(names(&events)[2..9], reasoning);
    assert_eq!(events[3]["part"], json!({"type": "summary_text", "text": ""}));
    let item = &response["output"][0];
    assert_eq!((&item["summary"], &item["content"]), (&json!([{"type": "summary_text", "text": "ab"}]), &json!([])));
}

#[test]
fn an_answer_that_reaches_the_limit_is_incomplete() {
    let (events, response) = events(vec![text("a")], &ChatFinish::Length, PLAIN);
    assert_eq!(names(&events).last(), Some(&"incomplete"));
    assert_eq!(response["incomplete_details"], json!({"reason": "max_output_tokens"}));
    assert_eq!((&response["output"][0]["status"], &response["completed_at"]), (&json!("incomplete"), &Value::Null));
}

#[test]
fn a_failure_ends_the_open_item() {
    let (mut builder, _) = started(PLAIN);
    builder.part(text("a"), Vec::new(), String::new);
    let events = builder.fail(&Fault::new(FaultKind::Timeout, "too slow"), ResponseUsage::default());
    let events: Vec<Value> = events.iter().map(|event| json!(event)).collect();
    assert_eq!(names(&events), ["output_text.done", "content_part.done", "output_item.done", "failed"]);
    let response = &events[3]["response"];
    assert_eq!(response["error"], json!({"code": "server_error", "message": "too slow"}));
    assert_eq!((&response["status"], &response["output"][0]["status"]), (&json!("failed"), &json!("incomplete")));
}

#[test]
fn logprobs_wait_for_their_text() {
    let logprob =
        |token: &str| TokenLogprob { token: token.into(), logprob: -1.0, bytes: None, top_logprobs: Vec::new() };
    for (has_logprobs, count) in [(true, 2), (false, 0)] {
        let (mut builder, _) = started(Options { has_logprobs, ..PLAIN });
        assert!(builder.part(text(""), vec![logprob("a")], String::new).is_empty());
        let events = builder.part(text("ab"), vec![logprob("b")], String::new);
        let delta = json!(events.last());
        assert_eq!(delta["logprobs"].as_array().unwrap().len(), count);
        let response = json!(builder.into_response());
        assert_eq!(response["output"][0]["content"][0]["logprobs"].as_array().unwrap().len(), count);
    }
}
