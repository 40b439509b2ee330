//! Texts to vectors.

use crate::load::{Checkpoint, json};
use crate::plan::Plan;
use crate::run::Owner;
use crate::sentence::{Module, Recipe};
use crate::source::{self, Files, Progress, Reference};
use crate::text::Tokenizer;
use crate::{Error, LoadOptions, Result, schedule};
use sconce_models::{Batch, Encoder, Limits, Sequence, encoder};
use sconce_ops::{Counted, DType, Device, Ladder, Linear, Place, Policy, Tensor, Weights, l2_norm, pool};
use serde_json::Value;
use std::path::Path;
use std::sync::Arc;

/// No encoder has positions for longer texts; a file that says so is broken.
const LONGEST: usize = 1 << 20;

/// Which prompt stands before each text.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub enum Prompt {
    /// The model's default, if it has one.
    #[default]
    Default,
    /// One of the model's prompts, by name (`query`, `document`).
    Named(String),
    /// These words.
    Text(String),
}

/// Vectors of several texts.
#[derive(Clone, Debug, Default)]
pub struct Embeddings {
    /// All rows, one after another, in the order of the texts.
    pub values: Vec<f32>,
    /// Numbers in a row.
    pub dimension: usize,
    /// Tokens of each text, as the model saw it.
    pub tokens: Vec<usize>,
    /// Which texts were longer than the model can take and were cut.
    pub truncated: Vec<usize>,
}

impl Embeddings {
    /// The vector of text `i`.
    pub fn row(&self, i: usize) -> &[f32] {
        &self.values[i * self.dimension..][..self.dimension]
    }

    /// All vectors, in the order of the texts.
    pub fn rows(&self) -> impl Iterator<Item = &[f32]> {
        self.values.chunks_exact(self.dimension.max(1))
    }
}

/// A sentence-transformers model, loaded and proven.
pub struct Embedder {
    tokenizer: Tokenizer,
    recipe: Recipe,
    plan: Plan,
    files: Files,
    ladder: Arc<Ladder>,
    owner: Owner<Pipeline>,
}

impl Embedder {
    /// Finds the files, plans, loads and proves the model. Nothing is loaded that the plan says cannot run or will not fit.
    pub fn load(reference: &Reference, options: &LoadOptions, progress: &dyn Progress) -> Result<Embedder> {
        let files = source::resolve(reference, &options.source, progress)?;
        let (device, why) = options.device.decide();
        if let Some(why) = why {
            progress.note(&format!("device: {device}, chosen by auto ({why})"));
        }
        let info = device.info()?;
        let options = &options.on(&info);
        for w in &options.policy.withdrawn {
            progress.note(&format!("{w} failed its cases on this machine and is withdrawn; see `sconce doctor`"));
        }
        let recipe = Recipe::read(&files.dir)?;
        let plan = plan_in(&files.dir, &recipe, device, options)?;
        plan.check(info.free_bytes)?;
        let strange = |name: &&String| !["pooler.", "cls.", "position_ids"].iter().any(|known| name.contains(known));
        if let Some(name) = plan.unread.iter().find(strange) {
            progress.note(&format!("{name} and perhaps more in the weights is not read; see `sconce plan`"));
        }
        let tokenizer = Tokenizer::load(&files.dir.join("tokenizer.json"), plan.max_tokens, recipe.lower_case)?;

        let ladder = Ladder::new(options.policy.clone());
        let (dir, dtype, modules, policy) = (files.dir.clone(), plan.dtype, recipe.clone(), options.policy.clone());
        let owner = Owner::start(device, ladder.clone(), move || {
            let pipeline = Pipeline::load(&dir, &modules, dtype, Place::open(device)?)?;
            pipeline.prove(policy)?;
            Ok(pipeline)
        })?;
        Ok(Embedder { tokenizer, recipe, plan, files, ladder, owner })
    }

