//! Sequence-to-sequence models (T5 and relatives): translation, summaries, answers.

mod options;

pub use options::{Answers, Seq2SeqAnswer, Seq2SeqOptions};

use super::TaskType;
use crate::config::{FileFacts, LmText, Seq2SeqGeneration};
use crate::error::{Error, Result};
use crate::generation::{Answer, Finish, GenerateRequest, StopCriteria, Stream, StreamInfo};
use crate::options::LoadOptions;
use crate::plan::Plan;
use crate::runtime::{self, Loaded, LoadedModel, ModelInfo, RequestSettings};
use crate::sampling::{BeamOptions, BeamSearch, Beams, GenerationParams, Search};
use crate::workloads::seq2seq::{
    BeamRequest, SearchRequest, Seq2SeqLayout, Seq2SeqRequest, Seq2SeqSpec, Seq2SeqWorkload,
};
use sconce_formats::{Model as ModelFiles, trim_allocator};
use sconce_hub::{Files, Progress, Reference};
use sconce_ops::Device;
use sconce_text::stream::{Detokenizer, Stops};
use std::sync::Arc;

/// A loaded sequence-to-sequence model. Clones share it.
///
/// Inputs of any number of threads run together: each step of the model computes the next token of
/// every answer.
///
/// ```no_run
/// use sconce_engine::{LoadOptions, Seq2Seq, Seq2SeqOptions};
///
/// let model = Seq2Seq::load(&"google-t5/t5-small".parse()?, &LoadOptions::from_env()?, &())?;
/// let texts = ["translate English to German: The house is small."];
/// let answers = model.generate(&texts, &Seq2SeqOptions::default())?;
/// println!("{}", answers[0].answers[0].text);
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[derive(Clone)]
pub struct Seq2Seq {
    model: Arc<LoadedModel<Seq2SeqWorkload, LmText>>,
    generation: Arc<Seq2SeqGeneration>,
    settings: RequestSettings,
}

impl Loaded for Seq2Seq {
    fn model(&self) -> &ModelInfo {
        &self.model.info
    }
    fn settings(&mut self) -> &mut RequestSettings {
        &mut self.settings
    }
}

/// The parsed files of a model.
struct ParsedFiles {
    text: Arc<LmText>,
    generation: Seq2SeqGeneration,
    spec: Seq2SeqSpec,
}

fn open(files: &Files) -> Result<ParsedFiles> {
    let root = files.root().to_path_buf();
    let model = ModelFiles::open(&root)?;
    let text = Arc::new(LmText::open(&root, &model)?);
    let generation = Seq2SeqGeneration::read(&root, &model.config, &text.params)?;
    let spec = Seq2SeqSpec { root, start: generation.start };
    Ok(ParsedFiles { text, generation, spec })
}

impl TaskType for Seq2Seq {
    fn serves(facts: &FileFacts) -> bool {
        let class = facts.class();
        let is_t5 = class.ends_with("T5ForConditionalGeneration") || class == "T5WithLMHeadModel";
        is_t5 && !facts.is_gguf_embedder()
    }
    fn plan_files(files: &Files, device: Device, options: &LoadOptions) -> Result<Plan> {
        // The plan does not depend on the start token.
        let spec = Seq2SeqSpec { root: files.root().to_path_buf(), start: 0 };
        runtime::plan::<Seq2SeqWorkload>(&spec, device, options)
    }
    fn load_files(files: &Files, options: &LoadOptions, progress: &dyn Progress) -> Result<Seq2Seq> {
        let ParsedFiles { text, generation, spec } = open(files)?;
        generation.notes.iter().for_each(|note| progress.note(note));
        // Before the weights are loaded, free the memory that parsing left behind.
        trim_allocator();
        let model = runtime::load(files, &spec, options, progress, |plan| {
            generation.check(&spec.root, plan.vocabulary)?;
            Ok(text.clone())
        })?;
        Ok(Seq2Seq { model: Arc::new(model), generation: Arc::new(generation), settings: RequestSettings::default() })
    }
}

impl Seq2Seq {
    /// Finds the files, plans, loads and checks the model. Fails before loading if the plan says
    /// that it cannot run or does not fit.
    pub fn load(reference: &Reference, options: &LoadOptions, progress: &dyn Progress) -> Result<Seq2Seq> {
        super::load(reference, options, progress)
    }

    /// Loads the model from local files.
    pub fn load_from(files: &Files, options: &LoadOptions, progress: &dyn Progress) -> Result<Seq2Seq> {
        Self::check_files(files)?;
        Self::load_files(files, options, progress)
    }

