//! How each class of tokenizers is put together from its vocabulary: the parts of the `tokenizer.json` it would have had.

use super::special::{Flags, Named, ROLES, Token, Told};
use super::spm::{self, Kind};
use super::vocabulary::{Vocabulary, merges};
use serde_json::{Map, Value, json};
use std::collections::{HashMap, HashSet};

/// The classes that differ. Others are one of these under another name.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) enum Class {
    Bert,
    Mpnet,
    Roberta,
    Deberta,
    Clip,
    XlmRoberta,
    Camembert,
    DebertaV2,
    T5,
    Siglip,
    Albert,
}

/// A vocabulary as the files have it.
pub(crate) enum Source {
    /// `vocab.txt`.
    Words(HashMap<String, u32>),
    /// `vocab.json` and `merges.txt`.
    Pairs(HashMap<String, u32>, Vec<(String, String)>),
    /// A SentencePiece model.
    Pieces(spm::Model),
}

/// More than any model has: T5 has 100.
const MOST_EXTRA_IDS: u64 = 10_000;

/// The whole tokenizer as its own `tokenizer.json`.
pub(crate) fn tokenizer_json(class: Class, source: Source, config: &Value, told: &Told) -> Result<Value, String> {
    let recipe = Recipe { class, config, told };
    let extra_ids = recipe.extra_ids()?;
    // SigLIP's tokenizer was never converted, and has no tokens but those it names.
    let spm_tokens = if class == Class::Siglip { Vec::new() } else { spm_tokens(&source) };
    let normalizer = recipe.normalizer(&source);
    let pre_tokenizer = recipe.pre_tokenizer(&source);
    let decoder = recipe.decoder(&source);
    let (mut vocabulary, mut model) = recipe.model(source, &extra_ids)?;
    let tokens = recipe.tokens(spm_tokens, extra_ids);
    let added_tokens = vocabulary.place(&tokens)?;
    let post_processor = recipe.post_processor(&|name| {
        let added = added_tokens.iter().find(|t| t["content"] == name).and_then(|t| t["id"].as_u64());
        added.or_else(|| vocabulary.id(name).map(u64::from))
    })?;
    model["vocab"] = vocabulary.json();
    Ok(json!({
        "version": "1.0", "truncation": null, "padding": null, "added_tokens": added_tokens, "normalizer": normalizer,
        "pre_tokenizer": pre_tokenizer, "post_processor": post_processor, "decoder": decoder, "model": model,
    }))
}

struct Recipe<'a> {
    class: Class,
    config: &'a Value,
    told: &'a Told,
}

