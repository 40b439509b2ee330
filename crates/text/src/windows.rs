//! Splits long texts into windows of tokens that overlap, as the `stride` of Hugging Face's
//! tokenizers does: each window has the special tokens, and the prompt if there is one.

use crate::open::catch_panic;
use crate::reader::{EncodeError, Encoded, Reader, map_parallel};
use crate::words::{Placed, placed};
use crate::{Error, Result};
use std::sync::Arc;
use tokenizers::{Encoding, PostProcessor, Tokenizer, TruncationDirection};

/// How texts are split.
#[derive(Clone, Copy, Debug)]
pub struct Windowing<'a> {
    /// The prompt before the tokens of each window; empty: none.
    pub prompt: &'a str,
    /// The longest window in tokens, special tokens and prompt included; at most what the model can
    /// take.
    pub tokens: usize,
    /// Tokens of the text that a window shares with the one before; `None`: an eighth of `tokens`.
    pub overlap: Option<usize>,
}

/// A part of a text, as the model reads it.
#[derive(Clone, Debug)]
pub struct Window {
    /// Its tokens, with special tokens and prompt.
    pub encoded: Encoded,
    /// The offsets of the tokens, in characters of the text. Those of special tokens and of the
    /// prompt are 0.
    pub places: Vec<Placed>,
    /// Tokens of the text in it.
    pub own: usize,
}

impl Window {
    /// The part of the text that its tokens cover, in characters.
    pub fn range(&self) -> std::ops::Range<usize> {
        let own = || self.places.iter().filter(|token| token.end > 0);
        own().map(|token| token.start).min().unwrap_or(0)..own().map(|token| token.end).max().unwrap_or(0)
    }
}

/// Splits texts for a reader.
struct Splitter<'a> {
    windowing: Windowing<'a>,
    /// Neither truncates nor adds special tokens.
    bare: Arc<Tokenizer>,
    /// Adds the special tokens.
    whole: Arc<Tokenizer>,
    special: bool,
    /// The longest window without special tokens.
    room: usize,
    overlap: usize,
    /// Characters of the prompt.
    prompt_chars: usize,
    /// For model2vec: the unknown token, which is dropped.
    unknown: Option<u32>,
}

impl Reader<'_> {
    /// Tokenizes every text as windows that together have all of its tokens. A text that fits into
    /// one window gives one.
    pub fn encode_windows<T: AsRef<str> + Sync>(
        &self,
        texts: &[T],
        windowing: Windowing<'_>,
    ) -> Result<Vec<Vec<Window>>> {
        let splitter = Splitter::new(self, windowing)?;
        map_parallel(texts, |text| splitter.split(text.as_ref()))
    }
}

impl<'a> Splitter<'a> {
    fn new(reader: &Reader<'_>, windowing: Windowing<'a>) -> Result<Splitter<'a>> {
        let tokenizer = reader.tokenizer();
        let (whole, bare) = (tokenizer.truncating(None)?, tokenizer.bare()?);
        let special = tokenizer.table.is_none();
        let added = whole.get_post_processor().filter(|_| special).map_or(0, |processor| processor.added_tokens(false));
        let tokens = windowing.tokens.min(reader.max_tokens());
        let prompt = match windowing.prompt {
            "" => 0,
            prompt => catch_panic(|| bare.encode_char_offsets(prompt, false)).map_err(Error::Input)?.len(),
        };
        let room = tokens.saturating_sub(added);
        // At most half, so that the windows have at most twice the tokens of the text.
        let most = room.saturating_sub(prompt) / 2;
        let overlap = windowing.overlap.unwrap_or((tokens / 8).min(most));
        if room <= prompt {
            return Err(Error::Input(format!(
                "windows of {tokens} tokens have no room for a text beside {added} special tokens and {prompt} of the \
                 prompt: take longer ones"
            )));
        }
        if overlap > most {
            return Err(Error::Input(format!(
                "windows of {tokens} tokens have room for {} tokens of the text, and half of them at most may overlap: \
                 {overlap} is too many",
                room.saturating_sub(prompt)
            )));
        }
        let prompt_chars = windowing.prompt.chars().count();
        let unknown = tokenizer.unknown;
        Ok(Splitter { windowing, bare, whole, special, room, overlap, prompt_chars, unknown })
    }

    fn split(&self, text: &str) -> Result<Vec<Window>, EncodeError> {
        let prompt = self.windowing.prompt;
        let joined = if prompt.is_empty() { text } else { &format!("{prompt}{text}") };
        let failed = |e: String| format!("the tokenizer failed on its {} bytes: {e}", text.len());
        let mut rest = catch_panic(|| self.bare.encode_char_offsets(joined, false)).map_err(failed)?;
        let in_prompt = |offsets: &(usize, usize)| offsets.1 <= self.prompt_chars;
        let lead = match prompt {
            "" => 0,
            _ => rest.get_offsets().iter().take_while(|offsets| in_prompt(offsets)).count(),
        };
        let room = self.room.saturating_sub(lead);
        if room <= self.overlap {
            return Err(format!("the prompt leaves {room} tokens of a window, and {} overlap", self.overlap).into());
        }
        let cut = || {
            let mut head = None;
            if lead > 0 {
                let (mut first, tokens) = (rest.clone(), rest.len());
                first.truncate(lead, 0, TruncationDirection::Right);
                first.take_overflowing();
                rest.truncate(tokens - lead, 0, TruncationDirection::Left);
                rest.take_overflowing();
                head = Some(first);
            }
            rest.truncate(room, self.overlap, TruncationDirection::Right);
            let others = rest.take_overflowing();
            let parts = std::iter::once(rest).chain(others);
            parts.map(|part| self.window(head.as_ref(), part)).collect::<tokenizers::Result<Vec<_>>>()
        };
        let windows = catch_panic(cut).map_err(failed)?;
        match windows.iter().all(|window| window.encoded.ids.is_empty()) && self.special {
            true => Err("the tokenizer produces no tokens for it, so it has no embedding".to_string().into()),
            false => Ok(windows),
        }
    }

    /// A window of some tokens of the text.
    fn window(&self, head: Option<&Encoding>, part: Encoding) -> tokenizers::Result<Window> {
        let encoding = match head {
            Some(head) => Encoding::merge([head.clone(), part], false),
            None => part,
        };
        let encoding = match self.whole.get_post_processor() {
            Some(processor) => processor.process(encoding, None, self.special)?,
            None => encoding,
        };
        let (mut encoded, mut places) = (Encoded::whole(&encoding), placed(&encoding));
        for token in &mut places {
            let is_own = !token.special && token.end > self.prompt_chars;
            let of_text = |at: usize| if is_own { at.saturating_sub(self.prompt_chars) } else { 0 };
            (token.start, token.end) = (of_text(token.start), of_text(token.end));
        }
        if let Some(unknown) = self.unknown {
            encoded.ids.retain(|id| *id != unknown);
            encoded.type_ids.clear();
            places.retain(|token| token.id != unknown);
        }
        let own = places.iter().filter(|token| token.end > 0).count();
        Ok(Window { encoded, places, own })
    }
}
