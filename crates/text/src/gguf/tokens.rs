//! The tokens of a GGUF vocabulary: text, type, score and the name that the model uses.

use super::pipeline::letter;
use super::{SPACE, Specials, Vocabulary};
use std::borrow::Cow;
use std::collections::{HashMap, HashSet};
use tokenizers::AddedToken;
use tokenizers::models::bpe::Vocab;

/// Longest token in bytes, as in a `tokenizer.json`: the library's tries are as deep as a token is
/// long. Command R has a token of 512 spaces in 1024 bytes.
const LONGEST: usize = 4096;
/// Limit for all tokens. Gemma's 262,144 tokens have 2.3 MB.
const MAX_BYTES: usize = 32 << 20;
/// Limit of added tokens, which are matched before the model runs. Speech models have one for each
/// of 65,536 sounds.
const MAX_ADDED: usize = 1 << 18;
/// Limit of tokens that could be read as byte-level text. DeepSeek's first models have 13.
const MAX_BYTE_LOOKALIKES: usize = 64;

/// `tokenizer.ggml.token_type`.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(super) enum Role {
    Normal,
    Unknown,
    Control,
    UserDefined,
    Unused,
    Byte,
}

/// Names that are control tokens even if the file does not say so: ends of turns and texts, and
/// fill-in-the-middle markers.
const CONTROL: &str = "\
    <|eot_id|> <|im_end|> <|end|> <|return|> <|call|> <|flush|> <|calls|> <end_of_turn> <|endoftext|> </s> \
    <|eom_id|> <EOT> _<EOT> [EOT] [EOS] <|end_of_text|> <end_of_utterance> <eos> <turn|> <|tool_response> \
    <｜end▁of▁sentence｜> [e~[ <|fim_prefix|> <fim-prefix> <fim_prefix> <｜fim▁begin｜> <PRE> ▁<PRE> <|code_prefix|> \
    <|prefix|> <|fim_suffix|> <fim-suffix> <fim_suffix> <｜fim▁hole｜> <SUF> ▁<SUF> <|code_suffix|> <|suffix|> \
    <|fim_middle|> <fim-middle> <fim_middle> <｜fim▁end｜> <MID> ▁<MID> <|code_middle|> <|middle|> <|fim_pad|> \
    <fim-pad> <fim_pad> <PAD> [PAD] <|fim_repo|> <|repo_name|> <fim-repo> <REPO> <reponame> <|file_sep|>";

pub(super) struct Tokens<'a> {
    /// Texts as in the file, except that none is empty.
    texts: Vec<Cow<'a, str>>,
    roles: Vec<Role>,
    scores: Option<&'a [f32]>,
    /// Names in the model's vocabulary.
    names: Vec<Cow<'a, str>>,
    ids: HashMap<&'a str, u32>,
    specials: Specials,
}

