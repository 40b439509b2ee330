//! Tool calling with a language model.

use super::llm::Llm;
use crate::generation::{Answer, SampledToken};
use crate::tools::{ToolCall, ToolCallParser, ToolSyntax};
use std::collections::BTreeSet;
use std::sync::Arc;

impl Llm {
    /// How the model writes tool calls, as its chat template shows.
    pub fn tool_syntax(&self) -> ToolSyntax {
        ToolSyntax::of(self.template(true))
    }

    /// The text of an answer without its calls of these functions, and the calls.
    pub fn parse_tool_calls(&self, answer: &Answer, functions: &[&str]) -> (String, Vec<ToolCall>) {
        let syntax = self.tool_syntax();
        let names: BTreeSet<String> = functions.iter().map(|name| (*name).to_owned()).collect();
        let text = self.with_markers(answer.text.clone(), &answer.sampled, &self.markers(syntax));
        ToolCallParser::new(syntax, Arc::new(names), true).parse(&text)
    }

    /// The markers of tool calls that are control tokens of the model: an answer's text lacks them.
    pub fn markers(&self, syntax: ToolSyntax) -> Vec<(u32, &'static str)> {
        syntax.marks().iter().filter_map(|mark| Some((self.control(mark)?, *mark))).collect()
    }

    /// Inserts `markers` into the text of these tokens, each after the text of the tokens before
    /// it.
    pub fn with_markers(&self, mut text: String, tokens: &[SampledToken], markers: &[(u32, &'static str)]) -> String {
        if markers.is_empty() {
            return text;
        }
        let mut at = 0;
        for sampled in tokens {
            match markers.iter().find(|(id, _)| *id == sampled.id) {
                Some((_, name)) => {
                    text.insert_str(at, name);
                    at += name.len();
                }
                None => {
                    at += self.token(sampled.id).ok().and_then(|token| token.bytes).map_or(0, |bytes| bytes.len());
                    // The detokenizer may drop bytes of a token, and a character may span several
                    // tokens.
                    at = (at.min(text.len())..=text.len()).find(|i| text.is_char_boundary(*i)).unwrap_or(text.len());
                }
            }
        }
        text
    }
}
