//! Brings a batch of a server to its end.

use super::ask::Asker;
use super::batch::Batch;
use super::gate::Gate;
use super::input::{Limits, Lines, check};
use super::journal::Journal;
use super::line::Rules;
use super::output::{settle_rest, write};
use super::record::{Outcome, OutputIds};
use super::runner::Run;
use crate::app::App;
use crate::error::{Fault, FaultKind};
use crate::storage::files::FileStore;
use crate::storage::{blocking, io_fault, now};
use axum::Router;
use sconce_api::openai::batches::{BatchError, RequestCounts, Status};
use std::io;
use std::sync::Arc;
use std::time::Duration;
use tokio::sync::Semaphore;

/// The most requests of a batch, as at OpenAI.
const MAX_LINES: usize = 50_000;
/// The most bytes of its file, as at OpenAI.
const MAX_BYTES: u64 = 200 << 20;
/// What a line has besides the request's body, at most.
const LINE_HEAD: usize = 64 << 10;
/// The most batches that run at once. Others wait in the order in which they came.
const MAX_RUNNING: usize = 8;

/// Why the answering of lines stopped early.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Stopped {
    Cancelled,
    Expired,
    /// The server stops.
    Draining,
}

/// Runs batches.
#[derive(Clone)]
pub(super) struct Driver {
    app: Arc<App>,
    router: Router,
    files: Arc<FileStore>,
    gate: Arc<Gate>,
    slots: Arc<Semaphore>,
}

impl Driver {
    pub(super) fn new(app: Arc<App>, router: Router, files: Arc<FileStore>) -> Driver {
        let gate = Gate::new(app.clone(), app.config.batch_lines);
        Driver { app, router, files, gate, slots: Arc::new(Semaphore::new(MAX_RUNNING)) }
    }

    /// Brings a batch to its end, or as far as possible until the server stops.
    pub(super) async fn drive(self, batch: Arc<Batch>) {
        let _slot = tokio::select! {
            slot = self.slots.acquire() => slot.ok(),
            // Little is left to do.
            () = batch.cancelled() => None,
            () = self.app.stop.drained() => return,
        };
        if let Err(fault) = self.advance(&batch).await {
            tracing::warn!(batch = batch.record().id, "a batch failed: {fault}");
            let error = BatchError { code: "server_error".into(), message: fault.message, param: None, line: None };
            if let Err(fault) = fail(batch, vec![error]).await {
                tracing::error!("{fault}");
            }
        }
    }

    async fn advance(&self, batch: &Arc<Batch>) -> Result<(), Fault> {
        let record = batch.record();
        if !record.owner.is_known(&self.app.config.api_keys) {
            let what = "the API key that created the batch is no longer one of the server's";
            return Err(Fault::new(FaultKind::Unauthorized, what));
        }
        if record.status == Status::Validating {
            let errors = self.validate(batch.clone()).await?;
            if !errors.is_empty() {
                return fail(batch.clone(), errors).await;
            }
        }
        if record.outcome.is_none() {
            let outcome = match batch.record().in_progress_at {
                // Cancelled before its lines were checked.
                None => Outcome::Cancelled,
                Some(_) => match self.answer(batch).await? {
                    None => Outcome::Completed,
                    Some(Stopped::Cancelled) => Outcome::Cancelled,
                    Some(Stopped::Expired) => Outcome::Expired,
                    Some(Stopped::Draining) => return Ok(()),
                },
            };
            let deciding = batch.clone();
            blocking(move || decide(&deciding, outcome)).await?;
        }
        let (batch, files, line_bytes) = (batch.clone(), self.files.clone(), self.line_bytes());
        blocking(move || finalize(&batch, &files, line_bytes)).await
    }

    /// Checks the input. Returns what is wrong with it.
    async fn validate(&self, batch: Arc<Batch>) -> Result<Vec<BatchError>, Fault> {
        let (app, line_bytes) = (self.app.clone(), self.line_bytes());
        blocking(move || {
            let knows_model = |name: &str| app.models.knows(name);
            let rules = Rules { endpoint: Some(batch.record().endpoint), knows_model: &knows_model };
            let limits = Limits { lines: MAX_LINES, bytes: MAX_BYTES, line_bytes };
            let input = batch.input();
            let checked = check(&input, &rules, &limits).map_err(io_fault("read the batch's file", &input))?;
            if !checked.errors.is_empty() {
                return Ok(checked.errors);
            }
            let begun = batch.change(|record| {
                // A client may have cancelled meanwhile.
                if record.status == Status::Validating {
                    record.status = Status::InProgress;
                }
                record.in_progress_at = Some(now());
                record.model = checked.model;
                record.counts = RequestCounts { total: checked.total, ..RequestCounts::default() };
            });
            begun.map_err(io_fault("store the batch", &input))?;
            Ok(Vec::new())
        })
        .await
    }

