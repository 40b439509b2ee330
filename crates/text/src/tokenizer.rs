//! A tokenizer on its own: texts to tokens and back, without a model.

use crate::reader::{TextOrPair, Truncate};
use crate::special::{ROLES, SpecialTokens};
use crate::words::placed;
use crate::{Error, Result, gguf, open, text_of};
use sconce_formats::gguf::Gguf;
use sconce_formats::is_gguf;
use sconce_ops::threads;
use std::collections::{BTreeMap, HashMap};
use std::path::Path;
use tokenizers::{
    EncodeInput, PaddingDirection, PaddingParams, PaddingStrategy, TruncationDirection, TruncationParams,
};

/// The largest token count that padding may ask for.
const MAX_PADDING: usize = 1 << 20;

/// The tokenizer of a model's files, without the model.
///
/// ```no_run
/// use sconce_text::{Padding, Tokenizer, Truncate};
///
/// let tokenizer = Tokenizer::open("all-MiniLM-L6-v2".as_ref())?.with_truncation(256, Truncate::Right)?;
/// let tokens = tokenizer.encode("A man is eating food.", true)?;
/// println!("{:?} {:?}", tokens.ids, tokens.offsets);
/// assert_eq!(tokenizer.decode(&tokens.ids, true)?, "a man is eating food.");
/// let batch = tokenizer.with_padding(&Padding::default())?.encode_batch(&["one", "a longer text"], true)?;
/// assert_eq!(batch[0].ids.len(), batch[1].ids.len());
/// # Ok::<(), sconce_text::Error>(())
/// ```
#[derive(Clone)]
pub struct Tokenizer {
    inner: tokenizers::Tokenizer,
    special_tokens: BTreeMap<String, u32>,
    /// Whether texts over the limit are refused instead of truncated.
    refuses: bool,
}

/// A tokenized text or pair. All lists have one entry per token.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct Encoding {
    /// Token ids.
    pub ids: Vec<u32>,
    /// Which text of a pair each token belongs to: 0 or 1.
    pub type_ids: Vec<u32>,
    /// 1 for tokens, 0 for padding.
    pub attention_mask: Vec<u32>,
    /// The tokens, as the vocabulary writes them.
    pub tokens: Vec<String>,
    /// Whether the tokenizer added the token (special tokens and padding).
    pub special: Vec<bool>,
    /// Range in the text, in characters (not bytes), end exclusive. `None` for special tokens.
    pub offsets: Vec<Option<(usize, usize)>>,
    /// Whether tokens were cut off.
    pub truncated: bool,
}

/// How token sequences are padded.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Padding {
    /// The length to pad to.
    pub to: PadTo,
    /// Round the length up to a multiple of this.
    pub multiple_of: Option<usize>,
    /// Pad at the beginning instead of the end, as for text generation.
    pub left: bool,
    /// The token to pad with; `None`: the tokenizer's own.
    pub token: Option<String>,
}

/// The length that token sequences are padded to.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum PadTo {
    /// The longest sequence of the batch.
    #[default]
    Longest,
    /// This many tokens.
    Length(usize),
}

impl Tokenizer {
    /// Opens the tokenizer in a model's folder, a `tokenizer.json`, or a GGUF file. It neither
    /// truncates nor pads, whatever the file says: that only records how it was exported.
    pub fn open(path: &Path) -> Result<Tokenizer> {
        let (mut inner, special_tokens) = if is_gguf(path) {
            (gguf::open(path)?, gguf_roles(path)?)
        } else if path.is_file() {
            (open::open_json(path)?, BTreeMap::new())
        } else {
            let inner = open::open(path)?;
            let roles = roles(path, &inner)?;
            (inner, roles)
        };
        let clear = || {
            inner.with_padding(None);
            inner.with_truncation(None).map(drop)
        };
        open::catch_panic(clear).map_err(|e| Error::file(path, e))?;
        Ok(Tokenizer { inner, special_tokens, refuses: false })
    }

