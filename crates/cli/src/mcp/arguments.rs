//! Arguments of the tools. They come from a language model: each error says what to write instead.

use super::output::clip;
use rmcp::model::JsonObject;
use sconce_index::{Filter, Mode};
use serde::Deserialize;
use serde::de::DeserializeOwned;
use serde_json::Value;

/// The longest query, in bytes.
const MAX_QUERY: usize = 8 << 10;
/// The most conditions of a search.
const MAX_FILTERS: usize = 32;
/// The longest path or prefix, in bytes.
const MAX_PATH: usize = 8 << 10;
/// The most passages of a search.
pub(super) const MAX_HITS: usize = 50;
/// The most chunks before or after a passage.
pub(super) const MAX_AROUND: usize = 20;
/// The most documents of a page.
pub(super) const MAX_DOCUMENTS: usize = 200;
/// The lines or pages that `read` returns if the call does not say where to end.
pub(super) const DEFAULT_PLACES: u32 = 200;
/// The longest error message, in bytes: it may quote an argument.
const MAX_ERROR: usize = 1_000;

/// Why a call failed, as a sentence for the model and its user.
pub(super) type ToolError = String;

/// Arguments of `search`.
#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct SearchArguments {
    pub(super) query: String,
    pub(super) mode: Option<ModeName>,
    pub(super) limit: Option<usize>,
    filter: Option<Filters>,
}

/// See [`Mode`].
#[derive(Clone, Copy, Debug, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub(super) enum ModeName {
    Hybrid,
    Dense,
    Bm25,
    Sparse,
    MultiVector,
}

/// Conditions, as models write them: a list, or one alone.
#[derive(Debug, Deserialize)]
#[serde(untagged)]
enum Filters {
    One(String),
    Many(Vec<String>),
    /// The form of OpenAI's vector stores.
    Json(JsonObject),
}

/// Arguments of `read`.
#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct ReadArguments {
    chunk: Option<i64>,
    before: Option<usize>,
    after: Option<usize>,
    path: Option<String>,
    document: Option<i64>,
    start: Option<u32>,
    end: Option<u32>,
}

/// What `read` reads.
#[derive(Debug, PartialEq)]
pub(super) enum Reading {
    /// A passage, and chunks around it.
    Around { chunk: i64, before: usize, after: usize },
    /// Lines or pages.
    Places { document: DocumentName, start: u32, end: u32 },
}

/// A document.
#[derive(Debug, PartialEq)]
pub(super) enum DocumentName {
    Path(String),
    Id(i64),
}

/// Arguments of `list_documents`.
#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct ListArguments {
    pub(super) prefix: Option<String>,
    pub(super) after: Option<i64>,
    pub(super) limit: Option<usize>,
}

/// The arguments of a call.
pub(super) fn parse<T: DeserializeOwned>(arguments: JsonObject) -> Result<T, ToolError> {
    serde_json::from_value(Value::Object(arguments)).map_err(|e| sentence(&format!("the arguments do not fit: {e}")))
}

/// An error message of bounded size.
pub(super) fn sentence(what: &str) -> ToolError {
    clip(what, MAX_ERROR).text
}

fn check_length(name: &str, text: &str, max: usize) -> Result<(), ToolError> {
    match text.len() {
        n if n > max => Err(format!("`{name}` has {n} bytes; the most is {max}")),
        _ => Ok(()),
    }
}

/// A number between two limits.
fn number(name: &str, given: Option<usize>, default: usize, max: usize) -> Result<usize, ToolError> {
    match given.unwrap_or(default) {
        n if n > max => Err(format!("`{name}` is {n}; the most is {max}")),
        n => Ok(n),
    }
}

fn at_least_one(name: &str, n: usize) -> Result<usize, ToolError> {
    if n == 0 { Err(format!("`{name}` is 0; the least is 1")) } else { Ok(n) }
}

impl SearchArguments {
    /// Checks the query, and returns the number of passages.
    pub(super) fn check(&self) -> Result<usize, ToolError> {
        if self.query.trim().is_empty() {
            return Err("`query` is empty; write what to search for".into());
        }
        check_length("query", &self.query, MAX_QUERY)?;
        at_least_one("limit", number("limit", self.limit, 10, MAX_HITS)?)
    }

    /// The conditions as one filter.
    pub(super) fn filter(&self) -> Result<Option<Filter>, ToolError> {
        let failed = |e: sconce_index::Error| sentence(&e.to_string());
        let texts = match &self.filter {
            None => return Ok(None),
            Some(Filters::Json(json)) => {
                return Filter::from_json(&Value::Object(json.clone())).map(Some).map_err(failed);
            }
            Some(Filters::One(text)) => std::slice::from_ref(text),
            Some(Filters::Many(texts)) => texts.as_slice(),
        };
        if texts.len() > MAX_FILTERS {
            return Err(format!("`filter` has {} conditions; the most is {MAX_FILTERS}", texts.len()));
        }
        let filters = texts.iter().map(|text| Filter::parse(text)).collect::<Result<Vec<_>, _>>();
        filters.map(Filter::all).map_err(failed)
    }
}

impl ModeName {
    /// The name in arguments and results.
    pub(super) fn name(self) -> &'static str {
        match self {
            ModeName::Hybrid => "hybrid",
            ModeName::Dense => "dense",
            ModeName::Bm25 => "bm25",
            ModeName::Sparse => "sparse",
            ModeName::MultiVector => "multi-vector",
        }
    }

    pub(super) fn mode(self) -> Mode {
        match self {
            ModeName::Hybrid => Mode::Hybrid,
            ModeName::Dense => Mode::Dense,
            ModeName::Bm25 => Mode::Bm25,
            ModeName::Sparse => Mode::Sparse,
            ModeName::MultiVector => Mode::MultiVector,
        }
    }
}

