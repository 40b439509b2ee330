//! Metadata as JSON, and with the keys that every document has.

use std::path::Path;

use crate::document::{Kind, Metadata, Value};

/// Metadata as the database stores it. JSON has no infinities and no NaN: they become null.
pub(crate) fn to_json(metadata: &Metadata) -> String {
    serde_json::to_string(metadata).unwrap_or_else(|_| "{}".into())
}

/// The metadata that the database stores; empty if it is damaged.
pub(crate) fn from_json(json: &str) -> Metadata {
    serde_json::from_str(json).unwrap_or_default()
}

/// A value of an enum without fields, or with one, as the database stores it.
pub(crate) fn enum_json<T: serde::Serialize>(value: &T) -> String {
    serde_json::to_string(value).unwrap_or_default()
}

/// Adds the keys that filters can use on every document, where the document does not define them.
pub(crate) fn add_built_in(metadata: &mut Metadata, relative: &str, kind: Kind) {
    let text = |text: &str| Value::Text(text.to_owned());
    let mut add = |key: &str, value: Value| {
        metadata.entry(key.to_owned()).or_insert(value);
    };
    add("path", text(relative));
    if let Some(extension) = Path::new(relative).extension().and_then(|extension| extension.to_str()) {
        add("extension", text(&extension.to_lowercase()));
    }
    add("kind", text(kind.name()));
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn metadata_comes_back() {
        let metadata = Metadata::from([
            ("'; DROP TABLE files; --".into(), Value::Text("\"}]\0'".into())),
            ("a".into(), Value::Integer(i64::MIN)),
            ("b".into(), Value::Float(1.0)),
            ("c".into(), Value::Null),
            ("d".into(), Value::Bool(true)),
        ]);
        assert_eq!(from_json(&to_json(&metadata)), metadata);
        assert_eq!(from_json("damaged"), Metadata::new());
    }

    #[test]
    fn own_keys_of_a_document_stay() {
        let mut metadata = Metadata::from([("path".into(), Value::Integer(1))]);
        add_built_in(&mut metadata, "docs/Guide.MD", Kind::Markdown);
        assert_eq!(metadata["path"], Value::Integer(1));
        assert_eq!(metadata["extension"], Value::Text("md".into()));
        assert_eq!(metadata["kind"], Value::Text("markdown".into()));
    }
}
