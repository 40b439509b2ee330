//! Texts to tokens, many at a time; what is too long is cut or refused, as the caller wants it.

use super::Tokenizer;
use super::open::sound;
use super::words::{Placed, placed};
use crate::{Error, Result};
use sconce_ops::threads;
use std::sync::Arc;
use tokenizers::EncodeInput;

/// What becomes of a text that is longer than the model can take.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Truncate {
    /// Its end is cut off, and that is told.
    #[default]
    Right,
    /// Its beginning is cut off, and that is told.
    Left,
    /// It is refused, with its length.
    Never,
}

/// A text, or what somebody made of one.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum TextOrTokens<'a> {
    /// A text.
    Text(&'a str),
    /// Tokens as the model is to see them, those that begin and end a text included.
    Tokens(&'a [u32]),
}

/// A text, or two that belong together.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct TextOrPair<'a> {
    /// The first.
    pub text: &'a str,
    /// The second, where the model reads pairs (entailment, duplicates).
    pub pair: Option<&'a str>,
}

impl<'a> From<(&'a str, &'a str)> for TextOrPair<'a> {
    fn from((text, pair): (&'a str, &'a str)) -> Self {
        TextOrPair { text, pair: Some(pair) }
    }
}

impl<'a> From<&'a str> for TextOrPair<'a> {
    fn from(text: &'a str) -> Self {
        TextOrPair { text, pair: None }
    }
}

/// A text as the model will see it.
#[derive(Clone, Debug)]
pub struct Encoded {
    /// Token ids.
    pub ids: Vec<u32>,
    /// Which of two texts each token belongs to; empty means the first throughout.
    pub type_ids: Vec<u32>,
    /// Whether the text was longer than the model can take.
    pub truncated: bool,
    /// Whether the last token is a special one, such as `[SEP]`.
    ends_special: bool,
    /// Whether the first one is, such as `[CLS]`.
    pub starts_special: bool,
}

/// A tokenizer, and what becomes of texts that are too long.
#[derive(Clone, Copy)]
pub struct Reader<'a> {
    pub(super) tokenizer: &'a Tokenizer,
    pub(super) truncate: Truncate,
}

/// One that cuts at a given length.
struct Cutter<'a> {
    reader: Reader<'a>,
    inner: Arc<tokenizers::Tokenizer>,
    most: usize,
    /// Whether tokens are added that begin and end a text.
    special: bool,
    /// Whether places of tokens are counted, in characters, which takes longer.
    places: bool,
}

