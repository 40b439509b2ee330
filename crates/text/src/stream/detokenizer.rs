//! Streaming detokenizer. The concatenated pieces equal what the tokenizer decodes from all ids at
//! once, and every piece consists of whole characters.
//!
//! The library's stream decodes a window of ids again for each id, and guesses from a U+FFFD at the
//! end whether more bytes must come. Here every decoder step keeps its own state, so that each
//! token is read once.

use super::decoder::{DecoderStep, byte_level, fallback_byte, steps, word};
use std::sync::Arc;
use tokenizers::Tokenizer;

/// Byte-fallback tokens in a row are held back together, because one invalid byte makes the whole
/// run invalid UTF-8. A longer run is output as it arrives: a stream must not stall on a script
/// that the vocabulary lacks.
pub(super) const LONGEST_BYTE_RUN: usize = 64;

/// The detokenizer of one text.
#[derive(Clone, Debug)]
pub struct Detokenizer {
    tokenizer: Arc<Tokenizer>,
    skip_special: bool,
    mode: Mode,
}

#[derive(Clone, Debug)]
enum Mode {
    Streaming(Vec<StepState>),
    /// A decoder that needs all ids: `finish` returns the text, without this prefix.
    Buffered(Vec<u32>, String),
}

/// A decoder step with its state.
#[derive(Clone, Debug)]
enum StepState {
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
    /// No decoder: tokens are joined by spaces.
    Spaces {
        first: bool,
    },
    /// Holds the last token back.
    Suffix {
        suffix: String,
        held: Option<String>,
    },
    /// Holds the bytes of an incomplete character.
    ByteLevel(Vec<u8>),
    Fallback(ByteRun),
    StripEach {
        content: char,
        start: usize,
        stop: usize,
    },
    /// For the whole text: `start` characters may still be stripped from its beginning, and `held`
    /// may turn out to be its end.
    StripText {
        content: char,
        start: usize,
        stop: usize,
        held: String,
    },
}

/// Consecutive `<0xNN>` tokens.
#[derive(Clone, Debug, Default)]
struct ByteRun {
    bytes: Vec<u8>,
    /// It is longer than [`LONGEST_BYTE_RUN`] and is output as it arrives.
    streaming: bool,
}

impl Detokenizer {
    /// Starts a text. Special tokens are left out if `skip_special`.
    pub fn new(tokenizer: Arc<Tokenizer>, skip_special: bool) -> Detokenizer {
        let states = match tokenizer.get_decoder() {
            None => Some(vec![StepState::Spaces { first: true }]),
            Some(_) => steps(&tokenizer).and_then(states),
        };
        let mode = states.map_or_else(|| Mode::Buffered(Vec::new(), String::new()), Mode::Streaming);
        Detokenizer { tokenizer, skip_special, mode }
    }

    /// Starts in the middle of a text: the beginning gets no special treatment, so that each token
    /// adds its own bytes.
    pub fn within(mut self) -> Detokenizer {
        if let Mode::Streaming(states) = &mut self.mode {
            states.iter_mut().for_each(StepState::begin);
        }
        self
    }

    /// Whether text streams. A decoder that only works on whole texts returns all of it at the end.
    #[cfg(test)]
    pub fn streams(&self) -> bool {
        matches!(self.mode, Mode::Streaming(_))
    }

    /// Adds an id and returns the text that is now final, if any. Like the library, ignores unknown
    /// ids.
    pub fn push(&mut self, id: u32) -> Option<String> {
        let states = match &mut self.mode {
            Mode::Buffered(ids, _) => {
                ids.push(id);
                return None;
            }
            Mode::Streaming(states) => states,
        };
        let token = self.tokenizer.id_to_token(id)?;
        if self.skip_special && self.tokenizer.get_added_vocabulary().is_special_token(&token) {
            return None;
        }
        let mut out = String::new();
        run(states, token, &mut out);
        Some(out).filter(|text| !text.is_empty())
    }

    /// Continues a prompt: later output is what follows the prompt, including the space between two
    /// words and the rest of a character that the prompt left incomplete. Returns the prompt's
    /// text, as far as its characters are complete.
    pub fn continue_from(&mut self, ids: &[u32]) -> Result<String, String> {
        let mut text: String = ids.iter().filter_map(|id| self.push(*id)).collect();
        match &mut self.mode {
            Mode::Buffered(ids, before) => {
                *before = self.tokenizer.decode(ids, self.skip_special).map_err(|e| e.to_string())?;
                text.clone_from(before);
            }
            Mode::Streaming(states) => {
                for i in 0..states.len() {
                    let (done, rest) = states.split_at_mut(i + 1);
                    done[i].settle(&mut |token| run(rest, token, &mut text));
                }
            }
        }
        Ok(text)
    }

    /// Ends the text and returns the rest of it.
    pub fn finish(self) -> Result<String, String> {
        let mut states = match self.mode {
            Mode::Buffered(ids, before) => {
                let whole = self.tokenizer.decode(&ids, self.skip_special).map_err(|e| e.to_string())?;
                // A decoder may change the end of the prompt's text when more tokens follow: the
                // text that both have in common was already returned.
                let common = whole.chars().zip(before.chars()).take_while(|(a, b)| a == b).map(|(a, _)| a.len_utf8());
                let shared: usize = common.sum();
                return Ok(whole[shared..].to_string());
            }
            Mode::Streaming(states) => states,
        };
        let mut out = String::new();
        for i in 0..states.len() {
            let (done, rest) = states.split_at_mut(i + 1);
            done[i].finish(&mut |token| run(rest, token, &mut out));
        }
        Ok(out)
    }
}

