//! Adding documents that no file holds.

use super::batch::embed_checked;
use super::codes;
use super::prepare::{ChunkedDocument, Counter, embedded};
use super::run::{chunk_options, set_model};
use crate::chunk::Chunker;
use crate::document::Document;
use crate::error::{Error, Result};
use crate::index::NewDocument;
use crate::models::Embedder;
use crate::store::{FileState, NewChunk, NewFile, StoredEmbedding, Vector, Writer, full_text_title};

/// Chunks that are embedded together.
const BATCH: usize = 128;
/// The most text of one call, in bytes: its documents become visible together.
const MAX_TEXT: usize = 256 << 20;

/// See [`Index::add`](crate::Index::add).
pub(crate) fn add(writer: &mut Writer, documents: &[NewDocument], embedder: &dyn Embedder) -> Result<()> {
    check(documents)?;
    set_model(writer, embedder.identity())?;
    let counter = Counter(embedder);
    let options = writer.reader().chunk_options()?.unwrap_or_default();
    let chunker = Chunker::new(chunk_options(options, embedder), &counter)?;
    let chunked: Vec<ChunkedDocument> =
        documents.iter().map(|document| ChunkedDocument::new(of(document), &chunker)).collect();
    let embeddings = embed(&chunked, embedder)?;
    let kind = embedder.identity().kind;
    let mut embeddings = embeddings.iter();
    let batch = writer.begin()?;
    for (new, chunked) in documents.iter().zip(&chunked) {
        let file = batch.put_file(&NewFile {
            path: &new.key,
            relative: &new.key,
            root: None,
            size: new.text.len() as u64,
            modified_ns: None,
            hash: None,
            settings: "",
            state: FileState::Done,
        })?;
        for old in batch.documents(file)? {
            batch.remove_document(old)?;
        }
        let document = batch.add_document(file, &chunked.document)?;
        let title = full_text_title(new.title.as_deref(), &new.key);
        for (ordinal, (chunk, hash)) in chunked.chunks.iter().enumerate() {
            let Some(embedding) = embeddings.next() else { break };
            let text = new.text.get(chunk.range.clone()).unwrap_or_default();
            let chunk = NewChunk { chunk, hash, vector: Vector::New(embedding) };
            batch.add_chunk((document, ordinal), (title, text), &chunk, kind)?;
        }
    }
    batch.commit()?;
    codes::refresh(writer, codes::EVERY)
}

fn check(documents: &[NewDocument]) -> Result<()> {
    let bytes: usize = documents.iter().map(|document| document.text.len()).sum();
    if bytes > MAX_TEXT {
        let why = format!("{bytes} bytes of text in one call; add at most {MAX_TEXT} at once");
        return Err(Error::Input(why));
    }
    documents.iter().try_for_each(|document| check_key(&document.key))
}

pub(super) fn check_key(key: &str) -> Result<()> {
    match key.len() {
        1..=4_096 => Ok(()),
        n => Err(Error::Input(format!("a document's key has {n} bytes; use a key of 1 to 4,096 bytes"))),
    }
}

fn of(new: &NewDocument) -> Document {
    let NewDocument { title, kind, text, metadata, layout, .. } = new.clone();
    Document { title, kind, text, metadata, row: None, layout }
}

fn embed(documents: &[ChunkedDocument], embedder: &dyn Embedder) -> Result<Vec<StoredEmbedding>> {
    let dimensions = embedder.identity().dimensions;
    let all = documents.iter().flat_map(|one| one.chunks.iter().map(|(chunk, _)| embedded(&one.document, chunk)));
    let texts: Vec<String> = all.collect();
    let mut embeddings = Vec::with_capacity(texts.len());
    for batch in texts.chunks(BATCH) {
        let batch: Vec<&str> = batch.iter().map(String::as_str).collect();
        let embedded = embed_checked(embedder, &batch)?;
        embeddings.extend(embedded.iter().map(|embedding| StoredEmbedding::new(embedding, dimensions)));
    }
    Ok(embeddings)
}