    /// The search that the model's files recommend.
    pub fn search(&self) -> &Search {
        &self.generation.search
    }

    /// The longest input, in tokens.
    pub fn longest_input(&self) -> usize {
        self.model.layout.input
    }

    /// The tokens of a text, and whether it was truncated.
    pub fn encode(&self, text: &str) -> Result<(Vec<u32>, bool)> {
        self.model.text.encode_to(text, self.model.layout.input)
    }

    /// Detokenizes.
    pub fn decode(&self, ids: &[u32]) -> Result<String> {
        self.model.text.tokenizer.decode(ids, true).map_err(|e| Error::Input(e.to_string()))
    }

    /// Generates the answers to all `texts` together.
    pub fn generate<T: AsRef<str>>(&self, texts: &[T], options: &Seq2SeqOptions) -> Result<Vec<Answers>> {
        let of = |(i, text): (usize, &T)| {
            self.encode(text.as_ref()).map_err(|e| Error::Text { text: i, why: e.to_string() })
        };
        let inputs =
            self.settings.context.tokenizing(|| texts.iter().enumerate().map(of).collect::<Result<Vec<_>>>())?;
        self.run(inputs, options)
    }

    /// Like [`Seq2Seq::generate`], for inputs that are tokens, the end token included.
    pub fn generate_ids(&self, inputs: &[Vec<u32>], options: &Seq2SeqOptions) -> Result<Vec<Answers>> {
        self.run(inputs.iter().map(|ids| (ids.clone(), false)).collect(), options)
    }

    /// Streams the answers to one text, token by token. A beam search cannot be streamed, because
    /// it knows its answers only at its end. A text that is too long is truncated, and the stream
    /// says so. Dropping the stream cancels it.
    pub fn stream(&self, text: &str, options: &Seq2SeqOptions) -> Result<Stream> {
        let resolved = self.resolve(options)?;
        if matches!(resolved.search, Search::Beams(_)) {
            let what =
                "a beam search knows its answers only at its end and cannot be streamed; use `generate`, or sampling";
            return Err(Error::Input(what.into()));
        }
        self.start(self.settings.context.tokenizing(|| self.encode(text))?, &resolved)
    }

    /// Starts generating the answers to one text without waiting for them; other inputs may run in
    /// the same steps.
    pub fn begin(&self, text: &str, options: &Seq2SeqOptions) -> Result<Seq2SeqStream> {
        let input = self.settings.context.tokenizing(|| self.encode(text))?;
        Ok(Seq2SeqStream(self.start(input, &self.resolve(options)?)?))
    }

    /// Checks all inputs before submitting any.
    fn run(&self, inputs: Vec<(Vec<u32>, bool)>, options: &Seq2SeqOptions) -> Result<Vec<Answers>> {
        let resolved = self.resolve(options)?;
        let prepared = |(i, input): (usize, (Vec<u32>, bool))| {
            let (ids, truncated) = input;
            self.prepare(ids, truncated, &resolved).map_err(|e| Error::Text { text: i, why: e.to_string() })
        };
        let prepared = inputs.into_iter().enumerate().map(prepared).collect::<Result<Vec<_>>>()?;
        let streams = prepared.into_iter().map(|one| self.submit(one)).collect::<Result<Vec<_>>>()?;
        let answers = |(i, stream): (usize, Stream)| Seq2SeqStream(stream).wait().map_err(|e| with_index(i, e));
        streams.into_iter().enumerate().map(answers).collect()
    }

    /// Resolves options: fills in defaults and checks limits.
    fn resolve(&self, options: &Seq2SeqOptions) -> Result<ResolvedOptions> {
        let Seq2SeqLayout { output, sequences, .. } = &self.model.layout;
        let search = options.search.clone().unwrap_or_else(|| self.generation.search.clone());
        let most = options.max_tokens.unwrap_or_else(|| self.generation.most.unwrap_or(*output).min(*output));
        if most == 0 || most > *output {
            return Err(Error::Input(format!("answers of {most} tokens: use 1 to {output}")));
        }
        let width = match &search {
            Search::Sample(params) => {
                params.check(self.model.plan.vocabulary).map_err(|invalid| Error::Input(invalid.to_string()))?;
                params.n as usize
            }
            Search::Beams(beams) => beams.num_beams,
        };
        if width > *sequences {
            let what = format!(
                "{width} answers at once, but the limit is {sequences}: ask for fewer, or load the model with more sequences"
            );
            return Err(Error::Input(what));
        }
        Ok(ResolvedOptions { search, most, ignore_end: options.ignore_end })
    }

