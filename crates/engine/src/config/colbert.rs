//! How ColBERT models tokenize texts: markers, query expansion, skip lists. Three layouts configure
//! it: Stanford's `artifact.metadata`, PyLate's `config_sentence_transformers.json`, and
//! sentence-transformers' own modules.

use super::dense::{Dense, dense};
use super::input_spec::{InputSpec, plain_input_spec};
use super::sentence_transformers::{Entry, input_spec};
use crate::error::{Error, Result};
use sconce_formats::{json, optional_json};
use sconce_models::Sequence;
use sconce_text::{Encoded, Reader};
use serde::Deserialize;
use serde_json::{Map, Value};
use std::path::Path;

/// The default skip list of Stanford's models.
const PUNCTUATION: &str = "!\"#$%&'()*+,-./:;<=>?@[\\]^_`{|}~";

/// The query length since the first ColBERT.
const QUERY_LENGTH: usize = 32;

/// Whether a text is a query or a document.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Side {
    Query,
    Document,
}

/// The settings from the model's files.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct ColbertSpec {
    pub(crate) input_spec: InputSpec,
    /// Projections with their own folders.
    pub(crate) dense: Vec<Dense>,
    /// Whether `linear.weight` beside the encoder is the projection.
    pub(crate) stanford: bool,
    /// Whether vectors are L2-normalized.
    pub(crate) normalize: bool,
    /// The markers before queries and documents.
    markers: [String; 2],
    /// The most tokens of queries and documents, if the files say.
    lengths: [Option<usize>; 2],
    expansion: Option<Expansion>,
    /// Tokens of documents that get no vector.
    skip: Vec<String>,
}

/// Query expansion: mask tokens are appended to a query. They attend to its tokens, and their
/// vectors act as further query terms.
#[derive(Clone, Debug, PartialEq)]
struct Expansion {
    /// Expand to this many tokens.
    length: usize,
    /// Whether longer queries are truncated to `length`.
    fixed: bool,
    /// Whether other tokens attend to the mask tokens.
    attend: bool,
    /// The expansion token, if it is not the mask token.
    token: Option<String>,
}

#[derive(Deserialize)]
struct ExpansionConfig {
    strategy: String,
    #[serde(default)]
    attend: bool,
    token: Option<String>,
    length: usize,
}

/// A tokenized query or document.
pub(crate) struct ColbertInput {
    pub(crate) sequence: Sequence,
    /// Which tokens get a vector.
    pub(crate) has_vector: Vec<bool>,
    pub(crate) truncated: bool,
}

impl ColbertSpec {
    pub(crate) fn read(dir: &Path) -> Result<ColbertSpec> {
        let config: Value = json(&dir.join("config.json"))?;
        let stanford = config.pointer("/architectures/0").and_then(Value::as_str) == Some("HF_ColBERT");
        let modules = dir.join("modules.json");
        match optional_json::<Vec<Entry>>(&modules)? {
            Some(entries) => Self::modules(dir, &modules, &entries),
            None if stanford => Self::stanford(dir),
            None => {
                let what = "is not a ColBERT model: it has no modules.json, and config.json does not name HF_ColBERT";
                Err(Error::file(dir, what))
            }
        }
    }

    fn stanford(dir: &Path) -> Result<ColbertSpec> {
        let metadata: Map<String, Value> = optional_json(&dir.join("artifact.metadata"))?.unwrap_or_default();
        let word = |key: &str, or: &str| metadata.get(key).and_then(Value::as_str).unwrap_or(or).to_string();
        let number = |key: &str| metadata.get(key).and_then(Value::as_u64).map(|n| n as usize);
        let flag = |key: &str, or: bool| metadata.get(key).and_then(Value::as_bool).unwrap_or(or);
        let length = number("query_maxlen").unwrap_or(QUERY_LENGTH);
        Ok(ColbertSpec {
            input_spec: plain_input_spec(dir)?,
            dense: Vec::new(),
            stanford: true,
            normalize: true,
            markers: [word("query_token_id", "[unused0]"), word("doc_token_id", "[unused1]")],
            lengths: [None, number("doc_maxlen")],
            expansion: Some(Expansion {
                length,
                fixed: true,
                attend: flag("attend_to_mask_tokens", false),
                token: None,
            }),
            skip: if flag("mask_punctuation", true) { punctuation() } else { Vec::new() },
        })
    }

