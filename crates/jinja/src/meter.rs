//! What a template may spend. A template is a program from the net: it must end, and soon, and not fill the memory.

use super::Fault;
use super::value::Value;
use std::cell::Cell;
use std::sync::Arc;

/// Evaluations. The largest chats take some hundred thousand; this many take a second.
const STEPS: u64 = 10_000_000;
/// Bytes of strings and lists ever made or gone through, besides [`PER_INPUT`] for every byte of the messages.
const BYTES: u64 = 64 << 20;
const PER_INPUT: u64 = 256;
/// Evaluations within each other.
pub(super) const DEEPEST: usize = 192;

/// Counts down.
#[derive(Debug)]
pub(super) struct Meter {
    steps: Cell<u64>,
    bytes: Cell<u64>,
    depth: Cell<usize>,
}

impl Meter {
    /// For messages of this many bytes.
    pub(super) fn new(input: u64) -> Meter {
        let bytes = BYTES.saturating_add(input.saturating_mul(PER_INPUT));
        Meter { steps: Cell::new(STEPS), bytes: Cell::new(bytes), depth: Cell::new(0) }
    }

    pub(super) fn steps(&self, n: usize) -> Result<(), Fault> {
        match self.steps.get().checked_sub(n as u64) {
            Some(left) => {
                self.steps.set(left);
                Ok(())
            }
            None => Err(Fault::limit(format!("it took more than {STEPS} steps"))),
        }
    }

    /// Before so many bytes are made or read.
    pub(super) fn bytes(&self, n: usize) -> Result<(), Fault> {
        match self.bytes.get().checked_sub(n as u64) {
            Some(left) => {
                self.bytes.set(left);
                Ok(())
            }
            None => Err(Fault::limit("it made more text than the messages explain".into())),
        }
    }

    /// Runs `f` one level deeper.
    pub(super) fn deeper<T>(&self, f: impl FnOnce() -> Result<T, Fault>) -> Result<T, Fault> {
        self.steps(1)?;
        let depth = self.depth.get();
        if depth == DEEPEST {
            return Err(Fault::limit(format!("it called itself more than {DEEPEST} deep")));
        }
        self.depth.set(depth + 1);
        let result = f();
        self.depth.set(depth);
        result
    }

    /// A string, paid for.
    pub(super) fn text(&self, text: &str) -> Result<Value, Fault> {
        self.bytes(text.len())?;
        Ok(Value::Str(text.into()))
    }
}

/// A string in the making, paid for as it grows.
pub(super) struct Text<'m> {
    meter: &'m Meter,
    text: String,
    most: usize,
}

impl<'m> Text<'m> {
    pub(super) fn new(meter: &'m Meter) -> Text<'m> {
        Text { meter, text: String::new(), most: usize::MAX }
    }

    /// One that may not be longer.
    pub(super) fn at_most(meter: &'m Meter, most: usize) -> Text<'m> {
        Text { meter, text: String::new(), most }
    }

    pub(super) fn push(&mut self, text: &str) -> Result<(), Fault> {
        self.meter.bytes(text.len())?;
        if text.len() > self.most - self.text.len() {
            return Err(Fault::limit(format!("its text is longer than {} bytes", self.most)));
        }
        self.text.push_str(text);
        Ok(())
    }

    pub(super) fn char(&mut self, c: char) -> Result<(), Fault> {
        self.push(c.encode_utf8(&mut [0; 4]))
    }

    /// The same text many times.
    pub(super) fn times(&mut self, text: &str, n: usize) -> Result<(), Fault> {
        let Some(whole) = text.len().checked_mul(n) else {
            return Err(Fault::limit("it multiplied a string beyond all measure".into()));
        };
        self.meter.bytes(whole)?;
        if whole > self.most - self.text.len() {
            return Err(Fault::limit(format!("its text is longer than {} bytes", self.most)));
        }
        self.text.extend(std::iter::repeat_n(text, if text.is_empty() { 0 } else { n }));
        Ok(())
    }

    pub(super) fn finish(self) -> Arc<str> {
        self.text.into()
    }

    pub(super) fn into_string(self) -> String {
        self.text
    }
}
