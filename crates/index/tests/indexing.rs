//! Indexing: what is embedded again and what is not, and that interrupted runs end where others do.

mod common;

use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, SystemTime};

use common::{Corpus, Fake, content, names, parser, random_text, run, search};
use sconce_index::{
    Control, EmbeddingKind, Error, Filter, Index, Mode, NewDocument, Phase, Query, Report, Tools, Update,
};

fn embedded(embedder: &Fake) -> u64 {
    embedder.embedded.swap(0, Ordering::Relaxed)
}

fn counts(report: &Report) -> (u64, u64, u64, u64) {
    (report.indexed, report.unchanged, report.renamed, report.removed)
}

/// Sets the time of change, so that a run looks at the file.
fn touch(corpus: &Corpus, name: &str, seconds: u64) {
    let file = std::fs::File::options().write(true).open(corpus.path(name)).unwrap();
    file.set_modified(SystemTime::UNIX_EPOCH + Duration::from_secs(1_700_000_000 + seconds)).unwrap();
}

#[test]
fn a_folder_becomes_searchable_and_a_second_run_does_nothing() {
    let corpus = Corpus::new(&[
        ("fruit.md", "# Fruit\n\nApples grow on trees.\n\n## Citrus\n\nLemons taste sour."),
        ("tools/hammer.txt", "A hammer drives nails into wood."),
        ("empty.txt", ""),
    ]);
    let embedder = Fake::dense();
    let report = corpus.index(&embedder);
    assert_eq!(counts(&report), (3, 0, 0, 0), "{report:?}");
    assert!(report.failed.is_empty() && report.skipped.is_empty(), "{report:?}");
    assert_eq!(embedded(&embedder), report.embedded);
    let index = corpus.open();
    for mode in [Mode::Dense, Mode::Bm25, Mode::Hybrid] {
        assert_eq!(names(&search(&index, mode, "hammer nails", &embedder))[0], "hammer.txt", "{mode:?}");
    }
    let hits = search(&index, Mode::Bm25, "lemons", &embedder);
    assert!(hits[0].place.is_some_and(|line| line <= 7), "{hits:?}");
    assert!(hits[0].heading.as_deref().is_some_and(|heading| heading.starts_with("Fruit")), "{hits:?}");
    let status = index.status().unwrap();
    assert_eq!((status.files, status.documents, status.failed), (3, 3, 0));
    assert_eq!(status.chunks, report.chunks);
    assert_eq!(status.model.unwrap().name, "fake");
    assert!(status.updated.is_some() && status.bytes > 0 && status.damaged.is_empty());
    let before = content(&corpus.database());
    let again = corpus.index(&embedder);
    assert_eq!((counts(&again), embedded(&embedder)), ((0, 3, 0, 0), 0));
    assert_eq!(content(&corpus.database()), before);
}

#[test]
fn only_what_changed_is_embedded_again() {
    let corpus = Corpus::new(&[("a.txt", &random_text(1, 600)), ("b.txt", &random_text(2, 600))]);
    let embedder = Fake::dense();
    let first = corpus.index(&embedder);
    assert!(first.chunks > 10, "{first:?}");
    embedded(&embedder);
    let text = format!("{}\n\nA new last paragraph about zebras.", random_text(1, 600));
    corpus.write("a.txt", &text);
    let second = corpus.index(&embedder);
    assert_eq!(counts(&second), (1, 1, 0, 0));
    assert!((1..=3).contains(&embedded(&embedder)), "{second:?}");
    assert_eq!(names(&search(&corpus.open(), Mode::Bm25, "zebras", &embedder)), ["a.txt"]);
    // Another time of change, and the same content.
    touch(&corpus, "b.txt", 5);
    assert_eq!(counts(&corpus.index(&embedder)), (0, 2, 0, 0));
    assert_eq!(embedded(&embedder), 0);
    // The same as if everything had been indexed at once.
    let other = Corpus::new(&[("a.txt", &text), ("b.txt", &random_text(2, 600))]);
    other.index(&Fake::dense());
    // The paths come first, and differ.
    let tails = |rows: Vec<String>| -> Vec<String> {
        let mut tails: Vec<String> =
            rows.iter().map(|row| row.split_once('|').map_or(row.clone(), |r| r.1.into())).collect();
        tails.sort();
        tails
    };
    assert!(tails(content(&corpus.database())) == tails(content(&other.database())));
}

