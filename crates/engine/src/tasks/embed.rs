//! Dense embeddings of texts.

use super::TaskType;
use super::multi_vector::MultiVector;
use crate::config::{FileFacts, InputSpec, Module, Prompt, SentenceSpec};
use crate::error::{Error, Result};
use crate::options::LoadOptions;
use crate::plan::Plan;
use crate::runtime::{Loaded, ModelInfo, RequestSettings};
use crate::workloads::encode::{
    self, EncodeItem, GraphUse, OutputKind, Outputs, Parts, PassKind, Pipeline, Session, Texts,
};
use derive_setters::Setters;
use sconce_hub::{Files, Progress, Reference};
use sconce_models::{Backbone, Batch, Limits};
use sconce_ops::{DType, Device, Linear, Pooling, Tensor, l2_norm, pool};
use sconce_text::{Reader, TextOrTokens, Truncate};

/// Options for embeddings.
#[derive(Clone, Debug, Default, PartialEq, Eq, Setters)]
#[setters(prefix = "with_")]
#[non_exhaustive]
pub struct EmbedOptions {
    /// The prompt before each text.
    pub prompt: Prompt,
    /// Whether to L2-normalize; `None`: as the model's files say.
    pub normalize: Option<bool>,
    /// Truncates embeddings to this many dimensions, for models trained for it (Matryoshka), and
    /// L2-normalizes them again unless `normalize` is false.
    pub dimensions: Option<usize>,
    /// How a text's hidden states become one vector; `None`: as the model's files say. The modules
    /// after the pooling run as always. For no pooling at all, see [`Embedder::embed_all`].
    pub pooling: Option<Pooling>,
    /// The task whose weights apply, for models that have weights of their own for several tasks
    /// (see [`Embedder::tasks`]); `None`: the task of the prompt's name, if there is one.
    pub task: Option<String>,
}

/// Embeddings of several texts.
#[derive(Clone, Debug, Default)]
pub struct Embeddings {
    /// All rows, one after another, in the order of the texts.
    pub values: Vec<f32>,
    /// Dimension of an embedding.
    pub dimension: usize,
    /// Tokens of each text, after truncation.
    pub tokens: Vec<usize>,
    /// Indices of the texts that were too long and were truncated.
    pub truncated: Vec<usize>,
}

impl Embeddings {
    /// The embedding of text `i`.
    pub fn row(&self, i: usize) -> &[f32] {
        &self.values[i * self.dimension..][..self.dimension]
    }

    /// All embeddings, in the order of the texts.
    pub fn rows(&self) -> impl Iterator<Item = &[f32]> {
        self.values.chunks_exact(self.dimension.max(1))
    }

    /// Truncates each embedding to its first `dimension` numbers and L2-normalizes it again: for
    /// models trained for it (Matryoshka, Kusupati et al. 2022, arXiv:2205.13147).
    pub fn cut(self, dimension: usize) -> Result<Embeddings> {
        check_dimension(dimension, self.dimension)?;
        let values = self.rows().flat_map(|row| l2_normalize(&row[..dimension])).collect();
        Ok(Embeddings { values, dimension, ..self })
    }
}

fn check_dimension(dimension: usize, of: usize) -> Result<()> {
    match dimension {
        n if (1..=of).contains(&n) => Ok(()),
        n => Err(Error::Input(format!("the model has {of} dimensions, so {n} cannot be chosen: use 1 to {of}"))),
    }
}

pub(super) fn l2_normalize(row: &[f32]) -> Vec<f32> {
    let length = row.iter().map(|v| f64::from(*v).powi(2)).sum::<f64>().sqrt().max(1e-12);
    row.iter().map(|v| (f64::from(*v) / length) as f32).collect()
}

/// A sentence-transformers model, or a GGUF file of one, loaded and checked.
///
/// ```no_run
/// use sconce_engine::{Embedder, LoadOptions, Prompt};
///
/// let embedder = Embedder::load(&"minilm".parse()?, &LoadOptions::from_env()?, &())?;
/// let embeddings = embedder.embed(&["A man is eating food.", "Someone has lunch."], &Prompt::Default)?;
/// let cosine: f32 = embeddings.row(0).iter().zip(embeddings.row(1)).map(|(a, b)| a * b).sum();
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[derive(Clone)]
pub struct Embedder {
    pub(super) session: Session<SentencePipeline>,
}

