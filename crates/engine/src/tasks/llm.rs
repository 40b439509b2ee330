//! Language models: text generation and chat.

use super::{TaskType, llm_continue};
use crate::config::{FileFacts, LmText};
use crate::error::{Error, Result};
use crate::generation::{
    Echo, Event, GenerateRequest, Generation, Request, Start, Started, StopCriteria, Stream, StreamInfo,
};
use crate::options::LoadOptions;
use crate::plan::Plan;
use crate::reasoning::ThoughtRules;
use crate::runtime::{self, Codec, Loaded, LoadedModel, ModelInfo, Reply, RequestContext, RequestSettings};
use crate::sampling::GenerationParams;
use crate::structured_output::{Constraint, Format, FormatError, Vocab};
use crate::tools::{ToolSyntax, describe_tools, phi_messages};
use crate::workloads::decode::{Activity, CacheConfig, Decode, PAGE};
use derive_setters::Setters;
use sconce_formats::{Model as ModelFiles, trim_allocator};
use sconce_hub::{Files, Progress, Reference};
use sconce_models::is_encoder;
use sconce_ops::Device;
use sconce_text::chat::{Message, Options};
use sconce_text::stream::{Detokenizer, Stops, TokenBytes, token_bytes};
use sconce_text::{TextToken, text_of, text_tokens};
use serde_json::{Map, Value};
use std::sync::{Arc, OnceLock};

/// Options of the chat template, besides the messages.
#[derive(Clone, Debug, Default, Setters)]
#[setters(prefix = "with_")]
#[non_exhaustive]
pub struct ChatOptions {
    /// JSON schemas of the functions that the model may call, a list.
    pub tools: Option<Value>,
    /// Other variables of the template (`enable_thinking`, …).
    pub extra: Map<String, Value>,
    /// How the prompt ends.
    pub prompt_end: PromptEnd,
}

/// How a prompt ends that a chat template makes.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum PromptEnd {
    /// It opens an answer.
    #[default]
    Answer,
    /// After the last message.
    Message,
    /// Within the last message, which the answer continues.
    Continue,
}

/// A loaded language model. Clones share it.
///
/// Requests of any number of threads run together by continuous batching: each step of the model
/// computes the next token of every answer, and chunks of the waiting prompts.
///
/// ```no_run
/// use sconce_engine::{ChatOptions, Event, Llm, LoadOptions, Message, Request};
///
/// let llm = Llm::load(&"smollm".parse()?, &LoadOptions::from_env()?, &())?;
/// let messages = [Message::new("user", "Name three colours.")];
/// for event in llm.chat(&messages, &ChatOptions::default(), &Request::default())? {
///     if let Event::Text { text, .. } = event? {
///         print!("{text}");
///     }
/// }
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[derive(Clone)]
pub struct Llm {
    model: Arc<LoadedModel<Decode, LmText>>,
    tables: Arc<VocabTables>,
    settings: RequestSettings,
}

/// Tables derived from the vocabulary on first use: that takes seconds for a large one.
#[derive(Default)]
struct VocabTables {
    /// For constrained decoding (structured output).
    vocab: OnceLock<Result<Vocab, FormatError>>,
    /// The bytes of every token; `None` if they depend on neighbouring tokens.
    bytes: OnceLock<Option<Vec<TokenBytes>>>,
}

impl Codec for LmText {
    fn tokenize(&self, text: &str, special: bool) -> Result<Vec<TextToken>> {
        Ok(text_tokens(&self.tokenizer, text, special)?)
    }
    fn detokenize(&self, ids: &[u32], skip_special: bool) -> Result<String> {
        Ok(text_of(&self.tokenizer, ids, skip_special)?)
    }
}

impl Loaded for Llm {
    fn model(&self) -> &ModelInfo {
        &self.model.info
    }
    fn settings(&mut self) -> &mut RequestSettings {
        &mut self.settings
    }
}

