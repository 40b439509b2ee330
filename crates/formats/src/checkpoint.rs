//! Weight files of a model, memory-mapped: opening reads headers, and a tensor's bytes are read
//! when it is used.
#![allow(unsafe_code, reason = "mapping a file")]

use super::torch;
use crate::{FileError, Result};
use memmap2::Mmap;
use sconce_ops::{DType, Mapped, Raw, Store, Stored};
use serde::Deserialize;
use std::borrow::Cow;
use std::collections::{BTreeMap, BTreeSet};
use std::fs::File;
use std::ops::Range;
use std::path::Path;
use std::sync::Arc;

/// The weights of a model: one file or the shards of an index. safetensors if there are any, else
/// torch checkpoints, which are parsed without running them.
pub struct Checkpoint {
    maps: Vec<Arc<Mmap>>,
    entries: BTreeMap<String, Entry>,
}

struct Entry {
    map: usize,
    /// The dtype as both formats name it.
    dtype: String,
    dims: Vec<usize>,
    bytes: Range<usize>,
    /// A matrix stored in column-major order.
    column_major: bool,
}

#[derive(Deserialize)]
struct Index {
    weight_map: BTreeMap<String, String>,
}

impl Checkpoint {
    /// Opens the weights in `dir`, under transformers' names.
    pub fn open(dir: &Path) -> Result<Checkpoint> {
        let mut checkpoint = Checkpoint { maps: Vec::new(), entries: BTreeMap::new() };
        for name in ["model.safetensors", "pytorch_model.bin"] {
            let (single, index) = (dir.join(name), dir.join(format!("{name}.index.json")));
            if single.exists() {
                checkpoint.add(&single)?;
                return Ok(checkpoint);
            }
            if index.exists() {
                let files: BTreeSet<String> = super::json::<Index>(&index)?.weight_map.into_values().collect();
                for file in files {
                    // A file name from an untrusted index must not leave its directory.
                    if Path::new(&file).file_name() != Some(file.as_ref()) {
                        return Err(FileError::new(&index, format!("names a shard outside its directory: {file}")));
                    }
                    checkpoint.add(&dir.join(file))?;
                }
                return Ok(checkpoint);
            }
        }
        Err(FileError::new(dir, "no model.safetensors and no pytorch_model.bin"))
    }

    /// Opens one more weight file in `dir`: `name.safetensors` or `name.pt`.
    pub fn open_extra(dir: &Path, name: &str) -> Result<Checkpoint> {
        let mut checkpoint = Checkpoint { maps: Vec::new(), entries: BTreeMap::new() };
        let safe = dir.join(format!("{name}.safetensors"));
        checkpoint.add(&if safe.exists() { safe } else { dir.join(format!("{name}.pt")) })?;
        Ok(checkpoint)
    }

    fn add(&mut self, path: &Path) -> Result<()> {
        let file = File::open(path).map_err(|e| FileError::new(path, e))?;
        // SAFETY: the map is only read. Truncating the file while we run can make reads fail with
        // SIGBUS; every engine that maps its weights accepts that to avoid copying gigabytes.
        let map = unsafe { Mmap::map(&file) }.map_err(|e| FileError::new(path, e))?;
        let place = self.maps.len();
        let entries: Vec<(String, Entry)> = if path.extension().is_some_and(|e| e == "safetensors") {
            let (header, metadata) = ::safetensors::SafeTensors::read_metadata(&map)
                .map_err(|e| FileError::new(path, format!("not a whole safetensors file: {e}; fetch it again")))?;
            // read_metadata has checked that offsets are consecutive, fit the shapes and end with
            // the file.
            let start = header + 8;
            let entry = |info: &::safetensors::tensor::TensorInfo| Entry {
                map: place,
                dtype: format!("{:?}", info.dtype),
                dims: info.shape.clone(),
                bytes: start + info.data_offsets.0..start + info.data_offsets.1,
                column_major: false,
            };
            metadata.tensors().into_iter().map(|(name, info)| (name, entry(info))).collect()
        } else {
            let tensors = torch::index(&map).map_err(|what| FileError::new(path, what))?;
            let entry = |torch::Entry { dtype, dims, bytes, column_major }| Entry {
                map: place,
                dtype: format!("{dtype:?}"),
                dims,
                bytes,
                column_major,
            };
            tensors.into_iter().map(|(name, t)| (name, entry(t))).collect()
        };
        for (name, entry) in entries {
            if self.entries.insert(name.clone(), entry).is_some() {
                return Err(FileError::new(path, format!("holds {name}, which an earlier file holds too")));
            }
        }
        self.maps.push(Arc::new(map));
        Ok(())
    }
}