impl<'a> Tokens<'a> {
    /// Checks every length and id before anything is built.
    pub(super) fn new(v: &'a Vocabulary<'a>, specials: Specials) -> Result<Tokens<'a>, String> {
        let n = v.tokens.len();
        let fits = |key: &str, length: Option<usize>| match length {
            Some(length) if length != n => {
                Err(format!("tokenizer.ggml.{key} has {length} entries, and there are {n} tokens"))
            }
            _ => Ok(()),
        };
        fits("scores", v.scores.as_ref().map(Vec::len))?;
        fits("token_type", v.types.as_ref().map(Vec::len))?;
        if n == 0 || u32::try_from(n).is_err() {
            return Err(format!("tokenizer.ggml.tokens has {n} entries"));
        }
        let ids = [
            ("bos", v.bos),
            ("eos", v.eos),
            ("unknown", v.unk),
            // The key is misspelled in GGUF files.
            ("seperator", v.sep),
            ("padding", v.pad),
            ("cls", v.cls),
            ("mask", v.mask),
        ];
        for (key, id) in ids {
            if let Some(id) = id.filter(|id| *id as usize >= n) {
                return Err(format!("tokenizer.ggml.{key}_token_id is {id}, and there are {n} tokens"));
            }
        }
        let score = v.scores.as_ref().and_then(|s| s.iter().position(|score| !score.is_finite()));
        if let Some(i) = score {
            return Err(format!("tokenizer.ggml.scores: that of token {i} is not a number"));
        }
        let texts = texts(&v.tokens)?;
        let mut ids = HashMap::with_capacity(n);
        for (text, id) in v.tokens.iter().zip(0..) {
            if let Some(before) = ids.insert(*text, id).filter(|_| !text.is_empty()) {
                return Err(format!("tokenizer.ggml.tokens: {text:?} is there twice, as {before} and as {id}"));
            }
        }
        let roles = roles(v, &ids)?;
        let mut tokens = Tokens { texts, roles, scores: v.scores.as_deref(), names: Vec::new(), ids, specials };
        tokens.names = (0..n).map(|i| tokens.named(i, v.model)).collect();
        // A generated name may also be in the file.
        let mut seen = HashSet::with_capacity(n);
        if let Some(i) = tokens.names.iter().position(|name| !seen.insert(name)) {
            return Err(format!(
                "tokenizer.ggml.tokens: token {i} would have the name of another, {:?}",
                tokens.names[i]
            ));
        }
        Ok(tokens)
    }

    pub(super) fn len(&self) -> usize {
        self.texts.len()
    }

    pub(super) fn id(&self, text: &str) -> Option<u32> {
        self.ids.get(text).copied().filter(|_| !text.is_empty())
    }

    pub(super) fn text(&self, id: u32) -> &str {
        &self.texts[id as usize]
    }

    pub(super) fn name(&self, id: u32) -> &str {
        &self.names[id as usize]
    }

    pub(super) fn role(&self, id: u32) -> Role {
        self.roles[id as usize]
    }

    /// Whether text may become this token. Control tokens and byte tokens have names, not text.
    pub(super) fn is_text(&self, id: u32) -> bool {
        matches!(self.role(id), Role::Normal | Role::UserDefined | Role::Unused)
    }

    pub(super) fn scores(&self) -> Result<&'a [f32], String> {
        self.scores.ok_or_else(|| "tokenizer.ggml.scores is not there, and this tokenizer.ggml.model needs it".into())
    }

    /// Names with their ids.
    pub(super) fn map(&self) -> Vocab {
        self.names.iter().map(|name| name.clone().into_owned()).zip(0..).collect()
    }

    /// Names with log-probabilities. The library derives the score of an unknown character from the
    /// lowest one, where only ordinary tokens should count.
    pub(super) fn pieces(&self) -> Result<Vec<(String, f64)>, String> {
        let scores = self.scores()?;
        let normal = self.roles.iter().zip(scores).filter(|(role, _)| **role == Role::Normal).map(|(_, s)| *s);
        let lowest = normal.fold(f32::INFINITY, f32::min);
        if !lowest.is_finite() {
            return Err("tokenizer.ggml.token_type has no ordinary token".into());
        }
        let piece = |(i, name): (usize, &Cow<'a, str>)| match self.roles[i] {
            Role::Normal => (name.to_string(), scores[i]),
            Role::UserDefined => (name.to_string(), 0.0),
            Role::Unused if scores[i] >= lowest => (name.to_string(), scores[i]),
            // Padding, which must never be chosen.
            Role::Unused => (unmatchable_name(i), lowest),
            Role::Byte if self.specials == Specials::Text => (unmatchable_name(i), lowest),
            _ => (name.to_string(), lowest),
        };
        Ok(self.names.iter().enumerate().map(piece).map(|(name, score)| (name, f64::from(score))).collect())
    }

    /// The added tokens: matched in a text before the model runs.
    pub(super) fn added(&self, v: &Vocabulary<'_>) -> Result<Vec<AddedToken>, String> {
        let lower = v.name.unwrap_or_default().to_lowercase();
        let phi3 = lower.contains("phi-3") || lower.contains("phi3");
        let named = |text: Option<&str>, list: &[&str]| list.iter().any(|name| text.is_some_and(|t| t.contains(name)));
        let mask = named(v.pre, &["jina-v2-de", "jina-v2-es", "jina-v2-code"])
            || named(v.architecture, &["nomic-bert-moe", "jina-bert-v3"]);
        let modern = lower.contains("modern-bert");
        let mut added = Vec::new();
        for (text, role) in self.texts.iter().zip(&self.roles) {
            let special = match role {
                Role::UserDefined => false,
                Role::Control | Role::Unknown if self.specials == Specials::Parsed => true,
                _ => continue,
            };
            let rstrip = phi3 && !matches!(&**text, "<unk>" | "<s>" | "<|endoftext|>");
            let lstrip = mask && text == "<mask>" || !phi3 && modern && text == "[MASK]";
            added.push(AddedToken::from(&**text, special).normalized(false).rstrip(rstrip).lstrip(lstrip));
        }
        if added.len() > MAX_ADDED {
            return Err(format!(
                "tokenizer.ggml.token_type: {} tokens are special or user-defined; the limit is {MAX_ADDED}",
                added.len()
            ));
        }
        Ok(added)
    }

    /// Tokens of plain text that could be read as GPT-2's byte alphabet: DeepSeek Coder has an `ö`,
    /// which is also the character for the byte 0xF6.
    pub(super) fn byte_lookalikes(&self) -> Result<Vec<&str>, String> {
        let letters: HashSet<char> = (0..=255).map(letter).collect();
        let alike = |text: &str| !text.is_ascii() && text.chars().all(|c| letters.contains(&c));
        let plain = |role: Role| matches!(role, Role::UserDefined | Role::Control | Role::Unknown);
        let list = self.texts.iter().zip(&self.roles).filter(|(text, role)| plain(**role) && alike(text));
        let list: Vec<&str> = list.map(|(text, _)| &**text).collect();
        match list.len() {
            // Each is searched for in every decoded token.
            n if n > MAX_BYTE_LOOKALIKES => Err(format!(
                "tokenizer.ggml.token_type: {n} user-defined tokens could be read as bytes; the limit is {MAX_BYTE_LOOKALIKES}"
            )),
            _ => Ok(list),
        }
    }

    fn named(&self, i: usize, model: &str) -> Cow<'a, str> {
        let text = &self.texts[i];
        match self.roles[i] {
            Role::Control | Role::Unknown if self.specials == Specials::Text => unmatchable_name(i).into(),
            Role::Normal | Role::Unused | Role::Byte if model == "bert" => match text.strip_prefix(SPACE) {
                Some(rest) if !rest.is_empty() => rest.to_string().into(),
                _ => format!("##{text}").into(),
            },
            _ => text.clone(),
        }
    }
}

