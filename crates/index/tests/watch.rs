//! Watching: changes below the roots arrive once they come to rest, and those of the index do not.

mod common;

use std::sync::Mutex;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use common::{Corpus, Fake, names, run, search};
use sconce_index::{Index, Mode, OpenOptions, WatchOptions};
use sconce_testkit::wait_until;

#[test]
fn changes_reach_the_index() {
    let corpus = Corpus::new(&[("a.txt", "zebras run")]);
    // Inside of the root, so that its own changes would arrive.
    let database = corpus.path("index.sconce");
    let index = Index::open(&database, &OpenOptions { create: true, read_only: false }).unwrap();
    let embedder = Fake::dense();
    run(&index, &corpus.update(), &embedder).unwrap();
    let (cancel, calls) = (AtomicBool::new(false), Mutex::new(Vec::new()));
    std::thread::scope(|scope| {
        let watching = scope.spawn(|| {
            let options = WatchOptions { quiet: Duration::from_millis(100), longest: Duration::from_secs(5) };
            index.watch(&[corpus.root()], options, &cancel, &mut |paths| {
                calls.lock().unwrap().push(paths.to_vec());
                run(&index, &corpus.update(), &embedder).map(drop)
            })
        });
        // The watcher needs a moment to start: the change is made again until it is seen.
        let mut count = 0;
        wait_until("the new file in the index", || {
            count += 1;
            corpus.write("b.txt", &format!("lions sleep {count}"));
            std::thread::sleep(Duration::from_millis(300));
            names(&search(&index, Mode::Bm25, "lions", &embedder)) == ["b.txt"]
        });
        // The index's own changes do not call again for ever.
        wait_until("rest", || {
            let before = calls.lock().unwrap().len();
            std::thread::sleep(Duration::from_millis(700));
            calls.lock().unwrap().len() == before
        });
        std::fs::remove_file(corpus.path("b.txt")).unwrap();
        wait_until("the file's removal", || search(&index, Mode::Bm25, "lions", &embedder).is_empty());
        cancel.store(true, Ordering::Relaxed);
        watching.join().unwrap().unwrap();
    });
    let calls = calls.lock().unwrap();
    assert!(calls.iter().flatten().all(|path| !path.to_string_lossy().contains("index.sconce")), "{calls:?}");
}
