//! The steps around the model of a tokenizer built from legacy files: its normalizer,
//! pre-tokenizer, decoder and post-processor, as each class sets them.

use super::legacy::{Builder, Class, Source};
use super::spm;
use serde_json::{Map, Value, json};

impl Builder<'_> {
    pub(super) fn normalizer(&self, source: &Source) -> Value {
        let replace =
            |pattern: &str, by: &str| json!({ "type": "Replace", "pattern": { "Regex": pattern }, "content": by });
        let literal = |from: &str, by: &str| json!({ "type": "Replace", "pattern": { "String": from }, "content": by });
        let plain = |name: &str| json!({ "type": name });
        let strip = |left: bool| json!({ "type": "Strip", "strip_left": left, "strip_right": true });
        let spm = match source {
            Source::Pieces(spm) => spm,
            Source::Words(_) => {
                return json!({
                    "type": "BertNormalizer", "clean_text": true, "lowercase": self.flag("do_lower_case", true),
                    "handle_chinese_chars": self.flag("tokenize_chinese_chars", true),
                    "strip_accents": self.config.get("strip_accents").and_then(Value::as_bool),
                });
            }
            Source::Pairs(..) if self.class != Class::Clip => return Value::Null,
            Source::Pairs(..) => return sequence(vec![plain("NFC"), replace(r"\s+", " "), plain("Lowercase")]),
        };
        let charsmap = || {
            (!spm.charsmap.is_empty())
                .then(|| json!({ "type": "Precompiled", "precompiled_charsmap": spm::base64(&spm.charsmap) }))
        };
        let lower = |default: bool| self.flag("do_lower_case", default).then(|| plain("Lowercase"));
        let collapse = |by: &str| spm.remove_extra_whitespaces.then(|| replace(" {2,}", by));
        let mut steps = Vec::new();
        match self.class {
            Class::DebertaV2 => {
                steps.extend(lower(false));
                steps.push(strip(true));
                steps.extend(charsmap());
                steps.extend(collapse(" "));
            }
            Class::Albert => {
                steps.extend([literal("``", "\""), literal("''", "\"")]);
                if !self.flag("keep_accents", false) {
                    steps.extend([plain("NFKD"), plain("StripAccents")]);
                }
                steps.extend(lower(true));
                steps.extend(charsmap());
                steps.extend(collapse(" "));
            }
            class => {
                if class == Class::Siglip {
                    steps.push(literal("\u{2581}", " "));
                    steps.extend(lower(true));
                    // The reference puts a U+2581 before the text, so leading spaces are not
                    // stripped but add one.
                    steps.extend([replace(r"[!-/:-@\[-`{-~]", ""), replace(r"[\s\x1c-\x1f]+", " ")]);
                    steps.push(replace(r"^ (?=\S)", "\u{2581} "));
                }
                steps.extend(charsmap());
                if spm.remove_extra_whitespaces {
                    steps.push(strip(false));
                }
                steps.extend(collapse("\u{2581}"));
            }
        }
        sequence(steps)
    }

    /// The Metaspace step, which places the space that SentencePiece puts before a text.
    fn metaspace(&self, spm: &spm::Model) -> Value {
        let t5 = self.class == Class::T5;
        let prefix = spm.add_dummy_prefix && (!t5 || self.flag("add_prefix_space", true));
        let first = t5 && !self.flag("legacy", true);
        let scheme = match (prefix, first) {
            (false, _) => "never",
            (true, true) => "first",
            (true, false) => "always",
        };
        json!({ "type": "Metaspace", "replacement": "\u{2581}", "prepend_scheme": scheme, "split": true })
    }

    pub(super) fn pre_tokenizer(&self, source: &Source) -> Value {
        let sequence = |list: Vec<Value>| json!({ "type": "Sequence", "pretokenizers": list });
        match source {
            Source::Words(_) => json!({ "type": "BertPreTokenizer" }),
            Source::Pairs(..) if self.class == Class::Clip => {
                let words = r"'s|'t|'re|'ve|'m|'ll|'d|[\p{L}]+|[\p{N}]|[^\s\p{L}\p{N}]+";
                let split =
                    json!({ "type": "Split", "pattern": { "Regex": words }, "behavior": "Removed", "invert": true });
                sequence(vec![split, byte_level(false)])
            }
            Source::Pairs(..) => byte_level(self.flag("add_prefix_space", false)),
            Source::Pieces(spm) if self.class == Class::DebertaV2 => {
                let by_punct = self.flag("split_by_punct", false);
                let punct = by_punct.then(|| json!({ "type": "Punctuation", "behavior": "Isolated" }));
                sequence(punct.into_iter().chain([self.metaspace(spm)]).collect())
            }
            Source::Pieces(spm) => self.metaspace(spm),
        }
    }

    pub(super) fn decoder(&self, source: &Source) -> Value {
        match source {
            Source::Words(_) => json!({ "type": "WordPiece", "prefix": "##", "cleanup": true }),
            Source::Pairs(..) => byte_level(true),
            Source::Pieces(spm) => self.metaspace(spm),
        }
    }

    pub(super) fn post_processor(&self, id: &dyn Fn(&str) -> Option<u64>) -> Result<Value, String> {
        let known = |role: &str| {
            let name = self.name(role)?;
            let id = id(&name).ok_or_else(|| format!("its {role} {name:?} is not in the vocabulary"))?;
            Ok::<_, String>((name, id))
        };
        let roberta = |cls: (String, u64), sep: (String, u64), trim: bool, prefix: bool| json!({ "type": "RobertaProcessing", "sep": sep, "cls": cls, "trim_offsets": trim, "add_prefix_space": prefix });
        match self.class {
            Class::Roberta => {
                let prefix = self.flag("add_prefix_space", false);
                Ok(roberta(known("cls_token")?, known("sep_token")?, self.flag("trim_offsets", true), prefix))
            }
            Class::Clip => Ok(roberta(known("bos_token")?, known("eos_token")?, false, false)),
            Class::T5 | Class::Siglip => Ok(template(None, known("eos_token")?, 1, 0)),
            Class::XlmRoberta | Class::Camembert => Ok(template(Some(known("cls_token")?), known("sep_token")?, 2, 0)),
            Class::Mpnet => Ok(template(Some(known("cls_token")?), known("sep_token")?, 2, 1)),
            Class::Bert | Class::Deberta | Class::DebertaV2 | Class::Albert => {
                Ok(template(Some(known("cls_token")?), known("sep_token")?, 1, 1))
            }
        }
    }
}

