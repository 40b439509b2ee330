//! The index behind the tools, and its model, which is loaded by the first search that needs it.

use super::arguments::{
    DocumentName, ListArguments, ModeName, ReadArguments, Reading, SearchArguments, ToolError, parse, sentence,
};
use super::output::{MAX_PASSAGE, MAX_TEXT, add_place, clip, kind_name, metadata, title, unit_of};
use crate::Failure;
use crate::args::RunArgs;
use crate::index::IndexModel;
use crate::report::Report;
use rmcp::model::JsonObject;
use sconce_index::{DocumentInfo, Hit, Index, ModelIdentity, OpenOptions, Page, Passage, Query};
use serde_json::{Value, json};
use std::path::Path;
use std::sync::{Arc, Mutex, PoisonError};

/// An index that any number of calls read.
pub(crate) struct Library {
    index: Index,
    run_args: RunArgs,
    report: Report,
    model: Mutex<Option<Arc<IndexModel>>>,
}

impl Library {
    /// Opens the index. It is never written to.
    pub(crate) fn open(path: &Path, run_args: RunArgs, report: Report) -> Result<Library, Failure> {
        let index = Index::open(path, &OpenOptions { create: false, read_only: true })?;
        Ok(Library { index, run_args, report, model: Mutex::new(None) })
    }

    /// The tool `search`.
    pub(super) fn search(&self, arguments: JsonObject) -> Result<Value, ToolError> {
        let arguments: SearchArguments = parse(arguments)?;
        let (limit, filter) = (arguments.check()?, arguments.filter()?);
        let known = self.index.model().map_err(failed)?;
        let mode = match (arguments.mode, &known) {
            (Some(mode), _) => mode,
            (None, Some(_)) => ModeName::Hybrid,
            // Nothing was embedded so far.
            (None, None) => ModeName::Bm25,
        };
        let model = match &known {
            Some(known) if mode != ModeName::Bm25 => Some(self.model(known)?),
            _ => None,
        };
        let threads = self.run_args.threads.threads;
        let query = Query { mode: mode.mode(), limit, filter, threads, ..Query::new(arguments.query) };
        let hits = self.index.search(&query, model.as_deref().map(IndexModel::embedder), None).map_err(failed)?;
        let mut left = MAX_TEXT;
        let mut results = Vec::with_capacity(hits.len());
        for hit in &hits {
            let result = hit_json(hit);
            // Escapes of JSON count too.
            let size = result.to_string().len();
            if size > left && !results.is_empty() {
                break;
            }
            left = left.saturating_sub(size);
            results.push(result);
        }
        let omitted = hits.len() - results.len();
        Ok(json!({"mode": mode.name(), "results": results, "omitted": omitted}))
    }

    /// The tool `read`.
    pub(super) fn read(&self, arguments: JsonObject) -> Result<Value, ToolError> {
        match parse::<ReadArguments>(arguments)?.reading()? {
            Reading::Around { chunk, before, after } => self.read_around(chunk, before, after),
            Reading::Places { document, start, end } => self.read_places(&document, start, end),
        }
    }

    /// A passage and the chunks around it, fewer of them if they are too long.
    fn read_around(&self, chunk: i64, mut before: usize, mut after: usize) -> Result<Value, ToolError> {
        let passage = loop {
            let passage = self.index.passage(chunk, before, after).map_err(failed)?;
            let Some(passage) = passage else {
                return Err(format!(
                    "there is no chunk {chunk}, or not any more because its document changed; search again"
                ));
            };
            if passage.text.len() <= MAX_TEXT || before + after == 0 {
                break passage;
            }
            (before, after) = (before / 2, after / 2);
        };
        let Passage { document, heading, place, text, .. } = passage;
        let clipped = clip(&text, MAX_TEXT);
        let mut all = json!({
            "chunk": chunk,
            "before": before,
            "after": after,
            "heading": title(heading.as_deref()),
            "text": clipped.text,
            "truncated": clipped.is_cut,
        });
        add_place(&mut all, unit_of(&document), place, document.row);
        add_document(&mut all, &document);
        Ok(all)
    }

