//! Language models.

use crate::config::lm_text::Words;
use crate::constrain::{Constraint, Format, FormatError, Vocab};
use crate::generate::{
    self, About, Activity, Echo, Ends, Event, Job, Listener, LmPlan, Request, Sink, Start, Started, Stream, Wish,
    Worker, root_of,
};
use crate::line::Waiting;
use crate::loaded::Loaded;
use crate::plan::Plan;
use crate::sample::Params;
use crate::{Caller, Error, Generation, LoadOptions, Result};
use sconce_formats::{Model, trim_allocator};
use sconce_hub::{self as hub, Files, Progress, Reference};
use sconce_ops::{CacheFormat, Counted, Device, Ladder};
use sconce_text::chat::{Message, Options};
use sconce_text::stream::{Detok, Stops, TokenBytes, token_bytes};
use sconce_text::{TextToken, text_of, text_tokens};
use serde_json::{Map, Value};
use std::sync::mpsc::channel;
use std::sync::{Arc, OnceLock, Weak};

/// What a language model is to have besides what every model has.
#[derive(Clone, Copy, Debug)]
pub struct LlmOptions {
    /// The longest sequence, question and answer; `None`: what it was made for, up to 8,192.
    pub context: Option<usize>,
    /// Tokens that the cache keeps, of all sequences together, at least one of the longest. `None`: all may be of the longest,
    /// as far as a quarter of the free memory has room for them.
    pub cache_tokens: Option<usize>,
    /// The format of what is kept of tokens; `None`: f16 beside weights that are not f32.
    pub cache_format: Option<CacheFormat>,
    /// The most sequences that run at once.
    pub sequences: usize,
}

impl Default for LlmOptions {
    fn default() -> LlmOptions {
        LlmOptions { context: None, cache_tokens: None, cache_format: None, sequences: 64 }
    }
}

/// How a conversation becomes a text, besides its messages.
#[derive(Clone, Debug, Default)]
pub struct ChatOptions {
    /// Schemas of functions the model may call, a list.
    pub tools: Option<Value>,
    /// Whatever else the template reads (`enable_thinking`, …).
    pub extra: Map<String, Value>,
}

/// A language model that is loaded and proven.
///
/// Requests of any number of threads run together: each step of the model computes the next token of every answer, and a part of
/// the prompts that are waiting.
pub struct Llm {
    words: Box<Words>,
    /// For answers that must have a form; made when the first is asked for, as it takes seconds for a large vocabulary.
    vocab: OnceLock<Result<Vocab, FormatError>>,
    planned: LmPlan,
    files: Files,
    ladder: Arc<Ladder>,
    worker: Worker,
    /// What every token adds to a text, once somebody asks; `None` where that depends on its neighbours.
    bytes: OnceLock<Option<Vec<TokenBytes>>>,
}

/// A token by itself.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Token {
    /// What it is called: its text in the middle of others, with a U+FFFD for what is not a whole character.
    pub text: String,
    /// The bytes that it adds to a text. None of a mark that is no text, or where that depends on its neighbours.
    pub bytes: Option<Vec<u8>>,
}

impl Llm {
    /// Finds the files, plans, loads and proves the model. Nothing is loaded that the plan says cannot run or will not fit.
    pub fn load(
        reference: &Reference,
        options: &LoadOptions,
        llm: &LlmOptions,
        progress: &dyn Progress,
    ) -> Result<Llm> {
        Self::load_from(&hub::resolve(reference, &options.source, progress)?, options, llm, progress)
    }

    /// The same from files that are here.
    pub fn load_from(files: &Files, options: &LoadOptions, llm: &LlmOptions, progress: &dyn Progress) -> Result<Llm> {
        let llm = options.somewhere(progress, |device| Self::on(device, files, options, llm))?;
        llm.words.notes.iter().for_each(|note| progress.note(note));
        Ok(llm)
    }

    /// What the model will take on `device`, without loading it.
    pub fn plan_on(device: Device, files: &Files, options: &LoadOptions, llm: &LlmOptions) -> Result<Plan> {
        let options = &device.info().map_or_else(|_| options.clone(), |info| options.on(&info));
        Ok(planned(device, files, options, llm)?.plan)
    }

    fn on(device: Device, files: &Files, options: &LoadOptions, llm: &LlmOptions) -> Result<Llm> {
        let info = device.info()?;
        let options = &options.on(&info);
        let planned = planned(device, files, options, llm)?;
        planned.plan.check(info.free_bytes)?;
        let root = root_of(files);
        let words = Box::new(Words::open(&root, &Model::open(&root)?)?);
        // Before weights come: what is left of reading would lie beside them.
        trim_allocator();
        let ladder = Ladder::new(options.policy.clone());
        let worker = Worker::start(&planned, options, ladder.clone())?;
        ladder.ledger.hold(planned.plan.bytes());
        let (bytes, vocab) = (OnceLock::new(), OnceLock::new());
        Ok(Llm { words, planned, files: files.clone(), ladder, worker, bytes, vocab })
    }

