//! Reads small files into memory, up to a size limit.

use crate::{FileError, Result};
use serde::de::DeserializeOwned;
use std::fs::File;
use std::io::Read;
use std::path::Path;

/// A configuration has a few kilobytes; a larger file is something else.
const LARGEST_CONFIG: u64 = 16 << 20;

/// Reads a JSON file.
pub fn json<T: DeserializeOwned>(path: &Path) -> Result<T> {
    let bytes = bytes(path, LARGEST_CONFIG)?;
    serde_json::from_slice(&bytes).map_err(|e| FileError::new(path, format!("not the expected JSON: {e}")))
}

/// Reads a JSON file; `None` if it does not exist.
pub fn optional_json<T: DeserializeOwned>(path: &Path) -> Result<Option<T>> {
    path.exists().then(|| json(path)).transpose()
}

/// Reads a file; fails if it is larger than `max` bytes.
pub fn bytes(path: &Path, max: u64) -> Result<Vec<u8>> {
    let read = || -> std::io::Result<Vec<u8>> {
        let mut bytes = Vec::new();
        File::open(path)?.take(max + 1).read_to_end(&mut bytes)?;
        Ok(bytes)
    };
    let bytes = read().map_err(|e| FileError::new(path, e))?;
    if bytes.len() as u64 > max {
        return Err(FileError::new(path, format!("larger than {max} bytes")));
    }
    Ok(bytes)
}