#[test]
fn renamed_files_are_not_embedded_again() {
    let corpus = Corpus::new(&[("old/a.txt", "zebras run"), ("b.txt", "lions sleep")]);
    let embedder = Fake::dense();
    corpus.index(&embedder);
    let index = corpus.open();
    let old = search(&index, Mode::Dense, "zebras run", &embedder)[0].chunk;
    embedded(&embedder);
    std::fs::create_dir_all(corpus.path("new")).unwrap();
    std::fs::rename(corpus.path("old/a.txt"), corpus.path("new/z.txt")).unwrap();
    let report = corpus.index(&embedder);
    assert_eq!((counts(&report), embedded(&embedder)), ((0, 1, 1, 0), 0));
    let hits = search(&index, Mode::Dense, "zebras run", &embedder);
    assert!(hits[0].path.ends_with("z.txt") && hits.len() == 2, "{hits:?}");
    assert_ne!(hits[0].chunk, old, "ids are never used again");
    let filter = Some(Filter::parse("path:new/*").unwrap());
    let query = Query { mode: Mode::Dense, filter, ..Query::new("lions") };
    assert_eq!(names(&index.search(&query, Some(&embedder), None).unwrap()), ["z.txt"]);
    assert_eq!(names(&search(&index, Mode::Bm25, "zebras", &embedder)), ["z.txt"]);
    assert_eq!(index.status().unwrap().files, 2);
}

#[test]
fn vanished_files_are_removed_if_the_caller_says_so() {
    let corpus = Corpus::new(&[("a.txt", "zebras run"), ("b.txt", "lions sleep"), ("c/d.txt", "owls fly")]);
    let embedder = Fake::dense();
    corpus.index(&embedder);
    std::fs::remove_file(corpus.path("a.txt")).unwrap();
    std::fs::remove_dir_all(corpus.path("c")).unwrap();
    let index = corpus.open();
    let kept = Update { prune: false, ..corpus.update() };
    assert_eq!(counts(&run(&index, &kept, &embedder).unwrap()), (0, 1, 0, 0));
    assert_eq!(search(&index, Mode::Hybrid, "zebras", &embedder).len(), 3);
    assert_eq!(counts(&corpus.index(&embedder)), (0, 1, 0, 2));
    for mode in [Mode::Dense, Mode::Bm25, Mode::Hybrid] {
        assert_eq!(search(&index, mode, "zebras owls lions", &embedder).len(), 1, "{mode:?}");
    }
    // Files that other roots hold, and added documents, do not vanish.
    let new = NewDocument {
        key: "note".into(),
        title: None,
        kind: sconce_index::Kind::Text,
        text: "whales swim".into(),
        metadata: Default::default(),
        layout: Default::default(),
    };
    index.add(&[new], &embedder).unwrap();
    let other = tempfile::tempdir().unwrap();
    let report = run(&index, &Update::new(vec![other.path().into()]), &embedder).unwrap();
    assert_eq!(counts(&report), (0, 0, 0, 0));
    assert_eq!(index.status().unwrap().files, 2);
    assert!(run(&index, &Update::new(vec![corpus.path("c")]), &embedder).is_err(), "a root that is missing");
}

#[test]
fn what_cannot_be_read_is_reported_and_left_out() {
    let corpus = Corpus::new(&[("a.txt", "zebras run"), ("bad.txt", "this is poison"), (".env", "KEY=1")]);
    corpus.write("key.txt", "-----BEGIN PRIVATE KEY-----\nabc\n");
    std::fs::write(corpus.path("data.csv"), "a,b\n1,2\n").unwrap();
    let embedder = Fake::dense();
    let report = corpus.index(&embedder);
    assert_eq!(report.indexed, 1, "{report:?}");
    let failed: Vec<_> = report.failed.iter().map(|(path, _)| path.file_name().unwrap().to_str().unwrap()).collect();
    // The parser's program does not exist.
    assert_eq!(failed, ["bad.txt", "data.csv"]);
    assert!(report.failed[0].1.contains("poison"), "{report:?}");
    assert!(report.skipped.iter().any(|(path, _)| path.ends_with("key.txt")), "{report:?}");
    let index = corpus.open();
    assert_eq!(index.status().unwrap().failed, 2);
    let failures = index.failures(10).unwrap();
    assert!(failures[0].path.ends_with("bad.txt") && failures[0].reason.contains("poison"));
    // A failure is not tried again until the file changes, unless the system is at fault; then what
    // it had goes.
    let again: Vec<_> = corpus.index(&embedder).failed.into_iter().map(|(path, _)| path).collect();
    assert_eq!(again, [corpus.path("data.csv")]);
    std::fs::remove_file(corpus.path("data.csv")).unwrap();
    corpus.write("bad.txt", "this is sound");
    assert_eq!(counts(&corpus.index(&embedder)).0, 1);
    corpus.write("bad.txt", "this is poison again");
    assert_eq!(corpus.index(&embedder).failed.len(), 1);
    assert_eq!(index.status().unwrap().failed, 1);
    assert_eq!(search(&index, Mode::Bm25, "sound", &embedder).len(), 0);
}