impl TaskType for Llm {
    fn serves(facts: &FileFacts) -> bool {
        let class = facts.class();
        let generates = class.ends_with("ForCausalLM") || class.ends_with("LMHeadModel");
        generates && !facts.is_gguf_embedder() && !is_encoder(&facts.config)
    }
    fn plan_files(files: &Files, device: Device, options: &LoadOptions) -> Result<Plan> {
        runtime::plan::<Decode>(&files.root().to_path_buf(), device, options)
    }
    fn load_files(files: &Files, options: &LoadOptions, progress: &dyn Progress) -> Result<Llm> {
        let root = files.root();
        let template = options.chat_template.as_deref();
        let text = Arc::new(LmText::open_with(root, &ModelFiles::open(root)?, template)?);
        text.notes.iter().for_each(|note| progress.note(note));
        // Before the weights are loaded, free the memory that parsing left behind.
        trim_allocator();
        let model = runtime::load(files, &root.to_path_buf(), options, progress, |_| Ok(text.clone()))?;
        let (model, tables, settings) = (Arc::new(model), Arc::default(), RequestSettings::default());
        Ok(Llm { model, tables, settings })
    }
}

/// A single token.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Token {
    /// Its text as in the middle of a text, with U+FFFD for an incomplete character.
    pub text: String,
    /// The bytes that it adds to a text. `None` for special tokens, or if the bytes depend on
    /// neighbouring tokens.
    pub bytes: Option<Vec<u8>>,
}

impl Llm {
    /// Finds the files, plans, loads and checks the model. Fails before loading if the plan says
    /// that it cannot run or does not fit.
    pub fn load(reference: &Reference, options: &LoadOptions, progress: &dyn Progress) -> Result<Llm> {
        super::load(reference, options, progress)
    }

    /// Loads the model from local files.
    pub fn load_from(files: &Files, options: &LoadOptions, progress: &dyn Progress) -> Result<Llm> {
        Self::check_files(files)?;
        Self::load_files(files, options, progress)
    }

    /// The longest sequence, prompt and answer.
    pub fn context(&self) -> usize {
        self.model.layout.context
    }

    /// The sampling parameters that the model's files recommend.
    pub fn params(&self) -> &GenerationParams {
        &self.model.text.params
    }

    /// The tokens that end an answer, ascending.
    pub fn end_tokens(&self) -> impl Iterator<Item = u32> {
        self.model.text.ends.iter().copied()
    }

    /// Detokenizes.
    pub fn decode(&self, ids: &[u32]) -> Result<String> {
        self.model.text.tokenizer.decode(ids, false).map_err(|e| Error::Input(e.to_string()))
    }

    /// The text and bytes of a single token.
    pub fn token(&self, id: u32) -> Result<Token> {
        let bytes = self.tables.bytes.get_or_init(|| token_bytes(&self.model.text.tokenizer).ok());
        Ok(match bytes.as_ref().and_then(|all| all.get(id as usize)) {
            Some(TokenBytes::Text(bytes)) => {
                Token { text: String::from_utf8_lossy(bytes).into_owned(), bytes: Some(bytes.clone()) }
            }
            Some(TokenBytes::Special(name)) => Token { text: name.clone(), bytes: None },
            Some(TokenBytes::None) | None => Token { text: self.decode(&[id])?, bytes: None },
        })
    }

    /// The tokens of a prompt, as a request would have them.
    pub fn encode(&self, start: &Start) -> Result<Vec<u32>> {
        match start {
            Start::Text(text) => self.model.text.encode(text),
            Start::Rendered(text) => self.model.text.encode_rendered(text),
            Start::Tokens(ids) => Ok(ids.clone()),
        }
    }

    /// The id of a control token, which is not text.
    pub fn control(&self, name: &str) -> Option<u32> {
        let id = self.added_token(name)?;
        self.token(id).ok().filter(|token| token.bytes.is_none()).map(|_| id)
    }

    /// The id of a token that was added to the vocabulary, a control token or not.
    pub fn added_token(&self, name: &str) -> Option<u32> {
        self.model.text.tokenizer.get_added_vocabulary().get_vocab().get(name).copied()
    }