    /// Answers the lines that have no result.
    async fn answer(&self, batch: &Arc<Batch>) -> Result<Option<Stopped>, Fault> {
        let (opened, line_bytes) = (batch.clone(), self.line_bytes());
        let (lines, journal, done) = blocking(move || {
            let (input, journal) = (opened.input(), opened.journal());
            let lines = Lines::open(&input, line_bytes).map_err(io_fault("read the batch's file", &input))?;
            let (journal, done) = Journal::open(&journal).map_err(io_fault("read the batch's results", &journal))?;
            opened.count(journal.counts());
            Ok((lines, journal, done))
        })
        .await?;
        let record = batch.record();
        let asker = Asker::new(self.router.clone(), self.gate.clone(), record.owner.clone(), &self.app.config.api_keys);
        let left = Duration::from_secs(record.expires_at.saturating_sub(now()));
        let stop = async {
            tokio::select! {
                () = batch.cancelled() => Stopped::Cancelled,
                () = tokio::time::sleep(left) => Stopped::Expired,
                () = self.app.stop.drained() => Stopped::Draining,
            }
        };
        let counted = batch.clone();
        let run = Run { lines, journal, done, width: self.app.config.batch_lines };
        let answered = run.answer(&asker, stop, move |counts| counted.count(counts)).await;
        let (_, stopped) = answered.map_err(io_fault("store the batch's results", &batch.journal()))?;
        Ok(stopped)
    }

    /// The most bytes of a line, whose body is a request's.
    fn line_bytes(&self) -> usize {
        self.app.config.payload_limit.saturating_add(LINE_HEAD)
    }
}

/// Records how a batch ends. From now on no line is answered any more.
fn decide(batch: &Batch, outcome: Outcome) -> Result<(), Fault> {
    let decided = batch.change(|record| {
        // Cancelling at the last moment: its client waits for `cancelled`.
        let is_cancelled = record.status == Status::Cancelling;
        record.outcome = Some(if is_cancelled { Outcome::Cancelled } else { outcome });
        record.outputs = Some(OutputIds { results: FileStore::new_id(), errors: FileStore::new_id() });
        record.finalizing_at = Some(now());
        if !is_cancelled {
            record.status = Status::Finalizing;
        }
    });
    decided.map_err(io_fault("store the batch", &batch.journal()))
}

/// Writes the files with the results, and ends the batch.
fn finalize(batch: &Batch, files: &Arc<FileStore>, line_bytes: usize) -> Result<(), Fault> {
    let record = batch.record();
    let (Some(outcome), Some(ids)) = (record.outcome, &record.outputs) else {
        return Err(Fault::new(FaultKind::Internal, "the batch has no outcome"));
    };
    let path = batch.journal();
    let settle = || -> io::Result<_> {
        let (mut journal, done) = Journal::open(&path)?;
        // A batch that was cancelled before its lines were checked has none.
        if record.in_progress_at.is_some() {
            settle_rest(Lines::open(&batch.input(), line_bytes)?, (&mut journal, &done), outcome)?;
        }
        Ok(journal.counts())
    };
    let counts = settle().map_err(io_fault("store the batch's results", &path))?;
    let output = write(batch, &record, ids, files)?;
    batch.count(counts);
    let ended = batch.change(|record| {
        record.status = match outcome {
            Outcome::Completed => Status::Completed,
            Outcome::Expired => Status::Expired,
            Outcome::Cancelled => Status::Cancelled,
        };
        record.ended_at = Some(now());
        record.usage = Some(output.usage);
        record.output_file_id = output.results;
        record.error_file_id = output.errors;
    });
    ended.map_err(io_fault("store the batch", &path))?;
    batch.clear();
    tracing::info!(
        batch = record.id,
        completed = counts.completed,
        failed = counts.failed,
        ?outcome,
        "a batch has ended"
    );
    Ok(())
}

/// Ends a batch that cannot be answered.
async fn fail(batch: Arc<Batch>, errors: Vec<BatchError>) -> Result<(), Fault> {
    blocking(move || {
        let failed = batch.change(|record| {
            record.status = Status::Failed;
            record.ended_at = Some(now());
            record.errors = errors;
        });
        failed.map_err(io_fault("store the batch", &batch.journal()))?;
        batch.clear();
        Ok(())
    })
    .await
}
