//! Special and added tokens, as `tokenizer_config.json`, `special_tokens_map.json` and `added_tokens.json` tell them.

use serde_json::{Map, Value, json};

/// The roles, in the order in which those without an id get one.
pub(crate) const ROLES: [&str; 7] =
    ["bos_token", "eos_token", "unk_token", "sep_token", "pad_token", "cls_token", "mask_token"];

/// A token found in the text before anything else looks at it.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct Token {
    pub(crate) text: String,
    pub(crate) single_word: bool,
    pub(crate) lstrip: bool,
    pub(crate) rstrip: bool,
    pub(crate) normalized: bool,
    pub(crate) special: bool,
    /// Its id, where a file gives one.
    pub(crate) id: Option<u32>,
    /// Told with its flags, so that they replace others; a name alone does not.
    pub(crate) explicit: bool,
}

/// How a class of tokenizers takes a special token of which only the name is told.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub(crate) struct Flags {
    pub(crate) lstrip: bool,
    pub(crate) rstrip: bool,
    pub(crate) normalized: bool,
    /// Whether the class makes flags of its own of it, rather than pass on the name.
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

/// What the files say of tokens.
#[derive(Debug, Default)]
pub(crate) struct Told {
    /// One for each of [`ROLES`]: outer `None` where no file names it, inner where one says there is none.
    roles: [Option<Option<Named>>; 7],
    /// Further special ones, where a file lists any.
    pub(crate) additional: Option<Vec<Named>>,
    /// With their ids, in the order of these.
    pub(crate) added: Vec<Token>,
}

/// A token by its name, or with its flags.
#[derive(Clone, Debug, PartialEq)]
pub(crate) enum Named {
    Name(String),
    Whole(Token),
}

impl Named {
    fn from_json(value: &Value, special: bool) -> Option<Named> {
        match value {
            Value::String(name) => Some(Named::Name(name.clone())),
            Value::Object(object) => Token::from_object(object, special).map(Named::Whole),
            _ => None,
        }
    }

    pub(crate) fn text(&self) -> &str {
        match self {
            Named::Name(name) => name,
            Named::Whole(token) => &token.text,
        }
    }
}

impl Told {
    /// `map` and `added` are the older two files. They are not asked where the configuration lists its added tokens.
    pub(crate) fn new(config: &Value, map: &Value, added: &Value) -> Result<Told, String> {
        let mut told = Told::default();
        told.names(config, false);
        if let Some(decoder) = config.get("added_tokens_decoder").and_then(Value::as_object) {
            for (id, token) in decoder {
                let id = id.parse().map_err(|_| format!("added_tokens_decoder: {id:?} is not an id"))?;
                let token = token.as_object().and_then(|o| Token::from_object(o, false));
                let token = token.ok_or_else(|| format!("added_tokens_decoder: token {id} has no content"))?;
                told.added.push(Token { id: Some(id), ..token });
            }
            told.added.sort_by_key(|t| t.id);
            told.flags_from_added();
            return Ok(told);
        }
        told.names(map, true);
        let special: Vec<&str> = told.named().map(Named::text).collect();
        let mut tokens = Vec::new();
        for (text, id) in added.as_object().into_iter().flatten() {
            let id = id.as_u64().and_then(|id| u32::try_from(id).ok());
            let id = id.ok_or_else(|| format!("added_tokens.json: {text:?} has no id"))?;
            let special = special.contains(&text.as_str());
            let flags = Flags { normalized: !special, explicit: true, ..Flags::default() };
            tokens.push(Token { id: Some(id), special, ..Token::new(text, flags) });
        }
        tokens.sort_by_key(|t| t.id);
        told.added = tokens;
        Ok(told)
    }

    fn names(&mut self, file: &Value, special: bool) {
        for (role, slot) in ROLES.iter().zip(&mut self.roles) {
            if let Some(value) = file.get(role) {
                *slot = Some(Named::from_json(value, special));
            }
        }
        if let Some(list) = file.get("additional_special_tokens").and_then(Value::as_array) {
            let known = self.additional.get_or_insert_default();
            for token in list.iter().filter_map(|v| Named::from_json(v, special)) {
                if !known.contains(&token) {
                    known.push(token);
                }
            }
        }
    }

    /// A name that is also an added token has the flags of that one.
    fn flags_from_added(&mut self) {
        for named in self.roles.iter_mut().flatten().flatten() {
            if let Some(token) = self.added.iter().find(|t| t.text == named.text()) {
                *named = Named::Whole(token.clone());
            }
        }
    }

    fn named(&self) -> impl Iterator<Item = &Named> {
        self.roles.iter().flatten().flatten().chain(self.additional.iter().flatten())
    }

    /// The token of a role, where the class calls it `default` unless a file says otherwise.
    pub(crate) fn role(&self, role: &str, default: Option<&str>) -> Option<Named> {
        let slot = ROLES.iter().position(|r| *r == role).and_then(|i| self.roles[i].as_ref());
        match slot {
            Some(told) => told.clone(),
            None => default.map(|name| Named::Name(name.into())),
        }
    }
}
