//! Answers in the making, as they come from the engine to whoever words them.
//!
//! The engine's thread hands every event to a sink of ours, which passes it on through a channel and never waits: however slowly a
//! client reads, nobody else notices. What may pile up is bounded: who leaves too much unread loses the rest. The sink keeps the
//! [`Call`], so that permit and lease are held as long as the engine works and no longer. The reader's end keeps [`Leave`]: when
//! the client goes, axum drops the answer, and the engine finds the caller gone at its next step.

use super::pace::Paces;
use super::rewrite::Rewrite;
use crate::app::App;
use crate::call::{Call, Usage};
use crate::error::{Fault, FaultKind};
use crate::served::{Served, Want};
use crate::trail::Trail;
use sconce_engine::RequestContext;
use sconce_engine::TaskModel;
use sconce_engine::{Error, Event, Finish, Llm, Loaded, Request, SampledToken, Start};
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use tokio::sync::mpsc::{UnboundedReceiver, UnboundedSender, unbounded_channel};

/// What happens to the answers.
#[derive(Clone, Debug)]
pub(super) enum News {
    /// One grows.
    Text {
        /// Which.
        answer: usize,
        /// Whether this is the prompt, which the answer is to begin with.
        prompt: bool,
        /// What is new. Control tokens that the reader asked for are in it.
        text: String,
        /// The tokens behind it, and how likely each was if that was asked for.
        tokens: Vec<Option<Likely>>,
    },
    /// One ends.
    End {
        /// Which.
        answer: usize,
        /// Why.
        finish: Finish,
    },
    /// None will end.
    Failed(Fault),
}

/// How likely a token was.
#[derive(Clone, Debug, PartialEq)]
pub(super) struct Likely {
    /// The token that came.
    pub(super) chosen: Word,
    /// Nothing says how likely the first of a prompt was.
    pub(super) logprob: Option<f32>,
    /// The most likely ones, best first.
    pub(super) top: Vec<(Word, f32)>,
}

/// A token.
#[derive(Clone, Debug, Default, PartialEq)]
pub(super) struct Word {
    pub(super) text: String,
    pub(super) bytes: Option<Vec<u8>>,
}

/// What is to be written.
pub(super) enum Work {
    /// Texts that go on.
    Write {
        /// A request for each prompt.
        requests: Vec<Request>,
        /// Control tokens that are to be seen in the text: their ids and names.
        marks: Vec<(u32, &'static str)>,
    },
    /// Texts for texts.
    Rewrite(Rewrite),
}

/// Answers that are being written. Dropping it cancels what is not done.
pub(super) struct Flow {
    news: UnboundedReceiver<News>,
    about: About,
    left: usize,
    queued: Arc<AtomicUsize>,
    _leave: Leave,
}

/// Tokens that may wait for a client to read them: far more than one that reads at all leaves behind. With the names of the
/// likeliest twenty beside each they come to some 40 MB.
const MOST_QUEUED: usize = 16_384;

/// What is known of them beforehand.
#[derive(Clone, Debug)]
pub(super) struct About {
    /// Answers, to all prompts.
    pub(super) answers: usize,
    /// Tokens of all prompts.
    pub(super) prompt_tokens: usize,
    /// Which model writes.
    pub(super) model: String,
    /// What computes it: version, device and format.
    pub(super) fingerprint: String,
    cached: Arc<AtomicUsize>,
}

impl About {
    /// Tokens of the prompts that did not have to be computed. Known when the last answer has begun.
    pub(super) fn cached_tokens(&self) -> usize {
        self.cached.load(Ordering::Relaxed)
    }
}

/// Tells the engine that nobody waits any more.
pub(super) struct Leave(RequestContext);

impl Drop for Leave {
    fn drop(&mut self) {
        self.0.cancel();
    }
}

/// What all sinks of a request share. It goes when the engine has dropped the last of them.
pub(super) struct Held {
    call: Call,
    news: UnboundedSender<News>,
    /// Answers that have not ended, and one for whoever begins them.
    left: AtomicUsize,
    usage: Mutex<Usage>,
    cached: Arc<AtomicUsize>,
    /// Tokens that nobody has read yet.
    queued: Arc<AtomicUsize>,
    paces: Paces,
}

impl Held {
    pub(super) fn call(&self) -> &Call {
        &self.call
    }

    /// So many answers will come.
    pub(super) fn expect(&self, answers: usize) {
        self.left.store(answers + 1, Ordering::Relaxed);
        self.paces.expect(answers);
    }