impl Recipe<'_> {
    fn flag(&self, name: &str, default: bool) -> bool {
        self.config.get(name).and_then(Value::as_bool).unwrap_or(default)
    }

    /// What the class calls its special tokens unless a file says otherwise.
    fn default_name(&self, role: &str) -> Option<&'static str> {
        use Class::*;
        Some(match (self.class, role) {
            (Bert, "bos_token" | "eos_token") => return None,
            (T5 | Siglip, "bos_token" | "cls_token" | "sep_token" | "mask_token") => return None,
            (Clip, "cls_token" | "sep_token" | "mask_token") => return None,
            (Clip, "bos_token") => "<|startoftext|>",
            (Clip, _) => "<|endoftext|>",
            (Mpnet, "unk_token") => "[UNK]",
            (Albert, "unk_token") => "<unk>",
            (Albert, "pad_token") => "<pad>",
            (Siglip, "pad_token") => "</s>",
            (Bert | Deberta | DebertaV2 | Albert, "bos_token" | "cls_token") => "[CLS]",
            (Bert | Deberta | DebertaV2 | Albert, "eos_token" | "sep_token") => "[SEP]",
            (Bert | Deberta | DebertaV2, "unk_token") => "[UNK]",
            (Bert | Deberta | DebertaV2, "pad_token") => "[PAD]",
            (Bert | Deberta | DebertaV2 | Albert, _) => "[MASK]",
            (_, "bos_token" | "cls_token") => "<s>",
            (_, "eos_token" | "sep_token") => "</s>",
            (_, "unk_token") => "<unk>",
            (_, "pad_token") => "<pad>",
            (_, _) => "<mask>",
        })
    }

    /// Flags of a special token of which the files have the name alone. A mask takes the place of a word with its space.
    fn flags(&self, role: &str) -> Flags {
        use Class::*;
        let plain = Flags::default();
        let own = Flags { explicit: true, ..plain };
        match (self.class, role) {
            (Deberta, "mask_token") => Flags { lstrip: true, normalized: true, ..own },
            (Mpnet | Roberta | XlmRoberta | Camembert | Albert, "mask_token") => Flags { lstrip: true, ..own },
            (Roberta, _) | (Clip, "bos_token" | "eos_token" | "unk_token") | (DebertaV2, "unk_token") => {
                Flags { normalized: true, ..own }
            }
            (Mpnet | Deberta | T5, _) => own,
            (Siglip, _) => Flags { lstrip: true, rstrip: true, ..own },
            _ => plain,
        }
    }

    fn name(&self, role: &str) -> Result<String, String> {
        match self.told.role(role, self.default_name(role)) {
            Some(named) => Ok(named.text().to_string()),
            None => Err(format!("the files name no {role}, and this kind of tokenizer needs one")),
        }
    }

    /// T5's `<extra_id_0>` and so on, highest first, as its vocabulary ends.
    fn extra_ids(&self) -> Result<Vec<String>, String> {
        if self.class != Class::T5 {
            return Ok(Vec::new());
        }
        let n = self.config.get("extra_ids").and_then(Value::as_u64).unwrap_or(100);
        if n > MOST_EXTRA_IDS {
            return Err(format!("extra_ids is {n}; at most {MOST_EXTRA_IDS} can be had"));
        }
        Ok((0..n).rev().map(|i| format!("<extra_id_{i}>")).collect())
    }

    /// Every token to be found before the vocabulary is asked. Later ones replace flags only if they tell any.
    fn tokens(&self, first: Vec<Token>, extra_ids: Vec<String>) -> Vec<Token> {
        let mut special: Vec<Token> = Vec::new();
        let mut seen = HashSet::new();
        let mut add = |named: Named, flags: Flags| {
            if seen.insert(named.text().to_string()) {
                special.push(match named {
                    Named::Name(name) => Token::new(&name, flags),
                    Named::Whole(token) => Token { special: true, ..token },
                });
            }
        };
        for role in ROLES {
            if let Some(named) = self.told.role(role, self.default_name(role)) {
                add(named, self.flags(role));
            }
        }
        let unused = ["<s>NOTUSED", "</s>NOTUSED", "<unk>NOTUSED"];
        let default = if self.class == Class::Camembert { unused.as_slice() } else { &[] };
        let default: Vec<Named> = default.iter().map(|s| Named::Name(s.to_string())).collect();
        let additional = self.told.additional.as_ref().unwrap_or(&default);
        for named in additional {
            add(named.clone(), Flags::default());
        }
        if !additional.iter().any(|n| n.text().contains("<extra_id_")) {
            for name in extra_ids.into_iter().rev() {
                add(Named::Name(name), Flags::default());
            }
        }
        let mut tokens = first;
        let mut place: HashMap<String, usize> = tokens.iter().enumerate().map(|(i, t)| (t.text.clone(), i)).collect();
        for token in self.told.added.iter().cloned().chain(special.iter().cloned()) {
            match place.get(&token.text) {
                Some(&at) if token.explicit => {
                    let id = token.id.or(tokens[at].id);
                    tokens[at] = Token { id, ..token };
                }
                Some(_) => {}
                None => {
                    place.insert(token.text.clone(), tokens.len());
                    tokens.push(token);
                }
            }
        }
        for token in &mut tokens[..] {
            token.special |= token.explicit && seen.contains(&token.text);
        }
        tokens
    }

    fn model(&self, source: Source, extra_ids: &[String]) -> Result<(Vocabulary, Value), String> {
        let bpe = |unk: Option<&str>, affix: Option<&str>, suffix: Option<&str>, spm: bool, bytes: bool| {
            json!({
                "type": "BPE", "dropout": null, "unk_token": unk, "continuing_subword_prefix": affix,
                "end_of_word_suffix": suffix, "fuse_unk": spm, "byte_fallback": bytes, "ignore_merges": false,
            })
        };
        match source {
            Source::Words(vocab) => {
                let unk = self.name("unk_token")?;
                let model = json!({
                    "type": "WordPiece", "unk_token": unk, "continuing_subword_prefix": "##",
                    "max_input_chars_per_word": 100,
                });
                Ok((Vocabulary::Map(vocab), model))
            }
            Source::Pairs(vocab, merges) => {
                let clip = self.class == Class::Clip;
                let unk = if clip { Some(self.name("unk_token")?) } else { None };
                let mut model = bpe(unk.as_deref(), Some(""), Some(if clip { "</w>" } else { "" }), false, false);
                model["merges"] = json!(merges);
                Ok((Vocabulary::Map(vocab), model))
            }
            Source::Pieces(spm) => {
                let (unk, bytes) = (spm.unk_piece.clone(), spm.byte_fallback);
                let (list, unk_id) = self.pieces(&spm, extra_ids);
                if !spm.bpe {
                    let model = json!({ "type": "Unigram", "unk_id": unk_id, "byte_fallback": bytes });
                    return Ok((Vocabulary::List(list), model));
                }
                let mut model = bpe(Some(&unk), None, None, true, bytes);
                let vocab: HashMap<String, u32> = list.iter().map(|(t, _)| t.clone()).zip(0..).collect();
                model["merges"] = json!(merges(&vocab, &list)?);
                Ok((Vocabulary::Map(vocab), model))
            }
        }
    }

    /// Pieces in the order of the model's ids, which for the heirs of fairseq is not that of the file.
    fn pieces(&self, spm: &spm::Model, extra_ids: &[String]) -> (Vec<(String, f64)>, usize) {
        let piece = |p: &spm::Piece| (p.text.clone(), f64::from(p.score));
        let fixed = |list: &[(&str, f64)]| list.iter().map(|(t, s)| (t.to_string(), *s)).collect::<Vec<_>>();
        let (mut list, skip) = match self.class {
            Class::XlmRoberta => (fixed(&[("<s>", 0.0), ("<pad>", 0.0), ("</s>", 0.0), ("<unk>", 0.0)]), 3),
            // The file's own unknown piece must never win against the one before it.
            Class::Camembert => {
                let unused = [("<s>NOTUSED", 0.0), ("<pad>", 0.0), ("</s>NOTUSED", 0.0), ("<unk>", 0.0)];
                ([fixed(&unused), fixed(&[("<unk>NOTUSED", -100.0)])].concat(), 1)
            }
            _ => (Vec::new(), 0),
        };
        let fairseq = !list.is_empty();
        list.extend(spm.pieces.iter().skip(skip).map(piece));
        if fairseq {
            list.push(("<mask>".into(), 0.0));
        }
        if self.class == Class::Albert {
            // ALBERT never ends a piece in a digit and a comma.
            for (text, score) in &mut list {
                let mut back = text.chars().rev();
                if back.next() == Some(',') && back.next().is_some_and(|c| c.is_ascii_digit()) {
                    *score -= 100.0;
                }
            }
        }
        list.extend(extra_ids.iter().map(|t| (t.clone(), 0.0)));
        (list, if fairseq { 3 } else { spm.unk_id })
    }

    fn normalizer(&self, source: &Source) -> Value {
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
                    // The reference puts a U+2581 before the text, so spaces that lead it are not stripped but are one more.
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

    /// Where the space goes that SentencePiece puts before a text.
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

    fn pre_tokenizer(&self, source: &Source) -> Value {
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

    fn decoder(&self, source: &Source) -> Value {
        match source {
            Source::Words(_) => json!({ "type": "WordPiece", "prefix": "##", "cleanup": true }),
            Source::Pairs(..) => byte_level(true),
            Source::Pieces(spm) => self.metaspace(spm),
        }
    }

    fn post_processor(&self, id: &dyn Fn(&str) -> Option<u64>) -> Result<Value, String> {
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

/// `cls A sep` and `cls A sep B sep`, with `seps` of them between the two, and the type of the second text.
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

/// A model's control symbols and the user's own are found whole, before normalisation.
fn spm_tokens(source: &Source) -> Vec<Token> {
    let Source::Pieces(spm) = source else { return Vec::new() };
    let token = |p: &spm::Piece| {
        let special = p.kind == Kind::Control;
        Token { special, ..Token::new(&p.text, Flags::default()) }
    };
    spm.pieces.iter().filter(|p| p.kind != Kind::Plain).map(token).collect()
}
