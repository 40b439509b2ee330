//! The thread that indexes the attached files, one after another.

use super::Inner;
use super::model::embedder;
use super::queue::Job;
use super::record::Attachment;
use super::store::{Finished, Store};
use crate::error::{Fault, FaultKind};
use crate::served_model::RequestKind;
use sconce_api::openai::vector_stores::{ChunkingStrategy, FileErrorCode, FileStatus, LastError, StaticChunking};
use sconce_index::chunk::ChunkOptions;
use sconce_index::read::{FileRef, Format, Limits, ReadError, head_of};
use sconce_index::{Document, Error, FileDocuments, Index, PutReport};
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::{Duration, Instant};

/// How long to wait for a model that cannot be used now.
const RETRY: Duration = Duration::from_millis(250);

/// Why a file is not indexed.
enum Failure {
    /// For good.
    File(LastError),
    /// Not now: the model is loading, or the server lacks memory.
    NotNow,
    /// The client cancelled, or the server stops.
    Cancelled,
}

fn failed(code: FileErrorCode, message: impl Into<String>) -> Failure {
    Failure::File(LastError { code, message: message.into() })
}

/// What the thread does.
pub(super) fn run(inner: Arc<Inner>) -> impl FnOnce() + Send + 'static {
    move || {
        lower_priority();
        while !inner.queue.is_closed() && !inner.stop.is_draining() {
            if let Some(job) = inner.queue.pop(RETRY) {
                inner.work(job);
            }
        }
    }
}

/// Requests go first on a machine that is busy.
fn lower_priority() {
    #[cfg(target_os = "linux")]
    if let Err(e) = rustix::process::nice(10) {
        tracing::debug!("cannot lower the priority of indexing: {e}");
    }
}

impl Inner {
    /// Indexes a file and records the result.
    fn work(&self, job: Job) {
        let Some(store) = job.store.upgrade() else { return };
        let Some(file) = store.job(&job.file) else { return };
        let began = Instant::now();
        // The thread must outlive a bug: other files wait.
        let result = catch_unwind(AssertUnwindSafe(|| self.index_file(&store, &file)));
        let bug = |_| Err(failed(FileErrorCode::ServerError, "internal error, please report it"));
        let result = result.unwrap_or_else(bug);
        match &result {
            Ok(report) => {
                let ms = began.elapsed().as_millis() as u64;
                tracing::info!(store = store.id, file = file.file_id, chunks = report.chunks, ms, "indexed a file");
            }
            Err(Failure::File(error)) => {
                tracing::info!(store = store.id, file = file.file_id, "cannot index a file: {}", error.message);
            }
            Err(Failure::NotNow) => {
                // Others may use another model, so they come first.
                self.queue.push_job(job);
                return std::thread::sleep(RETRY);
            }
            Err(Failure::Cancelled) => {}
        }
        let mut has_other_attributes = false;
        let finished = match result {
            Ok(report) => store.finish(&file, |now| {
                complete(now, &report);
                has_other_attributes = now.attributes != file.attributes;
            }),
            Err(Failure::File(error)) => store.finish(&file, |now| {
                now.status = FileStatus::Failed;
                now.last_error = Some(error);
            }),
            Err(_) => return,
        };
        let remove = |index: Arc<Index>| index.remove(&[&file.file_id]).map(drop).map_err(super::index_fault);
        let settled = match finished {
            Ok(Finished::Recorded) if has_other_attributes => {
                self.index(&store).and_then(|index| store.copy_attributes(&index, &file.file_id))
            }
            Ok(Finished::Unwanted) => self.index(&store).and_then(remove),
            Ok(Finished::Recorded | Finished::Replaced) => Ok(()),
            Err(fault) => Err(fault),
        };
        if let Err(fault) = settled {
            tracing::warn!(store = store.id, file = file.file_id, "after indexing a file: {fault}");
        }
    }

