//! `--shards`: several processes on one folder, killed, stopped and repeated, give what one
//! undisturbed process gives.

#[allow(dead_code, reason = "other tests use the rest")]
mod common;
#[path = "common/golden.rs"]
#[allow(dead_code, reason = "other tests use the rest")]
mod golden;
#[path = "shards/inputs.rs"]
mod inputs;

use common::{err, out, parse, sconce};
use golden::{Model, list, text};
use parquet::file::reader::SerializedFileReader;
use parquet::record::{Field, Row};
use sconce_testkit::{Rng, wait_for_within, wait_until};
use serde_json::{Value, json};
use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::Duration;
use tempfile::TempDir;

/// A folder with inputs and outputs, and a small model.
struct World {
    model: Model,
    dir: TempDir,
}

impl World {
    fn new() -> World {
        World { model: Model::new("st-cls-dense"), dir: tempfile::tempdir().unwrap() }
    }

    fn path(&self, name: &str) -> String {
        self.dir.path().join(name).to_str().unwrap().into()
    }

    fn write(&self, name: &str, content: impl AsRef<[u8]>) -> String {
        let path = self.path(name);
        std::fs::write(&path, content).unwrap();
        path
    }

    /// Arguments of `sconce embed --shards`.
    fn embed<'a>(&'a self, to: &'a str, rest: &[&'a str]) -> Vec<&'a str> {
        [&["embed", "-m", self.model.path(), "-d", "cpu", "--threads", "1", "--shards", to], rest].concat()
    }

    /// JSONL files with rows that have an `id` and a text.
    fn inputs(&self, files: usize, rows: usize) -> Vec<String> {
        let mut rng = Rng::new(7);
        let mut word = || ["food", "a man", "is", "eating", "the", "cat", "house"][rng.below(7)];
        let mut line = |id: usize| {
            let text: Vec<&str> = (0..1 + id % 9).map(|_| word()).collect();
            json!({"id": id, "text": text.join(" "), "other": null}).to_string() + "\n"
        };
        let mut file = |number: usize| {
            let content: String = (0..rows).map(|row| line(number * rows + row)).collect();
            self.write(&format!("in-{number:02}.jsonl"), content)
        };
        (0..files).map(&mut file).collect()
    }
}

/// Starts a process that is killed with its test.
struct Process(Child);

impl Drop for Process {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

fn spawn(args: &[&str], home: &Path) -> Process {
    let child = Command::new(env!("CARGO_BIN_EXE_sconce"))
        .args(args)
        .env_clear()
        .env("PATH", std::env::var_os("PATH").unwrap_or_default())
        .env("HOME", home)
        .env("HF_HUB_OFFLINE", "1")
        .stdin(Stdio::null())
        .stdout(Stdio::null())
        .stderr(Stdio::piped())
        .spawn()
        .unwrap();
    Process(child)
}

/// Files of a folder, by name, without those that another process removes meanwhile.
fn files(folder: &str) -> BTreeMap<String, Vec<u8>> {
    let read = |name: String| std::fs::read(Path::new(folder).join(&name)).ok().map(|content| (name, content));
    names(folder).into_iter().filter_map(read).collect()
}

fn names(folder: &str) -> Vec<String> {
    let Ok(entries) = std::fs::read_dir(folder) else { return Vec::new() };
    let mut names: Vec<String> = entries.flatten().map(|entry| entry.file_name().into_string().unwrap()).collect();
    names.sort();
    names
}

fn records(out: &str) -> Vec<Value> {
    files(&format!("{out}/done")).values().map(|content| parse(std::str::from_utf8(content).unwrap())).collect()
}

/// All rows of the outputs, in the order of the shards.
fn rows(out: &str) -> Vec<Row> {
    let read = |name: String| {
        let file = std::fs::File::open(Path::new(out).join("data").join(name)).unwrap();
        let reader = SerializedFileReader::new(file).unwrap();
        reader.into_iter().map(Result::unwrap).collect::<Vec<Row>>()
    };
    names(&format!("{out}/data")).into_iter().flat_map(read).collect()
}

fn column<'a>(row: &'a Row, name: &str) -> &'a Field {
    row.get_column_iter().find(|(n, _)| *n == name).unwrap_or_else(|| panic!("no {name} in {row}")).1
}

fn long(row: &Row, name: &str) -> i64 {
    if let Field::Long(n) = column(row, name) { *n } else { panic!("{name} in {row}") }
}

fn status(out_folder: &str) -> Value {
    parse(&out(&["shards", "status", out_folder, "--json"], b""))
}

