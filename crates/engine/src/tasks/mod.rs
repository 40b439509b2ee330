//! The public API, one file per task.

mod chunks;
mod classify;
mod clip;
mod embed;
#[cfg(test)]
mod example;
mod family;
mod gliner;
mod llm;
mod llm_continue;
mod llm_tools;
mod m3;
mod multi_vector;
mod quantize;
mod rerank;
mod seq2seq;
mod sparse;
mod static_sparse;
mod tag;
mod tokenizer;

pub use chunks::{Chunk, ChunkEmbeddings, ChunkOptions};
pub use classify::{Classifier, Label, Scores};
pub use clip::Clip;
pub use embed::{EmbedOptions, Embedder, Embeddings};
pub use family::family_tasks;
pub use gliner::{Gliner, GlinerOptions};
pub use llm::{ChatOptions, Llm, PromptEnd, Token};
pub use m3::{M3, M3Embedding};
pub use multi_vector::{MultiVector, MultiVectorEncoder};
pub use quantize::{Precision, Quantized, Ranges};
pub use rerank::{RankOptions, RankPooling, Ranked, Ranking, Reranker};
pub use seq2seq::{Answers, Seq2Seq, Seq2SeqAnswer, Seq2SeqOptions, Seq2SeqStream};
pub use sparse::{SparseEncoder, SparseVector};
pub use tag::{TagOptions, Tagger, TokenScores};
pub use tokenizer::load_tokenizer;

use crate::config::FileFacts;
use crate::dtype;
use crate::error::{Error, Result};
use crate::options::LoadOptions;
use crate::plan::Plan;
use crate::runtime::Loaded;
use sconce_formats::Model;
use sconce_hub::{self as hub, Files, Progress, Reference};
use sconce_models::{Family, GLINER, model_type};
use sconce_ops::Device;
use std::fmt;
use std::path::Path;
use std::str::FromStr;

/// The interface between a task and the engine.
pub(crate) trait TaskType: Loaded + Sized {
    /// Whether the files are of a model for this task.
    fn serves(facts: &FileFacts) -> bool;
    /// Whether the task can use the files although they are made for another.
    fn also_reads(_: &FileFacts) -> bool {
        false
    }
    /// Plans the model without loading it, on a device that need not be in this machine.
    fn plan_files(files: &Files, device: Device, options: &LoadOptions) -> Result<Plan>;
    /// Plans, loads and checks the model.
    fn load_files(files: &Files, options: &LoadOptions, progress: &dyn Progress) -> Result<Self>;

    /// Refuses files that are made for another task, and says which command reads them.
    fn check_files(files: &Files) -> Result<()> {
        let facts = FileFacts::read(files.root())?;
        if Self::serves(&facts) || Self::also_reads(&facts) {
            return Ok(());
        }
        match Task::made_for(&facts) {
            None if facts.class().is_empty() => Ok(()),
            made_for => {
                let task = made_for.unwrap_or(Task::Embed);
                let what = format!("this is a model for {task}; run `sconce {}`", task.command());
                Err(Error::file(files.root(), what))
            }
        }
    }
}

/// Finds the files of a model and loads them for a task.
fn load<T: TaskType>(reference: &Reference, options: &LoadOptions, progress: &dyn Progress) -> Result<T> {
    let files = hub::resolve(reference, &options.hub_options(), progress)?;
    T::check_files(&files)?;
    T::load_files(&files, options, progress)
}

