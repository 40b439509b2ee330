//! Tokenizers from every file format, chat templates, streaming detokenization.

pub mod aggregate;
mod bert_ascii;
pub mod chat;
mod error;
pub mod gguf;
mod legacy;
mod legacy_pipeline;
mod open;
mod reader;
mod special;
mod spm;
pub mod stream;
#[cfg(test)]
mod tests;
mod tokenizer;
mod tokenizer_json_checks;
mod vocabulary;
mod windows;
pub mod words;

pub use self::error::{Error, Result};
pub use self::open::{catch_panic, open};
pub use self::reader::{Encoded, Reader, TextOrPair, TextOrTokens, Truncate};
pub use self::tokenizer::{Encoding, PadTo, Padding, Tokenizer};
pub use self::windows::{Window, Windowing};

use self::bert_ascii::BertAscii;
use self::words::{Continuation, placed};
use sconce_formats::is_gguf;
use std::collections::HashMap;
use std::path::Path;
use std::sync::{Arc, Mutex, OnceLock, PoisonError};
use tokenizers::normalizers::{Lowercase, NormalizerWrapper, Sequence as Normalizers};
use tokenizers::processors::PostProcessorWrapper;
use tokenizers::{Decoder, TruncationDirection, TruncationParams, TruncationStrategy};

/// Upper bound on the characters of a token. Before tokenization, a text is cut to this many
/// characters for each token of the limit, so that a text of megabytes is not tokenized only to be
/// truncated. The result differs only if a longer word becomes one unknown token.
pub const LONGEST_TOKEN: usize = 1024;

/// The most truncation settings of a tokenizer that are kept: each is a copy of its vocabulary.
const MOST_TRUNCATIONS: usize = 8;

/// Options of tokenization that are not in the tokenizer's own files.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct TokenizerOptions {
    /// Lower-case the text before it reaches the tokenizer.
    pub lower_case: bool,
    /// For static embedding models.
    pub table: Option<StaticTokenization>,
}

/// How a static embedding model tokenizes: without special tokens, and a text may have no token at
/// all.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum StaticTokenization {
    /// As sentence-transformers does: every token counts.
    Plain,
    /// As model2vec does: texts are first cut to the median token length times the token limit, in
    /// characters, and unknown tokens are dropped.
    Model2vec,
}

/// A model's tokenizer. It truncates at the longest sequence of the model and never pads. For a
/// tokenizer on its own, see [`Tokenizer`].
pub struct ModelTokenizer {
    inner: Arc<tokenizers::Tokenizer>,
    /// Copies of `inner` with other truncation settings, made on first use: copying a large
    /// vocabulary takes time and memory.
    by_truncation: Mutex<HashMap<Truncation, Arc<tokenizers::Tokenizer>>>,
    /// A copy of `inner` that neither truncates nor adds special tokens, made on first use.
    bare: OnceLock<Arc<tokenizers::Tokenizer>>,
    max_tokens: usize,
    mask: Option<u32>,
    table: Option<StaticTokenization>,
    /// Characters of a text that are tokenized; the rest is dropped.
    max_chars: usize,
    /// For model2vec: the id of the unknown token.
    unknown: Option<u32>,
    /// Fast path for ASCII texts, if the tokenizer is BERT's.
    bert_ascii: Option<BertAscii>,
}

/// A token of a text.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct TextToken {
    /// Its id.
    pub id: u32,
    /// The part of the text that it covers; for a special token, its name.
    pub text: String,
    /// Whether the tokenizer added it.
    pub special: bool,
    /// Range in the text, in characters (not bytes), end exclusive. `None` for a special token.
    pub place: Option<(usize, usize)>,
}

/// Token limit, and whether truncation removes the beginning (left). `None`: no truncation.
type Truncation = Option<(usize, bool)>;

