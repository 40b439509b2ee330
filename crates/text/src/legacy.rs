//! Builds the `tokenizer.json` that a tokenizer class would have had, from its legacy files.

use super::special::{Flags, ROLES, SpecialTokens, Token, TokenSpec};
use super::spm::{self, PieceKind};
use super::vocabulary::{Vocabulary, merges};
use serde_json::{Value, json};
use std::collections::{HashMap, HashSet};

/// The tokenizer classes that behave differently. Every other class equals one of these.
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

/// A vocabulary as the legacy files store it.
pub(crate) enum Source {
    /// `vocab.txt`.
    Words(HashMap<String, u32>),
    /// `vocab.json` and `merges.txt`.
    Pairs(HashMap<String, u32>, Vec<(String, String)>),
    /// A SentencePiece model.
    Pieces(spm::Model),
}

/// More `<extra_id_N>` tokens than any model has: T5 has 100.
const MAX_EXTRA_IDS: u64 = 10_000;

/// The complete tokenizer as the content of a `tokenizer.json`.
pub(crate) fn tokenizer_json(
    class: Class,
    source: Source,
    config: &Value,
    specials: &SpecialTokens,
) -> Result<Value, String> {
    let builder = Builder { class, config, specials };
    let extra_ids = builder.extra_ids()?;
    // SigLIP's tokenizer was never converted, and has only the added tokens that it names.
    let spm_tokens = if class == Class::Siglip { Vec::new() } else { spm_tokens(&source) };
    let normalizer = builder.normalizer(&source);
    let pre_tokenizer = builder.pre_tokenizer(&source);
    let decoder = builder.decoder(&source);
    let (mut vocabulary, mut model) = builder.model(source, &extra_ids)?;
    let tokens = builder.tokens(spm_tokens, extra_ids);
    let added_tokens = vocabulary.place(&tokens)?;
    let post_processor = builder.post_processor(&|name| {
        let added = added_tokens.iter().find(|t| t["content"] == name).and_then(|t| t["id"].as_u64());
        added.or_else(|| vocabulary.id(name).map(u64::from))
    })?;
    model["vocab"] = vocabulary.json();
    Ok(json!({
        "version": "1.0", "truncation": null, "padding": null, "added_tokens": added_tokens, "normalizer": normalizer,
        "pre_tokenizer": pre_tokenizer, "post_processor": post_processor, "decoder": decoder, "model": model,
    }))
}

/// Builds a tokenizer from its class and its settings files.
pub(super) struct Builder<'a> {
    pub(super) class: Class,
    pub(super) config: &'a Value,
    specials: &'a SpecialTokens,
}

impl Builder<'_> {
    pub(super) fn flag(&self, name: &str, default: bool) -> bool {
        self.config.get(name).and_then(Value::as_bool).unwrap_or(default)
    }

    /// Name of a special token in this class unless a file says otherwise.
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

    /// Flags of a special token that the files give by name only. A mask token absorbs the space
    /// before it.
    fn flags(&self, role: &str) -> Flags {
        use Class::*;
        let plain = Flags::default();
        let explicit = Flags { explicit: true, ..plain };
        match (self.class, role) {
            (Deberta, "mask_token") => Flags { lstrip: true, normalized: true, ..explicit },
            (Mpnet | Roberta | XlmRoberta | Camembert | Albert, "mask_token") => Flags { lstrip: true, ..explicit },
            (Roberta, _) | (Clip, "bos_token" | "eos_token" | "unk_token") | (DebertaV2, "unk_token") => {
                Flags { normalized: true, ..explicit }
            }
            (Mpnet | Deberta | T5, _) => explicit,
            (Siglip, _) => Flags { lstrip: true, rstrip: true, ..explicit },
            _ => plain,
        }
    }

    pub(super) fn name(&self, role: &str) -> Result<String, String> {
        match self.specials.role(role, self.default_name(role)) {
            Some(named) => Ok(named.text().to_string()),
            None => Err(format!("the tokenizer's files name no {role}, and this tokenizer class needs one")),
        }
    }

    /// T5's sentinel tokens `<extra_id_N>`, highest first, in the order of its vocabulary.
    fn extra_ids(&self) -> Result<Vec<String>, String> {
        if self.class != Class::T5 {
            return Ok(Vec::new());
        }
        let n = self.config.get("extra_ids").and_then(Value::as_u64).unwrap_or(100);
        if n > MAX_EXTRA_IDS {
            return Err(format!("extra_ids is {n}; the limit is {MAX_EXTRA_IDS}"));
        }
        Ok((0..n).rev().map(|i| format!("<extra_id_{i}>")).collect())
    }

    /// All added tokens. Later ones replace flags only if they are explicit.
    fn tokens(&self, first: Vec<Token>, extra_ids: Vec<String>) -> Vec<Token> {
        let mut special: Vec<Token> = Vec::new();
        let mut seen = HashSet::new();
        let mut add = |named: TokenSpec, flags: Flags| {
            if seen.insert(named.text().to_string()) {
                special.push(match named {
                    TokenSpec::Name(name) => Token::new(&name, flags),
                    TokenSpec::Full(token) => Token { special: true, ..token },
                });
            }
        };
        for role in ROLES {
            if let Some(named) = self.specials.role(role, self.default_name(role)) {
                add(named, self.flags(role));
            }
        }
        let unused = ["<s>NOTUSED", "</s>NOTUSED", "<unk>NOTUSED"];
        let default = if self.class == Class::Camembert { unused.as_slice() } else { &[] };
        let default: Vec<TokenSpec> = default.iter().map(|s| TokenSpec::Name(s.to_string())).collect();
        let additional = self.specials.additional.as_ref().unwrap_or(&default);
        for named in additional {
            add(named.clone(), Flags::default());
        }
        if !additional.iter().any(|n| n.text().contains("<extra_id_")) {
            for name in extra_ids.into_iter().rev() {
                add(TokenSpec::Name(name), Flags::default());
            }
        }
        let mut tokens = first;
        let mut place: HashMap<String, usize> = tokens.iter().enumerate().map(|(i, t)| (t.text.clone(), i)).collect();
        for token in self.specials.added.iter().cloned().chain(special.iter().cloned()) {
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

    /// Pieces in the order of the model's ids. For descendants of fairseq that is not the order of
    /// the file.
    fn pieces(&self, spm: &spm::Model, extra_ids: &[String]) -> (Vec<(String, f64)>, usize) {
        let piece = |p: &spm::Piece| (p.text.clone(), f64::from(p.score));
        let fixed = |list: &[(&str, f64)]| list.iter().map(|(t, s)| (t.to_string(), *s)).collect::<Vec<_>>();
        let (mut list, skip) = match self.class {
            Class::XlmRoberta => (fixed(&[("<s>", 0.0), ("<pad>", 0.0), ("</s>", 0.0), ("<unk>", 0.0)]), 3),
            // The file's own unknown piece must never be chosen over the `<unk>` before it.
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
            // ALBERT never uses a piece that ends in a digit and a comma.
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
}

/// SentencePiece's control symbols and user-defined symbols are matched whole, before
/// normalization.
fn spm_tokens(source: &Source) -> Vec<Token> {
    let Source::Pieces(spm) = source else { return Vec::new() };
    let token = |p: &spm::Piece| {
        let special = p.kind == PieceKind::Control;
        Token { special, ..Token::new(&p.text, Flags::default()) }
    };
    spm.pieces.iter().filter(|p| p.kind != PieceKind::Plain).map(token).collect()
}
