//! A short cut to the tokens of plain texts: what BERT's tokenizers do to ASCII.
//!
//! The library keeps of every token its text, its places and its masks, and makes strings of a text at each of its steps. Where a
//! model is small that takes about as long as the model itself. Of a BERT tokenizer's steps most do nothing to ASCII: there are no
//! accents to strip and no Chinese characters to set apart. What is left is to lower letters, to split at spaces and around marks, and
//! to look up the longest piece that fits, again and again. That is done here, and only where all of it is certain: every other
//! tokenizer, and every text with a byte beyond ASCII, a control character or a mark that may begin an added token, such as `[MASK]`,
//! goes the library's way.

use super::open::sound;
use tokenizers::{Model, ModelWrapper, NormalizerWrapper, PreTokenizerWrapper};

/// Words of more letters than this would be looked up in too many parts. BERT's own limit is 100.
const LONGEST_WORD: usize = 256;

/// Has letters of both cases, marks, digits and a word that no vocabulary has whole.
const PROBE: &str = "Hello, worLD: 42 qzxjkvq!";

/// What a byte is to BERT.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Kind {
    /// Part of a word.
    Letter,
    /// Between words.
    Space,
    /// A word by itself.
    Mark,
    /// Not ours to judge.
    Strange,
}

/// A BERT tokenizer, as far as ASCII is concerned.
#[derive(Debug)]
pub(super) struct Plain {
    kinds: [Kind; 128],
    is_lower: bool,
    /// Letters of a word that is looked up at all.
    longest: usize,
    /// What stands before a piece that goes on within a word.
    prefix: String,
    unknown: u32,
    /// Tokens that begin and end a text.
    head: Vec<u32>,
    tail: Vec<u32>,
}

impl Plain {
    /// Of a tokenizer that is BERT's in every step.
    pub(super) fn of(tokenizer: &tokenizers::Tokenizer) -> Option<Plain> {
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
        let mut kinds = std::array::from_fn(|i| match i as u8 {
            b' ' | b'\t' | b'\n' | b'\r' => Kind::Space,
            b if b.is_ascii_punctuation() => Kind::Mark,
            b if b.is_ascii_alphanumeric() => Kind::Letter,
            _ => Kind::Strange,
        });
        for added in tokenizer.get_added_vocabulary().get_added_tokens_decoder().values() {
            // One that begins otherwise may be found where we would see a word, or behind what the library leaves out.
            let first = added.content.bytes().next().filter(u8::is_ascii_punctuation)?;
            kinds[usize::from(first)] = Kind::Strange;
        }
        let unknown = model.token_to_id(&model.unk_token)?;
        let (head, tail) = ends(tokenizer)?;
        let (longest, prefix) = (model.max_input_chars_per_word, model.continuing_subword_prefix.clone());
        let plain = Plain { kinds, is_lower: normalizer.lowercase, longest, prefix, unknown, head, tail };
        let theirs = sound(|| tokenizer.encode_fast(PROBE, true)).ok()?;
        // The probe is cut where the model takes next to nothing; then there is nothing to gain either.
        (plain.encode(tokenizer, PROBE, usize::MAX)? == theirs.get_ids()).then_some(plain)
    }

    /// The tokens of a text, those that begin and end it included, unless it is not plain or has more than `most`.
    pub(super) fn encode(&self, tokenizer: &tokenizers::Tokenizer, text: &str, most: usize) -> Option<Vec<u32>> {
        let mut words = Words { plain: self, model: tokenizer.get_model(), word: String::new(), piece: String::new() };
        let mut ids = Vec::with_capacity(self.head.len() + text.len() / 4 + self.tail.len());
        ids.extend_from_slice(&self.head);
        for byte in text.bytes() {
            match *self.kinds.get(usize::from(byte))? {
                Kind::Letter => {
                    words.word.push(char::from(if self.is_lower { byte.to_ascii_lowercase() } else { byte }))
                }
                Kind::Space => words.end(&mut ids),
                Kind::Mark => {
                    words.end(&mut ids);
                    words.word.push(char::from(byte));
                    words.end(&mut ids);
                }
                Kind::Strange => return None,
            }
        }
        words.end(&mut ids);
        ids.extend_from_slice(&self.tail);
        (ids.len() <= most).then_some(ids)
    }
}

