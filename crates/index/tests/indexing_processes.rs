//! Several processes: a writer that is killed at random moments, and readers beside a writer. The
//! processes are this program, started with the name of a role.

mod common;

use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::time::Duration;

use common::{Corpus, Fake, content, parser, random_text};
use sconce_index::{Control, Index, Mode, OpenOptions, Query, Tools, Update};
use sconce_testkit::{Rng, Suite, wait_until};

fn main() {
    let arguments: Vec<String> = std::env::args().collect();
    match arguments.iter().map(String::as_str).collect::<Vec<_>>()[..] {
        [_, "write", database, root] => write(Path::new(database), Path::new(root), Duration::from_millis(15)),
        // Holds the writer's lock until it is killed.
        [_, "hold", database, root] => write(Path::new(database), Path::new(root), Duration::from_secs(3600)),
        [_, "search", database] => search_until_whole(Path::new(database)),
        // `--ignored` runs the long one too.
        _ => Suite::new(vec![("cpu", true), ("long", std::env::var_os("SCONCE_LONG_TESTS").is_some())])
            .test("a_killed_run_loses_nothing_and_ends_the_same", || killed_runs(10))
            .on("long", "a_run_killed_200_times_ends_the_same", || killed_runs(200))
            .test("readers_in_other_processes_see_whole_files", readers_beside_a_writer)
            .test("a_second_process_cannot_write", a_second_process_cannot_write)
            .run(),
    }
}

fn start(arguments: &[&Path]) -> Child {
    let mut command = Command::new(std::env::current_exe().unwrap());
    command.args(arguments).stdout(Stdio::null()).spawn().unwrap()
}

/// The role of a writer: one run, slow enough to be killed in the middle. Each call of the embedder
/// takes `delay`.
fn write(database: &Path, root: &Path, delay: Duration) {
    let index = Index::open(database, &OpenOptions { create: true, read_only: false }).unwrap();
    let cancel = Default::default();
    let control = Control { progress: &mut |_| {}, cancel: &cancel };
    let embedder = Fake::dense().slow(delay);
    index.update(&Update::new(vec![root.into()]), &Tools { embedder: &embedder, parser: &parser() }, control).unwrap();
}

const FILES: usize = 120;

fn corpus() -> Corpus {
    let corpus = Corpus::random(FILES, 400);
    // One file is so large that its embeddings are stored before it is complete.
    corpus.write("large.txt", &random_text(99, 150_000));
    corpus
}

/// A change of the corpus between two runs.
fn change(corpus: &Corpus, rng: &mut Rng) {
    let number = rng.next_u64();
    let file = |folder: usize| format!("folder{folder}/file{}.txt", 7 * (number as usize % 16) + folder);
    match rng.below(3) {
        0 => corpus.write(&file(1), &random_text(number, 300)),
        1 => drop(std::fs::rename(corpus.path(&file(2)), corpus.path(&format!("renamed{number}.txt")))),
        _ => drop(std::fs::remove_file(corpus.path(&file(3)))),
    }
}

/// Kills runs until `count` were killed. Whenever one comes to its end, its index is compared with
/// that of an undisturbed run.
fn killed_runs(count: u64) {
    let corpus = corpus();
    let (database, root) = (corpus.database(), corpus.root());
    let mut rng = Rng::new(count);
    let (mut killed, mut compared, mut is_changed) = (0, 0, false);
    while killed < count {
        let mut child = start(&[Path::new("write"), &database, &root]);
        // Mostly while it writes; now and then while it opens the database.
        std::thread::sleep(Duration::from_millis(match rng.below(6) {
            0 => rng.below(20) as u64,
            1 => 200 + rng.below(900) as u64,
            _ => 20 + rng.below(250) as u64,
        }));
        let before = committed(&database);
        let _ = child.kill();
        let status = child.wait().unwrap();
        // A run that fails by itself has a code.
        assert!(cfg!(windows) || status.success() || status.code().is_none(), "{status}");
        if status.success() {
            compare(&corpus);
            compared += 1;
            is_changed = false;
            remove(&database);
            continue;
        }
        killed += 1;
        let after = committed(&database);
        assert!(is_changed || before.iter().all(|chunk| after.binary_search(chunk).is_ok()), "chunks are lost");
        if rng.below(3) == 0 {
            damage(&corpus, &mut rng);
        }
        if rng.below(4) == 0 {
            change(&corpus, &mut rng);
            is_changed = true;
        }
    }
    assert!(start(&[Path::new("write"), &database, &root]).wait().unwrap().success());
    compare(&corpus);
    println!("{killed} runs killed, {} compared", compared + 1);
}

