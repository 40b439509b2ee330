//! Arguments from JSON. What is wrong in them is an [`Error::Input`] that names the field.

use std::path::PathBuf;

use serde::Deserialize;
use serde::de::DeserializeOwned;
use serde_json::{Map, Value as Json};

use crate::chunk::ChunkOptions;
use crate::document::{Kind, Language, Layout, Metadata, Value};
use crate::error::{Error, Result};
use crate::filter::Filter;
use crate::index::NewDocument;
use crate::indexer::Update;
use crate::models::Embedding;
use crate::search::{Mode, Query};
use crate::walk::WalkOptions;

/// The most filters in a list.
const MAX_FILTERS: usize = 256;

fn parse<T: DeserializeOwned>(json: &str) -> Result<T> {
    serde_json::from_str(json).map_err(|e| Error::Input(e.to_string()))
}

/// Derived types also take a list of their fields; nobody means that.
fn parse_object<T: DeserializeOwned>(json: &str) -> Result<T> {
    let object: Map<String, Json> = parse(json)?;
    T::deserialize(Json::Object(object)).map_err(|e| Error::Input(e.to_string()))
}

#[derive(Default, Deserialize)]
#[serde(default, deny_unknown_fields)]
struct QueryOptions {
    mode: Option<String>,
    limit: Option<usize>,
    candidates: Option<usize>,
    filter: Json,
    vector: Option<Vec<f32>>,
    threads: Option<usize>,
    snippet_bytes: Option<usize>,
}

/// A query of a text and these options, a JSON object: `mode` (`hybrid`, `dense`, `bm25`, `sparse`
/// or `multi_vector`), `limit`, `candidates`, `threads`, `snippet_bytes`, `vector` (numbers), and
/// `filter`: an object as [`Filter::from_json`] reads it, a text as [`Filter::parse`] reads it, or a
/// list of these, which must all pass.
pub fn query(text: String, options: &str) -> Result<Query> {
    let options: QueryOptions = parse_object(options)?;
    let usual = Query::new(text);
    Ok(Query {
        mode: options.mode.as_deref().map_or(Ok(usual.mode), mode)?,
        limit: options.limit.unwrap_or(usual.limit),
        candidates: options.candidates.unwrap_or(usual.candidates),
        filter: filter(&options.filter)?,
        vector: options.vector.map(Embedding::Dense),
        threads: options.threads,
        snippet_bytes: options.snippet_bytes.unwrap_or(usual.snippet_bytes),
        ..usual
    })
}

fn mode(name: &str) -> Result<Mode> {
    Ok(match name {
        "hybrid" => Mode::Hybrid,
        "dense" => Mode::Dense,
        "bm25" => Mode::Bm25,
        "sparse" => Mode::Sparse,
        "multi_vector" | "multi-vector" => Mode::MultiVector,
        other => {
            let why = format!("unknown mode `{other}`; use hybrid, dense, bm25, sparse or multi_vector");
            return Err(Error::Input(why));
        }
    })
}

fn filter(json: &Json) -> Result<Option<Filter>> {
    match json {
        Json::Null => Ok(None),
        Json::Array(all) if all.len() > MAX_FILTERS => {
            Err(Error::Input(format!("{} filters are too many; give at most {MAX_FILTERS}", all.len())))
        }
        Json::Array(all) => Ok(Filter::all(all.iter().map(one_filter).collect::<Result<_>>()?)),
        one => one_filter(one).map(Some),
    }
}

fn one_filter(json: &Json) -> Result<Filter> {
    match json {
        Json::String(text) => Filter::parse(text),
        other => Filter::from_json(other),
    }
}

#[derive(Deserialize)]
#[serde(default, deny_unknown_fields)]
struct UpdateOptions {
    hidden: bool,
    ignore_files: bool,
    chunk_tokens: Option<usize>,
    chunk_overlap: Option<usize>,
    prune: bool,
    rebuild: bool,
}

impl Default for UpdateOptions {
    fn default() -> UpdateOptions {
        UpdateOptions {
            hidden: false,
            ignore_files: true,
            chunk_tokens: None,
            chunk_overlap: None,
            prune: true,
            rebuild: false,
        }
    }
}