    /// Vectors of `texts`, in their order. The vector of a text does not depend on the others.
    pub fn embed<T: AsRef<str> + Sync>(&self, texts: &[T], prompt: &Prompt) -> Result<Embeddings> {
        let prompt = self.prompt(prompt)?;
        let skip = match prompt {
            "" => 0,
            _ if self.recipe.include_prompt => 0,
            _ => self.tokenizer.prompt_tokens(prompt)?,
        };
        let mut encoded = self.tokenizer.encode(texts, prompt)?;
        let tokens: Vec<usize> = encoded.iter().map(|e| e.sequence.ids.len()).collect();
        let truncated = (0..encoded.len()).filter(|i| encoded[*i].truncated).collect();
        let dimension = self.plan.dimension;
        let mut values = vec![0f32; texts.len() * dimension];
        for batch in schedule::batches(&tokens, self.plan.batch_tokens) {
            let sequences: Vec<_> = batch.iter().map(|i| std::mem::take(&mut encoded[*i].sequence)).collect();
            // A text cut inside its prompt still keeps its last token.
            let skips = sequences.iter().map(|s| skip.min(s.ids.len() - 1)).collect::<Vec<_>>();
            let rows =
                self.owner.call(move |pipeline| pipeline.forward(&sequences, &skips)?.to_f32().map_err(Error::from))?;
            for (i, row) in batch.iter().zip(rows.chunks_exact(dimension)) {
                if !row.iter().all(|v| v.is_finite()) {
                    return Err(Error::Text { text: *i, why: overflow(self.plan.device, self.plan.dtype) });
                }
                values[i * dimension..][..dimension].copy_from_slice(row);
            }
        }
        Ok(Embeddings { values, dimension, tokens, truncated })
    }

    /// What was planned before loading.
    pub fn plan(&self) -> &Plan {
        &self.plan
    }

    /// Where the files came from.
    pub fn files(&self) -> &Files {
        &self.files
    }

    /// What really ran since loading, by op, device, dtype and rung.
    pub fn counts(&self) -> Vec<(Counted, u64)> {
        self.ladder.counts()
    }

    /// The most bytes that tensors held at once since loading, weights included.
    pub fn peak_bytes(&self) -> u64 {
        self.ladder.ledger.peak()
    }

    /// Names of the model's prompts.
    pub fn prompts(&self) -> impl Iterator<Item = &str> {
        self.recipe.prompts.keys().map(String::as_str)
    }

    fn prompt<'a>(&'a self, prompt: &'a Prompt) -> Result<&'a str> {
        let named = |name: &str| {
            let names = || self.prompts().collect::<Vec<_>>().join(", ");
            let unknown = || Error::Input(format!("the model has no prompt `{name}`; it has: {}", names()));
            self.recipe.prompts.get(name).map(String::as_str).ok_or_else(unknown)
        };
        match prompt {
            Prompt::Text(text) => Ok(text),
            Prompt::Named(name) => named(name),
            Prompt::Default => self.recipe.default_prompt.as_deref().map_or(Ok(""), named),
        }
    }
}

/// Plans the model without loading it, on a device that need not be in this machine.
pub fn plan(dir: &Path, device: Device, options: &LoadOptions) -> Result<Plan> {
    let options = device.info().map_or_else(|_| options.clone(), |info| options.on(&info));
    plan_in(dir, &Recipe::read(dir)?, device, &options)
}

fn plan_in(dir: &Path, recipe: &Recipe, device: Device, options: &LoadOptions) -> Result<Plan> {
    let ladder = Ladder::new(options.policy.clone());
    let budget = options.batch_tokens(device)?;
    let (planned, steps) = ladder.trace(|| {
        let pipeline = Pipeline::load(dir, recipe, options.dtype, Place::phantom(device))?;
        let weights = ladder.ledger.live();
        ladder.ledger.reset_peak();
        let max_tokens = recipe.max_tokens.unwrap_or(usize::MAX).min(pipeline.limits().positions);
        if !(2..=LONGEST).contains(&max_tokens) {
            return Err(Error::file(
                dir,
                format!("a longest sequence of {max_tokens} tokens; 2 to {LONGEST} make sense"),
            ));
        }
        // Long texts make the most activations, short ones the most vectors: the plan holds for both and all between.
        let batch_tokens = budget.max(max_tokens);
        for length in [1, max_tokens] {
            pipeline.forward(&phantoms(batch_tokens, length), &vec![0; batch_tokens.div_ceil(length)])?;
        }
        let workspace = ladder.ledger.peak() - weights;
        Ok((weights, workspace, batch_tokens, max_tokens, pipeline.dimension, pipeline.unread))
    });
    let (weights, workspace, batch_tokens, max_tokens, dimension, unread) = planned?;
    let dtype = options.dtype;
    // Both batches make the same calls; one of them is the plan.
    let steps = steps[..steps.len() / 2].to_vec();
    Ok(Plan { device, dtype, steps, weights, workspace, batch_tokens, max_tokens, dimension, unread })
}

