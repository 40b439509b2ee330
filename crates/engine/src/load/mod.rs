//! Reading a model's files. All of them are untrusted: sizes are bounded, shapes are checked, nothing is run.

mod checkpoint;
pub(crate) mod gguf;
mod model;
mod torch;

pub use checkpoint::Checkpoint;
pub(crate) use checkpoint::tidy;
pub(crate) use model::{Model, is_gguf};

use crate::{Error, Result};
use sconce_ops::Store;
use serde::de::DeserializeOwned;
use std::fs::File;
use std::io::Read;
use std::path::Path;
use std::sync::Arc;

/// The configuration and the weights in `root`, a folder or a GGUF file, for who builds the model from them by hand: benchmarks.
pub fn files(root: &Path) -> Result<(serde_json::Value, Arc<dyn Store>)> {
    let Model { config, store, .. } = Model::open(root)?;
    Ok((config, store))
}

/// A configuration is a few kilobytes; what is larger than this is something else.
const LARGEST_CONFIG: u64 = 16 << 20;

/// A JSON file.
pub(crate) fn json<T: DeserializeOwned>(path: &Path) -> Result<T> {
    let bytes = bytes(path, LARGEST_CONFIG)?;
    serde_json::from_slice(&bytes).map_err(|e| Error::file(path, format!("not the JSON that was expected: {e}")))
}

/// A JSON file that need not be there.
pub(crate) fn optional_json<T: DeserializeOwned>(path: &Path) -> Result<Option<T>> {
    path.exists().then(|| json(path)).transpose()
}

/// A whole file, unless it is larger than `most`.
pub(crate) fn bytes(path: &Path, most: u64) -> Result<Vec<u8>> {
    let read = || -> std::io::Result<Vec<u8>> {
        let mut bytes = Vec::new();
        File::open(path)?.take(most + 1).read_to_end(&mut bytes)?;
        Ok(bytes)
    };
    let bytes = read().map_err(|e| Error::file(path, e))?;
    if bytes.len() as u64 > most {
        return Err(Error::file(path, format!("larger than {most} bytes")));
    }
    Ok(bytes)
}
