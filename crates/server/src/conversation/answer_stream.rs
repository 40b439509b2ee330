//! Streams the answers of the engine to the handler that writes the response.
//!
//! The engine's thread hands every event to a sink, which forwards it through a channel and never
//! blocks: a slow client delays nobody else. The backlog is bounded: a client that leaves too much
//! unread loses the rest. The sink holds the [`Call`], so that permit and lease are held as long as
//! the engine works and no longer. The receiver holds [`CancelOnDrop`]: when the client
//! disconnects, axum drops the response, and the engine sees the cancellation at its next step.

use super::clock::{Clock, Progress};
use super::latency::LatencyTracker;
use super::seq2seq::Seq2SeqRequest;
use crate::app::App;
use crate::call::{Call, Usage};
use crate::error::{Fault, FaultKind};
use crate::http_context::HttpContext;
use crate::served_model::{RequestKind, ServedModel};
use sconce_engine::RequestContext;
use sconce_engine::TaskModel;
use sconce_engine::{Error, Event, Finish, Llm, Loaded, Request, SampledToken, Start};
use serde_json::json;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Instant;
use tokio::sync::mpsc::{UnboundedReceiver, UnboundedSender, unbounded_channel};

/// An event of one of the answers.
#[derive(Clone, Debug)]
pub(crate) enum AnswerEvent {
    /// A prompt is computed. The first event of each prompt; further ones only if the request asks
    /// for them.
    Progress(Progress),
    /// An answer grows.
    Text {
        /// Index of the answer.
        answer: usize,
        /// Whether this is the echoed prompt (`echo`).
        prompt: bool,
        /// New text, including the control tokens of tool calls.
        text: String,
        /// The tokens of the text, with logprobs if requested.
        tokens: Vec<Option<TokenChoice>>,
        /// The ids of the tokens.
        ids: Vec<u32>,
        /// When the engine sent it.
        at: Instant,
    },
    /// An answer ends.
    End {
        /// Index of the answer.
        answer: usize,
        /// The finish reason.
        finish: Finish,
    },
    /// All answers fail.
    Failed(Fault),
}

/// A sampled token with its logprobs.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct TokenChoice {
    /// The sampled token.
    pub(crate) chosen: TokenText,
    /// `None` for the first token of a prompt.
    pub(crate) logprob: Option<f32>,
    /// The most likely tokens, best first.
    pub(crate) top: Vec<(TokenText, f32)>,
}

/// A token as text and bytes.
#[derive(Clone, Debug, Default, PartialEq)]
pub(crate) struct TokenText {
    pub(crate) id: u32,
    pub(crate) text: String,
    pub(crate) bytes: Option<Vec<u8>>,
}

/// The work to run.
pub(crate) enum Generation {
    /// A causal language model continues texts.
    Decode {
        /// One request per prompt.
        requests: Vec<Request>,
        /// Control tokens of tool calls that must appear in the text: ids and names.
        marks: Vec<(u32, &'static str)>,
    },
    /// A sequence-to-sequence model (T5).
    Seq2Seq(Seq2SeqRequest),
}

/// The receiving end of the answers. Dropping it cancels unfinished ones.
pub(crate) struct AnswerStream {
    events: UnboundedReceiver<AnswerEvent>,
    info: AnswerInfo,
    remaining: usize,
    /// Of each answer.
    clocks: Vec<Clock>,
    answers_per_prompt: usize,
    queued: Arc<AtomicUsize>,
    _cancel: CancelOnDrop,
}

/// Most tokens that may wait for a client to read them. A client that keeps reading leaves far
/// fewer unread. With 20 top logprobs per token they take about 40 MB.
const MAX_QUEUED_TOKENS: usize = 16_384;
/// Top logprobs that weigh as much as a token.
const LOGPROBS_PER_TOKEN: usize = 20;

/// What is known before the first token.
#[derive(Clone, Debug)]
pub(crate) struct AnswerInfo {
    /// Number of answers to all prompts.
    pub(crate) answers: usize,
    /// Prompt tokens of all prompts.
    pub(crate) prompt_tokens: usize,
    /// Name of the model.
    pub(crate) model: String,
    /// `system_fingerprint`: version, device and dtype.
    pub(crate) fingerprint: String,
    cached: Arc<AtomicUsize>,
}

impl AnswerInfo {
    /// Prompt tokens found in the prefix cache. Complete when the last answer has started.
    pub(crate) fn cached_tokens(&self) -> usize {
        self.cached.load(Ordering::Relaxed)
    }
}

/// Cancels the engine's request on drop.
pub(crate) struct CancelOnDrop(RequestContext);

impl Drop for CancelOnDrop {
    fn drop(&mut self) {
        self.0.cancel();
    }
}

/// State shared by all sinks of a request. Dropped when the engine has dropped the last sink.
pub(crate) struct SinkState {
    call: Call,
    events: UnboundedSender<AnswerEvent>,
    /// Unfinished answers, plus one until all are started.
    remaining: AtomicUsize,
    usage: Mutex<Usage>,
    cached: Arc<AtomicUsize>,
    /// Tokens that the client has not read yet.
    queued: Arc<AtomicUsize>,
    latency: LatencyTracker,
}

impl SinkState {
    pub(crate) fn call(&self) -> &Call {
        &self.call
    }