#[test]
fn another_model_is_refused_until_the_index_is_rebuilt() {
    let corpus = Corpus::new(&[("a.txt", "zebras run")]);
    corpus.index(&Fake::dense());
    let index = corpus.open();
    for other in [Fake::dense().revision("2"), Fake::new(EmbeddingKind::Sparse)] {
        let error = run(&index, &corpus.update(), &other).unwrap_err();
        assert!(matches!(error, Error::Model(_)) && error.to_string().contains("--rebuild"), "{error}");
        let error = index.search(&Query::new("zebras"), Some(&other), None).unwrap_err();
        assert!(matches!(error, Error::Model(_)), "{error}");
    }
    let sparse = Fake::new(EmbeddingKind::Sparse);
    let rebuild = Update { rebuild: true, ..corpus.update() };
    assert_eq!(counts(&run(&index, &rebuild, &sparse).unwrap()), (1, 0, 0, 0));
    assert_eq!(names(&search(&index, Mode::Sparse, "zebras", &sparse)), ["a.txt"]);
    assert!(index.search(&Query { mode: Mode::Dense, ..Query::new("zebras") }, Some(&sparse), None).is_err());
}

#[test]
fn other_chunk_options_chunk_again() {
    let corpus = Corpus::new(&[("a.txt", &random_text(1, 500))]);
    let embedder = Fake::dense();
    let first = corpus.index(&embedder);
    let mut update = corpus.update();
    update.chunk.tokens = 20;
    let second = run(&corpus.open(), &update, &embedder).unwrap();
    assert_eq!(second.indexed, 1);
    assert!(second.chunks > first.chunks, "{first:?} {second:?}");
    let fresh = Corpus { dir: tempfile::tempdir().unwrap() };
    std::fs::create_dir_all(fresh.root()).unwrap();
    let index = fresh.open();
    run(&index, &update, &embedder).unwrap();
    assert_eq!(content(&corpus.database()), content(&fresh.database()));
}

#[test]
fn chunk_options_and_the_model_of_a_rebuild_are_remembered() {
    let corpus = Corpus::new(&[("a.txt", &random_text(1, 500))]);
    let index = corpus.open();
    assert_eq!(index.chunk_options().unwrap(), None);
    let mut update = corpus.update();
    update.chunk.tokens = 20;
    run(&index, &update, &Fake::dense()).unwrap();
    assert_eq!(index.chunk_options().unwrap().unwrap().tokens, 20);
    // A rebuild that ends at once leaves an index of the new model.
    let other = Fake::dense().revision("2").slow(Duration::from_millis(50));
    let cancel = AtomicBool::new(true);
    let control = Control { progress: &mut |_| {}, cancel: &cancel };
    let rebuild = Update { rebuild: true, ..corpus.update() };
    let ended = index.update(&rebuild, &Tools { embedder: &other, parser: &parser() }, control);
    assert!(matches!(ended, Err(Error::Cancelled)), "{ended:?}");
    assert_eq!(index.model().unwrap().unwrap().revision, "2");
}

#[test]
fn files_of_a_renamed_root_are_not_embedded_again() {
    let corpus = Corpus::new(&[("a.txt", "zebras run"), ("b/c.txt", "lions sleep")]);
    let embedder = Fake::dense();
    corpus.index(&embedder);
    embedded(&embedder);
    let other = corpus.dir.path().join("other");
    std::fs::rename(corpus.root(), &other).unwrap();
    let index = corpus.open();
    let report = run(&index, &Update::new(vec![other.clone()]), &embedder).unwrap();
    assert_eq!((counts(&report), embedded(&embedder)), ((0, 0, 2, 0), 0));
    assert_eq!(index.status().unwrap().roots, std::slice::from_ref(&other));
    let hits = search(&index, Mode::Hybrid, "lions", &embedder);
    assert!(hits.len() == 2 && hits.iter().all(|hit| hit.path.starts_with(other.to_str().unwrap())), "{hits:?}");
}

