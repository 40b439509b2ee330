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

pub use metadata::Metadata;
pub use vocabulary::Vocabulary;

use crate::FileError;
use family::Family;
use header::{Tensor, Value, shown};
use memmap2::Mmap;
use parts::Part;
use std::borrow::Cow;
use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use undo::{Context, Index};

/// One tensor, as transformers has it but for the format of its numbers.
#[derive(Clone, Debug)]
pub struct Stored<'a> {
    /// ggml's number for the format.
    pub kind: u32,
    /// Row-major.
    pub dims: Vec<usize>,
    /// Whole rows of whole blocks, little-endian; borrowed where nothing had to be undone.
    pub bytes: Cow<'a, [u8]>,
}

/// How an embedder makes one vector of many, where its file says so.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Pooling {
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
pub struct Gguf {
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
    pub fn open(paths: &[PathBuf]) -> Result<Gguf, FileError> {
        Gguf::of(parts::open(paths)?)
    }

    fn of(parts: Vec<Part>) -> Result<Gguf, FileError> {
        let mut files = Vec::new();
        let mut values = BTreeMap::new();
        let mut tensors = BTreeMap::new();
        for (place, part) in parts.into_iter().enumerate() {
            for (name, tensor) in part.header.tensors {
                if tensors.insert(name.clone(), (place, tensor)).is_some() {
                    let what = format!("holds the tensor {}, which an earlier part holds too", shown(&name));
                    return Err(FileError::new(&part.path, what));
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
    pub fn metadata(&self) -> Metadata<'_> {
        let (path, bytes) = &self.files[0];
        Metadata { path, bytes, values: &self.values }
    }

    /// The file, or the first part.
    pub fn path(&self) -> &Path {
        &self.files[0].0
    }

    /// What llama.cpp calls the architecture.
    pub fn architecture(&self) -> &str {
        &self.architecture
    }

    /// What transformers' `config.json` would say.
    pub fn config(&self) -> Result<serde_json::Value, FileError> {
        config::config(self)
    }

    /// The tensor that transformers calls `name`.
    pub fn tensor(&self, name: &str) -> Option<Stored<'_>> {
        let source = self.index.named.get(name)?;
        let bytes = source.read(&self.files[source.part].1);
        Some(Stored { kind: source.given(), dims: source.dims.clone(), bytes })
    }

    /// The format and dimensions of the tensor that transformers calls `name`, without its numbers.
    pub fn shape(&self, name: &str) -> Option<(u32, &[usize])> {
        self.index.named.get(name).map(|source| (source.given(), &source.dims[..]))
    }

    /// Where the tensor lies in a mapped file.
    pub(super) fn mapped(&self, name: &str) -> Option<(&Arc<Mmap>, std::ops::Range<usize>)> {
        let source = self.index.named.get(name)?;
        Some((&self.files[source.part].1, source.bytes()))
    }

    /// Lets the system drop what was read of the files.
    pub fn let_go(&self) {
        self.files.iter().for_each(|(_, map)| super::checkpoint::let_go(map, &(0..map.len())));
    }

    /// Every name. A tensor that transformers' model has no name for keeps that of the file.
    pub fn names(&self) -> Vec<String> {
        self.index.named.keys().cloned().collect()
    }

    /// The template that makes one text of a conversation, or that for another use, such as `tool_use`.
    pub fn chat_template(&self, using: Option<&str>) -> Result<Option<&str>, FileError> {
        match using {
            None => self.metadata().str("tokenizer.chat_template"),
            Some(name) => self.metadata().str(&format!("tokenizer.chat_template.{name}")),
        }
    }

    /// Its tokens and what is special about them.
    pub fn vocabulary(&self) -> Result<Vocabulary<'_>, FileError> {
        vocabulary::read(self.metadata())
    }

    /// How its vectors are pooled, if it says.
    pub fn pooling(&self) -> Result<Option<Pooling>, FileError> {
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
pub fn kind_name(kind: u32) -> Option<&'static str> {
    ggml::find(kind).map(|kind| kind.name)
}
