//! Configuration and weights of a model, from a transformers directory or a GGUF file.

use super::checkpoint::release_pages;
use super::gguf::{self, Gguf};
use super::{Checkpoint, json};
use crate::{FileError, Result};
use sconce_ops::{DType, Mapped, Quant, Raw, Store, Stored};
use serde_json::Value;
use std::path::{Path, PathBuf};
use std::sync::Arc;

/// The configuration of a GLiNER model.
pub const GLINER_CONFIG: &str = "gliner_config.json";

/// The opened files of a model.
pub struct Model {
    /// The folder or file.
    pub root: PathBuf,
    /// The content of `config.json`, or its equivalent for GGUF.
    pub config: Value,
    /// Its weights.
    pub store: Arc<dyn Store>,
    /// The GGUF file, if it is one.
    pub gguf: Option<Arc<Gguf>>,
}

/// Whether a model's root is a GGUF file rather than a folder.
pub fn is_gguf(root: &Path) -> bool {
    root.extension().is_some_and(|e| e.eq_ignore_ascii_case("gguf")) && root.is_file()
}

impl Model {
    /// Opens the model in `root`: a folder, or a GGUF file (the first of several parts, which finds
    /// the others).
    pub fn open(root: &Path) -> Result<Model> {
        if is_gguf(root) {
            let gguf = Arc::new(Gguf::open(&[root.to_path_buf()])?);
            return Ok(Model { root: root.into(), config: gguf.config()?, store: gguf.clone(), gguf: Some(gguf) });
        }
        // GLiNER has its own, which contains the encoder's.
        let gliner = root.join(GLINER_CONFIG);
        let path = if gliner.exists() { gliner } else { root.join("config.json") };
        // Static embedding models have only a table and a tokenizer.
        let config = if path.exists() { json(&path)? } else { serde_json::json!({"model_type": "model2vec"}) };
        // Later code inserts keys into it.
        if !Value::is_object(&config) {
            return Err(FileError::new(&path, "not an object, as the configuration of a model is; fetch it again"));
        }
        Ok(Model { root: root.into(), config, store: Arc::new(Checkpoint::open(root)?), gguf: None })
    }
}

/// The storage format of a ggml type number.
fn stored(name: &str, kind: u32) -> sconce_ops::Result<Stored> {
    match (kind, Quant::from_ggml(kind)) {
        (0, _) => Ok(Stored::Float(DType::F32)),
        (1, _) => Ok(Stored::Float(DType::F16)),
        (30, _) => Ok(Stored::Float(DType::BF16)),
        (_, Some(quant)) => Ok(Stored::Blocks(quant)),
        (other, None) => {
            let format = gguf::kind_name(other).map_or_else(|| format!("type {other}"), str::to_owned);
            let what =
                format!("is stored as {format}, which is not supported; use a GGUF file in another quantization");
            Err(sconce_ops::Error::Weight { name: name.into(), what })
        }
    }
}

impl Store for Gguf {
    fn get(&self, name: &str) -> sconce_ops::Result<Option<Raw<'_>>> {
        let Some(tensor) = self.tensor(name) else { return Ok(None) };
        Ok(Some(Raw { stored: stored(name, tensor.kind)?, dims: tensor.dims, bytes: tensor.bytes }))
    }

    fn shape(&self, name: &str) -> sconce_ops::Result<Option<(Stored, Vec<usize>)>> {
        let Some((kind, dims)) = Gguf::shape(self, name) else { return Ok(None) };
        Ok(Some((stored(name, kind)?, dims.to_vec())))
    }

    fn names(&self) -> Vec<String> {
        Gguf::names(self)
    }

    fn file(&self, name: &str) -> Option<Mapped> {
        self.mapped(name).map(|(map, _)| -> Mapped { map.clone() })
    }

    fn taken(&self, name: &str) {
        if let Some((map, bytes)) = self.mapped(name) {
            release_pages(map, &bytes);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn config_json_must_be_an_object() {
        let dir = tempfile::tempdir().unwrap();
        for text in ["[]", "null", "3", "\"llama\"", "[{\"model_type\": \"llama\"}]"] {
            std::fs::write(dir.path().join("config.json"), text).unwrap();
            let error = Model::open(dir.path()).err().unwrap().to_string();
            assert!(error.contains("config.json") && error.contains("object"), "{error}");
        }
    }
}