impl ModelTokenizer {
    /// Loads the tokenizer in `dir`, or in a GGUF file. Padding and truncation settings in the
    /// files are replaced: they only record how the tokenizer was exported.
    pub fn load(dir: &Path, max_tokens: usize, options: TokenizerOptions) -> Result<ModelTokenizer> {
        let mut inner = match is_gguf(dir) {
            true => gguf::open(dir)?,
            false => open(dir)?,
        };
        inner.with_padding(None);
        let adapt = || {
            inner.with_truncation(Some(truncation(max_tokens)))?;
            if options.lower_case {
                let mut steps = vec![NormalizerWrapper::Lowercase(Lowercase)];
                steps.extend(inner.get_normalizer().cloned());
                inner.with_normalizer(Some(Normalizers::new(steps)))?;
            }
            Ok(())
        };
        catch_panic(adapt).map_err(|e| Error::file(dir, format!("cannot truncate at {max_tokens} tokens: {e}")))?;
        let mask = ["[MASK]", "<mask>"].iter().find_map(|token| inner.token_to_id(token));
        let model2vec = options.table == Some(StaticTokenization::Model2vec);
        let per_token = if model2vec { median_length(&inner) } else { LONGEST_TOKEN };
        let max_chars = max_tokens.saturating_mul(per_token);
        let unknown = if model2vec { Continuation::of(&inner).unknown() } else { None };
        let bert_ascii = if options.table.is_none() { BertAscii::of(&inner) } else { None };
        let (inner, by_truncation) = (Arc::new(inner), Mutex::default());
        Ok(ModelTokenizer {
            inner,
            by_truncation,
            bare: OnceLock::new(),
            max_tokens,
            mask,
            table: options.table,
            max_chars,
            unknown,
            bert_ascii,
        })
    }

    /// A reader with this truncation policy.
    pub fn reader(&self, truncate: Truncate) -> Reader<'_> {
        Reader { tokenizer: self, truncate, max_tokens: self.max_tokens }
    }

    /// The tokens of a text, without truncation.
    pub fn tokenize(&self, text: &str, special: bool) -> Result<Vec<TextToken>> {
        text_tokens(&*self.truncating(None)?, text, special && self.table.is_none())
    }

    /// How many tokens [`ModelTokenizer::tokenize`] finds, without special tokens.
    pub fn token_count(&self, text: &str) -> Result<usize> {
        let bare = self.bare()?;
        let encoding = catch_panic(|| bare.encode_fast(text, false)).map_err(Error::Input)?;
        Ok(encoding.len())
    }

    /// Decodes token ids to text.
    pub fn detokenize(&self, ids: &[u32], skip_special: bool) -> Result<String> {
        text_of(&self.inner, ids, skip_special)
    }

    /// The longest sequence, in tokens.
    pub fn max_tokens(&self) -> usize {
        self.max_tokens
    }

    /// The `tokenizers` instance with this truncation, made once.
    fn truncating(&self, cut: Truncation) -> Result<Arc<tokenizers::Tokenizer>> {
        if cut == Some((self.max_tokens, false)) {
            return Ok(self.inner.clone());
        }
        let mut by_truncation = self.by_truncation.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(other) = by_truncation.get(&cut) {
            return Ok(other.clone());
        }
        if by_truncation.len() >= MOST_TRUNCATIONS {
            by_truncation.clear();
        }
        let mut other = (*self.inner).clone();
        let params = cut.map(|(most, left)| TruncationParams {
            direction: if left { TruncationDirection::Left } else { TruncationDirection::Right },
            ..truncation(most)
        });
        catch_panic(|| other.with_truncation(params).map(drop)).map_err(|e| {
            Error::Input(format!("texts cannot be truncated at {} tokens: {e}", cut.map_or(0, |c| c.0)))
        })?;
        let other = Arc::new(other);
        by_truncation.insert(cut, other.clone());
        Ok(other)
    }

    /// The `tokenizers` instance without truncation and without the step that adds special tokens.
    fn bare(&self) -> Result<Arc<tokenizers::Tokenizer>> {
        if let Some(bare) = self.bare.get() {
            return Ok(bare.clone());
        }
        let mut bare = (*self.inner).clone();
        let clear = || bare.with_post_processor(None::<PostProcessorWrapper>).with_truncation(None).map(drop);
        catch_panic(clear).map_err(Error::Input)?;
        Ok(self.bare.get_or_init(|| Arc::new(bare)).clone())
    }

    /// The id of the mask token, if there is one.
    pub fn mask(&self) -> Option<u32> {
        self.mask
    }

    /// Checks that every token id has a row in the model's embedding table of `words` rows. A
    /// special token without a row is an error if every text gets it; for any other token this
    /// returns a warning.
    pub fn check(&self, dir: &Path, words: usize) -> Result<Option<String>> {
        let beyond = self.inner.get_vocab(true).into_iter().filter(|(_, id)| *id as usize >= words);
        let Some((token, id)) = beyond.max_by_key(|(_, id)| *id) else { return Ok(None) };
        let what =
            format!("the tokenizer's token {token:?} has id {id}, and the model's embedding table has {words} rows");
        let always = catch_panic(|| self.inner.encode("", self.table.is_none())).map_err(|e| Error::file(dir, e))?;
        if always.get_ids().iter().any(|id| *id as usize >= words) {
            return Err(Error::file(dir, format!("{what}; do tokenizer and model belong together?")));
        }
        Ok(Some(format!("{what}: texts that use it will fail")))
    }

    /// The token of an id, as the vocabulary writes it.
    pub fn token(&self, id: u32) -> Option<String> {
        self.inner.id_to_token(id)
    }

    /// The id of a token of the vocabulary.
    pub fn id(&self, token: &str) -> Option<u32> {
        self.inner.token_to_id(token)
    }

    /// The instance of the `tokenizers` crate.
    pub fn inner(&self) -> &tokenizers::Tokenizer {
        &self.inner
    }

    /// Joins tokens with the tokenizer's decoder.
    pub fn join(&self, tokens: Vec<String>) -> String {
        match self.inner.get_decoder() {
            Some(decoder) => catch_panic(|| decoder.decode(tokens.clone())).unwrap_or_else(|_| tokens.join(" ")),
            None => tokens.join(" "),
        }
    }
}

