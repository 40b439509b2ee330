//! Weights in safetensors files, mapped into memory: opening reads the header, a tensor's bytes are read when it is used.
#![allow(unsafe_code, reason = "mapping a file")]

use crate::{Error, Result};
use memmap2::Mmap;
use sconce_ops::{DType, Raw, Store};
use serde::Deserialize;
use std::collections::{BTreeMap, BTreeSet};
use std::fs::File;
use std::ops::Range;
use std::path::Path;

/// The weights of a model: one safetensors file, or several listed by an index.
pub struct Checkpoint {
    maps: Vec<Mmap>,
    entries: BTreeMap<String, Entry>,
}

struct Entry {
    map: usize,
    dtype: ::safetensors::Dtype,
    dims: Vec<usize>,
    bytes: Range<usize>,
}

#[derive(Deserialize)]
struct Index {
    weight_map: BTreeMap<String, String>,
}

impl Checkpoint {
    /// The weights in `dir`: `model.safetensors`, else the files that `model.safetensors.index.json` names.
    pub fn open(dir: &Path) -> Result<Checkpoint> {
        let index = dir.join("model.safetensors.index.json");
        let single = "model.safetensors".to_string();
        let files: BTreeSet<String> = if dir.join(&single).exists() || !index.exists() {
            [single].into()
        } else {
            super::json::<Index>(&index)?.weight_map.into_values().collect()
        };
        let mut checkpoint = Checkpoint { maps: Vec::new(), entries: BTreeMap::new() };
        for file in files {
            // A name from a file must not lead out of its directory.
            if Path::new(&file).file_name() != Some(file.as_ref()) {
                return Err(Error::file(&index, format!("names a shard outside its directory: {file}")));
            }
            checkpoint.add(&dir.join(file))?;
        }
        Ok(checkpoint)
    }

    /// The weights in one file, `name` with an ending of a format that is read.
    pub(crate) fn open_file(dir: &Path, name: &str) -> Result<Checkpoint> {
        let mut checkpoint = Checkpoint { maps: Vec::new(), entries: BTreeMap::new() };
        checkpoint.add(&dir.join(format!("{name}.safetensors")))?;
        Ok(checkpoint)
    }

    fn add(&mut self, path: &Path) -> Result<()> {
        let file = File::open(path).map_err(|e| Error::file(path, e))?;
        // SAFETY: the map is only read. Somebody who truncates the file while we run can make reads fail with SIGBUS; that
        // is the price of not copying gigabytes, and what every engine that maps its weights accepts.
        let map = unsafe { Mmap::map(&file) }.map_err(|e| Error::file(path, e))?;
        let (header, metadata) = ::safetensors::SafeTensors::read_metadata(&map)
            .map_err(|e| Error::file(path, format!("not a whole safetensors file: {e}; fetch it again")))?;
        let start = header + 8;
        for (name, info) in metadata.tensors() {
            // read_metadata has checked that offsets follow each other, fit the shapes and end with the file.
            let bytes = start + info.data_offsets.0..start + info.data_offsets.1;
            let entry = Entry { map: self.maps.len(), dtype: info.dtype, dims: info.shape.clone(), bytes };
            if self.entries.insert(name.clone(), entry).is_some() {
                return Err(Error::file(path, format!("holds {name}, which an earlier file holds too")));
            }
        }
        self.maps.push(map);
        Ok(())
    }
}

impl Store for Checkpoint {
    fn get(&self, name: &str) -> sconce_ops::Result<Option<Raw<'_>>> {
        let Some(entry) = self.entries.get(name) else { return Ok(None) };
        let dtype = match entry.dtype {
            ::safetensors::Dtype::F32 => DType::F32,
            ::safetensors::Dtype::F16 => DType::F16,
            ::safetensors::Dtype::BF16 => DType::BF16,
            other => {
                let what = format!("is stored as {other:?}; F32, F16 and BF16 can be read");
                return Err(sconce_ops::Error::Weight { name: name.into(), what });
            }
        };
        Ok(Some(Raw { dtype, dims: entry.dims.clone(), bytes: &self.maps[entry.map][entry.bytes.clone()] }))
    }

    fn names(&self) -> Vec<String> {
        self.entries.keys().cloned().collect()
    }
}
