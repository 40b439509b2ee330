//! Embeddings for async programs, such as vector databases and their servers.

use crate::config::Prompt;
use crate::error::{Error, Result};
use crate::runtime::{Loaded, RequestContext};
use crate::tasks::{EmbedOptions, Embedder, Embeddings};
use futures_channel::oneshot;
use sconce_text::TextOrTokens;
use std::future::Future;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::pin::Pin;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};
use std::sync::mpsc::{Receiver, Sender, channel};
use std::sync::{Arc, Mutex, PoisonError};
use std::thread;

/// Threads that wait for the model. Requests of all of them share micro-batches; further requests
/// wait for a thread.
const THREADS: usize = 8;

/// A future that a trait object can return.
pub type BoxFuture<'a, T> = Pin<Box<dyn Future<Output = T> + Send + 'a>>;

/// A source of embeddings, as vector databases use one. [`AsyncEmbedder`] is ours; a program can
/// have others, such as a fake one for its tests.
pub trait EmbeddingProvider: Send + Sync {
    /// Embeds texts; the rows are in their order. Dropping the future cancels the request.
    fn embed_batch(&self, texts: Vec<String>, input: InputType) -> BoxFuture<'_, Result<Embeddings>>;
    /// The model.
    fn info(&self) -> ProviderInfo;
    /// Runs a short text through the model. Fails if the model cannot answer now.
    fn health(&self) -> BoxFuture<'_, Result<()>>;
    /// What was requested so far.
    fn usage(&self) -> ProviderUsage;
}

/// What texts are for. Models trained with prompts for both put them before the texts.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum InputType {
    /// Texts to be found.
    #[default]
    Document,
    /// Texts to search with.
    Query,
}

/// What a provider says about its model.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct ProviderInfo {
    /// Where the model's files came from.
    pub model: String,
    /// Dimension of an embedding.
    pub dimension: usize,
    /// The longest text in tokens; longer ones are truncated.
    pub max_tokens: usize,
    /// The device that the model runs on, such as `cuda:0`.
    pub device: String,
    /// The format of the activations, such as `f16`.
    pub dtype: String,
}

/// What a provider has done since it was made.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct ProviderUsage {
    /// Requests, failed ones included.
    pub requests: u64,
    /// Requests that failed or were cancelled.
    pub failures: u64,
    /// Embedded texts.
    pub texts: u64,
    /// Their tokens, after truncation.
    pub tokens: u64,
}

/// An [`Embedder`] for async programs on any runtime. Threads of its own wait for the model.
///
/// ```no_run
/// use sconce_engine::{AsyncEmbedder, Embedder, EmbeddingProvider, InputType, LoadOptions};
///
/// # async fn run() -> Result<(), Box<dyn std::error::Error>> {
/// let embedder = Embedder::load(&"minilm".parse()?, &LoadOptions::from_env()?, &())?;
/// let provider: Box<dyn EmbeddingProvider> = Box::new(AsyncEmbedder::new(embedder));
/// let embeddings = provider.embed_batch(vec!["A man is eating food.".into()], InputType::Document).await?;
/// assert_eq!(embeddings.row(0).len(), provider.info().dimension);
/// # Ok(())
/// # }
/// ```
pub struct AsyncEmbedder {
    embedder: Embedder,
    jobs: Sender<Job>,
    counters: Arc<Counters>,
}

type Job = Box<dyn FnOnce() + Send>;

#[derive(Default)]
struct Counters {
    requests: AtomicU64,
    failures: AtomicU64,
    texts: AtomicU64,
    tokens: AtomicU64,
}

impl AsyncEmbedder {
    /// Starts the threads, which end when the last request has ended and this is dropped.
    pub fn new(embedder: Embedder) -> AsyncEmbedder {
        let (jobs, waiting) = channel();
        let waiting = Arc::new(Mutex::new(waiting));
        for _ in 0..THREADS {
            let waiting = waiting.clone();
            thread::spawn(move || {
                while let Some(job) = next(&waiting) {
                    job();
                }
            });
        }
        AsyncEmbedder { embedder, jobs, counters: Arc::default() }
    }

