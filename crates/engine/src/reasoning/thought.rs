//! The thought of an active sequence, followed token by token.
//!
//! The parser of answers works on text, after the fact. This state decides before a token is
//! sampled: whether the thought must end now, and whether the format of a structured output applies
//! yet. A thought that reaches its budget ends with the marker, as if the model had written it.

use super::syntax::Thoughts;
use crate::tools::partial_mark;
use std::sync::Arc;

/// A marker of thoughts.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Marker {
    /// Its text.
    pub(crate) text: &'static str,
    /// Its token, if it is a single one.
    pub(crate) token: Option<u32>,
}

/// What a request says about thoughts, in tokens.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct ThoughtRules {
    pub(crate) open: Marker,
    pub(crate) close: Marker,
    /// The tokens that end a thought by force.
    pub(crate) ending: Arc<[u32]>,
    /// The most tokens of a thought.
    pub(crate) budget: Option<usize>,
    /// Whether the answer begins within a thought.
    pub(crate) is_open: bool,
}

impl ThoughtRules {
    /// The rules for an answer to `prompt`. `token` finds the token of a marker, and `encode` the
    /// tokens of a text.
    pub(crate) fn new<E>(
        thoughts: Thoughts,
        prompt: &str,
        token: impl Fn(&str) -> Option<u32>,
        encode: impl Fn(&str) -> Result<Vec<u32>, E>,
    ) -> Result<ThoughtRules, E> {
        let marker = |text: &'static str| Marker { text, token: token(text) };
        let (open, close) = (marker(thoughts.syntax.open), marker(thoughts.syntax.close));
        let ending = match close.token {
            Some(token) => vec![token],
            None => encode(close.text)?,
        };
        let is_open = thoughts.syntax.is_opened_by(prompt);
        Ok(ThoughtRules { open, close, ending: ending.into(), budget: thoughts.budget, is_open })
    }
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum State {
    /// The answer may still begin with a thought.
    Start,
    Inside,
    /// In the answer itself.
    Answer,
}

/// The text of a token, divided.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct Divided {
    /// Text of the thought, markers included.
    pub(crate) thought: String,
    /// Text of the answer.
    pub(crate) answer: String,
    /// Whether the thought began or ended with this token.
    pub(crate) is_boundary: bool,
}

/// The state of one answer.
#[derive(Clone, Debug)]
pub(crate) struct Thought {
    rules: ThoughtRules,
    state: State,
    /// At the start, undecided text; inside, the end of the text that may begin the marker.
    held: String,
    /// Tokens of the thought.
    tokens: usize,
    /// Tokens of the ending that were forced, once it has begun.
    forced: Option<usize>,
}

impl Thought {
    pub(crate) fn new(rules: ThoughtRules) -> Thought {
        let state = if rules.is_open { State::Inside } else { State::Start };
        Thought { rules, state, held: String::new(), tokens: 0, forced: None }
    }

    /// Whether the next token is within the thought.
    pub(crate) fn is_inside(&self) -> bool {
        self.state == State::Inside
    }

    /// The token that must come next, if the thought has to end.
    pub(crate) fn forced(&self) -> Option<u32> {
        let is_spent = self.rules.budget.is_some_and(|budget| self.tokens >= budget);
        if self.state != State::Inside || !(is_spent || self.forced.is_some()) {
            return None;
        }
        self.rules.ending.get(self.forced.unwrap_or(0)).copied()
    }

    /// Ends the thought: the ending comes next.
    pub(crate) fn end(&mut self) {
        self.forced.get_or_insert(0);
    }

    /// The token that opens a thought, if one may begin although the answer has a format. A marker
    /// of several tokens cannot be told from the answer before it is complete.
    pub(crate) fn opening(&self) -> Option<u32> {
        let may_think = self.state == State::Start && self.rules.budget != Some(0);
        self.rules.open.token.filter(|_| may_think)
    }

    /// Called when the format took a token: there is no thought any more.
    pub(crate) fn answers(&mut self) {
        if self.state == State::Start {
            self.state = State::Answer;
        }
    }

    /// Adds a token and its text.
    pub(crate) fn push(&mut self, token: u32, text: String) -> Divided {
        match self.state {
            State::Answer => Divided { answer: std::mem::take(&mut self.held) + &text, ..Divided::default() },
            State::Start => self.start(token, &text),
            State::Inside => self.inside(token, text),
        }
    }

    /// The undecided text, at the end of the answer.
    pub(crate) fn finish(&mut self) -> String {
        let held = std::mem::take(&mut self.held);
        if self.state == State::Inside { String::new() } else { held }
    }

    fn start(&mut self, token: u32, text: &str) -> Divided {
        self.held.push_str(text);
        let begun = self.held.trim_start();
        if Some(token) == self.rules.open.token || begun.starts_with(self.rules.open.text) {
            (self.state, self.tokens) = (State::Inside, 0);
            let thought = std::mem::take(&mut self.held);
            return Divided { thought, is_boundary: true, ..Divided::default() };
        }
        if self.rules.open.text.starts_with(begun) {
            return Divided::default();
        }
        self.state = State::Answer;
        Divided { answer: std::mem::take(&mut self.held), ..Divided::default() }
    }

