//! Runs ONNX models through ONNX Runtime behind the engine's tasks.
//!
//! ```no_run
//! use sconce_engine::{Embedder, EngineChoice, LoadOptions, Prompt};
//!
//! let mut options = LoadOptions::from_env()?;
//! options.graph = sconce_onnx::options().with_engine(EngineChoice::Onnx);
//! let embedder = Embedder::load(&"path/to/model".parse()?, &options, &())?;
//! let embeddings = embedder.embed(&["A man is eating food."], &Prompt::Default)?;
//! # Ok::<(), Box<dyn std::error::Error>>(())
//! ```
//!
//! ONNX Runtime is neither linked nor shipped: it is loaded from where the user installed it, when
//! the first model is opened.

mod batch;
mod files;
mod header;
mod inputs;
mod library;
mod nodes;
mod provider;
mod session;

pub use header::{External, Header, Port, parse};

use sconce_engine::{FileError, Graph, GraphOptions, GraphRuntime, GraphSettings, GraphSummary, Provider};
use std::path::{Path, PathBuf};
use std::sync::Arc;

/// ONNX Runtime, as the engine uses it.
#[derive(Clone, Debug, Default)]
pub struct OnnxRuntime {
    /// The library; `None`: the one that `ORT_DYLIB_PATH` names, else the first that is found. A
    /// process loads one library; a path that comes later has no effect.
    pub library: Option<PathBuf>,
}

/// Options that let the engine run ONNX models, for [`sconce_engine::LoadOptions::graph`]. Weights
/// that the engine can run itself take precedence until the options say otherwise.
pub fn options() -> GraphOptions {
    GraphOptions::default().with_runtime(Some(Arc::new(OnnxRuntime::default())))
}

impl GraphRuntime for OnnxRuntime {
    fn name(&self) -> &'static str {
        "ONNX Runtime"
    }

    fn finds(&self, root: &Path) -> bool {
        files::finds(root)
    }

    fn inspect(&self, root: &Path, file: Option<&str>) -> Result<GraphSummary, FileError> {
        files::inspect(root, file)
    }

    fn check(&self, provider: Provider) -> Result<(), String> {
        provider::check(provider, library::library(self.library.as_deref())?)
    }

    fn open(&self, summary: &GraphSummary, settings: &GraphSettings) -> Result<Box<dyn Graph>, String> {
        Ok(Box::new(session::OnnxGraph::open(self.library.as_deref(), summary, settings)?))
    }
}
