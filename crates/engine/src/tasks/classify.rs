//! Classification of texts and text pairs.

use super::TaskType;
use crate::config::{FileFacts, InputSpec, plain_input_spec};
use crate::error::{Error, Result};
use crate::options::LoadOptions;
use crate::plan::Plan;
use crate::runtime::{Loaded, ModelInfo, RequestSettings};
use crate::workloads::encode::{self, GraphUse, OutputKind, Outputs, Parts, Pipeline, Rows, Session, Texts};
use sconce_formats::{Model, is_gguf, json};
use sconce_hub::{Files, Progress, Reference};
use sconce_models::{Backbone, Batch, Head, Limits, Task as HeadTask, answer_head, head};
use sconce_ops::{DType, Device, Pooling, Tensor, pool};
use sconce_text::TextOrPair;
use serde_json::Value;
use std::path::Path;

/// How logits become scores.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Scores {
    /// Exactly one label applies: the scores sum to one.
    Softmax,
    /// Each label applies or not, independently of the others.
    Sigmoid,
    /// The logits themselves: a regression.
    Raw,
}

impl Scores {
    /// Turns a row of logits into scores, without overflow for any finite logit.
    pub fn apply(self, logits: &[f32]) -> Vec<f32> {
        match self {
            Scores::Raw => logits.to_vec(),
            Scores::Sigmoid => logits.iter().map(|x| sigmoid(*x)).collect(),
            Scores::Softmax => {
                let largest = logits.iter().copied().fold(f32::NEG_INFINITY, f32::max);
                let e: Vec<f64> = logits.iter().map(|x| f64::from(x - largest).exp()).collect();
                let sum: f64 = e.iter().sum();
                e.iter().map(|e| (e / sum) as f32).collect()
            }
        }
    }
}

/// 1 / (1 + e⁻ˣ), computed so that the exponential cannot overflow.
pub(crate) fn sigmoid(x: f32) -> f32 {
    let e = (-f64::from(x).abs()).exp();
    (if x < 0.0 { e / (1.0 + e) } else { 1.0 / (1.0 + e) }) as f32
}

/// A label and its score.
#[derive(Clone, Debug, PartialEq)]
pub struct Label {
    /// Its name in the model's configuration.
    pub label: String,
    /// Its score.
    pub score: f32,
}

/// A model with a head for sequence classification, loaded and checked.
///
/// ```no_run
/// use sconce_engine::{Classifier, LoadOptions};
///
/// let model = "distilbert/distilbert-base-uncased-finetuned-sst-2-english".parse()?;
/// let classifier = Classifier::load(&model, &LoadOptions::from_env()?, &())?;
/// for label in &classifier.classify(&["What a lovely day.".into()], false)?.results[0] {
///     println!("{} {:.3}", label.label, label.score);
/// }
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[derive(Clone)]
pub struct Classifier {
    session: Session<ClassifierPipeline>,
}

impl Loaded for Classifier {
    fn model(&self) -> &ModelInfo {
        &self.session.info
    }
    fn settings(&mut self) -> &mut RequestSettings {
        &mut self.session.settings
    }
}

impl TaskType for Classifier {
    fn serves(facts: &FileFacts) -> bool {
        facts.is_sequence_classifier()
    }
    fn plan_files(files: &Files, device: Device, options: &LoadOptions) -> Result<Plan> {
        encode::plan::<ClassifierPipeline>(files, device, options, ClassifierSpec::read)
    }
    fn load_files(files: &Files, options: &LoadOptions, progress: &dyn Progress) -> Result<Classifier> {
        Ok(Classifier { session: Session::load(files, options, progress, ClassifierSpec::read)? })
    }
}

impl Classifier {
    /// Finds the files, plans, loads and checks the model.
    pub fn load(reference: &Reference, options: &LoadOptions, progress: &dyn Progress) -> Result<Classifier> {
        super::load(reference, options, progress)
    }

