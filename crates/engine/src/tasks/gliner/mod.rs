//! GLiNER: entities with labels that each request gives (zero-shot named entity recognition).

mod decode;

use super::TaskType;
use crate::config::{FileFacts, InputSpec, plain_input_spec};
use crate::error::{Error, Result};
use crate::options::LoadOptions;
use crate::plan::Plan;
use crate::runtime::{Loaded, ModelInfo, RequestSettings};
use crate::workloads::encode::{self, EncodeItem, OutputKind, Outputs, Parts, Pipeline, Session, Texts};
use sconce_formats::{GLINER_CONFIG, json};
use sconce_hub::{Files, Progress, Reference};
use sconce_models::{self as models, Batch, Limits, Marks, Sequence};
use sconce_ops::{Device, Tensor};
use sconce_text::Truncate;
use sconce_text::aggregate::Entity;
use sconce_text::words::split_words;
use serde::Deserialize;
use serde_json::Value;
use std::ops::Range;
use std::path::Path;

/// Which entities [`Gliner::tag`] returns.
#[derive(Clone, Debug, PartialEq)]
pub struct GlinerOptions {
    /// The score that an entity must exceed.
    pub threshold: f32,
    /// Whether an entity may lie inside another one.
    pub nested: bool,
    /// Whether a span may have several labels.
    pub multi_label: bool,
}

impl Default for GlinerOptions {
    fn default() -> GlinerOptions {
        GlinerOptions { threshold: 0.5, nested: false, multi_label: false }
    }
}

/// A GLiNER model, loaded and checked.
///
/// ```no_run
/// use sconce_engine::{Gliner, GlinerOptions, LoadOptions};
///
/// let model = Gliner::load(&"./gliner_small".parse()?, &LoadOptions::from_env()?, &())?;
/// let labels = ["person", "city"];
/// for entity in &model.tag(&["Zoë moved to New York."], &labels, &GlinerOptions::default())?.results[0] {
///     println!("{} {}..{}", entity.label, entity.start, entity.end);
/// }
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[derive(Clone)]
pub struct Gliner {
    session: Session<GlinerPipeline>,
}

impl Loaded for Gliner {
    fn model(&self) -> &ModelInfo {
        &self.session.info
    }

    fn settings(&mut self) -> &mut RequestSettings {
        &mut self.session.settings
    }
}

impl TaskType for Gliner {
    fn serves(facts: &FileFacts) -> bool {
        facts.is_gliner
    }

    fn plan_files(files: &Files, device: Device, options: &LoadOptions) -> Result<Plan> {
        encode::plan::<GlinerPipeline>(files, device, options, GlinerSpec::read)
    }

    fn load_files(files: &Files, options: &LoadOptions, progress: &dyn Progress) -> Result<Gliner> {
        Ok(Gliner { session: Session::load(files, options, progress, GlinerSpec::read)? })
    }
}

impl Gliner {
    /// Finds the model's files, plans and loads it.
    pub fn load(reference: &Reference, options: &LoadOptions, progress: &dyn Progress) -> Result<Gliner> {
        super::load(reference, options, progress)
    }

    /// The entities of each text that have one of `labels`, by their place in the text. Offsets count
    /// characters.
    ///
    /// Words after the model's longest text (`max_len`) are cut off, and the text is listed in
    /// [`Outputs::truncated`].
    pub fn tag<T: AsRef<str> + Sync, L: AsRef<str>>(
        &self,
        texts: &[T],
        labels: &[L],
        options: &GlinerOptions,
    ) -> Result<Outputs<Vec<Entity>>> {
        let spec = &self.session.spec;
        let mut names: Vec<&str> = Vec::new();
        for label in labels.iter().map(|label| label.as_ref()) {
            if !names.contains(&label) {
                names.push(label);
            }
        }
        if names.is_empty() {
            return Err(Error::Input("no labels: GLiNER looks for entities of the labels that a request gives".into()));
        }
        let (texts_in, words) = self.items(texts, &names)?;
        self.session.outputs(OutputKind::Task, texts_in, |i, results| {
            let (text, words) = (texts[i].as_ref(), &words[i]);
            let size = (words.len(), names.len());
            let found = match spec.max_width() {
                Some(width) => decode::of_spans(results[0], size, width, options.threshold),
                None => decode::of_words(results[0], size, options.threshold),
            };
            let entity = |candidate: decode::Candidate| {
                let (start, end) = (words[candidate.first].start, words[candidate.last].end);
                let word = text.chars().skip(start).take(end - start).collect();
                let label = names[candidate.label].to_owned();
                Entity { label, score: candidate.score, index: None, word, start, end }
            };
            Ok(decode::greedy(found, words.len(), options).into_iter().map(entity).collect())
        })
    }

