//! Tokenizes batches of texts in parallel. Texts over the token limit are truncated or refused.

use super::ModelTokenizer;
use super::open::catch_panic;
use super::words::{Placed, placed};
use crate::{Error, Result};
use sconce_ops::threads;
use std::sync::Arc;
use tokenizers::EncodeInput;

/// What happens to a text that is longer than the model can take.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Truncate {
    /// Its end is cut off, and [`Encoded::truncated`] is set.
    #[default]
    Right,
    /// Its beginning is cut off, and [`Encoded::truncated`] is set.
    Left,
    /// It is refused; the error gives its length.
    Never,
}

/// A text, or its tokens.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum TextOrTokens<'a> {
    /// A text.
    Text(&'a str),
    /// Token ids, passed to the model unchanged: the special tokens must be included.
    Tokens(&'a [u32]),
}

/// A text or a text pair.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct TextOrPair<'a> {
    /// The text, or the first of a pair.
    pub text: &'a str,
    /// The second of a pair, for models that read pairs (entailment, duplicates).
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

/// A tokenized text.
#[derive(Clone, Debug)]
pub struct Encoded {
    /// Token ids.
    pub ids: Vec<u32>,
    /// Token type ids: which text of a pair each token belongs to. Empty means the first
    /// throughout.
    pub type_ids: Vec<u32>,
    /// Whether the text was truncated.
    pub truncated: bool,
    /// Whether the last token is special, such as `[SEP]`.
    ends_special: bool,
    /// Whether the first token is special, such as `[CLS]`.
    pub starts_special: bool,
}

impl Encoded {
    /// All tokens of an encoding.
    pub(super) fn whole(encoding: &tokenizers::Encoding) -> Encoded {
        let mask = encoding.get_special_tokens_mask();
        Encoded {
            ids: encoding.get_ids().to_vec(),
            type_ids: encoding.get_type_ids().to_vec(),
            truncated: false,
            ends_special: mask.last() == Some(&1),
            starts_special: mask.first() == Some(&1),
        }
    }
}

/// A tokenizer with a truncation policy.
#[derive(Clone, Copy)]
pub struct Reader<'a> {
    pub(super) tokenizer: &'a ModelTokenizer,
    pub(super) truncate: Truncate,
    /// The longest sequence; at most that of the model.
    pub(super) max_tokens: usize,
}

/// Encodes texts for a reader, up to a token limit.
struct Encoder<'a> {
    reader: Reader<'a>,
    inner: Arc<tokenizers::Tokenizer>,
    max: usize,
    /// Whether special tokens are added.
    special: bool,
    /// Whether character offsets of tokens are computed, which takes longer.
    places: bool,
}