    /// The source of the chat template, if there is one: only it shows how a model calls tools.
    pub fn template(&self, tools: bool) -> Option<&str> {
        self.model.text.template(tools).ok().map(|template| template.source.as_str())
    }

    /// The prompt that the chat template makes of messages. If the template has no tools, or reads
    /// them from the system message, they are put there.
    pub fn render(&self, messages: &[Message], options: &ChatOptions) -> Result<String> {
        let prompt_end = options.prompt_end;
        let marked = (prompt_end == PromptEnd::Continue).then(|| llm_continue::marked(messages)).transpose()?;
        let messages = marked.as_deref().unwrap_or(messages);
        let template = self.model.text.template(options.tools.is_some())?;
        let syntax = ToolSyntax::of(Some(&template.source));
        let tools = options.tools.as_ref();
        let described = match syntax {
            ToolSyntax::Described => Some(describe_tools(messages, tools).map_err(Error::Input)?),
            ToolSyntax::Phi => Some(phi_messages(messages, tools).map_err(Error::Input)?),
            _ => None,
        };
        let messages = described.as_deref().unwrap_or(messages);
        let options = Options {
            tools: tools.filter(|_| described.is_none()),
            documents: None,
            add_generation_prompt: prompt_end == PromptEnd::Answer,
            extra: options.extra.clone(),
            ..Options::default()
        };
        let text = template.render(messages, &options)?;
        match prompt_end {
            PromptEnd::Answer | PromptEnd::Message => Ok(text),
            PromptEnd::Continue => llm_continue::cut(text),
        }
    }

    /// The most sequences that run at once.
    pub fn sequences(&self) -> usize {
        self.model.layout.sequences
    }

    /// The token that begins every text, if there is one.
    pub fn begin_token(&self) -> Option<u32> {
        self.encode(&Start::Text(String::new())).ok()?.first().copied()
    }

    /// Starts a generation for `context` and passes its events to `sink`.
    ///
    /// The device thread, which serves all requests, calls the sink, so the sink should only pass
    /// events on. The last event is an error or the end of the last answer; then the sink is
    /// dropped. If this call fails, the sink is never called. A sink that panics ends only its own
    /// request.
    pub fn start(
        &self,
        request: &Request,
        context: &RequestContext,
        sink: impl FnMut(Result<Event>) + Send + 'static,
    ) -> Result<Started> {
        let (request, started) = self.prepare(request, context)?;
        let reply = Reply::new(context.clone(), self.model.plan.device, Box::new(sink));
        self.model.executor.submit(request, &Arc::new(reply))?;
        Ok(started)
    }

    /// Starts a generation and returns its events as a stream. Dropping the stream cancels it.
    pub fn stream(&self, request: &Request) -> Result<Stream> {
        let context = &self.settings.context;
        let (request, Started { prompt_tokens, answers }) = self.prepare(request, context)?;
        let device = self.model.plan.device;
        let (stream, reply) = Stream::new(context, StreamInfo { device, answers, prompt_tokens, truncated: false });
        self.model.executor.submit(request, &reply)?;
        Ok(stream)
    }

    /// The model's statistics. Cheap, from any thread.
    pub fn activity(&self) -> Activity {
        let activity = self.model.executor.stats();
        Activity { waiting: (self.model.queue)().requests, ..activity }
    }

    /// The size and format of the model's KV cache.
    pub fn cache_config(&self) -> CacheConfig {
        let layout = &self.model.layout;
        CacheConfig { block_size: PAGE, blocks: layout.pages, format: layout.cache_format }
    }

