//! Where the files of a run are: a disk or an object store.

use crate::error::Result;
use std::io::Read;
use std::path::{Path, PathBuf};

/// Largest file that [`Store::read`] returns, and so the largest manifest.
pub(crate) const MAX_READ_BYTES: u64 = 256 << 20;

/// A file in a listing.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Entry {
    /// Name without its folder.
    pub name: String,
    /// Bytes.
    pub size: u64,
}

/// Outcome of an exclusive creation.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Created {
    /// The file is new.
    New,
    /// There is a file of this name already; it is unchanged.
    Exists,
}

/// Outcome of publishing an output.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Published {
    /// The output has its final name.
    New,
    /// There is an output of this name already; it is unchanged.
    Exists,
}

/// The files of a run. Names are relative to the output folder and use `/`.
///
/// All of the protocol needs two guarantees: `create` succeeds for one caller at most, and a reader
/// sees a file as it was before or after `replace` and `publish`, never a part of it.
pub trait Store: Send + Sync {
    /// The content of a small file, or `None` if there is no such file.
    fn read(&self, name: &str) -> Result<Option<Vec<u8>>>;
    /// Bytes of a file as it is now, also where listings are cached; `None` if there is no such file.
    fn size(&self, name: &str) -> Result<Option<u64>>;
    /// Whether there is a file of this name.
    fn exists(&self, name: &str) -> Result<bool> {
        Ok(self.size(name)?.is_some())
    }
    /// Writes a small file, unless there is one of this name.
    fn create(&self, name: &str, content: &[u8]) -> Result<Created>;
    /// Writes a small file in place of any other of this name.
    fn replace(&self, name: &str, content: &[u8]) -> Result<()>;
    /// Moves a file to a local file in [`Store::scratch`], so that a damaged file leaves its name in
    /// one step and can be read before it is dropped. `false` if there is no such file.
    fn take_away(&self, name: &str, local: &Path) -> Result<bool>;
    /// Removes a file; nothing happens if there is none.
    fn remove(&self, name: &str) -> Result<()>;
    /// The files of a folder, in no order; none if there is no such folder.
    fn list(&self, folder: &str) -> Result<Vec<Entry>>;
    /// Reads a large file from its beginning.
    fn open(&self, name: &str) -> Result<Box<dyn Read + Send>>;
    /// Gives a finished local file its final name, durably, unless there is a file of this name.
    /// The local file may be gone afterwards.
    fn publish(&self, local: &Path, name: &str) -> Result<Published>;
    /// A local folder for outputs that are being written.
    fn scratch(&self) -> Result<PathBuf>;
    /// Whether other processes can read what is in [`Store::scratch`], as the folder `tmp`.
    fn shares_scratch(&self) -> bool;
    /// The name of a file for messages.
    fn display(&self, name: &str) -> String;
}
