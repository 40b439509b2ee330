//! GLiNER: entities with labels that each request gives (zero-shot named entity recognition).

mod decode;
mod prompt;

use self::prompt::Prompt;
use super::TaskType;
use crate::config::{FileFacts, InputSpec, plain_input_spec};
use crate::error::{Error, Result};
use crate::options::LoadOptions;
use crate::plan::Plan;
use crate::runtime::{Loaded, ModelInfo, RequestSettings};
use crate::workloads::encode::{self, EncodeItem, OutputKind, Outputs, Parts, Pipeline, Session, Texts};
use sconce_formats::{GLINER_CONFIG, json};
use sconce_hub::{Files, Progress, Reference};
use sconce_models::{self as models, Batch, Limits, Sequence};
use sconce_ops::{Device, Tensor};
use sconce_text::Truncate;
use sconce_text::aggregate::Entity;
use sconce_text::words::{Word, words};
use serde::Deserialize;
use serde_json::Value;
use std::ops::Range;
use std::path::Path;

/// Most bytes of the entities of a text, which overlap if they may be nested.
const MAX_BYTES: usize = 64 << 20;

/// Which entities [`Gliner::tag`] returns.
#[derive(Clone, Debug, PartialEq)]
pub struct GlinerOptions {
    /// The score that an entity must exceed, from 0 to 1.
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
        let session: Session<GlinerPipeline> = Session::load(files, options, progress, GlinerSpec::read)?;
        let (spec, mark) = (&session.spec, &session.spec.config.ent_token);
        let token = session.text.inner().token_to_id(mark);
        if token != Some(spec.class_token) {
            let (class, token) = (spec.class_token, token.map_or("no token".into(), |id| format!("token {id}")));
            let what = format!("ent_token `{mark}` is {token} of the tokenizer, and class_token_index is {class}");
            return Err(Error::file(&spec.input_spec.root.join(GLINER_CONFIG), what));
        }
        Ok(Gliner { session })
    }
}

impl Gliner {
    /// Finds the model's files, plans and loads it.
    pub fn load(reference: &Reference, options: &LoadOptions, progress: &dyn Progress) -> Result<Gliner> {
        super::load(reference, options, progress)
    }

    /// The entities of each text that have one of `labels`, by their place in the text. Offsets count
    /// characters. A label that is given twice counts once.
    ///
    /// Words after the model's longest text (`max_len`) are cut off, and the text is listed in
    /// [`Outputs::truncated`]. So are words without space beside the labels. Characters that the
    /// tokenizer drops, such as zero-width spaces, separate words; the `gliner` package takes them
    /// for words, and shifts the entities after them by as many words.
    pub fn tag<T: AsRef<str> + Sync, L: AsRef<str>>(
        &self,
        texts: &[T],
        labels: &[L],
        options: &GlinerOptions,
    ) -> Result<Outputs<Vec<Entity>>> {
        let (spec, threshold) = (&self.session.spec, options.threshold);
        if !(0.0..=1.0).contains(&threshold) {
            return Err(Error::Input(format!("a threshold of {threshold} is no probability: give one from 0 to 1")));
        }
        let prompt = Prompt::new(labels, spec, self.session.plan.max_tokens)?;
        let (texts_in, words) = self.items(texts, &prompt)?;
        self.session.outputs(OutputKind::Task, texts_in, |i, results| {
            let (text, words) = (texts[i].as_ref(), &words[i]);
            let size = (words.len(), prompt.labels.len());
            let found = match spec.max_width() {
                Some(width) => decode::of_spans(results[0], size, width, threshold),
                None => decode::of_words(results[0], size, threshold),
            };
            let too_many = || Error::Text { text: i, why: format!("too many spans score above {threshold}: raise it") };
            let found = decode::greedy(found.ok_or_else(too_many)?, words.len(), options);
            let bytes = |c: &decode::Candidate| words[c.first].bytes.start..words[c.last].bytes.end;
            if found.iter().map(|c| bytes(c).len()).sum::<usize>() > MAX_BYTES {
                return Err(too_many());
            }
            let entity = |c: decode::Candidate| Entity {
                label: prompt.labels[c.label].to_owned(),
                score: c.score,
                index: None,
                word: text.get(bytes(&c)).unwrap_or_default().to_owned(),
                start: words[c.first].chars.start,
                end: words[c.last].chars.end,
            };
            Ok(found.into_iter().map(entity).collect())
        })
    }

    /// The sequences of the texts, and the words of each text that are in its sequence.
    fn items<'t, T: AsRef<str> + Sync>(
        &self,
        texts: &'t [T],
        prompt: &Prompt<'t>,
    ) -> Result<(Texts, Vec<Vec<Word<'t>>>)> {
        let max_len = self.session.spec.config.max_len;
        let (mut truncated, mut kept, mut inputs) = (Vec::new(), Vec::new(), Vec::<Vec<&str>>::new());
        for (text, whole) in texts.iter().map(|text| text.as_ref()).enumerate() {
            let mut found = words(whole)?;
            let own: Vec<Word<'t>> = found.by_ref().take(max_len).collect();
            let more = if own.len() == max_len { found.count() } else { 0 };
            if more > 0 {
                if self.session.settings.truncate == Truncate::Never {
                    let n = max_len + more;
                    let why =
                        format!("it has {n} words, and the model takes {max_len}: shorten it, or allow truncation");
                    return Err(Error::TooLong { text, why });
                }
                truncated.push(text);
            }
            // A text without words has no entities, and its sequence has no tokens.
            let before: &[&str] = if own.is_empty() { &[] } else { &prompt.words };
            inputs.push(before.iter().copied().chain(own.iter().map(|word| word.text)).collect());
            kept.push(own);
        }
        let encoded = self.session.read(|reader| reader.encode_words(&inputs))?;
        let mut items = Vec::new();
        for (text, (encoded, word_ids)) in encoded.into_iter().enumerate() {
            if encoded.truncated {
                truncated.push(text);
            }
            let found = self.session.spec.marked_words(&encoded.ids, &word_ids, prompt.words.len());
            let (marked, labels) = (found.marks.labels.len(), prompt.labels.len());
            let mut sequence = Sequence { ids: encoded.ids, types: encoded.type_ids, ..Sequence::default() };
            if encoded.truncated && (marked < labels || found.words.is_empty()) {
                let why = format!("the {labels} labels leave no space for it: give fewer labels");
                return Err(Error::TooLong { text, why });
            }
            if !sequence.ids.is_empty() && marked != labels {
                let why = format!("the tokenizer has {marked} tokens that stand for a label, and there are {labels}");
                return Err(Error::Text { text, why });
            }
            if found.words.is_empty() {
                sequence = Sequence::default();
            }
            kept[text] = found.words.iter().filter_map(|word| kept[text].get(*word).cloned()).collect();
            sequence.marks = Some(found.marks);
            items.push(EncodeItem { sequence, skip: 0 });
        }
        truncated.sort_unstable();
        truncated.dedup();
        let tokens = items.iter().map(|item| item.sequence.ids.len()).collect();
        Ok((Texts { items, tokens, truncated }, kept))
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