/// A run over `roots` with these options, a JSON object: `hidden`, `ignore_files`, `chunk_tokens`,
/// `chunk_overlap`, `prune`, `rebuild`.
pub fn update(roots: Vec<PathBuf>, options: &str) -> Result<Update> {
    let options: UpdateOptions = parse_object(options)?;
    let usual = ChunkOptions::default();
    Ok(Update {
        walk: WalkOptions { hidden: options.hidden, ignore_files: options.ignore_files },
        chunk: ChunkOptions {
            tokens: options.chunk_tokens.unwrap_or(usual.tokens),
            overlap: options.chunk_overlap.unwrap_or(usual.overlap),
        },
        prune: options.prune,
        rebuild: options.rebuild,
        ..Update::new(roots)
    })
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct Document {
    id: String,
    text: String,
    title: Option<String>,
    kind: Option<String>,
    #[serde(default)]
    metadata: Option<Map<String, Json>>,
}

/// Documents to add: a JSON list of objects with `id` and `text`, and where they have one `title`,
/// `kind` (`text`, `markdown`, or a programming language) and `metadata`.
pub fn documents(json: &str) -> Result<Vec<NewDocument>> {
    let all: Vec<Document> = parse(json)?;
    all.into_iter()
        .map(|document| {
            let Document { id, text, title, kind, metadata } = document;
            let metadata = metadata.unwrap_or_default().into_iter().map(|(key, json)| {
                let value = value(json).map_err(|what| {
                    let form = "a value must be a text, a number, true, false or null";
                    Error::Input(format!("document `{id}`: `{key}` in its metadata is {what}; {form}"))
                })?;
                Ok((key, value))
            });
            let metadata = metadata.collect::<Result<Metadata>>()?;
            let kind = kind.as_deref().map_or(Ok(Kind::Text), document_kind)?;
            Ok(NewDocument { key: id, title, kind, text, metadata, layout: Layout::default() })
        })
        .collect()
}

/// A value of metadata, or what else it is.
fn value(json: Json) -> std::result::Result<Value, &'static str> {
    Ok(match json {
        Json::Null => Value::Null,
        Json::Bool(b) => Value::Bool(b),
        Json::String(text) => Value::Text(text),
        Json::Number(n) => n.as_i64().map_or_else(|| Value::Float(n.as_f64().unwrap_or(f64::NAN)), Value::Integer),
        Json::Array(_) => return Err("a list"),
        Json::Object(_) => return Err("an object"),
    })
}

fn document_kind(name: &str) -> Result<Kind> {
    match name {
        "text" => Ok(Kind::Text),
        "markdown" => Ok(Kind::Markdown),
        language => {
            let language = serde_json::from_value::<Language>(language.into());
            language.map(Kind::Code).map_err(|_| {
                Error::Input(format!(
                    "unknown kind `{name}` of a document; use text, markdown or a programming language"
                ))
            })
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn queries() {
        let given =
            query("cat".into(), r#"{"mode": "multi-vector", "limit": 3, "filter": ["year>=2020", "path:a/*"]}"#);
        let given = given.unwrap();
        assert_eq!((given.mode, given.limit, given.candidates), (Mode::MultiVector, 3, 100));
        assert!(matches!(&given.filter, Some(Filter::And(all)) if all.len() == 2));
        let eq = r#"{"filter": {"type": "eq", "key": "year", "value": 2020}, "vector": [0.5, 1]}"#;
        let given = query("cat".into(), eq).unwrap();
        assert!(matches!(given.filter, Some(Filter::Compare(_))));
        assert_eq!(given.vector, Some(Embedding::Dense(vec![0.5, 1.0])));
        assert!(query("cat".into(), "{}").unwrap().filter.is_none());
        for wrong in [r#"{"mode": "best"}"#, r#"{"limit": -1}"#, r#"{"limits": 1}"#, r#"{"filter": 3}"#, "[]", ""] {
            assert!(query("cat".into(), wrong).is_err(), "{wrong}");
        }
        let many = format!(r#"{{"filter": [{}"a=b"]}}"#, r#""a=b","#.repeat(MAX_FILTERS));
        assert!(query("cat".into(), &many).is_err());
    }

    #[test]
    fn updates() {
        let usual = update(vec!["docs".into()], "{}").unwrap();
        assert!(usual.prune && usual.walk.ignore_files && !usual.walk.hidden && !usual.rebuild);
        assert_eq!(usual.chunk, ChunkOptions::default());
        let given = update(Vec::new(), r#"{"chunk_tokens": 64, "prune": false, "hidden": true}"#).unwrap();
        assert!(!given.prune && given.walk.hidden && given.chunk.tokens == 64);
        assert!(update(Vec::new(), r#"{"chunk": 64}"#).is_err());
    }

    #[test]
    fn documents_to_add() {
        let given = r#"[{"id": "a", "text": "x", "metadata": {"n": 1, "f": 0.5, "b": true, "s": "t", "z": null}},
            {"id": "b", "text": "y", "title": "B", "kind": "rust", "metadata": null}]"#;
        let given = documents(given).unwrap();
        assert_eq!(given[0].metadata["n"], Value::Integer(1));
        assert_eq!(given[0].metadata["z"], Value::Null);
        assert_eq!((given[1].kind, given[1].title.as_deref()), (Kind::Code(Language::Rust), Some("B")));
        let nested = documents(r#"[{"id": "a", "text": "x", "metadata": {"tags": ["x"]}}]"#).unwrap_err().to_string();
        assert!(nested.contains("`a`") && nested.contains("`tags`") && nested.contains("list"), "{nested}");
        for wrong in
            [r#"[{"id": "a"}]"#, r#"[{"id": 1, "text": "x"}]"#, r#"[{"id": "a", "text": "x", "kind": "cobol"}]"#]
        {
            assert!(documents(wrong).is_err(), "{wrong}");
        }
    }
}
