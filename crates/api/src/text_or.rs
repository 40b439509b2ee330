//! Values that an API writes as a text or as something else: a list of parts, or an object.

use serde::de::value::{MapAccessDeserializer, SeqAccessDeserializer};
use serde::de::{self, MapAccess, SeqAccess, Visitor};
use serde::{Deserialize, Deserializer, Serialize};
use std::fmt;
use std::marker::PhantomData;

/// A text, or a `T`, which is a list or an object.
///
/// Unlike an untagged enum it is parsed in place, so that errors name the path of the field at
/// fault, and unknown fields within are found.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
#[serde(untagged)]
pub enum TextOr<T> {
    /// A text.
    Text(String),
    /// A list or an object.
    Other(T),
}

impl<'de, T: Deserialize<'de>> Deserialize<'de> for TextOr<T> {
    fn deserialize<D: Deserializer<'de>>(from: D) -> Result<TextOr<T>, D::Error> {
        from.deserialize_any(TextOrVisitor(PhantomData))
    }
}

struct TextOrVisitor<T>(PhantomData<T>);

impl<'de, T: Deserialize<'de>> Visitor<'de> for TextOrVisitor<T> {
    type Value = TextOr<T>;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("a text, a list or an object, as this field has it")
    }

    fn visit_str<E: de::Error>(self, text: &str) -> Result<TextOr<T>, E> {
        self.visit_string(text.to_owned())
    }

    fn visit_string<E: de::Error>(self, text: String) -> Result<TextOr<T>, E> {
        Ok(TextOr::Text(text))
    }

    fn visit_seq<A: SeqAccess<'de>>(self, list: A) -> Result<TextOr<T>, A::Error> {
        T::deserialize(SeqAccessDeserializer::new(list)).map(TextOr::Other)
    }

    fn visit_map<A: MapAccess<'de>>(self, object: A) -> Result<TextOr<T>, A::Error> {
        T::deserialize(MapAccessDeserializer::new(object)).map(TextOr::Other)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[derive(Debug, PartialEq, Serialize, Deserialize)]
    struct Point {
        x: u32,
    }

    #[test]
    fn a_text_a_list_and_an_object_are_told_apart() {
        let list = |json: &str| serde_json::from_str::<TextOr<Vec<Point>>>(json);
        assert_eq!(list(r#""a""#).unwrap(), TextOr::Text("a".into()));
        assert_eq!(list(r#"[{"x": 1}]"#).unwrap(), TextOr::Other(vec![Point { x: 1 }]));
        assert!(list(r#"{"x": 1}"#).is_err() && list("1").is_err() && list("null").is_err());
        let object = |json: &str| serde_json::from_str::<TextOr<Point>>(json);
        assert_eq!(object(r#"{"x": 1}"#).unwrap(), TextOr::Other(Point { x: 1 }));
        assert!(object(r#"{"x": "a"}"#).unwrap_err().to_string().contains("expected u32"));
        assert_eq!(serde_json::to_string(&object(r#"{"x": 1}"#).unwrap()).unwrap(), r#"{"x":1}"#);
    }
}