    /// PyLate's and sentence-transformers' layouts differ in where settings are and in which
    /// defaults are omitted.
    fn modules(dir: &Path, path: &Path, entries: &[Entry]) -> Result<ColbertSpec> {
        let top: Map<String, Value> =
            optional_json(&dir.join("config_sentence_transformers.json"))?.unwrap_or_default();
        let (mut dense_layers, mut root, mut mask, mut normalize) = (Vec::new(), dir.to_path_buf(), None, false);
        for (i, entry) in entries.iter().enumerate() {
            let folder = entry.folder(dir, path)?;
            match entry.class() {
                "Transformer" if i == 0 => root = folder,
                "Dense" if i > 0 => dense_layers.push(dense(&folder)?),
                "MultiVectorMask" if i > 0 => mask = Some(json::<Map<String, Value>>(&folder.join("config.json"))?),
                "Normalize" if i > 0 => normalize = true,
                _ => {
                    let what =
                        format!("module {i} is `{}`, which is not supported in a multi-vector model", entry.class());
                    return Err(Error::file(path, what));
                }
            }
        }
        let native: Map<String, Value> = optional_json(&root.join("sentence_bert_config.json"))?.unwrap_or_default();
        let knob = |key: &str| top.get(key).or_else(|| native.get(key)).filter(|v| !v.is_null());
        let number = |key: &str| knob(key).and_then(Value::as_u64).map(|n| n as usize);
        let strings = |list: &Value| -> Vec<String> {
            list.as_array().into_iter().flatten().filter_map(Value::as_str).map(String::from).collect()
        };
        let marker = |side: &str| -> String {
            let prefix = top.get(&format!("{side}_prefix")).and_then(Value::as_str).unwrap_or_default();
            let prompt = top.get("prompts").and_then(|p| p.get(side)).and_then(Value::as_str).unwrap_or_default();
            format!("{prefix}{}", prompt.strip_prefix(prefix).unwrap_or(prompt))
        };
        let expansion = match native.get("query_expansion").or_else(|| top.get("query_expansion")) {
            Some(Value::Null) => None,
            Some(value) => {
                let native = ExpansionConfig::deserialize(value)
                    .map_err(|e| Error::file(&root, format!("query_expansion: {e}")))?;
                let fixed = native.strategy == "fixed";
                if !fixed && native.strategy != "min" {
                    return Err(Error::file(&root, format!("query_expansion `{}` is not supported", native.strategy)));
                }
                Some(Expansion { length: native.length, fixed, attend: native.attend, token: native.token })
            }
            // PyLate expands by default; sentence-transformers only if configured.
            None if mask.is_some() || top.get("do_query_expansion") == Some(&Value::Bool(false)) => None,
            None => Some(Expansion {
                length: number("query_length").unwrap_or(QUERY_LENGTH),
                fixed: true,
                attend: knob("attend_to_expansion_tokens").and_then(Value::as_bool).unwrap_or(false),
                token: None,
            }),
        };
        let skip = match &mask {
            Some(mask) => {
                if mask.get("keep_only_token_ids").is_some_and(|v| !v.is_null()) {
                    return Err(Error::file(path, "keep_only_token_ids is not supported: it is for images"));
                }
                let tasks = mask.get("skiplist_tasks").map(strings);
                if tasks.is_some_and(|tasks| tasks != ["document"]) {
                    return Err(Error::file(path, "a skip list for queries (skiplist_tasks) is not supported"));
                }
                mask.get("skiplist_words").map(strings).unwrap_or_default()
            }
            None => knob("skiplist_words").map_or_else(punctuation, strings),
        };
        let sentence = input_spec(&root, dir)?;
        // The usual limits may be those of a document without its marker; an explicit length takes
        // precedence.
        let explicit = ["query_length", "document_length"].map(number);
        let lengths = explicit.map(|length| length.or(sentence.max_tokens));
        let most =
            sentence.max_tokens.map(|most| explicit.iter().flatten().fold(most, |most, length| most.max(*length)));
        Ok(ColbertSpec {
            input_spec: InputSpec { max_tokens: most, ..sentence },
            dense: dense_layers,
            stanford: false,
            normalize: normalize || mask.is_none(),
            markers: [marker("query"), marker("document")],
            lengths,
            expansion,
            skip,
        })
    }

