//! The public API, one file for each task.

mod classify;
mod clip;
mod embed;
#[cfg(test)]
mod example;
mod llm;
mod m3;
mod multi_vector;
mod quantize;
mod rerank;
mod seq2seq;
mod sparse;
mod tag;

pub use classify::{Classifier, Label, Representation, Scores};
pub use clip::Clip;
pub use embed::{EmbedOptions, Embedder, Embeddings};
pub use llm::{ChatOptions, Llm, Token};
pub use m3::{M3, M3Embedding};
pub use multi_vector::{MultiVector, MultiVectorEncoder};
pub use quantize::{Precision, Quantized, Ranges};
pub use rerank::{RankOptions, Ranked, Ranking, Reranker};
pub use seq2seq::{Answers, Seq2Seq, Seq2SeqAnswer, Seq2SeqOptions, Seq2SeqStream};
pub use sparse::{SparseEncoder, SparseVector};
pub use tag::Tagger;

use crate::config::FileFacts;
use crate::error::{Error, Result};
use crate::options::LoadOptions;
use crate::plan::Plan;
use crate::runtime::Loaded;
use sconce_hub::{self as hub, Files, Progress, Reference};
use sconce_ops::Device;
use std::fmt;
use std::path::Path;
use std::str::FromStr;

/// What the engine needs to know about a task's type.
pub(crate) trait TaskType: Loaded + Sized {
    /// Whether these files are made for this task.
    fn serves(facts: &FileFacts) -> bool;
    /// Plans the model without loading it, on a device that need not be in this machine.
    fn plan_files(files: &Files, device: Device, options: &LoadOptions) -> Result<Plan>;
    /// Plans, loads and checks the model.
    fn load_files(files: &Files, options: &LoadOptions, progress: &dyn Progress) -> Result<Self>;
}

/// Finds the files of a model and loads them for a task.
fn load<T: TaskType>(reference: &Reference, options: &LoadOptions, progress: &dyn Progress) -> Result<T> {
    T::load_files(&hub::resolve(reference, &options.hub, progress)?, options, progress)
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
            /// Every task. Files that several tasks could serve are for the first of these.
            pub const ALL: &[Task] = &[$($(#[cfg($cfg)])? Task::$task,)*];

            /// Its name, as `--task` and requests spell it.
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

            /// Plans a model for this task without loading it, on a device that need not be in this machine.
            pub fn plan(self, files: &Files, device: Device, options: &LoadOptions) -> Result<Plan> {
                match self {
                    $($(#[cfg($cfg)])? Task::$task => <$model>::plan_files(files, device, options),)*
                }
            }

            /// Plans, loads and checks a model for this task.
            pub fn load(self, files: &Files, options: &LoadOptions, progress: &dyn Progress) -> Result<TaskModel> {
                match self {
                    $($(#[cfg($cfg)])? Task::$task => {
                        <$model>::load_files(files, options, progress).map(TaskModel::$task)
                    })*
                }
            }
        }

        impl TaskModel {
            /// What every model can tell.
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
    /// What the files in `root`, a folder or a GGUF file, are made for.
    pub fn detect(root: &Path) -> Result<Task> {
        let facts = FileFacts::read(root)?;
        let found = Task::ALL.iter().copied().find(|task| task.serves(&facts));
        // An encoder without a head, and without a word on how its vectors are pooled.
        Ok(found.unwrap_or(Task::Embed))
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
        found.ok_or_else(|| Error::Input(format!("unknown task `{s}`; one of {}", known())))
    }
}

/// Whether a device runs a model, as its plan says.
#[derive(Clone, Debug)]
pub struct Support {
    /// What the model is for.
    pub task: Task,
    /// The plan that says it.
    pub plan: Plan,
    /// Why not, op by op or for want of memory; empty where it does.
    pub refusals: Vec<String>,
}

impl Support {
    /// Whether it does.
    pub fn is_full(&self) -> bool {
        self.refusals.is_empty()
    }
}

/// Whether `device` can run a model, for what its files are made for. Memory counts where the device is in this machine.
pub fn supports(device: Device, files: &Files, options: &LoadOptions) -> Result<Support> {
    let task = Task::detect(files.root())?;
    let plan = task.plan(files, device, options)?;
    let mut refusals = plan.refusals();
    match device.info() {
        Ok(info) if refusals.is_empty() => refusals.extend(plan.check(info.free_bytes).err().map(|e| e.to_string())),
        Ok(_) => {}
        Err(e) => refusals.push(e.to_string()),
    }
    Ok(Support { task, plan, refusals })
}
