//! Batches: files of requests that are answered in the background, at low priority.
//!
//! A batch has a folder with its record, a link to its input, and a journal of results. The record
//! says what the batch is doing, the journal which lines are answered. Both are on the disk before
//! anything depends on them, so that a server goes on after any end, and answers no line twice.

mod ask;
mod batch;
mod drive;
mod gate;
mod input;
mod journal;
mod line;
mod output;
mod record;
mod runner;

pub(crate) use ask::Asker;
pub(crate) use batch::Batch;
pub(crate) use gate::Gate;
pub(crate) use input::{Limits, Lines, check};
pub(crate) use journal::{Counts, Journal};
pub(crate) use line::{Line, Rules};
pub(crate) use record::{NewBatch, WINDOW};
pub(crate) use runner::Run;

use crate::app::App;
use crate::error::{Fault, FaultKind};
use crate::http_context::fresh_id;
use crate::owner::Owner;
use crate::storage::files::{FileRecord, FileStore};
use crate::storage::{io_fault, make_folder, now, sync_folder};
use axum::Router;
use record::Record;
use sconce_api::openai::batches::{Batch as Object, Status};
use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use tokio::sync::mpsc::{UnboundedReceiver, UnboundedSender, unbounded_channel};
use tokio::task::JoinSet;

/// The most batches.
const MAX_BATCHES: usize = 10_000;
/// The most batches that have not ended.
const MAX_UNFINISHED: usize = 1_000;
/// How long a batch that has ended stays, in seconds.
const RETENTION_SECONDS: u64 = 30 * 24 * 3_600;

/// The batches of a server.
pub(crate) struct Batches {
    dir: PathBuf,
    files: Arc<FileStore>,
    /// By the order of creation.
    all: Mutex<BTreeMap<u64, Arc<Batch>>>,
    /// Batches that have not ended. Their number is bounded.
    begun: UnboundedSender<Arc<Batch>>,
    /// Taken by the task that runs them.
    inbox: Mutex<Option<UnboundedReceiver<Arc<Batch>>>>,
}

impl Batches {
    /// Reads the batches of a folder. Those that have not ended go on in [`run`].
    pub(crate) fn open(dir: &Path, files: Arc<FileStore>) -> Result<Batches, String> {
        let failed = |path: &Path, e: std::io::Error| format!("--data-dir: {}: {e}", path.display());
        let (begun, inbox) = unbounded_channel();
        let mut all = BTreeMap::new();
        for entry in std::fs::read_dir(dir).map_err(|e| failed(dir, e))? {
            let path = entry.map_err(|e| failed(dir, e))?.path();
            // Not ours: batches are folders.
            if !path.is_dir() {
                continue;
            }
            if !Batch::is_in(&path) {
                std::fs::remove_dir_all(&path).map_err(|e| failed(&path, e))?;
                continue;
            }
            match Batch::read(path.clone()) {
                Ok(batch) => drop(all.insert(batch.with(|record| record.sequence), Arc::new(batch))),
                Err(e) => tracing::warn!(path = %path.display(), "ignored a batch that cannot be read: {e}"),
            }
        }
        for batch in all.values() {
            match batch.has_ended() {
                // The last server may have ended just before it did this.
                true => batch.clear(),
                // The receiver is below.
                false => drop(begun.send(batch.clone())),
            }
        }
        let (all, inbox) = (Mutex::new(all), Mutex::new(Some(inbox)));
        Ok(Batches { dir: dir.to_owned(), files, all, begun, inbox })
    }

    fn all(&self) -> MutexGuard<'_, BTreeMap<u64, Arc<Batch>>> {
        self.all.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// The batches of the caller, in the order of their creation.
    pub(crate) fn list(&self, caller: &Owner) -> Vec<Arc<Batch>> {
        let is_seen = |batch: &&Arc<Batch>| batch.with(|record| caller.sees(&record.owner));
        self.all().values().filter(is_seen).cloned().collect()
    }

    /// A batch of the caller.
    pub(crate) fn get(&self, caller: &Owner, id: &str) -> Result<Arc<Batch>, Fault> {
        let is_it = |batch: &&Arc<Batch>| batch.with(|record| record.id == id && caller.sees(&record.owner));
        self.all().values().find(is_it).cloned().ok_or_else(|| absent(id))
    }

