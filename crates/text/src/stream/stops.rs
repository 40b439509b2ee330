//! Stop strings in a stream: text that may be the beginning of a stop string is held back.
//!
//! An Aho–Corasick automaton: its state is the longest suffix of the text that begins a stop
//! string, which is exactly what must be held back. Each byte is read once however the strings
//! overlap.

use std::collections::VecDeque;
use std::sync::Arc;

/// Limit for all stop strings, more than any API allows; each byte is a state.
const MAX_BYTES: usize = 1 << 16;

/// Output for a piece of text.
#[derive(Clone, Debug, PartialEq)]
pub enum Step {
    /// This text; more may follow.
    Text(String),
    /// This text, and no more: a stop string is complete.
    Stopped {
        /// The last text.
        text: String,
        /// Index of the stop string.
        stop: usize,
    },
}

/// The stop strings of one text. Clones share the automaton.
#[derive(Clone, Debug)]
pub struct Stops {
    states: Arc<[State]>,
    include: bool,
    /// `Ok`: the state of the automaton. `Err`: the stop string that was found.
    at: Result<usize, usize>,
    /// Held back: the suffix of the text that begins a stop string.
    held: String,
}

#[derive(Debug, Default)]
struct State {
    next: Vec<(u8, usize)>,
    /// The longest proper suffix of this state that is a state.
    fail: usize,
    depth: usize,
    /// The longest stop string that ends here, and its length.
    stop: Option<(usize, usize)>,
}

impl Default for Stops {
    /// No stop strings.
    fn default() -> Stops {
        Stops { states: [State::default()].into(), include: false, at: Ok(0), held: String::new() }
    }
}

impl Stops {
    /// Stops at the string that is complete first; the longest of those that end together. The
    /// output includes it if `include`.
    pub fn new<S: AsRef<str>>(stops: &[S], include: bool) -> Result<Stops, String> {
        if stops.iter().map(|s| s.as_ref().len()).sum::<usize>() > MAX_BYTES {
            return Err(format!("the stop strings have more than {MAX_BYTES} bytes in all"));
        }
        let mut states = vec![State::default()];
        for (which, stop) in stops.iter().enumerate() {
            let stop = stop.as_ref();
            if stop.is_empty() {
                return Err("a stop string is empty".into());
            }
            let mut at = 0;
            for byte in stop.bytes() {
                at = match states[at].step(byte) {
                    Some(next) => next,
                    None => {
                        let next = states.len();
                        states.push(State { depth: states[at].depth + 1, ..State::default() });
                        states[at].next.push((byte, next));
                        next
                    }
                };
            }
            // Of duplicates the first counts.
            states[at].stop.get_or_insert((which, stop.len()));
        }
        let mut queue = VecDeque::from([0]);
        while let Some(at) = queue.pop_front() {
            for (byte, child) in states[at].next.clone() {
                let fail = if at == 0 { 0 } else { follow(&states, states[at].fail, byte) };
                states[child].fail = fail;
                states[child].stop = states[child].stop.or(states[fail].stop);
                queue.push_back(child);
            }
        }
        Ok(Stops { states: states.into(), include, at: Ok(0), held: String::new() })
    }

    /// The next piece of the text.
    pub fn push(&mut self, text: &str) -> Step {
        let mut at = match self.at {
            Ok(at) => at,
            Err(stop) => return Step::Stopped { text: String::new(), stop },
        };
        let before = self.held.len();
        for (i, byte) in text.bytes().enumerate() {
            at = follow(&self.states, at, byte);
            if let Some((stop, len)) = self.states[at].stop {
                let end = before + i + 1;
                let shown = if self.include { end } else { end - len };
                let mut whole = std::mem::take(&mut self.held) + text;
                whole.truncate(shown);
                self.at = Err(stop);
                return Step::Stopped { text: whole, stop };
            }
        }
        self.at = Ok(at);
        let mut whole = std::mem::take(&mut self.held) + text;
        // A stop string begins with a character, so this is a character boundary.
        self.held = whole.split_off(whole.len() - self.states[at].depth);
        Step::Text(whole)
    }

    /// Ends the text and returns what was held back.
    pub fn finish(&mut self) -> String {
        std::mem::take(&mut self.held)
    }
}

impl State {
    fn step(&self, byte: u8) -> Option<usize> {
        self.next.iter().find(|(b, _)| *b == byte).map(|(_, next)| *next)
    }
}

fn follow(states: &[State], mut at: usize, byte: u8) -> usize {
    loop {
        match (states[at].step(byte), at) {
            (Some(next), _) => return next,
            (None, 0) => return 0,
            (None, _) => at = states[at].fail,
        }
    }
}
