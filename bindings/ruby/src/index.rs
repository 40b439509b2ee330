//! `Sconce::Native::Index` and a run that updates it. Options, documents and results are JSON.

use crate::convert::{Text, texts};
use crate::error::{argument, failure};
use crate::guard::{function, method};
use crate::gvl::{self, Inbox};
use crate::handle::Handle;
use crate::index_model::NativeIndexModel;
use crate::reranker::NativeReranker;
use magnus::{Class, Error, Module, Object, RArray, RModule, Ruby};
use sconce_engine::{Loaded, RequestContext};
use sconce_index::read::{Parser, ParserCommand, worker};
use sconce_index::{Control, Index, OpenOptions, Page, Progress, Rerank, RerankModel, Tools, json};
use serde_json::Value;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, Ordering::Relaxed};
use std::sync::{Arc, Mutex, PoisonError};

#[magnus::wrap(class = "Sconce::Native::Index", free_immediately)]
struct NativeIndex(Handle<Arc<Open>>);

struct Open {
    index: Index,
    /// Held while this process writes. An interrupted run may still end in the background: the next
    /// one waits for it. A run of another process is an error.
    writing: Mutex<()>,
}

/// A run of updating, in the background. Dropping it cancels it.
#[magnus::wrap(class = "Sconce::Native::IndexRun", free_immediately)]
struct NativeRun {
    events: Arc<Inbox<Event>>,
    cancel: Arc<AtomicBool>,
    /// The process whose threads run it.
    process: u32,
}

/// What a run reports: JSON.
enum Event {
    Progress(String),
    Done(Result<String, String>),
}

impl Drop for NativeRun {
    fn drop(&mut self) {
        self.cancel.store(true, Relaxed);
    }
}

fn open(ruby: &Ruby, path: Text, create: bool, read_only: bool) -> Result<NativeIndex, Error> {
    let open = gvl::run(ruby, &RequestContext::default(), move || -> sconce_index::Result<Open> {
        let index = Index::open(Path::new(&*path), &OpenOptions { create, read_only })?;
        Ok(Open { index, writing: Mutex::default() })
    })?;
    Ok(NativeIndex(Handle::named("index", Arc::new(open))))
}

/// Runs `work` with the index, without the Ruby VM lock.
fn with<T: Send + 'static>(
    ruby: &Ruby,
    this: &NativeIndex,
    work: impl FnOnce(&Index) -> sconce_index::Result<T> + Send + 'static,
) -> Result<T, Error> {
    let open = this.0.get(ruby)?;
    gvl::run(ruby, &RequestContext::default(), move || work(&open.index))
}

/// Runs `work`, which writes, when no other thread of this process does.
fn write<T: Send + 'static>(
    ruby: &Ruby,
    this: &NativeIndex,
    work: impl FnOnce(&Index) -> sconce_index::Result<T> + Send + 'static,
) -> Result<T, Error> {
    let open = this.0.get(ruby)?;
    gvl::run(ruby, &RequestContext::default(), move || {
        let _writing = open.writing.lock().unwrap_or_else(PoisonError::into_inner);
        work(&open.index)
    })
}

/// JSON of what there is.
fn text_of(json: Option<Value>) -> Option<String> {
    json.map(|json| json.to_string())
}

/// The model of the embeddings; nil: nothing was embedded so far.
fn model(ruby: &Ruby, this: &NativeIndex) -> Result<Option<String>, Error> {
    with(ruby, this, |index| Ok(text_of(index.model()?.as_ref().map(json::model))))
}

fn status(ruby: &Ruby, this: &NativeIndex) -> Result<String, Error> {
    with(ruby, this, |index| {
        let (status, failures) = (index.status()?, index.failures(usize::MAX)?);
        Ok(json::status(index.path(), &status, &failures).to_string())
    })
}

/// Starts a run over files and folders. `parser` is the command of the child process that parses
/// untrusted formats.
fn update(
    ruby: &Ruby,
    this: &NativeIndex,
    model: &NativeIndexModel,
    paths: RArray,
    options: Text,
    parser: RArray,
) -> Result<NativeRun, Error> {
    let (open, embedder) = (this.0.get(ruby)?, model.0.get(ruby)?);
    let paths = texts(ruby, paths)?.into_iter().map(PathBuf::from).collect();
    let mut parser = texts(ruby, parser)?.into_iter();
    let program = parser.next().ok_or_else(|| argument(ruby, "the parser's command is empty"))?;
    let parser = ParserCommand { program: program.into(), arguments: parser.map(Into::into).collect() };
    let update = json::update(paths, &options).map_err(|e| argument(ruby, e))?;
    let run = NativeRun { events: Inbox::new(), cancel: Arc::default(), process: std::process::id() };
    let closing = Closing(run.events.clone());
    let cancel = run.cancel.clone();
    let work = move || {
        let mut progress = |progress: &Progress| closing.0.push(Event::Progress(json::progress(progress).to_string()));
        let _writing = open.writing.lock().unwrap_or_else(PoisonError::into_inner);
        let parser = Parser::new(parser);
        let tools = Tools { embedder: &*embedder, parser: &parser };
        let done = open.index.update(&update, &tools, Control { progress: &mut progress, cancel: &cancel });
        let done = done.map(|report| json::report(&report).to_string()).map_err(|e| e.to_string());
        closing.0.push(Event::Done(done));
    };
    std::thread::Builder::new().name("sconce-index".into()).spawn(work).map_err(|e| failure(ruby, e))?;
    Ok(run)
}

/// Closes the inbox when the thread of a run ends, also by a panic.
struct Closing(Arc<Inbox<Event>>);

