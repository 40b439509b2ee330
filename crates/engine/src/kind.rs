//! What a directory of files is for, and what it would take: told before anything is loaded.

use crate::classifier::{Logits, LogitsRecipe};
use crate::clip::{ClipRecipe, Towers};
use crate::colbert::ColbertRecipe;
use crate::embedder::Sentence;
use crate::llm::{LlmOptions, wish};
use crate::m3::{Projected, has_m3};
use crate::multi::Tokens;
use crate::pipeline::plan_of;
use crate::sentence::{Entry, Recipe};
use crate::sparse::{Splade, SpladeRecipe};
use crate::tagger::{TagRecipe, Tokenwise};
use crate::{Error, LoadOptions, Plan, Result, Seq2SeqRoom, generate, seq2seq};
use sconce_formats::gguf::Pooling;
use sconce_formats::{Model, is_gguf, optional_json};
use sconce_ops::Device;
use serde_json::Value;
use std::fmt;
use std::path::Path;
use std::str::FromStr;

/// What a model is for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Kind {
    /// A vector a text.
    Embed,
    /// Labels, or one score, of a text or a pair.
    Classify,
    /// A label a token.
    Tag,
    /// Weights over the vocabulary.
    Sparse,
    /// A vector a token.
    Multi,
    /// bge-m3's three at once.
    M3,
    /// Texts and images in one space.
    Clip,
    /// The next word, again and again.
    Generate,
    /// Another text for a text.
    Seq2Seq,
}

impl Kind {
    /// Every one.
    pub const ALL: [Kind; 9] = [
        Kind::Embed,
        Kind::Classify,
        Kind::Tag,
        Kind::Sparse,
        Kind::Multi,
        Kind::M3,
        Kind::Clip,
        Kind::Generate,
        Kind::Seq2Seq,
    ];

    /// What the files in `dir` are made for, as they say themselves; or a GGUF file.
    pub fn of(dir: &Path) -> Result<Kind> {
        if is_gguf(dir) {
            let Model { config, gguf, .. } = Model::open(dir)?;
            let class = class(&config);
            return Ok(match gguf.map_or(Ok(None), |gguf| gguf.pooling())? {
                Some(Pooling::Rank) => Kind::Classify,
                _ if class.ends_with("ForSequenceClassification") => Kind::Classify,
                None | Some(Pooling::None) if rewrites(class) => Kind::Seq2Seq,
                None | Some(Pooling::None) if speaks(class) => Kind::Generate,
                _ => Kind::Embed,
            });
        }
        if has_m3(dir) {
            return Ok(Kind::M3);
        }
        let config: Value = optional_json(&dir.join("config.json"))?.unwrap_or_default();
        let class = class(&config);
        let family = config.get("model_type").and_then(Value::as_str).unwrap_or_default();
        let modules = optional_json::<Vec<Entry>>(&dir.join("modules.json"))?.unwrap_or_default();
        let has = |class: &str| modules.iter().any(|m| m.class() == class);
        Ok(match () {
            () if has("CLIPModel") || family.starts_with("clip") || family.starts_with("siglip") => Kind::Clip,
            () if has("SpladePooling") => Kind::Sparse,
            () if has("Pooling") || has("StaticEmbedding") => Kind::Embed,
            () if has("MultiVectorMask") || has("Dense") || class == "HF_ColBERT" => Kind::Multi,
            () if class.ends_with("ForSequenceClassification") => Kind::Classify,
            () if class.ends_with("ForTokenClassification") => Kind::Tag,
            () if rewrites(class) => Kind::Seq2Seq,
            () if speaks(class) => Kind::Generate,
            () => Kind::Embed,
        })
    }
}

/// The class that transformers runs the model with.
fn class(config: &Value) -> &str {
    config.pointer("/architectures/0").and_then(Value::as_str).unwrap_or_default()
}

/// Whether a class is one of a model that reads a text and writes another.
fn rewrites(class: &str) -> bool {
    class.ends_with("T5ForConditionalGeneration") || class == "T5WithLMHeadModel"
}

/// Whether a class is one of a model that says which word comes next.
fn speaks(class: &str) -> bool {
    class.ends_with("ForCausalLM") || class.ends_with("LMHeadModel")
}

impl fmt::Display for Kind {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(match self {
            Kind::Embed => "embed",
            Kind::Classify => "classify",
            Kind::Tag => "tag",
            Kind::Sparse => "sparse",
            Kind::Multi => "multi",
            Kind::M3 => "m3",
            Kind::Clip => "clip",
            Kind::Generate => "generate",
            Kind::Seq2Seq => "seq2seq",
        })
    }
}

impl FromStr for Kind {
    type Err = Error;
    fn from_str(s: &str) -> Result<Self> {
        let known = || Kind::ALL.map(|k| k.to_string()).join(", ");
        let found = Kind::ALL.into_iter().find(|k| k.to_string() == s);
        found.ok_or_else(|| Error::Input(format!("unknown task `{s}`; one of {}", known())))
    }
}

/// Plans the model in `dir` for a task without loading it, on a device that need not be in this machine.
pub fn plan(dir: &Path, kind: Kind, device: Device, options: &LoadOptions) -> Result<Plan> {
    if is_gguf(dir) && !matches!(kind, Kind::Embed | Kind::Classify | Kind::Generate) {
        return Err(Error::file(dir, format!("is a GGUF file, and none holds a model for the task `{kind}`")));
    }
    let options = &device.info().map_or_else(|_| options.clone(), |info| options.on(&info));
    match kind {
        Kind::Embed => plan_of::<Sentence>(&Recipe::read(dir)?, device, options),
        Kind::Classify => plan_of::<Logits>(&LogitsRecipe::read(dir)?, device, options),
        Kind::Sparse => plan_of::<Splade>(&SpladeRecipe::read(dir)?, device, options),
        Kind::Multi => plan_of::<Tokens>(&ColbertRecipe::read(dir)?, device, options),
        Kind::M3 => plan_of::<Projected>(&Recipe::read(dir)?, device, options),
        Kind::Tag => plan_of::<Tokenwise>(&TagRecipe::read(dir)?, device, options),
        Kind::Clip => plan_of::<Towers>(&ClipRecipe::read(dir)?, device, options),
        Kind::Generate => Ok(generate::plan(dir, device, options, wish(&LlmOptions::default()))?.plan),
        Kind::Seq2Seq => seq2seq::plan(dir, device, options, &Seq2SeqRoom::default()),
    }
}

/// Whether a device runs a model, as its plan says.
#[derive(Clone, Debug)]
pub struct Support {
    /// What the model is for.
    pub kind: Kind,
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

/// Whether `device` can run the model in `dir`, for what the model is made for. Memory counts where the device is here.
pub fn supports(device: Device, dir: &Path, options: &LoadOptions) -> Result<Support> {
    let kind = Kind::of(dir)?;
    let plan = plan(dir, kind, device, options)?;
    let mut refusals = plan.refusals();
    match device.info() {
        Ok(info) if refusals.is_empty() => refusals.extend(plan.check(info.free_bytes).err().map(|e| e.to_string())),
        Ok(_) => {}
        Err(e) => refusals.push(e.to_string()),
    }
    Ok(Support { kind, plan, refusals })
}
