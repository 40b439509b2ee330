//! The index: one SQLite file, with derived files of codes beside it.

use std::ops::RangeInclusive;
use std::path::{Path, PathBuf};
use std::sync::atomic::AtomicBool;
use std::sync::{Mutex, PoisonError};

use crate::chunk::ChunkOptions;
use crate::document::{Document, Kind, Layout, Metadata, Unit};
use crate::error::{Error, Result};
use crate::indexer::{self, Progress, Report, Tools, Update};
use crate::models::{Embedder, ModelIdentity, Rerank};
use crate::search::{self, Hit, Models, Query, SegmentCache};
use crate::store::{Pool, Reader, Writer};
use crate::watch::{self, WatchOptions};

/// How an index is opened.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct OpenOptions {
    /// Create the file if there is none.
    pub create: bool,
    /// Never write: neither the database nor the files beside it.
    pub read_only: bool,
}

/// An index over documents.
///
/// Any number of threads and processes read while one writes. A reader sees the last commit.
///
/// ```no_run
/// use sconce_index::{Index, OpenOptions, Query};
///
/// let index = Index::open("notes.sconce".as_ref(), &OpenOptions::default())?;
/// let query = Query { mode: sconce_index::Mode::Bm25, ..Query::new("late interaction") };
/// for hit in index.search(&query, None, None)? {
///     println!("{}:{} {}", hit.path, hit.place.unwrap_or(1), hit.snippet.text);
/// }
/// # Ok::<(), sconce_index::Error>(())
/// ```
pub struct Index {
    path: PathBuf,
    read_only: bool,
    pool: Pool,
    segments: SegmentCache,
    /// Held during short writes, so that threads wait for each other instead of failing.
    writing: Mutex<()>,
}

/// What an index has.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct Status {
    /// The model of the embeddings; `None`: nothing was embedded so far.
    pub model: Option<ModelIdentity>,
    /// The folders and files that were indexed.
    pub roots: Vec<PathBuf>,
    /// Files and added documents that can be found.
    pub files: u64,
    /// Files that could not be read; see [`Index::failures`].
    pub failed: u64,
    /// Documents: files, and rows of tables.
    pub documents: u64,
    /// Chunks.
    pub chunks: u64,
    /// Chunks that the files of codes cover; a search scans the others one by one.
    pub coded: u64,
    /// The size of the database's file and of the files beside it, in bytes.
    pub bytes: u64,
    /// The last time that a run of [`Index::update`] came to its end, in seconds since 1970.
    pub updated: Option<i64>,
    /// Why codes cannot be used, by file; searches are correct without them, but slower. The next
    /// run of [`Index::update`] repairs them.
    pub damaged: Vec<String>,
}

/// Control over a run of [`Index::update`].
pub struct Control<'a> {
    /// Called on the caller's thread, a few times per second.
    pub progress: &'a mut dyn FnMut(&Progress),
    /// Ends the run at the next batch when set. What was committed stays.
    pub cancel: &'a AtomicBool,
}

/// A document that no file holds.
#[derive(Debug, Clone)]
pub struct NewDocument {
    /// Names the document; a document with the same key is replaced.
    pub key: String,
    /// The title.
    pub title: Option<String>,
    /// The kind of text.
    pub kind: Kind,
    /// The text.
    pub text: String,
    /// Key–value pairs that filters can use.
    pub metadata: Metadata,
    /// Lines or pages, and headings; the default has none.
    pub layout: Layout,
}

/// A file that the caller has read, such as an uploaded one.
#[derive(Debug, Clone)]
pub struct FileDocuments {
    /// Names the file; a file with the same key is replaced.
    pub key: String,
    /// The file's name as people know it: filters and full text can use it.
    pub name: String,
    /// What is in the file.
    pub documents: Vec<Document>,
    /// How texts are chunked.
    pub chunk: ChunkOptions,
}

/// What [`Index::put`] did.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct PutReport {
    /// Chunks written.
    pub chunks: u64,
    /// The size of the text and of the embeddings, in bytes.
    pub bytes: u64,
    /// How texts were chunked: as asked for, within the limits of the model.
    pub chunk: ChunkOptions,
}

