//! One vector store: its records, and its index.

use super::fault::index_fault;
use super::record::{Attachment, BatchRecord, NewAttachment, StoreRecord};
use crate::error::{Fault, FaultKind};
use crate::http_context::fresh_id;
use crate::storage::records::{self, Durability};
use crate::storage::{io_fault, now};
use sconce_api::openai::vector_stores::{
    FileCounts, FileStatus, StoreStatus, UpdateVectorStore, VectorStore, VectorStoreFileBatch,
};
use sconce_index::{Index, OpenOptions};
use std::collections::{BTreeMap, HashMap};
use std::io;
use std::path::{Path, PathBuf};
use std::sync::atomic::Ordering;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

/// The most files of a vector store, as at OpenAI.
const MAX_FILES: usize = 10_000;
/// The most batches whose records are kept; the oldest ones go.
const MAX_BATCHES: usize = 1_000;
/// Searches closer together than this do not write the time of the last one again.
const ACTIVE_EVERY: u64 = 60;

/// A vector store.
pub(crate) struct Store {
    pub(crate) id: String,
    dir: PathBuf,
    state: Mutex<State>,
    index: Mutex<Option<Arc<Index>>>,
    /// Held while attributes are copied into the index.
    attributes: Mutex<()>,
}

struct State {
    record: StoreRecord,
    /// By the order of attaching.
    files: BTreeMap<u64, Attachment>,
    by_id: HashMap<String, u64>,
    batches: BTreeMap<u64, BatchRecord>,
    is_removed: bool,
}

impl State {
    fn file(&self, id: &str) -> Option<&Attachment> {
        self.by_id.get(id).and_then(|sequence| self.files.get(sequence))
    }

    fn next_sequence(&self) -> u64 {
        let last = |files: Option<u64>, batches: Option<u64>| files.max(batches).unwrap_or(0);
        last(self.files.keys().next_back().copied(), self.batches.keys().next_back().copied()) + 1
    }

    fn counts(&self, wanted: impl Fn(&Attachment) -> bool) -> FileCounts {
        let mut counts = FileCounts::default();
        self.files.values().filter(|file| wanted(file)).for_each(|file| counts.add(file.status));
        counts
    }
}

/// What became of a finished job.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Finished {
    /// The result is recorded.
    Recorded,
    /// The file was cancelled or removed: it must not stay in the index.
    Unwanted,
    /// The file was attached again, and another job will replace the result.
    Replaced,
}

impl Store {
    /// A new vector store in a new folder.
    pub(super) fn create(dir: PathBuf, record: StoreRecord) -> io::Result<Store> {
        for sub in [dir.clone(), dir.join("files"), dir.join("batches")] {
            std::fs::create_dir(sub)?;
        }
        // Last: a folder without this record is not a vector store.
        records::write(&dir.join("store.json"), &record, Durability::Power)?;
        Ok(Store::new(dir, record))
    }

    fn new(dir: PathBuf, record: StoreRecord) -> Store {
        let id = record.id.clone();
        let (files, by_id, batches) = Default::default();
        let state = Mutex::new(State { record, files, by_id, batches, is_removed: false });
        Store { id, dir, state, index: Mutex::default(), attributes: Mutex::default() }
    }

