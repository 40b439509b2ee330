//! Models in GGUF, llama.cpp's format: one file, or several parts, with weights, configuration,
//! vocabulary and chat templates. This module reverses the conversion, so that the other crates see
//! the transformers model: its tensor names, row order and values, and a `config.json`.

mod config;
mod family;
mod ggml;
mod header;
mod metadata;
mod names;
mod parts;
#[cfg(test)]
mod tests;
mod unconvert;
mod vocabulary;

pub use family::NAMES as ARCHITECTURES;
pub use metadata::Metadata;
pub use vocabulary::Vocabulary;

use crate::FileError;
use family::Family;
use header::{Tensor, Value, quoted};
use memmap2::Mmap;
use parts::Part;
use std::borrow::Cow;
use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use unconvert::{Context, Index};

/// A tensor as in transformers, except for its storage format.
#[derive(Clone, Debug)]
pub struct GgufTensor<'a> {
    /// The ggml type id.
    pub kind: u32,
    /// Row-major.
    pub dims: Vec<usize>,
    /// Whole rows of whole blocks, little-endian; borrowed if nothing had to be reversed.
    pub bytes: Cow<'a, [u8]>,
}

/// The pooling of an embedding model, if its file names one.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Pooling {
    /// No pooling.
    None,
    /// The mean of all tokens.
    Mean,
    /// The first token.
    Cls,
    /// The last token.
    Last,
    /// A score from a classification head: a reranker.
    Rank,
}

/// A GGUF model. Opening reads headers; a tensor's bytes are read when it is used.
pub struct Gguf {
    files: Vec<(PathBuf, Arc<Mmap>)>,
    values: BTreeMap<String, Value>,
    /// Tensors by their names in the file, with the index of their part.
    tensors: BTreeMap<String, (usize, Tensor)>,
    architecture: String,
    family: Family,
    index: Index,
}

impl Gguf {
    /// Opens the model in `paths`: one file, all its parts, or the first part, which finds the
    /// others in its directory.
    pub fn open(paths: &[PathBuf]) -> Result<Gguf, FileError> {
        Gguf::from_parts(parts::open(paths)?)
    }

    fn from_parts(parts: Vec<Part>) -> Result<Gguf, FileError> {
        let mut files = Vec::new();
        let mut values = BTreeMap::new();
        let mut tensors = BTreeMap::new();
        for (place, part) in parts.into_iter().enumerate() {
            for (name, tensor) in part.header.tensors {
                if tensors.insert(name.clone(), (place, tensor)).is_some() {
                    let what = format!("holds the tensor {}, which an earlier part holds too", quoted(&name));
                    return Err(FileError::new(&part.path, what));
                }
            }
            // The first part holds every key; the others only have their part number.
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

    /// The metadata keys.
    pub fn metadata(&self) -> Metadata<'_> {
        let (path, bytes) = &self.files[0];
        Metadata { path, bytes, values: &self.values }
    }

    /// The file, or the first part.
    pub fn path(&self) -> &Path {
        &self.files[0].0
    }

    /// llama.cpp's name of the architecture.
    pub fn architecture(&self) -> &str {
        &self.architecture
    }

    /// The equivalent of transformers' `config.json`.
    pub fn config(&self) -> Result<serde_json::Value, FileError> {
        config::config(self)
    }

    /// The tensor with the transformers name `name`.
    pub fn tensor(&self, name: &str) -> Option<GgufTensor<'_>> {
        let source = self.index.named.get(name)?;
        let bytes = source.read(&self.files[source.part].1);
        Some(GgufTensor { kind: source.output_type(), dims: source.dims.clone(), bytes })
    }

    /// The type and dimensions of the tensor with the transformers name `name`.
    pub fn shape(&self, name: &str) -> Option<(u32, &[usize])> {
        self.index.named.get(name).map(|source| (source.output_type(), &source.dims[..]))
    }

    /// The mapped file of a tensor, and its range.
    pub(super) fn mapped(&self, name: &str) -> Option<(&Arc<Mmap>, std::ops::Range<usize>)> {
        let source = self.index.named.get(name)?;
        Some((&self.files[source.part].1, source.bytes()))
    }

    /// Lets the system drop the pages of the files that were read.
    pub fn let_go(&self) {
        self.files.iter().for_each(|(_, map)| super::checkpoint::release_pages(map, &(0..map.len())));
    }

    /// The names of all tensors. A tensor without a transformers name keeps its name in the file.
    pub fn names(&self) -> Vec<String> {
        self.index.named.keys().cloned().collect()
    }

    /// The default chat template, or the one for another use, such as `tool_use`.
    pub fn chat_template(&self, using: Option<&str>) -> Result<Option<&str>, FileError> {
        match using {
            None => self.metadata().str("tokenizer.chat_template"),
            Some(name) => self.metadata().str(&format!("tokenizer.chat_template.{name}")),
        }
    }

    /// The vocabulary.
    pub fn vocabulary(&self) -> Result<Vocabulary<'_>, FileError> {
        vocabulary::read(self.metadata())
    }

    /// The pooling type, if the file has one.
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

/// ggml's name of a type.
pub fn kind_name(kind: u32) -> Option<&'static str> {
    ggml::find(kind).map(|kind| kind.name)
}