impl ReadArguments {
    /// What to read.
    pub(super) fn reading(self) -> Result<Reading, ToolError> {
        let document = match (self.path, self.document) {
            (Some(_), Some(_)) => return Err("give `path` or `document`, not both".into()),
            (Some(path), None) => {
                check_length("path", &path, MAX_PATH)?;
                Some(DocumentName::Path(path))
            }
            (None, Some(id)) => Some(DocumentName::Id(id)),
            (None, None) => None,
        };
        match (self.chunk, document) {
            (Some(_), Some(_)) => Err("give `chunk`, or a document with `start` and `end`, not both".into()),
            (None, None) => Err("give `chunk`, the number of a search result, or `path` of a document".into()),
            (Some(chunk), None) => {
                if self.start.is_some() || self.end.is_some() {
                    return Err("`start` and `end` are for a document; use `before` and `after` with `chunk`".into());
                }
                let before = number("before", self.before, 1, MAX_AROUND)?;
                let after = number("after", self.after, 1, MAX_AROUND)?;
                Ok(Reading::Around { chunk, before, after })
            }
            (None, Some(document)) => {
                if self.before.is_some() || self.after.is_some() {
                    return Err("`before` and `after` are for a chunk; use `start` and `end` with a document".into());
                }
                let start = self.start.unwrap_or(1);
                let end = self.end.unwrap_or(start.saturating_add(DEFAULT_PLACES - 1));
                if start == 0 || end < start {
                    return Err(format!(
                        "`start` {start} and `end` {end} are not a range; lines and pages count from 1"
                    ));
                }
                Ok(Reading::Places { document, start, end })
            }
        }
    }
}

impl ListArguments {
    /// Checks the prefix, and returns the number of documents.
    pub(super) fn check(&self) -> Result<usize, ToolError> {
        check_length("prefix", self.prefix.as_deref().unwrap_or_default(), MAX_PATH)?;
        at_least_one("limit", number("limit", self.limit, 50, MAX_DOCUMENTS)?)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    fn object(json: Value) -> JsonObject {
        json.as_object().expect("an object").clone()
    }

    fn reading(json: Value) -> Result<Reading, ToolError> {
        parse::<ReadArguments>(object(json))?.reading()
    }

    #[test]
    fn readings_are_of_a_chunk_or_of_places() {
        assert_eq!(reading(json!({"chunk": 7})), Ok(Reading::Around { chunk: 7, before: 1, after: 1 }));
        let path = |start, end| Ok(Reading::Places { document: DocumentName::Path("a".into()), start, end });
        assert_eq!(reading(json!({"path": "a"})), path(1, 200));
        assert_eq!(reading(json!({"path": "a", "start": 5})), path(5, 204));
        assert_eq!(reading(json!({"path": "a", "start": u32::MAX})), path(u32::MAX, u32::MAX));
        for (wrong, why) in [
            (json!({}), "give `chunk`"),
            (json!({"chunk": 1, "path": "a"}), "not both"),
            (json!({"path": "a", "document": 1}), "not both"),
            (json!({"chunk": 1, "start": 2}), "`before` and `after`"),
            (json!({"document": 1, "after": 2}), "`start` and `end`"),
            (json!({"document": 1, "start": 0}), "not a range"),
            (json!({"document": 1, "start": 3, "end": 2}), "not a range"),
            (json!({"chunk": 1, "before": 21}), "the most is 20"),
            (json!({"chunk": -1, "lines": 21}), "unknown field `lines`"),
            (json!({"path": "a".repeat(9_000)}), "9000 bytes"),
            (json!({"chunk": "7"}), "invalid type"),
        ] {
            let error = reading(wrong.clone()).unwrap_err();
            assert!(error.contains(why), "{wrong}: {error}");
        }
    }

    #[test]
    fn filters_are_texts_lists_or_objects() {
        let filter = |json: Value| {
            parse::<SearchArguments>(object(json!({"query": "q", "filter": json}))).and_then(|a| a.filter())
        };
        assert!(filter(json!("year>=2024")).unwrap().is_some());
        assert!(matches!(filter(json!(["year>=2024", "path:docs/*"])), Ok(Some(Filter::And(all))) if all.len() == 2));
        assert!(filter(json!({"type": "eq", "key": "year", "value": 2024})).unwrap().is_some());
        assert!(filter(json!([])).unwrap().is_none() && filter(Value::Null).unwrap().is_none());
        assert!(filter(json!(["nonsense"])).unwrap_err().contains("key=value"));
        assert!(filter(json!(vec!["a=1"; 33])).unwrap_err().contains("the most is 32"));
        assert!(filter(json!(7)).is_err());
    }

    #[test]
    fn errors_are_bounded() {
        let huge = "x".repeat(500_000);
        let error = parse::<SearchArguments>(object(json!({"query": "q", "mode": huge}))).unwrap_err();
        assert!(error.len() <= MAX_ERROR + 10, "{}", error.len());
        let search = |json: Value| parse::<SearchArguments>(object(json)).and_then(|a| a.check());
        assert!(search(json!({"query": huge})).unwrap_err().contains("500000 bytes"));
        assert!(search(json!({"query": " \n"})).unwrap_err().contains("empty"));
        assert!(
            search(json!({"query": "q", "limit": 0})).is_err() && search(json!({"query": "q", "limit": 51})).is_err()
        );
        assert_eq!(search(json!({"query": "q", "mode": "multi-vector"})), Ok(10));
    }
}
