use super::parser::ToolCallParser;
use super::part::AnswerPart;
use super::syntax::ToolSyntax;
use std::collections::BTreeSet;
use std::sync::Arc;

fn parser(syntax: ToolSyntax) -> ToolCallParser {
    ToolCallParser::new(syntax, Arc::new(BTreeSet::from(["weather".to_owned(), "add".into()])), true)
}

/// The text and calls of an answer, which must not depend on how it is split into chunks.
fn parse_chunked(syntax: ToolSyntax, text: &str) -> (String, Vec<(String, String)>) {
    let chars: Vec<char> = text.chars().collect();
    let mut all = None;
    for size in [1, 2, 3, 5, 8, chars.len().max(1)] {
        let mut parser = parser(syntax);
        let mut pieces = Vec::new();
        for part in chars.chunks(size) {
            pieces.extend(parser.push(&part.iter().collect::<String>()));
        }
        pieces.extend(parser.finish());
        let (mut prose, mut calls) = (String::new(), Vec::<(String, String)>::new());
        for piece in pieces {
            match piece {
                AnswerPart::Text(text) => prose.push_str(&text),
                AnswerPart::Reasoning(_) => panic!("a tool-call parser knows no thoughts"),
                AnswerPart::Call { index, name } => {
                    assert_eq!(index, calls.len());
                    calls.push((name, String::new()));
                }
                AnswerPart::Arguments { index, text } => {
                    assert_eq!(index + 1, calls.len());
                    calls[index].1.push_str(&text);
                }
            }
        }
        assert_eq!(parser.calls(), calls.len());
        let this = (prose, calls);
        assert_eq!(all.get_or_insert_with(|| this.clone()), &this, "in chunks of {size}: {text}");
    }
    all.expect("at least one size")
}

fn calls(all: &[(&str, &str)]) -> Vec<(String, String)> {
    all.iter().map(|(name, arguments)| ((*name).into(), (*arguments).into())).collect()
}

#[test]
fn tagged_calls_are_parsed() {
    let one = "<tool_call>\n{\"name\": \"weather\", \"arguments\": {\"city\": \"Köln\"}}\n</tool_call>";
    let weather = ("weather", "{\"city\": \"Köln\"}");
    assert_eq!(parse_chunked(ToolSyntax::Tagged, one), (String::new(), calls(&[weather])));
    let two = format!("I'll look.\n{one}\n{one}\n");
    assert_eq!(parse_chunked(ToolSyntax::Tagged, &two), ("I'll look.".into(), calls(&[weather, weather])));
    let trailing = format!("{one} Done.");
    assert_eq!(parse_chunked(ToolSyntax::Tagged, &trailing), ("Done.".into(), calls(&[weather])));
    // A list within one pair of tags; an unknown name is still a call.
    let list = "<tool_call>[{\"name\": \"add\", \"arguments\": {\"a\": 1}}, {\"name\": \"sub\", \"arguments\": {}}]</tool_call>";
    assert_eq!(
        parse_chunked(ToolSyntax::Tagged, list),
        (String::new(), calls(&[("add", "{\"a\": 1}"), ("sub", "{}")]))
    );
    // Without the closing tag, as when that is the stop string.
    let open = "<tool_call>\n{\"name\": \"add\", \"arguments\": {\"a\": 1}}\n";
    assert_eq!(parse_chunked(ToolSyntax::Tagged, open), (String::new(), calls(&[("add", "{\"a\": 1}")])));
    // Without tags.
    let bare = "{\"name\": \"add\", \"arguments\": {\"a\": 1}}";
    assert_eq!(parse_chunked(ToolSyntax::Tagged, bare), (String::new(), calls(&[("add", "{\"a\": 1}")])));
}

#[test]
fn llama_calls_are_parsed() {
    let call = "{\"name\": \"add\", \"parameters\": {\"a\": 1}}";
    let add = ("add", "{\"a\": 1}");
    assert_eq!(parse_chunked(ToolSyntax::Llama, call), (String::new(), calls(&[add])));
    assert_eq!(parse_chunked(ToolSyntax::Llama, &format!("<|python_tag|>{call}")), (String::new(), calls(&[add])));
    assert_eq!(
        parse_chunked(ToolSyntax::Llama, &format!("<|python_tag|>{call}; {call}")),
        (String::new(), calls(&[add, add]))
    );
    assert_eq!(parse_chunked(ToolSyntax::Llama, &format!("\n\n{call}\n{call}")), (String::new(), calls(&[add, add])));
    let python = "<|python_tag|>brave_search.call(query=\"x\")";
    assert_eq!(parse_chunked(ToolSyntax::Llama, python), ("brave_search.call(query=\"x\")".into(), Vec::new()));
}

