//! Fast path of BERT tokenizers for ASCII texts.
//!
//! The `tokenizers` crate keeps the text, offsets and masks of every token, and builds strings at
//! each step. For a small model that takes about as long as the model itself. Most steps of a BERT
//! tokenizer do nothing to ASCII: there are no accents to strip and no Chinese characters to set
//! apart. What remains is to lower-case, split at spaces and around punctuation, and match the
//! longest WordPiece again and again. This file does that, and only where the result is certain.
//! Every other tokenizer, and every text with a non-ASCII byte, a control character or a character
//! that may begin an added token, such as `[MASK]`, goes through the crate.

use super::open::catch_panic;
use tokenizers::{Model, ModelWrapper, NormalizerWrapper, PreTokenizerWrapper};

/// Longer words would take too many lookups. BERT's own limit is 100.
const LONGEST_WORD: usize = 256;

/// Has letters of both cases, punctuation, digits and a word that no vocabulary has as one token.
const PROBE: &str = "Hello, worLD: 42 qzxjkvq!";

/// Class of a byte in BERT's pre-tokenizer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum ByteClass {
    /// Part of a word.
    Letter,
    /// Between words.
    Space,
    /// A word of its own.
    Punctuation,
    /// Control characters and first bytes of added tokens: left to the library.
    Other,
}

/// A BERT tokenizer, restricted to ASCII.
#[derive(Debug)]
pub(super) struct BertAscii {
    classes: [ByteClass; 128],
    is_lower: bool,
    /// Words of more bytes than this are unknown.
    longest: usize,
    /// Prefix of a piece that continues a word, `##`.
    prefix: String,
    unknown: u32,
    /// Special tokens before and after a text.
    head: Vec<u32>,
    tail: Vec<u32>,
}

impl BertAscii {
    /// `None` unless the tokenizer is BERT's in every step.
    pub(super) fn of(tokenizer: &tokenizers::Tokenizer) -> Option<BertAscii> {
        let (
            Some(NormalizerWrapper::BertNormalizer(normalizer)),
            Some(PreTokenizerWrapper::BertPreTokenizer(_)),
            ModelWrapper::WordPiece(model),
        ) = (tokenizer.get_normalizer(), tokenizer.get_pre_tokenizer(), tokenizer.get_model())
        else {
            return None;
        };
        if !normalizer.clean_text || model.max_input_chars_per_word > LONGEST_WORD {
            return None;
        }
        let mut classes = std::array::from_fn(|i| match i as u8 {
            b' ' | b'\t' | b'\n' | b'\r' => ByteClass::Space,
            b if b.is_ascii_punctuation() => ByteClass::Punctuation,
            b if b.is_ascii_alphanumeric() => ByteClass::Letter,
            _ => ByteClass::Other,
        });
        for added in tokenizer.get_added_vocabulary().get_added_tokens_decoder().values() {
            // An added token that begins otherwise could match inside what is a word here, or after
            // bytes that the library drops.
            let first = added.content.bytes().next().filter(u8::is_ascii_punctuation)?;
            classes[usize::from(first)] = ByteClass::Other;
        }
        let unknown = model.token_to_id(&model.unk_token)?;
        let (head, tail) = template_tokens(tokenizer)?;
        let (longest, prefix) = (model.max_input_chars_per_word, model.continuing_subword_prefix.clone());
        let ascii = BertAscii { classes, is_lower: normalizer.lowercase, longest, prefix, unknown, head, tail };
        let theirs = catch_panic(|| tokenizer.encode_fast(PROBE, true)).ok()?;
        // The probe is truncated if the model takes very few tokens; then there is nothing to gain.
        (ascii.encode(tokenizer, PROBE, usize::MAX)? == theirs.get_ids()).then_some(ascii)
    }