impl<'a> Reader<'a> {
    /// The tokenizer.
    pub fn tokenizer(&self) -> &'a ModelTokenizer {
        self.tokenizer
    }

    /// The truncation policy.
    pub fn truncate(&self) -> Truncate {
        self.truncate
    }

    /// The longest sequence, in tokens.
    pub fn max_tokens(&self) -> usize {
        self.max_tokens
    }

    /// A reader that truncates at `max` tokens, if that is less than the model can take.
    pub fn with_max_tokens(self, max: usize) -> Reader<'a> {
        Reader { max_tokens: self.max_tokens.min(max), ..self }
    }

    /// Tokenizes every text, in order, with `prompt` before each.
    pub fn encode<T: AsRef<str> + Sync>(&self, texts: &[T], prompt: &str) -> Result<Vec<Encoded>> {
        self.encode_to(texts, prompt, self.max_tokens)
    }

    /// Like [`Reader::encode`], truncated at `max` tokens if that is less than the model can take.
    pub fn encode_to<T: AsRef<str> + Sync>(&self, texts: &[T], prompt: &str, max: usize) -> Result<Vec<Encoded>> {
        let encoder = self.encoder(max)?;
        map_parallel(texts, |text| encoder.text(text.as_ref(), prompt))
    }

    /// Like [`Reader::encode`] for texts and token ids. Token ids get no prompt.
    pub fn encode_inputs(&self, inputs: &[TextOrTokens<'_>], prompt: &str) -> Result<Vec<Encoded>> {
        let encoder = self.encoder(self.max_tokens)?;
        map_parallel(inputs, |input| match input {
            TextOrTokens::Text(text) => encoder.text(text, prompt),
            TextOrTokens::Tokens(ids) => encoder.tokens(ids),
        })
    }

    /// Tokenizes texts and pairs, in order. The longer text of a pair is truncated first.
    pub fn encode_pairs(&self, texts: &[TextOrPair<'_>]) -> Result<Vec<Encoded>> {
        let encoder = self.encoder(self.max_tokens)?;
        map_parallel(texts, |t| {
            let input = || match t.pair {
                Some(pair) => EncodeInput::from((t.text, pair)),
                None => EncodeInput::from(t.text),
            };
            Ok(encoder.input(input, t.text.len() + t.pair.map_or(0, str::len), false)?.0)
        })
    }

    /// Tokenizes every text without special tokens, truncated at `max`.
    pub fn encode_bare<T: AsRef<str> + Sync>(&self, texts: &[T], max: usize) -> Result<Vec<Encoded>> {
        // Truncated after tokenizing, which is simple without special tokens: a second tokenizer
        // with another limit would copy the vocabulary.
        let encoder = Encoder { max, special: false, ..self.encoder(self.max_tokens)? };
        map_parallel(texts, |text| {
            let mut encoded = encoder.text(text.as_ref(), "")?;
            encoded.type_ids.clear();
            Ok(encoded)
        })
    }

    /// Tokenizes every text, with the character offsets of its tokens.
    pub fn encode_placed<T: AsRef<str> + Sync>(&self, texts: &[T]) -> Result<Vec<(Encoded, Vec<Placed>)>> {
        let encoder = Encoder { places: true, ..self.encoder(self.max_tokens)? };
        map_parallel(texts, |text| {
            let text = text.as_ref();
            let (encoded, encoding) = encoder.input(|| EncodeInput::from(text), text.len(), false)?;
            Ok((encoded, placed(&encoding)))
        })
    }

    /// Tokenizes texts that are split into words, with the index of each token's word; special tokens
    /// have none, and a word of characters that the tokenizer drops has no token. Their ends are cut
    /// off, because instructions may stand before the text. A text without words has no tokens.
    pub fn encode_words(&self, texts: &[Vec<&str>]) -> Result<Vec<(Encoded, Vec<Option<u32>>)>> {
        let truncate = if self.truncate == Truncate::Never { Truncate::Never } else { Truncate::Right };
        let reader = Reader { truncate, ..*self };
        let encoder = Encoder { places: true, ..reader.encoder(self.max_tokens)? };
        map_parallel(texts, |words| {
            if words.is_empty() {
                let (ids, type_ids) = (Vec::new(), Vec::new());
                let encoded = Encoded { ids, type_ids, truncated: false, ends_special: false, starts_special: false };
                return Ok((encoded, Vec::new()));
            }
            let length = |words: &[&str]| words.iter().map(|word| word.len()).sum::<usize>();
            // Bytes beyond the limit are not tokenized.
            let part = first_bytes(words, self.tokenizer.max_chars);
            let is_shorter = length(&part) < length(words);
            let (encoded, encoding) = encoder.input(|| EncodeInput::from(&*part), length(words), is_shorter)?;
            let word_ids = encoding.get_word_ids()[..encoded.ids.len()].to_vec();
            Ok((encoded, word_ids))
        })
    }

    /// Number of leading tokens that belong to `prompt`: its own and the special tokens before
    /// them.
    pub fn prompt_tokens(&self, prompt: &str) -> Result<usize> {
        let encoder = Reader { truncate: Truncate::Right, ..*self }.encoder(self.max_tokens)?;
        let encoded = encoder.text(prompt, "").map_err(|error| match error {
            EncodeError::TooLong(why) | EncodeError::Other(why) => Error::Input(format!("the prompt: {why}")),
        })?;
        Ok(encoded.ids.len() - usize::from(encoded.ends_special))
    }

    fn encoder(&self, max: usize) -> Result<Encoder<'a>> {
        let max = max.min(self.max_tokens);
        let inner = self.tokenizer.truncating(Some((max, self.truncate == Truncate::Left)))?;
        // Static embedding models have no special tokens.
        Ok(Encoder { reader: *self, inner, max, special: self.tokenizer.table.is_none(), places: false })
    }
}

/// The first words that have `room` bytes together; the last one may be cut off.
fn first_bytes<'w>(words: &[&'w str], mut room: usize) -> Vec<&'w str> {
    let fitting = words.iter().map_while(|word| {
        let part = &word[..word.floor_char_boundary(room)];
        let is_whole = part.len() == word.len();
        room = if is_whole { room - part.len() } else { 0 };
        (is_whole || !part.is_empty()).then_some(part)
    });
    fitting.collect()
}

/// Applies `f` to all in parallel. An error names the text by its index.
pub(super) fn map_parallel<T: Sync, U: Send>(
    all: &[T],
    f: impl Fn(&T) -> Result<U, EncodeError> + Sync,
) -> Result<Vec<U>> {
    let at = |text: usize| {
        move |error| match error {
            EncodeError::TooLong(why) => Error::TooLong { text, why },
            EncodeError::Other(why) => Error::Text { text, why },
        }
    };
    threads::map(all.len(), |i| f(&all[i]).map_err(at(i))).into_iter().collect()
}

/// Why a text could not be tokenized.
pub(super) enum EncodeError {
    TooLong(String),
    Other(String),
}

impl From<String> for EncodeError {
    fn from(why: String) -> EncodeError {
        EncodeError::Other(why)
    }
}

