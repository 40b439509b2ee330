//! Prompts: texts, token ids and both in one, alone or in lists.

use serde::de::Error as _;
use serde::{Deserialize, Deserializer};
use serde_json::Value;
use utoipa::ToSchema;

/// A part of a prompt.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum PromptPart {
    /// A text.
    Text(String),
    /// A token.
    Id(u32),
}

/// One prompt or several.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Prompts {
    /// The parts of each prompt.
    pub items: Vec<Vec<PromptPart>>,
    /// Whether it was a single prompt, not a list.
    pub alone: bool,
}

/// OpenAPI schema of [`Prompts`].
#[derive(ToSchema)]
#[schema(as = LlamaCppPrompts)]
#[serde(untagged)]
#[allow(dead_code, reason = "read by the derive alone")]
pub enum PromptsSchema {
    /// A text.
    Text(String),
    /// A token.
    Id(u32),
    /// With a token in it, the texts and tokens of one prompt; otherwise several prompts.
    List(Vec<PromptSchema>),
    /// An object with a text.
    Object {
        /// The text.
        prompt_string: String,
    },
}

/// OpenAPI schema of an element of a list.
#[derive(ToSchema)]
#[schema(as = LlamaCppPrompt)]
#[serde(untagged)]
#[allow(dead_code, reason = "read by the derive alone")]
pub enum PromptSchema {
    /// A text.
    Text(String),
    /// A token.
    Id(u32),
    /// The texts and tokens of a prompt.
    Parts(Vec<PartSchema>),
    /// An object with a text.
    Object {
        /// The text.
        prompt_string: String,
    },
}

/// OpenAPI schema of [`PromptPart`].
#[derive(ToSchema)]
#[schema(as = LlamaCppPromptPart)]
#[serde(untagged)]
#[allow(dead_code, reason = "read by the derive alone")]
pub enum PartSchema {
    /// A text.
    Text(String),
    /// A token.
    Id(u32),
}

impl<'de> Deserialize<'de> for Prompts {
    fn deserialize<D: Deserializer<'de>>(from: D) -> Result<Prompts, D::Error> {
        prompts(Value::deserialize(from)?).map_err(D::Error::custom)
    }
}

fn prompts(value: Value) -> Result<Prompts, String> {
    match value {
        // A list with a number is one prompt; any other list is several.
        Value::Array(parts) if !parts.iter().any(Value::is_number) => {
            Ok(Prompts { items: parts.into_iter().map(prompt).collect::<Result<_, _>>()?, alone: false })
        }
        one => Ok(Prompts { items: vec![prompt(one)?], alone: true }),
    }
}

fn prompt(value: Value) -> Result<Vec<PromptPart>, String> {
    match value {
        Value::String(text) => Ok(vec![PromptPart::Text(text)]),
        Value::Array(parts) => parts.into_iter().map(part).collect(),
        Value::Object(mut object) => {
            let media = object.remove("multimodal_data").is_some_and(|media| match media {
                Value::Null => false,
                Value::Array(all) => !all.is_empty(),
                _ => true,
            });
            if media {
                return Err("this server accepts no `multimodal_data` in a prompt; send the text alone".into());
            }
            match (object.remove("prompt_string"), object.remove("content")) {
                (Some(Value::String(text)), None) => Ok(vec![PromptPart::Text(text)]),
                (None, Some(Value::Array(parts))) => Ok(vec![PromptPart::Text(content(&parts)?)]),
                _ => Err("a prompt that is an object has a text `prompt_string`, or `content` parts".into()),
            }
        }
        other => part(other).map(|part| vec![part]),
    }
}

fn part(value: Value) -> Result<PromptPart, String> {
    match value {
        Value::String(text) => Ok(PromptPart::Text(text)),
        Value::Number(number) => {
            let id = number.as_u64().and_then(|id| u32::try_from(id).ok());
            id.map(PromptPart::Id).ok_or_else(|| format!("{number} is not a token id"))
        }
        _ => Err("a prompt is a text, a list of token ids and texts, or an object with a `prompt_string`".into()),
    }
}

fn content(parts: &[Value]) -> Result<String, String> {
    let text = |part: &Value| match (part["type"].as_str(), part["text"].as_str()) {
        (Some("text"), Some(text)) => Ok(text.to_owned()),
        (Some("text"), None) => Err("a content part of type `text` needs a `text`".to_owned()),
        (Some(other), _) => Err(format!("only content parts of type `text` are accepted, not `{other}`")),
        (None, _) => Err("a content part needs a `type`".into()),
    };
    parts.iter().map(text).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn read(json: &str) -> Result<Prompts, String> {
        serde_json::from_str(json).map_err(|e| e.to_string())
    }

    #[test]
    fn prompts_parse_in_every_form() {
        let text = |t: &str| PromptPart::Text(t.into());
        let one = |parts: Vec<PromptPart>| Ok(Prompts { items: vec![parts], alone: true });
        let several = |items| Ok(Prompts { items, alone: false });
        assert_eq!(read(r#""a""#), one(vec![text("a")]));
        assert_eq!(read("[1, 2]"), one(vec![PromptPart::Id(1), PromptPart::Id(2)]));
        assert_eq!(read(r#"[1, "a", 2]"#), one(vec![PromptPart::Id(1), text("a"), PromptPart::Id(2)]));
        assert_eq!(read(r#"["a", 1]"#), one(vec![text("a"), PromptPart::Id(1)]));
        assert_eq!(read(r#"["a", "b"]"#), several(vec![vec![text("a")], vec![text("b")]]));
        assert_eq!(read(r#"[[1, "a"], "b"]"#), several(vec![vec![PromptPart::Id(1), text("a")], vec![text("b")]]));
        assert_eq!(read(r#"{"prompt_string": "a"}"#), one(vec![text("a")]));
        let parts = r#"{"content": [{"type": "text", "text": "a"}, {"type": "text", "text": "b"}]}"#;
        assert_eq!(read(parts), one(vec![text("ab")]));
        assert_eq!(read("[]"), several(vec![]));
    }

    #[test]
    fn invalid_prompts_are_refused_with_the_reason() {
        for (json, why) in [
            ("null", "a prompt is"),
            ("[-1]", "-1 is not a token id"),
            ("[4294967296]", "not a token id"),
            ("[[[1]]]", "a prompt is"),
            (r#"{"content": "a"}"#, "`prompt_string`"),
            (r#"{"prompt_string": "a", "multimodal_data": ["x"]}"#, "multimodal_data"),
            (r#"{"content": [{"type": "image_url"}]}"#, "`image_url`"),
        ] {
            let message = read(json).unwrap_err();
            assert!(message.contains(why), "{json}: {message}");
        }
    }
}