    /// Checks a request and tokenizes it.
    fn prepare(&self, request: &Request, context: &RequestContext) -> Result<(GenerateRequest, Started)> {
        let tokens = context.tokenizing(|| self.encode(&request.start))?;
        let params = request.params.clone().unwrap_or_else(|| self.model.text.params.clone());
        params.check(self.model.plan.vocabulary).map_err(|invalid| Error::Input(invalid.to_string()))?;
        let vocabulary = self.model.plan.vocabulary;
        if let Some(id) = tokens.iter().find(|id| **id as usize >= vocabulary) {
            return Err(Error::Input(format!("token {id} is outside of the model's vocabulary of {vocabulary}")));
        }
        let longest = self.model.layout.context;
        if tokens.is_empty() {
            return Err(Error::Input("the prompt has no tokens; give it at least one".into()));
        }
        if tokens.len() >= longest {
            let what = format!("the prompt has {} tokens, but the context is {longest}: shorten it", tokens.len());
            return Err(Error::Input(what + ", or raise --context"));
        }
        let room = longest - tokens.len();
        let most = request.max_tokens.unwrap_or_else(|| self.model.text.most.map_or(room, |most| most.min(room)));
        // With `echo`, zero new tokens are allowed: the request may be about the prompt alone.
        let least = usize::from(!request.echo);
        if most < least || most > room {
            let what = format!(
                "max_tokens is {most}; after a prompt of {} tokens the context allows {least} to {room}",
                tokens.len()
            );
            return Err(Error::Input(what));
        }
        let stops = Stops::new(&request.stop, false).map_err(Error::Input)?;
        if request.ignore_end && request.format.is_some() {
            let what = "an answer with a format cannot ignore the model's end token; ask for one or the other";
            return Err(Error::Input(what.into()));
        }
        let (answers, prompt_tokens) = (params.n.max(1) as usize, tokens.len());
        let constraints = match &request.format {
            Some(format) => self.constraints(format, answers)?,
            None => Vec::new(),
        };
        let thought = request.thoughts.map(|thoughts| {
            let prompt = match &request.start {
                Start::Rendered(text) => text,
                Start::Text(_) | Start::Tokens(_) => "",
            };
            let encode = |text: &str| self.model.text.encode_rendered(text);
            ThoughtRules::new(thoughts, prompt, |marker| self.added_token(marker), encode)
        });
        let thought = thought.transpose()?;
        let detok = Detokenizer::new(self.model.text.tokenizer.clone(), true);
        // A chat answer is a text of its own; any other answer continues its prompt, perhaps in the
        // middle of a word.
        let continues_prompt = request.echo || !matches!(request.start, Start::Rendered(_));
        // A format constrains bytes, so the detokenizer must not strip a leading space.
        let mut detok = if request.format.is_some() { detok.within() } else { detok };
        let read = if continues_prompt { detok.continue_from(&tokens).map_err(Error::Input)? } else { String::new() };
        let scored = request.echo && params.logprobs.is_some();
        let echo = request.echo.then(|| match &request.start {
            Start::Text(text) | Start::Rendered(text) => text.clone(),
            Start::Tokens(_) => read,
        });
        let echo = echo.map(|text| Echo { text, scored });
        let stop = StopCriteria {
            tokens: if request.ignore_end { Arc::default() } else { self.model.text.ends.clone() },
            texts: request.stop.clone().into(),
            most,
        };
        let params = Arc::new(params);
        let progress = request.progress;
        let request =
            GenerateRequest { tokens, params, stop, detok, stops, constraints, thought, scored, echo, progress };
        Ok((request, Started { prompt_tokens, answers }))
    }

    /// Compiles the constraint of each answer on the caller's thread, so that only the caller waits
    /// for it or sees it fail.
    fn constraints(&self, format: &Format, answers: usize) -> Result<Vec<Constraint>> {
        let LmText { tokenizer, ends, .. } = &*self.model.text;
        let vocab = self.tables.vocab.get_or_init(|| Vocab::of(tokenizer, self.model.plan.vocabulary, ends));
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

    /// Streams the answer to a conversation. `request` has the options; its `start` is ignored.
    pub fn chat(&self, messages: &[Message], options: &ChatOptions, request: &Request) -> Result<Stream> {
        let start = Start::Rendered(self.render(messages, options)?);
        self.stream(&Request { start, ..request.clone() })
    }
}