    /// The longest sequence, question and answer.
    pub fn context(&self) -> usize {
        self.planned.context
    }

    /// How the model's makers choose tokens.
    pub fn params(&self) -> &Params {
        &self.words.params
    }

    /// The text of tokens.
    pub fn decode(&self, ids: &[u32]) -> Result<String> {
        self.words.parsed.decode(ids, false).map_err(|e| Error::Input(e.to_string()))
    }

    /// What a token is by itself.
    pub fn token(&self, id: u32) -> Result<Token> {
        let bytes = self.bytes.get_or_init(|| token_bytes(&self.words.parsed).ok());
        Ok(match bytes.as_ref().and_then(|all| all.get(id as usize)) {
            Some(TokenBytes::Text(bytes)) => {
                Token { text: String::from_utf8_lossy(bytes).into_owned(), bytes: Some(bytes.clone()) }
            }
            Some(TokenBytes::Special(name)) => Token { text: name.clone(), bytes: None },
            Some(TokenBytes::None) | None => Token { text: self.decode(&[id])?, bytes: None },
        })
    }

    /// The tokens of a text, as a request would have them.
    pub fn encode(&self, start: &Start) -> Result<Vec<u32>> {
        match start {
            Start::Text(text) => self.words.encode(text),
            Start::Rendered(text) => self.words.encode_rendered(text),
            Start::Tokens(ids) => Ok(ids.clone()),
        }
    }

    /// The id of a control token: one that is called so, and is no text.
    pub fn control(&self, name: &str) -> Option<u32> {
        let id = self.words.parsed.get_added_vocabulary().get_vocab().get(name).copied()?;
        self.token(id).ok().filter(|token| token.bytes.is_none()).map(|_| id)
    }

    /// The chat template as its makers wrote it, where there is one: how a model calls tools shows there alone.
    pub fn template(&self, tools: bool) -> Option<&str> {
        self.words.template(tools).ok().map(|template| template.source.as_str())
    }

    /// The text that a conversation becomes.
    pub fn render(&self, messages: &[Message], options: &ChatOptions) -> Result<String> {
        let template = self.words.template(options.tools.is_some())?;
        let options = Options {
            tools: options.tools.as_ref(),
            documents: None,
            add_generation_prompt: true,
            extra: options.extra.clone(),
            ..Options::default()
        };
        Ok(template.render(messages, &options)?)
    }

    /// Starts a generation on behalf of `caller`, and hands what comes to `sink` as it comes.
    ///
    /// The sink is called by the thread that runs the model, which everyone waits for: it should pass events on, and do no work
    /// of its own. The last event is an error or the end of the last answer; then the sink is dropped. If this fails it is never
    /// called. One that panics ends its own request alone.
    pub fn start(
        &self,
        request: &Request,
        caller: &Caller,
        sink: impl FnMut(Result<Event>) + Send + 'static,
    ) -> Result<Started> {
        Ok(self.hand_over(request, caller, Box::new(sink))?.0)
    }

    /// Starts a generation and gives what comes as it comes. Dropping the stream cancels it.
    pub fn stream(&self, request: &Request) -> Result<Stream> {
        let (events, inbox) = channel();
        // Nobody takes it if the stream was dropped; the next step finds out.
        let sink = Box::new(move |event| drop(events.send(event)));
        let (Started { prompt_tokens, answers }, listener) = self.hand_over(request, &Caller::default(), sink)?;
        let device = self.planned.plan.device;
        Ok(Stream::new(inbox, listener, About { device, answers, prompt_tokens, truncated: false }))
    }

    /// What the model is busy with. Cheap, from any thread.
    pub fn activity(&self) -> Activity {
        self.worker.activity()
    }