impl Loaded for Embedder {
    fn model(&self) -> &ModelInfo {
        &self.session.info
    }
    fn settings(&mut self) -> &mut RequestSettings {
        &mut self.session.settings
    }
}

impl TaskType for Embedder {
    fn serves(facts: &FileFacts) -> bool {
        let is_pooled = facts.has_module("Pooling") || facts.has_module("StaticEmbedding");
        is_pooled || (facts.is_gguf_embedder() && !facts.is_sequence_classifier())
    }
    fn also_reads(_: &FileFacts) -> bool {
        // Hidden states of any encoder can be pooled.
        true
    }
    fn plan_files(files: &Files, device: Device, options: &LoadOptions) -> Result<Plan> {
        encode::plan::<SentencePipeline>(files, device, options, SentenceSpec::read)
    }
    fn load_files(files: &Files, options: &LoadOptions, progress: &dyn Progress) -> Result<Embedder> {
        Ok(Embedder { session: Session::load(files, options, progress, SentenceSpec::read)? })
    }
}

impl Embedder {
    /// Finds the files, plans, loads and checks the model. Fails before loading if the plan says
    /// that it cannot run or does not fit.
    pub fn load(reference: &Reference, options: &LoadOptions, progress: &dyn Progress) -> Result<Embedder> {
        super::load(reference, options, progress)
    }

    /// Embeddings of `texts`, in their order. The embedding of a text does not depend on the
    /// others.
    pub fn embed<T: AsRef<str> + Sync>(&self, texts: &[T], prompt: &Prompt) -> Result<Embeddings> {
        let inputs: Vec<_> = texts.iter().map(|text| TextOrTokens::Text(text.as_ref())).collect();
        self.embed_with(&inputs, &EmbedOptions { prompt: prompt.clone(), ..EmbedOptions::default() })
    }

