//! Facts about a model's files. Each task decides by them whether it supports the model.

use super::router::Router;
use super::sentence_transformers::Entry;
use crate::error::Result;
use sconce_formats::gguf::Pooling;
use sconce_formats::{GLINER_CONFIG, Model, is_gguf, optional_json};
use serde_json::Value;
use std::path::Path;

/// The file names of bge-m3's two projections.
pub(crate) const M3_SPARSE: &str = "sparse_linear";
pub(crate) const M3_MULTI_VECTOR: &str = "colbert_linear";

/// Facts about a model's files.
pub(crate) struct FileFacts {
    /// `config.json`, or its equivalent from a GGUF file.
    pub(crate) config: Value,
    /// The pooling that a GGUF file declares.
    pub(crate) pooling: Option<Pooling>,
    /// Whether bge-m3's projections are present.
    pub(crate) has_m3: bool,
    /// Whether the model is a GLiNER, whose configuration has a name of its own.
    pub(crate) is_gliner: bool,
    modules: Vec<Entry>,
}

impl FileFacts {
    /// Reads the files in `root`, a folder or a GGUF file.
    pub(crate) fn read(root: &Path) -> Result<FileFacts> {
        if is_gguf(root) {
            let Model { config, gguf, .. } = Model::open(root)?;
            let pooling = gguf.map_or(Ok(None), |gguf| gguf.pooling())?;
            return Ok(FileFacts { config, pooling, has_m3: false, is_gliner: false, modules: Vec::new() });
        }
        let gliner = optional_json(&root.join(GLINER_CONFIG))?;
        let is_gliner = gliner.is_some();
        let config = match gliner {
            Some(config) => config,
            None => optional_json(&root.join("config.json"))?.unwrap_or_default(),
        };
        let mut modules: Vec<Entry> = optional_json(&root.join("modules.json"))?.unwrap_or_default();
        let router = match modules.iter().find(|entry| Router::is_router(entry)) {
            Some(entry) => Some(Router::read(entry, root)?),
            None => None,
        };
        modules.extend(router.into_iter().flat_map(Router::into_entries));
        Ok(FileFacts { config, pooling: None, has_m3: has_m3(root), is_gliner, modules })
    }

    /// The class that transformers runs the model with.
    pub(crate) fn class(&self) -> &str {
        self.config.pointer("/architectures/0").and_then(Value::as_str).unwrap_or_default()
    }

    /// The family of architectures.
    pub(crate) fn model_type(&self) -> &str {
        self.config.get("model_type").and_then(Value::as_str).unwrap_or_default()
    }

    /// Whether `modules.json` names a module of this class.
    pub(crate) fn has_module(&self, class: &str) -> bool {
        self.modules.iter().any(|m| m.class() == class)
    }

    /// Whether the model has a sequence classification head: labels, or one score.
    pub(crate) fn is_sequence_classifier(&self) -> bool {
        self.pooling == Some(Pooling::Rank) || self.class().ends_with("ForSequenceClassification")
    }

    /// Whether a GGUF file declares a pooling for embeddings.
    pub(crate) fn is_gguf_embedder(&self) -> bool {
        matches!(self.pooling, Some(Pooling::Mean | Pooling::Cls | Pooling::Last))
    }
}

/// Whether a folder has a bge-m3 model.
pub(crate) fn has_m3(dir: &Path) -> bool {
    [M3_SPARSE, M3_MULTI_VECTOR]
        .iter()
        .all(|name| ["pt", "safetensors"].iter().any(|end| dir.join(format!("{name}.{end}")).exists()))
}
