//! Indexes: documents, embeddings, full text and search in one file.

use crate::call::{Caller, call, call_with_progress, detached};
use crate::error::of_index;
use crate::handle::Handle;
use crate::model::{Model, wrong_task};
use pyo3::prelude::*;
use sconce_engine::{Error, Loaded, Prompt, Result, TaskModel};
use sconce_index::read::{Parser, ParserCommand};
use sconce_index::{Control, EmbedPrompts, Embedder, OpenOptions, Page, Progress, Rerank, RerankModel, Tools, json};
use serde_json::Value;
use std::ffi::OsString;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, Ordering::Relaxed};
use std::sync::{Arc, Mutex, PoisonError};

/// An open index.
#[pyclass(frozen, module = "sconce._sconce")]
pub(crate) struct Index(Handle<Open>);

struct Open {
    index: sconce_index::Index,
    /// Held while this process writes. An interrupted run may still end in the background: the next
    /// one waits for it. A run of another process is an error.
    writing: Mutex<()>,
}

impl Open {
    fn path(&self) -> &Path {
        self.index.path()
    }

    fn read<T>(&self, f: impl FnOnce(&sconce_index::Index) -> sconce_index::Result<T>) -> Result<T> {
        f(&self.index).map_err(|e| of_index(self.path(), e))
    }

    fn write<T>(&self, f: impl FnOnce(&sconce_index::Index) -> sconce_index::Result<T>) -> Result<T> {
        let _writing = self.writing.lock().unwrap_or_else(PoisonError::into_inner);
        self.read(f)
    }
}

/// The model of an index.
#[pyclass(frozen, module = "sconce._sconce")]
pub(crate) struct IndexModel(Handle<dyn Embedder>);

/// Opens an index.
#[pyfunction]
pub(crate) fn open_index(py: Python<'_>, path: PathBuf, create: bool, read_only: bool) -> PyResult<Index> {
    let open = call(py, move |_| {
        let options = OpenOptions { create, read_only };
        let index = sconce_index::Index::open(&path, &options).map_err(|e| of_index(&path, e))?;
        Ok(Open { index, writing: Mutex::default() })
    })?;
    Ok(Index(Handle::new("index", Arc::new(open))))
}

/// A loaded embedding model as an index uses it. `name` loads it again; `prompts` are the texts
/// before passages and before queries, where they are not those of the model's files.
#[pyfunction]
pub(crate) fn index_model(
    py: Python<'_>,
    model: &Bound<'_, Model>,
    name: String,
    prompts: (Option<String>, Option<String>),
) -> PyResult<IndexModel> {
    let model = model.get().get(py)?;
    let embedder = call(py, move |_| {
        let (passage, query) = (prompts.0.map(Prompt::Text), prompts.1.map(Prompt::Text));
        let embedder = sconce_index::embedder_of(&model, &name, EmbedPrompts { passage, query });
        embedder.map_err(|e| of_index(Path::new(&name), e))
    })?;
    Ok(IndexModel(Handle::new("model", Arc::from(embedder))))
}

/// The reranker of a search.
fn reranker(model: &TaskModel, context: &sconce_engine::RequestContext) -> Result<RerankModel> {
    match model {
        TaskModel::Rerank(reranker) => Ok(RerankModel::new(reranker.with_context(context))),
        _ => Err(wrong_task("rerank")),
    }
}

/// JSON of what there is.
fn text_of(json: Option<Value>) -> Option<String> {
    json.map(|json| json.to_string())
}

#[pymethods]
impl Index {
    /// Closes the index when the calls in progress have ended.
    fn close(&self, py: Python<'_>) -> PyResult<()> {
        self.0.close(py)
    }

    /// Closes the connections that no call uses, before this process forks.
    fn close_idle(&self, py: Python<'_>) -> PyResult<()> {
        let open = self.0.get(py)?;
        detached(py, || {
            open.index.close_idle();
            Ok(())
        })
    }

    /// The model of the embeddings, a JSON object; `None`: nothing was embedded so far.
    fn model(&self, py: Python<'_>) -> PyResult<Option<String>> {
        let open = self.0.get(py)?;
        call(py, move |_| open.read(|index| Ok(text_of(index.model()?.as_ref().map(json::model)))))
    }

    /// What the index has, a JSON object.
    fn status(&self, py: Python<'_>) -> PyResult<String> {
        let open = self.0.get(py)?;
        call(py, move |_| {
            open.read(|index| {
                let (status, failures) = (index.status()?, index.failures(usize::MAX)?);
                Ok(json::status(index.path(), &status, &failures).to_string())
            })
        })
    }