    /// Sets the number of answers.
    pub(crate) fn expect(&self, answers: usize) {
        self.remaining.store(answers + 1, Ordering::Relaxed);
        self.latency.expect(answers);
    }

    /// Records the usage, after every answer was started.
    fn mark_started(&self, tokens: usize, characters: usize) {
        *self.usage.lock().unwrap_or_else(PoisonError::into_inner) = Usage { tokens, characters };
        self.finish_one();
    }

    fn finish_one(&self) {
        if self.remaining.fetch_sub(1, Ordering::Relaxed) == 1 {
            self.call.done(*self.usage.lock().unwrap_or_else(PoisonError::into_inner));
        }
    }

    /// Forwards an event of the prompt whose answers begin at index `first`. An echoed prompt comes
    /// first, once.
    pub(crate) fn send(&self, first: usize, prompt: bool, event: Result<Event, Error>, marks: &[(u32, &'static str)]) {
        let (task, at) = (&self.call.served().model, Instant::now());
        let event = match event {
            Ok(Event::Begun { cached_tokens: cached }) => {
                self.cached.fetch_add(cached, Ordering::Relaxed);
                AnswerEvent::Progress(Progress { first, cached, processed: cached, at })
            }
            // The receiver knows the cached tokens from the first event.
            Ok(Event::Progress { processed }) => AnswerEvent::Progress(Progress { first, cached: 0, processed, at }),
            Ok(Event::Text { answer, text, sampled }) => {
                let text = match task {
                    TaskModel::Generate(llm) => llm.with_markers(text, &sampled, marks),
                    _ => text,
                };
                let ids = sampled.iter().map(|sampled| sampled.id).collect();
                let tokens: Vec<_> = sampled.into_iter().map(|sampled| token_choice(task, sampled, prompt)).collect();
                let weight = weight(&tokens);
                let queued = weight + self.queued.fetch_add(weight, Ordering::Relaxed);
                if queued > MAX_QUEUED_TOKENS && !self.call.caller().is_cancelled() {
                    self.call.caller().cancel();
                    let what = "the client reads the stream too slowly; too many tokens are waiting";
                    let _ = self
                        .events
                        .send(AnswerEvent::Failed(self.call.failed(Fault::new(FaultKind::ClientTooSlow, what))));
                    return;
                }
                AnswerEvent::Text { answer: first + answer, prompt, text, tokens, ids, at }
            }
            Ok(Event::End { answer, finish, .. }) => {
                self.finish_one();
                AnswerEvent::End { answer: first + answer, finish }
            }
            Err(e) => AnswerEvent::Failed(self.call.failed(e.into())),
        };
        self.latency.observe(&event);
        // Fails only if the client has disconnected.
        let _ = self.events.send(event);
    }
}

/// The memory of tokens, in tokens with at most 20 top logprobs.
fn weight(tokens: &[Option<TokenChoice>]) -> usize {
    let top = |choice: &Option<TokenChoice>| choice.as_ref().map_or(0, |choice| choice.top.len());
    tokens.iter().map(|choice| top(choice).div_ceil(LOGPROBS_PER_TOKEN).max(1)).sum()
}

/// Runs `prepare` on a blocking thread and starts the generation that it returns.
pub(crate) async fn begin<T: Send + 'static>(
    (app, context): (&Arc<App>, &HttpContext),
    call: Call,
    prepare: impl FnOnce(&ServedModel) -> Result<(Generation, T), Fault> + Send + 'static,
) -> Result<(AnswerStream, T), Fault> {
    let cancel = CancelOnDrop(call.caller().clone());
    let (sender, events) = unbounded_channel();
    let (served, cached) = (call.served(), Arc::new(AtomicUsize::new(0)));
    let (model, fingerprint) = (served.id.clone(), fingerprint(served.model.loaded()));
    let latency = LatencyTracker::new(app, &model, context.started_at);
    let (remaining, usage, queued) = (AtomicUsize::new(0), Mutex::default(), Arc::new(AtomicUsize::new(0)));
    let sink =
        SinkState { call, events: sender, remaining, usage, cached: cached.clone(), queued: queued.clone(), latency };
    let sink = Arc::new(sink);
    let sinks = sink.clone();
    let running = sink.call.run(move |served, caller| {
        let (generation, extra) = prepare(served)?;
        let totals = match (&served.model, generation) {
            (TaskModel::Generate(llm), Generation::Decode { requests, marks }) => {
                start_decode(llm, &requests, &marks, (caller, &sinks))?
            }
            (TaskModel::Seq2Seq(model), Generation::Seq2Seq(request)) => request.begin(model, &sinks)?,
            _ => return Err(served.unsupported(RequestKind::Generate)),
        };
        sinks.mark_started(totals.tokens, totals.characters);
        Ok((totals, extra))
    });
    let (PromptTotals { answers, prompts, tokens: prompt_tokens, .. }, extra) = running.await?;
    let info = AnswerInfo { answers, prompt_tokens, model, fingerprint, cached };
    let (clocks, answers_per_prompt) = (vec![Clock::default(); answers], answers / prompts.max(1));
    let stream = AnswerStream { events, info, remaining: answers, clocks, answers_per_prompt, queued, _cancel: cancel };
    Ok((stream, extra))
}

/// Totals over all prompts of a request.
pub(crate) struct PromptTotals {
    /// Number of answers.
    pub(crate) answers: usize,
    /// Number of prompts.
    pub(crate) prompts: usize,
    /// Tokens and characters of all prompts.
    pub(crate) tokens: usize,
    pub(crate) characters: usize,
}

fn start_decode(
    llm: &Llm,
    requests: &[Request],
    marks: &[(u32, &'static str)],
    (caller, sink): (&RequestContext, &Arc<SinkState>),
) -> Result<PromptTotals, Fault> {
    let answers_of = |request: &Request| request.params.as_ref().map_or(1, |params| params.n as usize);
    let answers = requests.iter().map(answers_of).sum();
    let mut totals = PromptTotals { answers, prompts: requests.len(), tokens: 0, characters: 0 };
    sink.expect(totals.answers);
    if requests.iter().any(|r| r.params.as_ref().is_some_and(|p| p.logprobs.is_some())) || !marks.is_empty() {
        // Builds the table of all tokens here, not on the engine's thread.
        let _ = llm.token(0);
    }
    let mut first = 0;
    for request in requests {
        let (sink, marks) = (sink.clone(), marks.to_vec());
        let mut echoed = vec![!request.echo; answers_of(request)];
        let running = llm.start(request, caller, move |event| {
            let prompt = match &event {
                Ok(Event::Text { answer, .. }) => echoed.get_mut(*answer).is_some_and(|e| !std::mem::replace(e, true)),
                _ => false,
            };
            sink.send(first, prompt, event, &marks);
        });
        totals.tokens += running.map_err(|e| context_fault(llm, request, e))?.prompt_tokens;
        if let Start::Text(text) | Start::Rendered(text) = &request.start {
            totals.characters += text.chars().count();
        }
        first += answers_of(request);
    }
    Ok(totals)
}

/// Turns an input error into `TooLong` if prompt and `max_tokens` exceed the context.
fn context_fault(llm: &Llm, request: &Request, error: Error) -> Fault {
    let context = llm.context();
    let over = |tokens: usize| tokens >= context || tokens.saturating_add(request.max_tokens.unwrap_or(0)) > context;
    match error {
        Error::Input(what) if llm.encode(&request.start).is_ok_and(|tokens| over(tokens.len())) => {
            let what = format!("the model's context is {context} tokens: {what}");
            let tokens = llm.encode(&request.start).map_or(0, |tokens| tokens.len());
            Fault::new(FaultKind::TooLong, what).details(json!({"n_prompt_tokens": tokens, "n_ctx": context}))
        }
        error => error.into(),
    }
}

fn token_choice(task: &TaskModel, sampled: SampledToken, prompt: bool) -> Option<TokenChoice> {
    let token_text = |id| match task {
        TaskModel::Generate(llm) => {
            let token = llm.token(id).ok();
            let (text, bytes) = token.map_or_else(Default::default, |token| (token.text, token.bytes));
            TokenText { id, text, bytes }
        }
        TaskModel::Seq2Seq(model) => TokenText { id, text: model.decode(&[id]).unwrap_or_default(), bytes: None },
        _ => TokenText::default(),
    };
    match sampled.logprobs {
        Some(logprobs) => {
            let top = logprobs.top.iter().map(|(id, logprob)| (token_text(*id), *logprob)).collect();
            Some(TokenChoice { chosen: token_text(sampled.id), logprob: Some(logprobs.chosen), top })
        }
        // Prompt tokens are sent only if logprobs were requested; the first has none.
        None => prompt.then(|| TokenChoice { chosen: token_text(sampled.id), logprob: None, top: Vec::new() }),
    }
}

fn fingerprint(loaded: &dyn Loaded) -> String {
    let plan = loaded.plan();
    format!("sconce-{}-{}-{}", env!("CARGO_PKG_VERSION"), plan.device, plan.dtype)
}

impl AnswerStream {
    /// What is known before the first token.
    pub(crate) fn info(&self) -> &AnswerInfo {
        &self.info
    }

    /// The next event; `None` when all answers have ended.
    pub(crate) async fn next(&mut self) -> Option<AnswerEvent> {
        if self.remaining == 0 {
            return None;
        }
        let stopped = || {
            AnswerEvent::Failed(Fault::new(
                FaultKind::Unhealthy,
                "the model was unloaded or stopped in the middle of an answer",
            ))
        };
        let event = self.events.recv().await.unwrap_or_else(stopped);
        let event = self.timed(event);
        match &event {
            AnswerEvent::Progress(_) => {}
            AnswerEvent::Text { tokens, .. } => {
                self.queued.fetch_sub(weight(tokens), Ordering::Relaxed);
            }
            AnswerEvent::End { .. } => self.remaining -= 1,
            AnswerEvent::Failed(_) => self.remaining = 0,
        }
        Some(event)
    }

    /// Advances the clocks of the event's answers.
    fn timed(&mut self, event: AnswerEvent) -> AnswerEvent {
        match event {
            AnswerEvent::Progress(mut progress) => {
                let answers = self.clocks.iter_mut().skip(progress.first).take(self.answers_per_prompt);
                for clock in answers {
                    progress.cached = clock.prompt(&progress);
                }
                AnswerEvent::Progress(progress)
            }
            event => {
                if let AnswerEvent::Text { answer, prompt: false, ids, at, .. } = &event
                    && let Some(clock) = self.clocks.get_mut(*answer)
                {
                    clock.generated(ids.len(), *at);
                }
                event
            }
        }
    }

    /// The clock of an answer.
    pub(crate) fn clock(&self, answer: usize) -> Clock {
        self.clocks.get(answer).copied().unwrap_or_default()
    }
}