/// A part of the list of documents.
#[derive(Debug, Clone, Default)]
pub struct Page {
    /// Documents after this id; `None`: from the first.
    pub after: Option<i64>,
    /// The most documents, at most 1,000.
    pub limit: usize,
    /// Only documents whose path or key begins with this.
    pub prefix: Option<String>,
}

/// A document, without its text.
#[derive(Debug, Clone, PartialEq)]
pub struct DocumentInfo {
    /// Its id.
    pub id: i64,
    /// The file's path, or the key of an added document.
    pub path: String,
    /// For a row of a table: its number, from 1.
    pub row: Option<u64>,
    /// The title.
    pub title: Option<String>,
    /// The kind of text.
    pub kind: Kind,
    /// Its metadata.
    pub metadata: Metadata,
    /// The size of its text in bytes.
    pub bytes: u64,
    /// Its chunks.
    pub chunks: u64,
    /// When the file was modified, in nanoseconds since 1970; `None` for added documents.
    pub modified_ns: Option<i64>,
}

/// A passage with the text around it.
#[derive(Debug, Clone, PartialEq)]
pub struct Passage {
    /// The document.
    pub document: DocumentInfo,
    /// The headings above the passage.
    pub heading: Option<String>,
    /// The line or page where `text` begins, from 1.
    pub place: Option<u32>,
    /// The text: the passage and the chunks around it.
    pub text: String,
    /// The range of `text` in the document's text, in bytes.
    pub range: std::ops::Range<usize>,
    /// The range of the passage itself in the document's text, in bytes.
    pub passage: std::ops::Range<usize>,
}

/// Lines or pages of a document.
#[derive(Debug, Clone, PartialEq)]
pub struct Excerpt {
    /// The document.
    pub document: DocumentInfo,
    /// What the places count: pages, or lines of the file. A text without places has its own lines.
    pub unit: Unit,
    /// The place where `text` begins; `None`: the document has none of the places.
    pub place: Option<u32>,
    /// The last place of the document.
    pub last: u32,
    /// The place where the rest of the document begins; `None`: there is no more.
    pub next: Option<u32>,
    /// The last place in `text` is cut off, because it is too long.
    pub is_cut: bool,
    /// The text.
    pub text: String,
}

/// A file that could not be read.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Failure {
    /// The file.
    pub path: String,
    /// The reason.
    pub reason: String,
}

impl Index {
    /// Opens an index. A database of another program, or of a newer version, is refused.
    pub fn open(path: &Path, options: &OpenOptions) -> Result<Index> {
        let pool = Pool::open(path, *options)?;
        let segments = SegmentCache::new(path);
        let writing = Mutex::default();
        Ok(Index { path: path.to_owned(), read_only: options.read_only, pool, segments, writing })
    }

    /// The database's file.
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// What the index has.
    pub fn status(&self) -> Result<Status> {
        let mut status = self.pool.read(|store| store.status())?;
        let damaged = self.pool.read(|store| self.segments.load(store))?.damaged.clone();
        status.damaged = damaged;
        Ok(status)
    }

    /// The model of the index's embeddings; `None`: nothing was embedded so far.
    pub fn model(&self) -> Result<Option<ModelIdentity>> {
        self.pool.read(|store| store.model())
    }

    /// How the last run of [`Index::update`] cut texts into chunks; `None`: there was none. A run
    /// with other options cuts and embeds all files again.
    pub fn chunk_options(&self) -> Result<Option<ChunkOptions>> {
        self.pool.read(|store| store.chunk_options())
    }

    /// Brings the index up to date with the files below the roots: reads and embeds new and changed
    /// files, moves renamed ones, and removes vanished ones if [`Update::prune`] says so. A run may
    /// be killed or cancelled at any time; the next one continues, with the same result.
    ///
    /// Fails if another process writes, or if the index has embeddings of another model.
    pub fn update(&self, update: &Update, tools: &Tools<'_>, control: Control<'_>) -> Result<Report> {
        indexer::update(&mut self.writer()?, update, tools, control)
    }

    /// Adds documents that no file holds, and replaces those with the same keys. The documents of
    /// one call become visible together.
    pub fn add(&self, documents: &[NewDocument], embedder: &dyn Embedder) -> Result<()> {
        indexer::add(&mut self.writer()?, documents, embedder)
    }

