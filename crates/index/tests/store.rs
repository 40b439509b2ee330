//! The database's file: foreign ones, the one writer, documents, and hostile names and values.

mod common;

use std::collections::BTreeSet;

use common::{Corpus, Fake, run, search};
use sconce_index::{Error, Filter, Index, Kind, Layout, Metadata, Mode, NewDocument, OpenOptions, Page, Query, Value};

const CREATE: OpenOptions = OpenOptions { create: true, read_only: false };

fn new(key: &str, text: &str) -> NewDocument {
    NewDocument {
        key: key.into(),
        title: None,
        kind: Kind::Text,
        text: text.into(),
        metadata: Metadata::new(),
        layout: Layout::default(),
    }
}

fn error(path: &std::path::Path, options: &OpenOptions) -> String {
    match Index::open(path, options) {
        Err(error @ Error::Database { .. }) => error.to_string(),
        Err(error) => panic!("{error:?}"),
        Ok(_) => panic!("{} opens", path.display()),
    }
}

#[test]
fn foreign_files_are_refused_and_stay_as_they_are() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("file");
    let no_create = OpenOptions::default();
    assert!(error(&path, &no_create).contains("there is no index"));
    assert!(error(&path, &OpenOptions { create: true, read_only: true }).contains("there is no index"));
    assert!(error(dir.path(), &CREATE).contains("is a folder"));
    for options in [CREATE, no_create] {
        let text = "a text that is no database, and longer than the header of one".repeat(10);
        std::fs::write(&path, &text).unwrap();
        assert!(error(&path, &options).contains("a file of another kind"), "{}", error(&path, &options));
        assert_eq!(std::fs::read_to_string(&path).unwrap(), text);
        std::fs::remove_file(&path).unwrap();
        let other = rusqlite::Connection::open(&path).unwrap();
        other.execute_batch("CREATE TABLE files (a); INSERT INTO files VALUES (1)").unwrap();
        drop(other);
        let before = std::fs::read(&path).unwrap();
        assert!(error(&path, &options).contains("another program"));
        assert_eq!(std::fs::read(&path).unwrap(), before);
        std::fs::remove_file(&path).unwrap();
    }
}

#[test]
fn an_empty_file_becomes_an_index_and_other_versions_are_refused() {
    let corpus = Corpus::new(&[("a.txt", "zebras run")]);
    std::fs::write(corpus.database(), "").unwrap();
    assert!(error(&corpus.database(), &OpenOptions::default()).contains("is empty"));
    corpus.index(&Fake::dense());
    let set = |version: i32| {
        let connection = rusqlite::Connection::open(corpus.database()).unwrap();
        connection.pragma_update(None, "user_version", version).unwrap();
    };
    set(7);
    assert!(error(&corpus.database(), &CREATE).contains("newer version"));
    set(0);
    assert!(error(&corpus.database(), &CREATE).contains("old format"));
    set(1);
    assert_eq!(corpus.open().status().unwrap().files, 1);
}

#[test]
fn one_writer_and_readers_that_do_not_write() {
    let corpus = Corpus::new(&[("a.txt", "zebras run")]);
    let embedder = Fake::dense();
    corpus.index(&embedder);
    let lock = std::fs::File::options().write(true).open(corpus.dir.path().join("test.sconce.writer")).unwrap();
    lock.lock().unwrap();
    let index = corpus.open();
    let message = run(&index, &corpus.update(), &embedder).unwrap_err().to_string();
    assert!(message.contains("is writing to this index"), "{message}");
    assert!(cfg!(windows) || message.contains(&format!("process {}", std::process::id())), "{message}");
    assert_eq!(search(&index, Mode::Hybrid, "zebras", &embedder).len(), 1);
    lock.unlock().unwrap();
    assert_eq!(run(&index, &corpus.update(), &embedder).unwrap().unchanged, 1);
    let reader = Index::open(&corpus.database(), &OpenOptions { create: false, read_only: true }).unwrap();
    assert_eq!(search(&reader, Mode::Hybrid, "zebras", &embedder).len(), 1);
    assert!(matches!(reader.remove(&["x"]), Err(Error::Database { .. })));
    assert!(matches!(run(&reader, &corpus.update(), &embedder), Err(Error::Database { .. })));
}

