//! A loaded model, and the kinds of requests that models support.

use crate::error::{Fault, FaultKind};
use sconce_engine::{Task, TaskModel};
use std::time::SystemTime;

/// What a request needs from a model.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum RequestKind {
    /// One embedding per text.
    Embed,
    /// One embedding per image.
    EmbedImage,
    /// One embedding per token (multi-vector, ColBERT).
    EmbedAll,
    /// Sparse embeddings: weights over the vocabulary (SPLADE).
    Sparse,
    /// Text classification.
    Classify,
    /// Reranking.
    Rerank,
    /// Token classification (NER).
    Tag,
    /// Scores of pairs of texts, by a reranker or the similarity of embeddings.
    Score,
    /// What a model makes of whole inputs or their tokens: embeddings or classes.
    Pool,
    /// Text generation, causal or sequence-to-sequence.
    Generate,
    /// Tokenization, which every model supports.
    Tokenize,
}

impl RequestKind {
    /// Whether models of `task` support it.
    pub fn fits(self, task: Task) -> bool {
        match self {
            RequestKind::Embed => matches!(task, Task::Embed | Task::M3 | Task::Clip),
            RequestKind::EmbedImage => matches!(task, Task::Clip),
            RequestKind::EmbedAll => matches!(task, Task::Embed | Task::Multi | Task::M3),
            RequestKind::Sparse => matches!(task, Task::Sparse | Task::M3),
            RequestKind::Classify => matches!(task, Task::Classify),
            RequestKind::Rerank => matches!(task, Task::Rerank),
            RequestKind::Tag => matches!(task, Task::Tag | Task::Gliner),
            RequestKind::Score => {
                RequestKind::Rerank.fits(task) || RequestKind::Embed.fits(task) || task == Task::Multi
            }
            RequestKind::Pool => RequestKind::EmbedAll.fits(task) || matches!(task, Task::Clip | Task::Classify),
            RequestKind::Generate => matches!(task, Task::Generate | Task::Seq2Seq),
            RequestKind::Tokenize => true,
        }
    }

    /// Ends the sentence "no model on this server …".
    pub(crate) fn description(self) -> &'static str {
        match self {
            RequestKind::Embed => "embeds texts",
            RequestKind::EmbedImage => "embeds images",
            RequestKind::EmbedAll => "embeds tokens (multi-vector)",
            RequestKind::Sparse => "makes sparse embeddings",
            RequestKind::Classify => "classifies texts",
            RequestKind::Rerank => "reranks documents",
            RequestKind::Tag => "classifies tokens",
            RequestKind::Score => "scores pairs of texts",
            RequestKind::Pool => "embeds or classifies",
            RequestKind::Generate => "generates text",
            RequestKind::Tokenize => "tokenizes",
        }
    }
}

/// A loaded model.
pub struct ServedModel {
    /// The model's name in requests.
    pub id: String,
    /// The task it is loaded for.
    pub task: Task,
    /// The model.
    pub model: TaskModel,
    /// Number of its layers, if its weights are in layers.
    pub layers: Option<u64>,
    /// When loading finished.
    pub created: SystemTime,
    /// Its share of the memory budget, released with it.
    pub(crate) reservation: crate::model_manager::Reservation,
}

impl ServedModel {
    /// When loading finished, in seconds since 1970.
    pub fn created_seconds(&self) -> u64 {
        self.created.duration_since(SystemTime::UNIX_EPOCH).map_or(0, |d| d.as_secs())
    }

    /// Planned bytes.
    pub fn bytes(&self) -> u64 {
        self.reservation.bytes()
    }

    /// The error for a request that this model does not support.
    pub fn unsupported(&self, kind: RequestKind) -> Fault {
        let what = format!(
            "the model `{}` is loaded for the task `{}`; it is not a model that {}",
            self.id,
            self.task,
            kind.description()
        );
        Fault::new(FaultKind::UnsupportedTask, what).at("model")
    }
}
