//! Vector stores: for each an index of its own, with the embeddings of a served model. One thread
//! indexes the attached files, at low priority.

mod fault;
pub(crate) mod model;
mod queue;
pub(crate) mod record;
pub(crate) mod search;
mod store;
mod worker;

pub(crate) use fault::index_fault;
pub(crate) use store::Store;

use crate::error::{Fault, FaultKind};
use crate::http_context::fresh_id;
use crate::model_manager::ModelManager;
use crate::stop::Stop;
use crate::storage::files::FileStore;
use crate::storage::{io_fault, now};
use queue::Queue;
use record::{Attachment, BatchRecord, NewAttachment, StoreRecord};
use sconce_api::openai::vector_stores::{Attribute, Attributes, FileStatus};
use sconce_index::read::Parser;
use sconce_index::{Index, Metadata, Page, Value};
use std::collections::{BTreeMap, VecDeque};
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, Weak};
use std::thread::JoinHandle;

/// The most vector stores.
const MAX_STORES: usize = 1_000;
/// The most indexes that are open at once.
const MAX_OPEN: usize = 32;
/// The most text that a request for a file's content may return, in bytes.
const MAX_CONTENT: usize = 64 << 20;

/// The vector stores of a server.
pub(crate) struct VectorStores {
    inner: Arc<Inner>,
    worker: Mutex<Option<JoinHandle<()>>>,
}

struct Inner {
    dir: PathBuf,
    files: Arc<FileStore>,
    models: Arc<ModelManager>,
    stop: Stop,
    parser: Parser,
    /// By the order of creation.
    stores: Mutex<BTreeMap<u64, Arc<Store>>>,
    /// Stores whose index is open, the one that was opened first at the front.
    open: Mutex<VecDeque<Weak<Store>>>,
    queue: Queue,
}

/// What vector stores use of the server.
pub(crate) struct Surroundings {
    pub(crate) files: Arc<FileStore>,
    pub(crate) models: Arc<ModelManager>,
    pub(crate) stop: Stop,
    pub(crate) parser: Parser,
}

impl VectorStores {
    /// Reads the vector stores of a folder, and goes on with files that were not indexed when the
    /// last server ended.
    pub(crate) fn open(dir: &Path, around: Surroundings) -> Result<VectorStores, String> {
        let failed = |path: &Path, e: std::io::Error| format!("--data-dir: {}: {e}", path.display());
        let Surroundings { files, models, stop, parser } = around;
        let (stores, open, queue) = (Mutex::default(), Mutex::default(), Queue::default());
        let inner = Inner { dir: dir.to_owned(), files, models, stop, parser, stores, open, queue };
        for entry in std::fs::read_dir(dir).map_err(|e| failed(dir, e))? {
            let path = entry.map_err(|e| failed(dir, e))?.path();
            if !path.join("store.json").exists() {
                // A store whose creation or deletion was interrupted.
                std::fs::remove_dir_all(&path).map_err(|e| failed(&path, e))?;
                continue;
            }
            match Store::read(path.clone()) {
                Ok(store) => {
                    let (sequence, store) = (store.record().sequence, Arc::new(store));
                    let waiting = store.files().into_iter().filter(|file| file.status == FileStatus::InProgress);
                    waiting.for_each(|file| inner.queue.push(&store, &file.file_id));
                    inner.stores().insert(sequence, store);
                }
                Err(e) => tracing::warn!(path = %path.display(), "ignored a vector store that cannot be read: {e}"),
            }
        }
        let inner = Arc::new(inner);
        let run = worker::run(inner.clone());
        let thread = std::thread::Builder::new().name("vector stores".into()).spawn(run);
        let thread = thread.map_err(|e| format!("cannot start the thread of the vector stores: {e}"))?;
        Ok(VectorStores { inner, worker: Mutex::new(Some(thread)) })
    }

    /// Ends the indexing. What is not done is done when a server opens the folder again.
    pub(crate) fn close(&self) {
        self.inner.queue.close();
        let worker = self.worker.lock().unwrap_or_else(PoisonError::into_inner).take();
        if let Some(worker) = worker {
            // A panic was logged when it happened.
            let _ = worker.join();
        }
    }

    /// All vector stores, in the order of their creation.
    pub(crate) fn list(&self) -> Vec<Arc<Store>> {
        self.inner.stores().values().cloned().collect()
    }

    /// A vector store.
    pub(crate) fn get(&self, id: &str) -> Result<Arc<Store>, Fault> {
        let stores = self.inner.stores();
        stores.values().find(|store| store.id == id).cloned().ok_or_else(|| absent(id))
    }

    /// Makes an empty vector store. The id, sequence and times of `record` are set here.
    pub(crate) fn create(&self, record: StoreRecord) -> Result<Arc<Store>, Fault> {
        let mut stores = self.inner.stores();
        if stores.len() >= MAX_STORES {
            let what = format!("the server has {MAX_STORES} vector stores, its limit; delete some first");
            return Err(Fault::new(FaultKind::TooMany, what));
        }
        let sequence = stores.last_key_value().map_or(1, |(last, _)| last + 1);
        let (id, at) = (format!("vs_{}", fresh_id()), now());
        let dir = self.inner.dir.join(&id);
        let record = StoreRecord { id, sequence, created_at: at, last_active_at: at, ..record };
        let store = Store::create(dir.clone(), record).map_err(io_fault("create the vector store", &dir))?;
        let store = Arc::new(store);
        stores.insert(sequence, store.clone());
        Ok(store)
    }