    /// A copy that truncates texts at `max_tokens` tokens, special tokens included.
    /// [`Truncate::Never`] refuses longer texts. The longer text of a pair is truncated first.
    pub fn with_truncation(&self, max_tokens: usize, truncate: Truncate) -> Result<Tokenizer> {
        let mut other = self.clone();
        other.refuses = truncate == Truncate::Never;
        let direction = match truncate {
            Truncate::Left => TruncationDirection::Left,
            Truncate::Right | Truncate::Never => TruncationDirection::Right,
        };
        let params = TruncationParams { max_length: max_tokens, direction, ..TruncationParams::default() };
        open::catch_panic(|| other.inner.with_truncation(Some(params)).map(drop))
            .map_err(|e| Error::Input(format!("cannot truncate at {max_tokens} tokens: {e}")))?;
        Ok(other)
    }

    /// A copy that pads.
    pub fn with_padding(&self, padding: &Padding) -> Result<Tokenizer> {
        let (pad_id, pad_token) = self.padding_token(padding)?;
        let longest = match padding.to {
            PadTo::Length(n) => n,
            PadTo::Longest => 0,
        };
        if longest.max(padding.multiple_of.unwrap_or(1)) > MAX_PADDING || padding.multiple_of == Some(0) {
            return Err(Error::Input(format!("a padded length and its factor are 1 to {MAX_PADDING}")));
        }
        let params = PaddingParams {
            strategy: match padding.to {
                PadTo::Longest => PaddingStrategy::BatchLongest,
                PadTo::Length(n) => PaddingStrategy::Fixed(n),
            },
            direction: if padding.left { PaddingDirection::Left } else { PaddingDirection::Right },
            pad_to_multiple_of: padding.multiple_of,
            pad_id,
            pad_type_id: 0,
            pad_token,
        };
        let mut other = self.clone();
        other.inner.with_padding(Some(params));
        Ok(other)
    }

    fn padding_token(&self, padding: &Padding) -> Result<(u32, String)> {
        let named = |token: &String| self.id(token).map(|id| (id, token.clone()));
        let found = match &padding.token {
            Some(token) => named(token),
            None => {
                let own = self.special_tokens.get("pad_token").and_then(|id| Some((*id, self.token(*id)?)));
                own.or_else(|| ["[PAD]", "<pad>"].map(String::from).iter().find_map(named))
            }
        };
        found.ok_or_else(|| {
            Error::Input(match &padding.token {
                Some(token) => format!("the vocabulary has no token `{token}` to pad with"),
                None => "the tokenizer has no padding token: name one".into(),
            })
        })
    }