    /// Embeddings of texts or tokens, with options. Inputs given as tokens get no prompt.
    pub fn embed_with(&self, inputs: &[TextOrTokens<'_>], options: &EmbedOptions) -> Result<Embeddings> {
        let dimension = self.check_options(options)?;
        let Texts { items, tokens, truncated } = self.read(inputs, &options.prompt)?;
        let values = self.embed_items(items, options, dimension)?;
        Ok(Embeddings { values, dimension, tokens, truncated })
    }

    /// The dimension of embeddings with these options.
    pub(super) fn check_options(&self, options: &EmbedOptions) -> Result<usize> {
        let pooled = self.dimension(options.pooling)?;
        let dimension = options.dimensions.unwrap_or(pooled);
        check_dimension(dimension, pooled)?;
        Ok(dimension)
    }

    /// Whether embeddings with these options are L2-normalized.
    pub(super) fn normalizes(&self, options: &EmbedOptions) -> Result<bool> {
        let own = self.session.spec.tail.last() == Some(&Module::Normalize);
        let is_truncated = self.check_options(options)? < self.dimension(options.pooling)?;
        Ok(options.normalize.unwrap_or(own || is_truncated))
    }

    /// The embeddings of tokenized texts, one after another.
    pub(super) fn embed_items(
        &self,
        mut items: Vec<EncodeItem>,
        options: &EmbedOptions,
        dimension: usize,
    ) -> Result<Vec<f32>> {
        let (spec, plan) = (&self.session.spec, &self.session.plan);
        // If truncation leaves only the prompt, nothing is pooled: the embedding is all zeros, as
        // in sentence-transformers. Only a dense layer would change zeros; with one, the last token
        // is pooled.
        if !spec.tail.iter().any(|module| matches!(module, Module::Dense(_))) {
            items
                .iter_mut()
                .filter(|item| item.skip >= item.sequence.ids.len())
                .for_each(|item| *item = EncodeItem::default());
        }
        let is_normalized = spec.tail.last() == Some(&Module::Normalize);
        let is_quantized = spec.tail.last() == Some(&Module::TanhInt8);
        let mut values = vec![0f32; items.len() * dimension];
        let output = options.pooling.map_or(OutputKind::Task, OutputKind::Pooled);
        let kind = PassKind { output, task: spec.task(&options.prompt, options.task.as_deref())? };
        self.session.run_for(kind, items, |i, results| {
            // The last output is the embedding before L2 normalization, if there is one.
            let [.., before] = results else { return Err(Error::bug(plan.device, "no result")) };
            let row = if options.normalize == Some(false) { before } else { results[0] };
            let is_truncated = dimension < row.len();
            let normalize_again = match options.normalize {
                Some(false) => false,
                Some(true) => is_truncated || !is_normalized,
                None => is_truncated,
            };
            let target = &mut values[i * dimension..][..dimension];
            let quantized: Vec<f32>;
            let row: &[f32] = match is_quantized {
                true => {
                    quantized = row.iter().map(|v| (v.tanh() * 127.0).round_ties_even()).collect();
                    &quantized
                }
                false => row,
            };
            match normalize_again {
                true => target.copy_from_slice(&l2_normalize(&row[..dimension])),
                false => target.copy_from_slice(&row[..dimension]),
            }
            Ok(())
        })?;
        Ok(values)
    }

    /// The dimension of embeddings with this pooling; `None`: as the model's files say. Fails if
    /// the model cannot be pooled like this.
    pub fn dimension(&self, pooling: Option<Pooling>) -> Result<usize> {
        let (spec, own) = (&self.session.spec, self.session.plan.dimension);
        if pooling.is_none() || spec.poolings.len() == 1 {
            return Ok(own);
        }
        if spec.tail.iter().any(|module| matches!(module, Module::Dense(_))) {
            let what = format!(
                "the model's dense layer takes {} poolings together, so a single one cannot be chosen: leave it out",
                spec.poolings.len()
            );
            return Err(Error::Input(what));
        }
        Ok(own / spec.poolings.len())
    }

    /// How the tokens' hidden states are pooled; several poolings are concatenated.
    pub fn poolings(&self) -> &[Pooling] {
        &self.session.spec.poolings
    }

    /// The last hidden state of every token: not pooled, and without the modules after the pooling.
    pub fn embed_all(&self, inputs: &[TextOrTokens<'_>], prompt: &Prompt) -> Result<Outputs<MultiVector>> {
        let texts = self.read(inputs, prompt)?;
        let tokens = texts.tokens.clone();
        let kind = PassKind { output: OutputKind::HiddenStates, task: self.session.spec.task(prompt, None)? };
        self.session.outputs(kind, texts, |i, results| {
            Ok(MultiVector { values: results[0].to_vec(), dimension: results[0].len() / tokens[i].max(1) })
        })
    }

    fn read(&self, inputs: &[TextOrTokens<'_>], prompt: &Prompt) -> Result<Texts> {
        let is_tokens = |input: &TextOrTokens<'_>| matches!(input, TextOrTokens::Tokens(_));
        if *prompt != Prompt::Default && inputs.iter().any(is_tokens) {
            let what = "a prompt can only be put before texts, and some inputs are tokens: give texts, or leave the prompt out";
            return Err(Error::Input(what.into()));
        }
        let spec = &self.session.spec;
        let prompt = spec.prompt(prompt)?;
        self.session.read(|reader| {
            let skip = self.skip(reader, prompt)?;
            if skip > 0 && reader.truncate() == Truncate::Left {
                let what = "texts cannot be truncated on the left, because the model excludes the prompt from pooling";
                return Err(Error::Input(what.into()));
            }
            let mut texts = Texts::of(reader.encode_inputs(inputs, prompt)?, skip);
            let given = texts.items.iter_mut().zip(inputs).filter(|(_, input)| is_tokens(input));
            given.for_each(|(item, _)| item.skip = 0);
            Ok(texts)
        })
    }

    /// Leading tokens that belong to the prompt and are not pooled.
    pub(super) fn skip(&self, reader: Reader<'_>, prompt: &str) -> Result<usize> {
        let is_pooled = prompt.is_empty() || self.session.spec.include_prompt;
        Ok(if is_pooled { 0 } else { reader.prompt_tokens(prompt)? })
    }

    /// The text of a prompt.
    pub fn prompt<'a>(&'a self, prompt: &'a Prompt) -> Result<&'a str> {
        self.session.spec.prompt(prompt)
    }

    /// The name of the model's default prompt, if it has one.
    pub fn default_prompt(&self) -> Option<&str> {
        self.session.spec.default_prompt.as_deref()
    }

    /// Names of the tasks for which the model has weights of its own (a LoRA for each). Without one
    /// of them, the weights that they share apply.
    pub fn tasks(&self) -> &[String] {
        &self.session.spec.tasks
    }

    /// Names of the model's prompts.
    pub fn prompts(&self) -> impl Iterator<Item = &str> {
        self.session.spec.prompts.keys().map(String::as_str)
    }
}

/// Encoder, pooling and the modules after it.
pub(crate) struct SentencePipeline {
    encoder: Box<dyn Backbone>,
    /// The encoder is a graph that has the pooling and the modules after it.
    is_pooled: bool,
    poolings: Vec<Pooling>,
    tail: Vec<Stage>,
    dimension: usize,
    unread: Vec<String>,
}

enum Stage {
    Dense(Linear),
    Normalize,
}

impl Pipeline for SentencePipeline {
    type Spec = SentenceSpec;
    const IN_GGUF: bool = true;
    const GRAPH: GraphUse = GraphUse::Texts;

    fn input_spec(spec: &SentenceSpec) -> &InputSpec {
        &spec.input_spec
    }

    fn load(parts: &Parts, spec: &SentenceSpec) -> Result<SentencePipeline> {
        let (encoder, is_pooled) = parts.encoder_or_graph()?;
        // A graph that pools has the modules after the pooling too.
        let (poolings, modules) = if is_pooled { (1, &[][..]) } else { (spec.poolings.len(), &spec.tail[..]) };
        let mut dimension = encoder.hidden_size() * poolings;
        let (mut tail, mut unread) = (Vec::new(), Vec::new());
        for module in modules {
            tail.push(match module {
                Module::Normalize => Stage::Normalize,
                // On the host, from the result.
                Module::TanhInt8 => continue,
                Module::Dense(dense) => {
                    // Embeddings are f32 from the pooling on.
                    let (linear, not_read) = parts.dense(dense, dimension, DType::F32)?;
                    dimension = dense.outputs;
                    unread.extend(not_read);
                    Stage::Dense(linear)
                }
            });
        }
        Ok(SentencePipeline { encoder, is_pooled, poolings: spec.poolings.clone(), tail, dimension, unread })
    }

    fn limits(&self) -> Limits {
        self.encoder.limits()
    }

    fn width(&self) -> usize {
        self.dimension
    }

    /// f32 `[sequences, dimension]`; if the last module L2-normalizes, also its input.
    fn forward(&self, batch: &Batch, skips: &[usize]) -> Result<Vec<Tensor>> {
        self.embed(batch, skips, &self.poolings)
    }

    fn forward_pooled(&self, batch: &Batch, skips: &[usize], pooling: Pooling) -> Result<Vec<Tensor>> {
        self.refuse_pooled("takes no other pooling")?;
        self.embed(batch, skips, &[pooling])
    }

    /// `[tokens, hidden]`.
    fn hidden(&self, batch: &Batch) -> Result<Tensor> {
        self.refuse_pooled("gives no vectors of single tokens")?;
        Ok(self.encoder.forward(batch, &mut |_, _| {})?)
    }

    fn tasks(&self) -> usize {
        self.encoder.tasks().len()
    }

    fn unread(&self) -> Vec<String> {
        self.unread.clone()
    }
}

impl SentencePipeline {
    /// Refuses what a graph that pools by itself cannot do.
    fn refuse_pooled(&self, what: &str) -> Result<()> {
        match self.is_pooled {
            true => {
                Err(Error::Input(format!("the model's graph has the pooling in it, so it {what}; export it without")))
            }
            false => Ok(()),
        }
    }

    fn embed(&self, batch: &Batch, skips: &[usize], poolings: &[Pooling]) -> Result<Vec<Tensor>> {
        if self.is_pooled {
            if skips.iter().any(|skip| *skip > 0) {
                self.refuse_pooled("cannot leave the prompt out of it")?;
            }
            return Ok(vec![self.encoder.forward(batch, &mut |_, _| {})?]);
        }
        let hidden = self.hidden(batch)?;
        let mut y = pool(&hidden, &batch.segments, skips, poolings)?;
        drop(hidden);
        for (i, stage) in self.tail.iter().enumerate() {
            y = match stage {
                Stage::Dense(linear) => linear.forward(&y)?,
                Stage::Normalize if i + 1 == self.tail.len() => return Ok(vec![l2_norm(&y)?, y]),
                Stage::Normalize => l2_norm(&y)?,
            };
        }
        Ok(vec![y])
    }
}
