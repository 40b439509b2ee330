//! A loaded encoder as tasks use it: texts in, outputs out.

use super::graph;
use super::{Encode, EncodeItem, EncodeRequest, MOST_UNREAD, OutputKind, Part, PassKind, Pipeline};
use crate::error::{Error, Result};
use crate::options::LoadOptions;
use crate::plan::Plan;
use crate::runtime::{self, Codec, Executor, LoadedModel, Reply, RequestContext, RequestSettings};
use sconce_hub::{Files, Progress};
use sconce_ops::Device;
use sconce_text::{Encoded, ModelTokenizer, Reader, TextToken};
use std::ops::Deref;
use std::path::Path;
use std::sync::atomic::{AtomicUsize, Ordering::Relaxed};
use std::sync::mpsc::{Receiver, channel};
use std::sync::{Arc, Weak};
use std::time::Instant;

/// One result per text, in the order of the texts.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Outputs<T> {
    /// The results.
    pub results: Vec<T>,
    /// Tokens of each text, after truncation.
    pub tokens: Vec<usize>,
    /// Indices of the texts that were too long and were truncated, ascending.
    pub truncated: Vec<usize>,
}

impl<T> Outputs<T> {
    /// Converts every result.
    pub fn map<U>(self, convert: impl FnMut(T) -> U) -> Outputs<U> {
        let results = self.results.into_iter().map(convert).collect();
        Outputs { results, tokens: self.tokens, truncated: self.truncated }
    }
}

/// Tokenized texts, with what [`Outputs`] reports about them.
pub(crate) struct Texts {
    pub(crate) items: Vec<EncodeItem>,
    /// Tokens of each text.
    pub(crate) tokens: Vec<usize>,
    /// Indices of truncated texts.
    pub(crate) truncated: Vec<usize>,
}

impl Texts {
    /// Items of texts whose first `skip` tokens belong to a prompt that is not pooled.
    pub(crate) fn of(encoded: Vec<Encoded>, skip: usize) -> Texts {
        let tokens = encoded.iter().map(|e| e.ids.len()).collect();
        let truncated = (0..encoded.len()).filter(|i| encoded[*i].truncated).collect();
        let items = encoded.into_iter().map(|e| EncodeItem { skip, ..EncodeItem::from(e) }).collect();
        Texts { items, tokens, truncated }
    }
}

impl Codec for ModelTokenizer {
    fn tokenize(&self, text: &str, special: bool) -> Result<Vec<TextToken>> {
        Ok(ModelTokenizer::tokenize(self, text, special)?)
    }
    fn token_count(&self, text: &str) -> Result<usize> {
        Ok(ModelTokenizer::token_count(self, text)?)
    }
    fn detokenize(&self, ids: &[u32], skip_special: bool) -> Result<String> {
        Ok(ModelTokenizer::detokenize(self, ids, skip_special)?)
    }
}

/// A loaded encoder, and the settings for the requests of this handle.
pub(crate) struct Session<P: Pipeline> {
    model: Arc<LoadedModel<Encode<P>, ModelTokenizer>>,
    pub(crate) settings: RequestSettings,
}

impl<P: Pipeline> Clone for Session<P> {
    fn clone(&self) -> Session<P> {
        Session { model: self.model.clone(), settings: self.settings.clone() }
    }
}

impl<P: Pipeline> Deref for Session<P> {
    type Target = LoadedModel<Encode<P>, ModelTokenizer>;

    fn deref(&self) -> &LoadedModel<Encode<P>, ModelTokenizer> {
        &self.model
    }
}

/// The file or folder that a pipeline reads.
fn root<P: Pipeline>(files: &Files) -> Result<&Path> {
    Ok(if P::IN_GGUF { files.root() } else { files.directory()? })
}

/// Plans an encoder on a device that need not be in this machine.
pub(crate) fn plan<P: Pipeline>(
    files: &Files,
    device: Device,
    options: &LoadOptions,
    read: impl FnOnce(&Path) -> Result<P::Spec>,
) -> Result<Plan> {
    let spec = read(root::<P>(files)?)?;
    let (device, options) = graph::for_engine::<P>(&P::input_spec(&spec).root, device, options)?;
    runtime::plan::<Encode<P>>(&spec, device, &options)
}

impl<P: Pipeline> Session<P> {
    /// Loads an encoder for a task; `read` reads the task's settings from its files.
    pub(crate) fn load(
        files: &Files,
        options: &LoadOptions,
        progress: &dyn Progress,
        read: impl FnOnce(&Path) -> Result<P::Spec>,
    ) -> Result<Session<P>> {
        let spec = read(root::<P>(files)?)?;
        let input_spec = P::input_spec(&spec);
        let first = options.device.candidates(false).0[0];
        let (_, options) = graph::for_engine::<P>(&input_spec.root, first, options)?;
        let load = |options: &LoadOptions| {
            runtime::load(files, &spec, options, progress, |plan| {
                let tokenizer = ModelTokenizer::load(&input_spec.root, plan.max_tokens, input_spec.tokenizer_options)?;
                if let Some(note) = tokenizer.check(&input_spec.root, plan.vocabulary)? {
                    progress.note(&note);
                }
                Ok(Arc::new(tokenizer))
            })
        };
        let model = load(&options).or_else(|error| match graph::fallback(&options, &error) {
            Some(options) => {
                progress.note(&format!("{error}; falling back to cpu (--fallback)"));
                load(&options)
            }
            None => Err(error),
        })?;
        if let Some(graph) = &model.plan.graph {
            progress.note(&format!("{} runs {} on {}", graph.engine(), graph.paths(), graph.provider));
        }
        Ok(Session { model: Arc::new(model), settings: RequestSettings::default() })
    }