/// `tokens` tokens in sequences of `length`, the last one shorter.
fn phantoms(tokens: usize, length: usize) -> Vec<Sequence> {
    let of = |n: usize| Sequence { ids: vec![0; n], ..Sequence::default() };
    (0..tokens).step_by(length).map(|start| of(length.min(tokens - start))).collect()
}

/// Encoder, pooling and what follows: all that runs on the device.
struct Pipeline {
    place: Place,
    dtype: DType,
    encoder: Box<dyn Encoder>,
    recipe: Recipe,
    tail: Vec<Stage>,
    dimension: usize,
    unread: Vec<String>,
}

enum Stage {
    Dense(Linear),
    Normalize,
}

impl Pipeline {
    fn load(dir: &Path, recipe: &Recipe, dtype: DType, place: Place) -> Result<Pipeline> {
        let config: Value = json(&dir.join("config.json"))?;
        let weights = Weights::new(Arc::new(Checkpoint::open(dir)?), dtype, place.clone());
        let encoder = encoder(&config, &weights)?;
        let mut dimension = encoder.hidden_size() * recipe.poolings.len();
        let mut unread = weights.unused();
        let mut tail = Vec::new();
        for module in &recipe.tail {
            tail.push(match module {
                Module::Normalize => Stage::Normalize,
                Module::Dense { dir, inputs, outputs, bias, activation } => {
                    if *inputs != dimension {
                        let what = format!("takes {inputs} numbers, but {dimension} come before it");
                        return Err(Error::file(&dir.join("config.json"), what));
                    }
                    dimension = *outputs;
                    // Vectors are f32 from the pooling on.
                    let w = Weights::new(Arc::new(Checkpoint::open(dir)?), DType::F32, place.clone());
                    let dense = Linear::load(&w.sub("linear"), *inputs, *outputs, *bias)?.with(*activation);
                    unread.extend(w.unused());
                    Stage::Dense(dense)
                }
            });
        }
        if dimension == 0 {
            return Err(Error::file(dir, "the model gives vectors of no numbers"));
        }
        Ok(Pipeline { place, dtype, encoder, recipe: recipe.clone(), tail, dimension, unread })
    }

    fn limits(&self) -> Limits {
        self.encoder.limits()
    }

    /// f32 `[sequences, dimension]`.
    fn forward(&self, sequences: &[Sequence], skips: &[usize]) -> Result<Tensor> {
        let batch = Batch::new(sequences, self.limits(), &self.place)?;
        let hidden = self.encoder.forward(&batch, &mut |_, _| {})?;
        let mut y = pool(&hidden, &batch.segments, skips, &self.recipe.poolings)?;
        drop(hidden);
        for stage in &self.tail {
            y = match stage {
                Stage::Dense(linear) => linear.forward(&y)?,
                Stage::Normalize => l2_norm(&y)?,
            };
        }
        Ok(y)
    }

    /// Warm-up and self-check on a sequence of its own, counted apart: what comes out must be numbers.
    fn prove(&self, policy: Policy) -> Result<()> {
        let _apart = Ladder::new(policy).enter();
        let ids = (0..self.limits().positions.min(8)).map(|i| (i % self.limits().vocabulary) as u32).collect();
        let values = self.forward(&[Sequence { ids, ..Sequence::default() }], &[0])?.to_f32()?;
        if values.iter().all(|v| v.is_finite()) {
            return Ok(());
        }
        Err(Error::Input(format!("the model is not sound: {}", overflow(self.place.device(), self.dtype))))
    }
}

fn overflow(device: Device, dtype: DType) -> String {
    let advice = match dtype {
        DType::F16 => "f16 ends at 65,504: try --dtype bf16 or f32",
        _ => "the weights may be damaged: fetch them again",
    };
    format!("its vector in {dtype} on {device} holds infinities or NaN; {advice}")
}
