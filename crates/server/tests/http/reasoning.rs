//! Models that reason: thoughts of tiny random models are separated, limited and counted, and the
//! request's constraints hold after them.

use crate::common::config;
use crate::language::{chat, events, llama, serve, with};
use serde_json::{Value, json};

/// A template that opens the thought.
pub(crate) const OPENED: &str = "{% for m in messages %}{{ m.reasoning_content }}{{ m.content }}{% endfor %}<think>\n";
/// A template with a switch.
const SWITCH: &str = "{% for m in messages %}{{ m.content }}{% endfor %}\
    {% if enable_thinking is defined and enable_thinking is false %}<think>\n\n</think>\n\n{% else %}<think>\n{% endif %}";
const PLAIN: &str = "{% for m in messages %}{{ m.content }}{% endfor %}";
/// More than the tokens of `</think>`.
pub(crate) const LONGEST_ENDING: u64 = 12;
/// The tokens of the vocabulary that have a marker, or the end of one: a random model would write them
/// anywhere.
const MARKERS: [u32; 9] = [326, 362, 391, 392, 408, 426, 432, 435, 437];

/// A bias against the markers; those that end a thought by force are written all the same.
fn without_markers() -> Value {
    MARKERS.iter().map(|id| (id.to_string(), json!(-100))).collect::<serde_json::Map<_, _>>().into()
}

fn reasoning_tokens(answer: &Value) -> u64 {
    answer["usage"]["completion_tokens_details"]["reasoning_tokens"].as_u64().unwrap_or(0)
}

#[test]
fn budget_ends_the_thought() {
    let server = serve(vec![llama("opened", OPENED)], config());
    let mut thoughts = 0;
    for seed in 0..8 {
        let body = json!({"max_tokens": 40, "seed": seed, "ignore_eos": true, "reasoning_budget": 6});
        let body = chat(with(body, json!({"logit_bias": without_markers()})));
        let whole = server.post("/v1/chat/completions", &body).ok();
        let (choice, tokens) = (&whole["choices"][0], reasoning_tokens(&whole));
        assert!((7..6 + LONGEST_ENDING).contains(&tokens), "{whole}");
        assert_eq!((&choice["finish_reason"], &whole["usage"]["completion_tokens"]), (&json!("length"), &json!(40)));
        let text = choice["message"]["content"].as_str().unwrap();
        assert!(!text.contains("think>"), "{whole}");
        // The stream has the same thought and text.
        let more = json!({"stream": true, "stream_options": {"include_usage": true}});
        let streamed = events(&server.post("/v1/chat/completions", &with(body, more)));
        let joined = |field: &str| -> String {
            let deltas = streamed.iter().filter_map(|event| event["choices"][0]["delta"][field].as_str());
            deltas.collect()
        };
        let thought = choice["message"]["reasoning_content"].as_str().unwrap_or_default();
        assert_eq!((joined("reasoning_content").as_str(), joined("content").as_str()), (thought, text), "{seed}");
        assert_eq!(reasoning_tokens(streamed.last().unwrap()), tokens);
        thoughts += usize::from(!thought.is_empty());
    }
    assert!(thoughts >= 6, "{thoughts} of 8");
    // Without a budget all tokens are thoughts.
    let endless = json!({"max_tokens": 20, "ignore_eos": true, "logit_bias": without_markers()});
    let endless = server.post("/v1/chat/completions", &chat(endless)).ok();
    assert_eq!((reasoning_tokens(&endless), &endless["choices"][0]["message"]["content"]), (20, &json!("")));
}

