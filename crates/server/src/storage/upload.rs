//! A file that is being stored.

use super::files::{FileRecord, FileStore, NewFile};
use super::io_fault;
use crate::error::{Fault, FaultKind};
use std::fs::File;
use std::io::Write;
use std::path::PathBuf;
use std::sync::Arc;

/// A file that is being stored. Dropping it removes what was written.
pub(crate) struct Upload {
    store: Arc<FileStore>,
    id: String,
    dir: PathBuf,
    /// `None` once it is complete: an open file would keep Windows from moving its folder.
    file: Option<File>,
    bytes: u64,
    max_bytes: u64,
    is_done: bool,
}

impl Upload {
    pub(super) fn new(store: Arc<FileStore>, (id, dir): (String, PathBuf), max_bytes: u64) -> Result<Upload, Fault> {
        let path = dir.join("content");
        let file = File::create_new(&path).map_err(io_fault("store the file", &path))?;
        Ok(Upload { store, id, dir, file: Some(file), bytes: 0, max_bytes, is_done: false })
    }

    /// Appends to the content.
    pub(crate) fn write(&mut self, data: &[u8]) -> Result<(), Fault> {
        let bytes = self.bytes.saturating_add(data.len() as u64);
        if bytes > self.max_bytes {
            let what = format!("the file is larger than {} bytes, the server's limit", self.max_bytes);
            return Err(Fault::new(FaultKind::TooLarge, what).at("file"));
        }
        self.store.check_room(bytes)?;
        if let Some(file) = &mut self.file {
            file.write_all(data).map_err(io_fault("store the file", &self.dir))?;
        }
        self.bytes = bytes;
        Ok(())
    }

    /// The file is complete: from now on it is in the list.
    pub(crate) fn finish(mut self, new: NewFile) -> Result<FileRecord, Fault> {
        if let Some(file) = self.file.take() {
            file.sync_all().map_err(io_fault("store the file", &self.dir))?;
        }
        let record = self.store.adopt(&self.id, &self.dir, self.bytes, new)?;
        self.is_done = true;
        Ok(record)
    }
}

impl Drop for Upload {
    fn drop(&mut self) {
        self.file = None;
        if !self.is_done
            && let Err(e) = std::fs::remove_dir_all(&self.dir)
        {
            tracing::warn!(path = %self.dir.display(), "cannot remove an unfinished upload: {e}");
        }
    }
}
