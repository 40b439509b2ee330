//! Limits on time and memory. A template is a program from the internet: it must end soon and must
//! not fill the memory.

use super::Fault;
use super::value::Value;
use std::cell::Cell;
use std::sync::Arc;

/// Most evaluations. The largest chats take some hundred thousand; this many take a second.
const MAX_STEPS: u64 = 10_000_000;
/// Most bytes of strings and lists created or scanned, plus [`PER_INPUT_BYTE`] for every byte of
/// the messages.
const MAX_BYTES: u64 = 64 << 20;
const PER_INPUT_BYTE: u64 = 256;
/// Deepest nesting of evaluations.
pub(super) const MAX_DEPTH: usize = 192;

/// Counts the remaining budget.
#[derive(Debug)]
pub(super) struct Meter {
    steps: Cell<u64>,
    bytes: Cell<u64>,
    depth: Cell<usize>,
}

impl Meter {
    /// A budget for messages of this many bytes.
    pub(super) fn new(input: u64) -> Meter {
        let bytes = MAX_BYTES.saturating_add(input.saturating_mul(PER_INPUT_BYTE));
        Meter { steps: Cell::new(MAX_STEPS), bytes: Cell::new(bytes), depth: Cell::new(0) }
    }

    pub(super) fn steps(&self, n: usize) -> Result<(), Fault> {
        match self.steps.get().checked_sub(n as u64) {
            Some(left) => {
                self.steps.set(left);
                Ok(())
            }
            None => Err(Fault::limit(format!("it took more than {MAX_STEPS} steps"))),
        }
    }

    /// Charges bytes before they are created or read.
    pub(super) fn bytes(&self, n: usize) -> Result<(), Fault> {
        match self.bytes.get().checked_sub(n as u64) {
            Some(left) => {
                self.bytes.set(left);
                Ok(())
            }
            None => Err(Fault::limit("it created too much text for the size of the messages".into())),
        }
    }

    /// Runs `f` one level deeper.
    pub(super) fn deeper<T>(&self, f: impl FnOnce() -> Result<T, Fault>) -> Result<T, Fault> {
        self.steps(1)?;
        let depth = self.depth.get();
        if depth == MAX_DEPTH {
            return Err(Fault::limit(format!("it nests more than {MAX_DEPTH} evaluations deep")));
        }
        self.depth.set(depth + 1);
        let result = f();
        self.depth.set(depth);
        result
    }

    /// A string whose bytes are charged.
    pub(super) fn text(&self, text: &str) -> Result<Value, Fault> {
        self.bytes(text.len())?;
        Ok(Value::Str(text.into()))
    }
}

/// A string under construction, charged as it grows.
pub(super) struct TextBuilder<'m> {
    meter: &'m Meter,
    text: String,
    most: usize,
}

impl<'m> TextBuilder<'m> {
    pub(super) fn new(meter: &'m Meter) -> TextBuilder<'m> {
        TextBuilder { meter, text: String::new(), most: usize::MAX }
    }

    /// A builder with a limit on the length.
    pub(super) fn at_most(meter: &'m Meter, most: usize) -> TextBuilder<'m> {
        TextBuilder { meter, text: String::new(), most }
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

    /// Appends the same text several times.
    pub(super) fn times(&mut self, text: &str, n: usize) -> Result<(), Fault> {
        let Some(whole) = text.len().checked_mul(n) else {
            return Err(Fault::limit("it repeated a string too often".into()));
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