#[test]
fn files_belong_to_the_outermost_root_in_any_order() {
    let embedder = Fake::dense();
    for order in [["", "b"], ["b", ""]] {
        let corpus = Corpus::new(&[("a.txt", "zebras run"), ("b/c.txt", "lions sleep")]);
        let index = corpus.open();
        for root in order {
            run(&index, &Update::new(vec![corpus.root().join(root)]), &embedder).unwrap();
        }
        assert_eq!(index.status().unwrap().roots.len(), 1, "{order:?}");
        for mode in [Mode::Dense, Mode::Bm25] {
            let filter = Some(Filter::parse("path=b/c.txt").unwrap());
            let query = Query { mode, filter, ..Query::new("lions") };
            assert_eq!(names(&index.search(&query, Some(&embedder), None).unwrap()), ["c.txt"], "{order:?}");
        }
        assert_eq!(embedded(&embedder), 2, "{order:?}");
    }
}

#[cfg(unix)]
#[test]
fn the_files_of_the_index_are_not_indexed_by_way_of_a_link() {
    let corpus = Corpus::new(&[("a.txt", "zebras run")]);
    let link = corpus.dir.path().join("link");
    std::os::unix::fs::symlink(corpus.dir.path(), &link).unwrap();
    let create = sconce_index::OpenOptions { create: true, read_only: false };
    let index = Index::open(&corpus.path("index"), &create).unwrap();
    for _ in 0..2 {
        let report = run(&index, &Update::new(vec![link.join("root")]), &Fake::dense()).unwrap();
        assert_eq!(report.indexed + report.unchanged, 1, "{report:?}");
        assert!(report.skipped.is_empty() && report.failed.is_empty(), "{report:?}");
    }
}

#[test]
fn the_files_of_the_index_are_not_indexed() {
    let corpus = Corpus::new(&[("a.txt", "zebras run")]);
    let embedder = Fake::dense();
    let index =
        Index::open(&corpus.path("index"), &sconce_index::OpenOptions { create: true, read_only: false }).unwrap();
    for _ in 0..2 {
        let report = run(&index, &corpus.update(), &embedder).unwrap();
        assert_eq!(report.indexed + report.unchanged, 1, "{report:?}");
        assert!(report.skipped.is_empty() && report.failed.is_empty(), "{report:?}");
    }
}

/// Runs until `chunks` are embedded, then cancels.
fn cancelled(index: &Index, update: &Update, embedder: &Fake, chunks: u64) {
    let cancel = AtomicBool::new(false);
    let mut progress = |progress: &sconce_index::Progress| {
        if progress.phase == Phase::Embedding && progress.chunks >= chunks {
            cancel.store(true, Ordering::Relaxed);
        }
    };
    let control = Control { progress: &mut progress, cancel: &cancel };
    let result = index.update(update, &Tools { embedder, parser: &parser() }, control);
    assert!(matches!(result, Err(Error::Cancelled)), "{result:?}");
}

#[test]
fn a_cancelled_run_goes_on_where_it_was() {
    let corpus = Corpus::random(150, 300);
    let slow = || Fake::dense().slow(Duration::from_millis(120));
    let first = slow();
    cancelled(&corpus.open(), &corpus.update(), &first, 100);
    let done = corpus.open().status().unwrap().files;
    assert!(done < 150, "{done}");
    let second = Fake::dense();
    let report = corpus.index(&second);
    assert_eq!(report.indexed + report.unchanged, 150);
    assert_eq!(report.unchanged, done);
    let resumed = content(&corpus.database());
    let rebuild = Update { rebuild: true, ..corpus.update() };
    run(&corpus.open(), &rebuild, &Fake::dense()).unwrap();
    assert!(resumed == content(&corpus.database()), "the resumed index differs from an undisturbed one");
}

#[test]
fn a_large_file_need_not_be_embedded_again_after_a_cancelled_run() {
    let corpus = Corpus::new(&[("large.txt", &random_text(3, 200_000))]);
    let update = Update { prune: true, ..corpus.update() };
    let first = Fake::dense().slow(Duration::from_millis(60));
    cancelled(&corpus.open(), &update, &first, 1_200);
    assert_eq!(corpus.open().status().unwrap().files, 0, "a part of a file cannot be found");
    let second = Fake::dense();
    let report = corpus.index(&second);
    assert!(report.chunks > 3_000, "{report:?}");
    let (before, after) = (embedded(&first), embedded(&second));
    assert!(after + 1_000 <= report.chunks, "{before} + {after} of {}", report.chunks);
    let resumed = content(&corpus.database());
    let index = corpus.open();
    run(&index, &Update { rebuild: true, ..update }, &Fake::dense()).unwrap();
    assert!(resumed == content(&corpus.database()));
}