/// The tokens of a text with their character ranges.
pub fn text_tokens(tokenizer: &tokenizers::Tokenizer, text: &str, special: bool) -> Result<Vec<TextToken>> {
    let encoding = catch_panic(|| tokenizer.encode_char_offsets(text, special))
        .map_err(|e| Error::Input(format!("the tokenizer failed on {} bytes: {e}", text.len())))?;
    let chars: Vec<char> = text.chars().collect();
    let of = |(place, name): (words::Placed, &String)| {
        let (start, end) = (place.start.min(chars.len()), place.end.min(chars.len()));
        let text = if place.special { name.clone() } else { chars.get(start..end).unwrap_or(&[]).iter().collect() };
        TextToken { id: place.id, text, special: place.special, place: (!place.special).then_some((start, end)) }
    };
    Ok(placed(&encoding).into_iter().zip(encoding.get_tokens()).map(of).collect())
}

/// Decodes token ids to text.
pub fn text_of(tokenizer: &tokenizers::Tokenizer, ids: &[u32], skip_special: bool) -> Result<String> {
    if let Some(id) = ids.iter().find(|id| tokenizer.id_to_token(**id).is_none()) {
        return Err(Error::Input(format!("token {id} is not in the tokenizer's vocabulary")));
    }
    catch_panic(|| tokenizer.decode(ids, skip_special)).map_err(Error::Input)
}

/// The median length of the vocabulary's tokens, in characters, rounded down.
fn median_length(tokenizer: &tokenizers::Tokenizer) -> usize {
    let mut lengths: Vec<usize> = tokenizer.get_vocab(true).keys().map(|token| token.chars().count()).collect();
    lengths.sort_unstable();
    match lengths.len() {
        0 => 1,
        n => ((lengths[(n - 1) / 2] + lengths[n / 2]) / 2).max(1),
    }
}

fn truncation(max_length: usize) -> TruncationParams {
    let (strategy, direction) = (TruncationStrategy::LongestFirst, TruncationDirection::Right);
    TruncationParams { max_length, strategy, stride: 0, direction }
}