#[test]
fn mistral_calls_are_parsed() {
    let list =
        "[TOOL_CALLS] [{\"name\": \"add\", \"arguments\": {\"a\": 1}}, {\"name\": \"weather\", \"arguments\": {}}]";
    assert_eq!(
        parse_chunked(ToolSyntax::Mistral, list),
        (String::new(), calls(&[("add", "{\"a\": 1}"), ("weather", "{}")]))
    );
    let named = "Well. [TOOL_CALLS]add[ARGS]{\"a\": 1}[TOOL_CALLS]weather[CALL_ID]x1[ARGS]{\"b\": {}}";
    let both = calls(&[("add", "{\"a\": 1}"), ("weather", "{\"b\": {}}")]);
    assert_eq!(parse_chunked(ToolSyntax::Mistral, named), ("Well.".into(), both));
    // The marker is missing when control tokens are not shown.
    let bare = "[{\"name\": \"add\", \"arguments\": {\"a\": 1}}]";
    assert_eq!(parse_chunked(ToolSyntax::Mistral, bare), (String::new(), calls(&[("add", "{\"a\": 1}")])));
}

#[test]
fn text_without_calls_is_passed_through_unchanged() {
    let texts = [
        "",
        " \n",
        "Hello, world. \n",
        " a < b and <tool_cal",
        "<tool_call> is a tag",
        "<tool_call>",
        "{\"answer\": 42} ",
        "[{\"name\": \"Bob\", \"arguments\": {}}]",
        "{\"name\": \"weather\"}",
        "{\"name\": \"weather\", \"arg",
        "[1, 2, 3]",
        "[see below] {\"name\": \"add\", \"arguments\": {}}",
        "So: {\"name\": \"add\", \"arguments\": {}}",
        "<tool_call>{\"name\": 3}</tool_call> x",
    ];
    for syntax in [ToolSyntax::Tagged, ToolSyntax::Described, ToolSyntax::Llama, ToolSyntax::Mistral] {
        for text in texts {
            assert_eq!(parse_chunked(syntax, text), (text.into(), Vec::new()), "{syntax:?}");
        }
    }
}

#[test]
fn incomplete_call_is_not_emitted_as_text() {
    let cut = "<tool_call>{\"name\": \"add\", \"arguments\": {\"a\": \"x";
    assert_eq!(parse_chunked(ToolSyntax::Tagged, cut), (String::new(), calls(&[("add", "{\"a\": \"x")])));
    let broken = "<tool_call>{\"name\": \"add\", \"arguments\": {\"a\": 1}] oh }</tool_call>Then.";
    assert_eq!(parse_chunked(ToolSyntax::Tagged, broken), ("Then.".into(), calls(&[("add", "{\"a\": 1}")])));
}

#[test]
fn only_the_first_call_is_kept_without_parallel_calls() {
    let mut parser = ToolCallParser::new(ToolSyntax::Tagged, Arc::default(), false);
    let call = "<tool_call>{\"name\": \"add\", \"arguments\": {}}</tool_call>";
    let pieces = parser.push(&format!("{call}\n{call}\nand text"));
    let arguments = AnswerPart::Arguments { index: 0, text: "{}".into() };
    assert_eq!(pieces, [AnswerPart::Call { index: 0, name: "add".into() }, arguments]);
    assert_eq!(parser.finish(), []);
}

#[test]
fn arguments_are_streamed_as_they_arrive() {
    let mut parser = parser(ToolSyntax::Tagged);
    assert_eq!(parser.push("Let me see. <tool"), [AnswerPart::Text("Let me see.".into())]);
    assert_eq!(parser.push("_call>\n{\"name\": \"add\","), []);
    assert_eq!(parser.push(" \"arguments\": "), []);
    let call = AnswerPart::Call { index: 0, name: "add".into() };
    assert_eq!(parser.push("{\"a\""), [call, AnswerPart::Arguments { index: 0, text: "{\"a\"".into() }]);
    assert_eq!(parser.push(": 1"), [AnswerPart::Arguments { index: 0, text: ": 1".into() }]);
    assert_eq!(parser.push("}}\n</too"), [AnswerPart::Arguments { index: 0, text: "}".into() }]);
    assert_eq!(parser.push("l_call>"), []);
    assert_eq!(parser.finish(), []);
}
