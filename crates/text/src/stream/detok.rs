//! Ids → text as they come. Piece by piece it is exactly what the tokenizer makes of all ids at once, and every piece is whole
//! characters.
//!
//! The library's own stream decodes a window of ids again for each, and guesses from a U+FFFD at the end whether more must come.
//! Here every step of the decoder is a small machine of its own, so that each token is read once.

use super::decoder::{Step, byte_level, fallback_byte, steps, word};
use std::sync::Arc;
use tokenizers::Tokenizer;

/// Bytes in a row that are kept together, because one that is not UTF-8 spoils all of its row. Beyond these a row is shown as it
/// comes: a stream must not stall over a text in a script that the vocabulary lacks.
pub(super) const LONGEST_ROW: usize = 64;

/// One text in the making.
#[derive(Clone, Debug)]
pub struct Detok {
    tokenizer: Arc<Tokenizer>,
    skip_special: bool,
    how: How,
}

#[derive(Clone, Debug)]
enum How {
    Machines(Vec<Machine>),
    /// A decoder that needs the whole text: all comes at the end, but for this much of it.
    Whole(Vec<u32>, String),
}

/// A step of the decoder, and what it has to remember.
#[derive(Clone, Debug)]
enum Machine {
    Replace {
        from: String,
        to: String,
    },
    WordPiece {
        prefix: String,
        cleanup: bool,
        first: bool,
    },
    Metaspace {
        replacement: char,
        drops_first: bool,
        first: bool,
    },
    /// Tokens with a space between: there is no decoder.
    Spaces {
        first: bool,
    },
    /// Holds the last token.
    Suffix {
        suffix: String,
        held: Option<String>,
    },
    /// Holds the bytes of a character that has not ended.
    ByteLevel(Vec<u8>),
    Fallback(Row),
    StripEach {
        content: char,
        start: usize,
        stop: usize,
    },
    /// Of the whole text: so many may still go at its beginning, and these are held because they may be its end.
    StripText {
        content: char,
        start: usize,
        stop: usize,
        held: String,
    },
}

/// `<0xNN>` in a row.
#[derive(Clone, Debug, Default)]
struct Row {
    bytes: Vec<u8>,
    /// It is longer than [`LONGEST_ROW`] and is being shown.
    shown: bool,
}

impl Detok {
    /// A new text. Special tokens are left out of it if `skip_special`.
    pub fn new(tokenizer: Arc<Tokenizer>, skip_special: bool) -> Detok {
        let machines = match tokenizer.get_decoder() {
            None => Some(vec![Machine::Spaces { first: true }]),
            Some(_) => steps(&tokenizer).and_then(machines),
        };
        let how = machines.map_or_else(|| How::Whole(Vec::new(), String::new()), How::Machines);
        Detok { tokenizer, skip_special, how }
    }

    /// The same within a text: nothing is done to its beginning, so that each token adds its own bytes.
    pub fn within(mut self) -> Detok {
        if let How::Machines(machines) = &mut self.how {
            machines.iter_mut().for_each(Machine::begin);
        }
        self
    }

    /// Whether text comes as ids do. A decoder that only works on whole texts gives all of it at the end.
    #[cfg(test)]
    pub fn streams(&self) -> bool {
        matches!(self.how, How::Machines(_))
    }

    /// The text that is certain with this id, if any. An id that no token has adds nothing, as in the library.
    pub fn push(&mut self, id: u32) -> Option<String> {
        let machines = match &mut self.how {
            How::Whole(ids, _) => {
                ids.push(id);
                return None;
            }
            How::Machines(machines) => machines,
        };
        let token = self.tokenizer.id_to_token(id)?;
        if self.skip_special && self.tokenizer.get_added_vocabulary().is_special_token(&token) {
            return None;
        }
        let mut out = String::new();
        run(machines, token, &mut out);
        Some(out).filter(|text| !text.is_empty())
    }

