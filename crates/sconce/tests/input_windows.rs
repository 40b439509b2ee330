//! A long file goes through `embed` in several concurrent windows, which must not be visible in the
//! output.

mod common;

use common::{err, numbers, out, parse, sconce};
use sconce_testkit::{Rng, materialize, worst};
use serde_json::{Value, json};
use std::path::{Path, PathBuf};

/// Texts per window of `embed`.
const WINDOW: usize = 512;

/// More windows than are open at once, and one that is not full.
const TEXTS: usize = 4 * WINDOW + 77;

/// Texts of a small call, so that windows begin in the middle of calls.
const FEW: usize = 149;

const WORDS: [&str; 16] = [
    "the", "cat", "naïve", "dog", "sat", "because", "Query", "world", "mattress", "years", "two", "should", "eating,",
    "nobody's", "1987", "über",
];

/// From empty to longer than the model's limit, short ones more often, unordered.
fn texts() -> Vec<String> {
    let mut rng = Rng::new(7);
    let mut text = |_| {
        let words = match rng.below(8) {
            0 => rng.below(60),
            1 => 1,
            _ => 2 + rng.below(9),
        };
        (0..words).map(|_| WORDS[rng.below(WORDS.len())]).collect::<Vec<_>>().join(" ")
    };
    (0..TEXTS).map(&mut text).collect()
}

fn as_lines(texts: &[String]) -> String {
    texts.iter().map(|text| format!("{text}\n")).collect()
}

/// One object per line, each with its number.
fn as_jsonl(texts: &[String]) -> String {
    texts.iter().enumerate().map(|(i, text)| json!({"id": i, "text": text}).to_string() + "\n").collect()
}

fn write(dir: &Path, name: &str, content: &[u8]) -> String {
    let path: PathBuf = dir.join(name);
    std::fs::write(&path, content).unwrap();
    path.to_str().unwrap().into()
}

/// Their results in small calls, each in its own process.
fn embed_in_small_calls(model: &str, texts: &[String]) -> Vec<Value> {
    let few = |few: &[String]| out(&["embed", "-q", "-m", model, "--format", "jsonl"], as_lines(few).as_bytes());
    texts.chunks(FEW).flat_map(|c| few(c).lines().map(parse).collect::<Vec<_>>()).collect()
}

#[test]
fn long_file_gives_same_vectors_as_small_calls() {
    let (model, dir) = (materialize("st-max"), tempfile::tempdir().unwrap());
    let (model, texts) = (model.path().to_str().unwrap(), texts());
    let want = embed_in_small_calls(model, &texts);
    assert_eq!(want.len(), TEXTS);
    let vectors: Vec<Vec<f32>> = want.iter().map(|answer| numbers(&answer["embedding"])).collect();
    // Otherwise rows in another order would look the same.
    let count_different =
        |apart: usize| (apart..TEXTS).filter(|i| worst(&vectors[*i], &vectors[i - apart]) > 1e-2).count();
    assert!([1, FEW, WINDOW, 2 * WINDOW].iter().all(|apart| count_different(*apart) > (TEXTS - apart) * 9 / 10));
    let cut = want.iter().filter(|answer| answer["truncated"] == true).count();
    assert!((20..TEXTS / 4).contains(&cut), "{cut} texts were truncated");

    let (plain, npy) = (write(dir.path(), "texts.txt", as_lines(&texts).as_bytes()), dir.path().join("x.npy"));
    out(&["embed", "-q", "-m", model, "-f", &plain, "-o", npy.to_str().unwrap()], b"");
    let bytes = std::fs::read(&npy).unwrap();
    let header = String::from_utf8_lossy(&bytes[..128]).into_owned();
    let (numbers_of, dimension) = (bytes[128..].as_chunks::<4>().0, vectors[0].len());
    assert!(header.contains(&format!("({TEXTS}, {dimension})")), "{header}");
    assert_eq!(numbers_of.len(), TEXTS * dimension);
    let got: Vec<f32> = numbers_of.iter().map(|b| f32::from_le_bytes(*b)).collect();
    for (i, (got, want)) in got.chunks(dimension).zip(&vectors).enumerate() {
        assert!(worst(got, want) < 1e-5, "row {i}: {}", texts[i]);
    }

    let objects = write(dir.path(), "texts.jsonl", as_jsonl(&texts).as_bytes());
    let embed_args = ["embed", "-q", "-m", model, "-f", &objects, "--field", "text", "--format", "jsonl"];
    let got: Vec<Value> = out(&embed_args, b"").lines().map(parse).collect();
    assert_eq!(got.len(), TEXTS);
    for (i, (got, want)) in got.iter().zip(&want).enumerate() {
        assert_eq!((&got["id"], &got["text"]), (&json!(i), &json!(texts[i])));
        assert_eq!((&got["tokens"], &got["truncated"]), (&want["tokens"], &want["truncated"]), "row {i}: {}", texts[i]);
        assert!(worst(&numbers(&got["embedding"]), &vectors[i]) < 1e-5, "row {i}: {}", texts[i]);
    }
    // These are written at the end, when all vectors are known.
    let small: Vec<Value> =
        out(&[&embed_args[..], &["--precision", "int8"]].concat(), b"").lines().map(parse).collect();
    assert_eq!(small.len(), TEXTS);
    for (i, (got, want)) in small.iter().zip(&want).enumerate() {
        assert_eq!((&got["id"], &got["tokens"], &got["truncated"]), (&json!(i), &want["tokens"], &want["truncated"]));
    }
}

