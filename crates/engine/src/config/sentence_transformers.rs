//! The sentence-transformers files: the modules after the encoder, and the tokenization settings.
//!
//! Both layouts are read: the old one (`sentence_transformers.models.X`, flags for poolings,
//! `max_seq_length`) and the one written since version 6 (longer class paths, a `pooling_mode`, the
//! length in `tokenizer_config.json`).

use super::dense::{Dense, dense, dense_in_gguf};
use super::gguf_prompts::family_prompts;
use super::input_spec::{InputSpec, plain_input_spec};
use crate::error::{Error, Result};
use sconce_formats::{Model, gguf, is_gguf, json, optional_json};
use sconce_ops::Pooling;
use sconce_text::{StaticTokenization, TokenizerOptions};
use serde::Deserialize;
use serde_json::Value;
use std::collections::BTreeMap;
use std::path::{Component, Path, PathBuf};

/// model2vec's default maximum length.
const MODEL2VEC_TOKENS: usize = 512;

/// A static embedding table has no maximum length; memory is planned for this many tokens.
const STATIC_TOKENS: usize = 1 << 16;

/// The prompt before each text.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub enum Prompt {
    /// The model's default, if it has one.
    #[default]
    Default,
    /// One of the model's prompts, by name (`query`, `document`).
    Named(String),
    /// This text.
    Text(String),
}

/// How a text becomes an embedding, from the model's files.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct SentenceSpec {
    /// Tokenization settings.
    pub(crate) input_spec: InputSpec,
    /// Poolings, concatenated in this order.
    pub(crate) poolings: Vec<Pooling>,
    /// Whether prompt tokens are pooled.
    pub(crate) include_prompt: bool,
    /// The modules after the pooling, in order.
    pub(crate) tail: Vec<Module>,
    /// Prompts by name.
    pub(crate) prompts: BTreeMap<String, String>,
    /// The prompt that is used when none is named.
    pub(crate) default_prompt: Option<String>,
    /// The tasks for which the encoder has a low-rank update (LoRA). A prompt of that name selects
    /// it.
    pub(crate) tasks: Vec<String>,
}

/// A module after the pooling.
#[derive(Clone, Debug, PartialEq)]
pub(crate) enum Module {
    /// y = act(W x + b).
    Dense(Dense),
    /// L2-normalize.
    Normalize,
    /// y = round(127 · tanh(x)), as the last module: the quantization that pplx-embed was trained
    /// with.
    TanhInt8,
}

/// The class of pplx-embed's own code for [`Module::TanhInt8`].
const PPLX_QUANTIZER: &str = "st_quantize.FlexibleQuantizer";

/// An entry of `modules.json`.
#[derive(Deserialize)]
pub(crate) struct Entry {
    #[serde(rename = "type")]
    kind: String,
    path: String,
}

impl Entry {
    /// The class name without its Python modules, which have moved between releases. Empty for
    /// custom code, which is not run.
    pub(crate) fn class(&self) -> &str {
        match self.kind.split_once('.') {
            Some(("sentence_transformers" | "pylate", path)) => path.rsplit('.').next().unwrap_or_default(),
            _ => "",
        }
    }

    /// The module of class `kind` in the folder `id` below this one.
    pub(crate) fn inside(&self, id: &str, kind: &str) -> Entry {
        Entry {
            kind: kind.to_owned(),
            path: if self.path.is_empty() { id.into() } else { format!("{}/{id}", self.path) },
        }
    }

    /// Its folder in `dir`; `path` is the file that names it.
    pub(crate) fn folder(&self, dir: &Path, path: &Path) -> Result<PathBuf> {
        let inside = Path::new(&self.path);
        if !inside.components().all(|c| matches!(c, Component::Normal(_) | Component::CurDir)) {
            return Err(Error::file(path, format!("module path `{}` leads out of the model", self.path)));
        }
        Ok(dir.join(inside))
    }
}

#[derive(Default, Deserialize)]
struct SentenceConfig {
    max_seq_length: Option<usize>,
    do_lower_case: Option<bool>,
}

/// The prompts in `config_sentence_transformers.json`.
#[derive(Default, Deserialize)]
pub(super) struct Prompts {
    #[serde(default)]
    pub(super) prompts: BTreeMap<String, Option<String>>,
    pub(super) default_prompt_name: Option<String>,
}