/// Compares the index with that of an undisturbed run.
fn compare(corpus: &Corpus) {
    let (database, undisturbed) = (corpus.database(), corpus.dir.path().join("undisturbed.sconce"));
    assert!(start(&[Path::new("write"), &undisturbed, &corpus.root()]).wait().unwrap().success());
    assert!(content(&database) == content(&undisturbed), "the index differs from that of an undisturbed run");
    // Searches see the same, with codes and without.
    let embedder = Fake::dense();
    let [found, expected] = [&database, &undisturbed].map(|path| {
        let index = Index::open(path, &OpenOptions::default()).unwrap();
        assert_eq!(index.status().unwrap().damaged, Vec::<String>::new());
        let query = Query { mode: Mode::Dense, limit: 100, ..Query::new("w1 w2 w3") };
        let hits = index.search(&query, Some(&embedder), None).unwrap();
        let mut texts: Vec<(String, String)> = hits.into_iter().map(|hit| (hit.path, hit.text)).collect();
        texts.sort();
        texts
    });
    assert_eq!(found.len(), 100);
    assert!(found == expected, "searches differ");
    remove(&undisturbed);
}

/// Removes an index.
fn remove(database: &Path) {
    let name = database.file_name().unwrap().to_str().unwrap();
    for ending in ["", "-wal", "-shm", "-journal", ".writer"] {
        let _ = std::fs::remove_file(database.with_file_name(format!("{name}{ending}")));
    }
    let _ = std::fs::remove_dir_all(database.with_file_name(format!("{name}.codes")));
}

/// The ids of the chunks that are committed; none before the tables exist.
fn committed(database: &Path) -> Vec<i64> {
    let Ok(connection) = rusqlite::Connection::open_with_flags(database, rusqlite::OpenFlags::SQLITE_OPEN_READ_ONLY)
    else {
        return Vec::new();
    };
    connection.busy_timeout(Duration::from_secs(10)).unwrap();
    let Ok(mut find) = connection.prepare("SELECT id FROM chunks ORDER BY id") else { return Vec::new() };
    find.query_map([], |row| row.get(0)).unwrap().map(Result::unwrap).collect()
}

/// Tears a file of codes, if there is one.
fn damage(corpus: &Corpus, rng: &mut Rng) {
    let codes = corpus.dir.path().join("test.sconce.codes");
    for entry in std::fs::read_dir(codes).into_iter().flatten().flatten() {
        let path = entry.path();
        match rng.below(4) {
            0 => drop(std::fs::remove_file(path)),
            1 => {
                let bytes = std::fs::read(&path).unwrap();
                std::fs::remove_file(&path).unwrap();
                std::fs::write(&path, &bytes[..rng.below(bytes.len() + 1)]).unwrap();
            }
            _ => {}
        }
    }
}

/// The role of a reader: searches until all files are there. Ends with an error if a hit is wrong.
fn search_until_whole(database: &Path) {
    let embedder = Fake::dense();
    let index = Index::open(database, &OpenOptions::default()).unwrap();
    wait_until("the end of the run", || {
        let query = Query { limit: 50, ..Query::new("w1 w2 w3 w4") };
        let hits = match index.search(&query, Some(&embedder), None) {
            Ok(hits) => hits,
            Err(error) => panic!("{error}"),
        };
        for hit in &hits {
            let text = std::fs::read_to_string(&hit.path).unwrap();
            assert_eq!(hit.text, text[hit.range.clone()], "{}", hit.path);
            // A passage may be gone a moment later, but never another one.
            if let Some(passage) = index.passage(hit.chunk, 0, 0).unwrap() {
                assert_eq!(passage.text, hit.text);
            }
        }
        assert!(hits.is_sorted_by(|a, b| a.score >= b.score));
        index.status().unwrap().files == FILES as u64 + 1
    });
}

fn readers_beside_a_writer() {
    let corpus = corpus();
    let (database, root) = (corpus.database(), corpus.root());
    drop(corpus.open());
    let mut writer = start(&[Path::new("write"), &database, &root]);
    let mut readers: Vec<Child> = (0..2).map(|_| start(&[Path::new("search"), &database])).collect();
    // This process reads too, from several threads.
    std::thread::scope(|scope| {
        for _ in 0..3 {
            scope.spawn(|| search_until_whole(&database));
        }
    });
    assert!(writer.wait().unwrap().success());
    assert!(readers.iter_mut().all(|reader| reader.wait().unwrap().success()));
}

fn a_second_process_cannot_write() {
    let corpus = corpus();
    let mut writer = start(&[Path::new("hold"), &corpus.database(), &corpus.root()]);
    // Only reads: taking the lock here, even for a moment, could make the writer fail.
    let lock = corpus.database().with_file_name("test.sconce.writer");
    wait_until("the writer's lock", || match std::fs::read_to_string(&lock) {
        Ok(id) => id == format!("{}\n", writer.id()),
        // Windows refuses to read a locked file.
        Err(error) => cfg!(windows) && error.kind() != std::io::ErrorKind::NotFound,
    });
    let error = corpus.open().remove(&["nothing"]).unwrap_err().to_string();
    assert!(error.contains("is writing to this index"), "{error}");
    assert!(cfg!(windows) || error.contains(&format!("process {} ", writer.id())), "{error}");
    writer.kill().unwrap();
    writer.wait().unwrap();
    // The system has released the lock.
    assert_eq!(corpus.open().remove(&["nothing"]).unwrap(), 0);
}