    /// Lines or pages of a document.
    fn read_places(&self, name: &DocumentName, start: u32, end: u32) -> Result<Value, ToolError> {
        let id = match name {
            DocumentName::Id(id) => Some(*id),
            DocumentName::Path(path) => self.index.document(path).map_err(failed)?.map(|document| document.id),
        };
        let excerpt = match id {
            Some(id) => self.index.excerpt(id, start..=end, MAX_TEXT).map_err(failed)?,
            None => None,
        };
        let Some(excerpt) = excerpt else {
            let what = match name {
                DocumentName::Id(id) => format!("document {id}"),
                DocumentName::Path(path) => format!("document with the path `{path}`"),
            };
            return Err(sentence(&format!(
                "the index has no {what}; `list_documents` and `search` give the paths and numbers that it has"
            )));
        };
        if excerpt.place.is_none() {
            return Err(format!("nothing begins between {start} and {end}; the last place is {}", excerpt.last));
        }
        let clipped = clip(&excerpt.text, MAX_TEXT);
        let mut all = json!({
            "last": excerpt.last,
            "next": excerpt.next,
            "text": clipped.text,
            "truncated": excerpt.is_cut || clipped.is_cut,
        });
        add_place(&mut all, excerpt.unit, excerpt.place, excerpt.document.row);
        add_document(&mut all, &excerpt.document);
        Ok(all)
    }

    /// The tool `list_documents`.
    pub(super) fn list_documents(&self, arguments: JsonObject) -> Result<Value, ToolError> {
        let arguments: ListArguments = parse(arguments)?;
        let limit = arguments.check()?;
        let page = Page { after: arguments.after, limit: limit + 1, prefix: arguments.prefix };
        let found = self.index.documents(&page).map_err(failed)?;
        let mut left = MAX_TEXT;
        let mut documents = Vec::new();
        for document in found.iter().take(limit) {
            let mut json = json!({"bytes": document.bytes, "chunks": document.chunks});
            add_place(&mut json, unit_of(document), None, document.row);
            add_document(&mut json, document);
            let size = json.to_string().len();
            if size > left && !documents.is_empty() {
                break;
            }
            left = left.saturating_sub(size);
            documents.push(json);
        }
        // The last one of this page.
        let is_end = documents.len() == found.len();
        let next = if is_end { None } else { documents.len().checked_sub(1).map(|at| found[at].id) };
        let mut all = json!({"documents": documents, "next": next});
        if page.after.is_none() {
            let status = self.index.status().map_err(failed)?;
            let roots: Vec<String> =
                status.roots.iter().take(100).map(|root| clip(&root.to_string_lossy(), 1_000).text).collect();
            all["roots"] = roots.into();
            all["total"] = status.documents.into();
        }
        Ok(all)
    }

    /// The model of the index. An index that was made anew may have another one.
    fn model(&self, known: &ModelIdentity) -> Result<Arc<IndexModel>, ToolError> {
        let mut loaded = self.model.lock().unwrap_or_else(PoisonError::into_inner);
        let fits = |model: &&Arc<IndexModel>| known.difference(model.embedder().identity()).is_none();
        if let Some(model) = loaded.as_ref().filter(fits) {
            return Ok(model.clone());
        }
        // Its memory is free before the next one is loaded.
        *loaded = None;
        let model = IndexModel::load_again(known, &self.run_args, &self.report)
            .map_err(|e| sentence(&format!("the index's model cannot be loaded ({e}); mode `bm25` needs none")))?;
        Ok(loaded.insert(Arc::new(model)).clone())
    }
}

fn failed(e: sconce_index::Error) -> ToolError {
    sentence(&e.to_string())
}

fn hit_json(hit: &Hit) -> Value {
    let clipped = clip(&hit.text, MAX_PASSAGE);
    let mut all = json!({
        "chunk": hit.chunk,
        "document": hit.document,
        "path": hit.path,
        "title": title(hit.title.as_deref()),
        "heading": title(hit.heading.as_deref()),
        "score": hit.score,
        "text": clipped.text,
        "truncated": clipped.is_cut,
        "metadata": metadata(&hit.metadata),
    });
    add_place(&mut all, hit.unit, hit.place, hit.row);
    all
}

/// Adds what identifies a document. A path is not shortened, because it is an argument of `read`.
fn add_document(to: &mut Value, document: &DocumentInfo) {
    to["document"] = document.id.into();
    to["path"] = document.path.clone().into();
    to["title"] = title(document.title.as_deref()).into();
    to["kind"] = kind_name(document.kind).into();
}