impl Encoder<'_> {
    fn text(&self, text: &str, prompt: &str) -> Result<Encoded, EncodeError> {
        let joined = if prompt.is_empty() { text } else { &format!("{prompt}{text}") };
        let Reader { tokenizer, truncate, .. } = self.reader;
        // Characters beyond the limit are not tokenized.
        let part = match truncate {
            Truncate::Left => {
                let nth = joined.char_indices().rev().nth(tokenizer.max_chars.saturating_sub(1));
                &joined[nth.map_or(0, |(i, _)| i)..]
            }
            Truncate::Right | Truncate::Never => {
                &joined[..joined.char_indices().nth(tokenizer.max_chars).map_or(joined.len(), |(i, _)| i)]
            }
        };
        let is_shorter = part.len() < joined.len();
        if !is_shorter && let Some(encoded) = self.encode_ascii(part) {
            return Ok(encoded);
        }
        let (mut encoded, _) = self.input(|| EncodeInput::from(part), text.len(), is_shorter)?;
        if let Some(unknown) = tokenizer.unknown {
            encoded.ids.retain(|id| *id != unknown);
            encoded.type_ids.clear();
        }
        Ok(encoded)
    }

    /// The fast path: a short ASCII text for a BERT tokenizer.
    fn encode_ascii(&self, text: &str) -> Option<Encoded> {
        let ascii = self.reader.tokenizer.bert_ascii.as_ref().filter(|_| self.special && !self.places)?;
        let ids = ascii.encode(&self.inner, text, self.max)?;
        let type_ids = vec![0; ids.len()];
        Some(Encoded { ids, type_ids, truncated: false, ends_special: true, starts_special: true })
    }

    fn tokens(&self, ids: &[u32]) -> Result<Encoded, EncodeError> {
        let (is_longer, over) = (ids.len() > self.max, ids.len().saturating_sub(self.max));
        let ids = match self.reader.truncate {
            _ if ids.is_empty() => return Err("it has no tokens, so it has no embedding".to_string().into()),
            Truncate::Never if is_longer => return Err(self.too_long(&ids.len().to_string())),
            Truncate::Left => &ids[over..],
            Truncate::Right | Truncate::Never => &ids[..ids.len() - over],
        };
        let (ids, type_ids) = (ids.to_vec(), Vec::new());
        Ok(Encoded { ids, type_ids, truncated: is_longer, ends_special: false, starts_special: false })
    }

    /// Tokenizes an input of `bytes` bytes. `is_shorter`: characters were already dropped.
    fn input<'s>(
        &self,
        input: impl Fn() -> EncodeInput<'s>,
        bytes: usize,
        is_shorter: bool,
    ) -> Result<(Encoded, tokenizers::Encoding), EncodeError> {
        let failed = |e: String| format!("the tokenizer failed on its {bytes} bytes: {e}");
        let encoding = match self.places {
            true => catch_panic(|| self.inner.encode_char_offsets(input(), self.special)),
            false => catch_panic(|| self.inner.encode_fast(input(), self.special)),
        };
        let encoding = encoding.map_err(failed)?;
        let mut encoded = self.checked(&encoding)?;
        encoded.truncated |= is_shorter;
        if encoded.truncated && self.reader.truncate == Truncate::Never {
            let whole = self.reader.tokenizer.truncating(None).map_err(|e| e.to_string())?;
            let whole = catch_panic(|| whole.encode_fast(input(), self.special)).map_err(failed)?;
            let more = if is_shorter { "more than " } else { "" };
            return Err(self.too_long(&format!("{more}{}", whole.len())));
        }
        Ok((encoded, encoding))
    }

    fn too_long(&self, tokens: &str) -> EncodeError {
        let max = self.max;
        EncodeError::TooLong(format!(
            "it has {tokens} tokens, and the model takes {max}: shorten it, or allow truncation"
        ))
    }

    fn checked(&self, encoding: &tokenizers::Encoding) -> Result<Encoded, EncodeError> {
        // Without special tokens, the caller adds tokens of its own or needs none.
        if encoding.is_empty() && self.special && self.reader.tokenizer.table.is_none() {
            return Err("the tokenizer produces no tokens for it, so it has no embedding".to_string().into());
        }
        let (ids, types) = (encoding.get_ids(), encoding.get_type_ids());
        let over = ids.len().saturating_sub(self.max);
        // The library does not truncate below the number of special tokens that the template adds.
        if over > 0 && self.special {
            let what = format!("it has {} tokens, and the model takes {}", encoding.len(), self.max);
            return Err(EncodeError::TooLong(what));
        }
        let range = match self.reader.truncate {
            Truncate::Left => over..ids.len(),
            Truncate::Right | Truncate::Never => 0..ids.len() - over,
        };
        Ok(Encoded {
            ids: ids[range.clone()].to_vec(),
            type_ids: types[range].to_vec(),
            truncated: over > 0 || !encoding.get_overflowing().is_empty(),
            ..Encoded::whole(encoding)
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn words_are_cut_off_at_characters() {
        let words = ["ab", "", "é東", "c"];
        let cases: [(usize, &[&str]); 5] =
            [(9, &words), (8, &words), (7, &words[..3]), (6, &["ab", "", "é"]), (3, &["ab", ""])];
        for (room, want) in cases {
            assert_eq!(first_bytes(&words, room), want, "{room}");
        }
        assert!(first_bytes(&words, 0).is_empty());
    }
}