impl<'a> Reader<'a> {
    /// The tokenizer.
    pub fn tokenizer(&self) -> &'a Tokenizer {
        self.tokenizer
    }

    /// What becomes of texts that are too long.
    pub fn truncate(&self) -> Truncate {
        self.truncate
    }

    /// Tokens of every text, in order.
    pub fn encode<T: AsRef<str> + Sync>(&self, texts: &[T], prompt: &str) -> Result<Vec<Encoded>> {
        self.encode_to(texts, prompt, self.tokenizer.max_tokens)
    }

    /// The same, cut at `most` tokens where that is less than the model can take.
    pub fn encode_to<T: AsRef<str> + Sync>(&self, texts: &[T], prompt: &str, most: usize) -> Result<Vec<Encoded>> {
        let cutter = self.cutter(most)?;
        each(texts, |text| cutter.text(text.as_ref(), prompt))
    }

    /// The same where some are tokens already, before which no prompt is put.
    pub fn encode_inputs(&self, inputs: &[TextOrTokens<'_>], prompt: &str) -> Result<Vec<Encoded>> {
        let cutter = self.cutter(self.tokenizer.max_tokens)?;
        each(inputs, |input| match input {
            TextOrTokens::Text(text) => cutter.text(text, prompt),
            TextOrTokens::Tokens(ids) => cutter.tokens(ids),
        })
    }

    /// Tokens of texts and pairs, in order; of a pair the longer text is cut first.
    pub fn encode_pairs(&self, texts: &[TextOrPair<'_>]) -> Result<Vec<Encoded>> {
        let cutter = self.cutter(self.tokenizer.max_tokens)?;
        each(texts, |t| {
            let input = || match t.pair {
                Some(pair) => EncodeInput::from((t.text, pair)),
                None => EncodeInput::from(t.text),
            };
            Ok(cutter.input(input, t.text.len() + t.pair.map_or(0, str::len), false)?.0)
        })
    }

    /// Tokens of every text without those that begin and end one, cut at `most`.
    pub fn encode_bare<T: AsRef<str> + Sync>(&self, texts: &[T], most: usize) -> Result<Vec<Encoded>> {
        // Cut by hand, which is simple where nothing is added: another tokenizer that cuts there would double the vocabulary.
        let cutter = Cutter { most, special: false, ..self.cutter(self.tokenizer.max_tokens)? };
        each(texts, |text| {
            let mut encoded = cutter.text(text.as_ref(), "")?;
            encoded.type_ids.clear();
            Ok(encoded)
        })
    }

    /// Tokens of every text with their places in it, in order.
    pub fn encode_placed<T: AsRef<str> + Sync>(&self, texts: &[T]) -> Result<Vec<(Encoded, Vec<Placed>)>> {
        let cutter = Cutter { places: true, ..self.cutter(self.tokenizer.max_tokens)? };
        each(texts, |text| {
            let text = text.as_ref();
            let (encoded, encoding) = cutter.input(|| EncodeInput::from(text), text.len(), false)?;
            Ok((encoded, placed(&encoding)))
        })
    }

    /// How many tokens at the head of a sequence belong to `prompt`: its own, and the special ones before them.
    pub fn prompt_tokens(&self, prompt: &str) -> Result<usize> {
        let cutter = Reader { truncate: Truncate::Right, ..*self }.cutter(self.tokenizer.max_tokens)?;
        let encoded = cutter.text(prompt, "").map_err(|unread| match unread {
            Unread::TooLong(why) | Unread::Other(why) => Error::Input(format!("the prompt: {why}")),
        })?;
        Ok(encoded.ids.len() - usize::from(encoded.ends_special))
    }

    fn cutter(&self, most: usize) -> Result<Cutter<'a>> {
        let most = most.min(self.tokenizer.max_tokens);
        let inner = self.tokenizer.cutting(Some((most, self.truncate == Truncate::Left)))?;
        // A table of words knows no beginning and end.
        Ok(Cutter { reader: *self, inner, most, special: self.tokenizer.table.is_none(), places: false })
    }
}

/// `f` of all, on all threads; which one an error is about is told.
fn each<T: Sync, U: Send>(all: &[T], f: impl Fn(&T) -> Result<U, Unread> + Sync) -> Result<Vec<U>> {
    let at = |text: usize| {
        move |unread| match unread {
            Unread::TooLong(why) => Error::TooLong { text, why },
            Unread::Other(why) => Error::Text { text, why },
        }
    };
    threads::map(all.len(), |i| f(&all[i]).map_err(at(i))).into_iter().collect()
}

/// Why a text has no tokens.
enum Unread {
    TooLong(String),
    Other(String),
}

impl From<String> for Unread {
    fn from(why: String) -> Unread {
        Unread::Other(why)
    }
}