    /// Text that others wrote goes before: what comes from here on is what is added to it, the space that parts two words and
    /// the end of a character that it left open included. Gives the text, as far as its characters are whole.
    pub fn behind(&mut self, ids: &[u32]) -> Result<String, String> {
        let mut text: String = ids.iter().filter_map(|id| self.push(*id)).collect();
        match &mut self.how {
            How::Whole(ids, before) => {
                *before = self.tokenizer.decode(ids, self.skip_special).map_err(|e| e.to_string())?;
                text.clone_from(before);
            }
            How::Machines(machines) => {
                for i in 0..machines.len() {
                    let (done, rest) = machines.split_at_mut(i + 1);
                    done[i].settle(&mut |token| run(rest, token, &mut text));
                }
            }
        }
        Ok(text)
    }

    /// The rest of the text.
    pub fn finish(self) -> Result<String, String> {
        let mut machines = match self.how {
            How::Whole(ids, before) => {
                let whole = self.tokenizer.decode(&ids, self.skip_special).map_err(|e| e.to_string())?;
                return Ok(whole.strip_prefix(&before).map(str::to_string).unwrap_or(whole));
            }
            How::Machines(machines) => machines,
        };
        let mut out = String::new();
        for i in 0..machines.len() {
            let (done, rest) = machines.split_at_mut(i + 1);
            done[i].finish(&mut |token| run(rest, token, &mut out));
        }
        Ok(out)
    }
}

fn run(machines: &mut [Machine], token: String, out: &mut String) {
    match machines.split_first_mut() {
        None => out.push_str(&token),
        Some((first, rest)) => first.push(token, &mut |token| run(rest, token, out)),
    }
}

fn machines(steps: Vec<Step>) -> Option<Vec<Machine>> {
    let mut machines = Vec::new();
    let mut fused = false;
    for step in steps {
        machines.push(match step {
            Step::Fuse => {
                fused = true;
                continue;
            }
            Step::Strip { content, start, stop } if fused => {
                Machine::StripText { content, start, stop, held: String::new() }
            }
            // What stands for a whole text cannot be read in parts by the others.
            _ if fused => return None,
            Step::Strip { content, start, stop } => Machine::StripEach { content, start, stop },
            Step::Replace { from, to } => Machine::Replace { from, to },
            Step::WordPiece { prefix, cleanup } => Machine::WordPiece { prefix, cleanup, first: true },
            Step::Metaspace { replacement, drops_first } => {
                Machine::Metaspace { replacement, drops_first, first: true }
            }
            Step::Suffix(suffix) => Machine::Suffix { suffix, held: None },
            Step::ByteFallback => Machine::Fallback(Row::default()),
            Step::ByteLevel => {
                fused = true;
                Machine::ByteLevel(Vec::new())
            }
        });
    }
    Some(machines)
}

impl Machine {
    /// As if something had come before.
    fn begin(&mut self) {
        match self {
            Machine::WordPiece { first, .. } | Machine::Metaspace { first, .. } | Machine::Spaces { first } => {
                *first = false;
            }
            Machine::StripText { start, .. } => *start = 0,
            _ => {}
        }
    }