#[test]
fn effort_none_switches_thinking_off() {
    let server = serve(vec![llama("switch", SWITCH), llama("opened", OPENED), llama("plain", PLAIN)], config());
    let post = |more| server.post("/v1/chat/completions", &with(chat(json!({"ignore_eos": true})), more));
    for none in [json!({"reasoning_effort": "none"}), json!({"reasoning_budget": 0, "reasoning_effort": "high"})] {
        let switched = post(with(json!({"model": "switch"}), none.clone())).ok();
        assert_eq!(switched["usage"]["completion_tokens_details"], Value::Null, "{switched}");
        assert_eq!(switched["choices"][0]["message"]["reasoning_content"], Value::Null);
        assert!(!switched["choices"][0]["message"]["content"].as_str().unwrap().is_empty());
        // Without a switch the thought is ended at once.
        let opened = post(with(json!({"model": "opened", "max_tokens": 30}), none)).ok();
        assert!((1..LONGEST_ENDING).contains(&reasoning_tokens(&opened)), "{opened}");
        assert_eq!(opened["choices"][0]["message"]["reasoning_content"], Value::Null);
    }
    // The request's own variables come first.
    let kwargs =
        json!({"model": "switch", "reasoning_effort": "none", "chat_template_kwargs": {"enable_thinking": true}});
    assert!(reasoning_tokens(&post(kwargs).ok()) > 0);
    let ignored = post(json!({"model": "plain", "reasoning_effort": "low", "reasoning_budget": 5}));
    assert_eq!(ignored.header("x-sconce-ignored"), Some("reasoning_budget,reasoning_effort"));
    assert_eq!(post(json!({"reasoning_effort": "extreme"})).status, 400);
}

#[test]
fn formats_and_calls_hold_after_the_thought() {
    let server = serve(vec![llama("opened", OPENED)], config());
    let schema = json!({"type": "json_schema", "json_schema": {"name": "n", "schema": {"enum": ["yes", "no"]}}});
    let tools = json!([{"type": "function", "function": {"name": "f", "parameters": {"type": "object",
        "properties": {"x": {"enum": [1, 2]}}, "required": ["x"], "additionalProperties": false}}}]);
    for seed in 0..6 {
        let limits = json!({"max_tokens": 900, "seed": seed, "reasoning_budget": 8});
        let body = with(chat(limits.clone()), json!({"response_format": schema, "n": 2}));
        let answer = server.post("/v1/chat/completions", &body).ok();
        assert!(reasoning_tokens(&answer) > 2, "{answer}");
        for choice in answer["choices"].as_array().unwrap() {
            let text = choice["message"]["content"].as_str().unwrap();
            assert!(["\"yes\"", "\"no\""].contains(&text.trim()), "{answer}");
        }
        let body = with(chat(limits), json!({"tools": tools, "tool_choice": "required"}));
        let answer = server.post("/v1/chat/completions", &body).ok();
        assert_eq!(answer["choices"][0]["finish_reason"], "tool_calls", "{answer}");
        let message = &answer["choices"][0]["message"];
        assert!(message["content"].is_null() && reasoning_tokens(&answer) > 1, "{answer}");
        for call in message["tool_calls"].as_array().unwrap() {
            let arguments: Value = serde_json::from_str(call["function"]["arguments"].as_str().unwrap()).unwrap();
            assert!([json!({"x": 1}), json!({"x": 2})].contains(&arguments), "{answer}");
        }
    }
}

#[test]
fn earlier_thoughts_are_for_templates_that_read_them() {
    let server = serve(vec![llama("opened", OPENED), llama("plain", PLAIN)], config());
    let prompt_tokens = |model: &str, thought: Value| {
        let messages = json!([{"role": "user", "content": "the cat"},
            {"role": "assistant", "content": "sat", "reasoning_content": thought}, {"role": "user", "content": "why"}]);
        let body = chat(json!({"model": model, "messages": messages, "max_tokens": 1}));
        server.post("/v1/chat/completions", &body).ok()["usage"]["prompt_tokens"].as_u64().unwrap()
    };
    let long = json!("the cat sat on the mat and the dog ran");
    assert!(prompt_tokens("opened", long.clone()) > prompt_tokens("opened", json!("")) + 5);
    assert_eq!(prompt_tokens("plain", long), prompt_tokens("plain", Value::Null));
}