impl Cutter<'_> {
    fn text(&self, text: &str, prompt: &str) -> Result<Encoded, Unread> {
        let joined = if prompt.is_empty() { text } else { &format!("{prompt}{text}") };
        let Reader { tokenizer, truncate } = self.reader;
        // What is out of reach is not looked at.
        let part = match truncate {
            Truncate::Left => {
                let nth = joined.char_indices().rev().nth(tokenizer.most_chars.saturating_sub(1));
                &joined[nth.map_or(0, |(i, _)| i)..]
            }
            Truncate::Right | Truncate::Never => {
                &joined[..joined.char_indices().nth(tokenizer.most_chars).map_or(joined.len(), |(i, _)| i)]
            }
        };
        let is_shorter = part.len() < joined.len();
        if !is_shorter && let Some(encoded) = self.plain(part) {
            return Ok(encoded);
        }
        let (mut encoded, _) = self.input(|| EncodeInput::from(part), text.len(), is_shorter)?;
        if let Some(unknown) = tokenizer.unknown {
            encoded.ids.retain(|id| *id != unknown);
            encoded.type_ids.clear();
        }
        Ok(encoded)
    }

    /// The same of a text that needs neither the library nor a cut.
    fn plain(&self, text: &str) -> Option<Encoded> {
        let plain = self.reader.tokenizer.plain.as_ref().filter(|_| self.special && !self.places)?;
        let ids = plain.encode(&self.inner, text, self.most)?;
        let type_ids = vec![0; ids.len()];
        Some(Encoded { ids, type_ids, truncated: false, ends_special: true, starts_special: true })
    }

    fn tokens(&self, ids: &[u32]) -> Result<Encoded, Unread> {
        let (is_longer, over) = (ids.len() > self.most, ids.len().saturating_sub(self.most));
        let ids = match self.reader.truncate {
            _ if ids.is_empty() => return Err("it has no tokens, so it has no vector".to_string().into()),
            Truncate::Never if is_longer => return Err(self.too_long(&ids.len().to_string())),
            Truncate::Left => &ids[over..],
            Truncate::Right | Truncate::Never => &ids[..ids.len() - over],
        };
        let (ids, type_ids) = (ids.to_vec(), Vec::new());
        Ok(Encoded { ids, type_ids, truncated: is_longer, ends_special: false, starts_special: false })
    }

    /// A text of so many bytes, of which a part may be left out already.
    fn input<'s>(
        &self,
        input: impl Fn() -> EncodeInput<'s>,
        bytes: usize,
        is_shorter: bool,
    ) -> Result<(Encoded, tokenizers::Encoding), Unread> {
        let failed = |e: String| format!("the tokenizer failed on its {bytes} bytes: {e}");
        let encoding = match self.places {
            true => sound(|| self.inner.encode_char_offsets(input(), self.special)),
            false => sound(|| self.inner.encode_fast(input(), self.special)),
        };
        let encoding = encoding.map_err(failed)?;
        let mut encoded = self.checked(&encoding)?;
        encoded.truncated |= is_shorter;
        if encoded.truncated && self.reader.truncate == Truncate::Never {
            let whole = self.reader.tokenizer.cutting(None).map_err(|e| e.to_string())?;
            let whole = sound(|| whole.encode_fast(input(), self.special)).map_err(failed)?;
            let more = if is_shorter { "more than " } else { "" };
            return Err(self.too_long(&format!("{more}{}", whole.len())));
        }
        Ok((encoded, encoding))
    }

    fn too_long(&self, tokens: &str) -> Unread {
        let most = self.most;
        Unread::TooLong(format!(
            "it comes to {tokens} tokens, and the model takes {most}: shorten it, or let it be cut"
        ))
    }

    fn checked(&self, encoding: &tokenizers::Encoding) -> Result<Encoded, Unread> {
        if encoding.is_empty() && self.reader.tokenizer.table.is_none() {
            return Err("this tokenizer makes no token of it, so it has no vector".to_string().into());
        }
        let (ids, types) = (encoding.get_ids(), encoding.get_type_ids());
        let over = ids.len().saturating_sub(self.most);
        // A template that adds more special tokens than there is room for is not cut by the library.
        if over > 0 && self.special {
            let what = format!("it comes to {} tokens, and the model takes {}", encoding.len(), self.most);
            return Err(Unread::TooLong(what));
        }
        let kept = match self.reader.truncate {
            Truncate::Left => over..ids.len(),
            Truncate::Right | Truncate::Never => 0..ids.len() - over,
        };
        Ok(Encoded {
            ids: ids[kept.clone()].to_vec(),
            type_ids: types[kept].to_vec(),
            truncated: over > 0 || !encoding.get_overflowing().is_empty(),
            ends_special: encoding.get_special_tokens_mask().last() == Some(&1),
            starts_special: encoding.get_special_tokens_mask().first() == Some(&1),
        })
    }
}
