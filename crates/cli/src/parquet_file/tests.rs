//! Hostile Parquet files.

use super::footer::check_metadata;
use super::reader::ParquetRows;
use sconce_testkit::{check, mutations, mutations_in_place};
use std::cell::Cell;
use std::path::{Path, PathBuf};

fn table(name: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../sconce/tests/tables").join(name)
}

/// All rows of a file as JSON, up to the first error.
fn rows(path: &Path, only: Option<&[&str]>) -> Result<Vec<String>, String> {
    let rows = ParquetRows::open(path, only).map_err(|e| e.to_string())?;
    let mut all = Vec::new();
    for row in rows {
        let (row, origin, _) = row.map_err(|e| e.to_string())?;
        let object = row.object().map_err(|why| format!("{origin}: {why}"))?;
        all.push(serde_json::Value::Object(object).to_string());
        if all.len() > 100_000 {
            break;
        }
    }
    Ok(all)
}

#[test]
fn damaged_files_are_errors_that_name_them() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("x.parquet");
    for name in ["types", "none", "gzip", "lz4", "v2", "polars"] {
        let original = std::fs::read(table(&format!("{name}.parquet"))).unwrap();
        std::fs::write(&path, &original).unwrap();
        assert_eq!(rows(&path, None).unwrap().len(), 7);
        let (good, bad) = (Cell::new(0), Cell::new(0));
        let try_damage = |damage: Vec<sconce_testkit::Mutation>| {
            let mut bytes = original.clone();
            damage.iter().for_each(|mutation| mutation.apply(&mut bytes, usize::MAX));
            // A new file each time: for an old one, some systems wait for the disk.
            std::fs::remove_file(&path).unwrap();
            std::fs::write(&path, &bytes).unwrap();
            for only in [None, Some(&["text"][..])] {
                match rows(&path, only) {
                    Ok(_) => good.set(good.get() + 1),
                    Err(e) => {
                        assert!(e.contains("x.parquet"), "{e}");
                        bad.set(bad.get() + 1);
                    }
                }
            }
        };
        check(400, &mutations(1..=3, b"\x00\xff\x7f\x80\x15\x19", &[b"\xff\xff\xff\xff\x0f", b"PAR1"]), try_damage);
        check(800, &mutations_in_place(1..=3, b"\x00\xff\x7f\x80\x15\x19"), try_damage);
        assert!(good.get() > 50 && bad.get() > 500, "{name}: {} and {}", good.get(), bad.get());
    }
}

/// Every length of a file that is cut off.
#[test]
fn truncated_files_are_errors() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("x.parquet");
    let original = std::fs::read(table("none.parquet")).unwrap();
    for length in 0..original.len() {
        std::fs::write(&path, &original[..length]).unwrap();
        let e = rows(&path, None).unwrap_err();
        assert!(e.contains("x.parquet: "), "{length}: {e}");
    }
}

/// Metadata with a schema of these numbers of children.
fn metadata(children: &[u32]) -> Vec<u8> {
    let varint = |mut n: u64| {
        let mut bytes = Vec::new();
        while n >= 0x80 {
            bytes.push(n as u8 | 0x80);
            n >>= 7;
        }
        bytes.push(n as u8);
        bytes
    };
    // Field 1 (version, i32 1), field 2 (schema, list of structs).
    let mut bytes = vec![0x15, 2, 0x19, 0xfc];
    bytes.extend(varint(children.len() as u64));
    for count in children {
        // Field 4 (name), field 5 (number of children).
        bytes.extend([0x48, 1, b'x', 0x15]);
        bytes.extend(varint(u64::from(*count) * 2));
        bytes.push(0);
    }
    bytes.push(0);
    bytes
}

#[test]
fn schemas_that_would_exhaust_memory_or_stack_are_rejected() {
    assert_eq!(check_metadata(&metadata(&[2, 0, 1, 0])), Ok(()));
    let why = |children: &[u32]| check_metadata(&metadata(children)).unwrap_err();
    assert!(why(&[2_000_000_000, 0]).contains("2000000000 fields"));
    assert!(why(&[1, 2_000_000_000, 0]).contains("2000000000 fields"));
    assert!(why(&vec![1; 100_000]).contains("nested more than 64 deep"));
    let mut deep = vec![1; 60];
    deep.push(0);
    assert_eq!(check_metadata(&metadata(&deep)), Ok(()));
    assert!(check_metadata(b"").is_err() && check_metadata(b"\x19\xfc\xff\xff\xff\xff\x0f").is_err());
    // A map of booleans that claims more entries than there are bytes.
    assert!(check_metadata(b"\x1b\xff\xff\xff\xff\xff\xff\xff\xff\x7f\x11").is_err());
}
