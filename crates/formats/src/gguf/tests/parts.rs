//! A model in several files.

use super::super::Gguf;
use crate::FileError;
use sconce_testkit::GgufWriter as Writer;
use std::path::{Path, PathBuf};

fn with_part_number(writer: Writer, number: u32, count: u32) -> Writer {
    writer.u32("split.no", number).u32("split.count", count)
}

/// The first part holds keys and two tensors, the others one each.
fn parts() -> [Writer; 3] {
    let mut whole = Writer::llama();
    let last = whole.tensors.split_off(2);
    let other = |number: usize| {
        let mut part = with_part_number(Writer::new("llama"), number as u32, 3);
        part.tensors = vec![last[number - 1].clone()];
        part
    };
    [with_part_number(whole, 0, 3).u32("split.tensors.count", 4), other(1), other(2)]
}

fn write(dir: &Path, parts: &[Writer]) -> Vec<PathBuf> {
    let count = parts.len();
    let one = |(number, part): (usize, &Writer)| {
        let path = dir.join(format!("model-{:05}-of-{count:05}.gguf", number + 1));
        std::fs::write(&path, part.bytes()).unwrap();
        path
    };
    parts.iter().enumerate().map(one).collect()
}

#[track_caller]
fn expect_error(result: Result<Gguf, FileError>, what: &str) -> FileError {
    let error = result.err().unwrap_or_else(|| panic!("opened; `{what}` was expected"));
    assert!(error.what.contains(what), "`{}` does not contain `{what}`", error.what);
    error
}

#[test]
fn first_part_finds_the_others() {
    let dir = tempfile::tempdir().unwrap();
    let paths = write(dir.path(), &parts());
    let whole = super::open(&Writer::llama()).unwrap();
    let shuffled = [paths[2].clone(), paths[0].clone(), paths[1].clone()];
    for given in [&paths[..1], &paths, &shuffled] {
        let gguf = Gguf::open(given).unwrap();
        assert_eq!(gguf.names(), whole.names());
        assert_eq!(gguf.config().unwrap(), whole.config().unwrap());
        assert_eq!(gguf.path(), paths[0]);
        for name in whole.names() {
            assert_eq!(gguf.tensor(&name).unwrap().bytes, whole.tensor(&name).unwrap().bytes);
        }
    }
}

#[test]
fn missing_or_unexpected_parts_are_named() {
    let dir = tempfile::tempdir().unwrap();
    let paths = write(dir.path(), &parts());
    expect_error(Gguf::open(&paths[1..2]), "its name does not end in -00001-of-00003.gguf");
    expect_error(Gguf::open(&paths[..2]), "is one of 3 parts; 2 were given");
    let twice = [paths[0].clone(), paths[1].clone(), paths[1].clone()];
    assert_eq!(expect_error(Gguf::open(&twice), "part 3 is missing or given twice").path, paths[1]);
    let renamed = dir.path().join("model.gguf");
    std::fs::copy(&paths[0], &renamed).unwrap();
    expect_error(Gguf::open(&[renamed]), "give the first part under its own name");
    std::fs::remove_file(&paths[2]).unwrap();
    assert_eq!(Gguf::open(&paths[..1]).err().unwrap().path, paths[2]);
    expect_error(Gguf::open(&[]), "no GGUF file was given");
}

#[test]
fn inconsistent_parts_are_rejected() {
    let changed = |change: fn(&mut [Writer; 3])| {
        let dir = tempfile::tempdir().unwrap();
        let mut parts = parts();
        change(&mut parts);
        Gguf::open(&write(dir.path(), &parts)[..1])
    };
    expect_error(
        changed(|parts| parts[1] = with_part_number(Writer::new("llama"), 1, 4)),
        "is one of 4 parts, the others are of 3",
    );
    expect_error(
        changed(|parts| parts[1] = with_part_number(Writer::new("llama"), 7, 3)),
        "part 2 is missing or given twice",
    );
    expect_error(changed(|parts| parts[1] = Writer::new("llama")), "is not a part");
    expect_error(
        changed(|parts| parts[1] = with_part_number(Writer::new("llama"), 1, 3)),
        "hold 4 tensors; they hold 3",
    );
    expect_error(
        changed(|parts| parts[1].tensors = parts[2].tensors.clone()),
        "the tensor `blk.0.attn_k.weight`, which an earlier part holds too",
    );
    expect_error(
        changed(|parts| parts[0] = with_part_number(Writer::llama(), 0, u32::MAX)),
        "is one of 4294967295 parts; at most 9999",
    );
    expect_error(changed(|parts| parts[2] = parts[2].clone().raw("x", 8, &[0xff; 8])), "ends inside the value of `x`");
}
