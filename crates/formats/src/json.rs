//! Small files, read whole and within a bound.

use crate::{FileError, Result};
use serde::de::DeserializeOwned;
use std::fs::File;
use std::io::Read;
use std::path::Path;

/// A configuration is a few kilobytes; what is larger than this is something else.
const LARGEST_CONFIG: u64 = 16 << 20;

/// A JSON file.
pub fn json<T: DeserializeOwned>(path: &Path) -> Result<T> {
    let bytes = bytes(path, LARGEST_CONFIG)?;
    serde_json::from_slice(&bytes).map_err(|e| FileError::new(path, format!("not the JSON that was expected: {e}")))
}

/// A JSON file that need not be there.
pub fn optional_json<T: DeserializeOwned>(path: &Path) -> Result<Option<T>> {
    path.exists().then(|| json(path)).transpose()
}

/// A whole file, unless it is larger than `most`.
pub fn bytes(path: &Path, most: u64) -> Result<Vec<u8>> {
    let read = || -> std::io::Result<Vec<u8>> {
        let mut bytes = Vec::new();
        File::open(path)?.take(most + 1).read_to_end(&mut bytes)?;
        Ok(bytes)
    };
    let bytes = read().map_err(|e| FileError::new(path, e))?;
    if bytes.len() as u64 > most {
        return Err(FileError::new(path, format!("larger than {most} bytes")));
    }
    Ok(bytes)
}
