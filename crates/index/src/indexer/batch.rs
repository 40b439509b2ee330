//! Embedding: takes prepared files, embeds their chunks in batches across files, and passes complete
//! files on to the writer.

use std::collections::{HashMap, VecDeque};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};

use sconce_engine::ErrorClass;

use super::prepare::{Hash, Prepared, ReadFile, Retry, embedded};
use super::queue::{Producer, Queue};
use crate::error::{Error, Result};
use crate::models::{Embedder, Embedding};
use crate::store::{Pool, StoredEmbedding};

/// Chunks that are embedded together: about a second's work for a small model on two cores, so that
/// little is lost if the run is killed. The engine packs sequences, so their lengths may differ.
const BATCH: usize = 128;
/// The embeddings of files with more chunks than these are stored before the file is complete, so
/// that they need no memory and a killed run need not compute them again.
const LARGE: usize = 16 * BATCH;

/// Where the embedding of a chunk comes from.
pub(super) enum Slot {
    /// It is not there yet.
    Missing,
    /// The model computed it.
    New(StoredEmbedding),
    /// It is among the pending ones.
    Pending,
    /// The chunk of the file's old version has it.
    Same(i64),
}

/// What the writer is to do.
pub(super) enum Done {
    /// Everything but a file to write.
    Other(Box<Prepared>),
    /// A file with the embeddings of its chunks, in the order of its documents.
    File(Box<ReadFile>, Vec<Slot>),
    /// Embeddings of a file that is not complete yet.
    Pending(Vec<(Hash, StoredEmbedding)>),
}

impl Done {
    /// The memory that it takes, nearly.
    fn cost(&self) -> usize {
        const ENTRY: usize = 1 << 10;
        let bytes = |embedding: &StoredEmbedding| embedding.main.len() + embedding.mean.as_ref().map_or(0, Vec::len);
        ENTRY
            + match self {
                Done::Other(_) => 0,
                Done::Pending(embeddings) => embeddings.iter().map(|(_, embedding)| bytes(embedding)).sum(),
                Done::File(file, slots) => {
                    let texts = file.documents.iter().map(|document| document.document.text.len());
                    let embeddings = slots.iter().map(|slot| match slot {
                        Slot::New(embedding) => bytes(embedding),
                        Slot::Missing | Slot::Pending | Slot::Same(_) => 0,
                    });
                    texts.chain(embeddings).sum()
                }
            }
    }
}

/// A file of which some chunks are not embedded yet.
struct Open {
    file: Box<ReadFile>,
    /// Which document and which chunk of it each slot is for.
    places: Vec<(usize, usize)>,
    slots: Vec<Slot>,
    /// The first slot that may be missing.
    next: usize,
    is_large: bool,
    /// Why the file cannot be embedded.
    failure: Option<String>,
}

impl Open {
    fn is_complete(&self) -> bool {
        self.failure.is_some() || self.next == self.slots.len()
    }

    fn hash(&self, slot: usize) -> Hash {
        let (document, chunk) = self.places[slot];
        self.file.documents[document].chunks[chunk].1
    }

    fn text(&self, slot: usize) -> String {
        let (document, chunk) = self.places[slot];
        let document = &self.file.documents[document];
        embedded(&document.document, &document.chunks[chunk].0)
    }

    /// Moves `next` to the first slot that is missing.
    fn advance(&mut self) {
        let missing = self.slots[self.next..].iter().position(|slot| matches!(slot, Slot::Missing));
        self.next = missing.map_or(self.slots.len(), |missing| self.next + missing);
    }
}

/// The thread that embeds.
pub(super) struct Batcher<'a> {
    pub(super) embedder: &'a dyn Embedder,
    /// Reads embeddings that can be used again.
    pub(super) pool: &'a Pool,
    /// A killed run has left embeddings of files that are not complete.
    pub(super) has_pending: bool,
    pub(super) queue: &'a Queue<Prepared>,
    pub(super) stop: &'a AtomicBool,
    /// How many chunks were embedded.
    pub(super) embedded: &'a AtomicU64,
    pub(super) done: Producer<'a, Done>,
}

/// The thread that receives has ended, or asked this one to.
struct Stopped;