fn run(states: &mut [StepState], token: String, out: &mut String) {
    match states.split_first_mut() {
        None => out.push_str(&token),
        Some((first, rest)) => first.push(token, &mut |token| run(rest, token, out)),
    }
}

fn states(steps: Vec<DecoderStep>) -> Option<Vec<StepState>> {
    let mut states = Vec::new();
    let mut fused = false;
    for step in steps {
        states.push(match step {
            DecoderStep::Fuse => {
                fused = true;
                continue;
            }
            DecoderStep::Strip { content, start, stop } if fused => {
                StepState::StripText { content, start, stop, held: String::new() }
            }
            // Other steps cannot process a fused text incrementally.
            _ if fused => return None,
            DecoderStep::Strip { content, start, stop } => StepState::StripEach { content, start, stop },
            DecoderStep::Replace { from, to } => StepState::Replace { from, to },
            DecoderStep::WordPiece { prefix, cleanup } => StepState::WordPiece { prefix, cleanup, first: true },
            DecoderStep::Metaspace { replacement, drops_first } => {
                StepState::Metaspace { replacement, drops_first, first: true }
            }
            DecoderStep::Suffix(suffix) => StepState::Suffix { suffix, held: None },
            DecoderStep::ByteFallback => StepState::Fallback(ByteRun::default()),
            DecoderStep::ByteLevel => {
                fused = true;
                StepState::ByteLevel(Vec::new())
            }
        });
    }
    Some(states)
}

impl StepState {
    /// Skips the treatment of the beginning of a text.
    fn begin(&mut self) {
        match self {
            StepState::WordPiece { first, .. } | StepState::Metaspace { first, .. } | StepState::Spaces { first } => {
                *first = false;
            }
            StepState::StripText { start, .. } => *start = 0,
            _ => {}
        }
    }

    fn push(&mut self, token: String, next: &mut dyn FnMut(String)) {
        match self {
            StepState::Replace { from, to } => next(token.replace(&*from, to)),
            StepState::WordPiece { prefix, cleanup, first } => {
                next(word(&token, prefix, *cleanup, std::mem::take(first)))
            }
            StepState::Metaspace { replacement, drops_first, first } => {
                let space = if std::mem::take(first) && *drops_first { "" } else { " " };
                next(token.replace(*replacement, space));
            }
            StepState::Spaces { first } => next(if std::mem::take(first) { token } else { format!(" {token}") }),
            StepState::Suffix { suffix, held } => {
                if let Some(before) = held.replace(token) {
                    next(before.replace(&*suffix, " "));
                }
            }
            StepState::ByteLevel(held) => {
                held.extend(byte_level(&token));
                let text = whole_characters(held, 1);
                if !text.is_empty() {
                    next(text);
                }
            }
            StepState::Fallback(run) => match fallback_byte(&token) {
                Some(byte) => {
                    run.bytes.push(byte);
                    run.streaming |= run.bytes.len() > LONGEST_BYTE_RUN;
                    if run.streaming {
                        let text = whole_characters(&mut run.bytes, usize::MAX);
                        if !text.is_empty() {
                            next(text);
                        }
                    }
                }
                None => {
                    run.end(next);
                    next(token);
                }
            },
            StepState::StripEach { content, start, stop } => next(strip(&token, *content, *start, *stop)),
            StepState::StripText { content, start, stop, held } => {
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

    /// Outputs held text, except what only the next token decides: bytes of an incomplete
    /// character, and the space after a word.
    fn settle(&mut self, next: &mut dyn FnMut(String)) {
        let text = match self {
            StepState::Suffix { suffix, held } => {
                let last = held.take().unwrap_or_default();
                *held = last.ends_with(&*suffix).then(|| suffix.clone());
                Some(last.replace(&*suffix, ""))
            }
            StepState::Fallback(run) => Some(whole_characters(&mut run.bytes, usize::MAX)),
            _ => None,
        };
        if let Some(text) = text.filter(|text| !text.is_empty()) {
            next(text);
        }
    }

    fn finish(&mut self, next: &mut dyn FnMut(String)) {
        match self {
            StepState::Suffix { suffix, held } => {
                if let Some(last) = held.take() {
                    next(last.replace(&*suffix, ""));
                }
            }
            StepState::ByteLevel(held) if !held.is_empty() => next(String::from_utf8_lossy(held).into_owned()),
            StepState::Fallback(run) => run.end(next),
            // Held text of `StripText` is stripped.
            _ => {}
        }
    }
}

impl ByteRun {
    /// An invalid run becomes a U+FFFD for every byte.
    fn end(&mut self, next: &mut dyn FnMut(String)) {
        let bytes = std::mem::take(&mut self.bytes);
        self.streaming = false;
        if !bytes.is_empty() {
            let marks = bytes.len();
            next(String::from_utf8(bytes).unwrap_or_else(|_| "\u{fffd}".repeat(marks)));
        }
    }
}

/// Removes and returns the complete characters. An invalid one becomes a U+FFFD for each of its
/// bytes, at most `marks`.
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