    /// The sequences of the texts, and the place of each text's words that are in its sequence.
    fn items<T: AsRef<str> + Sync>(&self, texts: &[T], labels: &[&str]) -> Result<(Texts, Vec<Vec<Range<usize>>>)> {
        let spec = &self.session.spec;
        let mut prompt: Vec<&str> = Vec::new();
        for label in labels {
            prompt.push(&spec.config.ent_token);
            prompt.extend(Some(*label).filter(|label| !label.is_empty()));
        }
        prompt.push(&spec.config.sep_token);
        let mut truncated = Vec::new();
        let (mut words, mut inputs) = (Vec::new(), Vec::new());
        for (text, whole) in texts.iter().map(|text| text.as_ref()).enumerate() {
            let mut found = split_words(whole)?;
            if found.len() > spec.config.max_len {
                if self.session.settings.truncate == Truncate::Never {
                    let (n, most) = (found.len(), spec.config.max_len);
                    let why = format!("it has {n} words, and the model takes {most}: shorten it, or allow truncation");
                    return Err(Error::Text { text, why });
                }
                found.truncate(spec.config.max_len);
                truncated.push(text);
            }
            let (own, places): (Vec<&str>, Vec<Range<usize>>) = found.into_iter().unzip();
            // A text without words has no entities, and its sequence has no tokens.
            inputs.push(if own.is_empty() { Vec::new() } else { [&prompt[..], &own[..]].concat() });
            words.push(places);
        }
        let encoded = self.session.read(|reader| reader.encode_words(&inputs))?;
        let mut items = Vec::new();
        for (text, (encoded, word_ids)) in encoded.into_iter().enumerate() {
            if encoded.truncated {
                truncated.push(text);
            }
            let mut marks = spec.marks(&encoded.ids, &word_ids, (labels.len(), prompt.len()));
            if !encoded.ids.is_empty() && (marks.labels.len() < labels.len() || marks.words.is_empty()) {
                let why = format!("the {} labels leave no space for it", labels.len());
                return Err(Error::Text { text, why });
            }
            marks.words.truncate(words[text].len());
            words[text].truncate(marks.words.len());
            let sequence =
                Sequence { ids: encoded.ids, types: encoded.type_ids, marks: Some(marks), ..Sequence::default() };
            items.push(EncodeItem { sequence, skip: 0 });
        }
        truncated.sort_unstable();
        truncated.dedup();
        let tokens = items.iter().map(|item| item.sequence.ids.len()).collect();
        Ok((Texts { items, tokens, truncated }, words))
    }
}

/// Fields of `gliner_config.json` that concern the text; the model reads the others.
#[derive(Clone, Debug, Deserialize)]
struct Config {
    #[serde(default = "max_len")]
    max_len: usize,
    #[serde(default = "max_width")]
    max_width: usize,
    #[serde(default)]
    span_mode: String,
    #[serde(default)]
    subtoken_pooling: String,
    #[serde(default = "whitespace")]
    words_splitter_type: String,
    #[serde(default = "ent_token")]
    ent_token: String,
    #[serde(default = "sep_token")]
    sep_token: String,
    class_token_index: i64,
    #[serde(default)]
    model_name: String,
    #[serde(default)]
    encoder_config: Option<Value>,
}

