//! The thread that writes chunks to disk, so that the device's thread need not wait for it.

use super::folder::Folder;
use super::key::Key;
use crate::error::{Error, Result};
use std::sync::mpsc::{Receiver, SyncSender, sync_channel};
use std::thread::JoinHandle;

/// Chunks that may wait to be written. A device's thread that is further ahead waits, so that they
/// do not fill the memory.
const MAX_WAITING: usize = 4;

/// Writes chunks. Dropping it waits until all are written.
pub(crate) struct Writer {
    chunks: Option<SyncSender<(Key, Vec<u8>)>>,
    thread: Option<JoinHandle<()>>,
}

impl Writer {
    /// Starts the thread.
    pub(crate) fn start(folder: Folder) -> Result<Writer> {
        let (chunks, inbox) = sync_channel(MAX_WAITING);
        let thread = std::thread::Builder::new().name("prompt cache".into()).spawn(move || run(&folder, &inbox));
        let thread = thread.map_err(|e| Error::Input(format!("cannot start the prompt cache's thread: {e}")))?;
        Ok(Writer { chunks: Some(chunks), thread: Some(thread) })
    }

    /// Writes a chunk, soon.
    pub(crate) fn write(&self, key: Key, content: Vec<u8>) {
        if let Some(chunks) = &self.chunks {
            // The thread ends early only if it panicked: then nothing is stored any more.
            let _ = chunks.send((key, content));
        }
    }
}

fn run(folder: &Folder, inbox: &Receiver<(Key, Vec<u8>)>) {
    let mut has_warned = false;
    for (key, content) in inbox {
        if let Err(e) = folder.write(&key, &content)
            && !std::mem::replace(&mut has_warned, true)
        {
            tracing::warn!("a prompt cannot be stored in the prompt cache: {e}; this is not reported again");
        }
    }
}

impl Drop for Writer {
    fn drop(&mut self) {
        self.chunks = None;
        if let Some(thread) = self.thread.take() {
            let _ = thread.join();
        }
    }
}