#[test]
fn documents_are_added_replaced_listed_and_removed() {
    let corpus = Corpus::new(&[]);
    let (index, embedder) = (corpus.open(), Fake::dense());
    let mut titled = new("a", "zebras run");
    titled.title = Some("Animals".into());
    titled.metadata.insert("year".into(), Value::Integer(2020));
    index.add(&[titled, new("b", "lions sleep"), new("empty", " ")], &embedder).unwrap();
    let listed = index.documents(&Page { limit: 10, ..Page::default() }).unwrap();
    assert_eq!(listed.iter().map(|document| document.path.as_str()).collect::<Vec<_>>(), ["a", "b", "empty"]);
    assert_eq!((listed[0].title.as_deref(), listed[0].chunks, listed[0].bytes), (Some("Animals"), 1, 10));
    assert_eq!(listed[0].metadata["year"], Value::Integer(2020));
    let second = index.documents(&Page { after: Some(listed[0].id), limit: 1, prefix: None }).unwrap();
    assert_eq!(second, listed[1..2]);
    let prefix = index.documents(&Page { after: None, limit: 9, prefix: Some("emp".into()) }).unwrap();
    assert_eq!(prefix, listed[2..]);
    assert_eq!(index.text(listed[1].id).unwrap().as_deref(), Some("lions sleep"));
    assert_eq!(index.document("b").unwrap().as_ref(), Some(&listed[1]));
    assert_eq!(index.document("c").unwrap(), None);
    // The title is part of the full text.
    assert_eq!(search(&index, Mode::Bm25, "animals", &embedder).len(), 1);
    let old = search(&index, Mode::Dense, "zebras", &embedder)[0].chunk;
    index.add(&[new("a", "penguins swim")], &embedder).unwrap();
    assert!(index.passage(old, 1, 1).unwrap().is_none());
    assert_eq!(search(&index, Mode::Bm25, "zebras", &embedder).len(), 0);
    assert_eq!(index.status().unwrap().documents, 3);
    assert_eq!(index.remove(&["a", "nothing", "empty"]).unwrap(), 2);
    assert_eq!(search(&index, Mode::Dense, "penguins", &embedder).len(), 1);
    assert!(index.add(&[new("", "text")], &embedder).is_err());
}

#[test]
fn metadata_can_be_replaced_without_embedding() {
    let corpus = Corpus::new(&[]);
    let (index, embedder) = (corpus.open(), Fake::dense());
    index.add(&[new("a", "zebras run"), new("b", "lions sleep")], &embedder).unwrap();
    let found = |filter: &str| {
        let query = Query { filter: Some(Filter::parse(filter).unwrap()), ..Query::new("zebras lions") };
        let hits = index.search(&query, Some(&embedder), None).unwrap();
        hits.iter().map(|hit| hit.path.clone()).collect::<BTreeSet<_>>()
    };
    assert!(found("color=red").is_empty());
    let red = Metadata::from([("color".into(), Value::Text("red".into()))]);
    assert!(index.set_metadata("b", &red).unwrap());
    assert!(!index.set_metadata("c", &red).unwrap());
    assert_eq!(found("color=red"), BTreeSet::from(["b".to_owned()]));
    assert_eq!(found("color!=red"), BTreeSet::from(["a".to_owned()]));
    assert_eq!(search(&index, Mode::Bm25, "lions", &embedder).len(), 1);
    assert_eq!(search(&index, Mode::Dense, "lions sleep", &embedder)[0].metadata, red);
}

#[test]
fn a_passage_is_read_with_its_neighbours() {
    let corpus = Corpus::new(&[("a.txt", &common::random_text(1, 400))]);
    let embedder = Fake::dense();
    corpus.index(&embedder);
    let index = corpus.open();
    let document = index.document(corpus.path("a.txt").to_str().unwrap()).unwrap().unwrap();
    let text = index.text(document.id).unwrap().unwrap();
    let hit = &search(&index, Mode::Bm25, "w1 w2 w3 w4 w5 w6", &embedder)[0];
    assert_eq!(hit.text, text[hit.range.clone()]);
    let alone = index.passage(hit.chunk, 0, 0).unwrap().unwrap();
    assert_eq!((&alone.text, &alone.range, &alone.passage), (&hit.text, &hit.range, &hit.range));
    let wide = index.passage(hit.chunk, 1, 1).unwrap().unwrap();
    assert!(wide.range.start <= hit.range.start && wide.range.end >= hit.range.end && wide.text.len() > hit.text.len());
    assert_eq!(wide.text, text[wide.range.clone()]);
    let all = index.passage(hit.chunk, usize::MAX, usize::MAX).unwrap().unwrap();
    assert_eq!(all.text.trim(), text.trim());
    assert!(index.passage(-1, 0, 0).unwrap().is_none() && index.passage(i64::MAX, 0, 0).unwrap().is_none());
}