impl Drop for Closing {
    fn drop(&mut self) {
        self.0.close();
    }
}

/// `[false, progress]`, and at last `[true, report]`.
fn next(ruby: &Ruby, this: &NativeRun) -> Result<(bool, String), Error> {
    if this.process != std::process::id() {
        return Err(failure(ruby, "this run was started before a fork and goes on in the parent only"));
    }
    match this.events.next().inspect_err(|_| this.cancel.store(true, Relaxed))? {
        Some(Event::Progress(progress)) => Ok((false, progress)),
        Some(Event::Done(Ok(report))) => Ok((true, report)),
        Some(Event::Done(Err(why))) => Err(failure(ruby, why)),
        None => Err(failure(ruby, "internal error, please report it: a run without a result")),
    }
}

fn cancel(_: &Ruby, this: &NativeRun) -> Result<(), Error> {
    this.cancel.store(true, Relaxed);
    Ok(())
}

/// Adds documents, a JSON list.
fn add(ruby: &Ruby, this: &NativeIndex, model: &NativeIndexModel, documents: Text) -> Result<(), Error> {
    let embedder = model.0.get(ruby)?;
    let documents = json::documents(&documents).map_err(|e| argument(ruby, e))?;
    write(ruby, this, move |index| index.add(&documents, &*embedder))
}

/// Removes documents by their ids, and files by their paths. Returns how many there were.
fn remove(ruby: &Ruby, this: &NativeIndex, ids: RArray) -> Result<u64, Error> {
    let ids = texts(ruby, ids)?;
    write(ruby, this, move |index| {
        let ids: Vec<&str> = ids.iter().map(String::as_str).collect();
        index.remove(&ids)
    })
}

/// A JSON list of hits. The model may be nil where the query needs no embedding.
fn search(
    ruby: &Ruby,
    this: &NativeIndex,
    query: Text,
    options: Text,
    model: Option<&NativeIndexModel>,
    rerank: Option<&NativeReranker>,
) -> Result<String, Error> {
    let (open, context) = (this.0.get(ruby)?, RequestContext::default());
    let query = json::query(query.0, &options).map_err(|e| argument(ruby, e))?;
    let embedder = model.map(|model| model.0.get(ruby)).transpose()?;
    let rerank = rerank.map(|reranker| reranker.0.get(ruby)).transpose()?;
    let rerank = rerank.map(|reranker| RerankModel::new(reranker.with_context(&context)));
    gvl::run(ruby, &context, move || -> sconce_index::Result<String> {
        let rerank = rerank.as_ref().map(|reranker| reranker as &dyn Rerank);
        let hits = open.index.search(&query, embedder.as_deref(), rerank)?;
        Ok(Value::Array(hits.iter().map(json::hit).collect()).to_string())
    })
}

/// A passage with chunks around it; nil: there is no such chunk.
fn passage(ruby: &Ruby, this: &NativeIndex, chunk: i64, before: usize, after: usize) -> Result<Option<String>, Error> {
    with(ruby, this, move |index| Ok(text_of(index.passage(chunk, before, after)?.as_ref().map(json::passage))))
}

/// A JSON list of documents after an id.
fn documents(
    ruby: &Ruby,
    this: &NativeIndex,
    after: Option<i64>,
    limit: usize,
    prefix: Option<Text>,
) -> Result<String, Error> {
    with(ruby, this, move |index| {
        let page = Page { after, limit, prefix: prefix.map(|prefix| prefix.0) };
        Ok(Value::Array(index.documents(&page)?.iter().map(json::document).collect()).to_string())
    })
}

/// The document of an id or path with its text; nil: there is none.
fn get(ruby: &Ruby, this: &NativeIndex, id: Text) -> Result<Option<String>, Error> {
    with(ruby, this, move |index| {
        let Some(info) = index.document(&id)? else { return Ok(None) };
        let mut document = json::document(&info);
        document["text"] = index.text(info.id)?.into();
        Ok(Some(document.to_string()))
    })
}

/// Closes the connections that no call uses, before this process forks.
fn close_idle(ruby: &Ruby, this: &NativeIndex) -> Result<(), Error> {
    this.0.get(ruby)?.index.close_idle();
    Ok(())
}

fn close(ruby: &Ruby, this: &NativeIndex) -> Result<(), Error> {
    this.0.close(ruby)
}

/// What the child process does that parses files. It ends the process when its input ends.
pub(crate) fn parse_files(ruby: &Ruby) -> Result<(), Error> {
    worker::main().map_err(|e| failure(ruby, e))
}

pub(crate) fn define(ruby: &Ruby, native: RModule) -> Result<(), Error> {
    let class = native.define_class("Index", ruby.class_object())?;
    class.undef_default_alloc_func();
    class.define_singleton_method("open", function!(open, 3))?;
    class.define_method("model", method!(model, 0))?;
    class.define_method("status", method!(status, 0))?;
    class.define_method("update", method!(update, 4))?;
    class.define_method("add", method!(add, 2))?;
    class.define_method("remove", method!(remove, 1))?;
    class.define_method("search", method!(search, 4))?;
    class.define_method("passage", method!(passage, 3))?;
    class.define_method("documents", method!(documents, 3))?;
    class.define_method("get", method!(get, 1))?;
    class.define_method("close_idle", method!(close_idle, 0))?;
    class.define_method("close", method!(close, 0))?;
    let run = native.define_class("IndexRun", ruby.class_object())?;
    run.undef_default_alloc_func();
    run.define_method("next", method!(next, 0))?;
    run.define_method("cancel", method!(cancel, 0))
}