    /// Tokenizes with `read`. Fails if the request was cancelled or missed its deadline.
    pub(crate) fn read<T, E>(&self, read: impl FnOnce(Reader<'_>) -> Result<T, E>) -> Result<T>
    where
        Error: From<E>,
    {
        let RequestSettings { context, truncate, max_tokens } = &self.settings;
        let reader = self.text.reader(*truncate).with_max_tokens(max_tokens.unwrap_or(usize::MAX));
        context.tokenizing(|| Ok(read(reader)?))
    }

    /// Runs `f` on the device thread. Fails if the request was cancelled or missed its deadline.
    pub(crate) fn call<R: Send + 'static>(
        &self,
        f: impl FnOnce(&Encode<P>) -> Result<R> + Send + 'static,
    ) -> Result<R> {
        let (submitted, context) = (Instant::now(), self.settings.context.clone());
        self.executor.call(move |workload| {
            let started = Instant::now();
            context.add_queue_time(started.saturating_duration_since(submitted));
            context.check()?;
            let answer = f(workload);
            context.add_inference_time(started.elapsed());
            answer
        })
    }

    /// Encodes `items` in micro-batches shared with other requests. `take` gets an item's index and
    /// its outputs, in the order of the micro-batches; an item without tokens, which only static
    /// models allow, gets none.
    pub(crate) fn run(&self, items: Vec<EncodeItem>, take: impl FnMut(usize, &[&[f32]]) -> Result<()>) -> Result<()> {
        self.run_for(OutputKind::Task, items, take)
    }

    /// Encodes tokenized texts and collects the results: `convert` makes a text's result from its
    /// index and rows.
    pub(crate) fn outputs<T: Clone + Default>(
        &self,
        kind: impl Into<PassKind>,
        texts: Texts,
        mut convert: impl FnMut(usize, &[&[f32]]) -> Result<T>,
    ) -> Result<Outputs<T>> {
        let Texts { items, tokens, truncated } = texts;
        let mut results = vec![T::default(); items.len()];
        self.run_for(kind, items, |i, rows| {
            results[i] = convert(i, rows)?;
            Ok(())
        })?;
        Ok(Outputs { results, tokens, truncated })
    }

    /// Like [`Session::run`], for any kind of pass.
    pub(crate) fn run_for(
        &self,
        kind: impl Into<PassKind>,
        mut items: Vec<EncodeItem>,
        mut take: impl FnMut(usize, &[&[f32]]) -> Result<()>,
    ) -> Result<()> {
        let vocabulary = self.plan.vocabulary;
        for (text, item) in items.iter().enumerate() {
            if let Some(id) = item.sequence.ids.iter().find(|id| **id as usize >= vocabulary) {
                let why = format!(
                    "token {id} is outside of the model's vocabulary of {vocabulary}; do tokenizer and model belong together?"
                );
                return Err(Error::Text { text, why });
            }
        }
        let numbers: Vec<usize> = (0..items.len()).filter(|i| !items[*i].sequence.ids.is_empty()).collect();
        items.retain(|item| !item.sequence.ids.is_empty());
        let mut parts =
            PartStream::submit(&self.executor, self.plan.device, &self.settings.context, items, kind.into())?;
        while let Some(part) = parts.next() {
            let part = part?;
            for (item, place) in &part.items {
                let (text, outputs) = (numbers[*item], part.results.of(*place));
                if !outputs.iter().all(|values| values.iter().all(|v| v.is_finite())) {
                    return Err(Error::unsound(&format!("the result of text {}", text + 1), self.plan.dtype));
                }
                take(text, &outputs)?;
            }
            drop(part);
            if parts.mark_read() {
                self.executor.wake()?;
            }
        }
        Ok(())
    }
}

/// The parts of a result as they arrive. Dropping it cancels the rest.
pub(super) struct PartStream {
    inbox: Receiver<Result<Part>>,
    reply: Weak<Reply<Part>>,
    /// Parts that were sent and not read.
    unread: Arc<AtomicUsize>,
    /// Items without a result.
    left: usize,
}

impl PartStream {
    /// Submits items; none may be empty.
    pub(super) fn submit<P: Pipeline>(
        executor: &Executor<Encode<P>>,
        device: Device,
        context: &RequestContext,
        items: Vec<EncodeItem>,
        kind: PassKind,
    ) -> Result<PartStream> {
        let (parts, inbox) = channel();
        let (left, unread) = (items.len(), Arc::new(AtomicUsize::new(0)));
        // If the stream was dropped, sending fails, and the request ends before the next step.
        let reply = Reply::new(context.clone(), device, Box::new(move |part| drop(parts.send(part))));
        let reply = Arc::new(reply);
        let stream = PartStream { inbox, reply: Arc::downgrade(&reply), unread: unread.clone(), left };
        if left > 0 {
            executor.submit(EncodeRequest { items, kind, unread }, &reply)?;
        }
        Ok(stream)
    }

    /// Waits for the next part; `None` when there are no more.
    pub(super) fn next(&mut self) -> Option<Result<Part>> {
        if self.left == 0 {
            return None;
        }
        // A reply always ends with a part or an error.
        let part = self.inbox.recv().unwrap_or(Err(Error::Cancelled));
        self.left -= part.as_ref().map_or(self.left, |part| part.items.len());
        Some(part)
    }

    /// Marks a part as read. Returns whether the queue had skipped this request, so that the
    /// executor must be woken.
    pub(super) fn mark_read(&self) -> bool {
        self.unread.fetch_sub(1, Relaxed) >= MOST_UNREAD
    }
}

impl Drop for PartStream {
    fn drop(&mut self) {
        if let Some(reply) = self.reply.upgrade() {
            reply.close();
        }
    }
}