    /// Makes a batch of an uploaded file, and begins it. Returns what it was before it began.
    pub(crate) fn create(&self, file: &FileRecord, new: NewBatch) -> Result<Object, Fault> {
        let mut all = self.all();
        let unfinished = all.values().filter(|batch| !batch.has_ended()).count();
        if all.len() >= MAX_BATCHES || unfinished >= MAX_UNFINISHED {
            let what = format!(
                "the server has {} batches, {unfinished} of them unfinished; its limits are {MAX_BATCHES} and \
                 {MAX_UNFINISHED}: wait, or delete some first",
                all.len()
            );
            return Err(Fault::new(FaultKind::Overloaded, what));
        }
        let id = format!("batch_{}", fresh_id());
        let dir = self.dir.join(&id);
        let sequence = all.last_key_value().map_or(1, |(last, _)| last + 1);
        let record = Record::new(id, sequence, file.id.clone(), new, now());
        let created = self.write(&dir, file, record).map_err(|e| {
            // A full disk must not become fuller. What stays is removed at the next start.
            let _ = std::fs::remove_dir_all(&dir);
            io_fault("create the batch", &dir)(e)
        });
        let batch = Arc::new(created?);
        sync_folder(&self.dir);
        all.insert(sequence, batch.clone());
        let object = batch.object();
        // The receiver is gone if the server stops: then the next one begins it.
        let _ = self.begun.send(batch);
        Ok(object)
    }

    /// Writes the folder of a new batch.
    fn write(&self, dir: &Path, file: &FileRecord, record: Record) -> std::io::Result<Batch> {
        make_folder(dir)?;
        let (content, input) = (self.files.content(file), batch::input(dir));
        // Not every file system has links.
        std::fs::hard_link(&content, &input).or_else(|_| std::fs::copy(&content, &input).map(drop))?;
        Batch::create(dir.to_owned(), record)
    }

    /// Cancels a batch.
    pub(crate) fn cancel(&self, batch: &Batch) -> Result<(), Fault> {
        let cancelled = batch.change(|record| match record.status {
            Status::Validating | Status::InProgress => {
                record.status = Status::Cancelling;
                record.cancelling_at = Some(now());
                Ok(())
            }
            Status::Cancelling => Ok(()),
            status => Err(status),
        });
        match cancelled.map_err(io_fault("cancel the batch", &self.dir))? {
            Ok(()) => batch.cancel(),
            Err(status) => {
                let what = format!("a batch with the status `{status}` cannot be cancelled");
                return Err(Fault::new(FaultKind::Conflict, what).at("batch_id"));
            }
        }
        Ok(())
    }

    /// Deletes a batch that has ended. Its files stay.
    pub(crate) fn remove(&self, batch: &Batch) -> Result<(), Fault> {
        let record = batch.record();
        if !record.status.is_final() {
            let what = format!("the batch has the status `{}`; cancel it first", record.status);
            return Err(Fault::new(FaultKind::Conflict, what).at("batch_id"));
        }
        if self.all().remove(&record.sequence).is_none() {
            return Err(absent(&record.id));
        }
        batch.remove().map_err(io_fault("delete the batch", &self.dir))
    }

    /// Deletes the batches that ended long ago.
    pub(crate) fn delete_expired(&self) {
        let is_old = |batch: &&Arc<Batch>| {
            let ended = batch.with(|record| record.ended_at);
            ended.is_some_and(|at| at.saturating_add(RETENTION_SECONDS) <= now())
        };
        let old: Vec<Arc<Batch>> = self.all().values().filter(is_old).cloned().collect();
        for batch in old {
            if let Err(fault) = self.remove(&batch) {
                tracing::warn!("cannot delete an old batch: {fault}");
            }
        }
    }
}

fn absent(id: &str) -> Fault {
    let id: String = id.chars().take(80).collect();
    Fault::new(FaultKind::NoRoute, format!("there is no batch `{id}`")).at("batch_id")
}

/// Runs the batches of a server until it begins to drain. What has not ended by then goes on when a
/// server opens the folder again.
pub(crate) async fn run(app: Arc<App>, router: Router) {
    let Ok(batches) = app.batches() else { return };
    let inbox = batches.inbox.lock().unwrap_or_else(PoisonError::into_inner).take();
    let Some(mut inbox) = inbox else { return };
    let driver = drive::Driver::new(app.clone(), router, batches.files.clone());
    let mut tasks = JoinSet::new();
    loop {
        tokio::select! {
            Some(batch) = inbox.recv() => drop(tasks.spawn(driver.clone().drive(batch))),
            Some(ended) = tasks.join_next() => {
                if let Err(e) = ended {
                    tracing::error!("a batch panicked: {e}");
                }
            }
            () = app.stop.drained() => break,
        }
    }
    while tasks.join_next().await.is_some() {}
}
