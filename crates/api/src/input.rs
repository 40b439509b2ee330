//! Inputs of requests: one or several texts, token ids or images. All APIs write them alike, so
//! they are parsed here once.

use crate::llama_cpp::PromptPart;
use serde::de::{self, MapAccess, SeqAccess, Visitor};
use serde::{Deserialize, Deserializer};
use std::fmt;
use utoipa::ToSchema;

/// One input.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Item {
    /// A text.
    Text(String),
    /// A text as token ids, with the special tokens that the caller wants.
    Ids(Vec<u32>),
    /// A text of texts and token ids, as in llama.cpp.
    Mixed(Vec<PromptPart>),
    /// An image: a `data:` URI, or its bytes in base64. URLs are never fetched.
    Image(String),
}

/// One input or a list of inputs. A list of numbers is one input.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Inputs {
    /// In the order given.
    pub items: Vec<Item>,
    /// Whether it was a single input, not a list.
    pub alone: bool,
}

/// OpenAPI schema of [`Inputs`].
#[derive(ToSchema)]
#[schema(as = Inputs)]
#[serde(untagged)]
#[allow(dead_code, reason = "read by the derive alone")]
pub enum InputsSchema {
    /// A text.
    Text(String),
    /// A text as token ids.
    Ids(Vec<u32>),
    /// A list of texts, texts as token ids, or objects with a `text` or an `image`.
    Several(Vec<ItemSchema>),
}

/// OpenAPI schema of [`Item`].
#[derive(ToSchema)]
#[schema(as = Item)]
#[serde(untagged)]
#[allow(dead_code, reason = "read by the derive alone")]
pub enum ItemSchema {
    /// A text.
    Text(String),
    /// A text as token ids.
    Ids(Vec<u32>),
    /// A text or an image.
    Object {
        /// A text.
        text: Option<String>,
        /// An image as a `data:` URI, or its bytes in base64.
        image: Option<String>,
    },
}

impl<'de> Deserialize<'de> for Inputs {
    fn deserialize<D: Deserializer<'de>>(from: D) -> Result<Inputs, D::Error> {
        from.deserialize_any(InputsVisitor)
    }
}

struct InputsVisitor;

const EXPECTED: &str =
    "a text, a list of texts, a list of token ids, a list of such lists, or objects with `text` or `image`";

impl<'de> Visitor<'de> for InputsVisitor {
    type Value = Inputs;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(EXPECTED)
    }

    fn visit_str<E: de::Error>(self, text: &str) -> Result<Inputs, E> {
        self.visit_string(text.to_owned())
    }

    fn visit_string<E: de::Error>(self, text: String) -> Result<Inputs, E> {
        Ok(Inputs { items: vec![Item::Text(text)], alone: true })
    }

    fn visit_map<A: MapAccess<'de>>(self, map: A) -> Result<Inputs, A::Error> {
        Ok(Inputs { items: vec![object(map)?], alone: true })
    }

    fn visit_seq<A: SeqAccess<'de>>(self, mut seq: A) -> Result<Inputs, A::Error> {
        let mut parts = Vec::new();
        while let Some(part) = seq.next_element::<Part>()? {
            parts.push(part);
        }
        // A list with a token id is one input; any other list is several.
        if parts.iter().any(|part| matches!(part, Part::Id(_))) {
            return Ok(Inputs { items: vec![joined(parts)?], alone: true });
        }
        let item = |part| if let Part::Item(item) = part { Some(item) } else { None };
        Ok(Inputs { items: parts.into_iter().filter_map(item).collect(), alone: false })
    }
}

/// One input of token ids, and perhaps texts.
fn joined<E: de::Error>(parts: Vec<Part>) -> Result<Item, E> {
    let is_id = |part: &Part| matches!(part, Part::Id(_));
    if parts.iter().all(is_id) {
        let id = |part| if let Part::Id(id) = part { Some(id) } else { None };
        return Ok(Item::Ids(parts.into_iter().filter_map(id).collect()));
    }
    let has_ids = parts.iter().any(is_id);
    let part = |part| match part {
        Part::Id(id) => Ok(PromptPart::Id(id)),
        Part::Item(Item::Text(text)) if has_ids => Ok(PromptPart::Text(text)),
        Part::Item(_) => Err(E::custom("token ids and other inputs in one list; send them in separate lists")),
    };
    parts.into_iter().map(part).collect::<Result<_, _>>().map(Item::Mixed)
}

/// An element of a list.
enum Part {
    Item(Item),
    Id(u32),
}

impl<'de> Deserialize<'de> for Part {
    fn deserialize<D: Deserializer<'de>>(from: D) -> Result<Part, D::Error> {
        from.deserialize_any(PartVisitor)
    }
}