    /// Indexes one file that the caller has read, and replaces what the file's key had. The file
    /// becomes visible as a whole. Other threads can write to this index while the model embeds. Once
    /// `cancel` is set, the call ends with [`Error::Cancelled`] at the next batch; the same call again
    /// goes on from there.
    pub fn put(&self, file: FileDocuments, embedder: &dyn Embedder, cancel: &AtomicBool) -> Result<PutReport> {
        indexer::put(self, file, (embedder, cancel))
    }

    /// Removes documents by their keys, and files by their paths. Returns how many there were. A
    /// file that is still below an indexed root returns with the next [`Index::update`].
    pub fn remove(&self, keys: &[&str]) -> Result<u64> {
        self.write(|writer| writer.remove(keys))
    }

    /// Replaces the metadata of an added document or of a file's documents; `false`: there is none
    /// with this key. The embeddings stay.
    pub fn set_metadata(&self, key: &str, metadata: &Metadata) -> Result<bool> {
        self.write(|writer| writer.set_metadata(key, metadata))
    }

    /// Documents in the order of their ids.
    pub fn documents(&self, page: &Page) -> Result<Vec<DocumentInfo>> {
        self.pool.read(|store| store.documents(page))
    }

    /// The document of a path or key; for a table, its first row.
    pub fn document(&self, key: &str) -> Result<Option<DocumentInfo>> {
        self.pool.read(|store| store.document_by_key(key))
    }

    /// The text of a document by its id; `None`: there is none.
    pub fn text(&self, document: i64) -> Result<Option<String>> {
        self.pool.read(|store| store.text(document))
    }

    /// The passage of a chunk with up to `before` chunks before it and `after` after it; `None`:
    /// there is no such chunk, or not any more.
    pub fn passage(&self, chunk: i64, before: usize, after: usize) -> Result<Option<Passage>> {
        self.pool.read(|store| store.passage(chunk, before, after))
    }

    /// Lines or pages of a document, from 1, at most `max_bytes` of text; `None`: there is no such
    /// document.
    pub fn excerpt(&self, document: i64, places: RangeInclusive<u32>, max_bytes: usize) -> Result<Option<Excerpt>> {
        self.pool.read(|store| store.excerpt(document, places, max_bytes))
    }

    /// Files that could not be read, in the order of their paths, at most `limit`.
    pub fn failures(&self, limit: usize) -> Result<Vec<Failure>> {
        self.pool.read(|store| store.failures(limit))
    }

    /// Finds passages, best first. `embedder` embeds the query and may be left out for BM25 or if
    /// the query has a vector; `reranker`, if there is one, orders the candidates anew.
    pub fn search(
        &self,
        query: &Query,
        embedder: Option<&dyn Embedder>,
        reranker: Option<&dyn Rerank>,
    ) -> Result<Vec<Hit>> {
        search::search(&self.pool, &self.segments, query, Models { embedder, reranker })
    }

    /// Watches folders and files until `cancel` is set, and calls `changed` with the paths that
    /// changed, after they came to rest; at first with the roots, because changes before the watch
    /// are not seen. Changes of the index's own files do not count. `changed` usually runs
    /// [`Index::update`] over the same roots.
    pub fn watch(
        &self,
        roots: &[PathBuf],
        options: WatchOptions,
        cancel: &AtomicBool,
        changed: &mut dyn FnMut(&[PathBuf]) -> Result<()>,
    ) -> Result<()> {
        watch::watch(roots, &self.path, (options, cancel), changed)
    }

    /// Closes the connections that no call uses at the moment. A process calls this before it forks:
    /// SQLite's connections must not be carried into the child, which opens the index itself.
    pub fn close_idle(&self) {
        self.pool.close_idle();
    }

    /// A short write. Threads that write through this value wait for each other.
    pub(crate) fn write<T>(&self, write: impl FnOnce(&mut Writer) -> Result<T>) -> Result<T> {
        let _writing = self.writing.lock().unwrap_or_else(PoisonError::into_inner);
        write(&mut self.writer()?)
    }

    pub(crate) fn read<T>(&self, read: impl FnOnce(&Reader<'_>) -> Result<T>) -> Result<T> {
        self.pool.read(read)
    }

    fn writer(&self) -> Result<Writer> {
        if self.read_only {
            let why = "opened for reading only; open it without `read_only` to write".into();
            return Err(Error::Database { path: self.path.clone(), why });
        }
        Writer::open(&self.path)
    }
}