    /// The tokens of a text, special tokens included. `None` if the text needs the library or has
    /// more than `max` tokens.
    pub(super) fn encode(&self, tokenizer: &tokenizers::Tokenizer, text: &str, max: usize) -> Option<Vec<u32>> {
        let mut words =
            WordPieces { ascii: self, model: tokenizer.get_model(), word: String::new(), piece: String::new() };
        let mut ids = Vec::with_capacity(self.head.len() + text.len() / 4 + self.tail.len());
        ids.extend_from_slice(&self.head);
        for byte in text.bytes() {
            match *self.classes.get(usize::from(byte))? {
                ByteClass::Letter => {
                    words.word.push(char::from(if self.is_lower { byte.to_ascii_lowercase() } else { byte }))
                }
                ByteClass::Space => words.end_word(&mut ids),
                ByteClass::Punctuation => {
                    words.end_word(&mut ids);
                    words.word.push(char::from(byte));
                    words.end_word(&mut ids);
                }
                ByteClass::Other => return None,
            }
        }
        words.end_word(&mut ids);
        ids.extend_from_slice(&self.tail);
        (ids.len() <= max).then_some(ids)
    }
}

/// Splits words into WordPieces.
struct WordPieces<'a> {
    ascii: &'a BertAscii,
    model: &'a ModelWrapper,
    word: String,
    /// The candidate piece, with its prefix.
    piece: String,
}

impl WordPieces<'_> {
    /// Ends the current word: greedy longest match, or the unknown token.
    fn end_word(&mut self, ids: &mut Vec<u32>) {
        let (mut start, first) = (0, ids.len());
        while start < self.word.len() {
            let prefix = if start == 0 { "" } else { &self.ascii.prefix };
            self.piece.clear();
            self.piece.push_str(prefix);
            self.piece.push_str(&self.word[start..]);
            let found = loop {
                if self.piece.len() == prefix.len() || self.word.len() > self.ascii.longest {
                    break None;
                }
                if let Some(id) = self.model.token_to_id(&self.piece) {
                    break Some(id);
                }
                self.piece.pop();
            };
            let Some(id) = found else {
                ids.truncate(first);
                ids.push(self.ascii.unknown);
                break;
            };
            ids.push(id);
            start += self.piece.len() - prefix.len();
        }
        self.word.clear();
    }
}

/// The special tokens before and after a text, if there are both and all have token type 0.
fn template_tokens(tokenizer: &tokenizers::Tokenizer) -> Option<(Vec<u32>, Vec<u32>)> {
    let bare = catch_panic(|| tokenizer.encode_fast(PROBE, false)).ok()?;
    let whole = catch_panic(|| tokenizer.encode_fast(PROBE, true)).ok()?;
    let (ids, marks) = (whole.get_ids(), whole.get_special_tokens_mask());
    let head = marks.iter().take_while(|m| **m == 1).count();
    let tail = marks.iter().rev().take_while(|m| **m == 1).count();
    let is_simple = head > 0
        && tail > 0
        && head + tail < ids.len()
        && ids[head..ids.len() - tail] == *bare.get_ids()
        && whole.get_type_ids().iter().all(|t| *t == 0);
    is_simple.then(|| (ids[..head].to_vec(), ids[ids.len() - tail..].to_vec()))
}

#[cfg(test)]
mod tests {
    use super::super::open::open;
    use super::*;
    use proptest::collection::vec;
    use proptest::prelude::{Just, Strategy, prop_oneof};
    use proptest::sample::select;
    use sconce_testkit::{check, materialize};
    use serde_json::{Value, json};
    use std::cell::Cell;

    /// ASCII texts, with more spaces and letters than other characters.
    fn noise() -> impl Strategy<Value = String> {
        let byte = prop_oneof![
            11 => b'a'..=b'z',
            4 => Just(b' '),
            1 => select(b"\t\n\r"),
            2 => 0x21..=0x7e_u8,
            1 => 0..=0x7f_u8,
            1 => b'A'..=b'Z',
        ];
        vec(byte.prop_map(char::from), 0..60).prop_map(String::from_iter)
    }

    /// A BERT tokenizer with a modified file.
    fn bert_with(change: impl Fn(&mut Value)) -> tokenizers::Tokenizer {
        let dir = materialize("st-max");
        let path = dir.path().join("tokenizer.json");
        let mut file = serde_json::from_slice(&std::fs::read(&path).unwrap()).unwrap();
        change(&mut file);
        std::fs::write(&path, file.to_string()).unwrap();
        open(dir.path()).unwrap()
    }