    fn push(&mut self, token: String, next: &mut dyn FnMut(String)) {
        match self {
            Machine::Replace { from, to } => next(token.replace(&*from, to)),
            Machine::WordPiece { prefix, cleanup, first } => {
                next(word(&token, prefix, *cleanup, std::mem::take(first)))
            }
            Machine::Metaspace { replacement, drops_first, first } => {
                let space = if std::mem::take(first) && *drops_first { "" } else { " " };
                next(token.replace(*replacement, space));
            }
            Machine::Spaces { first } => next(if std::mem::take(first) { token } else { format!(" {token}") }),
            Machine::Suffix { suffix, held } => {
                if let Some(before) = held.replace(token) {
                    next(before.replace(&*suffix, " "));
                }
            }
            Machine::ByteLevel(held) => {
                held.extend(byte_level(&token));
                let text = whole_characters(held, 1);
                if !text.is_empty() {
                    next(text);
                }
            }
            Machine::Fallback(row) => match fallback_byte(&token) {
                Some(byte) => {
                    row.bytes.push(byte);
                    row.shown |= row.bytes.len() > LONGEST_ROW;
                    if row.shown {
                        let text = whole_characters(&mut row.bytes, usize::MAX);
                        if !text.is_empty() {
                            next(text);
                        }
                    }
                }
                None => {
                    row.end(next);
                    next(token);
                }
            },
            Machine::StripEach { content, start, stop } => next(strip(&token, *content, *start, *stop)),
            Machine::StripText { content, start, stop, held } => {
                let mut text = std::mem::take(held) + &token;
                while *start > 0 && !text.is_empty() {
                    if !text.starts_with(*content) {
                        *start = 0;
                        break;
                    }
                    text.drain(..content.len_utf8());
                    *start -= 1;
                }
                let tail = text.len() - text.trim_end_matches(*content).len();
                let kept = (tail / content.len_utf8()).min(*stop) * content.len_utf8();
                *held = text.split_off(text.len() - kept);
                next(text);
            }
        }
    }

    /// Lets go of what is held, but for what only the next token decides: bytes of an open character, and the space behind a
    /// word.
    fn settle(&mut self, next: &mut dyn FnMut(String)) {
        let text = match self {
            Machine::Suffix { suffix, held } => {
                let last = held.take().unwrap_or_default();
                *held = last.ends_with(&*suffix).then(|| suffix.clone());
                Some(last.replace(&*suffix, ""))
            }
            Machine::Fallback(row) => Some(whole_characters(&mut row.bytes, usize::MAX)),
            _ => None,
        };
        if let Some(text) = text.filter(|text| !text.is_empty()) {
            next(text);
        }
    }

    fn finish(&mut self, next: &mut dyn FnMut(String)) {
        match self {
            Machine::Suffix { suffix, held } => {
                if let Some(last) = held.take() {
                    next(last.replace(&*suffix, ""));
                }
            }
            Machine::ByteLevel(held) if !held.is_empty() => next(String::from_utf8_lossy(held).into_owned()),
            Machine::Fallback(row) => row.end(next),
            // What is held is what is stripped.
            _ => {}
        }
    }
}

impl Row {
    /// A row that is not UTF-8 is a U+FFFD for every byte.
    fn end(&mut self, next: &mut dyn FnMut(String)) {
        let bytes = std::mem::take(&mut self.bytes);
        self.shown = false;
        if !bytes.is_empty() {
            let marks = bytes.len();
            next(String::from_utf8(bytes).unwrap_or_else(|_| "\u{fffd}".repeat(marks)));
        }
    }
}

/// Takes the characters that have ended. A broken one becomes a U+FFFD for each of its bytes, but not more than `marks`.
fn whole_characters(held: &mut Vec<u8>, marks: usize) -> String {
    let mut text = String::new();
    let mut at = 0;
    while at < held.len() {
        match std::str::from_utf8(&held[at..]) {
            Ok(rest) => {
                text.push_str(rest);
                at = held.len();
            }
            Err(error) => {
                let good = at + error.valid_up_to();
                text.push_str(std::str::from_utf8(&held[at..good]).unwrap_or_default());
                at = good;
                let Some(bad) = error.error_len() else { break };
                text.extend(std::iter::repeat_n('\u{fffd}', bad.min(marks)));
                at += bad;
            }
        }
    }
    held.drain(..at);
    text
}

fn strip(token: &str, content: char, start: usize, stop: usize) -> String {
    let mut text = token;
    for _ in 0..start {
        text = text.strip_prefix(content).unwrap_or(text);
    }
    for _ in 0..stop {
        text = text.strip_suffix(content).unwrap_or(text);
    }
    text.into()
}
