//! Reading and chunking of a file, before its chunks are embedded.

use std::collections::{HashMap, HashSet};
use std::io::Read;
use std::path::Path;
use std::sync::{Mutex, PoisonError};

use sha2::{Digest, Sha256};

use super::classify::Work;
use crate::chunk::{Chunker, CountTokens};
use crate::document::{Chunk, Document};
use crate::models::Embedder;
use crate::read::{Limits, Parser, ReadError};
use crate::store::{FileRecord, embedded_text};

/// Larger files are not hashed: a changed time of change counts as a change.
const MAX_HASHED: u64 = 1 << 30;

/// The most different keys of the metadata in one file.
const MAX_KEYS: usize = 1_000;

/// A hash: the first half of SHA-256.
pub(super) type Hash = [u8; 16];

/// What became of a file before embedding.
pub(super) enum Prepared {
    /// The content is that of the index.
    Touched(Work),
    /// The content is that of a file that has vanished.
    Renamed(Work, FileRecord),
    /// It could not be read.
    Failed(Work, String, Retry),
    /// It is left out on purpose.
    Skipped(Work, String),
    /// Its chunks are to be embedded.
    Read(Box<ReadFile>),
}

/// When a file that failed is tried again.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Retry {
    /// When it has changed: its content is at fault.
    Changed,
    /// With every run: the system is at fault, such as by permissions, which are no change.
    Always,
}

/// A file with its chunks.
pub(super) struct ReadFile {
    pub(super) work: Work,
    pub(super) hash: Option<Hash>,
    pub(super) documents: Vec<ChunkedDocument>,
    /// For the user: what was left out or replaced.
    pub(super) notes: Vec<String>,
}

/// A document with its chunks.
pub(super) struct ChunkedDocument {
    pub(super) document: Document,
    pub(super) chunks: Vec<(Chunk, Hash)>,
}

impl ChunkedDocument {
    pub(super) fn new(document: Document, chunker: &Chunker<'_>) -> ChunkedDocument {
        let hashed = |chunk: Chunk| {
            let hash = hash(embedded(&document, &chunk).as_bytes());
            (chunk, hash)
        };
        let chunks = chunker.chunk(&document).into_iter().map(hashed).collect();
        ChunkedDocument { document, chunks }
    }
}

/// The text of a chunk that the model embeds.
pub(super) fn embedded(document: &Document, chunk: &Chunk) -> String {
    let text = document.text.get(chunk.range.clone()).unwrap_or_default();
    embedded_text(document.title.as_deref(), chunk.heading.as_deref(), text)
}

pub(super) fn hash(bytes: &[u8]) -> Hash {
    first_half(Sha256::new_with_prefix(bytes))
}

fn first_half(hash: Sha256) -> Hash {
    let mut half = Hash::default();
    half.copy_from_slice(&hash.finalize().as_slice()[..16]);
    half
}

/// Counts tokens as the model's tokenizer does.
pub(super) struct Counter<'a>(pub(super) &'a dyn Embedder);

impl CountTokens for Counter<'_> {
    fn count(&self, text: &str) -> usize {
        self.0.count_tokens(text)
    }
}

/// What the threads that prepare files share.
pub(super) struct Preparation<'a> {
    pub(super) parser: &'a Parser,
    pub(super) chunker: &'a Chunker<'a>,
    pub(super) settings: &'a str,
    /// Files that have vanished, by their hashes; a file that is found again takes one.
    pub(super) vanished: Mutex<HashMap<Vec<u8>, Vec<FileRecord>>>,
}

impl Preparation<'_> {
    /// Reads a file and cuts it into chunks.
    pub(super) fn prepare(&self, work: Work) -> Prepared {
        let hash = match file_hash(&work) {
            Ok(hash) => hash,
            Err(error) => return Prepared::Failed(work, ReadError::from(error).to_string(), Retry::Always),
        };
        if let (Some(old), Some(hash)) = (&work.old, &hash)
            && old.hash.as_deref() == Some(&hash[..])
            && old.settings == self.settings
        {
            return Prepared::Touched(work);
        }
        if let Some(old) = hash.and_then(|hash| self.renamed(&work, hash)) {
            return Prepared::Renamed(work, old);
        }
        let mut documents = Vec::new();
        let mut keys = Keys::default();
        let mut each = |mut document: Document| {
            keys.bound(&mut document);
            documents.push(ChunkedDocument::new(document, self.chunker));
        };
        match self.parser.read(work.found.file(), work.found.format, &Limits::default(), &mut each) {
            Ok(mut notes) => {
                notes.extend(keys.note());
                Prepared::Read(Box::new(ReadFile { work, hash, documents, notes }))
            }
            Err(error) if error.is_skip() => Prepared::Skipped(work, error.to_string()),
            Err(error @ (ReadError::Io(_) | ReadError::Process(_))) => {
                Prepared::Failed(work, error.to_string(), Retry::Always)
            }
            Err(error) => Prepared::Failed(work, error.to_string(), Retry::Changed),
        }
    }

    /// The vanished file that a new one was, if it is of the same type: the type decides how a file
    /// is read.
    fn renamed(&self, work: &Work, hash: Hash) -> Option<FileRecord> {
        if work.old.is_some() {
            return None;
        }
        let mut vanished = self.vanished.lock().unwrap_or_else(PoisonError::into_inner);
        let same = vanished.get_mut(&hash[..])?;
        let extension = work.found.path.extension();
        let at = same.iter().position(|old| {
            old.is_done && old.settings == self.settings && Path::new(&old.path).extension() == extension
        })?;
        Some(same.swap_remove(at))
    }
}

/// The keys of the metadata in one file. Codes have a column for each: rows with keys of their own
/// would fill the memory.
#[derive(Default)]
struct Keys {
    known: HashSet<String>,
    dropped: bool,
}

impl Keys {
    /// Removes values whose keys are too many.
    fn bound(&mut self, document: &mut Document) {
        document.metadata.retain(|key, _| {
            let is_kept = self.known.contains(key) || (self.known.len() < MAX_KEYS && self.known.insert(key.clone()));
            self.dropped |= !is_kept;
            is_kept
        });
    }

    fn note(&self) -> Option<String> {
        self.dropped.then(|| format!("has more than {MAX_KEYS} different keys; filters know only the first ones"))
    }
}

/// The hash of a file's content; `None`: it is too large to hash.
fn file_hash(work: &Work) -> std::io::Result<Option<Hash>> {
    if work.found.size > MAX_HASHED {
        return Ok(None);
    }
    // The file may have been replaced by a FIFO or a link since the walk.
    let mut file = crate::read::open_regular(work.found.file())?;
    let mut sha256 = Sha256::new();
    let mut buffer = vec![0; 256 << 10];
    let mut left = MAX_HASHED + 1;
    while left > 0 {
        match file.read(&mut buffer)? {
            0 => return Ok(Some(first_half(sha256))),
            count => {
                sha256.update(&buffer[..count]);
                left = left.saturating_sub(count as u64);
            }
        }
    }
    Ok(None)
}
