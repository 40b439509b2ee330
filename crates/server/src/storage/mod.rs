//! What a server keeps on disk (`--data-dir`): files, batches, vector stores and responses. One server uses a
//! folder at a time. Names that clients choose are never part of a path.

pub(crate) mod files;
mod folder;
pub(crate) mod pages;
pub(crate) mod records;
pub(crate) mod responses;
pub(crate) mod upload;

use crate::error::{Fault, FaultKind};
use files::FileStore;
use folder::Folder;
pub(crate) use folder::{make as make_folder, sync as sync_folder};
use responses::ResponseStore;
use std::path::Path;
use std::sync::Arc;
use std::time::SystemTime;

/// The data folder of a server.
pub(crate) struct Storage {
    folder: Folder,
    /// Uploaded files.
    pub(crate) files: Arc<FileStore>,
    /// Stored responses.
    pub(crate) responses: Arc<ResponseStore>,
}

impl Storage {
    /// Opens a data folder, and makes it if it is missing. The error is for the person who started
    /// the server.
    pub(crate) fn open(path: &Path) -> Result<Storage, String> {
        let folder = Folder::open(path)?;
        let files = FileStore::open(&folder.below("files")?, &folder.below("incoming")?)?;
        let responses = ResponseStore::open(&folder.below("responses")?)?;
        Ok(Storage { folder, files: Arc::new(files), responses: Arc::new(responses) })
    }

    /// A folder in the data folder, which is made if it is missing.
    pub(crate) fn below(&self, name: &'static str) -> Result<std::path::PathBuf, String> {
        self.folder.below(name)
    }

    /// Lets another server use the folder.
    pub(crate) fn close(&self) {
        self.folder.unlock();
    }
}

/// Runs work that reads or writes files on a blocking thread.
pub(crate) async fn blocking<T: Send + 'static>(
    work: impl FnOnce() -> Result<T, Fault> + Send + 'static,
) -> Result<T, Fault> {
    tokio::task::spawn_blocking(work).await.unwrap_or_else(|e| {
        tracing::error!("a request panicked: {e}");
        Err(Fault::new(FaultKind::Internal, "internal error, please report it; only this request failed"))
    })
}

/// The error of a request whose file could not be read or written. The log has the path, which is
/// not for clients.
pub(crate) fn io_fault(what: &str, path: &Path) -> impl FnOnce(std::io::Error) -> Fault {
    let (what, path) = (what.to_owned(), path.to_owned());
    move |e| {
        tracing::error!(path = %path.display(), "cannot {what}: {e}");
        Fault::new(FaultKind::Internal, format!("the server cannot {what}: {e}"))
    }
}

/// Seconds since 1970.
pub(crate) fn now() -> u64 {
    SystemTime::now().duration_since(SystemTime::UNIX_EPOCH).map_or(0, |d| d.as_secs())
}
