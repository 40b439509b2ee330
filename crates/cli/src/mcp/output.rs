//! Results of bounded size, whatever the documents contain.

use crate::index::printable;
use sconce_index::{DocumentInfo, Kind, Metadata, Unit, Value as MetadataValue};
use serde_json::{Map, Value};

/// The longest text of all passages of a result, in bytes.
pub(super) const MAX_TEXT: usize = 48 << 10;
/// The longest text of one search result, in bytes.
pub(super) const MAX_PASSAGE: usize = 4 << 10;
/// The longest title or heading, in bytes.
const MAX_TITLE: usize = 400;
/// The most keys of a document's metadata, and the longest value in bytes.
const MAX_KEYS: usize = 32;
const MAX_VALUE: usize = 200;

/// A text that fits.
pub(super) struct Clipped {
    pub(super) text: String,
    pub(super) is_cut: bool,
}

/// A text of at most `max` bytes and an ellipsis, without the escape sequences that terminals obey.
pub(super) fn clip(text: &str, max: usize) -> Clipped {
    let is_cut = text.len() > max;
    let mut clean = printable(&text[..text.floor_char_boundary(max)]);
    if is_cut {
        clean.push('…');
    }
    Clipped { text: clean, is_cut }
}

/// A title or heading.
pub(super) fn title(text: Option<&str>) -> Option<String> {
    text.map(|text| clip(text, MAX_TITLE).text)
}

/// Metadata, without nulls.
pub(super) fn metadata(metadata: &Metadata) -> Map<String, Value> {
    let json = |value: &MetadataValue| match value {
        MetadataValue::Null => None,
        MetadataValue::Bool(b) => Some(Value::from(*b)),
        MetadataValue::Integer(n) => Some(Value::from(*n)),
        MetadataValue::Float(x) => Some(Value::from(*x)),
        MetadataValue::Text(text) => Some(Value::from(clip(text, MAX_VALUE).text)),
    };
    let pairs = metadata.iter().filter_map(|(key, value)| Some((clip(key, MAX_VALUE).text, json(value)?)));
    pairs.take(MAX_KEYS).collect()
}

/// Adds the line, page or row of a passage.
pub(super) fn add_place(to: &mut Value, unit: Unit, place: Option<u32>, row: Option<u64>) {
    let name = match unit {
        Unit::Line => "line",
        Unit::Page => "page",
        Unit::None => "",
    };
    if let (false, Some(place)) = (name.is_empty(), place) {
        to[name] = place.into();
    }
    if let Some(row) = row {
        to["row"] = row.into();
    }
}

/// The name of a kind of text, as filters have it.
pub(super) fn kind_name(kind: Kind) -> &'static str {
    match kind {
        Kind::Markdown => "markdown",
        Kind::Html => "html",
        Kind::Pdf => "pdf",
        Kind::Code(_) => "code",
        Kind::Table => "table",
        _ => "text",
    }
}

/// What the places of a document count.
pub(super) fn unit_of(document: &DocumentInfo) -> Unit {
    match document.kind {
        Kind::Pdf => Unit::Page,
        _ => Unit::Line,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn texts_are_cut_between_characters() {
        assert_eq!(clip("äöü", 3).text, "ä…");
        assert!(clip("äöü", 3).is_cut && !clip("äöü", 6).is_cut);
        assert_eq!(clip("a\x1b[31mb", 99).text, "ab");
    }

    #[test]
    fn metadata_is_bounded() {
        let mut many: Metadata = (0..999).map(|i| (format!("key{i:04}"), MetadataValue::Integer(i))).collect();
        many.insert("a".into(), MetadataValue::Text("x".repeat(1 << 20)));
        many.insert("b".into(), MetadataValue::Null);
        many.insert("k".repeat(1 << 20), MetadataValue::Float(f64::NAN));
        let json = metadata(&many);
        assert!(json.len() == MAX_KEYS && !json.contains_key("b"), "{json:?}");
        assert!(Value::Object(json).to_string().len() < 20_000);
    }
}