/// A template post-processor: `cls A sep` and `cls A sep B sep`, with `seps` separators between the
/// two. `second` is the token type id of the second text.
fn template(cls: Option<(String, u64)>, sep: (String, u64), seps: usize, second: u32) -> Value {
    let special = |name: &str, kind: u32| json!({ "SpecialToken": { "id": name, "type_id": kind } });
    let text = |id: &str, kind: u32| json!({ "Sequence": { "id": id, "type_id": kind } });
    let head: Vec<Value> = cls.iter().map(|(name, _)| special(name, 0)).chain([text("A", 0)]).collect();
    let single = [head.clone(), vec![special(&sep.0, 0)]].concat();
    let tail = vec![text("B", second), special(&sep.0, second)];
    let pair = [head, vec![special(&sep.0, 0); seps], tail].concat();
    let tokens: Map<String, Value> = cls
        .into_iter()
        .chain([sep])
        .map(|(name, id)| (name.clone(), json!({ "id": name, "ids": [id], "tokens": [name] })))
        .collect();
    json!({ "type": "TemplateProcessing", "single": single, "pair": pair, "special_tokens": tokens })
}

fn byte_level(add_prefix_space: bool) -> Value {
    json!({ "type": "ByteLevel", "add_prefix_space": add_prefix_space, "trim_offsets": true, "use_regex": true })
}

fn sequence(steps: Vec<Value>) -> Value {
    json!({ "type": "Sequence", "normalizers": steps })
}