    /// The prompt of the model's files for these inputs, if they have one.
    fn prompt(&self, input: InputType) -> Prompt {
        let names: &[&str] = match input {
            InputType::Query => &["query"],
            InputType::Document => &["document", "passage", "corpus"],
        };
        let named = names.iter().find(|name| self.embedder.prompts().any(|prompt| prompt == **name));
        named.map_or(Prompt::Default, |name| Prompt::Named((*name).to_owned()))
    }

    fn embed(&self, texts: Vec<String>, prompt: Prompt) -> impl Future<Output = Result<Embeddings>> + Send + 'static {
        let device = self.embedder.plan().device;
        let context = RequestContext::new(None);
        let embedder = self.embedder.with_context(&context);
        let (sender, receiver) = oneshot::channel();
        let job: Job = Box::new(move || {
            let inputs: Vec<_> = texts.iter().map(|text| TextOrTokens::Text(text)).collect();
            let options = EmbedOptions::default().with_prompt(prompt);
            let run = AssertUnwindSafe(|| embedder.embed_with(&inputs, &options));
            let result = catch_unwind(run).unwrap_or_else(|_| Err(Error::bug(device, "the request panicked")));
            // Fails only if the caller has dropped the future.
            let _ = sender.send(result);
        });
        let sent = self.jobs.send(job);
        let cancel = CancelOnDrop(context);
        async move {
            let _cancel = cancel;
            let stopped = || Error::bug(device, "the provider's threads have ended");
            sent.map_err(|_| stopped())?;
            receiver.await.unwrap_or_else(|_| Err(stopped()))
        }
    }
}

/// The next job; `None` when there are no more senders.
fn next(waiting: &Mutex<Receiver<Job>>) -> Option<Job> {
    waiting.lock().unwrap_or_else(PoisonError::into_inner).recv().ok()
}

/// Cancels a request whose future is dropped.
struct CancelOnDrop(RequestContext);

impl Drop for CancelOnDrop {
    fn drop(&mut self) {
        self.0.cancel();
    }
}

/// Counts a request as failed unless it succeeds, also if its future is dropped.
struct Outcome(Arc<Counters>, bool);

impl Drop for Outcome {
    fn drop(&mut self) {
        if !self.1 {
            self.0.failures.fetch_add(1, Relaxed);
        }
    }
}

impl EmbeddingProvider for AsyncEmbedder {
    fn embed_batch(&self, texts: Vec<String>, input: InputType) -> BoxFuture<'_, Result<Embeddings>> {
        self.counters.requests.fetch_add(1, Relaxed);
        let count = texts.len() as u64;
        let mut outcome = Outcome(self.counters.clone(), false);
        let embeddings = self.embed(texts, self.prompt(input));
        Box::pin(async move {
            let embeddings = embeddings.await?;
            outcome.1 = true;
            outcome.0.texts.fetch_add(count, Relaxed);
            outcome.0.tokens.fetch_add(embeddings.tokens.iter().sum::<usize>() as u64, Relaxed);
            Ok(embeddings)
        })
    }

    fn info(&self) -> ProviderInfo {
        let plan = self.embedder.plan();
        ProviderInfo {
            model: self.embedder.files().origin.to_string(),
            dimension: plan.dimension,
            max_tokens: plan.max_tokens,
            device: plan.runs_on(),
            dtype: plan.dtype.to_string(),
        }
    }

    fn health(&self) -> BoxFuture<'_, Result<()>> {
        let embeddings = self.embed(vec!["health".into()], Prompt::Default);
        Box::pin(async move { embeddings.await.map(drop) })
    }

    fn usage(&self) -> ProviderUsage {
        let read = |counter: &AtomicU64| counter.load(Relaxed);
        let Counters { requests, failures, texts, tokens } = &*self.counters;
        ProviderUsage { requests: read(requests), failures: read(failures), texts: read(texts), tokens: read(tokens) }
    }
}
