//! What stands round the model, as `tokenizer.json` writes it: what is done to a text before and after.

use super::SPACE;
use super::spm::base64;
use serde_json::{Map, Value, json};
use tokenizers::{DecoderWrapper, NormalizerWrapper, PostProcessorWrapper, PreTokenizerWrapper};

/// Tokens that every text gets.
pub(super) struct Ends {
    pub(super) first: Option<(String, u32)>,
    pub(super) last: Option<(String, u32)>,
    /// Of a pair, between the two texts.
    pub(super) between: Option<(String, u32)>,
    /// The type of a pair's second text.
    pub(super) second: u32,
}

/// Each is `null` where there is nothing to do.
pub(super) struct Parts {
    normalizer: Value,
    pre_tokenizer: Value,
    decoder: Value,
    ends: Value,
}

impl Parts {
    /// Byte pairs in GPT-2's alphabet, and tokens that look as if they were written in it.
    pub(super) fn bytes(cuts: &[&str], mistakable: &[&str]) -> Parts {
        let byte_level =
            json!({ "type": "ByteLevel", "add_prefix_space": false, "trim_offsets": true, "use_regex": false });
        let steps = cuts.iter().map(|cut| isolate(cut)).chain([byte_level.clone()]).collect();
        let spelt = mistakable.iter().map(|token| {
            let exactly: String = token.chars().map(|c| format!(r"\x{{{:X}}}", u32::from(c))).collect();
            let letters: String = token.bytes().map(letter).collect();
            expression(&format!("^{exactly}$"), &letters)
        });
        let decoders = sequence("decoders", spelt.chain([byte_level]).collect());
        Parts::new(Value::Null, sequence("pretokenizers", steps), decoders)
    }

    /// Byte pairs of text with U+2581 for spaces.
    pub(super) fn pieces(cuts: &[&str]) -> Parts {
        let cuts = sequence("pretokenizers", cuts.iter().map(|cut| isolate(cut)).collect());
        Parts::new(replace(" ", SPACE), cuts, unescape(false))
    }

    /// Byte pairs of text without its white space.
    pub(super) fn words(lowercase: bool) -> Parts {
        let normalizer = if lowercase { json!({ "type": "Lowercase" }) } else { Value::Null };
        Parts::new(normalizer, json!({ "type": "WhitespaceSplit" }), unescape(false))
    }

    /// SentencePiece's byte pairs: the whole text is one word, with a space before it if `prefix`.
    pub(super) fn spm(prefix: bool) -> Parts {
        let before = prefix.then(|| json!({ "type": "Prepend", "prepend": SPACE }));
        let steps = before.into_iter().chain([replace(" ", SPACE)]).collect();
        Parts::new(sequence("normalizers", steps), Value::Null, unescape(prefix))
    }

    /// SentencePiece's unigrams, which may reach across spaces, too. One space at most is left where `merge` is asked for, and then
    /// there is one before the text, too.
    pub(super) fn unigram(charsmap: &[u8], prefix: bool, merge: bool) -> Parts {
        let mut steps = Vec::new();
        if !charsmap.is_empty() {
            steps.push(json!({ "type": "Precompiled", "precompiled_charsmap": base64(charsmap) }));
        }
        if merge {
            steps.extend([expression(" {2,}", " "), expression("^ | $", "")]);
        }
        if prefix || merge {
            steps.push(json!({ "type": "Prepend", "prepend": SPACE }));
        }
        steps.push(replace(" ", SPACE));
        Parts::new(sequence("normalizers", steps), Value::Null, unescape(prefix || merge))
    }

    pub(super) fn bert(lowercase: bool, strip_accents: bool) -> Parts {
        let normalizer = json!({
            "type": "BertNormalizer", "clean_text": true, "lowercase": lowercase, "handle_chinese_chars": true,
            "strip_accents": strip_accents,
        });
        let decoder = json!({ "type": "WordPiece", "prefix": "##", "cleanup": true });
        Parts::new(normalizer, json!({ "type": "BertPreTokenizer" }), decoder)
    }

    fn new(normalizer: Value, pre_tokenizer: Value, decoder: Value) -> Parts {
        Parts { normalizer, pre_tokenizer, decoder, ends: Value::Null }
    }

    pub(super) fn ends(mut self, ends: Ends) -> Parts {
        let Ends { first, last, between, second } = &ends;
        let special = |token: &Option<(String, u32)>, kind: u32| {
            token.iter().map(|(name, _)| json!({ "SpecialToken": { "id": name, "type_id": kind } })).collect::<Vec<_>>()
        };
        let text = |id: &str, kind: u32| vec![json!({ "Sequence": { "id": id, "type_id": kind } })];
        let single = [special(first, 0), text("A", 0), special(last, 0)].concat();
        let rest = [special(between, 0), text("B", *second), special(last, *second)].concat();
        let tokens: Map<String, Value> = [first, last, between]
            .into_iter()
            .flatten()
            .map(|(name, id)| (name.clone(), json!({ "id": name, "ids": [id], "tokens": [name] })))
            .collect();
        let pair = [single.clone(), rest].concat();
        self.ends = json!({ "type": "TemplateProcessing", "single": single, "pair": pair, "special_tokens": tokens });
        self
    }

    pub(super) fn normalizer(&self) -> serde_json::Result<Option<NormalizerWrapper>> {
        serde_json::from_value(self.normalizer.clone())
    }

    pub(super) fn pre_tokenizer(&self) -> serde_json::Result<Option<PreTokenizerWrapper>> {
        serde_json::from_value(self.pre_tokenizer.clone())
    }

    pub(super) fn decoder(&self) -> serde_json::Result<Option<DecoderWrapper>> {
        serde_json::from_value(self.decoder.clone())
    }

    pub(super) fn post_processor(&self) -> serde_json::Result<Option<PostProcessorWrapper>> {
        serde_json::from_value(self.ends.clone())
    }
}

/// What matches becomes a piece, and so does what lies between.
fn isolate(expression: &str) -> Value {
    json!({ "type": "Split", "pattern": { "Regex": expression }, "behavior": "Isolated", "invert": false })
}

fn replace(from: &str, to: &str) -> Value {
    json!({ "type": "Replace", "pattern": { "String": from }, "content": to })
}

fn expression(from: &str, to: &str) -> Value {
    json!({ "type": "Replace", "pattern": { "Regex": from }, "content": to })
}

/// GPT-2's letter for a byte: itself where that is a sign one can see, else one of those after U+0100, in order.
pub(super) fn letter(byte: u8) -> char {
    let visible = |b: u8| matches!(b, 0x21..=0x7E | 0xA1..=0xAC | 0xAE..=0xFF);
    match visible(byte) {
        true => char::from(byte),
        false => char::from_u32(0x100 + (0..byte).filter(|b| !visible(*b)).count() as u32).unwrap_or('\u{100}'),
    }
}

/// Pieces back to text, without the space before it if there is one.
fn unescape(prefix: bool) -> Value {
    let strip = prefix.then(|| json!({ "type": "Strip", "content": " ", "start": 1, "stop": 0 }));
    let steps = [replace(SPACE, " "), json!({ "type": "ByteFallback" }), json!({ "type": "Fuse" })];
    sequence("decoders", steps.into_iter().chain(strip).collect())
}

fn sequence(what: &str, steps: Vec<Value>) -> Value {
    json!({ "type": "Sequence", what: steps })
}