/// Words on their way to tokens.
struct Words<'a> {
    plain: &'a Plain,
    model: &'a ModelWrapper,
    word: String,
    /// Part of it, as the vocabulary would have it.
    piece: String,
}

impl Words<'_> {
    /// The word is over: the longest piece that the vocabulary has, then the longest of the rest; unknown where there is none.
    fn end(&mut self, ids: &mut Vec<u32>) {
        let (mut start, first) = (0, ids.len());
        while start < self.word.len() {
            let prefix = if start == 0 { "" } else { &self.plain.prefix };
            self.piece.clear();
            self.piece.push_str(prefix);
            self.piece.push_str(&self.word[start..]);
            let found = loop {
                if self.piece.len() == prefix.len() || self.word.len() > self.plain.longest {
                    break None;
                }
                if let Some(id) = self.model.token_to_id(&self.piece) {
                    break Some(id);
                }
                self.piece.pop();
            };
            let Some(id) = found else {
                ids.truncate(first);
                ids.push(self.plain.unknown);
                break;
            };
            ids.push(id);
            start += self.piece.len() - prefix.len();
        }
        self.word.clear();
    }
}

/// Tokens before and behind a text, where there are both, all of its first segment.
fn ends(tokenizer: &tokenizers::Tokenizer) -> Option<(Vec<u32>, Vec<u32>)> {
    let bare = sound(|| tokenizer.encode_fast(PROBE, false)).ok()?;
    let whole = sound(|| tokenizer.encode_fast(PROBE, true)).ok()?;
    let (ids, marks) = (whole.get_ids(), whole.get_special_tokens_mask());
    let head = marks.iter().take_while(|m| **m == 1).count();
    let tail = marks.iter().rev().take_while(|m| **m == 1).count();
    let is_plain = head > 0
        && tail > 0
        && head + tail < ids.len()
        && ids[head..ids.len() - tail] == *bare.get_ids()
        && whole.get_type_ids().iter().all(|t| *t == 0);
    is_plain.then(|| (ids[..head].to_vec(), ids[ids.len() - tail..].to_vec()))
}

#[cfg(test)]
mod tests {
    use super::super::open::open;
    use super::*;
    use sconce_testkit::materialize;
    use serde_json::{Value, json};

    /// Bytes of all kinds, spaces and letters more often than others.
    fn noise(seed: u64) -> String {
        let mut state = seed.wrapping_mul(0x9e37_79b9_7f4a_7c15) | 1;
        let mut next = |n: u64| {
            state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
            (state >> 33) % n
        };
        let length = next(60);
        let byte = |_| match next(20) {
            0..=3 => b' ',
            4 => b"\t\n\r"[next(3) as usize],
            5..=6 => 0x21 + next(0x5e) as u8,
            7 => next(128) as u8,
            8 => b'A' + next(26) as u8,
            _ => b'a' + next(26) as u8,
        };
        (0..length).map(byte).map(char::from).collect()
    }

    /// A BERT tokenizer of which the file was changed.
    fn changed(change: impl Fn(&mut Value)) -> tokenizers::Tokenizer {
        let dir = materialize("st-max");
        let path = dir.path().join("tokenizer.json");
        let mut file = serde_json::from_slice(&std::fs::read(&path).unwrap()).unwrap();
        change(&mut file);
        std::fs::write(&path, file.to_string()).unwrap();
        open(dir.path()).unwrap()
    }

