//! Streaming parser of answers: separates thought, tool calls and text.

use super::parser::{Separated, ThoughtParser};
use super::syntax::ReasoningSyntax;
use crate::tools::{AnswerPart, ToolCall, ToolCallParser};

/// Parser of one answer, fed as it is generated. Within a thought nothing is a tool call.
///
/// ```
/// use sconce_engine::{AnswerParser, AnswerPart, ReasoningSyntax};
///
/// let syntax = ReasoningSyntax::all()[0];
/// let mut parser = AnswerParser::default().with_thoughts(syntax, false);
/// let parts = parser.push("<think>\nEasy.\n</think>\n\nParis.");
/// assert_eq!(parts, [AnswerPart::Reasoning("Easy.".into()), AnswerPart::Text("Paris.".into())]);
/// ```
#[derive(Default)]
pub struct AnswerParser {
    thoughts: Option<ThoughtParser>,
    calls: Option<ToolCallParser>,
}

/// A complete answer, parsed.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct ParsedAnswer {
    /// The thought.
    pub reasoning: String,
    /// The text for the user.
    pub text: String,
    /// The tool calls.
    pub calls: Vec<ToolCall>,
}

impl AnswerParser {
    /// Separates the thought of a model with this syntax. The answer begins within it if `is_open`
    /// ([`ReasoningSyntax::is_opened_by`]).
    #[must_use]
    pub fn with_thoughts(self, syntax: ReasoningSyntax, is_open: bool) -> AnswerParser {
        AnswerParser { thoughts: Some(ThoughtParser::new(syntax, is_open)), ..self }
    }

    /// Separates tool calls.
    #[must_use]
    pub fn with_calls(self, parser: ToolCallParser) -> AnswerParser {
        AnswerParser { calls: Some(parser), ..self }
    }

    /// Adds text; returns the parts that are now certain.
    pub fn push(&mut self, text: &str) -> Vec<AnswerPart> {
        let found = match &mut self.thoughts {
            Some(thoughts) => thoughts.push(text),
            None => Separated { answer: text.to_owned(), ..Separated::default() },
        };
        self.parts(found)
    }

    /// Returns the rest at the end of the answer.
    pub fn finish(&mut self) -> Vec<AnswerPart> {
        let found = self.thoughts.as_mut().map(ThoughtParser::finish).unwrap_or_default();
        let mut parts = self.parts(found);
        parts.extend(self.calls.as_mut().map(ToolCallParser::finish).unwrap_or_default());
        parts
    }

    /// Whether the text so far ends within a thought.
    pub fn is_reasoning(&self) -> bool {
        self.thoughts.as_ref().is_some_and(ThoughtParser::is_inside)
    }

    /// Number of tool calls so far.
    pub fn calls(&self) -> usize {
        self.calls.as_ref().map_or(0, ToolCallParser::calls)
    }

    /// Parses a complete answer.
    pub fn parse(mut self, answer: &str) -> ParsedAnswer {
        let mut parts = self.push(answer);
        parts.extend(self.finish());
        let mut parsed = ParsedAnswer::default();
        for part in parts {
            match part {
                AnswerPart::Text(text) => parsed.text.push_str(&text),
                AnswerPart::Reasoning(text) => parsed.reasoning.push_str(&text),
                AnswerPart::Call { name, .. } => parsed.calls.push(ToolCall { name, arguments: String::new() }),
                AnswerPart::Arguments { index, text } => {
                    if let Some(call) = parsed.calls.get_mut(index) {
                        call.arguments.push_str(&text);
                    }
                }
            }
        }
        parsed
    }

    fn parts(&mut self, Separated { thought, answer }: Separated) -> Vec<AnswerPart> {
        let mut parts = Vec::new();
        if !thought.is_empty() {
            parts.push(AnswerPart::Reasoning(thought));
        }
        match &mut self.calls {
            _ if answer.is_empty() => {}
            Some(calls) => parts.extend(calls.push(&answer)),
            None => parts.push(AnswerPart::Text(answer)),
        }
        parts
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::tools::ToolSyntax;
    use std::collections::BTreeSet;
    use std::sync::Arc;

    fn parser(is_open: bool) -> AnswerParser {
        let names = Arc::new(BTreeSet::from(["add".to_owned()]));
        let calls = ToolCallParser::new(ToolSyntax::Tagged, names, true);
        AnswerParser::default().with_thoughts(ReasoningSyntax::all()[0], is_open).with_calls(calls)
    }

    const CALL: &str = "<tool_call>\n{\"name\": \"add\", \"arguments\": {\"a\": 1}}\n</tool_call>";

    #[test]
    fn calls_within_a_thought_are_not_calls() {
        let text = format!("<think>\nI could write {CALL}.\n</think>\n\n{CALL}");
        let expected = parser(false).parse(&text);
        assert_eq!((expected.reasoning, &*expected.text), (format!("I could write {CALL}."), ""));
        assert_eq!(expected.calls.len(), 1);
        // Wherever the text is split.
        for at in 1..text.len() {
            let mut parser = parser(false);
            let mut parts = parser.push(&text[..at]);
            assert_eq!(parser.is_reasoning(), (7..text.find("\n</think>").unwrap() + 9).contains(&at), "{at}");
            parts.extend(parser.push(&text[at..]));
            parts.extend(parser.finish());
            let calls: Vec<&AnswerPart> = parts.iter().filter(|part| matches!(part, AnswerPart::Call { .. })).collect();
            assert_eq!(calls, [&AnswerPart::Call { index: 0, name: "add".into() }], "split at {at}");
            assert!(!parts.iter().any(|part| matches!(part, AnswerPart::Text(_))), "split at {at}: {parts:?}");
        }
    }

    #[test]
    fn bare_call_after_a_thought_is_a_call() {
        let parsed = parser(true).parse("Hm.</think>\n\n{\"name\": \"add\", \"arguments\": {}}");
        assert_eq!((&*parsed.reasoning, &*parsed.text, parsed.calls.len()), ("Hm.", "", 1));
    }
}