struct PartVisitor;

impl<'de> Visitor<'de> for PartVisitor {
    type Value = Part;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("a text, a token id, a list of token ids, or an object with a `text` or an `image`")
    }

    fn visit_str<E: de::Error>(self, text: &str) -> Result<Part, E> {
        self.visit_string(text.to_owned())
    }

    fn visit_string<E: de::Error>(self, text: String) -> Result<Part, E> {
        Ok(Part::Item(Item::Text(text)))
    }

    fn visit_u64<E: de::Error>(self, id: u64) -> Result<Part, E> {
        u32::try_from(id).map(Part::Id).map_err(|_| E::custom(format_args!("{id} is no token id: it exceeds 32 bits")))
    }

    fn visit_seq<A: SeqAccess<'de>>(self, mut seq: A) -> Result<Part, A::Error> {
        let mut parts = Vec::new();
        while let Some(part) = seq.next_element::<Part>()? {
            parts.push(part);
        }
        joined(parts).map(Part::Item)
    }

    fn visit_map<A: MapAccess<'de>>(self, map: A) -> Result<Part, A::Error> {
        object(map).map(Part::Item)
    }
}

/// `{"text": …}`, `{"image": …}` or `{"type": "image_url", "image_url": {"url": …}}`.
fn object<'de, A: MapAccess<'de>>(mut map: A) -> Result<Item, A::Error> {
    #[derive(Deserialize)]
    #[serde(deny_unknown_fields)]
    struct Url {
        url: String,
    }
    let mut found = None;
    while let Some(key) = map.next_key::<String>()? {
        let item = match key.as_str() {
            "text" => Item::Text(map.next_value()?),
            "image" => Item::Image(map.next_value()?),
            "image_url" => Item::Image(map.next_value::<Url>()?.url),
            "type" => {
                map.next_value::<String>()?;
                continue;
            }
            other => return Err(de::Error::unknown_field(other, &["text", "image", "image_url", "type"])),
        };
        if found.replace(item).is_some() {
            return Err(de::Error::custom("a text and an image in one object; send one object for each"));
        }
    }
    found.ok_or_else(|| de::Error::custom("an object without `text` or `image`"))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn read(json: &str) -> Result<Inputs, String> {
        serde_json::from_str(json).map_err(|e| e.to_string())
    }

    #[test]
    fn inputs_parse_in_every_format() {
        let text = |t: &str| Item::Text(t.into());
        assert_eq!(read(r#""a""#), Ok(Inputs { items: vec![text("a")], alone: true }));
        assert_eq!(read(r#"["a", "b"]"#), Ok(Inputs { items: vec![text("a"), text("b")], alone: false }));
        assert_eq!(read("[1, 2]"), Ok(Inputs { items: vec![Item::Ids(vec![1, 2])], alone: true }));
        let lists = vec![Item::Ids(vec![1]), Item::Ids(vec![2, 3])];
        assert_eq!(read("[[1], [2, 3]]"), Ok(Inputs { items: lists, alone: false }));
        let part = |t: &str| PromptPart::Text(t.into());
        let joined = vec![Item::Mixed(vec![PromptPart::Id(1), part("a")])];
        assert_eq!(read(r#"[1, "a"]"#), Ok(Inputs { items: joined.clone(), alone: true }));
        assert_eq!(read(r#"[[1, "a"]]"#), Ok(Inputs { items: joined, alone: false }));
        assert_eq!(read("[]"), Ok(Inputs { items: vec![], alone: false }));
        let mixed = vec![Item::Image("data:,".into()), text("a"), Item::Image("x".into())];
        let json = r#"[{"image": "data:,"}, {"type": "text", "text": "a"}, {"image_url": {"url": "x"}}]"#;
        assert_eq!(read(json), Ok(Inputs { items: mixed, alone: false }));
    }

    #[test]
    fn invalid_inputs_are_refused_with_the_reason() {
        for (json, why) in [
            ("1", "a list of token ids"),
            ("null", "a list of texts"),
            (r#"[1, {"image": "a"}]"#, "one list"),
            (r#"[1, [2]]"#, "one list"),
            (r#"[["a", "b"], {"image": "c"}, 1]"#, "one list"),
            ("[-1]", "token id"),
            ("[4294967296]", "no token id"),
            ("[[[1]]]", "one list"),
            (r#"[["a", "b"]]"#, "one list"),
            (r#"[{"audio": "x"}]"#, "unknown field `audio`"),
            (r#"[{"text": "a", "image": "b"}]"#, "in one object"),
            ("[{}]", "without"),
        ] {
            let message = read(json).unwrap_err();
            assert!(message.contains(why), "{json}: {message}");
        }
    }
}