#[test]
fn bad_line_in_late_window_is_named_and_keeps_earlier_output() {
    let (model, dir) = (materialize("st-max"), tempfile::tempdir().unwrap());
    let (model, texts) = (model.path().to_str().unwrap(), texts());
    // The bad line is in the second file, in the fourth window of five.
    let (first, second) = texts.split_at(3 * WINDOW + 5);
    let first = write(dir.path(), "first.jsonl", as_jsonl(first).as_bytes());
    let mut lines: Vec<String> = as_jsonl(second).lines().map(String::from).collect();
    let whole = write(dir.path(), "second.jsonl", lines.join("\n").as_bytes());
    lines[40] = "{\"id\": 40}".into();
    let bad = write(dir.path(), "bad.jsonl", lines.join("\n").as_bytes());
    let outputs = dir.path().join("outputs");
    std::fs::create_dir(&outputs).unwrap();
    let embed_args = |second: &str, more: &[&str]| -> Vec<String> {
        let all = ["embed", "-q", "-m", model, "-f", &first, "-f", second, "--field", "text"];
        all.iter().chain(more).map(|arg| arg.to_string()).collect()
    };
    let run = |args: &[String]| sconce(&args.iter().map(String::as_str).collect::<Vec<_>>(), b"");

    // Streamed output: every window before the bad one, complete lines, then the error.
    let (good, cut) =
        (run(&embed_args(&whole, &["--format", "jsonl"])), run(&embed_args(&bad, &["--format", "jsonl"])));
    let stderr = String::from_utf8_lossy(&cut.stderr).into_owned();
    assert_eq!((good.status.code(), cut.status.code()), (Some(0), Some(1)), "{stderr}");
    assert!(stderr.contains("bad.jsonl:41: no field `text`"), "{stderr}");
    let (good, cut) = (String::from_utf8(good.stdout).unwrap(), String::from_utf8(cut.stdout).unwrap());
    assert_eq!((good.lines().count(), cut.lines().count()), (TEXTS, 3 * WINDOW));
    assert!(good.starts_with(&cut) && cut.ends_with('\n'));

    // A file is replaced completely or not at all, and no temporary file is left.
    let old = write(&outputs, "old.npy", b"precious");
    let failed = run(&embed_args(&bad, &["-o", &old]));
    assert_eq!(failed.status.code(), Some(1));
    assert_eq!(std::fs::read(&old).unwrap(), b"precious");
    assert_eq!(std::fs::read_dir(&outputs).unwrap().count(), 1);

    // Output that is written at the end is not started.
    let failed = run(&embed_args(&bad, &["--format", "jsonl", "--precision", "int8"]));
    assert_eq!((failed.status.code(), failed.stdout.len()), (Some(1), 0));

    // A missing file is an error before the first text is embedded.
    let absent = run(&embed_args("absent.jsonl", &["--format", "jsonl"]));
    assert_eq!((absent.status.code(), absent.stdout.len()), (Some(1), 0));
    assert!(err(&["embed", "-m", model, "-f", &first, "-f", "absent.jsonl"], b"").contains("absent.jsonl"));
}
