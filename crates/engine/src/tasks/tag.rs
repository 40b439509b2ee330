//! Token classification (NER): names, places, parts of speech.

use super::TaskType;
use super::classify::{Scores, check_labels, labels};
use crate::config::{FileFacts, InputSpec, plain_input_spec};
use crate::error::{Error, Result};
use crate::options::LoadOptions;
use crate::plan::Plan;
use crate::runtime::{Loaded, ModelInfo, RequestSettings};
use crate::workloads::encode::{self, GraphUse, OutputKind, Outputs, Parts, Pipeline, Rows, Session, Texts};
use derive_setters::Setters;
use sconce_formats::json;
use sconce_hub::{Files, Progress, Reference};
use sconce_models::{Backbone, Batch, Head, Limits, Task as HeadTask, head};
use sconce_ops::{Device, Tensor};
use sconce_text::aggregate::{Entity, Labels, Scored, Strategy, aggregate, merge_windows};
use sconce_text::words::{Continuation, Placed};
use sconce_text::{Encoded, Window, Windowing};
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

/// Options for tagging.
#[derive(Clone, Debug, PartialEq, Setters)]
#[setters(prefix = "with_")]
#[non_exhaustive]
pub struct TagOptions {
    /// How tokens become entities.
    pub strategy: Strategy,
    /// Entities with a lower score are left out.
    pub threshold: f32,
    /// Labels to leave out.
    pub ignore: Vec<String>,
    /// Reads a text that is longer than the model in windows, instead of truncating it. Windows
    /// share this many tokens, at most half of a window. Where entities of two windows overlap, the
    /// longer one stays, or the one with the higher score, as in transformers' pipeline. Not for
    /// [`Strategy::None`].
    pub stride: Option<usize>,
}

impl Default for TagOptions {
    fn default() -> TagOptions {
        TagOptions { strategy: Strategy::default(), threshold: 0.0, ignore: vec!["O".into()], stride: None }
    }
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
        self.tag_with(texts, &TagOptions { strategy, threshold, ..TagOptions::default() })
    }

    /// Like [`Tagger::tag`], with options.
    pub fn tag_with<T: AsRef<str> + Sync>(&self, texts: &[T], options: &TagOptions) -> Result<Outputs<Vec<Entity>>> {
        let (tokenizer, spec) = (&self.session.text, &self.session.spec);
        let windows = self.windows(texts, options)?;
        let join = |tokens: Vec<String>| tokenizer.join(tokens);
        let meaning = Labels { names: &spec.labels, ignore: &options.ignore, join: &join };
        let (mut items, mut parts) = (Vec::new(), Vec::new());
        let mut outputs = Outputs { results: vec![Vec::new(); texts.len()], ..Outputs::default() };
        for (text, windows) in windows.into_iter().enumerate() {
            outputs.tokens.push(windows.iter().map(|(encoded, _)| encoded.ids.len()).sum());
            outputs.truncated.extend(windows.iter().any(|(encoded, _)| encoded.truncated).then_some(text));
            parts.extend(windows.iter().map(|_| text));
            items.extend(windows);
        }
        let (encoded, places): (Vec<_>, Vec<_>) = items.into_iter().unzip();
        let mut found = vec![Vec::new(); parts.len()];
        // Windows of a text follow each other in most micro-batches.
        let mut current: (usize, Vec<char>) = (usize::MAX, Vec::new());
        self.session.run(Texts::of(encoded, 0).items, |i, results| {
            if current.0 != parts[i] {
                current = (parts[i], texts[parts[i]].as_ref().chars().collect());
            }
            let width = spec.labels.len();
            let scores: Vec<Vec<f32>> = results[0].chunks_exact(width).map(|row| Scores::Softmax.apply(row)).collect();
            let scored = places[i].iter().zip(&scores).map(|(place, scores)| {
                let (token, subword) = self.continuation.of_token(tokenizer.inner(), &current.1, place);
                Scored { scores, token, start: place.start, end: place.end, special: place.special, subword }
            });
            found[i] = aggregate(&scored.collect::<Vec<_>>(), options.strategy, &meaning);
            Ok(())
        })?;
        let mut found = found.into_iter();
        for (text, windows) in parts.chunk_by(|a, b| a == b).map(|same| (same[0], same.len())) {
            let own = found.by_ref().take(windows).flatten().collect();
            let mut entities = if windows > 1 { merge_windows(own) } else { own };
            entities.retain(|e| e.score >= options.threshold);
            outputs.results[text] = entities;
        }
        Ok(outputs)
    }

    /// The tokens of each text in one window, or in as many as they need.
    fn windows<T: AsRef<str> + Sync>(&self, texts: &[T], options: &TagOptions) -> Result<Vec<Placements>> {
        if options.stride.is_none() {
            let encoded = self.session.read(|reader| reader.encode_placed(texts))?;
            return Ok(encoded.into_iter().map(|one| vec![one]).collect());
        }
        if options.strategy == Strategy::None {
            let what = "a stride needs an aggregation strategy: single tokens of overlapping windows cannot be merged; \
                        use simple, first, average or max";
            return Err(Error::Input(what.into()));
        }
        let windowing = Windowing { prompt: "", tokens: usize::MAX, overlap: options.stride };
        let windows = self.session.read(|reader| reader.encode_windows(texts, windowing))?;
        let placed = |windows: Vec<Window>| windows.into_iter().map(|w| (w.encoded, w.places)).collect();
        Ok(windows.into_iter().map(placed).collect())
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

/// The windows of a text: their tokens and where these are.
type Placements = Vec<(Encoded, Vec<Placed>)>;

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
    const GRAPH: GraphUse = GraphUse::Texts;

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