    /// Reads a vector store's records.
    pub(super) fn read(dir: PathBuf) -> io::Result<Store> {
        let store = Store::new(dir.clone(), records::read(&dir.join("store.json"))?);
        let mut state = store.state();
        each_record(&dir.join("files"), |file: Attachment| {
            state.by_id.insert(file.file_id.clone(), file.sequence);
            state.files.insert(file.sequence, file);
        })?;
        each_record(&dir.join("batches"), |batch: BatchRecord| {
            state.batches.insert(batch.sequence, batch);
        })?;
        drop(state);
        Ok(store)
    }

    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// The state, if the store was not removed meanwhile.
    fn present(&self) -> Result<MutexGuard<'_, State>, Fault> {
        let state = self.state();
        if state.is_removed { Err(super::absent(&self.id)) } else { Ok(state) }
    }

    pub(crate) fn record(&self) -> StoreRecord {
        self.state().record.clone()
    }

    /// As the API has it.
    pub(crate) fn object(&self) -> VectorStore {
        let state = self.state();
        let (record, file_counts) = (&state.record, state.counts(|_| true));
        VectorStore {
            id: self.id.clone(),
            object: "vector_store".into(),
            created_at: record.created_at,
            name: record.name.clone(),
            description: record.description.clone(),
            usage_bytes: state.files.values().map(|file| file.usage_bytes).sum(),
            status: match file_counts.in_progress {
                _ if record.is_expired() => StoreStatus::Expired,
                0 => StoreStatus::Completed,
                _ => StoreStatus::InProgress,
            },
            file_counts,
            expires_after: record.expires_after.clone(),
            expires_at: record.expires_at(),
            last_active_at: Some(record.last_active_at),
            metadata: record.metadata.clone(),
            embedding_model: record.model.clone(),
        }
    }

    /// Changes what the client gave.
    pub(crate) fn update(&self, update: UpdateVectorStore) -> Result<(), Fault> {
        let mut state = self.present()?;
        let mut record = state.record.clone();
        if let Some(name) = update.name {
            record.name = name.unwrap_or_default();
        }
        if let Some(expires_after) = update.expires_after {
            record.expires_after = expires_after;
        }
        if let Some(metadata) = update.metadata {
            record.metadata = metadata.unwrap_or_default();
        }
        record.last_active_at = now();
        self.write("store.json", &record, Durability::Power)?;
        state.record = record;
        Ok(())
    }

    /// Notes that the store is used. Fails if it has expired.
    pub(crate) fn touch(&self) -> Result<(), Fault> {
        let mut state = self.present()?;
        if state.record.is_expired() {
            let what =
                format!("the vector store `{}` has expired; change its `expires_after` to use it again", self.id);
            return Err(Fault::new(FaultKind::Conflict, what).at("vector_store_id"));
        }
        if now().saturating_sub(state.record.last_active_at) >= ACTIVE_EVERY {
            state.record.last_active_at = now();
            self.write("store.json", &state.record, Durability::Process)?;
        }
        Ok(())
    }

    /// Attaches files, and those that are attached again anew. With `is_batch` they are a batch.
    pub(crate) fn attach(
        &self,
        files: Vec<NewAttachment>,
        is_batch: bool,
    ) -> Result<(Vec<Attachment>, Option<BatchRecord>), Fault> {
        self.touch()?;
        let mut state = self.present()?;
        let added = files.iter().filter(|file| !state.by_id.contains_key(&file.file_id)).count();
        if state.files.len() + added > MAX_FILES {
            let what =
                format!("the vector store would have more than {MAX_FILES} files, its limit; remove files first");
            return Err(Fault::new(FaultKind::TooMany, what));
        }
        let mut sequence = state.next_sequence();
        let batch = is_batch.then(|| BatchRecord {
            id: format!("vsfb_{}", fresh_id()),
            sequence,
            created_at: now(),
            is_cancelled: false,
        });
        if let Some(batch) = &batch {
            self.write(&format!("batches/{}.json", batch.id), batch, Durability::Process)?;
            state.batches.insert(sequence, batch.clone());
            self.drop_old_batches(&mut state);
            sequence += 1;
        }
        let mut attached = Vec::with_capacity(files.len());
        for new in files {
            let known = state.by_id.get(&new.file_id).copied();
            let file = Attachment {
                file_id: new.file_id,
                filename: new.filename,
                sequence: known.unwrap_or(sequence),
                created_at: now(),
                attributes: new.attributes,
                chunking: new.chunking,
                status: FileStatus::InProgress,
                last_error: None,
                usage_bytes: 0,
                batch: batch.as_ref().map(|batch| batch.id.clone()),
                cancel: Arc::default(),
            };
            sequence += 1;
            self.write_file(&file)?;
            state.by_id.insert(file.file_id.clone(), file.sequence);
            if let Some(old) = state.files.insert(file.sequence, file.clone()) {
                old.cancel.store(true, Ordering::Relaxed);
            }
            attached.push(file);
        }
        Ok((attached, batch))
    }

    fn drop_old_batches(&self, state: &mut State) {
        while state.batches.len() > MAX_BATCHES {
            let Some((_, old)) = state.batches.pop_first() else { break };
            // A record that stays is dropped the next time.
            let _ = std::fs::remove_file(self.dir.join("batches").join(format!("{}.json", old.id)));
        }
    }

    /// The files in the order of attaching.
    pub(crate) fn files(&self) -> Vec<Attachment> {
        self.state().files.values().cloned().collect()
    }

    /// One file.
    pub(crate) fn file(&self, id: &str) -> Result<Attachment, Fault> {
        self.present()?.file(id).cloned().ok_or_else(|| self.absent_file(id))
    }

    fn absent_file(&self, id: &str) -> Fault {
        let id: String = id.chars().take(80).collect();
        Fault::new(FaultKind::NoRoute, format!("there is no file `{id}` in the vector store `{}`", self.id))
            .at("file_id")
    }

    /// Changes a file under the lock, and writes its record. Returns the file as it is then.
    pub(crate) fn change(&self, id: &str, change: impl FnOnce(&mut Attachment)) -> Result<Attachment, Fault> {
        let mut state = self.present()?;
        let mut file = state.file(id).cloned().ok_or_else(|| self.absent_file(id))?;
        change(&mut file);
        self.write_file(&file)?;
        state.files.insert(file.sequence, file.clone());
        Ok(file)
    }

    /// Removes a file from the list; `false`: it is not there. The index still has it.
    pub(crate) fn detach(&self, id: &str) -> Result<bool, Fault> {
        let mut state = self.present()?;
        let Some(sequence) = state.by_id.get(id).copied() else { return Ok(false) };
        let path = self.dir.join("files").join(format!("{id}.json"));
        std::fs::remove_file(&path).map_err(io_fault("remove the file", &path))?;
        state.by_id.remove(id);
        if let Some(file) = state.files.remove(&sequence) {
            file.cancel.store(true, Ordering::Relaxed);
        }
        Ok(true)
    }

    /// A file that is to be indexed; `None`: not any more.
    pub(super) fn job(&self, id: &str) -> Option<Attachment> {
        let state = self.present().ok()?;
        state.file(id).filter(|file| file.status == FileStatus::InProgress).cloned()
    }

    /// Records the result of a job with `record`, unless the file has changed meanwhile.
    pub(super) fn finish(&self, job: &Attachment, record: impl FnOnce(&mut Attachment)) -> Result<Finished, Fault> {
        let Ok(mut state) = self.present() else { return Ok(Finished::Replaced) };
        let mut file = match state.file(&job.file_id) {
            None => return Ok(Finished::Unwanted),
            Some(file) if !file.is_same(job) => return Ok(Finished::Replaced),
            Some(file) if file.status != FileStatus::InProgress => return Ok(Finished::Unwanted),
            Some(file) => file.clone(),
        };
        record(&mut file);
        self.write_file(&file)?;
        state.files.insert(file.sequence, file);
        Ok(Finished::Recorded)
    }

    /// A batch.
    pub(crate) fn batch(&self, id: &str) -> Result<VectorStoreFileBatch, Fault> {
        let state = self.present()?;
        let batch = find_batch(&state, id).ok_or_else(|| self.absent_batch(id))?;
        let file_counts = state.counts(|file| file.batch.as_deref() == Some(id));
        let status = match file_counts {
            _ if batch.is_cancelled => FileStatus::Cancelled,
            counts if counts.in_progress > 0 => FileStatus::InProgress,
            counts if counts.failed > 0 && counts.failed == counts.total => FileStatus::Failed,
            _ => FileStatus::Completed,
        };
        Ok(VectorStoreFileBatch {
            id: batch.id.clone(),
            object: "vector_store.files_batch".into(),
            created_at: batch.created_at,
            vector_store_id: self.id.clone(),
            status,
            file_counts,
        })
    }

    /// Cancels what is not indexed of a batch.
    pub(crate) fn cancel_batch(&self, id: &str) -> Result<(), Fault> {
        let mut state = self.present()?;
        let mut batch = find_batch(&state, id).cloned().ok_or_else(|| self.absent_batch(id))?;
        let is_open = |file: &&Attachment| file.batch.as_deref() == Some(id) && file.status == FileStatus::InProgress;
        let open: Vec<Attachment> = state.files.values().filter(is_open).cloned().collect();
        if open.is_empty() {
            return Ok(());
        }
        batch.is_cancelled = true;
        self.write(&format!("batches/{id}.json", id = batch.id), &batch, Durability::Process)?;
        state.batches.insert(batch.sequence, batch);
        for mut file in open {
            file.status = FileStatus::Cancelled;
            self.write_file(&file)?;
            file.cancel.store(true, Ordering::Relaxed);
            state.files.insert(file.sequence, file);
        }
        Ok(())
    }

    fn absent_batch(&self, id: &str) -> Fault {
        let id: String = id.chars().take(80).collect();
        Fault::new(FaultKind::NoRoute, format!("there is no batch `{id}` in the vector store `{}`", self.id))
            .at("batch_id")
    }

    /// The index, which is opened when it is needed. The second value: whether it was opened now.
    pub(super) fn index(&self) -> Result<(Arc<Index>, bool), Fault> {
        let mut index = self.index.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(index) = &*index {
            return Ok((index.clone(), false));
        }
        // A removed store must not get a new database.
        drop(self.present()?);
        let options = OpenOptions { create: true, read_only: false };
        let opened = Arc::new(Index::open(&self.dir.join("index.db"), &options).map_err(index_fault)?);
        *index = Some(opened.clone());
        Ok((opened, true))
    }

    /// Closes the index once nobody uses it any more.
    pub(super) fn close_index(&self) {
        self.index.lock().unwrap_or_else(PoisonError::into_inner).take();
    }

    /// Copies the attributes of an indexed file into the index. The last attributes win, whichever
    /// thread comes last.
    pub(super) fn copy_attributes(&self, index: &Index, id: &str) -> Result<(), Fault> {
        let _one_at_a_time = self.attributes.lock().unwrap_or_else(PoisonError::into_inner);
        let Ok(file) = self.file(id) else { return Ok(()) };
        index.set_metadata(id, &super::metadata(&file.attributes)).map(drop).map_err(index_fault)
    }

    /// Removes the store from disk.
    pub(super) fn remove(&self) -> Result<(), Fault> {
        let mut state = self.present()?;
        let path = self.dir.join("store.json");
        std::fs::remove_file(&path).map_err(io_fault("delete the vector store", &path))?;
        state.is_removed = true;
        state.files.values().for_each(|file| file.cancel.store(true, Ordering::Relaxed));
        drop(state);
        self.close_index();
        // What stays is removed when the server starts again.
        if let Err(e) = std::fs::remove_dir_all(&self.dir) {
            tracing::warn!(path = %self.dir.display(), "cannot remove a deleted vector store: {e}");
        }
        Ok(())
    }

    fn write<T: serde::Serialize>(&self, name: &str, record: &T, durability: Durability) -> Result<(), Fault> {
        let path = self.dir.join(name);
        records::write(&path, record, durability).map_err(io_fault("write the vector store's record", &path))
    }

    fn write_file(&self, file: &Attachment) -> Result<(), Fault> {
        self.write(&format!("files/{}.json", file.file_id), file, Durability::Process)
    }
}

fn find_batch<'a>(state: &'a State, id: &str) -> Option<&'a BatchRecord> {
    state.batches.values().find(|batch| batch.id == id)
}

/// Reads the records of a folder. Damaged ones are left out.
fn each_record<T: serde::de::DeserializeOwned>(dir: &Path, mut each: impl FnMut(T)) -> io::Result<()> {
    for entry in std::fs::read_dir(dir)? {
        let path = entry?.path();
        if path.extension().is_some_and(|extension| extension == "json") {
            match records::read(&path) {
                Ok(record) => each(record),
                Err(e) => tracing::warn!(path = %path.display(), "ignored a record that cannot be read: {e}"),
            }
        }
    }
    Ok(())
}