impl Batcher<'_> {
    /// Embeds until the queue ends. What is complete was passed on when this returns.
    pub(super) fn run(self) -> Result<()> {
        let mut open: VecDeque<Open> = VecDeque::new();
        loop {
            let waiting: usize = open.iter().map(|file| file.slots.len() - file.next).sum();
            match self.fill(&mut open, waiting) {
                Ok(Ok(())) => {}
                Ok(Err(Stopped)) => return Ok(()),
                Err(error) => return Err(error),
            }
            if open.is_empty() {
                return Ok(());
            }
            self.embed_batch(&mut open)?;
            if self.pass_on(&mut open).is_err() || self.stop.load(Ordering::Relaxed) {
                return Ok(());
            }
        }
    }

    /// Takes files from the queue until a batch is full. Waits only if there is nothing to embed.
    fn fill(&self, open: &mut VecDeque<Open>, mut waiting: usize) -> Result<std::result::Result<(), Stopped>> {
        while waiting < BATCH {
            let next = if open.is_empty() { self.queue.pop() } else { self.queue.try_pop() };
            let Some(next) = next else { break };
            let done = match next {
                Prepared::Read(file) => {
                    let file = self.open(file)?;
                    if !file.is_complete() {
                        waiting += file.slots.len() - file.next;
                        open.push_back(file);
                        continue;
                    }
                    Done::File(file.file, file.slots)
                }
                other => Done::Other(Box::new(other)),
            };
            if let Err(stopped) = self.send(done) {
                return Ok(Err(stopped));
            }
        }
        Ok(Ok(()))
    }

    /// Finds the embeddings that need not be computed.
    fn open(&self, file: Box<ReadFile>) -> Result<Open> {
        let old = match &file.work.old {
            Some(old) if old.is_done => self.pool.read(|reader| reader.chunk_hashes(&old.path))?,
            _ => HashMap::new(),
        };
        let documents = file.documents.iter().enumerate();
        let places = documents.flat_map(|(i, document)| (0..document.chunks.len()).map(move |j| (i, j))).collect();
        let mut open = Open { file, places, slots: Vec::new(), next: 0, is_large: false, failure: None };
        open.slots = self.pool.read(|reader| {
            let slot = |i: usize| {
                let hash = open.hash(i);
                Ok(match old.get(&hash[..]) {
                    Some(same) => Slot::Same(*same),
                    None if self.has_pending && reader.is_pending(&hash)? => Slot::Pending,
                    None => Slot::Missing,
                })
            };
            (0..open.places.len()).map(slot).collect::<Result<Vec<Slot>>>()
        })?;
        open.is_large = open.slots.iter().filter(|slot| matches!(slot, Slot::Missing)).count() > LARGE;
        open.advance();
        Ok(open)
    }

    /// Embeds the first chunks that are missing.
    fn embed_batch(&self, open: &mut VecDeque<Open>) -> Result<()> {
        let mut batch: Vec<(usize, usize, String)> = Vec::new();
        'files: for (i, file) in open.iter().enumerate() {
            for slot in file.next..file.slots.len() {
                if batch.len() >= BATCH {
                    break 'files;
                }
                if matches!(file.slots[slot], Slot::Missing) {
                    batch.push((i, slot, file.text(slot)));
                }
            }
        }
        let texts: Vec<&str> = batch.iter().map(|(_, _, text)| text.as_str()).collect();
        match self.embed(&texts) {
            Ok(embeddings) => {
                for ((i, slot, _), embedding) in batch.iter().zip(embeddings) {
                    open[*i].slots[*slot] = Slot::New(embedding);
                }
            }
            // One text may be at fault: the others must not suffer.
            Err(error) if is_of_input(&error) => self.embed_singly(&batch, open)?,
            Err(error) => return Err(error),
        }
        self.embedded.fetch_add(batch.len() as u64, Ordering::Relaxed);
        Ok(())
    }

    /// Embeds texts one by one. A file with a text that the model refuses fails.
    fn embed_singly(&self, batch: &[(usize, usize, String)], open: &mut VecDeque<Open>) -> Result<()> {
        for (i, slot, text) in batch {
            match self.embed(&[text.as_str()]) {
                Ok(embeddings) => {
                    let embedding = embeddings.into_iter().next();
                    open[*i].slots[*slot] = embedding.map_or(Slot::Missing, Slot::New);
                }
                Err(error) if is_of_input(&error) => {
                    open[*i].failure = Some(format!("cannot be embedded: {error}"));
                }
                Err(error) => return Err(error),
            }
        }
        Ok(())
    }

    fn embed(&self, texts: &[&str]) -> Result<Vec<StoredEmbedding>> {
        let embeddings = embed_checked(self.embedder, texts)?;
        let dimensions = self.embedder.identity().dimensions;
        Ok(embeddings.iter().map(|embedding| StoredEmbedding::new(embedding, dimensions)).collect())
    }

    /// Passes on what is complete, and the embeddings of large files.
    fn pass_on(&self, open: &mut VecDeque<Open>) -> std::result::Result<(), Stopped> {
        let mut rest = VecDeque::new();
        for mut file in open.drain(..) {
            file.advance();
            if let Some(failure) = file.failure {
                let failed = Prepared::Failed(file.file.work, failure, Retry::Changed);
                self.send(Done::Other(Box::new(failed)))?;
                continue;
            }
            if file.is_complete() {
                self.send(Done::File(file.file, file.slots))?;
                continue;
            }
            if file.is_large {
                let mut pending = Vec::new();
                for i in 0..file.slots.len() {
                    if matches!(file.slots[i], Slot::New(_))
                        && let Slot::New(embedding) = std::mem::replace(&mut file.slots[i], Slot::Pending)
                    {
                        pending.push((file.hash(i), embedding));
                    }
                }
                self.send(Done::Pending(pending))?;
            }
            rest.push_back(file);
        }
        *open = rest;
        Ok(())
    }

    fn send(&self, done: Done) -> std::result::Result<(), Stopped> {
        let cost = done.cost();
        if self.done.push(done, cost) { Ok(()) } else { Err(Stopped) }
    }
}

/// The embeddings of texts, checked against what the model promises.
pub(super) fn embed_checked(embedder: &dyn Embedder, texts: &[&str]) -> Result<Vec<Embedding>> {
    let embeddings = embedder.embed_passages(texts)?;
    if embeddings.len() != texts.len() {
        let why = format!("the model gave {} embeddings for {} passages", embeddings.len(), texts.len());
        return Err(Error::Model(why));
    }
    embeddings.iter().try_for_each(|embedding| embedding.check(embedder.identity()))?;
    Ok(embeddings)
}

/// Whether a text is at fault, not the model or the machine.
fn is_of_input(error: &Error) -> bool {
    match error {
        Error::Engine(error) => error.class() == ErrorClass::Input,
        Error::Input(_) => true,
        _ => false,
    }
}
