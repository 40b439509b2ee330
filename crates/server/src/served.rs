//! A model that is loaded, and what can be asked of it.

use crate::error::{Fault, FaultKind};
use sconce_engine::{Task, TaskModel};
use std::time::SystemTime;

/// What a request wants of a model.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Want {
    /// A vector a text.
    Embed,
    /// A vector an image.
    See,
    /// A vector a token.
    EmbedAll,
    /// Weights over the vocabulary.
    Sparse,
    /// Labels.
    Classify,
    /// An order of documents.
    Rerank,
    /// Labels of tokens.
    Tag,
    /// A text that goes on, or another one.
    Generate,
    /// Tokens: any model has them.
    Tokens,
}

impl Want {
    /// Whether models of a task can do it.
    pub fn fits(self, task: Task) -> bool {
        match self {
            Want::Embed => matches!(task, Task::Embed | Task::M3 | Task::Clip),
            Want::See => matches!(task, Task::Clip),
            Want::EmbedAll => matches!(task, Task::Embed | Task::Multi | Task::M3),
            Want::Sparse => matches!(task, Task::Sparse | Task::M3),
            Want::Classify => matches!(task, Task::Classify),
            Want::Rerank => matches!(task, Task::Rerank),
            Want::Tag => matches!(task, Task::Tag),
            Want::Generate => matches!(task, Task::Generate | Task::Seq2Seq),
            Want::Tokens => true,
        }
    }

    /// What it is, in words that end "no model here …".
    pub(crate) fn words(self) -> &'static str {
        match self {
            Want::Embed => "gives a vector a text",
            Want::See => "gives a vector an image",
            Want::EmbedAll => "gives a vector a token",
            Want::Sparse => "gives weights over its vocabulary",
            Want::Classify => "gives labels",
            Want::Rerank => "ranks documents",
            Want::Tag => "labels tokens",
            Want::Generate => "writes texts",
            Want::Tokens => "has tokens",
        }
    }
}

/// A model that is loaded.
pub struct Served {
    /// Its name in requests.
    pub id: String,
    /// What it is loaded for.
    pub task: Task,
    /// The model.
    pub model: TaskModel,
    /// When it was loaded.
    pub created: SystemTime,
    /// Its part of the memory budget, given back with it.
    pub(crate) room: crate::house::Room,
}

impl Served {
    /// Seconds since 1970 when it was loaded.
    pub fn created_seconds(&self) -> u64 {
        self.created.duration_since(SystemTime::UNIX_EPOCH).map_or(0, |d| d.as_secs())
    }

    /// What was planned for it.
    pub fn bytes(&self) -> u64 {
        self.room.bytes()
    }

    /// What a request gets that wants something else of it.
    pub fn unfit(&self, want: Want) -> Fault {
        let what = format!("the model `{}` is for the task `{}`, and none that {}", self.id, self.task, want.words());
        Fault::new(FaultKind::Unfit, what).at("model")
    }
}