/// The fields of jina-embeddings-v3's `config.json`.
#[derive(Deserialize)]
struct Tasks {
    lora_adaptations: Vec<String>,
    #[serde(default)]
    task_instructions: BTreeMap<String, String>,
}

impl SentenceSpec {
    /// Reads the files in `dir`. A plain transformers model, without `modules.json`, is pooled by
    /// the mean, as in sentence-transformers.
    pub(crate) fn read(dir: &Path) -> Result<SentenceSpec> {
        if is_gguf(dir) {
            return SentenceSpec::of_gguf(dir);
        }
        let prompts: Prompts = optional_json(&dir.join("config_sentence_transformers.json"))?.unwrap_or_default();
        let mut spec = SentenceSpec {
            input_spec: input_spec(dir, dir)?,
            poolings: Vec::new(),
            include_prompt: true,
            tail: Vec::new(),
            prompts: prompts.prompts.into_iter().map(|(name, text)| (name, text.unwrap_or_default())).collect(),
            default_prompt: prompts.default_prompt_name,
            tasks: Vec::new(),
        };
        let path = dir.join("modules.json");
        let config: Value = optional_json(&dir.join("config.json"))?.unwrap_or_default();
        if config.get("lora_adaptations").is_some_and(|tasks| !tasks.is_null()) {
            spec.add_tasks(json(&dir.join("config.json"))?);
        }
        match optional_json::<Vec<Entry>>(&path)? {
            _ if config.get("model_type").and_then(Value::as_str) == Some("model2vec") => spec.model2vec(&config),
            Some(modules) => spec.modules(dir, &path, &modules)?,
            None => {
                let pooling = plain_pooling(&config).map_err(|what| Error::file(&dir.join("config.json"), what))?;
                spec.poolings = vec![pooling];
            }
        }
        if let Some(name) = &spec.default_prompt
            && !spec.prompts.contains_key(name)
        {
            let path = dir.join("config_sentence_transformers.json");
            return Err(Error::file(&path, format!("the default prompt `{name}` is not among the prompts")));
        }
        Ok(spec)
    }

    /// Reads a GGUF file, which declares the pooling and may have dense layers. Embeddings are
    /// L2-normalized, as in llama.cpp.
    fn of_gguf(file: &Path) -> Result<SentenceSpec> {
        let Model { config, gguf, .. } = Model::open(file)?;
        let (pooling, dense, prompts) = match &gguf {
            Some(gguf) => (gguf.pooling()?, dense_in_gguf(gguf)?, family_prompts(gguf.architecture())),
            None => (None, Vec::new(), BTreeMap::new()),
        };
        let is_causal_lm =
            config.pointer("/architectures/0").and_then(Value::as_str).is_some_and(|c| c.ends_with("LM"));
        let refuse = |what: &str| Err(Error::file(file, what));
        let pooling = match pooling {
            Some(gguf::Pooling::Mean) => Pooling::Mean,
            Some(gguf::Pooling::Cls) => Pooling::Cls,
            Some(gguf::Pooling::Last) => Pooling::LastToken,
            Some(gguf::Pooling::Rank) => return refuse("is a reranker (pooling_type 4); use `sconce rerank`"),
            Some(gguf::Pooling::None) => {
                return refuse("has no pooling (pooling_type 0), so it gives a vector per token, not per text");
            }
            // For a language model, mean and last-token pooling differ too much to guess.
            None if is_causal_lm => {
                return refuse("is a language model without a pooling_type, so it cannot embed texts");
            }
            None => Pooling::Mean,
        };
        Ok(SentenceSpec {
            input_spec: plain_input_spec(file)?,
            poolings: vec![pooling],
            include_prompt: true,
            tail: dense.into_iter().map(Module::Dense).chain([Module::Normalize]).collect(),
            prompts,
            default_prompt: None,
            tasks: Vec::new(),
        })
    }

    /// The text that `prompt` puts before a text.
    pub(crate) fn prompt<'a>(&'a self, prompt: &'a Prompt) -> Result<&'a str> {
        let named = |name: &str| {
            let names = || self.prompts.keys().map(String::as_str).collect::<Vec<_>>().join(", ");
            let unknown = || Error::Input(format!("the model has no prompt `{name}`; it has: {}", names()));
            self.prompts.get(name).map(String::as_str).ok_or_else(unknown)
        };
        match prompt {
            Prompt::Text(text) => Ok(text),
            Prompt::Named(name) => named(name),
            Prompt::Default => self.default_prompt.as_deref().map_or(Ok(""), named),
        }
    }

