//! Files that the caller has read.

mod common;

use common::{Corpus, Fake, random_text};
use sconce_index::chunk::ChunkOptions;
use sconce_index::{
    Compare, Document, Error, FileDocuments, Filter, Index, Kind, Layout, Metadata, Mode, Page, Query, Test, Value,
};
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

fn file(key: &str, name: &str, texts: &[&str]) -> FileDocuments {
    let document = |(i, text): (usize, &&str)| Document {
        title: None,
        kind: Kind::Text,
        text: text.to_string(),
        metadata: Metadata::from([("n".into(), Value::Integer(1))]),
        row: (texts.len() > 1).then_some(i as u64 + 1),
        layout: Layout::default(),
    };
    let documents = texts.iter().enumerate().map(document).collect();
    FileDocuments { key: key.into(), name: name.into(), documents, chunk: ChunkOptions::default() }
}

fn found(index: &Index, embedder: &Fake, text: &str) -> Vec<String> {
    let query = Query { mode: Mode::Bm25, ..Query::new(text) };
    index.search(&query, Some(embedder), None).unwrap().into_iter().map(|hit| hit.path).collect()
}

#[test]
fn files_are_put_replaced_and_found_by_their_names_and_metadata() {
    let corpus = Corpus::new(&[]);
    let (index, embedder, cancel) = (corpus.open(), Fake::dense(), AtomicBool::new(false));
    let report = index.put(file("f1", "zebras.csv", &["run fast", "sleep long"]), &embedder, &cancel).unwrap();
    // Fewer tokens than asked for: the model takes no more.
    assert_eq!((report.chunks, report.chunk.tokens < 100), (2, true));
    index.put(file("f2", "b.txt", &["lions sleep"]), &embedder, &cancel).unwrap();
    assert_eq!(found(&index, &embedder, "zebras").len(), 2, "the name is in the full text");
    let glob = Compare { key: "path".into(), test: Test::Glob("*.txt".into()) };
    let query = Query { filter: Some(Filter::Compare(glob)), ..Query::new("sleep") };
    let hits = index.search(&query, Some(&embedder), None).unwrap();
    assert_eq!(hits.iter().map(|hit| hit.path.as_str()).collect::<Vec<_>>(), ["f2"]);
    assert!(index.set_metadata("f1", &Metadata::from([("n".into(), Value::Integer(2))])).unwrap());
    let documents = index.documents(&Page { limit: 10, prefix: Some("f1".into()), ..Page::default() }).unwrap();
    assert!(documents.len() == 2 && documents.iter().all(|one| one.metadata["n"] == Value::Integer(2)));
    index.put(file("f1", "a.txt", &["elephants"]), &embedder, &cancel).unwrap();
    assert_eq!((found(&index, &embedder, "fast").len(), found(&index, &embedder, "elephants").len()), (0, 1));
    assert_eq!((index.status().unwrap().files, index.remove(&["f1", "f3"]).unwrap()), (2, 1));
    assert!(index.put(file("", "a", &["a"]), &embedder, &cancel).is_err());
    // A file without text is there, and has no chunks.
    assert_eq!(index.put(file("f4", "empty.txt", &[""]), &embedder, &cancel).unwrap().chunks, 0);
}

#[test]
fn a_cancelled_file_leaves_nothing_to_be_found_and_goes_on_where_it_was() {
    let corpus = Corpus::new(&[]);
    let (index, cancel) = (corpus.open(), AtomicBool::new(false));
    // More chunks than are stored together.
    let texts: Vec<String> = (0..2_500).map(|i| random_text(i, 10)).collect();
    let texts: Vec<&str> = texts.iter().map(String::as_str).collect();
    let embedder = Fake::dense().slow(Duration::from_millis(2));
    std::thread::scope(|scope| {
        scope.spawn(|| {
            sconce_testkit::wait_until("some are stored", || embedder.embedded.load(Ordering::Relaxed) > 1_100);
            // Another thread can write meanwhile.
            assert_eq!(index.remove(&["none"]).unwrap(), 0);
            cancel.store(true, Ordering::Relaxed);
        });
        let result = index.put(file("f", "a.csv", &texts), &embedder, &cancel);
        assert!(matches!(result, Err(Error::Cancelled)), "{result:?}");
    });
    assert_eq!(index.status().unwrap().chunks, 0);
    let (again, go_on) = (Fake::dense(), AtomicBool::new(false));
    assert_eq!(index.put(file("f", "a.csv", &texts), &again, &go_on).unwrap().chunks, 2_500);
    assert!(again.embedded.load(Ordering::Relaxed) < 1_500, "what was stored is not embedded again");
}

#[test]
fn another_model_is_refused() {
    let corpus = Corpus::new(&[]);
    let (index, cancel) = (corpus.open(), AtomicBool::new(false));
    index.put(file("a", "a", &["a"]), &Fake::dense(), &cancel).unwrap();
    let other = Fake::dense().revision("2");
    assert!(matches!(index.put(file("b", "b", &["b"]), &other, &cancel), Err(Error::Model(_))));
}
