//! Special and added tokens from `tokenizer_config.json`, `special_tokens_map.json` and
//! `added_tokens.json`.

use serde_json::{Map, Value, json};

/// The roles of special tokens, in the order in which tokens without an id get one.
pub(crate) const ROLES: [&str; 7] =
    ["bos_token", "eos_token", "unk_token", "sep_token", "pad_token", "cls_token", "mask_token"];

/// An added token: it is matched in the text before normalization and tokenization.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct Token {
    pub(crate) text: String,
    pub(crate) single_word: bool,
    pub(crate) lstrip: bool,
    pub(crate) rstrip: bool,
    pub(crate) normalized: bool,
    pub(crate) special: bool,
    /// Its id, if a file gives one.
    pub(crate) id: Option<u32>,
    /// Whether a file gives its flags, so that they replace earlier ones; a bare name does not.
    pub(crate) explicit: bool,
}

/// Default flags of a special token that the files give by name only. They depend on the tokenizer
/// class.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub(crate) struct Flags {
    pub(crate) lstrip: bool,
    pub(crate) rstrip: bool,
    pub(crate) normalized: bool,
    /// Whether the class sets these flags itself rather than pass on the name.
    pub(crate) explicit: bool,
}

impl Token {
    pub(crate) fn new(text: &str, flags: Flags) -> Token {
        Token {
            text: text.into(),
            single_word: false,
            lstrip: flags.lstrip,
            rstrip: flags.rstrip,
            normalized: flags.normalized,
            special: true,
            id: None,
            explicit: flags.explicit,
        }
    }

    fn from_object(object: &Map<String, Value>, special: bool) -> Option<Token> {
        let flag = |name: &str| object.get(name).and_then(Value::as_bool);
        let special = special || flag("special").unwrap_or(false);
        Some(Token {
            text: object.get("content")?.as_str()?.into(),
            single_word: flag("single_word").unwrap_or(false),
            lstrip: flag("lstrip").unwrap_or(false),
            rstrip: flag("rstrip").unwrap_or(false),
            normalized: flag("normalized").unwrap_or(!special),
            special,
            id: None,
            explicit: true,
        })
    }

    pub(crate) fn json(&self, id: u32) -> Value {
        json!({
            "id": id, "content": self.text, "single_word": self.single_word, "lstrip": self.lstrip,
            "rstrip": self.rstrip, "normalized": self.normalized, "special": self.special,
        })
    }
}

/// The special and added tokens that the files declare.
#[derive(Debug, Default)]
pub(crate) struct SpecialTokens {
    /// One for each of [`ROLES`]. Outer `None`: no file mentions the role. Inner `None`: a file
    /// sets it to null.
    roles: [Option<Option<TokenSpec>>; 7],
    /// `additional_special_tokens`, if a file lists any.
    pub(crate) additional: Option<Vec<TokenSpec>>,
    /// Added tokens with ids, sorted by id.
    pub(crate) added: Vec<Token>,
}

/// A token given by name, or with its flags.
#[derive(Clone, Debug, PartialEq)]
pub(crate) enum TokenSpec {
    Name(String),
    Full(Token),
}

impl TokenSpec {
    fn from_json(value: &Value, special: bool) -> Option<TokenSpec> {
        match value {
            Value::String(name) => Some(TokenSpec::Name(name.clone())),
            Value::Object(object) => Token::from_object(object, special).map(TokenSpec::Full),
            _ => None,
        }
    }

    pub(crate) fn text(&self) -> &str {
        match self {
            TokenSpec::Name(name) => name,
            TokenSpec::Full(token) => &token.text,
        }
    }
}

impl SpecialTokens {
    /// `map` and `added` are the two legacy files. They are ignored if `config` has
    /// `added_tokens_decoder`.
    pub(crate) fn new(config: &Value, map: &Value, added: &Value) -> Result<SpecialTokens, String> {
        let mut specials = SpecialTokens::default();
        specials.names(config, false);
        if let Some(decoder) = config.get("added_tokens_decoder").and_then(Value::as_object) {
            for (id, token) in decoder {
                let id = id.parse().map_err(|_| format!("added_tokens_decoder: {id:?} is not an id"))?;
                let token = token.as_object().and_then(|o| Token::from_object(o, false));
                let token = token.ok_or_else(|| format!("added_tokens_decoder: token {id} has no content"))?;
                specials.added.push(Token { id: Some(id), ..token });
            }
            specials.added.sort_by_key(|t| t.id);
            specials.flags_from_added();
            return Ok(specials);
        }
        specials.names(map, true);
        let special: Vec<&str> = specials.named().map(TokenSpec::text).collect();
        let mut tokens = Vec::new();
        for (text, id) in added.as_object().into_iter().flatten() {
            let id = id.as_u64().and_then(|id| u32::try_from(id).ok());
            let id = id.ok_or_else(|| format!("added_tokens.json: {text:?} has no id"))?;
            let special = special.contains(&text.as_str());
            let flags = Flags { normalized: !special, explicit: true, ..Flags::default() };
            tokens.push(Token { id: Some(id), special, ..Token::new(text, flags) });
        }
        tokens.sort_by_key(|t| t.id);
        specials.added = tokens;
        Ok(specials)
    }

    fn names(&mut self, file: &Value, special: bool) {
        for (role, slot) in ROLES.iter().zip(&mut self.roles) {
            if let Some(value) = file.get(role) {
                *slot = Some(TokenSpec::from_json(value, special));
            }
        }
        if let Some(list) = file.get("additional_special_tokens").and_then(Value::as_array) {
            let known = self.additional.get_or_insert_default();
            for token in list.iter().filter_map(|v| TokenSpec::from_json(v, special)) {
                if !known.contains(&token) {
                    known.push(token);
                }
            }
        }
    }

    /// A role given by name takes the flags of the added token of that name.
    fn flags_from_added(&mut self) {
        for named in self.roles.iter_mut().flatten().flatten() {
            if let Some(token) = self.added.iter().find(|t| t.text == named.text()) {
                *named = TokenSpec::Full(token.clone());
            }
        }
    }

    fn named(&self) -> impl Iterator<Item = &TokenSpec> {
        self.roles.iter().flatten().flatten().chain(self.additional.iter().flatten())
    }

    /// The token of a role. `default` is the name that the class uses unless a file says otherwise.
    pub(crate) fn role(&self, role: &str, default: Option<&str>) -> Option<TokenSpec> {
        let slot = ROLES.iter().position(|r| *r == role).and_then(|i| self.roles[i].as_ref());
        match slot {
            Some(specials) => specials.clone(),
            None => default.map(|name| TokenSpec::Name(name.into())),
        }
    }
}
