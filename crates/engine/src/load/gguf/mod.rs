//! Models in GGUF, llama.cpp's format: one file, or several parts, that holds weights, configuration, vocabulary and chat
//! templates. What its converter did is undone here, so that the rest of the house sees the model that transformers would:
//! tensors under transformers' names, in its order of rows and with its values, and a `config.json`.

mod config;
mod family;
mod ggml;
mod header;
mod metadata;
mod names;
mod parts;
#[cfg(test)]
mod tests;
mod undo;
mod vocabulary;

pub(crate) use metadata::Metadata;
pub(crate) use vocabulary::Vocabulary;

use family::Family;
use header::{Tensor, Value, shown};
use memmap2::Mmap;
use parts::Part;
use std::borrow::Cow;
use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use undo::{Context, Index};

/// What is wrong with a file.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Fault {
    /// The file.
    pub path: PathBuf,
    /// What is wrong with it; ends a sentence that begins with its name.
    pub what: String,
}

impl Fault {
    fn new(path: &Path, what: impl ToString) -> Fault {
        Fault { path: path.to_path_buf(), what: what.to_string() }
    }
}

impl std::fmt::Display for Fault {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "{}: {}", self.path.display(), self.what)
    }
}

impl std::error::Error for Fault {}

/// One tensor, as transformers has it but for the format of its numbers.
#[derive(Clone, Debug)]
pub(crate) struct Stored<'a> {
    /// ggml's number for the format.
    pub kind: u32,
    /// Row-major.
    pub dims: Vec<usize>,
    /// Whole rows of whole blocks, little-endian; borrowed where nothing had to be undone.
    pub bytes: Cow<'a, [u8]>,
}

/// How an embedder makes one vector of many, where its file says so.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Pooling {
    /// Not at all.
    None,
    /// Their mean.
    Mean,
    /// The first token's.
    Cls,
    /// The last token's.
    Last,
    /// A score from a head instead: a reranker.
    Rank,
}

/// A model in GGUF. Opening reads headers; a tensor's bytes are read when it is used.
pub(crate) struct Gguf {
    files: Vec<(PathBuf, Arc<Mmap>)>,
    values: BTreeMap<String, Value>,
    /// By their names in the file, with the part that holds them.
    tensors: BTreeMap<String, (usize, Tensor)>,
    architecture: String,
    family: Family,
    index: Index,
}

impl Gguf {
    /// The model in `paths`: one file, all parts of one, or the first part, which finds the others beside it.
    pub(crate) fn open(paths: &[PathBuf]) -> Result<Gguf, Fault> {
        Gguf::of(parts::open(paths)?)
    }

    fn of(parts: Vec<Part>) -> Result<Gguf, Fault> {
        let mut files = Vec::new();
        let mut values = BTreeMap::new();
        let mut tensors = BTreeMap::new();
        for (place, part) in parts.into_iter().enumerate() {
            for (name, tensor) in part.header.tensors {
                if tensors.insert(name.clone(), (place, tensor)).is_some() {
                    let what = format!("holds the tensor {}, which an earlier part holds too", shown(&name));
                    return Err(Fault::new(&part.path, what));
                }
            }
            // The first part holds every key; the others say only which part they are.
            if place == 0 {
                values = part.header.values;
            }
            files.push((part.path, Arc::new(part.bytes)));
        }
        let metadata = Metadata { path: &files[0].0, bytes: &files[0].1, values: &values };
        let (architecture, family) = family::find(metadata, &tensors)?;
        let architecture = architecture.to_owned();
        let heads = || config::heads(metadata, &architecture);
        let index = Context { family, heads: &heads, metadata }.index(&tensors)?;
        Ok(Gguf { files, values, tensors, architecture, family, index })
    }

    /// Its keys, as they are.
    pub(crate) fn metadata(&self) -> Metadata<'_> {
        let (path, bytes) = &self.files[0];
        Metadata { path, bytes, values: &self.values }
    }

    /// The file, or the first part.
    pub(crate) fn path(&self) -> &Path {
        &self.files[0].0
    }

    /// What llama.cpp calls the architecture.
    pub(crate) fn architecture(&self) -> &str {
        &self.architecture
    }

    /// What transformers' `config.json` would say.
    pub(crate) fn config(&self) -> Result<serde_json::Value, Fault> {
        config::config(self)
    }

    /// The tensor that transformers calls `name`.
    pub(crate) fn tensor(&self, name: &str) -> Option<Stored<'_>> {
        let source = self.index.named.get(name)?;
        let bytes = source.read(&self.files[source.part].1);
        Some(Stored { kind: source.given(), dims: source.dims.clone(), bytes })
    }

    /// The format and dimensions of the tensor that transformers calls `name`, without its numbers.
    pub(crate) fn shape(&self, name: &str) -> Option<(u32, &[usize])> {
        self.index.named.get(name).map(|source| (source.given(), &source.dims[..]))
    }

    /// Where the tensor lies in a mapped file.
    pub(super) fn mapped(&self, name: &str) -> Option<(&Arc<Mmap>, std::ops::Range<usize>)> {
        let source = self.index.named.get(name)?;
        Some((&self.files[source.part].1, source.bytes()))
    }

    /// Lets the system drop what was read of the files.
    pub(crate) fn let_go(&self) {
        self.files.iter().for_each(|(_, map)| super::checkpoint::let_go(map, &(0..map.len())));
    }

    /// Every name. A tensor that transformers' model has no name for keeps that of the file.
    pub(crate) fn names(&self) -> Vec<String> {
        self.index.named.keys().cloned().collect()
    }

    /// The template that makes one text of a conversation, or that for another use, such as `tool_use`.
    pub(crate) fn chat_template(&self, using: Option<&str>) -> Result<Option<&str>, Fault> {
        match using {
            None => self.metadata().str("tokenizer.chat_template"),
            Some(name) => self.metadata().str(&format!("tokenizer.chat_template.{name}")),
        }
    }

    /// Its tokens and what is special about them.
    pub(crate) fn vocabulary(&self) -> Result<Vocabulary<'_>, Fault> {
        vocabulary::read(self.metadata())
    }

    /// How its vectors are pooled, if it says.
    pub(crate) fn pooling(&self) -> Result<Option<Pooling>, Fault> {
        let key = format!("{}.pooling_type", self.architecture);
        Ok(Some(match self.metadata().u64(&key)? {
            None => return Ok(None),
            Some(0) => Pooling::None,
            Some(1) => Pooling::Mean,
            Some(2) => Pooling::Cls,
            Some(3) => Pooling::Last,
            Some(4) => Pooling::Rank,
            Some(other) => return Err(self.metadata().fault(format!("has the unknown pooling {other} ({key})"))),
        }))
    }
}

/// ggml's name of a format.
pub(crate) fn kind_name(kind: u32) -> Option<&'static str> {
    ggml::find(kind).map(|kind| kind.name)
}