    /// The task, as an index: the one that `task` names, or else the one of the prompt's name.
    pub(crate) fn task(&self, prompt: &Prompt, task: Option<&str>) -> Result<Option<usize>> {
        let index = |name: &str| self.tasks.iter().position(|task| task == name);
        if let Some(name) = task {
            let unknown = || {
                Error::Input(format!("the model has no weights for a task `{name}`; it has: {}", self.tasks.join(", ")))
            };
            return index(name).map(Some).ok_or_else(unknown);
        }
        Ok(match prompt {
            Prompt::Text(_) => None,
            Prompt::Named(name) => index(name),
            Prompt::Default => self.default_prompt.as_deref().and_then(index),
        })
    }

    /// Adds the tasks of jina-embeddings-v3, whose instructions are prompts unless the
    /// sentence-transformers files have others of the same names.
    fn add_tasks(&mut self, Tasks { lora_adaptations, task_instructions }: Tasks) {
        self.tasks = lora_adaptations;
        for task in &self.tasks {
            let instruction = task_instructions.get(task).cloned().unwrap_or_default();
            self.prompts.entry(task.clone()).or_insert(instruction);
        }
    }

    /// Pools by the mean of the known words. The configuration takes precedence over
    /// sentence-transformers files beside it.
    fn model2vec(&mut self, config: &Value) {
        let most = match config.get("max_length") {
            None => MODEL2VEC_TOKENS,
            Some(n) => n.as_u64().map_or(STATIC_TOKENS, |n| (n as usize).min(STATIC_TOKENS)),
        };
        self.input_spec.max_tokens = Some(most);
        self.input_spec.tokenizer_options.table = Some(StaticTokenization::Model2vec);
        self.poolings = vec![Pooling::Mean];
        if config.get("normalize").and_then(Value::as_bool).unwrap_or(false) {
            self.tail.push(Module::Normalize);
        }
    }

    fn modules(&mut self, dir: &Path, path: &Path, modules: &[Entry]) -> Result<()> {
        for (i, module) in modules.iter().enumerate() {
            let folder = module.folder(dir, path)?;
            match module.class() {
                "" if module.kind == PPLX_QUANTIZER && i > 1 && i + 1 == modules.len() => {
                    self.tail.push(Module::TanhInt8);
                }
                // The code of jina-embeddings-v3, whose only addition is the choice of the task.
                "" if i == 0 && module.kind == "custom_st.Transformer" && !self.tasks.is_empty() => {
                    self.input_spec = input_spec(&folder, dir)?;
                }
                "" => {
                    let what = format!("`{}` is custom code, which is not run", module.kind);
                    return Err(Error::file(path, what));
                }
                "Transformer" if i == 0 => self.input_spec = input_spec(&folder, dir)?,
                "StaticEmbedding" if i == 0 => {
                    let tokenizer_options =
                        TokenizerOptions { lower_case: false, table: Some(StaticTokenization::Plain) };
                    self.input_spec = InputSpec { root: folder, max_tokens: Some(STATIC_TOKENS), tokenizer_options };
                    self.poolings = vec![Pooling::Mean];
                }
                "Pooling" if i == 1 => self.pooling(&folder.join("config.json"))?,
                "Dense" if i > 1 => self.tail.push(Module::Dense(dense(&folder)?)),
                "Normalize" if i > 0 => self.tail.push(Module::Normalize),
                _ => {
                    let what = format!("module {i} is `{}`, which is not supported there", module.kind);
                    return Err(Error::file(path, what));
                }
            }
        }
        if self.poolings.is_empty() {
            return Err(Error::file(path, "no pooling: this is a multi-vector model; use `embed --multi`"));
        }
        Ok(())
    }

