//! Tool calls as published for the model families, wherever their text is split.

use super::part::{AnswerPart, ToolCall};
use super::{ToolCallParser, ToolSyntax};
use std::collections::BTreeSet;
use std::sync::Arc;

fn parser(syntax: ToolSyntax) -> ToolCallParser {
    let names = ["get_weather", "get_current_temperature", "add"].map(str::to_owned);
    ToolCallParser::new(syntax, Arc::new(BTreeSet::from(names)), true)
}

/// The text and the calls of an answer in two pieces.
fn parse(syntax: ToolSyntax, pieces: [&str; 2]) -> (String, Vec<ToolCall>) {
    let mut parser = parser(syntax);
    let mut parts: Vec<AnswerPart> = pieces.iter().flat_map(|piece| parser.push(piece)).collect();
    parts.extend(parser.finish());
    let (mut text, mut calls) = (String::new(), Vec::<ToolCall>::new());
    for part in parts {
        match part {
            AnswerPart::Text(more) => text += &more,
            AnswerPart::Reasoning(_) => panic!("a tool-call parser knows no thoughts"),
            AnswerPart::Call { name, .. } => calls.push(ToolCall { name, arguments: String::new() }),
            AnswerPart::Arguments { index, text } => calls[index].arguments += &text,
        }
    }
    (text, calls)
}

#[track_caller]
fn is(syntax: ToolSyntax, answer: &str, text: &str, calls: &[(&str, &str)]) {
    let calls: Vec<ToolCall> = calls
        .iter()
        .map(|(name, arguments)| ToolCall { name: (*name).into(), arguments: (*arguments).into() })
        .collect();
    for at in (0..=answer.len()).filter(|at| answer.is_char_boundary(*at)) {
        let found = parse(syntax, [&answer[..at], &answer[at..]]);
        assert_eq!(found, (text.to_owned(), calls.clone()), "{syntax:?}, split at {at}: {answer}");
    }
}

#[test]
fn hermes_and_qwen() {
    is(
        ToolSyntax::Tagged,
        "<tool_call>\n{\"name\": \"get_current_temperature\", \"arguments\": {\"location\": \"San Francisco, CA, USA\"}}\n\
         </tool_call>\n<tool_call>\n{\"name\": \"add\", \"arguments\": {\"a\": [1, 2]}}\n</tool_call>",
        "",
        &[("get_current_temperature", "{\"location\": \"San Francisco, CA, USA\"}"), ("add", "{\"a\": [1, 2]}")],
    );
}

#[test]
fn llama_3() {
    // 3.1: JSON with `parameters`.
    is(
        ToolSyntax::Llama,
        r#"{"name": "get_current_temperature", "parameters": {"location": "Paris, France"}}"#,
        "",
        &[("get_current_temperature", r#"{"location": "Paris, France"}"#)],
    );
    // 3.2 and 3.3: a list as Python writes it.
    is(
        ToolSyntax::Llama,
        "[get_weather(city='San Francisco', metric='celsius'), get_weather(city='Seattle', metric='celsius')]",
        "",
        &[
            ("get_weather", r#"{"city":"San Francisco","metric":"celsius"}"#),
            ("get_weather", r#"{"city":"Seattle","metric":"celsius"}"#),
        ],
    );
    is(ToolSyntax::Llama, "[get_weather is a function]", "[get_weather is a function]", &[]);
    is(ToolSyntax::Llama, "[prices(a=1)]", "[prices(a=1)]", &[]);
}

#[test]
fn mistral() {
    is(
        ToolSyntax::Mistral,
        r#"[TOOL_CALLS] [{"name": "get_weather", "arguments": {"city": "Paris"}}, {"name": "add", "arguments": {}}]"#,
        "",
        &[("get_weather", r#"{"city": "Paris"}"#), ("add", "{}")],
    );
    is(
        ToolSyntax::MistralNamed,
        r#"Sure.[TOOL_CALLS]get_weather[ARGS]{"city": "Paris"}[TOOL_CALLS]add[CALL_ID]abcdef123[ARGS]{"a": 1}"#,
        "Sure.",
        &[("get_weather", r#"{"city": "Paris"}"#), ("add", r#"{"a": 1}"#)],
    );
}

#[test]
fn phi_4_mini() {
    is(
        ToolSyntax::Phi,
        r#"<|tool_call|>[{"name": "get_weather", "arguments": {"city": "Paris"}}]<|/tool_call|>"#,
        "",
        &[("get_weather", r#"{"city": "Paris"}"#)],
    );
    is(
        ToolSyntax::Phi,
        r#"functools[{"name": "get_weather", "arguments": {"city": ["a", "b"]}}, {"name": "add", "arguments": {}}]"#,
        "",
        &[("get_weather", r#"{"city": ["a", "b"]}"#), ("add", "{}")],
    );
    is(ToolSyntax::Phi, "Use functools[0] here.", "Use functools[0] here.", &[]);
}

#[test]
fn gemma() {
    // The forms of its documentation.
    is(ToolSyntax::Described, "[get_weather(city=\"Paris\")]", "", &[("get_weather", r#"{"city":"Paris"}"#)]);
    is(
        ToolSyntax::Described,
        r#"{"name": "get_weather", "parameters": {"city": "Paris"}}"#,
        "",
        &[("get_weather", r#"{"city": "Paris"}"#)],
    );
    is(
        ToolSyntax::Described,
        "Let me look.\n```tool_code\nget_weather(city=\"Paris\")\n```",
        "Let me look.",
        &[("get_weather", r#"{"city":"Paris"}"#)],
    );
    is(
        ToolSyntax::Described,
        "```tool_code\nprint(add(a=1, b=2))\nadd(a=3, b=4)\n```",
        "",
        &[("add", r#"{"a":1,"b":2}"#), ("add", r#"{"a":3,"b":4}"#)],
    );
    is(
        ToolSyntax::Described,
        "```json\n{\"name\": \"add\", \"arguments\": {\"a\": 1}}\n```\n",
        "",
        &[("add", "{\"a\": 1}")],
    );
}

#[test]
fn code_of_an_answer_is_no_call() {
    for text in [
        "See:\n\n```json\n{\"name\": \"Bob\", \"age\": 3}\n```\nand more.",
        "```json\n[1, 2]\n```",
        "Run it:\n```tool_code\nprint('x')\n```",
        "```python\nadd(a=1)\n```",
        "Call add(a=1) for that.",
        "``",
    ] {
        is(ToolSyntax::Described, text, text, &[]);
    }
}