#[test]
fn shards_give_what_one_file_gives() {
    let world = World::new();
    let inputs = world.inputs(2, 25);
    let (to, plain) = (world.path("out"), world.path("plain.parquet"));
    let rest = ["--shard-rows", "10", "--keep", "id", &inputs[0], &inputs[1]];
    out(&world.embed(&to, &rest), b"");
    let embed =
        ["embed", "-q", "-m", world.model.path(), "-d", "cpu", "-o", &plain, "-f", &inputs[0], "-f", &inputs[1]];
    out(&embed, b"");
    assert_eq!(
        names(&format!("{to}/data")),
        ["00000-in-00", "00001-in-00", "00002-in-00", "00003-in-01", "00004-in-01", "00005-in-01"]
            .map(|name| format!("{name}.parquet"))
    );
    let want: Vec<Row> = SerializedFileReader::new(std::fs::File::open(&plain).unwrap())
        .unwrap()
        .into_iter()
        .map(Result::unwrap)
        .collect();
    let got = rows(&to);
    assert_eq!((got.len(), want.len()), (50, 50));
    for (i, (got, want)) in got.iter().zip(&want).enumerate() {
        for name in ["id", "embedding", "tokens", "truncated"] {
            assert_eq!(column(got, name), column(want, name), "{name}");
        }
        assert_eq!((long(got, "id"), long(got, "row")), (i as i64, (i % 25) as i64 + 1));
        assert_eq!(got.len(), 5, "only the columns that were kept: {got}");
    }
    let status = status(&to);
    assert_eq!((&status["shards"], &status["done"], &status["free"]), (&json!(6), &json!(6), &json!(0)));
    assert_eq!((&status["rows"], &status["rows_done"], &status["bad_rows"]), (&json!(50), &json!(50), &json!(0)));
    assert_eq!(status["model"]["dtype"], "f32");
    assert!(names(&format!("{to}/leases")).is_empty() && names(&format!("{to}/tmp")).is_empty());
    let table = out(&["shards", "status", &to], b"");
    assert!(table.contains("shards: 6 of 6 done, 0 in work, 0 free"), "{table}");
    // Again: nothing is left to do, and nothing changes.
    let before = files(&format!("{to}/data"));
    out(&world.embed(&to, &rest), b"");
    assert!(before == files(&format!("{to}/data")));
    // A folder, without columns to keep.
    let (folder, other) = (world.path("folder"), world.path("other"));
    std::fs::create_dir(&folder).unwrap();
    for path in &inputs {
        std::fs::copy(path, format!("{folder}/{}", &path[path.len() - 11..])).unwrap();
    }
    out(&world.embed(&other, &[&folder]), b"");
    assert_eq!(rows(&other).len(), 50);
    assert_eq!(names(&format!("{other}/data")).len(), 2);
}

#[test]
fn killed_processes_lose_a_shard_each_at_most() {
    let world = World::new();
    let inputs = world.inputs(12, 4000);
    let inputs: Vec<&str> = inputs.iter().map(String::as_str).collect();
    let rest = [&["--lease", "1", "--keep", "id"], &inputs[..]].concat();
    let (alone, to) = (world.path("alone"), world.path("together"));
    out(&world.embed(&alone, &rest), b"");

    let args = world.embed(&to, &rest);
    let home = tempfile::tempdir().unwrap();
    let mut processes: Vec<Process> = (0..3).map(|_| spawn(&args, home.path())).collect();
    let (mut rng, mut kills) = (Rng::new(3), 0);
    let done = || names(&format!("{to}/done")).len();
    while kills < 5 && done() < 12 {
        // While somebody works, some milliseconds into it.
        wait_until("a lease, or the end", || !names(&format!("{to}/leases")).is_empty() || done() == 12);
        std::thread::sleep(Duration::from_millis(rng.below(150) as u64));
        if done() == 12 {
            break;
        }
        let victim = rng.below(3);
        processes[victim] = spawn(&args, home.path());
        kills += 1;
    }
    for process in &mut processes {
        let code = wait_for_within(Duration::from_secs(120), "the end of a process", || {
            process.0.try_wait().unwrap().ok_or("it runs")
        });
        assert!(code.success(), "{code}");
    }
    assert!(kills > 0, "nothing was killed: the shards are too small for this machine");
    assert!(files(&format!("{alone}/data")) == files(&format!("{to}/data")), "other bytes than undisturbed");
    let ids: Vec<i64> = rows(&to).iter().map(|row| long(row, "id")).collect();
    assert_eq!(ids, (0..48_000).collect::<Vec<i64>>());
    let attempts: u64 = records(&to).iter().map(|record| record["attempts"].as_u64().unwrap()).sum();
    assert!(attempts <= 12 + kills, "{attempts} attempts at 12 shards with {kills} kills");
    assert!(names(&format!("{to}/leases")).is_empty() && names(&format!("{to}/refused")).is_empty());
    assert!(names(&format!("{to}/tmp")).is_empty(), "leftovers are removed");
}