    /// Removes a vector store. Its files stay.
    pub(crate) fn remove(&self, id: &str) -> Result<(), Fault> {
        let store = self.get(id)?;
        store.remove()?;
        self.inner.stores().retain(|_, other| other.id != id);
        Ok(())
    }

    /// Attaches files, and has them indexed. Files that the server does not have are refused.
    pub(crate) fn attach(
        &self,
        store: &Arc<Store>,
        mut files: Vec<NewAttachment>,
        is_batch: bool,
    ) -> Result<(Vec<Attachment>, Option<BatchRecord>), Fault> {
        for file in &mut files {
            file.filename = self.inner.files.get(&file.file_id)?.filename;
        }
        let (attached, batch) = store.attach(files, is_batch)?;
        attached.iter().for_each(|file| self.inner.queue.push(store, &file.file_id));
        Ok((attached, batch))
    }

    /// Removes a file from a vector store. Returns whether it was there.
    pub(crate) fn detach(&self, store: &Arc<Store>, file: &str) -> Result<bool, Fault> {
        let was_there = store.detach(file)?;
        if was_there {
            self.index(store)?.remove(&[file]).map_err(index_fault)?;
        }
        Ok(was_there)
    }

    /// Removes a file from all vector stores, because it is deleted.
    pub(crate) fn forget(&self, file: &str) -> Result<(), Fault> {
        self.inner.forget(file)
    }

    /// Replaces the attributes of a file.
    pub(crate) fn set_attributes(&self, store: &Arc<Store>, file: &str, new: Attributes) -> Result<Attachment, Fault> {
        store.touch()?;
        let changed = store.change(file, |file| file.attributes = new)?;
        if changed.status == FileStatus::Completed {
            store.copy_attributes(&*self.index(store)?, file)?;
        }
        Ok(changed)
    }

    /// The texts of an indexed file, in order.
    pub(crate) fn content(&self, store: &Arc<Store>, file: &str) -> Result<Vec<String>, Fault> {
        let index = self.index(store)?;
        let (mut texts, mut bytes, mut after) = (Vec::new(), 0, None);
        loop {
            let page = Page { after, limit: 1_000, prefix: Some(file.to_owned()) };
            let documents = index.documents(&page).map_err(index_fault)?;
            let Some(last) = documents.last() else { return Ok(texts) };
            after = Some(last.id);
            for document in documents.iter().filter(|document| document.path == file) {
                let text = index.text(document.id).map_err(index_fault)?.unwrap_or_default();
                bytes += text.len();
                if bytes > MAX_CONTENT {
                    let what =
                        format!("the file has more than {MAX_CONTENT} bytes of text; read the uploaded file instead");
                    return Err(Fault::new(FaultKind::TooLarge, what));
                }
                texts.push(text);
            }
        }
    }

    /// The index of a vector store.
    pub(crate) fn index(&self, store: &Arc<Store>) -> Result<Arc<Index>, Fault> {
        self.inner.index(store)
    }
}

impl Inner {
    fn stores(&self) -> MutexGuard<'_, BTreeMap<u64, Arc<Store>>> {
        self.stores.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// The index of a vector store. Opening one too many closes another, once nobody uses it.
    fn index(&self, store: &Arc<Store>) -> Result<Arc<Index>, Fault> {
        let (index, is_new) = store.index()?;
        if is_new {
            let mut open = self.open.lock().unwrap_or_else(PoisonError::into_inner);
            open.push_back(Arc::downgrade(store));
            let excess = open.len().saturating_sub(MAX_OPEN);
            let closed: Vec<_> = open.drain(..excess).collect();
            drop(open);
            closed.iter().filter_map(Weak::upgrade).for_each(|store| store.close_index());
        }
        Ok(index)
    }

    fn forget(&self, file: &str) -> Result<(), Fault> {
        let stores: Vec<Arc<Store>> = self.stores().values().cloned().collect();
        for store in stores {
            // A store that is being deleted needs no care.
            if store.detach(file).unwrap_or(false) {
                self.index(&store)?.remove(&[file]).map_err(index_fault)?;
            }
        }
        Ok(())
    }
}

fn absent(id: &str) -> Fault {
    let id: String = id.chars().take(80).collect();
    Fault::new(FaultKind::NoRoute, format!("there is no vector store `{id}`")).at("vector_store_id")
}

/// Attributes as the metadata of documents.
fn metadata(attributes: &Attributes) -> Metadata {
    let value = |value: &Attribute| match value {
        Attribute::Bool(value) => Value::Bool(*value),
        Attribute::Integer(value) => Value::Integer(*value),
        Attribute::Float(value) => Value::Float(*value),
        Attribute::Text(value) => Value::Text(value.clone()),
    };
    attributes.iter().map(|(key, one)| (key.clone(), value(one))).collect()
}