macro_rules! tasks {
    ($($(#[cfg($cfg:meta)])? $task:ident($model:ty) = $name:literal, $doc:literal;)*) => {
        /// What a model is for.
        #[derive(Clone, Copy, Debug, PartialEq, Eq)]
        pub enum Task {
            $($(#[cfg($cfg)])? #[doc = $doc] $task,)*
        }

        /// A loaded model of any task.
        pub enum TaskModel {
            $($(#[cfg($cfg)])? #[doc = $doc] $task($model),)*
        }

        impl Task {
            /// Every task. Files that fit several tasks are detected as the first of them.
            pub const ALL: &[Task] = &[$($(#[cfg($cfg)])? Task::$task,)*];

            /// The name in `--task` and in requests.
            pub fn name(self) -> &'static str {
                match self {
                    $($(#[cfg($cfg)])? Task::$task => $name,)*
                }
            }

            fn serves(self, facts: &FileFacts) -> bool {
                match self {
                    $($(#[cfg($cfg)])? Task::$task => <$model>::serves(facts),)*
                }
            }

            /// Plans a model for this task without loading it, on a device that need not be in this
            /// machine.
            pub fn plan(self, files: &Files, device: Device, options: &LoadOptions) -> Result<Plan> {
                match self {
                    $($(#[cfg($cfg)])? Task::$task => {
                        <$model>::check_files(files)?;
                        <$model>::plan_files(files, device, options)
                    })*
                }
            }

            /// Plans, loads and checks a model for this task.
            pub fn load(self, files: &Files, options: &LoadOptions, progress: &dyn Progress) -> Result<TaskModel> {
                match self {
                    $($(#[cfg($cfg)])? Task::$task => {
                        <$model>::check_files(files)?;
                        <$model>::load_files(files, options, progress).map(TaskModel::$task)
                    })*
                }
            }
        }

        impl TaskModel {
            /// The model behind the interface that all tasks share.
            pub fn loaded(&self) -> &dyn Loaded {
                match self {
                    $($(#[cfg($cfg)])? TaskModel::$task(model) => model,)*
                }
            }
        }
    };
}

tasks! {
    M3(M3) = "m3", "bge-m3: dense, sparse and multi-vector embeddings from one pass.";
    Clip(Clip) = "clip", "Embeddings of texts and images in one space (CLIP, SigLIP).";
    Gliner(Gliner) = "gliner", "Entities of the labels that a request gives (GLiNER).";
    Sparse(SparseEncoder) = "sparse", "Sparse embeddings: weights over the vocabulary (SPLADE).";
    Embed(Embedder) = "embed", "An embedding of each text.";
    Multi(MultiVectorEncoder) = "multi", "An embedding of each token (ColBERT).";
    Rerank(Reranker) = "rerank", "One score of a query and a document.";
    Classify(Classifier) = "classify", "Labels of a text or a pair.";
    Tag(Tagger) = "tag", "A label of each token.";
    Seq2Seq(Seq2Seq) = "seq2seq", "Text from text, by a model with an encoder and a decoder (T5).";
    Generate(Llm) = "generate", "Text that continues a text, by a language model.";
    #[cfg(test)]
    Norms(example::Norms) = "norms", "The worked example of CONTRIBUTING.md.";
}

impl Task {
    /// The task that the files in `root`, a folder or a GGUF file, are made for.
    pub fn detect(root: &Path) -> Result<Task> {
        // An encoder without a head and without pooling settings is used for embeddings.
        Ok(Task::made_for(&FileFacts::read(root)?).unwrap_or(Task::Embed))
    }

    fn made_for(facts: &FileFacts) -> Option<Task> {
        Task::ALL.iter().copied().find(|task| task.serves(facts))
    }

    /// The command that runs the task.
    fn command(self) -> &'static str {
        match self {
            Task::Sparse => "embed --sparse",
            Task::Multi => "embed --multi",
            Task::M3 => "embed --sparse --multi",
            Task::Gliner => "tag --labels LABELS",
            Task::Seq2Seq => "generate",
            task => task.name(),
        }
    }
}

impl fmt::Display for Task {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(self.name())
    }
}

impl FromStr for Task {
    type Err = Error;
    fn from_str(s: &str) -> Result<Self> {
        let known = || Task::ALL.iter().map(|task| task.name()).collect::<Vec<_>>().join(", ");
        let found = Task::ALL.iter().copied().find(|task| task.name() == s);
        found.ok_or_else(|| Error::Input(format!("unknown task `{s}`; use one of {}", known())))
    }
}

/// What a model's files say about it.
#[derive(Clone, Debug)]
#[non_exhaustive]
pub struct ModelDescription {
    /// The task that it is made for.
    pub task: Task,
    /// The command that runs it, without `sconce`.
    pub command: &'static str,
    /// The family of architectures, `model_type` in config.json.
    pub architecture: String,
    /// Its family of models.
    pub family: Option<&'static Family>,
    /// The format of its matrices.
    pub stored: Option<String>,
}

impl ModelDescription {
    /// Reads headers and configuration, no weights.
    pub fn read(files: &Files) -> Result<ModelDescription> {
        let facts = FileFacts::read(files.root())?;
        let task = Task::made_for(&facts).unwrap_or(Task::Embed);
        let stored = Model::open(files.root()).map_err(Error::from).and_then(|model| dtype::stored(&model));
        let architecture = if facts.is_gliner { GLINER } else { facts.model_type() };
        Ok(ModelDescription {
            task,
            command: task.command(),
            architecture: architecture.to_owned(),
            family: match model_type(&facts.config) {
                _ if facts.is_gliner => Family::of(GLINER),
                Some(kind) => Family::of(kind),
                // A static model of sentence-transformers has no config.json.
                None => facts.has_module("StaticEmbedding").then(|| Family::of("model2vec")).flatten(),
            },
            // The weights of a model in several parts are in folders below.
            stored: stored.ok().flatten().map(|stored| stored.to_string()),
        })
    }
}

/// Whether a device can run a model, from its plan.
#[derive(Clone, Debug)]
pub struct Support {
    /// The task that the model was planned for.
    pub task: Task,
    /// The plan.
    pub plan: Plan,
    /// The reasons why not: refused ops or too little memory. Empty if the device can.
    pub refusals: Vec<String>,
}

impl Support {
    /// Whether the device can run the model.
    pub fn is_full(&self) -> bool {
        self.refusals.is_empty()
    }
}

/// Whether `device` can run a model for its detected task. Memory counts only if the device is in
/// this machine.
pub fn supports(device: Device, files: &Files, options: &LoadOptions) -> Result<Support> {
    let task = Task::detect(files.root())?;
    let plan = task.plan(files, device, options)?;
    let mut refusals = plan.refusals();
    refusals.extend(plan.check_engine().err().map(|e| e.to_string()));
    // What a graph leaves to us runs on the CPU, whatever its provider is.
    let device = if plan.graph.is_some() { plan.device } else { device };
    match device.info() {
        Ok(info) if refusals.is_empty() => refusals.extend(plan.check(info.free_bytes).err().map(|e| e.to_string())),
        Ok(_) => {}
        Err(e) => refusals.push(e.to_string()),
    }
    Ok(Support { task, plan, refusals })
}
