//! The modules of a sentence-transformers model and their folders, from `modules.json`. A model
//! without that file has one module: an encoder in the top folder.

use std::collections::BTreeMap;
use std::fs::File;
use std::io::Read;
use std::path::Path;

use serde::Deserialize;
use serde::de::{DeserializeOwned, IgnoredAny};

use super::HubError;
use super::error::disk;
use super::reference::is_safe_relative;

/// No configuration or index is this long; a longer file is something else.
const JSON_LIMIT: u64 = 64 << 20;

/// The file of a router: which modules its routes have.
pub(super) const ROUTER: &str = "router_config.json";

#[derive(Deserialize)]
struct Routes {
    /// The class of each module, by its folder.
    types: BTreeMap<String, String>,
}

/// A module of a model.
#[derive(Debug, Deserialize)]
pub(super) struct Module {
    /// Its folder; empty for the top folder.
    #[serde(default)]
    pub(super) path: String,
    #[serde(rename = "type", default)]
    kind: String,
}

/// What a module's folder must contain.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Role {
    /// A transformers model: configuration, weights and a tokenizer (checked by the tokenizer's
    /// reader).
    Encoder,
    /// A static embedding table: weights and `tokenizer.json`, no configuration.
    Table,
    /// A dense layer: configuration and weights.
    Dense,
    /// Nothing: the folder may even be missing, because git does not keep empty folders.
    Normalize,
    /// Routes for queries and documents, whose modules are in folders below.
    Router,
    /// A configuration: pooling, masks and unknown modules.
    Other,
}

impl Module {
    /// An encoder in the top folder.
    pub(super) fn top() -> Self {
        Self { path: String::new(), kind: "Transformer".to_owned() }
    }

    pub(super) fn role(&self) -> Role {
        // The packages of a class have changed between releases; its own name has not.
        match self.kind.rsplit('.').next().unwrap_or_default() {
            "StaticEmbedding" | "SparseStaticEmbedding" => Role::Table,
            "Router" | "Asym" => Role::Router,
            class if class.ends_with("Transformer") || class.ends_with("CLIPModel") => Role::Encoder,
            class if class.ends_with("Dense") => Role::Dense,
            // The second is pplx-embed's, which has no configuration either.
            class if class.ends_with("Normalize") || class == "FlexibleQuantizer" => Role::Normalize,
            _ => Role::Other,
        }
    }

    /// Whether it takes texts or images as input.
    pub(super) fn is_model(&self) -> bool {
        matches!(self.role(), Role::Encoder | Role::Table)
    }

    /// Path of a file in its folder, from the top.
    pub(super) fn file(&self, base: &str) -> String {
        in_dir(&self.path, base)
    }
}

/// `folder/base`, or `base` for the top folder.
pub(super) fn in_dir(folder: &str, base: &str) -> String {
    if folder.is_empty() { base.to_owned() } else { format!("{folder}/{base}") }
}

/// All modules of the model in `dir`. If none takes input, adds an encoder in the top folder.
pub(super) fn modules(dir: &Path) -> Result<Vec<Module>, HubError> {
    let file = dir.join("modules.json");
    let mut modules: Vec<Module> = if file.exists() { read_json(&file)? } else { Vec::new() };
    normalize(&mut modules, &file)?;
    let routers: Vec<String> = modules.iter().filter(|m| m.role() == Role::Router).map(|m| m.path.clone()).collect();
    for path in routers {
        let file = dir.join(in_dir(&path, ROUTER));
        // Where it is missing, the check of the files reports it.
        if file.exists() {
            let Routes { types } = read_json(&file)?;
            let inside = |(id, kind): (String, String)| Module { path: in_dir(&path, &id), kind };
            let mut routed: Vec<Module> = types.into_iter().map(inside).collect();
            normalize(&mut routed, &file)?;
            modules.extend(routed);
        }
    }
    if !modules.iter().any(Module::is_model) {
        modules.insert(0, Module::top());
    }
    Ok(modules)
}

/// Normalizes the paths of modules that `file` names.
fn normalize(modules: &mut [Module], file: &Path) -> Result<(), HubError> {
    for module in modules {
        match folder(&module.path) {
            Some(folder) => module.path = folder,
            None => {
                let why = format!("the module path {:?} leads outside the model's folder", module.path);
                return Err(HubError::BadFile { file: file.to_owned(), why });
            }
        }
    }
    Ok(())
}

/// The normalized folder of a module's path; `None` if it is outside the model.
fn folder(path: &str) -> Option<String> {
    if ["", ".", "./"].contains(&path) {
        return Some(String::new());
    }
    let path = path.strip_prefix("./").unwrap_or(path).trim_end_matches('/');
    is_safe_relative(path).then(|| path.to_owned())
}

/// Optional files that change what the model computes. A cache with neither the file nor a note
/// that the repository lacks it may be incomplete: for example, Python's `AutoModel` never fetches
/// `modules.json`, and without it the pooling would be guessed.
pub(super) fn optional_files(dir: &Path, modules: &[Module]) -> Vec<String> {
    /// The keys of `config.json` on which other files depend. An unreadable configuration is
    /// reported elsewhere.
    #[derive(Default, Deserialize)]
    struct Config {
        #[serde(default)]
        architectures: Vec<String>,
        vision_config: Option<IgnoredAny>,
    }
    let mut files = vec!["modules.json".to_owned(), "config_sentence_transformers.json".to_owned()];
    for module in modules.iter().filter(|module| module.role() == Role::Encoder) {
        let mut add = |bases: &[&str]| files.extend(bases.iter().map(|base| module.file(base)));
        add(&["sentence_bert_config.json", "tokenizer.json", "tokenizer_config.json"]);
        let config: Config = read_json(&dir.join(module.file("config.json"))).unwrap_or_default();
        if config.vision_config.is_some() {
            add(&["preprocessor_config.json", "processor_config.json"]);
        }
        let is_any = |end: &str| config.architectures.iter().any(|name| name.ends_with(end));
        if is_any("ForCausalLM") || is_any("ForConditionalGeneration") {
            add(&["generation_config.json", "chat_template.jinja", "chat_template.json"]);
        }
        if config.architectures.iter().any(|name| name == "HF_ColBERT") {
            add(&["artifact.metadata"]);
        }
    }
    files
}

pub(super) fn read_json<T: DeserializeOwned>(file: &Path) -> Result<T, HubError> {
    let mut text = Vec::new();
    File::open(file).and_then(|open| open.take(JSON_LIMIT).read_to_end(&mut text)).map_err(disk("read", file))?;
    serde_json::from_slice(&text)
        .map_err(|error| HubError::BadFile { file: file.to_owned(), why: format!("not the expected JSON: {error}") })
}
