//! A store in memory, for simulations of several processes.

use crate::error::{Error, Result};
use crate::store::{Created, Entry, Published, Store};
use std::collections::BTreeMap;
use std::io::{Cursor, Read};
use std::path::{Path, PathBuf};
use std::sync::{Mutex, MutexGuard, PoisonError};

/// Files in memory. Its methods happen one after the other, as on one disk.
#[derive(Debug, Default)]
pub(crate) struct Memory {
    files: Mutex<BTreeMap<String, Vec<u8>>>,
    /// Local files are read from here by [`Store::publish`].
    scratch: PathBuf,
}

impl Memory {
    /// An empty store whose outputs are written in this local folder first.
    pub(crate) fn new(scratch: PathBuf) -> Memory {
        Memory { files: Mutex::default(), scratch }
    }

    fn files(&self) -> MutexGuard<'_, BTreeMap<String, Vec<u8>>> {
        self.files.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Store for Memory {
    fn read(&self, name: &str) -> Result<Option<Vec<u8>>> {
        Ok(self.files().get(name).cloned())
    }
    fn size(&self, name: &str) -> Result<Option<u64>> {
        Ok(self.files().get(name).map(|content| content.len() as u64))
    }
    fn create(&self, name: &str, content: &[u8]) -> Result<Created> {
        let mut files = self.files();
        if files.contains_key(name) {
            return Ok(Created::Exists);
        }
        files.insert(name.into(), content.into());
        Ok(Created::New)
    }
    fn replace(&self, name: &str, content: &[u8]) -> Result<()> {
        self.files().insert(name.into(), content.into());
        Ok(())
    }
    fn take_away(&self, name: &str, local: &Path) -> Result<bool> {
        let Some(content) = self.files().remove(name) else { return Ok(false) };
        std::fs::write(local, content).map_err(Error::io(local.display().to_string()))?;
        Ok(true)
    }
    fn remove(&self, name: &str) -> Result<()> {
        self.files().remove(name);
        Ok(())
    }
    fn list(&self, folder: &str) -> Result<Vec<Entry>> {
        let prefix = format!("{folder}/");
        let entry = |(name, content): (&String, &Vec<u8>)| {
            let name = name.strip_prefix(&prefix)?;
            Some(Entry { name: name.into(), size: content.len() as u64 })
        };
        Ok(self.files().iter().filter_map(entry).collect())
    }
    fn open(&self, name: &str) -> Result<Box<dyn Read + Send>> {
        match self.read(name)? {
            Some(content) => Ok(Box::new(Cursor::new(content))),
            None => Err(Error::Store { at: name.into(), why: "no such file".into() }),
        }
    }
    fn publish(&self, local: &Path, name: &str) -> Result<Published> {
        let content = std::fs::read(local).map_err(Error::io(local.display().to_string()))?;
        Ok(match self.create(name, &content)? {
            Created::New => Published::New,
            Created::Exists => Published::Exists,
        })
    }
    fn scratch(&self) -> Result<PathBuf> {
        Ok(self.scratch.clone())
    }
    fn shares_scratch(&self) -> bool {
        false
    }
    fn display(&self, name: &str) -> String {
        format!("memory:{name}")
    }
}