#[test]
fn sql_in_names_values_and_texts_is_only_text() {
    let hostile = ["'; DROP TABLE chunks; --", "\" OR 1=1 --", "%_\\", "a\0b", "NULL", "]]>", "\u{202e}x"];
    let corpus = Corpus::new(&[]);
    let (index, embedder) = (corpus.open(), Fake::dense());
    for text in hostile {
        let mut document = new(text, &format!("zebras {text} run"));
        document.title = Some(text.into());
        document.metadata.insert(text.into(), Value::Text(text.into()));
        index.add(&[document], &embedder).unwrap();
    }
    for text in hostile {
        assert_eq!(index.document(text).unwrap().unwrap().title.as_deref(), Some(text));
        let key = sconce_index::Compare { key: text.into(), test: sconce_index::Test::Eq(Value::Text(text.into())) };
        for mode in [Mode::Dense, Mode::Bm25, Mode::Hybrid] {
            let filter = Some(Filter::Compare(key.clone()));
            let query = Query { mode, filter, ..Query::new(format!("zebras {text}")) };
            let hits = index.search(&query, Some(&embedder), None).unwrap();
            assert_eq!(hits.iter().map(|hit| hit.path.as_str()).collect::<Vec<_>>(), [text], "{mode:?}");
        }
        let prefix = Page { after: None, limit: 10, prefix: Some(text.into()) };
        assert_eq!(index.documents(&prefix).unwrap().len(), 1, "{text:?}");
        assert_eq!(index.remove(&[text]).unwrap(), 1);
    }
    assert_eq!(index.status().unwrap().chunks, 0);
}

/// A database that comes with a folder may hold anything that SQLite allows.
#[test]
fn planted_triggers_views_and_columns_are_refused() {
    for planted in [
        "CREATE TRIGGER t AFTER INSERT ON files BEGIN DELETE FROM chunks; END",
        "CREATE VIEW v AS SELECT 1",
        "CREATE INDEX i ON files (lower(path))",
        "ALTER TABLE documents ADD COLUMN more TEXT GENERATED ALWAYS AS (upper(title))",
        "DROP TABLE meta; CREATE VIEW meta AS SELECT 'model' AS key, '{}' AS value",
        "DROP TABLE dense",
    ] {
        let corpus = Corpus::new(&[("a.txt", "zebras run")]);
        corpus.index(&Fake::dense());
        rusqlite::Connection::open(corpus.database()).unwrap().execute_batch(planted).unwrap();
        for options in [CREATE, OpenOptions::default()] {
            let message = error(&corpus.database(), &options);
            assert!(message.contains("does not have the tables of an index"), "{planted}: {message}");
        }
    }
}

#[cfg(unix)]
#[test]
fn links_beside_the_database_are_not_followed() {
    for ending in ["writer", "codes"] {
        let corpus = Corpus::new(&[("a.txt", "zebras run")]);
        let target = corpus.dir.path().join("target");
        std::fs::write(&target, "precious").unwrap();
        std::os::unix::fs::symlink(&target, corpus.dir.path().join(format!("test.sconce.{ending}"))).unwrap();
        let message = run(&corpus.open(), &corpus.update(), &Fake::dense()).unwrap_err().to_string();
        assert!(message.contains("is a link"), "{message}");
        assert_eq!(std::fs::read_to_string(&target).unwrap(), "precious");
    }
}

#[cfg(unix)]
#[test]
fn an_index_is_private() {
    use std::os::unix::fs::PermissionsExt;
    let corpus = Corpus::new(&[("a.txt", "zebras run")]);
    corpus.index(&Fake::dense());
    let mode = std::fs::metadata(corpus.database()).unwrap().permissions().mode();
    assert_eq!(mode & 0o777, 0o600);
}
