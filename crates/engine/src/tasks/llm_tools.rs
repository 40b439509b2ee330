//! Reasoning and tool calling with a language model: how it writes thoughts and calls, and what an
//! answer has of them.

use super::llm::Llm;
use crate::generation::{Answer, SampledToken};
use crate::reasoning::{AnswerParser, ParsedAnswer, Reasoning, ReasoningSyntax};
use crate::tools::{ToolCall, ToolCallParser, ToolSyntax};
use std::collections::BTreeSet;
use std::sync::Arc;

impl Llm {
    /// How the model reasons, as its chat template shows; `None`: it does not.
    ///
    /// A template may leave the markers to the model. Then the vocabulary has them.
    pub fn reasoning(&self) -> Option<Reasoning> {
        let template = self.template(false)?;
        let has_markers = |syntax: &&ReasoningSyntax| syntax.marks().iter().all(|m| self.added_token(m).is_some());
        Reasoning::of(template).or_else(|| {
            let syntax = *ReasoningSyntax::all().iter().find(has_markers)?;
            Some(Reasoning { syntax, has_switch: false, reads_effort: false })
        })
    }

    /// How the model writes tool calls, as its chat template shows.
    pub fn tool_syntax(&self) -> ToolSyntax {
        ToolSyntax::of(self.template(true))
    }

    /// The thought, the text and the calls of these functions in an answer to a conversation.
    ///
    /// A prompt may open the thought, and then the answer only closes it; a thought that was cut
    /// before that is taken for text. [`AnswerParser`] knows the prompt, and makes no such mistake.
    pub fn parse_answer(&self, answer: &Answer, functions: &[&str]) -> ParsedAnswer {
        let (syntax, reasoning) = (self.tool_syntax(), self.reasoning());
        let mut markers = self.markers(syntax.marks());
        let mut parser = AnswerParser::default();
        if let Some(Reasoning { syntax, .. }) = reasoning {
            markers.extend(self.markers(&syntax.marks()));
        }
        let text = self.with_markers(answer.text.clone(), &answer.sampled, &markers);
        if let Some(Reasoning { syntax, .. }) = reasoning {
            // The prompt opened the thought if the answer only closes it.
            let closes = text.split(syntax.close).next().filter(|before| before.len() < text.len());
            let is_open = closes.is_some_and(|before| !before.contains(syntax.open));
            parser = parser.with_thoughts(syntax, is_open);
        }
        let names: BTreeSet<String> = functions.iter().map(|name| (*name).to_owned()).collect();
        parser.with_calls(ToolCallParser::new(syntax, Arc::new(names), true)).parse(&text)
    }

    /// The text of an answer without its thought and its calls of these functions, and the calls.
    pub fn parse_tool_calls(&self, answer: &Answer, functions: &[&str]) -> (String, Vec<ToolCall>) {
        let ParsedAnswer { text, calls, .. } = self.parse_answer(answer, functions);
        (text, calls)
    }

    /// The markers that are control tokens of the model: an answer's text lacks them.
    pub fn markers(&self, marks: &[&'static str]) -> Vec<(u32, &'static str)> {
        marks.iter().filter_map(|mark| Some((self.control(mark)?, *mark))).collect()
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