#[test]
fn leftovers_are_repaired() {
    let world = World::new();
    let inputs = world.inputs(4, 20);
    let inputs: Vec<&str> = inputs.iter().map(String::as_str).collect();
    let rest = [&["--lease", "1"], &inputs[..]].concat();
    let to = world.path("out");
    out(&world.embed(&to, &rest), b"");
    let whole = files(&format!("{to}/data"));
    let data = |shard: usize| format!("{to}/data/{shard:05}-in-{shard:02}.parquet");
    let done = |shard: usize| format!("{to}/done/{shard:05}.json");
    // An output that a full disk cut; one without a record; a shard that its holder left, with what
    // it had written so far.
    let cut = &whole["00000-in-00.parquet"];
    std::fs::write(data(0), &cut[..cut.len() / 2]).unwrap();
    std::fs::remove_file(done(1)).unwrap();
    std::fs::remove_file(data(2)).unwrap();
    std::fs::remove_file(done(2)).unwrap();
    let holder = json!({"id": "0123", "host": "gone", "pid": 1});
    let lease = json!({"holder": holder, "heartbeat": 5, "attempts": 1, "released": false, "rows": 3, "rate": 1.5});
    std::fs::create_dir_all(format!("{to}/leases")).unwrap();
    std::fs::write(format!("{to}/leases/00002.g1.json"), lease.to_string()).unwrap();
    std::fs::write(format!("{to}/tmp/00002.g1.0123.parquet"), "PAR1 half").unwrap();
    std::fs::remove_file(done(3)).unwrap();
    std::fs::write(data(3), "PAR1").unwrap();
    let seen = status(&to);
    assert_eq!((&seen["in_work"][0]["holder"]["host"], &seen["in_work"][0]["rows_done"]), (&json!("gone"), &json!(3)));
    out(&world.embed(&to, &rest), b"");
    assert!(whole == files(&format!("{to}/data")));
    assert_eq!(records(&to).len(), 4);
    assert_eq!(parse(&std::fs::read_to_string(done(2)).unwrap())["generation"], 2);
    assert!(names(&format!("{to}/tmp")).is_empty() && names(&format!("{to}/leases")).is_empty());
}

#[test]
fn every_task_works_on_shards() {
    let world = World::new();
    let inputs = world.inputs(2, 7);
    let inputs: Vec<&str> = inputs.iter().map(String::as_str).collect();
    for (golden, args, result) in [
        ("task-classify", &["classify"][..], "labels"),
        ("task-tag", &["tag"], "entities"),
        ("task-sparse", &["embed", "--sparse"], "embedding"),
        ("task-colbert", &["embed", "--multi"], "embedding"),
        ("st-cls-dense", &["embed", "--precision", "ubinary"], "embedding"),
    ] {
        let (model, name) = (Model::new(golden), format!("{golden}-{}", args.len()));
        let (to, plain) = (world.path(&name), world.path(&format!("{name}.parquet")));
        let base = [args, &["-q", "-m", model.path(), "-d", "cpu"]].concat();
        out(&[&base[..], &["--shards", &to, "--shard-rows", "4", "--keep", "id"], &inputs[..]].concat(), b"");
        out(&[&base[..], &["-f", inputs[0], "-f", inputs[1], "-o", &plain]].concat(), b"");
        let file = std::fs::File::open(&plain).unwrap();
        let want: Vec<Row> = SerializedFileReader::new(file).unwrap().into_iter().map(Result::unwrap).collect();
        let got = rows(&to);
        assert_eq!((got.len(), want.len()), (14, 14), "{golden}");
        for (got, want) in got.iter().zip(&want) {
            assert_eq!((column(got, result), long(got, "id")), (column(want, result), long(want, "id")), "{golden}");
        }
    }

    let (model, to) = (Model::new("task-rerank"), world.path("rerank"));
    let base = ["rerank", "-q", "-m", model.path(), "-d", "cpu", "--query", "cat"];
    out(&[&base[..], &["--shards", &to], &inputs[..]].concat(), b"");
    let ranking = parse(&out(&[&base[..], &["--json", "-f", inputs[0], "-f", inputs[1]]].concat(), b""));
    let scores: Vec<f32> = rows(&to)
        .iter()
        .map(|row| if let Field::Float(score) = column(row, "score") { *score } else { panic!("{row}") })
        .collect();
    for ranked in list(&ranking["results"]) {
        assert_eq!(scores[ranked["index"].as_u64().unwrap() as usize], ranked["score"].as_f64().unwrap() as f32);
    }
}

