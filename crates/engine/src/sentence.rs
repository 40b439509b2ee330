//! The sentence-transformers files: which modules stand behind the encoder, and how texts go in.
//!
//! Both layouts are read: the old one (`sentence_transformers.models.X`, flags for poolings, `max_seq_length`) and the one
//! written since version 6 (longer class paths, a `pooling_mode`, the length in `tokenizer_config.json`).

use crate::load::{json, optional_json};
use crate::{Error, Result};
use sconce_ops::{Activation, Pooling};
use serde::Deserialize;
use serde_json::Value;
use std::collections::BTreeMap;
use std::path::{Path, PathBuf};

/// How a text becomes a vector, as the model's files say.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct Recipe {
    /// The longest sequence, special tokens included, as far as these files know.
    pub(crate) max_tokens: Option<usize>,
    /// Lower-case the text before the tokenizer sees it.
    pub(crate) lower_case: bool,
    /// Laid side by side in this order.
    pub(crate) poolings: Vec<Pooling>,
    /// Whether tokens of the prompt count in the pooling.
    pub(crate) include_prompt: bool,
    /// What follows the pooling, in order.
    pub(crate) tail: Vec<Module>,
    /// Prompts by name.
    pub(crate) prompts: BTreeMap<String, String>,
    /// The prompt that is used when none is named.
    pub(crate) default_prompt: Option<String>,
}

/// A module behind the pooling.
#[derive(Clone, Debug, PartialEq)]
pub(crate) enum Module {
    /// y = act(W x + b), its weights in `dir`.
    Dense { dir: PathBuf, inputs: usize, outputs: usize, bias: bool, activation: Activation },
    /// To length one.
    Normalize,
}

#[derive(Deserialize)]
struct ModuleEntry {
    #[serde(rename = "type")]
    class: String,
    path: String,
}

#[derive(Default, Deserialize)]
struct SentenceConfig {
    max_seq_length: Option<usize>,
    #[serde(default)]
    do_lower_case: bool,
}

#[derive(Default, Deserialize)]
struct Prompts {
    #[serde(default)]
    prompts: BTreeMap<String, String>,
    default_prompt_name: Option<String>,
}

#[derive(Deserialize)]
struct DenseConfig {
    in_features: usize,
    out_features: usize,
    #[serde(default = "yes")]
    bias: bool,
    activation_function: Option<String>,
    #[serde(default)]
    use_residual: bool,
}

impl Recipe {
    /// Reads the files in `dir`. A plain transformers model, without `modules.json`, is pooled by the mean, as
    /// sentence-transformers does it.
    pub(crate) fn read(dir: &Path) -> Result<Recipe> {
        let config: SentenceConfig = optional_json(&dir.join("sentence_bert_config.json"))?.unwrap_or_default();
        let prompts: Prompts = optional_json(&dir.join("config_sentence_transformers.json"))?.unwrap_or_default();
        let mut recipe = Recipe {
            max_tokens: match config.max_seq_length {
                Some(length) => Some(length),
                None => model_max_length(&dir.join("tokenizer_config.json"))?,
            },
            lower_case: config.do_lower_case,
            poolings: Vec::new(),
            include_prompt: true,
            tail: Vec::new(),
            prompts: prompts.prompts,
            default_prompt: prompts.default_prompt_name,
        };
        let path = dir.join("modules.json");
        match optional_json::<Vec<ModuleEntry>>(&path)? {
            Some(modules) => recipe.modules(dir, &path, &modules)?,
            None => recipe.poolings = vec![Pooling::Mean],
        }
        if let Some(name) = &recipe.default_prompt
            && !recipe.prompts.contains_key(name)
        {
            let path = dir.join("config_sentence_transformers.json");
            return Err(Error::file(&path, format!("the default prompt `{name}` is not among the prompts")));
        }
        Ok(recipe)
    }

    fn modules(&mut self, dir: &Path, path: &Path, modules: &[ModuleEntry]) -> Result<()> {
        for (i, module) in modules.iter().enumerate() {
            let inside = Path::new(&module.path);
            if !inside.components().all(|c| matches!(c, std::path::Component::Normal(_))) {
                return Err(Error::file(path, format!("module path `{}` leads out of the model", module.path)));
            }
            // The class has moved between releases; its own name has not.
            let class = module.class.rsplit('.').next().unwrap_or_default();
            match class {
                _ if !module.class.starts_with("sentence_transformers.") => {
                    return Err(Error::file(
                        path,
                        format!("`{}` is code of the model's own, which is not run", module.class),
                    ));
                }
                "Transformer" if i == 0 && module.path.is_empty() => {}
                "Pooling" if i == 1 => self.pooling(&dir.join(inside).join("config.json"))?,
                "Dense" if i > 1 => self.tail.push(dense(&dir.join(inside))?),
                "Normalize" if i > 1 => self.tail.push(Module::Normalize),
                _ => {
                    let what = format!("module {i} is `{}`, which is not supported there", module.class);
                    return Err(Error::file(path, what));
                }
            }
        }
        if self.poolings.is_empty() {
            return Err(Error::file(path, "no pooling: the model gives a vector a token, not a vector a text"));
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
            other => Err(Error::file(path, format!("pooling `{other}` is not known"))),
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

/// The old layout: a flag a mode, laid side by side in this order whatever the file's.
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
    let stranger =
        |name: &&str| name.starts_with("pooling_mode_") && !known.iter().any(|(k, _)| k == name) && set(name);
    if let Some(name) = names.into_iter().find(stranger) {
        return Err(format!("`{name}` is not a pooling that is known"));
    }
    let modes: Vec<_> = known.into_iter().filter(|(name, _)| set(name)).map(|(_, mode)| mode).collect();
    // As in sentence-transformers: no flag set means the mean.
    Ok(if modes.is_empty() { vec![Pooling::Mean] } else { modes })
}

fn yes() -> bool {
    true
}

fn dense(dir: &Path) -> Result<Module> {
    let path = dir.join("config.json");
    let config: DenseConfig = json(&path)?;
    if config.use_residual {
        return Err(Error::file(&path, "a Dense module with use_residual is not supported"));
    }
    let activation = match config.activation_function.as_deref() {
        None | Some("torch.nn.modules.activation.Tanh") => Activation::Tanh,
        Some("torch.nn.modules.linear.Identity") => Activation::None,
        Some("torch.nn.modules.activation.ReLU") => Activation::Relu,
        Some("torch.nn.modules.activation.GELU") => Activation::Gelu,
        Some("torch.nn.modules.activation.SiLU") => Activation::Silu,
        Some(other) => return Err(Error::file(&path, format!("activation `{other}` is not supported"))),
    };
    Ok(Module::Dense {
        dir: dir.to_path_buf(),
        inputs: config.in_features,
        outputs: config.out_features,
        bias: config.bias,
        activation,
    })
}

/// The tokenizer's own limit. Models without one write a number beyond any length (1e30).
fn model_max_length(path: &Path) -> Result<Option<usize>> {
    let config: Option<Value> = optional_json(path)?;
    let length = config.as_ref().and_then(|c| c.get("model_max_length")).and_then(Value::as_f64);
    Ok(length.filter(|n| (1.0..1e9).contains(n)).map(|n| n as usize))
}
