//! Indexing one file that the caller has read. The writer's lock is free while the model embeds, so
//! that other threads can write meanwhile.

use std::collections::HashSet;
use std::sync::atomic::{AtomicBool, Ordering};

use super::batch::embed_checked;
use super::codes;
use super::prepare::{ChunkedDocument, Counter, Hash, embedded};
use super::run::{chunk_options, set_model};
use crate::chunk::{ChunkOptions, Chunker};
use crate::document::{Chunk, Document};
use crate::error::{Error, Result};
use crate::index::{FileDocuments, Index, PutReport};
use crate::models::Embedder;
use crate::store::{FileState, NewChunk, NewFile, Reader, StoredEmbedding, Vector, Writer, full_text_title};

/// Chunks that are embedded together. Few, because other requests to the model wait for them.
const TOGETHER: usize = 16;
/// Embeddings that are stored together before the file is complete: they need no memory then, and a
/// killed run need not compute them again.
const STORED_TOGETHER: usize = 1_024;

/// See [`Index::put`].
pub(crate) fn put(
    index: &Index,
    file: FileDocuments,
    (embedder, cancel): (&dyn Embedder, &AtomicBool),
) -> Result<PutReport> {
    super::add::check_key(&file.key)?;
    index.write(|writer| set_model(writer, embedder.identity()))?;
    let options = chunk_options(file.chunk, embedder);
    let counter = Counter(embedder);
    let chunker = Chunker::new(options, &counter)?;
    let mut chunked = Vec::new();
    for document in file.documents {
        check(cancel)?;
        chunked.push(ChunkedDocument::new(document, &chunker));
    }
    let missing = index.read(|reader| missing(reader, &chunked))?;
    for some in missing.chunks(STORED_TOGETHER) {
        let embeddings = embed(some, embedder, cancel)?;
        index.write(|writer| {
            let batch = writer.begin()?;
            for ((_, _, hash), embedding) in some.iter().zip(&embeddings) {
                batch.add_pending(&hash[..], embedding)?;
            }
            batch.commit()
        })?;
    }
    check(cancel)?;
    let report = report(&chunked, options, embedder);
    index.write(|writer| write(writer, (&file.key, &file.name), &chunked, embedder))?;
    Ok(report)
}

fn check(cancel: &AtomicBool) -> Result<()> {
    if cancel.load(Ordering::Relaxed) { Err(Error::Cancelled) } else { Ok(()) }
}

/// The chunks whose embeddings must be computed, each text once.
fn missing<'a>(
    reader: &Reader<'_>,
    chunked: &'a [ChunkedDocument],
) -> Result<Vec<(&'a Document, &'a Chunk, &'a Hash)>> {
    let mut seen = HashSet::new();
    let mut missing = Vec::new();
    for one in chunked {
        for (chunk, hash) in &one.chunks {
            if seen.insert(hash) && !reader.is_pending(hash)? {
                missing.push((&one.document, chunk, hash));
            }
        }
    }
    Ok(missing)
}

fn embed(
    chunks: &[(&Document, &Chunk, &Hash)],
    embedder: &dyn Embedder,
    cancel: &AtomicBool,
) -> Result<Vec<StoredEmbedding>> {
    let dimensions = embedder.identity().dimensions;
    let mut embeddings = Vec::with_capacity(chunks.len());
    for some in chunks.chunks(TOGETHER) {
        check(cancel)?;
        let texts: Vec<String> = some.iter().map(|(document, chunk, _)| embedded(document, chunk)).collect();
        let texts: Vec<&str> = texts.iter().map(String::as_str).collect();
        let embedded = embed_checked(embedder, &texts)?;
        embeddings.extend(embedded.iter().map(|embedding| StoredEmbedding::new(embedding, dimensions)));
    }
    Ok(embeddings)
}

/// Replaces the file, in one transaction.
fn write(
    writer: &mut Writer,
    (key, name): (&str, &str),
    chunked: &[ChunkedDocument],
    embedder: &dyn Embedder,
) -> Result<()> {
    let batch = writer.begin()?;
    let size: usize = chunked.iter().map(|one| one.document.text.len()).sum();
    let file = batch.put_file(&NewFile {
        path: key,
        relative: name,
        root: None,
        size: size as u64,
        modified_ns: None,
        hash: None,
        settings: "",
        state: FileState::Done,
    })?;
    for old in batch.documents(file)? {
        batch.remove_document(old)?;
    }
    for one in chunked {
        let document = batch.add_document(file, &one.document)?;
        let title = full_text_title(one.document.title.as_deref(), name);
        for (ordinal, (chunk, hash)) in one.chunks.iter().enumerate() {
            let text = one.document.text.get(chunk.range.clone()).unwrap_or_default();
            let chunk = NewChunk { chunk, hash, vector: Vector::Pending };
            batch.add_chunk((document, ordinal), (title, text), &chunk, embedder.identity().kind)?;
        }
    }
    batch.remove_pending()?;
    batch.commit()?;
    codes::refresh(writer, codes::EVERY)
}

fn report(chunked: &[ChunkedDocument], options: ChunkOptions, embedder: &dyn Embedder) -> PutReport {
    let chunks: usize = chunked.iter().map(|one| one.chunks.len()).sum();
    let text: usize = chunked.iter().map(|one| one.document.text.len()).sum();
    let vectors = chunks.saturating_mul(embedder.identity().dimensions).saturating_mul(size_of::<f32>());
    PutReport { chunks: chunks as u64, bytes: text.saturating_add(vectors) as u64, chunk: options }
}