fn max_len() -> usize {
    384
}
fn max_width() -> usize {
    12
}
fn whitespace() -> String {
    "whitespace".into()
}
fn ent_token() -> String {
    "<<ENT>>".into()
}
fn sep_token() -> String {
    "<<SEP>>".into()
}

/// The settings from the model's files.
#[derive(Clone, Debug)]
pub(crate) struct GlinerSpec {
    input_spec: InputSpec,
    config: Config,
    class_token: u32,
}

impl GlinerSpec {
    fn read(dir: &Path) -> Result<GlinerSpec> {
        let path = dir.join(GLINER_CONFIG);
        let config: Config = json(&path)?;
        let refused = |what: String| Err(Error::file(&path, what));
        if config.encoder_config.is_none() {
            let name = &config.model_name;
            return refused(format!(
                "has no encoder_config, only the name of the encoder, {name}; in Python, \
                 GLiNER.from_pretrained(…).save_pretrained(DIR) writes a folder with everything"
            ));
        }
        if config.words_splitter_type != "whitespace" {
            let kind = &config.words_splitter_type;
            return refused(format!("words_splitter_type `{kind}` is not supported; `whitespace` is"));
        }
        let Ok(class_token) = u32::try_from(config.class_token_index) else {
            return refused(format!("class_token_index {} is not a token", config.class_token_index));
        };
        if config.max_len == 0 || config.max_len > 1 << 16 {
            return refused(format!("max_len {} is out of range", config.max_len));
        }
        let mut input_spec = plain_input_spec(dir)?;
        // Encoders with relative positions have no longest sequence. The package cuts words off, not
        // tokens.
        input_spec.max_tokens.get_or_insert(4 * config.max_len);
        Ok(GlinerSpec { input_spec, config, class_token })
    }

    /// The widest span of a span head; `None` for a token head.
    fn max_width(&self) -> Option<usize> {
        (!["token_level", "token-level"].contains(&&*self.config.span_mode)).then_some(self.config.max_width)
    }

    /// The tokens of labels and words in a sequence, of which the first `prompt` words are the prompt.
    fn marks(&self, ids: &[u32], word_ids: &[Option<u32>], (labels, prompt): (usize, usize)) -> Marks {
        let mut marks = Marks::default();
        marks.labels.extend((0..ids.len() as u32).filter(|i| ids[*i as usize] == self.class_token).take(labels));
        // Words are counted as the package counts them: by the words that have tokens.
        let (mut seen, mut before) = (0, None);
        for (i, word) in word_ids.iter().enumerate() {
            let is_first = word.is_some() && *word != before;
            let is_last = word.is_some() && word_ids.get(i + 1).copied().flatten() != *word;
            seen += usize::from(is_first);
            before = *word;
            let is_marked = if self.config.subtoken_pooling == "last" { is_last } else { is_first };
            if is_marked && seen > prompt {
                marks.words.push(i as u32);
            }
        }
        marks
    }
}

/// A GLiNER model; the outputs are logits of spans or words.
pub(crate) struct GlinerPipeline {
    model: models::Gliner,
}

impl Pipeline for GlinerPipeline {
    type Spec = GlinerSpec;

    fn input_spec(spec: &GlinerSpec) -> &InputSpec {
        &spec.input_spec
    }

    fn load(parts: &Parts, _: &GlinerSpec) -> Result<GlinerPipeline> {
        Ok(GlinerPipeline { model: models::Gliner::load(&parts.config, &parts.weights)? })
    }

    fn limits(&self) -> Limits {
        self.model.limits()
    }

    fn width(&self) -> usize {
        self.model.outputs()
    }

    fn result_rows(&self, batch: &Batch) -> Option<Vec<Range<usize>>> {
        Some(self.model.result_rows(batch))
    }

    /// Logits of the pairs of every sequence, in parts.
    fn forward(&self, batch: &Batch, _: &[usize]) -> Result<Vec<Tensor>> {
        Ok(self.model.forward(batch, &mut |_, _| {})?)
    }
}