    /// How many texts were plain, all of which had the library's tokens.
    fn taken(tokenizer: &tokenizers::Tokenizer, noisy: u64) -> usize {
        let plain = Plain::of(tokenizer).expect("a BERT tokenizer");
        // As long as a word may be, longer by a letter, and much longer.
        let [most, more, long] = [100, 101, 400].map(|n| "un".repeat(200)[..n].to_string());
        let known =
            ["", " ", "A man, a plan!", "it's 3.14 (or so)", "Eating THE mattress", "naïve", "tab\tand\u{1}bell"];
        let known = known.into_iter().chain(["[MASK] and [SEP]", &most, &more, &long]).map(String::from);
        let mut taken = 0;
        for text in known.chain((0..noisy).map(noise)) {
            let theirs = tokenizer.encode(text.as_str(), true).unwrap();
            let Some(ours) = plain.encode(tokenizer, &text, 512) else { continue };
            assert_eq!(ours, theirs.get_ids(), "{text:?}");
            assert!(theirs.get_type_ids().iter().all(|t| *t == 0), "{text:?}");
            taken += 1;
        }
        taken
    }

    #[test]
    fn what_is_plain_has_the_librarys_tokens() {
        let count = taken(&changed(|_| ()), 20_000);
        assert!(count > 3_000, "{count} texts were plain");
    }

    #[test]
    fn what_a_tokenizer_says_is_heeded() {
        let cased = changed(|file| file["normalizer"]["lowercase"] = false.into());
        let short = changed(|file| file["model"]["max_input_chars_per_word"] = 5.into());
        let unknown = changed(|file| file["model"]["unk_token"] = "[PAD]".into());
        let prefix = changed(|file| *file = serde_json::from_str(&file.to_string().replace("##", "@@")).unwrap());
        for tokenizer in [cased, short, unknown, prefix] {
            let count = taken(&tokenizer, 2_000);
            assert!(count > 300, "{count} texts were plain");
        }
    }

    #[test]
    fn what_is_not_plain_is_left_to_the_library() {
        let dir = materialize("st-max");
        let tokenizer = open(dir.path()).unwrap();
        let plain = Plain::of(&tokenizer).expect("a BERT tokenizer");
        for text in ["naïve", "a [MASK]", "bell\u{7}", "\u{b}", "中"] {
            assert_eq!(plain.encode(&tokenizer, text, 512), None, "{text:?}");
        }
        let three = plain.encode(&tokenizer, "a b c", 512).map(|ids| ids.len()).unwrap();
        assert!(plain.encode(&tokenizer, "a b c", three).is_some());
        assert!(plain.encode(&tokenizer, "a b c", three - 1).is_none(), "it would be cut");
    }

    #[test]
    fn other_tokenizers_are_left_to_the_library() {
        let dir = materialize("task-embed-llama");
        assert!(Plain::of(&open(dir.path()).unwrap()).is_none());
        assert!(Plain::of(&changed(|_| ())).is_some());
        let mut tokenizer = changed(|_| ());
        tokenizer.add_tokens([tokenizers::AddedToken::from("sconce", false)]).unwrap();
        assert!(Plain::of(&tokenizer).is_none(), "an added token that is a word");
        let mut tokenizer = changed(|_| ());
        let cut = tokenizers::TruncationParams { max_length: 6, ..Default::default() };
        tokenizer.with_truncation(Some(cut)).unwrap();
        assert!(Plain::of(&tokenizer).is_none(), "next to nothing is left of a text");
        let differs = |change: &dyn Fn(&mut Value)| Plain::of(&changed(change)).is_none();
        assert!(differs(&|file| file["normalizer"]["clean_text"] = false.into()), "control characters are kept");
        assert!(differs(&|file| file["normalizer"] = json!({"type": "Lowercase"})));
        assert!(differs(&|file| file["pre_tokenizer"] = json!({"type": "WhitespaceSplit"})));
        assert!(differs(&|file| file["model"]["max_input_chars_per_word"] = 257.into()), "words of any length");
        assert!(differs(&|file| file["post_processor"] = json!(null)), "nothing begins or ends a text");
        assert!(differs(&|file| file["post_processor"]["single"][1]["Sequence"]["type_id"] = 1.into()));
    }
}