    fn hand_over(&self, request: &Request, caller: &Caller, sink: Sink) -> Result<(Started, Weak<Listener>)> {
        let tokens = caller.tokenizing(|| self.encode(&request.start))?;
        let params = request.params.clone().unwrap_or_else(|| self.words.params.clone());
        params.check(self.planned.plan.vocabulary).map_err(|invalid| Error::Input(invalid.to_string()))?;
        let vocabulary = self.planned.plan.vocabulary;
        if let Some(id) = tokens.iter().find(|id| **id as usize >= vocabulary) {
            return Err(Error::Input(format!("token {id} is beyond the model's {vocabulary} words")));
        }
        let context = self.planned.context;
        if tokens.is_empty() {
            return Err(Error::Input("the prompt has no tokens; give it at least one".into()));
        }
        if tokens.len() >= context {
            let what = format!("the prompt has {} tokens, and the context is {context}: shorten it", tokens.len());
            return Err(Error::Input(what + ", or make more room with --context"));
        }
        let room = context - tokens.len();
        let most = request.max_tokens.unwrap_or_else(|| self.words.most.map_or(room, |most| most.min(room)));
        // Nothing new, where the prompt itself is what is asked about.
        let least = usize::from(!request.echo);
        if most < least || most > room {
            let what =
                format!("{most} new tokens behind {} of the prompt: there is room for {least} to {room}", tokens.len());
            return Err(Error::Input(what));
        }
        let stops = Stops::new(&request.stop, false).map_err(Error::Input)?;
        if request.ignore_end && request.format.is_some() {
            let what = "an answer that must have a form cannot go on behind its end; ask for one or the other";
            return Err(Error::Input(what.into()));
        }
        let (answers, prompt_tokens) = (params.n.max(1) as usize, tokens.len());
        let forms = match &request.format {
            Some(format) => self.forms(format, answers)?,
            None => Vec::new(),
        };
        let detok = Detok::new(self.words.parsed.clone(), true);
        // An answer in a chat is a text of its own; any other goes on from its prompt, in the middle of a word if need be.
        let goes_on = request.echo || !matches!(request.start, Start::Rendered(_));
        // A form is one of bytes: a space that it begins with must not go because it stands first.
        let mut detok = if request.format.is_some() { detok.within() } else { detok };
        let read = if goes_on { detok.behind(&tokens).map_err(Error::Input)? } else { String::new() };
        let scored = request.echo && params.logprobs.is_some();
        let echo = request.echo.then(|| match &request.start {
            Start::Text(text) | Start::Rendered(text) => text.clone(),
            Start::Tokens(_) => read,
        });
        let echo = echo.map(|text| Echo { text, scored });
        let ends = Ends {
            tokens: if request.ignore_end { Arc::default() } else { self.words.ends.clone() },
            stop: request.stop.clone().into(),
            most,
        };
        let listener = Arc::new(Listener::new(caller.clone(), self.planned.plan.device, answers, echo, sink));
        let heard = Arc::downgrade(&listener);
        self.worker.submit(Job { tokens, params: Arc::new(params), ends, detok, stops, forms, scored, listener })?;
        Ok((Started { prompt_tokens, answers }, heard))
    }

    /// The form of each answer. Made by who asks, whom alone it keeps waiting and fails.
    fn forms(&self, format: &Format, answers: usize) -> Result<Vec<Constraint>> {
        let Words { parsed, ends, .. } = &*self.words;
        let vocab = self.vocab.get_or_init(|| Vocab::of(parsed, self.planned.plan.vocabulary, ends));
        let vocab = vocab.as_ref().map_err(Clone::clone)?;
        let first = Constraint::new(format.clone(), vocab)?;
        let others: Vec<Constraint> = (1..answers).map(|_| first.fork()).collect();
        Ok([first].into_iter().chain(others).collect())
    }

    /// Runs all requests together and waits for each.
    pub fn generate(&self, requests: &[Request]) -> Vec<Result<Generation>> {
        let streams: Vec<_> = requests.iter().map(|request| self.stream(request)).collect();
        streams.into_iter().map(|stream| stream?.wait()).collect()
    }

    /// The answer to a conversation, as it comes. `request` says how; its start is not looked at.
    pub fn chat(&self, messages: &[Message], options: &ChatOptions, request: &Request) -> Result<Stream> {
        let start = Start::Rendered(self.render(messages, options)?);
        self.stream(&Request { start, ..request.clone() })
    }
}

fn planned(device: Device, files: &Files, options: &LoadOptions, llm: &LlmOptions) -> Result<LmPlan> {
    generate::plan(&root_of(files), device, options, wish(llm))
}

/// The same, to the plan.
pub(crate) fn wish(llm: &LlmOptions) -> Wish {
    let LlmOptions { context, cache_tokens, cache_format, sequences } = *llm;
    Wish { context, cache_tokens, cache_format, sequences: sequences.max(1) }
}

impl Loaded for Llm {
    fn plan(&self) -> &Plan {
        &self.planned.plan
    }
    fn files(&self) -> &Files {
        &self.files
    }
    fn counts(&self) -> Vec<(Counted, u64)> {
        self.ladder.counts()
    }
    fn peak_bytes(&self) -> u64 {
        self.ladder.ledger.peak()
    }
    /// Requests only; [`Llm::activity`] tells the rest.
    fn waiting(&self) -> Waiting {
        Waiting { requests: self.activity().waiting, ..Waiting::default() }
    }
    fn tokenize(&self, text: &str, special: bool) -> Result<Vec<TextToken>> {
        Ok(text_tokens(&self.words.parsed, text, special)?)
    }
    fn detokenize(&self, ids: &[u32], skip_special: bool) -> Result<String> {
        Ok(text_of(&self.words.parsed, ids, skip_special)?)
    }
}
