//! Token classification (NER): names, places, parts of speech.

use super::TaskType;
use super::classify::{Scores, check_labels, labels};
use crate::config::{FileFacts, InputSpec, plain_input_spec};
use crate::error::{Error, Result};
use crate::options::LoadOptions;
use crate::plan::Plan;
use crate::runtime::{Loaded, ModelInfo, RequestSettings};
use crate::workloads::encode::{self, OutputKind, Outputs, Parts, Pipeline, Rows, Session, Texts};
use sconce_formats::json;
use sconce_hub::{Files, Progress, Reference};
use sconce_models::{Backbone, Batch, Head, Limits, Task as HeadTask, head};
use sconce_ops::{Device, Tensor};
use sconce_text::aggregate::{Entity, Labels, Scored, Strategy, aggregate};
use sconce_text::words::{Continuation, Placed};
use serde_json::Value;
use std::path::Path;

/// A token with the probability of each label.
#[derive(Clone, Debug, PartialEq)]
pub struct TokenScores {
    /// The token's id.
    pub id: u32,
    /// Where it begins in the text, in characters.
    pub start: usize,
    /// Where it ends, exclusive.
    pub end: usize,
    /// Whether the tokenizer added it.
    pub special: bool,
    /// The probabilities, in the order of [`Tagger::labels`].
    pub scores: Vec<f32>,
}

/// A model with a head for token classification, loaded and checked.
///
/// ```no_run
/// use sconce_engine::{LoadOptions, Strategy, Tagger};
///
/// let tagger = Tagger::load(&"dslim/bert-base-NER".parse()?, &LoadOptions::from_env()?, &())?;
/// // One label per word; entities below a score of 0.5 are left out.
/// for entity in &tagger.tag(&["Zoë moved to New York."], Strategy::First, 0.5)?.results[0] {
///     println!("{} {}..{}", entity.label, entity.start, entity.end);
/// }
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[derive(Clone)]
pub struct Tagger {
    session: Session<TaggerPipeline>,
    continuation: Continuation,
}

impl Loaded for Tagger {
    fn model(&self) -> &ModelInfo {
        &self.session.info
    }
    fn settings(&mut self) -> &mut RequestSettings {
        &mut self.session.settings
    }
}

impl TaskType for Tagger {
    fn serves(facts: &FileFacts) -> bool {
        facts.class().ends_with("ForTokenClassification")
    }
    fn plan_files(files: &Files, device: Device, options: &LoadOptions) -> Result<Plan> {
        encode::plan::<TaggerPipeline>(files, device, options, TagSpec::read)
    }
    fn load_files(files: &Files, options: &LoadOptions, progress: &dyn Progress) -> Result<Tagger> {
        let session: Session<TaggerPipeline> = Session::load(files, options, progress, TagSpec::read)?;
        let continuation = Continuation::of(session.text.inner());
        Ok(Tagger { session, continuation })
    }
}

impl Tagger {
    /// Finds the files, plans, loads and checks the model.
    pub fn load(reference: &Reference, options: &LoadOptions, progress: &dyn Progress) -> Result<Tagger> {
        super::load(reference, options, progress)
    }

    /// The entities of each text with a score of at least `threshold`, without those labelled `O`.
    /// Offsets count characters, not bytes.
    pub fn tag<T: AsRef<str> + Sync>(
        &self,
        texts: &[T],
        strategy: Strategy,
        threshold: f32,
    ) -> Result<Outputs<Vec<Entity>>> {
        let (tokenizer, spec) = (&self.session.text, &self.session.spec);
        let encoded = self.session.read(|reader| reader.encode_placed(texts))?;
        let (encoded, places): (Vec<_>, Vec<_>) = encoded.into_iter().unzip();
        let join = |tokens: Vec<String>| tokenizer.join(tokens);
        let meaning = Labels { names: &spec.labels, ignore: &["O".to_string()], join: &join };
        self.session.outputs(OutputKind::Task, Texts::of(encoded, 0), |i, results| {
            let chars: Vec<char> = texts[i].as_ref().chars().collect();
            let width = spec.labels.len();
            let scores: Vec<Vec<f32>> = results[0].chunks_exact(width).map(|row| Scores::Softmax.apply(row)).collect();
            let scored = places[i].iter().zip(&scores).map(|(place, scores)| {
                let (token, subword) = self.continuation.of_token(tokenizer.inner(), &chars, place);
                Scored { scores, token, start: place.start, end: place.end, special: place.special, subword }
            });
            let mut entities = aggregate(&scored.collect::<Vec<_>>(), strategy, &meaning);
            entities.retain(|e| e.score >= threshold);
            Ok(entities)
        })
    }

    /// The probability of every label for each token of each text, special tokens included.
    pub fn scores<T: AsRef<str> + Sync>(&self, texts: &[T]) -> Result<Outputs<Vec<TokenScores>>> {
        let width = self.session.spec.labels.len();
        let encoded = self.session.read(|reader| reader.encode_placed(texts))?;
        let (encoded, places): (Vec<_>, Vec<_>) = encoded.into_iter().unzip();
        self.session.outputs(OutputKind::Task, Texts::of(encoded, 0), |i, results| {
            let rows = results[0].chunks_exact(width).map(|row| Scores::Softmax.apply(row));
            let token = |(place, scores): (&Placed, Vec<f32>)| TokenScores {
                id: place.id,
                start: place.start,
                end: place.end,
                special: place.special,
                scores,
            };
            Ok(places[i].iter().zip(rows).map(token).collect())
        })
    }

    /// The labels, in the order of the model's outputs.
    pub fn labels(&self) -> &[String] {
        &self.session.spec.labels
    }
}

/// The labels and settings from the model's files.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct TagSpec {
    input_spec: InputSpec,
    labels: Vec<String>,
}

impl TagSpec {
    pub(crate) fn read(dir: &Path) -> Result<TagSpec> {
        let path = dir.join("config.json");
        let config: Value = json(&path)?;
        let labels = labels(&config).map_err(|what| Error::file(&path, what))?;
        Ok(TagSpec { input_spec: plain_input_spec(dir)?, labels })
    }
}

/// An encoder with a head over every token, or a graph that has both.
pub(crate) struct TaggerPipeline {
    encoder: Box<dyn Backbone>,
    /// `None`: the encoder is a graph whose rows are the logits.
    head: Option<Head>,
}

impl Pipeline for TaggerPipeline {
    type Spec = TagSpec;
    const BY_GRAPH: bool = true;

    fn input_spec(spec: &TagSpec) -> &InputSpec {
        &spec.input_spec
    }

    fn load(parts: &Parts, spec: &TagSpec) -> Result<TaggerPipeline> {
        if let Some(encoder) = parts.graph_logits(Rows::Tokens, spec.labels.len())? {
            return Ok(TaggerPipeline { encoder, head: None });
        }
        let encoder = parts.encoder()?;
        let head = head(HeadTask::Tag, &parts.config, &parts.weights)?;
        check_labels(&parts.root, &spec.labels, &head)?;
        Ok(TaggerPipeline { encoder, head: Some(head) })
    }

    fn limits(&self) -> Limits {
        self.encoder.limits()
    }

    fn width(&self) -> usize {
        self.head.as_ref().map_or_else(|| self.encoder.hidden_size(), |head| head.out.outputs())
    }

    /// `[tokens, labels]`.
    fn forward(&self, batch: &Batch, _: &[usize]) -> Result<Vec<Tensor>> {
        let hidden = self.encoder.forward(batch, &mut |_, _| {})?;
        Ok(vec![self.head.as_ref().map_or(Ok(hidden.clone()), |head| head.forward(&hidden))?])
    }
}