    /// Tokenizes a text or a pair. `special` adds the special tokens that models expect.
    pub fn encode<'a>(&self, text: impl Into<TextOrPair<'a>>, special: bool) -> Result<Encoding> {
        let text = text.into();
        let mut encodings = [self.encode_one(text, special).map_err(Error::Input)?];
        self.pad(&mut encodings)?;
        let [encoding] = encodings;
        self.checked(&encoding).map_err(Error::Input)
    }

    /// Like [`Tokenizer::encode`] for many texts, in parallel and padded together.
    pub fn encode_batch<'a, T>(&self, texts: &[T], special: bool) -> Result<Vec<Encoding>>
    where
        T: Copy + Into<TextOrPair<'a>> + Sync,
    {
        let at = |text: usize| move |why: String| Error::Text { text, why };
        let encode = |i: usize| self.encode_one(texts[i].into(), special).map_err(at(i));
        let mut encodings = threads::map(texts.len(), encode).into_iter().collect::<Result<Vec<_>>>()?;
        self.pad(&mut encodings)?;
        encodings.iter().enumerate().map(|(i, encoding)| self.checked(encoding).map_err(at(i))).collect()
    }

    fn encode_one(&self, text: TextOrPair<'_>, special: bool) -> Result<tokenizers::Encoding, String> {
        let input = || match text.pair {
            Some(pair) => EncodeInput::from((text.text, pair)),
            None => EncodeInput::from(text.text),
        };
        let encoding = open::catch_panic(|| self.inner.encode_char_offsets(input(), special))?;
        // The library does not truncate special tokens.
        match self.inner.get_truncation().map(|t| t.max_length).filter(|most| encoding.len() > *most) {
            Some(most) => Err(format!("its special tokens alone are more than {most} tokens: allow more")),
            None => Ok(encoding),
        }
    }

    /// The library pads single encodings only to a fixed length; this pads them all.
    fn pad(&self, encodings: &mut [tokenizers::Encoding]) -> Result<()> {
        match self.inner.get_padding() {
            Some(params) => open::catch_panic(|| tokenizers::pad_encodings(encodings, params)).map_err(Error::Input),
            None => Ok(()),
        }
    }

    fn checked(&self, encoding: &tokenizers::Encoding) -> Result<Encoding, String> {
        let truncated = !encoding.get_overflowing().is_empty();
        if truncated && self.refuses {
            let limit = self.inner.get_truncation().map_or(0, |t| t.max_length);
            return Err(format!("it has more than {limit} tokens: shorten it, or allow truncation"));
        }
        let offsets = placed(encoding).into_iter().map(|t| (!t.special).then_some((t.start, t.end)));
        Ok(Encoding {
            ids: encoding.get_ids().to_vec(),
            type_ids: encoding.get_type_ids().to_vec(),
            attention_mask: encoding.get_attention_mask().to_vec(),
            tokens: encoding.get_tokens().to_vec(),
            special: encoding.get_special_tokens_mask().iter().map(|s| *s != 0).collect(),
            offsets: offsets.collect(),
            truncated,
        })
    }

    /// The text of token ids. `skip_special` leaves special tokens out.
    pub fn decode(&self, ids: &[u32], skip_special: bool) -> Result<String> {
        text_of(&self.inner, ids, skip_special)
    }

    /// The texts of many lists of token ids, in parallel.
    pub fn decode_batch<T: AsRef<[u32]> + Sync>(&self, all: &[T], skip_special: bool) -> Result<Vec<String>> {
        threads::map(all.len(), |i| self.decode(all[i].as_ref(), skip_special)).into_iter().collect()
    }

    /// The token of an id, as the vocabulary writes it.
    pub fn token(&self, id: u32) -> Option<String> {
        self.inner.id_to_token(id)
    }

    /// The id of a token of the vocabulary.
    pub fn id(&self, token: &str) -> Option<u32> {
        self.inner.token_to_id(token)
    }

    /// All tokens with their ids. `added` includes tokens that were added to the vocabulary.
    pub fn vocabulary(&self, added: bool) -> HashMap<String, u32> {
        self.inner.get_vocab(added)
    }

    /// The number of tokens in [`Tokenizer::vocabulary`].
    pub fn vocabulary_size(&self, added: bool) -> usize {
        self.inner.get_vocab_size(added)
    }

    /// The special tokens by role (`cls_token`, `eos_token`, …), as the model's files name them.
    pub fn special_tokens(&self) -> &BTreeMap<String, u32> {
        &self.special_tokens
    }
}

/// The ids of the special tokens that a folder's files name.
fn roles(dir: &Path, tokenizer: &tokenizers::Tokenizer) -> Result<BTreeMap<String, u32>> {
    let [config, map, added] = ["tokenizer_config.json", "special_tokens_map.json", "added_tokens.json"]
        .map(|name| open::object(&dir.join(name)));
    let specials = SpecialTokens::new(&config?, &map?, &added?)
        .map_err(|what| Error::file(&dir.join("tokenizer_config.json"), what))?;
    let id = |role: &str| tokenizer.token_to_id(specials.role(role, None)?.text());
    Ok(ROLES.iter().filter_map(|role| Some(((*role).to_string(), id(role)?))).collect())
}

/// The special tokens in a GGUF file's metadata.
fn gguf_roles(path: &Path) -> Result<BTreeMap<String, u32>> {
    let gguf = Gguf::open(&[path.to_path_buf()])?;
    let v = gguf.vocabulary()?;
    // In the order of `ROLES`.
    let ids = [v.bos, v.eos, v.unk, v.sep, v.pad, v.cls, v.mask];
    Ok(ROLES.iter().zip(ids).filter_map(|(role, id)| Some(((*role).to_string(), id?))).collect())
}