    fn pooling(&mut self, path: &Path) -> Result<()> {
        let config: Value = json(path)?;
        let mode = |name: &str| match name {
            "cls" => Ok(Pooling::Cls),
            "max" => Ok(Pooling::Max),
            "mean" => Ok(Pooling::Mean),
            "mean_sqrt_len_tokens" => Ok(Pooling::MeanSqrtLen),
            "weightedmean" => Ok(Pooling::WeightedMean),
            "lasttoken" => Ok(Pooling::LastToken),
            other => Err(Error::file(path, format!("pooling `{other}` is not supported"))),
        };
        self.include_prompt = config.get("include_prompt").and_then(Value::as_bool).unwrap_or(true);
        self.poolings = match config.get("pooling_mode") {
            Some(Value::String(name)) => vec![mode(name)?],
            Some(Value::Array(names)) => {
                names.iter().map(|n| mode(n.as_str().unwrap_or_default())).collect::<Result<_>>()?
            }
            Some(other) => return Err(Error::file(path, format!("pooling_mode {other} is neither a name nor a list"))),
            None => flags(&config).map_err(|what| Error::file(path, what))?,
        };
        Ok(())
    }
}

/// The pooling of a model without sentence-transformers files: the mean, unless the configuration of
/// a llama-nemotron-embed names another.
fn plain_pooling(config: &Value) -> Result<Pooling, String> {
    let is_nemotron = config.get("model_type").and_then(Value::as_str) == Some("llama_bidirec");
    match config.get("pooling").and_then(Value::as_str).filter(|_| is_nemotron) {
        None | Some("avg") => Ok(Pooling::Mean),
        Some("cls") => Ok(Pooling::Cls),
        Some("last") => Ok(Pooling::LastToken),
        Some(other) => Err(format!("pooling `{other}` is not supported")),
    }
}

/// The old layout: a flag per mode. The modes are concatenated in this order, not in the file's.
fn flags(config: &Value) -> Result<Vec<Pooling>, String> {
    let known = [
        ("pooling_mode_cls_token", Pooling::Cls),
        ("pooling_mode_max_tokens", Pooling::Max),
        ("pooling_mode_mean_tokens", Pooling::Mean),
        ("pooling_mode_mean_sqrt_len_tokens", Pooling::MeanSqrtLen),
        ("pooling_mode_weightedmean_tokens", Pooling::WeightedMean),
        ("pooling_mode_lasttoken", Pooling::LastToken),
    ];
    let set = |name: &str| config.get(name).and_then(Value::as_bool) == Some(true);
    let names = config.as_object().into_iter().flatten().map(|(name, _)| name.as_str());
    let is_unknown =
        |name: &&str| name.starts_with("pooling_mode_") && !known.iter().any(|(k, _)| k == name) && set(name);
    if let Some(name) = names.into_iter().find(is_unknown) {
        return Err(format!("pooling `{name}` is not supported"));
    }
    let modes: Vec<_> = known.into_iter().filter(|(name, _)| set(name)).map(|(_, mode)| mode).collect();
    // As in sentence-transformers: no flag means the mean.
    Ok(if modes.is_empty() { vec![Pooling::Mean] } else { modes })
}

/// The tokenization settings of the encoder in `root`, from the sentence-transformers files beside
/// it or in `dir`.
pub(crate) fn input_spec(root: &Path, dir: &Path) -> Result<InputSpec> {
    let config = match optional_json(&root.join("sentence_bert_config.json"))? {
        Some(config) => config,
        None => optional_json::<SentenceConfig>(&dir.join("sentence_bert_config.json"))?.unwrap_or_default(),
    };
    let plain = plain_input_spec(root)?;
    Ok(InputSpec {
        max_tokens: config.max_seq_length.or(plain.max_tokens),
        tokenizer_options: TokenizerOptions { lower_case: config.do_lower_case.unwrap_or(false), table: None },
        ..plain
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    #[test]
    fn plain_models_are_pooled_by_the_mean_and_nemotron_as_it_says() {
        let pooling = |kind: &str, pooling: &str| plain_pooling(&json!({"model_type": kind, "pooling": pooling}));
        assert_eq!(plain_pooling(&json!({"model_type": "llama_bidirec"})), Ok(Pooling::Mean));
        assert_eq!(pooling("llama_bidirec", "avg"), Ok(Pooling::Mean));
        assert_eq!(pooling("llama_bidirec", "last"), Ok(Pooling::LastToken));
        assert_eq!(pooling("llama_bidirec", "cls"), Ok(Pooling::Cls));
        assert!(pooling("llama_bidirec", "weighted_avg").is_err());
        assert_eq!(pooling("bert", "last"), Ok(Pooling::Mean));
    }
}