impl Store for Checkpoint {
    fn get(&self, name: &str) -> sconce_ops::Result<Option<Raw<'_>>> {
        let Some(Entry { map, dtype, dims, bytes, column_major }) = self.entries.get(name) else { return Ok(None) };
        let bytes = &self.maps[*map][bytes.clone()];
        let (dtype, bytes) = match &**dtype {
            "F32" => (DType::F32, Cow::from(bytes)),
            "F16" => (DType::F16, Cow::from(bytes)),
            "BF16" => (DType::BF16, Cow::from(bytes)),
            // Static embedding models: quantized numbers, and row indices that map tokens to shared
            // rows.
            "I8" => (DType::F32, widened(bytes, |[b]: [u8; 1]| f32::from(i8::from_le_bytes([b])))),
            "I32" => (DType::F32, widened(bytes, |b: [u8; 4]| i32::from_le_bytes(b) as f32)),
            "I64" => (DType::F32, widened(bytes, |b: [u8; 8]| i64::from_le_bytes(b) as f32)),
            "F64" => (DType::F32, widened(bytes, |b: [u8; 8]| f64::from_le_bytes(b) as f32)),
            other => {
                let what = format!("is stored as {other}; supported are F32, F16, BF16, F64, I8, I32 and I64");
                return Err(sconce_ops::Error::Weight { name: name.into(), what });
            }
        };
        let bytes = match dims[..] {
            [rows, columns] if *column_major => Cow::from(transposed(&bytes, rows, columns, dtype.size())),
            _ => bytes,
        };
        Ok(Some(Raw { stored: Stored::Float(dtype), dims: dims.clone(), bytes }))
    }

    fn names(&self) -> Vec<String> {
        self.entries.keys().cloned().collect()
    }

    fn file(&self, name: &str) -> Option<Mapped> {
        Some(self.maps[self.entries.get(name)?.map].clone())
    }

    fn taken(&self, name: &str) {
        if let Some(entry) = self.entries.get(name) {
            release_pages(&self.maps[entry.map], &entry.bytes);
        }
    }
}

/// Bytes that the kernel maps around a page fault (fault-around). They may belong to an adjacent
/// tensor whose pages were released before.
const FAULT_AROUND: usize = 64 << 10;

/// Tells the system that pages of a mapped file are unlikely to be read again; the weights have
/// been copied elsewhere.
pub(super) fn release_pages(map: &Mmap, bytes: &Range<usize>) {
    let (start, end) =
        (bytes.start.saturating_sub(FAULT_AROUND), bytes.end.saturating_add(FAULT_AROUND).min(map.len()));
    #[cfg(unix)]
    // SAFETY: the map is read-only and backed by a file: dropped pages are read from the file
    // again.
    let _ = unsafe { map.unchecked_advise_range(memmap2::UncheckedAdvice::DontNeed, start, end - start) };
    #[cfg(not(unix))]
    let _ = (start, end);
}

/// Returns freed memory of the allocator to the system. Reading a vocabulary frees more memory than
/// it keeps, in pieces too small for any weight.
pub fn trim_allocator() {
    #[cfg(all(target_os = "linux", target_env = "gnu"))]
    {
        unsafe extern "C" {
            safe fn malloc_trim(pad: usize) -> i32;
        }
        malloc_trim(0);
    }
}

/// Converts to f32. Integers up to 2²⁴ stay exact.
fn widened<const N: usize>(bytes: &[u8], from: impl Fn([u8; N]) -> f32) -> Cow<'_, [u8]> {
    let (chunks, _) = bytes.as_chunks::<N>();
    Cow::from(chunks.iter().flat_map(|b| from(*b).to_le_bytes()).collect::<Vec<u8>>())
}

/// Converts a column-major matrix to row-major.
fn transposed(bytes: &[u8], rows: usize, columns: usize, size: usize) -> Vec<u8> {
    let at = |i: usize| (i % columns * rows + i / columns) * size;
    (0..rows * columns).flat_map(|i| &bytes[at(i)..at(i) + size]).copied().collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn transposed_matrix_is_read_row_major() {
        let dir = tempfile::tempdir().unwrap();
        let saved = concat!(env!("CARGO_MANIFEST_DIR"), "/src/torch/goldens/transposed.pt");
        std::fs::copy(saved, dir.path().join("pytorch_model.bin")).unwrap();
        let checkpoint = Checkpoint::open(dir.path()).unwrap();
        let raw = checkpoint.get("turned").unwrap().unwrap();
        let values: Vec<f32> = raw.bytes.as_chunks::<4>().0.iter().map(|b| f32::from_le_bytes(*b)).collect();
        assert_eq!((&raw.dims[..], &values[..]), (&[3, 2][..], &[-2.0, 0.25, -1.25, 1.0, -0.5, 1.75][..]));
    }
}
