//! Moves prefixes of prompts between the KV cache and the disk. The scheduler knows nothing of it: a
//! prefix from the disk becomes a cached prefix without owners, which the scheduler finds like any
//! other.
//!
//! Chunks are as long as a step's prompt, so a prompt that runs alone is computed in the same steps
//! with and without a stored prefix, and its answer is the same to the bit.

use super::PAGE;
use crate::error::{Error, Result};
use crate::kv::{Blocks, SeqId};
use crate::prompt_cache::{Folder, Key, PromptCacheOptions, Writer, hash_model};
use sconce_ops::KvCache;
use std::collections::HashMap;
use std::path::Path;
use std::time::{Duration, Instant};

/// The sequence that owns the blocks of a prefix while it is read. Requests never get this id.
const RESTORING: SeqId = SeqId(u64::MAX);
/// How often a chunk that is used is marked as used.
const TOUCH_EVERY: Duration = Duration::from_secs(60);
/// The most chunks whose presence on disk is remembered.
const MAX_KNOWN: usize = 65_536;

/// What a stored prefix depends on, besides the model's files.
#[derive(Clone, Debug)]
pub(crate) struct PrefixStorage {
    /// Where prefixes are stored.
    pub(crate) options: PromptCacheOptions,
    /// Device, kernels and formats, by which keys and values differ.
    pub(crate) numerics: String,
    /// Tokens of a step.
    pub(crate) step_tokens: usize,
}

/// The stored prefixes of a model.
pub(super) struct StoredPrefixes {
    folder: Folder,
    writer: Writer,
    /// The key of the empty prefix.
    empty: Key,
    /// Tokens of a chunk, a whole number of pages.
    chunk: usize,
    /// Chunks that are on disk or will soon be, and when each was last marked as used.
    known: HashMap<Key, Instant>,
}

impl StoredPrefixes {
    /// Opens the folder for the model in `root`.
    pub(super) fn open(storage: &PrefixStorage, root: &Path) -> Result<StoredPrefixes> {
        let folder = Folder::open(&storage.options)?;
        let unreadable = |e| Error::Input(format!("the prompt cache needs the model's files: {e}"));
        Ok(StoredPrefixes {
            writer: Writer::start(folder.clone())?,
            folder,
            empty: hash_model(root, &storage.numerics).map_err(unreadable)?,
            chunk: (storage.step_tokens / PAGE * PAGE).max(PAGE),
            known: HashMap::new(),
        })
    }

    /// The key of each whole chunk of `tokens`, in order.
    fn keys<'a>(&self, tokens: &'a [u32]) -> impl Iterator<Item = Key> + use<'a> {
        let mut key = self.empty;
        tokens.chunks_exact(self.chunk).map(move |chunk| {
            key = key.then(chunk);
            key
        })
    }

    /// Brings the stored prefix of a prompt into the prefix cache, if it is longer than what is
    /// there.
    pub(super) fn restore(&mut self, prompt: &[u32], blocks: &mut Blocks, cache: &KvCache) {
        // The model computes at least the last token.
        let before_last = &prompt[..prompt.len().saturating_sub(1)];
        let stored: Vec<Key> = self.keys(before_last).take_while(|key| self.folder.has(key)).collect();
        self.touch(&stored);
        // Evicted by another process, perhaps: then they are stored again.
        for key in self.keys(before_last).skip(stored.len()) {
            self.known.remove(&key);
        }
        let tokens = &prompt[..stored.len() * self.chunk];
        let in_memory = blocks.cached_len(prompt);
        if tokens.len() <= in_memory {
            return;
        }
        let first = in_memory / self.chunk;
        let mut done = first * self.chunk;
        // Too few free blocks: the prompt is computed when its turn comes.
        if blocks.begin_restore(RESTORING, tokens, done).is_err() {
            return;
        }
        let mut rows = Vec::with_capacity(self.chunk);
        for key in &stored[first..] {
            rows_of(blocks.table(RESTORING), done..done + self.chunk, &mut rows);
            let Some(content) = self.folder.read(key, rows.len() * cache.row_bytes()) else {
                self.known.remove(key);
                break;
            };
            if let Err(e) = cache.write_rows(&rows, &content) {
                tracing::warn!("a stored prompt cannot be used: {e}");
                break;
            }
            done += self.chunk;
        }
        blocks.mark_computed(RESTORING, &tokens[..done]);
        blocks.free(RESTORING);
    }

    /// Stores the whole chunks of a prompt's beginning, which is in the slots of `table`.
    pub(super) fn store(&mut self, computed: &[u32], table: &[u32], cache: &KvCache) {
        let keys: Vec<Key> = self.keys(computed).collect();
        let mut rows = Vec::new();
        for (i, key) in keys.iter().enumerate() {
            if self.known.contains_key(key) {
                continue;
            }
            if !self.folder.has(key) {
                rows_of(table, i * self.chunk..(i + 1) * self.chunk, &mut rows);
                match cache.read_rows(&rows) {
                    Ok(content) => self.writer.write(*key, &keys[..i], content),
                    Err(e) => return tracing::warn!("a prompt cannot be stored: {e}"),
                }
            }
            self.remember(*key);
        }
    }

    /// Marks chunks as used, from the last to the first, so that a prefix is evicted after its
    /// continuations.
    fn touch(&mut self, keys: &[Key]) {
        let now = Instant::now();
        let is_due = |at: &Instant| now.duration_since(*at) >= TOUCH_EVERY;
        if !keys.iter().any(|key| self.known.get(key).is_none_or(is_due)) {
            return;
        }
        for key in keys.iter().rev() {
            self.folder.touch(key);
            self.remember(*key);
        }
    }

    fn remember(&mut self, key: Key) {
        if self.known.len() >= MAX_KNOWN {
            self.known.clear();
        }
        self.known.insert(key, Instant::now());
    }
}

/// The rows of the KV cache that positions of a sequence have.
fn rows_of(table: &[u32], positions: std::ops::Range<usize>, rows: &mut Vec<u32>) {
    rows.clear();
    rows.extend(positions.map(|p| table[p / PAGE] * PAGE as u32 + (p % PAGE) as u32));
}
