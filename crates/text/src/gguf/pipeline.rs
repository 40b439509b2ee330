//! The steps around the model of a tokenizer, in the form of `tokenizer.json`: normalizer,
//! pre-tokenizer, decoder and post-processor.

use super::SPACE;
use super::spm::base64;
use serde_json::{Map, Value, json};
use tokenizers::{DecoderWrapper, NormalizerWrapper, PostProcessorWrapper, PreTokenizerWrapper};

/// Special tokens that the post-processor adds to every text.
pub(super) struct TemplateTokens {
    pub(super) first: Option<(String, u32)>,
    pub(super) last: Option<(String, u32)>,
    /// Between the two texts of a pair.
    pub(super) between: Option<(String, u32)>,
    /// Token type id of a pair's second text.
    pub(super) second: u32,
}

/// The steps of a tokenizer; a step that has nothing to do is `null`.
pub(super) struct Pipeline {
    normalizer: Value,
    pre_tokenizer: Value,
    decoder: Value,
    post_processor: Value,
}

impl Pipeline {
    /// Byte-level BPE. `byte_lookalikes` are plain-text tokens that the decoder could mistake for
    /// characters of the byte alphabet.
    pub(super) fn bytes(cuts: &[&str], byte_lookalikes: &[&str]) -> Pipeline {
        let byte_level =
            json!({ "type": "ByteLevel", "add_prefix_space": false, "trim_offsets": true, "use_regex": false });
        let steps = cuts.iter().map(|cut| isolate(cut)).chain([byte_level.clone()]).collect();
        let spelled = byte_lookalikes.iter().map(|token| {
            let exactly: String = token.chars().map(|c| format!(r"\x{{{:X}}}", u32::from(c))).collect();
            let letters: String = token.bytes().map(letter).collect();
            expression(&format!("^{exactly}$"), &letters)
        });
        let decoders = sequence("decoders", spelled.chain([byte_level]).collect());
        Pipeline::new(Value::Null, sequence("pretokenizers", steps), decoders)
    }

    /// BPE over text with U+2581 for spaces.
    pub(super) fn pieces(cuts: &[&str]) -> Pipeline {
        let cuts = sequence("pretokenizers", cuts.iter().map(|cut| isolate(cut)).collect());
        Pipeline::new(replace(" ", SPACE), cuts, unescape(false))
    }

    /// BPE over words without white space.
    pub(super) fn words(lowercase: bool) -> Pipeline {
        let normalizer = if lowercase { json!({ "type": "Lowercase" }) } else { Value::Null };
        Pipeline::new(normalizer, json!({ "type": "WhitespaceSplit" }), unescape(false))
    }

    /// SentencePiece BPE: the whole text is one word, with a space before it if `prefix`.
    pub(super) fn spm(prefix: bool) -> Pipeline {
        let before = prefix.then(|| json!({ "type": "Prepend", "prepend": SPACE }));
        let steps = before.into_iter().chain([replace(" ", SPACE)]).collect();
        Pipeline::new(sequence("normalizers", steps), Value::Null, unescape(prefix))
    }

    /// SentencePiece unigram, whose pieces may span spaces. `merge` collapses runs of spaces and
    /// puts one before the text.
    pub(super) fn unigram(charsmap: &[u8], prefix: bool, merge: bool) -> Pipeline {
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
        Pipeline::new(sequence("normalizers", steps), Value::Null, unescape(prefix || merge))
    }

    pub(super) fn bert(lowercase: bool, strip_accents: bool) -> Pipeline {
        let normalizer = json!({
            "type": "BertNormalizer", "clean_text": true, "lowercase": lowercase, "handle_chinese_chars": true,
            "strip_accents": strip_accents,
        });
        let decoder = json!({ "type": "WordPiece", "prefix": "##", "cleanup": true });
        Pipeline::new(normalizer, json!({ "type": "BertPreTokenizer" }), decoder)
    }

    fn new(normalizer: Value, pre_tokenizer: Value, decoder: Value) -> Pipeline {
        Pipeline { normalizer, pre_tokenizer, decoder, post_processor: Value::Null }
    }

    pub(super) fn with_template(mut self, template: TemplateTokens) -> Pipeline {
        let TemplateTokens { first, last, between, second } = &template;
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
        self.post_processor =
            json!({ "type": "TemplateProcessing", "single": single, "pair": pair, "special_tokens": tokens });
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
        serde_json::from_value(self.post_processor.clone())
    }
}

/// Split: each match is a piece, and so is the text between matches.
fn isolate(expression: &str) -> Value {
    json!({ "type": "Split", "pattern": { "Regex": expression }, "behavior": "Isolated", "invert": false })
}

fn replace(from: &str, to: &str) -> Value {
    json!({ "type": "Replace", "pattern": { "String": from }, "content": to })
}

fn expression(from: &str, to: &str) -> Value {
    json!({ "type": "Replace", "pattern": { "Regex": from }, "content": to })
}

/// GPT-2's character for a byte: the byte itself if printable, else one from U+0100 on, in order.
pub(super) fn letter(byte: u8) -> char {
    let visible = |b: u8| matches!(b, 0x21..=0x7E | 0xA1..=0xAC | 0xAE..=0xFF);
    match visible(byte) {
        true => char::from(byte),
        false => char::from_u32(0x100 + (0..byte).filter(|b| !visible(*b)).count() as u32).unwrap_or('\u{100}'),
    }
}

/// Decodes pieces to text, and removes the space before it if `prefix`.
fn unescape(prefix: bool) -> Value {
    let strip = prefix.then(|| json!({ "type": "Strip", "content": " ", "start": 1, "stop": 0 }));
    let steps = [replace(SPACE, " "), json!({ "type": "ByteFallback" }), json!({ "type": "Fuse" })];
    sequence("decoders", steps.into_iter().chain(strip).collect())
}

fn sequence(what: &str, steps: Vec<Value>) -> Value {
    json!({ "type": "Sequence", what: steps })
}
