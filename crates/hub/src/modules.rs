//! The parts of a model and the folders they lie in, as `modules.json` of sentence-transformers lists them. A model without
//! that file is one part: an encoder at the top.

use std::fs::File;
use std::io::Read;
use std::path::Path;

use serde::Deserialize;
use serde::de::{DeserializeOwned, IgnoredAny};

use super::HubError;
use super::error::disk;
use super::reference::is_safe_relative;

/// No configuration or index is as long as this; a file that is must be something else.
const JSON_LIMIT: u64 = 64 << 20;

/// One step of a model.
#[derive(Debug, Deserialize)]
pub(super) struct Module {
    /// Its folder; empty where its files lie at the top.
    #[serde(default)]
    pub(super) path: String,
    #[serde(rename = "type", default)]
    kind: String,
}

/// What a module's folder must hold.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Role {
    /// A transformers model: a configuration, weights and a tokenizer, whose form is for the tokenizer's reader to judge.
    Encoder,
    /// A table of vectors: weights and `tokenizer.json`. It has nothing to configure.
    Table,
    /// A layer: a configuration and weights.
    Dense,
    /// Nothing; and an empty folder does not survive git.
    Normalize,
    /// A configuration: poolings, masks and what we do not know.
    Other,
}

impl Module {
    /// The encoder of a model whose files lie at the top.
    pub(super) fn top() -> Self {
        Self { path: String::new(), kind: "Transformer".to_owned() }
    }

    pub(super) fn role(&self) -> Role {
        // The packages around a class have moved between releases; its own name has not.
        match self.kind.rsplit('.').next().unwrap_or_default() {
            "StaticEmbedding" => Role::Table,
            class if class.ends_with("Transformer") || class.ends_with("CLIPModel") => Role::Encoder,
            class if class.ends_with("Dense") => Role::Dense,
            class if class.ends_with("Normalize") => Role::Normalize,
            _ => Role::Other,
        }
    }

    /// Texts or images go in here.
    pub(super) fn is_model(&self) -> bool {
        matches!(self.role(), Role::Encoder | Role::Table)
    }

    /// A file of its folder, named from the top.
    pub(super) fn file(&self, base: &str) -> String {
        in_dir(&self.path, base)
    }
}

/// `folder/base`, or `base` where the folder is the top.
pub(super) fn in_dir(folder: &str, base: &str) -> String {
    if folder.is_empty() { base.to_owned() } else { format!("{folder}/{base}") }
}

/// All modules of the model in `dir`. Where none of them takes texts, the files at the top must.
pub(super) fn modules(dir: &Path) -> Result<Vec<Module>, HubError> {
    let file = dir.join("modules.json");
    let mut modules: Vec<Module> = if file.exists() { read_json(&file)? } else { Vec::new() };
    for module in &mut modules {
        match folder(&module.path) {
            Some(folder) => module.path = folder,
            None => {
                let why = format!("the module path {:?} leads outside", module.path);
                return Err(HubError::BadFile { file, why });
            }
        }
    }
    if !modules.iter().any(Module::is_model) {
        modules.insert(0, Module::top());
    }
    Ok(modules)
}

/// The folder that a module's path means, from the top; none if it lies elsewhere.
fn folder(path: &str) -> Option<String> {
    if ["", ".", "./"].contains(&path) {
        return Some(String::new());
    }
    let path = path.strip_prefix("./").unwrap_or(path).trim_end_matches('/');
    is_safe_relative(path).then(|| path.to_owned())
}

/// Files that change what the model computes, and which many models rightly lack. A cache that has neither the file nor
/// a word that the repository lacks it may be a half: Python's `AutoModel`, for one, never fetches `modules.json`, and
/// without it the pooling would be guessed.
pub(super) fn telling(dir: &Path, modules: &[Module]) -> Vec<String> {
    /// What of `config.json` says that another file has a say. A configuration that cannot be read is not judged here.
    #[derive(Default, Deserialize)]
    struct Config {
        #[serde(default)]
        architectures: Vec<String>,
        vision_config: Option<IgnoredAny>,
    }
    let mut telling = vec!["modules.json".to_owned(), "config_sentence_transformers.json".to_owned()];
    for module in modules.iter().filter(|module| module.role() == Role::Encoder) {
        let mut tell = |bases: &[&str]| telling.extend(bases.iter().map(|base| module.file(base)));
        tell(&["sentence_bert_config.json", "tokenizer.json", "tokenizer_config.json"]);
        let config: Config = read_json(&dir.join(module.file("config.json"))).unwrap_or_default();
        if config.vision_config.is_some() {
            tell(&["preprocessor_config.json", "processor_config.json"]);
        }
        let is_any = |end: &str| config.architectures.iter().any(|name| name.ends_with(end));
        if is_any("ForCausalLM") || is_any("ForConditionalGeneration") {
            tell(&["generation_config.json", "chat_template.jinja", "chat_template.json"]);
        }
        if config.architectures.iter().any(|name| name == "HF_ColBERT") {
            tell(&["artifact.metadata"]);
        }
    }
    telling
}

pub(super) fn read_json<T: DeserializeOwned>(file: &Path) -> Result<T, HubError> {
    let mut text = Vec::new();
    File::open(file).and_then(|open| open.take(JSON_LIMIT).read_to_end(&mut text)).map_err(disk("read", file))?;
    serde_json::from_slice(&text).map_err(|error| HubError::BadFile {
        file: file.to_owned(),
        why: format!("not the JSON it should be: {error}"),
    })
}