    fn inside(&mut self, token: u32, text: String) -> Divided {
        self.tokens += 1;
        let was_last_forced = self.forced().is_some_and(|forced| forced == token) && self.advance_ending();
        let close = self.rules.close;
        let before = self.held.len();
        self.held.push_str(&text);
        let end = self.held.find(close.text).map(|at| at + close.text.len() - before);
        if end.is_some() || Some(token) == close.token || was_last_forced {
            self.state = State::Answer;
            self.held.clear();
            let mut thought = text;
            let answer = thought.split_off(end.unwrap_or(thought.len()));
            return Divided { thought, answer, is_boundary: true };
        }
        let keep = partial_mark(&self.held, close.text);
        self.held.drain(..self.held.len() - keep);
        Divided { thought: text, ..Divided::default() }
    }

    /// Counts a forced token; returns whether it was the last.
    fn advance_ending(&mut self) -> bool {
        let done = self.forced.unwrap_or(0) + 1;
        self.forced = Some(done);
        done >= self.rules.ending.len()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::reasoning::ReasoningSyntax;

    fn rules(token: Option<u32>, budget: Option<usize>, prompt: &str) -> ThoughtRules {
        let thoughts = Thoughts { syntax: ReasoningSyntax::all()[0], budget };
        let of = |mark: &str| token.map(|first| first + u32::from(mark.starts_with("</")));
        // Without a token, one per character.
        let encode = |text: &str| Ok::<_, ()>(text.chars().map(u32::from).collect());
        ThoughtRules::new(thoughts, prompt, of, encode).unwrap()
    }

    fn divided(thought: &str, answer: &str, is_boundary: bool) -> Divided {
        Divided { thought: thought.into(), answer: answer.into(), is_boundary }
    }

    #[test]
    fn thought_ends_at_its_marker() {
        // Control tokens have no text.
        let mut thought = Thought::new(rules(Some(900), None, "assistant\n"));
        assert_eq!((thought.opening(), thought.is_inside()), (Some(900), false));
        assert_eq!(thought.push(900, String::new()), divided("", "", true));
        assert!(thought.is_inside() && thought.opening().is_none());
        assert_eq!(thought.push(5, "a </think".into()), divided("a </think", "", false));
        assert_eq!(thought.push(901, String::new()), divided("", "", true));
        assert_eq!(thought.push(6, "b".into()), divided("", "b", false));
        // A marker of several tokens.
        let mut thought = Thought::new(rules(None, None, "assistant\n"));
        assert_eq!(thought.opening(), None);
        assert_eq!(thought.push(1, "\n<thi".into()), Divided::default());
        assert_eq!(thought.push(2, "nk>".into()), divided("\n<think>", "", true));
        assert_eq!(thought.push(3, "x</thi".into()), divided("x</thi", "", false));
        assert_eq!(thought.push(4, "nk>\n\nYes".into()), divided("nk>", "\n\nYes", true));
    }

    #[test]
    fn answer_without_a_thought_passes_unchanged() {
        let mut thought = Thought::new(rules(Some(900), Some(3), "assistant\n"));
        assert_eq!(thought.push(1, " ".into()), Divided::default());
        assert_eq!(thought.push(2, "<b>".into()), divided("", " <b>", false));
        assert_eq!((thought.forced(), thought.opening()), (None, None));
        let mut thought = Thought::new(rules(Some(900), None, "assistant\n"));
        assert_eq!(thought.push(1, "<thi".into()), Divided::default());
        assert_eq!(thought.finish(), "<thi");
    }

    #[test]
    fn budget_forces_the_marker() {
        let mut thought = Thought::new(rules(Some(900), Some(2), "assistant\n<think>\n"));
        assert!(thought.is_inside());
        assert_eq!((thought.forced(), thought.push(1, "a".into()).thought), (None, "a".into()));
        assert_eq!((thought.forced(), thought.push(2, "b".into()).thought), (None, "b".into()));
        assert_eq!(thought.forced(), Some(901));
        assert_eq!(thought.push(901, "</think>".into()), divided("</think>", "", true));
        assert_eq!(thought.forced(), None);
        // Several tokens; a budget of zero.
        let mut thought = Thought::new(rules(None, Some(0), "assistant\n<think>\n"));
        let mut text = String::new();
        while let Some(token) = thought.forced() {
            let one = thought.push(token, char::from_u32(token).unwrap().into());
            assert_eq!(one.is_boundary, one.thought == ">");
            text += &one.thought;
        }
        assert_eq!((&*text, thought.is_inside()), ("</think>", false));
    }

    #[test]
    fn thought_can_be_ended_early() {
        let mut thought = Thought::new(rules(Some(900), None, "<think>"));
        thought.push(1, "a".into());
        thought.end();
        assert_eq!(thought.forced(), Some(901));
        // With a budget of zero no thought begins before a format.
        assert_eq!(Thought::new(rules(Some(900), Some(0), "")).opening(), None);
    }
}
