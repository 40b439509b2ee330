//! Streaming parser of thoughts: separates the thought at the start of an answer from the rest.

use super::syntax::ReasoningSyntax;
use crate::tools::partial_mark;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum State {
    /// Only whitespace or the start of a marker so far.
    Start,
    /// Within the thought. Whitespace at its start is dropped (`fresh`).
    Inside { fresh: bool },
    /// After the thought. Whitespace before the answer is dropped.
    Closed,
    /// In the answer.
    Answer,
}

/// What became certain.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct Separated {
    /// More of the thought.
    pub(super) thought: String,
    /// More of the answer.
    pub(super) answer: String,
}

/// Parser of one answer, fed as it is generated. An answer has at most one thought, at its start.
#[derive(Clone, Debug)]
pub(super) struct ThoughtParser {
    syntax: ReasoningSyntax,
    state: State,
    /// Text that is held back.
    pending: String,
}

impl ThoughtParser {
    /// For an answer that begins within a thought if `is_open`.
    pub(super) fn new(syntax: ReasoningSyntax, is_open: bool) -> ThoughtParser {
        let state = if is_open { State::Inside { fresh: true } } else { State::Start };
        ThoughtParser { syntax, state, pending: String::new() }
    }

    /// Whether the text so far ends within a thought.
    pub(super) fn is_inside(&self) -> bool {
        matches!(self.state, State::Inside { .. })
    }

    /// Adds text.
    pub(super) fn push(&mut self, text: &str) -> Separated {
        let mut found = Separated::default();
        self.pending.push_str(text);
        while self.step(&mut found) {}
        found
    }

    /// Ends the answer.
    pub(super) fn finish(&mut self) -> Separated {
        let rest = std::mem::take(&mut self.pending);
        match self.state {
            State::Start | State::Answer => Separated { answer: rest, ..Separated::default() },
            State::Inside { .. } => Separated { thought: rest.trim_end().to_owned(), ..Separated::default() },
            State::Closed => Separated::default(),
        }
    }

    /// Parses held-back text; returns whether more of it may be parsed.
    fn step(&mut self, found: &mut Separated) -> bool {
        match self.state {
            State::Start => {
                let text = self.pending.trim_start();
                if let Some(rest) = text.strip_prefix(self.syntax.open) {
                    self.pending = rest.to_owned();
                    self.state = State::Inside { fresh: true };
                    return true;
                }
                let is_undecided = self.syntax.open.starts_with(text);
                if !is_undecided {
                    self.state = State::Answer;
                }
                !is_undecided
            }
            State::Inside { fresh } => self.inside(fresh, found),
            State::Closed => {
                let rest = self.pending.trim_start();
                if rest.is_empty() {
                    return false;
                }
                self.pending = rest.to_owned();
                self.state = State::Answer;
                true
            }
            State::Answer => {
                found.answer.push_str(&std::mem::take(&mut self.pending));
                false
            }
        }
    }

    fn inside(&mut self, fresh: bool, found: &mut Separated) -> bool {
        if fresh {
            let text = self.pending.trim_start();
            let dropped = self.pending.len() - text.len();
            self.pending.drain(..dropped);
            if self.pending.is_empty() {
                return false;
            }
        }
        if let Some(at) = self.pending.find(self.syntax.close) {
            let thought = self.pending.get(..at).unwrap_or_default().trim_end();
            found.thought.push_str(thought);
            self.pending.drain(..at + self.syntax.close.len());
            self.state = State::Closed;
            return true;
        }
        // Whitespace before the marker does not belong to the thought, so it is held back too.
        let certain = self.pending.len() - partial_mark(&self.pending, self.syntax.close);
        let certain = self.pending.get(..certain).unwrap_or_default().trim_end().len();
        if certain > 0 {
            found.thought.extend(self.pending.drain(..certain));
            self.state = State::Inside { fresh: false };
        }
        false
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Thought and answer, which must not depend on where the text is split.
    fn parse(text: &str, is_open: bool) -> (String, String) {
        let syntax = ReasoningSyntax::all()[usize::from(text.contains("THINK]"))];
        let whole = |parts: &[&str]| {
            let mut parser = ThoughtParser::new(syntax, is_open);
            let (mut thought, mut answer) = (String::new(), String::new());
            for found in parts.iter().map(|part| parser.push(part)).collect::<Vec<_>>() {
                thought += &found.thought;
                answer += &found.answer;
            }
            let rest = parser.finish();
            (thought + &rest.thought, answer + &rest.answer)
        };
        let expected = whole(&[text]);
        for at in (1..text.len()).filter(|at| text.is_char_boundary(*at)) {
            assert_eq!(whole(&[&text[..at], &text[at..]]), expected, "split at {at}: {text}");
        }
        let chars: Vec<String> = text.chars().map(String::from).collect();
        assert_eq!(whole(&chars.iter().map(String::as_str).collect::<Vec<_>>()), expected, "by character: {text}");
        expected
    }

    fn pair(thought: &str, answer: &str) -> (String, String) {
        (thought.into(), answer.into())
    }

    #[test]
    fn thought_is_separated_wherever_the_text_is_split() {
        // Qwen3, with thinking and with the soft switch /no_think.
        let qwen = "<think>\nOkay, 2 < 3.\n\nSo </thin is no marker.\n</think>\n\nYes — 2 is less.";
        assert_eq!(parse(qwen, false), pair("Okay, 2 < 3.\n\nSo </thin is no marker.", "Yes — 2 is less."));
        assert_eq!(parse("<think>\n\n</think>\n\nYes.", false), pair("", "Yes."));
        // Templates that open the thought (Qwen3-Thinking, DeepSeek-R1).
        assert_eq!(parse("Hmm.\n</think>\n\nParis.", true), pair("Hmm.", "Paris."));
        assert_eq!(parse("\n\n</think>\nParis.", true), pair("", "Paris."));
        // Mistral.
        assert_eq!(parse("[THINK]Let me [see].[/THINK]Paris.", false), pair("Let me [see].", "Paris."));
        assert_eq!(parse(" \n<think>x</think>y", false), pair("x", "y"));
    }

    #[test]
    fn answers_without_a_thought_are_unchanged() {
        for text in ["", "Hi", " \n", "<thin", "< 3", "\n <b>x</b>", "So: <think>x</think>y", "a</think>b"] {
            assert_eq!(parse(text, false), pair("", text), "{text:?}");
        }
    }

    #[test]
    fn unfinished_thought_is_no_answer() {
        assert_eq!(parse("<think>\nOkay, </th", false), pair("Okay, </th", ""));
        assert_eq!(parse("still thinking\n", true), pair("still thinking", ""));
        assert_eq!(parse("<think>\n", false), pair("", ""));
        assert_eq!(parse("<think>x</think>\n\n", false), pair("x", ""));
        // Only the first thought is one.
        assert_eq!(parse("<think>a</think>b<think>c</think>", false), pair("a", "b<think>c</think>"));
    }
}