    fn start(&self, (ids, truncated): (Vec<u32>, bool), resolved: &ResolvedOptions) -> Result<Stream> {
        self.submit(self.prepare(ids, truncated, resolved)?)
    }

    fn submit(&self, (request, info): (Seq2SeqRequest, StreamInfo)) -> Result<Stream> {
        let (stream, reply) = Stream::new(&self.settings.context, info);
        self.model.executor.submit(request, &reply)?;
        Ok(stream)
    }

    /// Checks an input and makes its request.
    fn prepare(
        &self,
        ids: Vec<u32>,
        truncated: bool,
        resolved: &ResolvedOptions,
    ) -> Result<(Seq2SeqRequest, StreamInfo)> {
        let (longest, vocabulary) = (self.model.layout.input, self.model.plan.vocabulary);
        if ids.is_empty() || ids.len() > longest {
            return Err(Error::Input(format!("an input of {} tokens: use 1 to {longest}", ids.len())));
        }
        if let Some(id) = ids.iter().find(|id| **id as usize >= vocabulary) {
            let what = format!("token {id} is outside of the model's vocabulary of {vocabulary}");
            return Err(Error::Input(what + "; do tokenizer and model belong together?"));
        }
        let (search, answers) = match &resolved.search {
            Search::Sample(params) => (self.sampling_request(params, resolved), params.n.max(1) as usize),
            Search::Beams(search) => (self.beam_request(search, resolved)?, search.num_return_sequences),
        };
        let info = StreamInfo { device: self.model.plan.device, answers, prompt_tokens: ids.len(), truncated };
        Ok((Seq2SeqRequest { ids, most: resolved.most, search }, info))
    }

    fn sampling_request(&self, params: &GenerationParams, resolved: &ResolvedOptions) -> SearchRequest {
        let ends = if resolved.ignore_end { Arc::default() } else { self.model.text.ends.clone() };
        SearchRequest::Sample(Box::new(GenerateRequest {
            // For penalties, the start token is the prompt.
            tokens: vec![self.generation.start],
            params: Arc::new(params.clone()),
            stop: StopCriteria { tokens: ends, texts: Arc::default(), most: resolved.most },
            detok: Detokenizer::new(self.model.text.tokenizer.clone(), true),
            stops: Stops::default(),
            constraints: Vec::new(),
            thought: None,
            scored: false,
            echo: None,
        }))
    }

    fn beam_request(&self, search: &BeamSearch, resolved: &ResolvedOptions) -> Result<SearchRequest> {
        let all = &self.model.text.ends;
        let ends = if resolved.ignore_end { Vec::new() } else { all.iter().copied().collect() };
        let beams = Beams::new(BeamOptions {
            beams: search.num_beams,
            length_penalty: search.length_penalty,
            early_stopping: search.early_stopping,
            answers: search.num_return_sequences,
            ends,
            most: resolved.most,
        });
        Ok(SearchRequest::Beams(Box::new(BeamRequest {
            beams: beams.map_err(Error::Input)?,
            width: search.num_beams,
            answers: search.num_return_sequences,
            tokenizer: self.model.text.tokenizer.clone(),
            ends: all.clone(),
        })))
    }
}

/// Adds the index of the failed input; cancellation and deadlines concern all inputs.
fn with_index(text: usize, error: Error) -> Error {
    match error {
        over @ (Error::Cancelled | Error::DeadlineExceeded { .. }) => over,
        other => Error::Text { text, why: other.to_string() },
    }
}

/// Options with defaults filled in.
struct ResolvedOptions {
    search: Search,
    most: usize,
    ignore_end: bool,
}

/// Answers to one text that are being generated. Dropping it cancels them.
pub struct Seq2SeqStream(Stream);

impl Seq2SeqStream {
    /// Waits for the answers.
    pub fn wait(self) -> Result<Answers> {
        let (input_tokens, truncated) = (self.0.prompt_tokens(), self.0.truncated());
        let written = |answer: Answer| {
            let ids = answer.sampled.iter().map(|pick| pick.id).collect();
            let finish = answer.finish.unwrap_or(Finish::Length);
            Seq2SeqAnswer { text: answer.text, ids, score: answer.score, finish }
        };
        let mut found = self.0.wait()?.answers;
        // In a beam search, an answer without a score was not found.
        let is_search = found.iter().any(|answer| answer.score.is_some());
        found.retain(|answer| !is_search || answer.score.is_some());
        let answers = found.into_iter().map(written).collect();
        Ok(Answers { answers, input_tokens, truncated })
    }
}