#[test]
fn generate_works_on_shards_and_repeats_its_random_answers() {
    let world = World::new();
    let model = sconce_testkit::materialize_llama(128);
    let prompts = "{\"prompt\": \"the cat\", \"id\": 7}\n{\"prompt\": 3}\n{\"text\": \"a, b\", \"id\": 8}\n\
        {\"prompt\": \"the dog\", \"id\": 9, \"max_tokens\": 2}\n";
    let input = world.write("prompts.jsonl", prompts);
    let generate = |to: &str| {
        let args = ["generate", "-q", "-m", model.path().to_str().unwrap(), "-d", "cpu", "--max-tokens", "4"];
        let rest = ["--temperature", "1", "--shards", to, "--keep", "id", "--shard-rows", "2", &input];
        out(&[&args[..], &rest].concat(), b"");
        files(&format!("{to}/data"))
    };
    let (first, second) = (world.path("first"), world.path("second"));
    assert!(generate(&first) == generate(&second), "random answers are repeatable");
    let rows = rows(&first);
    assert_eq!(rows.iter().map(|row| long(row, "id")).collect::<Vec<_>>(), [7, 8, 9]);
    assert_eq!(rows.iter().map(|row| long(row, "row")).collect::<Vec<_>>(), [1, 3, 4]);
    let bad = files(&format!("{first}/bad"));
    assert_eq!(bad.len(), 1);
    let bad = String::from_utf8(bad.into_values().next().unwrap()).unwrap();
    assert!(bad.starts_with("{\"row\":2,") && bad.contains("`prompt` is 3"), "{bad}");
}

/// Sends a signal by name.
#[cfg(unix)]
fn signal(process: &Process, name: &str) {
    let status = Command::new("kill").args([&format!("-{name}"), &process.0.id().to_string()]).status().unwrap();
    assert!(status.success());
}

/// Starts a process, stops it by a signal while it has a lease, and checks that it gives it back.
#[cfg(unix)]
fn stop(args: &[&str], to: &str, name: &str) {
    use std::io::Read;
    let home = tempfile::tempdir().unwrap();
    let mut process = spawn(args, home.path());
    let leases = format!("{to}/leases");
    wait_until("a lease", || !names(&leases).is_empty());
    signal(&process, name);
    let code = wait_for_within(Duration::from_secs(60), "the end", || process.0.try_wait().unwrap().ok_or("it runs"));
    let mut messages = String::new();
    process.0.stderr.take().unwrap().read_to_string(&mut messages).unwrap();
    assert_eq!(code.code(), Some(130), "{messages}");
    assert!(messages.contains("run the same command again to go on"), "{messages}");
    let leases = files(&leases);
    let is_released = |lease: &Vec<u8>| parse(std::str::from_utf8(lease).unwrap())["released"] == true;
    assert!(leases.values().all(is_released), "{messages}");
    assert_eq!(leases.is_empty(), name == "INT", "after Ctrl-C the shard is done");
}

#[cfg(unix)]
#[test]
fn stopped_process_gives_its_shard_back() {
    let world = World::new();
    let inputs = world.inputs(1, 30_000);
    for name in ["INT", "TERM"] {
        let to = world.path(name);
        let args = world.embed(&to, &["--shard-rows", "10000", &inputs[0]]);
        stop(&args, &to, name);
        let done = names(&format!("{to}/done")).len();
        assert!(done < 3 && (done > 0 || name == "TERM"), "{done}");
        // A released shard is free at once, though the lease time is a minute.
        out(&args, b"");
        assert_eq!(rows(&to).len(), 30_000);
    }
}

#[cfg(unix)]
#[test]
fn stopped_process_ends_its_answers() {
    let (world, model) = (World::new(), sconce_testkit::materialize_llama(128));
    let prompts = (0..20_000).map(|i| json!({"prompt": format!("the cat {i}")}).to_string() + "\n");
    let (input, to) = (world.write("prompts.jsonl", prompts.collect::<String>()), world.path("out"));
    let args = ["generate", "-m", model.path().to_str().unwrap(), "-d", "cpu", "--max-tokens", "64", "--ignore-eos"];
    stop(&[&args[..], &["--shards", &to, "--shard-rows", "20000", &input]].concat(), &to, "TERM");
    assert!(names(&format!("{to}/done")).is_empty());
}

#[test]
fn status_watches_heartbeats() {
    let world = World::new();
    let inputs = world.inputs(1, 20_000);
    let (to, home) = (world.path("out"), tempfile::tempdir().unwrap());
    let args = world.embed(&to, &["--lease", "1", &inputs[0]]);
    let _process = spawn(&args, home.path());
    let leases: PathBuf = Path::new(&to).join("leases");
    wait_until("a lease", || leases.exists() && !names(leases.to_str().unwrap()).is_empty());
    let seen = parse(&out(&["shards", "status", &to, "--json"], b""));
    // A fast machine is done by now.
    if let Some(shard) = list(&seen["in_work"]).first() {
        assert!(shard["unchanged_seconds"].as_f64().unwrap() < 1.0, "{shard}");
        assert_eq!((&shard["generation"], &shard["rows"]), (&json!(1), &json!(20_000)));
    }
    assert_eq!(seen["shards"], 1);
}