    /// Compares with the library's tokens and counts the texts that the fast path took.
    fn count_ascii(tokenizer: &tokenizers::Tokenizer, noisy: u32) -> usize {
        let ascii = BertAscii::of(tokenizer).expect("a BERT tokenizer");
        // A word at the length limit, one letter longer, and much longer.
        let [most, more, long] = [100, 101, 400].map(|n| "un".repeat(200)[..n].to_string());
        let known =
            ["", " ", "A man, a plan!", "it's 3.14 (or so)", "Eating THE mattress", "naïve", "tab\tand\u{1}bell"];
        let known = known.into_iter().chain(["[MASK] and [SEP]", &most, &more, &long]).map(String::from);
        let taken = Cell::new(0);
        let compare = |text: String| {
            let theirs = tokenizer.encode(text.as_str(), true).unwrap();
            let Some(ours) = ascii.encode(tokenizer, &text, 512) else { return };
            assert_eq!(ours, theirs.get_ids(), "{text:?}");
            assert!(theirs.get_type_ids().iter().all(|t| *t == 0), "{text:?}");
            taken.set(taken.get() + 1);
        };
        known.for_each(compare);
        check(noisy, &noise(), compare);
        taken.get()
    }

    #[test]
    fn ascii_fast_path_matches_the_library() {
        let count = count_ascii(&bert_with(|_| ()), 20_000);
        assert!(count > 3_000, "{count} texts took the fast path");
    }

    #[test]
    fn ascii_fast_path_follows_tokenizer_settings() {
        let cased = bert_with(|file| file["normalizer"]["lowercase"] = false.into());
        let short = bert_with(|file| file["model"]["max_input_chars_per_word"] = 5.into());
        let unknown = bert_with(|file| file["model"]["unk_token"] = "[PAD]".into());
        let prefix = bert_with(|file| *file = serde_json::from_str(&file.to_string().replace("##", "@@")).unwrap());
        for tokenizer in [cased, short, unknown, prefix] {
            let count = count_ascii(&tokenizer, 2_000);
            assert!(count > 300, "{count} texts took the fast path");
        }
    }

    #[test]
    fn non_ascii_special_and_long_texts_use_the_library() {
        let dir = materialize("st-max");
        let tokenizer = open(dir.path()).unwrap();
        let ascii = BertAscii::of(&tokenizer).expect("a BERT tokenizer");
        for text in ["naïve", "a [MASK]", "bell\u{7}", "\u{b}", "中"] {
            assert_eq!(ascii.encode(&tokenizer, text, 512), None, "{text:?}");
        }
        let three = ascii.encode(&tokenizer, "a b c", 512).map(|ids| ids.len()).unwrap();
        assert!(ascii.encode(&tokenizer, "a b c", three).is_some());
        assert!(ascii.encode(&tokenizer, "a b c", three - 1).is_none(), "the text would be truncated");
    }

    #[test]
    fn other_tokenizers_have_no_ascii_fast_path() {
        let dir = materialize("task-embed-llama");
        assert!(BertAscii::of(&open(dir.path()).unwrap()).is_none());
        assert!(BertAscii::of(&bert_with(|_| ())).is_some());
        let mut tokenizer = bert_with(|_| ());
        tokenizer.add_tokens([tokenizers::AddedToken::from("sconce", false)]).unwrap();
        assert!(BertAscii::of(&tokenizer).is_none(), "an added token that is a word");
        let mut tokenizer = bert_with(|_| ());
        let cut = tokenizers::TruncationParams { max_length: 6, ..Default::default() };
        tokenizer.with_truncation(Some(cut)).unwrap();
        assert!(BertAscii::of(&tokenizer).is_none(), "the limit leaves almost no token");
        let is_unsupported = |change: &dyn Fn(&mut Value)| BertAscii::of(&bert_with(change)).is_none();
        assert!(is_unsupported(&|file| file["normalizer"]["clean_text"] = false.into()), "control characters are kept");
        assert!(is_unsupported(&|file| file["normalizer"] = json!({"type": "Lowercase"})));
        assert!(is_unsupported(&|file| file["pre_tokenizer"] = json!({"type": "WhitespaceSplit"})));
        assert!(
            is_unsupported(&|file| file["model"]["max_input_chars_per_word"] = 257.into()),
            "the limit on a word is too long"
        );
        assert!(is_unsupported(&|file| file["post_processor"] = json!(null)), "no special tokens around a text");
        assert!(is_unsupported(&|file| file["post_processor"]["single"][1]["Sequence"]["type_id"] = 1.into()));
    }
}
