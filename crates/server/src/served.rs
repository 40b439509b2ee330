//! A model that is loaded, and what can be asked of it.

use crate::error::{Fault, FaultKind};
use sconce_engine::hub::Progress;
use sconce_engine::{
    Classifier, Clip, Embedder, Error, Kind, Llm, LlmOptions, LoadOptions, Loaded, M3, Multi, Reranker, Result,
    Seq2Seq, Seq2SeqRoom, Sparse, Tagger,
};
use std::fmt;
use std::str::FromStr;
use std::time::SystemTime;

/// What a model is loaded as.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Role {
    /// What its files are made for.
    Of(Kind),
    /// One score of a query and a document.
    Rerank,
}

impl fmt::Display for Role {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Role::Of(kind) => kind.fmt(f),
            Role::Rerank => f.pad("rerank"),
        }
    }
}

impl FromStr for Role {
    type Err = Error;
    fn from_str(s: &str) -> Result<Role> {
        if s == "rerank" { Ok(Role::Rerank) } else { s.parse().map(Role::Of) }
    }
}

/// The model itself.
pub enum Task {
    /// A vector a text.
    Embed(Embedder),
    /// Labels of a text or a pair.
    Classify(Classifier),
    /// One score of a query and a document.
    Rerank(Reranker),
    /// A label a token.
    Tag(Tagger),
    /// Weights over the vocabulary.
    Sparse(Sparse),
    /// A vector a token.
    Multi(Multi),
    /// bge-m3's three at once.
    M3(M3),
    /// Texts and images in one space.
    Clip(Clip),
    /// A language model.
    Generate(Box<Llm>),
    /// Another text for a text.
    Seq2Seq(Seq2Seq),
}

impl Task {
    /// Finds the files, plans, loads and proves a model.
    pub(crate) fn load(
        role: Role,
        reference: &sconce_engine::hub::Reference,
        options: &LoadOptions,
        llm: &LlmOptions,
        progress: &dyn Progress,
    ) -> Result<Task> {
        Ok(match role {
            Role::Rerank => Task::Rerank(Reranker::load(reference, options, progress)?),
            Role::Of(kind) => match kind {
                Kind::Embed => Task::Embed(Embedder::load(reference, options, progress)?),
                Kind::Classify => Task::Classify(Classifier::load(reference, options, progress)?),
                Kind::Tag => Task::Tag(Tagger::load(reference, options, progress)?),
                Kind::Sparse => Task::Sparse(Sparse::load(reference, options, progress)?),
                Kind::Multi => Task::Multi(Multi::load(reference, options, progress)?),
                Kind::M3 => Task::M3(M3::load(reference, options, progress)?),
                Kind::Clip => Task::Clip(Clip::load(reference, options, progress)?),
                Kind::Generate => Task::Generate(Box::new(Llm::load(reference, options, llm, progress)?)),
                Kind::Seq2Seq => Task::Seq2Seq(Seq2Seq::load(reference, options, &Seq2SeqRoom::default(), progress)?),
            },
        })
    }

    /// What every model can tell.
    pub fn loaded(&self) -> &dyn Loaded {
        match self {
            Task::Embed(m) => m,
            Task::Classify(m) => m,
            Task::Rerank(m) => m,
            Task::Tag(m) => m,
            Task::Sparse(m) => m,
            Task::Multi(m) => m,
            Task::M3(m) => m,
            Task::Clip(m) => m,
            Task::Generate(m) => &**m,
            Task::Seq2Seq(m) => m,
        }
    }
}

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
    /// Whether a model can do it.
    pub fn fits(self, task: &Task) -> bool {
        match self {
            Want::Embed => matches!(task, Task::Embed(_) | Task::M3(_) | Task::Clip(_)),
            Want::See => matches!(task, Task::Clip(_)),
            Want::EmbedAll => matches!(task, Task::Embed(_) | Task::Multi(_) | Task::M3(_)),
            Want::Sparse => matches!(task, Task::Sparse(_) | Task::M3(_)),
            Want::Classify => matches!(task, Task::Classify(_)),
            Want::Rerank => matches!(task, Task::Rerank(_)),
            Want::Tag => matches!(task, Task::Tag(_)),
            Want::Generate => matches!(task, Task::Generate(_) | Task::Seq2Seq(_)),
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
    /// What it is loaded as.
    pub role: Role,
    /// The model.
    pub task: Task,
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
        let what = format!("the model `{}` is for the task `{}`, and none that {}", self.id, self.role, want.words());
        Fault::new(FaultKind::Unfit, what).at("model")
    }
}