    /// So many tokens are read, and every answer is begun.
    fn begun(&self, tokens: usize, characters: usize) {
        *self.usage.lock().unwrap_or_else(PoisonError::into_inner) = Usage { tokens, characters };
        self.one_less();
    }

    fn one_less(&self) {
        if self.left.fetch_sub(1, Ordering::Relaxed) == 1 {
            self.call.done(*self.usage.lock().unwrap_or_else(PoisonError::into_inner));
        }
    }

    /// Passes on what happened to an answer to the prompt whose answers begin at `first`.
    /// The prompt comes first, and once, where it is echoed.
    pub(super) fn tell(&self, first: usize, prompt: bool, event: Result<Event, Error>, marks: &[(u32, &'static str)]) {
        let task = &self.call.served().model;
        let news = match event {
            Ok(Event::Begun { cached_tokens }) => {
                self.cached.fetch_add(cached_tokens, Ordering::Relaxed);
                return;
            }
            Ok(Event::Text { answer, text, picks }) => {
                let text = marked(task, text, &picks, marks);
                let tokens: Vec<_> = picks.into_iter().map(|pick| likely(task, pick, prompt)).collect();
                let queued = tokens.len() + self.queued.fetch_add(tokens.len(), Ordering::Relaxed);
                if queued > MOST_QUEUED && !self.call.caller().is_cancelled() {
                    self.call.caller().cancel();
                    let what = "the answer is read too slowly, and too much of it waits";
                    let _ = self.news.send(News::Failed(self.call.failed(Fault::new(FaultKind::Slow, what))));
                    return;
                }
                News::Text { answer: first + answer, prompt, text, tokens }
            }
            Ok(Event::End { answer, finish, .. }) => {
                self.one_less();
                News::End { answer: first + answer, finish }
            }
            Err(e) => News::Failed(self.call.failed(e.into())),
        };
        self.paces.see(&news);
        // Nobody takes it if the client is gone.
        let _ = self.news.send(news);
    }
}

/// Begins the work that `prepare` makes for a model, on a thread where that may take its time.
pub(super) async fn begin<T: Send + 'static>(
    (app, trail): (&Arc<App>, &Trail),
    call: Call,
    prepare: impl FnOnce(&Served) -> Result<(Work, T), Fault> + Send + 'static,
) -> Result<(Flow, T), Fault> {
    let leave = Leave(call.caller().clone());
    let (sender, news) = unbounded_channel();
    let (served, cached) = (call.served(), Arc::new(AtomicUsize::new(0)));
    let (model, fingerprint) = (served.id.clone(), fingerprint(served.model.loaded()));
    let paces = Paces::new(app, &model, trail.begun);
    let (left, usage, queued) = (AtomicUsize::new(0), Mutex::default(), Arc::new(AtomicUsize::new(0)));
    let held = Held { call, news: sender, left, usage, cached: cached.clone(), queued: queued.clone(), paces };
    let held = Arc::new(held);
    let sinks = held.clone();
    let begun = held.call.run(move |served, caller| {
        let (work, extra) = prepare(served)?;
        let read = match (&served.model, work) {
            (TaskModel::Generate(llm), Work::Write { requests, marks }) => {
                write(llm, &requests, &marks, (caller, &sinks))?
            }
            (TaskModel::Seq2Seq(model), Work::Rewrite(rewrite)) => rewrite.begin(model, &sinks)?,
            _ => return Err(served.unfit(Want::Generate)),
        };
        sinks.begun(read.tokens, read.characters);
        Ok((read, extra))
    });
    let (Read { answers, tokens: prompt_tokens, .. }, extra) = begun.await?;
    let about = About { answers, prompt_tokens, model, fingerprint, cached };
    Ok((Flow { news, about, left: answers, queued, _leave: leave }, extra))
}

/// What was begun.
pub(super) struct Read {
    /// Answers that will come.
    pub(super) answers: usize,
    /// Tokens and characters of all prompts.
    pub(super) tokens: usize,
    pub(super) characters: usize,
}

fn write(
    llm: &Llm,
    requests: &[Request],
    marks: &[(u32, &'static str)],
    (caller, held): (&RequestContext, &Arc<Held>),
) -> Result<Read, Fault> {
    let each = |request: &Request| request.params.as_ref().map_or(1, |params| params.n as usize);
    let mut read = Read { answers: requests.iter().map(each).sum(), tokens: 0, characters: 0 };
    held.expect(read.answers);
    if requests.iter().any(|r| r.params.as_ref().is_some_and(|p| p.logprobs.is_some())) || !marks.is_empty() {
        // Makes the table of all tokens here, and not where everyone waits for it.
        let _ = llm.token(0);
    }
    let mut first = 0;
    for request in requests {
        let (held, marks) = (held.clone(), marks.to_vec());
        let mut echoed = vec![!request.echo; each(request)];
        let started = llm.start(request, caller, move |event| {
            let prompt = match &event {
                Ok(Event::Text { answer, .. }) => echoed.get_mut(*answer).is_some_and(|e| !std::mem::replace(e, true)),
                _ => false,
            };
            held.tell(first, prompt, event, &marks);
        });
        read.tokens += started.map_err(|e| too_long(llm, request, e))?.prompt_tokens;
        if let Start::Text(text) | Start::Rendered(text) = &request.start {
            read.characters += text.chars().count();
        }
        first += each(request);
    }
    Ok(read)
}

/// The same error, by its name where the prompt and what was asked for do not fit the context.
fn too_long(llm: &Llm, request: &Request, error: Error) -> Fault {
    let room = llm.context();
    let over = |tokens: usize| tokens >= room || tokens + request.max_tokens.unwrap_or(0) > room;
    match error {
        Error::Input(what) if llm.encode(&request.start).is_ok_and(|tokens| over(tokens.len())) => {
            let what = format!("this model's context is {room} tokens: {what}");
            Fault::new(FaultKind::TooLong, what)
        }
        error => error.into(),
    }
}

/// The text with the control tokens among `marks` in it, each behind the text of the tokens before it.
fn marked(task: &TaskModel, mut text: String, picks: &[SampledToken], marks: &[(u32, &'static str)]) -> String {
    let TaskModel::Generate(llm) = task else { return text };
    if marks.is_empty() {
        return text;
    }
    let mut at = 0;
    for pick in picks {
        match marks.iter().find(|(id, _)| *id == pick.id) {
            Some((_, name)) => {
                text.insert_str(at, name);
                at += name.len();
            }
            None => {
                at += llm.token(pick.id).ok().and_then(|token| token.bytes).map_or(0, |bytes| bytes.len());
                // The tokenizer may write less than its tokens say, and a character may be of several tokens.
                at = (at.min(text.len())..=text.len()).find(|i| text.is_char_boundary(*i)).unwrap_or(text.len());
            }
        }
    }
    text
}

fn likely(task: &TaskModel, pick: SampledToken, prompt: bool) -> Option<Likely> {
    let word = |id| match task {
        TaskModel::Generate(llm) => {
            let token = llm.token(id).ok();
            let (text, bytes) = token.map_or_else(Default::default, |token| (token.text, token.bytes));
            Word { text, bytes }
        }
        TaskModel::Seq2Seq(model) => Word { text: model.decode(&[id]).unwrap_or_default(), bytes: None },
        _ => Word::default(),
    };
    match pick.logprobs {
        Some(logprobs) => {
            let top = logprobs.top.iter().map(|(id, logprob)| (word(*id), *logprob)).collect();
            Some(Likely { chosen: word(pick.id), logprob: Some(logprobs.chosen), top })
        }
        // The tokens of a prompt come only if their logprobs were asked for, and its first has none.
        None => prompt.then(|| Likely { chosen: word(pick.id), logprob: None, top: Vec::new() }),
    }
}

fn fingerprint(loaded: &dyn Loaded) -> String {
    let plan = loaded.plan();
    format!("sconce-{}-{}-{}", env!("CARGO_PKG_VERSION"), plan.device, plan.dtype)
}

impl Flow {
    /// What is known of the answers beforehand.
    pub(super) fn about(&self) -> &About {
        &self.about
    }

    /// What happens next; nothing once all answers have ended.
    pub(super) async fn next(&mut self) -> Option<News> {
        if self.left == 0 {
            return None;
        }
        let gone = || News::Failed(Fault::new(FaultKind::Unhealthy, "the model went away in the middle of an answer"));
        let news = self.news.recv().await.unwrap_or_else(gone);
        match &news {
            News::Text { tokens, .. } => {
                self.queued.fetch_sub(tokens.len(), Ordering::Relaxed);
            }
            News::End { .. } => self.left -= 1,
            News::Failed(_) => self.left = 0,
        }
        Some(news)
    }
}