    /// Tokenizes texts with markers and expansion.
    pub(crate) fn encode<T: AsRef<str> + Sync>(
        &self,
        reader: Reader<'_>,
        texts: &[T],
        side: Side,
    ) -> Result<Vec<ColbertInput>> {
        let t = reader.tokenizer();
        let (marker, length) = match side {
            Side::Query => (&self.markers[0], self.lengths[0]),
            Side::Document => (&self.markers[1], self.lengths[1]),
        };
        let expansion = self.expansion.as_ref().filter(|_| side == Side::Query);
        if let Some(e) = expansion.filter(|e| e.length > t.max_tokens()) {
            let what =
                format!("queries are expanded to {} tokens, but the model takes at most {}", e.length, t.max_tokens());
            return Err(Error::file(&self.input_spec.root, what));
        }
        let length = match expansion {
            Some(Expansion { length, fixed: true, .. }) => Some(*length),
            _ => length,
        };
        let skip: Vec<u32> = match side {
            Side::Query => Vec::new(),
            Side::Document => self.skip.iter().filter_map(|word| t.id(word)).collect(),
        };
        // A marker that is one token of the vocabulary is inserted as that token; as text the
        // tokenizer might split it.
        let id = t.id(marker).or_else(|| t.id(marker.trim())).filter(|_| !marker.trim().is_empty());
        let prompt = if id.is_some() { "" } else { marker };
        let most = length.unwrap_or(usize::MAX).min(t.max_tokens());
        let encoded = reader.encode_to(texts, prompt, most.saturating_sub(usize::from(id.is_some())).max(1))?;
        let mask = match expansion {
            Some(e) => Some(e.token.as_deref().map_or_else(|| t.mask(), |token| t.id(token)).ok_or_else(|| {
                let what = "the model expands queries with a mask token, but its tokenizer has none";
                Error::file(&self.input_spec.root, what)
            })?),
            None => None,
        };
        Ok(encoded.into_iter().map(|e| mark_input(e, id, expansion.zip(mask), &skip)).collect())
    }
}

fn mark_input(e: Encoded, id: Option<u32>, expansion: Option<(&Expansion, u32)>, skip: &[u32]) -> ColbertInput {
    let Encoded { ids, type_ids, truncated, starts_special, .. } = e;
    let mut sequence = Sequence { ids, types: type_ids, ..Sequence::default() };
    if let Some(id) = id {
        let at = usize::from(starts_special).min(sequence.ids.len());
        sequence.ids.insert(at, id);
        if !sequence.types.is_empty() {
            sequence.types.insert(at, 0);
        }
    }
    let mut has_vector: Vec<bool> = sequence.ids.iter().map(|id| !skip.contains(id)).collect();
    if let Some((expansion, mask)) = expansion {
        let real = sequence.ids.len();
        let length = expansion.length.max(real);
        sequence.ids.resize(length, mask);
        if !sequence.types.is_empty() {
            sequence.types.resize(length, 0);
        }
        has_vector.resize(length, true);
        sequence.keys = (!expansion.attend).then_some(real);
    }
    ColbertInput { sequence, has_vector, truncated }
}

fn punctuation() -> Vec<String> {
    PUNCTUATION.chars().map(String::from).collect()
}
