//! The thread that writes chunks to disk, so that the device's thread need not wait for it.

use super::folder::Folder;
use super::key::Key;
use crate::error::{Error, Result};
use std::sync::mpsc::{Receiver, SyncSender, sync_channel};
use std::thread::JoinHandle;

/// Chunks that may wait to be written. A device's thread that is further ahead waits, so that they
/// do not fill the memory.
const MAX_WAITING: usize = 4;

/// A chunk to be written.
struct Waiting {
    key: Key,
    /// The chunks before it, from the first.
    before: Vec<Key>,
    content: Vec<u8>,
}

/// Writes chunks. Dropping it waits until all are written.
pub(crate) struct Writer {
    chunks: Option<SyncSender<Waiting>>,
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

    /// Writes the chunk that comes after those of `before`, soon.
    pub(crate) fn write(&self, key: Key, before: &[Key], content: Vec<u8>) {
        if let Some(chunks) = &self.chunks {
            // The thread ends early only if it panicked: then nothing is stored any more.
            let _ = chunks.send(Waiting { key, before: before.to_vec(), content });
        }
    }
}

fn run(folder: &Folder, inbox: &Receiver<Waiting>) {
    let mut has_warned = false;
    for Waiting { key, before, content } in inbox {
        if let Err(e) = folder.write(&key, &content)
            && !std::mem::replace(&mut has_warned, true)
        {
            tracing::warn!("a prompt cannot be stored in the prompt cache: {e}; this is not reported again");
        }
        // A prefix is never older than its continuations, and is evicted after them.
        before.iter().rev().for_each(|key| folder.touch(key));
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
