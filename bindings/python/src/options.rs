//! Options for loading a model, as Python passes them.

use sconce_engine::hub::{Reference, Token};
use sconce_engine::{Error, KvCacheFormat, LoadOptions, Result};
use sconce_onnx::OnnxRuntime;
use serde::Deserialize;
use std::path::PathBuf;
use std::sync::Arc;

/// The options of `sconce.models.LoadOptions`, a JSON object.
#[derive(Default, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub(crate) struct Options {
    device: Option<String>,
    fallback: bool,
    allow_host: bool,
    dtype: Option<String>,
    batch_tokens: Option<usize>,
    cache_folder: Option<PathBuf>,
    local_files_only: bool,
    token: Option<String>,
    revision: Option<String>,
    context: Option<usize>,
    cache_tokens: Option<usize>,
    cache_format: Option<String>,
    sequences: Option<usize>,
    max_input_tokens: Option<usize>,
    max_output_tokens: Option<usize>,
    engine: Option<String>,
    onnx_file: Option<String>,
    batch_dependent: bool,
    onnx_library: Option<PathBuf>,
}

impl Options {
    /// The model that `name` and the revision refer to.
    pub(crate) fn reference(&self, name: &str) -> Result<Reference> {
        let mut reference: Reference = name.parse()?;
        if let Some(wanted) = &self.revision {
            reference = match &reference {
                Reference::Hub { revision: None, .. } => format!("{name}@{wanted}").parse()?,
                Reference::Short(short) => format!("{}@{wanted}", short.repo).parse()?,
                _ => {
                    let what = format!("`{name}` takes no revision; only models of the hub do");
                    return Err(Error::Input(what));
                }
            };
        }
        Ok(reference)
    }

    /// The engine's options.
    pub(crate) fn load_options(&self) -> Result<LoadOptions> {
        let mut options = LoadOptions::from_env()?;
        if let Some(device) = &self.device {
            options.device = device.parse()?;
        }
        if let Some(dtype) = &self.dtype {
            options.dtype = dtype.parse()?;
        }
        (options.fallback, options.policy.allow_host) = (self.fallback, self.allow_host);
        options.batch_tokens = self.batch_tokens;
        options.hub.offline |= self.local_files_only;
        if let Some(folder) = &self.cache_folder {
            options.hub.hub_cache.clone_from(folder);
        }
        if let Some(token) = &self.token {
            options.hub.token = Token::new(token);
        }
        let cache_format: Option<KvCacheFormat> = self.cache_format.as_ref().map(|f| f.parse()).transpose()?;
        options.llm = options.llm.with_context(self.context).with_cache_tokens(self.cache_tokens);
        options.llm = options.llm.with_cache_format(cache_format);
        options.seq2seq = options.seq2seq.with_input(self.max_input_tokens).with_cache_format(cache_format);
        if let Some(sequences) = self.sequences {
            options.llm.sequences = sequences;
            options.seq2seq.sequences = sequences;
        }
        if let Some(output) = self.max_output_tokens {
            options.seq2seq.output = output;
        }
        let runtime = OnnxRuntime { library: self.onnx_library.clone() };
        options.graph = sconce_onnx::options().with_runtime(Some(Arc::new(runtime)));
        options.graph.engine = self.engine.as_ref().map_or(Ok(Default::default()), |engine| engine.parse())?;
        options.graph.file.clone_from(&self.onnx_file);
        options.graph.batch_dependent = self.batch_dependent;
        Ok(options)
    }
}
