//! Hostile CSV and JSON files.

use super::record::{Content, FileFormat, NeededFields, Records};
use super::{DEFAULT_FIELD, MAX_ROW_BYTES};
use crate::row::Row;
use sconce_testkit::{check, mutations};
use std::cell::Cell;
use std::io::Write;
use std::path::{Path, PathBuf};

fn write(dir: &Path, name: &str, bytes: &[u8]) -> PathBuf {
    let path = dir.join(name);
    std::fs::write(&path, bytes).unwrap();
    path
}

/// The texts of a file, up to the first error.
fn texts(path: &Path) -> Result<Vec<String>, String> {
    let records = Records::open(path, FileFormat::of(path, false), NeededFields::All).map_err(|e| e.to_string())?;
    records.check_field(DEFAULT_FIELD, "--field").map_err(|e| e.to_string())?;
    let text = |record: Result<super::Record, crate::Failure>| Ok(record?.into_text(DEFAULT_FIELD)?.text);
    records.records.map(text).collect::<Result<Vec<_>, crate::Failure>>().map_err(|e| e.to_string())
}

#[test]
fn damaged_files_are_errors_that_name_them() {
    let dir = tempfile::tempdir().unwrap();
    let csv = b"id,text\r\n1,\"a \"\"b\"\", c\"\r\n2,plain\n3,\"two\nlines\"\n4,\"\xc3\xa9\"\n";
    let json = br#"[{"id": 1, "text": "a \"b\", [c"}, "plain", {"text": "\u00e9", "x": [1, {"y": "]"}]}]"#;
    let jsonl = b"{\"text\": \"a\"}\n\n{\"text\": \"b\\n\", \"x\": {\"y\": [1]}}\n";
    for (name, bytes, want) in [
        ("x.csv", &csv[..], vec!["a \"b\", c", "plain", "two\nlines", "é"]),
        ("x.json", json, vec!["a \"b\", [c", "plain", "é"]),
        ("x.jsonl", jsonl, vec!["a", "b\n"]),
    ] {
        let path = write(dir.path(), name, bytes);
        assert_eq!(texts(&path).unwrap(), want);
        let (good, bad) = (Cell::new(0), Cell::new(0));
        let damage = mutations(1..=3, b"\"\\\n\r,[]{}\xff\0", &[b"\"", b"\"\"", b"\n", b",", b"[{\"text\":"]);
        check(1000, &damage, |damage| {
            let mut bytes = bytes.to_vec();
            damage.iter().for_each(|mutation| mutation.apply(&mut bytes, usize::MAX));
            // A new file each time: for an old one, some systems wait for the disk.
            std::fs::remove_file(&path).unwrap();
            match texts(&write(dir.path(), name, &bytes)) {
                Ok(_) => good.set(good.get() + 1),
                Err(e) => {
                    assert!(e.contains(name) && e.len() < 1000, "{e}");
                    bad.set(bad.get() + 1);
                }
            }
        });
        assert!(good.get() > 20 && bad.get() > 200, "{name}: {} and {}", good.get(), bad.get());
    }
}

/// Quotes are followed as the csv crate reads them: an error exactly when one is open at the end.
#[test]
fn open_quotes_are_found_at_the_end_only() {
    let dir = tempfile::tempdir().unwrap();
    for (csv, is_open) in [
        ("text\n\"a\"\n", false),
        ("text\n\"a\n", true),
        ("text\n\"a\"\"\n", true),
        ("text\n\"a\"\"\"\n", false),
        ("text\n5\" pipe\n", false),
        ("text\na\"\n", false),
        ("text\n\"a\"b\"\n", false),
        ("\"text\"\n\"\"\n", false),
        ("\"text", true),
        ("text\r\"a\r", true),
    ] {
        let result = texts(&write(dir.path(), "x.csv", csv.as_bytes()));
        let is_found = result.as_ref().is_err_and(|e| e.contains("never closed"));
        assert_eq!(is_found, is_open, "{csv:?}: {result:?}");
    }
}

#[test]
fn long_rows_are_errors_before_they_fill_the_memory() {
    let dir = tempfile::tempdir().unwrap();
    for (name, start) in [("x.csv", "text\n\""), ("x.json", "[\""), ("x.jsonl", "{\"text\": \""), ("x.txt", "")] {
        let path = dir.path().join(name);
        let mut file = std::fs::File::create(&path).unwrap();
        file.write_all(start.as_bytes()).unwrap();
        // A sparse file of zeros: nothing ends the row.
        file.set_len(40 * MAX_ROW_BYTES as u64).unwrap();
        let e = texts(&path).unwrap_err();
        assert!(e.contains(name) && e.contains("is longer than 64 MiB"), "{name}: {e}");
    }
}

#[test]
fn fields_keep_their_order_and_values() {
    let dir = tempfile::tempdir().unwrap();
    let path = write(dir.path(), "x.tsv", b"\xef\xbb\xbf\"b\"\ttext\ta\n1\tx\t\n");
    let records = Records::open(&path, FileFormat::of(&path, false), NeededFields::All).unwrap();
    assert_eq!(records.declared.as_ref().unwrap().0, ["b", "text", "a"]);
    let rows: Vec<_> = records.records.map(Result::unwrap).collect();
    let Content::Row(Row::Object(object)) = &rows[0].content else { panic!("a row") };
    assert_eq!(serde_json::to_string(object).unwrap(), r#"{"b":"1","text":"x","a":""}"#);
    assert!(rows[0].origin.ends_with("x.tsv:2"), "{}", rows[0].origin);
}