    /// Brings the index up to date with files: the report, a JSON object. `parser` is the command of
    /// the child process that parses untrusted formats; progress is JSON of the kind `progress`.
    fn update(
        &self,
        py: Python<'_>,
        model: &Bound<'_, IndexModel>,
        paths: Vec<PathBuf>,
        options: String,
        parser: Vec<OsString>,
        on_progress: Option<&Bound<'_, PyAny>>,
    ) -> PyResult<String> {
        let (open, embedder) = (self.0.get(py)?, model.get().0.get(py)?);
        call_with_progress(py, on_progress, move |caller| {
            let parser = Parser::new(parser_command(parser)?);
            let tools = Tools { embedder: &*embedder, parser: &parser };
            open.write(|index| update(index, (paths, &options), &tools, caller))
        })
    }

    /// Adds documents, a JSON list, and replaces those with the same ids.
    fn add(&self, py: Python<'_>, model: &Bound<'_, IndexModel>, documents: String) -> PyResult<()> {
        let (open, embedder) = (self.0.get(py)?, model.get().0.get(py)?);
        call(py, move |_| open.write(|index| index.add(&json::documents(&documents)?, &*embedder)))
    }

    /// Removes documents by their ids, and files by their paths. Returns how many there were.
    fn remove(&self, py: Python<'_>, ids: Vec<String>) -> PyResult<u64> {
        let open = self.0.get(py)?;
        call(py, move |_| {
            let ids: Vec<&str> = ids.iter().map(String::as_str).collect();
            open.write(|index| index.remove(&ids))
        })
    }

    /// Finds passages: a JSON list.
    fn search(
        &self,
        py: Python<'_>,
        query: String,
        options: String,
        model: Option<&Bound<'_, IndexModel>>,
        rerank: Option<&Bound<'_, Model>>,
    ) -> PyResult<String> {
        let open = self.0.get(py)?;
        let embedder = model.map(|model| model.get().0.get(py)).transpose()?;
        let rerank = rerank.map(|model| model.get().get(py)).transpose()?;
        call(py, move |context| {
            let rerank = rerank.as_ref().map(|model| reranker(model, context)).transpose()?;
            open.read(|index| {
                let query = json::query(query, &options)?;
                let rerank = rerank.as_ref().map(|reranker| reranker as &dyn Rerank);
                let hits = index.search(&query, embedder.as_deref(), rerank)?;
                Ok(Value::Array(hits.iter().map(json::hit).collect()).to_string())
            })
        })
    }

    /// A passage with chunks around it, a JSON object; `None`: there is no such chunk.
    fn passage(&self, py: Python<'_>, chunk: i64, before: usize, after: usize) -> PyResult<Option<String>> {
        let open = self.0.get(py)?;
        call(py, move |_| {
            open.read(|index| Ok(text_of(index.passage(chunk, before, after)?.as_ref().map(json::passage))))
        })
    }

    /// Documents after an id, a JSON list.
    fn documents(&self, py: Python<'_>, after: Option<i64>, limit: usize, prefix: Option<String>) -> PyResult<String> {
        let open = self.0.get(py)?;
        call(py, move |_| {
            open.read(|index| {
                let documents = index.documents(&Page { after, limit, prefix })?;
                Ok(Value::Array(documents.iter().map(json::document).collect()).to_string())
            })
        })
    }

    /// The documents of ids or paths, a JSON list with null for those that do not exist. With `text`
    /// each has its text.
    fn get(&self, py: Python<'_>, ids: Vec<String>, text: bool) -> PyResult<String> {
        let open = self.0.get(py)?;
        call(py, move |_| {
            open.read(|index| {
                let documents = ids.iter().map(|id| document(index, id, text));
                Ok(Value::Array(documents.collect::<sconce_index::Result<_>>()?).to_string())
            })
        })
    }
}

fn document(index: &sconce_index::Index, id: &str, text: bool) -> sconce_index::Result<Value> {
    let Some(info) = index.document(id)? else { return Ok(Value::Null) };
    let mut document = json::document(&info);
    if text {
        document["text"] = index.text(info.id)?.into();
    }
    Ok(document)
}

fn parser_command(command: Vec<OsString>) -> Result<ParserCommand> {
    let mut arguments = command.into_iter();
    let program = arguments.next().ok_or_else(|| Error::Input("the parser's command is empty".into()))?;
    Ok(ParserCommand { program: program.into(), arguments: arguments.collect() })
}

/// Runs [`sconce_index::Index::update`]. It reports its progress several times per second, and looks
/// for an interrupt then.
fn update(
    index: &sconce_index::Index,
    (paths, options): (Vec<PathBuf>, &str),
    tools: &Tools<'_>,
    caller: &Caller,
) -> sconce_index::Result<String> {
    // It may have been interrupted while it waited for an earlier run.
    let cancel = AtomicBool::new(caller.context.is_cancelled());
    let mut progress = |progress: &Progress| {
        if caller.context.is_cancelled() {
            cancel.store(true, Relaxed);
        }
        caller.report(&json::progress(progress).to_string());
    };
    let update = json::update(paths, options)?;
    let report = index.update(&update, tools, Control { progress: &mut progress, cancel: &cancel })?;
    Ok(json::report(&report).to_string())
}