/// A name that no text can match: every kind of model sees spaces replaced or removed.
fn unmatchable_name(i: usize) -> String {
    format!(" {i}")
}

/// The texts of the tokens. Empty ones get a name, as in llama.cpp.
fn texts<'a>(tokens: &[&'a str]) -> Result<Vec<Cow<'a, str>>, String> {
    let mut bytes = 0;
    let mut texts = Vec::with_capacity(tokens.len());
    for (i, text) in tokens.iter().enumerate() {
        bytes += text.len();
        if text.len() > LONGEST || bytes > MAX_BYTES {
            return Err(format!(
                "tokenizer.ggml.tokens: token {i} has {} bytes, with those before it {bytes}; the limits are {LONGEST} \
                 and {MAX_BYTES}",
                text.len()
            ));
        }
        texts.push(if text.is_empty() { format!("[EMPTY_{i}]").into() } else { Cow::Borrowed(*text) });
    }
    Ok(texts)
}

fn roles(v: &Vocabulary<'_>, ids: &HashMap<&str, u32>) -> Result<Vec<Role>, String> {
    let mut roles = vec![Role::Normal; v.tokens.len()];
    for (i, kind) in v.types.iter().flatten().enumerate() {
        roles[i] = match kind {
            1 => Role::Normal,
            2 => Role::Unknown,
            3 => Role::Control,
            4 => Role::UserDefined,
            0 | 5 => Role::Unused,
            6 => Role::Byte,
            _ => return Err(format!("tokenizer.ggml.token_type: token {i} has type {kind}; valid are 0 to 6")),
        };
    }
    // These models end their turns with other tokens, and their </s> is an HTML tag.
    let html = ids.contains_key("<|tool_response>") || ids.contains_key("<|plamo:eos|>");
    for name in CONTROL.split(' ') {
        if let Some(id) = ids.get(name).filter(|_| !(html && name == "</s>")) {
            roles[*id as usize] = Role::Control;
        }
    }
    Ok(roles)
}
