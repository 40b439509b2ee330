//! Manifests that differ, are damaged, or name shards.

use super::*;
use crate::memory::Memory;
use serde_json::json;

fn job(dtype: Option<&str>, prompt: &str) -> Job {
    let mut options = Map::new();
    options.insert("prompt".into(), prompt.into());
    let model =
        ModelPin { reference: "minilm".into(), revision: dtype.map(|_| "abc".into()), dtype: dtype.map(String::from) };
    Job { version: "1".into(), task: "embed".into(), model, options }
}

fn manifest() -> Manifest {
    let input = InputFile { name: "/a/docs.jsonl".into(), size: 10, rows: 2, digest: Digest::Parts };
    let part = Part::Bytes { start: 0, end: 10, sha256: "00".repeat(32) };
    let shard = Shard { input: 0, first_row: 1, rows: 2, part };
    Manifest::new(job(Some("f32"), "query: "), Duration::from_secs(60), vec![input], vec![shard])
}

#[test]
fn second_process_must_want_the_same() {
    let store = Memory::default();
    assert_eq!(Manifest::read(&store).unwrap(), None);
    let first = manifest().begin(&store).unwrap();
    assert_eq!(Manifest::read(&store).unwrap(), Some(first.clone()));
    assert_eq!(manifest().begin(&store).unwrap(), first);
    // Before the model is loaded, its revision and dtype are not known.
    first.check_job(&job(None, "query: "), &store).unwrap();
    let e = first.check_job(&job(Some("bf16"), "passage: "), &store).unwrap_err().to_string();
    assert!(e.contains("dtype: there \"f32\", here \"bf16\""), "{e}");
    assert!(e.contains("prompt: there \"query: \", here \"passage: \""), "{e}");
    let mut other = manifest();
    other.job.options.insert("dimensions".into(), 128.into());
    let e = other.begin(&store).unwrap_err().to_string();
    assert!(e.contains("dimensions: there the default, here 128"), "{e}");
}

#[test]
fn inputs_may_move_but_not_change() {
    let (store, first) = (Memory::default(), manifest());
    let input = |name: &str, size| InputFile { name: name.into(), size, rows: 2, digest: Digest::Parts };
    first.check_inputs(&[input("/other/mount/docs.jsonl", 10)], &store).unwrap();
    let e = first.check_inputs(&[input("/a/docs.jsonl", 11)], &store).unwrap_err().to_string();
    assert!(e.contains("/a/docs.jsonl: there 10 bytes, here 11"), "{e}");
    let e = first.check_inputs(&[input("/a/more.jsonl", 10)], &store).unwrap_err().to_string();
    assert!(e.contains("more.jsonl"), "{e}");
    let e = first.check_inputs(&[], &store).unwrap_err().to_string();
    assert!(e.contains("input files: there 1, here 0"), "{e}");
}

#[test]
fn damaged_manifest_is_refused() {
    let store = Memory::default();
    manifest().begin(&store).unwrap();
    let whole = store.read(FILE).unwrap().unwrap();
    for content in [&whole[..whole.len() / 2], b"{}", b"{\"format\": 99}", b"[]"] {
        store.replace(FILE, content).unwrap();
        let e = Manifest::read(&store).unwrap_err().to_string();
        assert!(e.contains("manifest.json"), "{e}");
    }
    for (place, value, why) in [
        ("/input", json!(7), "its input is not listed"),
        ("/first_row", json!(0), "counted from 1"),
        ("/rows", json!(u64::MAX), "too many rows"),
        ("/part/bytes/start", json!(11), "not in the file"),
        ("/part/bytes/end", json!(11), "not in the file"),
        ("/part/bytes/sha256", json!("00"), "not a SHA-256"),
        ("/part", json!({"row_groups": {"start": 2, "end": 1}}), "not in order"),
    ] {
        let mut wrong: Value = serde_json::from_slice(&whole).unwrap();
        *wrong["shards"][0].pointer_mut(place).unwrap() = value;
        store.replace(FILE, wrong.to_string().as_bytes()).unwrap();
        let e = Manifest::read(&store).unwrap_err().to_string();
        assert!(e.contains("manifest.json: shard 0: ") && e.contains(why), "{e}");
    }
}

#[test]
fn names_of_shards_are_plain() {
    assert_eq!(shard_name(7, "/data/my docs.v2.jsonl"), "00007-my_docs_v2");
    assert_eq!(shard_name(123_456, "s3://bucket/täxt.parquet"), "123456-t_xt");
    assert_eq!(shard_name(0, ""), "00000-");
    assert_eq!(manifest().output_names(0).0, "data/00000-docs.parquet");
}