    fn index_file(&self, store: &Arc<Store>, file: &Attachment) -> Result<PutReport, Failure> {
        let lease = self.models.lease(Some(&store.record().model), RequestKind::Embed).map_err(model_failure)?;
        let embedder = embedder(lease.served(), None).map_err(model_failure)?;
        let documents = self.read(file)?;
        let index = self.index(store).map_err(|fault| failed(FileErrorCode::ServerError, fault.message))?;
        let put = FileDocuments {
            key: file.file_id.clone(),
            name: file.filename.clone(),
            documents,
            chunk: chunk_options(file.chunking),
        };
        // Stopping the server cancels the file, but does not record that: the next one goes on.
        let report = std::thread::scope(|scope| {
            let (done, finished) = std::sync::mpsc::channel::<()>();
            scope.spawn(move || {
                while finished.recv_timeout(RETRY) == Err(std::sync::mpsc::RecvTimeoutError::Timeout) {
                    if self.queue.is_closed() || self.stop.is_draining() {
                        file.cancel.store(true, Ordering::Relaxed);
                    }
                }
            });
            let report = index.put(put, &embedder, &file.cancel);
            drop(done);
            report
        });
        report.map_err(|error| match error {
            Error::Cancelled => Failure::Cancelled,
            Error::Engine(error) => model_failure(error.into()),
            other => failed(FileErrorCode::ServerError, super::index_fault(other).message),
        })
    }

    /// The documents of an uploaded file. Its attributes are their metadata.
    fn read(&self, file: &Attachment) -> Result<Vec<Document>, Failure> {
        let gone = |fault: Fault| failed(FileErrorCode::InvalidFile, fault.message);
        let record = self.files.get(&file.file_id).map_err(gone)?;
        let path = self.files.content(&record);
        let head = head_of(FileRef::of(&path)).map_err(read_failure)?;
        let Some(format) = Format::of(Path::new(&record.filename), &head) else {
            let what = "the format is not supported; use text, Markdown, source code, HTML, PDF, CSV, JSONL or Parquet";
            return Err(failed(FileErrorCode::UnsupportedFile, what));
        };
        let reading = self.parser.read_all(FileRef::of(&path), format, &Limits::default()).map_err(read_failure)?;
        let metadata = super::metadata(&file.attributes);
        let own = |document: Document| Document { metadata: metadata.clone(), ..document };
        Ok(reading.documents.into_iter().map(own).collect())
    }
}

fn complete(file: &mut Attachment, report: &PutReport) {
    file.status = FileStatus::Completed;
    file.usage_bytes = report.bytes;
    let ChunkOptions { tokens, overlap } = report.chunk;
    let sizes = StaticChunking { max_chunk_size_tokens: tokens, chunk_overlap_tokens: overlap };
    file.chunking = ChunkingStrategy::Static { sizes };
}

fn chunk_options(strategy: ChunkingStrategy) -> ChunkOptions {
    match strategy {
        ChunkingStrategy::Auto => ChunkOptions::default(),
        ChunkingStrategy::Static { sizes } => {
            ChunkOptions { tokens: sizes.max_chunk_size_tokens, overlap: sizes.chunk_overlap_tokens }
        }
    }
}

/// The model cannot be used, now or at all.
fn model_failure(fault: Fault) -> Failure {
    match fault.kind {
        FaultKind::Loading | FaultKind::Memory | FaultKind::Unhealthy | FaultKind::Overloaded => Failure::NotNow,
        FaultKind::Cancelled => Failure::Cancelled,
        _ => failed(FileErrorCode::ServerError, fault.message),
    }
}

fn read_failure(error: ReadError) -> Failure {
    let code = match &error {
        ReadError::Io(_) | ReadError::Process(_) => FileErrorCode::ServerError,
        error if error.is_skip() => FileErrorCode::UnsupportedFile,
        _ => FileErrorCode::InvalidFile,
    };
    failed(code, format!("the file {error}"))
}