    /// All labels of each text, best first. `raw` returns the logits themselves.
    pub fn classify(&self, texts: &[TextOrPair<'_>], raw: bool) -> Result<Outputs<Vec<Label>>> {
        let ClassifierSpec { labels, scores, .. } = &self.session.spec;
        let scores = if raw { Scores::Raw } else { *scores };
        let encoded = self.session.read(|reader| reader.encode_pairs(texts))?;
        self.session.outputs(OutputKind::Task, Texts::of(encoded, 0), |_, results| {
            let named = labels.iter().zip(scores.apply(results[0]));
            let mut all: Vec<_> = named.map(|(label, score)| Label { label: label.clone(), score }).collect();
            all.sort_by(|a, b| b.score.total_cmp(&a.score));
            Ok(all)
        })
    }

    /// The logits of each text, in the order of [`Classifier::labels`].
    pub fn logits(&self, texts: &[TextOrPair<'_>]) -> Result<Outputs<Vec<f32>>> {
        let encoded = self.session.read(|reader| reader.encode_pairs(texts))?;
        self.session.outputs(OutputKind::Task, Texts::of(encoded, 0), |_, results| Ok(results[0].to_vec()))
    }

    /// The number of tokens of each text or pair as the model reads it: with special tokens, and
    /// truncated.
    pub fn count_tokens(&self, texts: &[TextOrPair<'_>]) -> Result<Vec<usize>> {
        let encoded = self.session.read(|reader| reader.encode_pairs(texts))?;
        Ok(encoded.iter().map(|e| e.ids.len()).collect())
    }

    /// How the model's files turn logits into scores.
    pub fn scores(&self) -> Scores {
        self.session.spec.scores
    }

    /// The labels, in the order of the model's outputs.
    pub fn labels(&self) -> &[String] {
        &self.session.spec.labels
    }
}

/// The labels and settings from the model's files.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct ClassifierSpec {
    pub(crate) input_spec: InputSpec,
    pub(crate) labels: Vec<String>,
    pub(crate) scores: Scores,
    /// Whether the head begins with BERT's pooler, which can be left out.
    pub(crate) has_pooler: bool,
    /// The tokens whose logits are the outputs of a language model used as reranker: "yes" and
    /// "no", or "Yes" alone. Empty for a model with a head; see [`super::rerank`].
    pub(crate) answers: Vec<u32>,
}

impl ClassifierSpec {
    pub(crate) fn read(dir: &Path) -> Result<ClassifierSpec> {
        let in_gguf = is_gguf(dir);
        let path = if in_gguf { dir.to_path_buf() } else { dir.join("config.json") };
        let config: Value = if in_gguf { Model::open(dir)?.config } else { json(&path)? };
        let labels = labels(&config).map_err(|what| Error::file(&path, what))?;
        let scores = match config.get("problem_type").and_then(Value::as_str) {
            Some("regression") => Scores::Raw,
            Some("multi_label_classification") => Scores::Sigmoid,
            Some("single_label_classification") | None if labels.len() == 1 => Scores::Sigmoid,
            Some("single_label_classification") | None => Scores::Softmax,
            Some(other) => return Err(Error::file(&path, format!("problem_type `{other}` is not supported"))),
        };
        let input_spec = plain_input_spec(dir)?;
        let has_pooler = config.get("model_type").and_then(Value::as_str) == Some("bert");
        Ok(ClassifierSpec { input_spec, labels, scores, has_pooler, answers: Vec::new() })
    }
}

/// `id2label` in the order of the ids; two labels by default, as in transformers.
pub(crate) fn labels(config: &Value) -> Result<Vec<String>, String> {
    let Some(map) = config.get("id2label").and_then(Value::as_object) else {
        let n = config.get("num_labels").or(config.get("_num_labels")).and_then(Value::as_u64).unwrap_or(2);
        return match n {
            1..=100_000 => Ok((0..n).map(|i| format!("LABEL_{i}")).collect()),
            n => Err(format!("num_labels is {n}; 1 to 100000 are supported")),
        };
    };
    let label = |i: usize| match map.get(&i.to_string()) {
        Some(Value::String(label)) => Ok(label.clone()),
        // Some files have numbers as labels.
        Some(other) if !other.is_null() => Ok(other.to_string()),
        _ => Err(format!("id2label has {} entries but none for id {i}", map.len())),
    };
    (0..map.len()).map(label).collect()
}

/// An encoder with a classification head, or a graph that has both.
pub(crate) struct ClassifierPipeline {
    encoder: Box<dyn Backbone>,
    /// `None`: the encoder is a graph whose rows are the logits.
    head: Option<Head>,
}

impl Pipeline for ClassifierPipeline {
    type Spec = ClassifierSpec;
    const IN_GGUF: bool = true;
    const GRAPH: GraphUse = GraphUse::Texts;

    fn input_spec(spec: &ClassifierSpec) -> &InputSpec {
        &spec.input_spec
    }

    fn load(parts: &Parts, spec: &ClassifierSpec) -> Result<ClassifierPipeline> {
        if let Some(encoder) = parts.graph_logits(Rows::Sequences, spec.labels.len())? {
            return Ok(ClassifierPipeline { encoder, head: None });
        }
        let encoder = parts.sequence_encoder()?;
        // Pooled rows are f32, and so is the head.
        let weights = parts.weights.of_head().in_dtype(DType::F32);
        let head = match &spec.answers[..] {
            [] => head(HeadTask::Classify, &parts.config, &weights)?,
            answers => answer_head(&parts.config, &weights, answers)?,
        };
        check_labels(&parts.root, &spec.labels, &head)?;
        Ok(ClassifierPipeline { encoder, head: Some(head) })
    }

    fn limits(&self) -> Limits {
        self.encoder.limits()
    }

    fn width(&self) -> usize {
        self.head.as_ref().map_or_else(|| self.encoder.hidden_size(), |head| head.out.outputs())
    }

    /// f32 `[sequences, labels]`.
    fn forward(&self, batch: &Batch, skips: &[usize]) -> Result<Vec<Tensor>> {
        let hidden = self.encoder.forward(batch, &mut |_, _| {})?;
        let Some(head) = &self.head else { return Ok(vec![hidden]) };
        let rows = head.pooled(&hidden, batch, skips)?;
        Ok(vec![head.forward(&rows)?])
    }

    /// BERT's classifier without its pooler.
    fn forward_pooled(&self, batch: &Batch, skips: &[usize], pooling: Pooling) -> Result<Vec<Tensor>> {
        let Some(head) = &self.head else {
            return Err(Error::Input("the model's graph has its pooler in it, so the pooling must be `pooler`".into()));
        };
        let hidden = self.encoder.forward(batch, &mut |_, _| {})?;
        Ok(vec![head.out.forward(&pool(&hidden, &batch.segments, skips, &[pooling])?)?])
    }
}

/// Checks that there are as many labels as logits.
pub(crate) fn check_labels(root: &Path, labels: &[String], head: &Head) -> Result<()> {
    if labels.len() == head.out.outputs() {
        return Ok(());
    }
    let what = format!("names {} labels, and the classifier in the weights has {}", labels.len(), head.out.outputs());
    Err(Error::file(&root.join("config.json"), what))
}
