//! Hostile or broken archives, made byte by byte.

use std::io::Write;

use super::super::unzip::{LIMITS, Limits, unpack};
use super::*;

/// A stored entry of a zip file, with every false field explicit.
pub(super) struct Entry {
    name: String,
    mode: u32,
    data: Vec<u8>,
    declared: u32,
    crc: u32,
}

pub(super) fn entry(name: &str, data: &[u8]) -> Entry {
    let (declared, crc) = (data.len() as u32, crc32(data));
    Entry { name: name.to_owned(), mode: 0o100_644, data: data.to_vec(), declared, crc }
}

fn crc32(data: &[u8]) -> u32 {
    !data.iter().fold(!0_u32, |crc, byte| {
        (0..8).fold(crc ^ u32::from(*byte), |crc, _| (crc >> 1) ^ (0xEDB8_8320 & (crc & 1).wrapping_neg()))
    })
}

/// A zip file of these entries.
pub(super) fn zip_of(entries: &[Entry]) -> Vec<u8> {
    let (mut out, mut central) = (Vec::new(), Vec::new());
    for Entry { name, mode, data, declared, crc } in entries {
        let (offset, length) = (out.len() as u32, name.len() as u16);
        let mut common = Vec::new();
        for part in [20_u16, 0, 0, 0, 0x21] {
            common.extend(part.to_le_bytes());
        }
        common.extend(crc.to_le_bytes());
        common.extend((data.len() as u32).to_le_bytes());
        common.extend(declared.to_le_bytes());
        common.extend(length.to_le_bytes());
        common.extend([0, 0]);
        out.extend(b"PK\x03\x04");
        out.extend(&common);
        out.extend(name.as_bytes());
        out.extend(data);
        central.extend(b"PK\x01\x02");
        central.extend([20, 3]); // made on Unix
        central.extend(&common);
        central.extend([0; 6]);
        central.extend((mode << 16).to_le_bytes()[..2].iter().chain(&((mode << 16).to_le_bytes()[2..])));
        central.extend(offset.to_le_bytes());
        central.extend(name.as_bytes());
    }
    let (start, count) = (out.len() as u32, entries.len() as u16);
    out.extend(&central);
    out.extend(b"PK\x05\x06\0\0\0\0");
    out.extend(count.to_le_bytes());
    out.extend(count.to_le_bytes());
    out.extend((central.len() as u32).to_le_bytes());
    out.extend(start.to_le_bytes());
    out.extend([0, 0]);
    out
}

/// Unpacks into `box/in`; the content of the box shows whether anything escaped.
fn try_unpack(zip: &[u8], limits: Limits) -> (Result<(), HubError>, Vec<String>, TempDir) {
    let tmp = TempDir::new().unwrap();
    let (archive, into) = (tmp.path().join("x.whl"), tmp.path().join("box/in"));
    fs::write(&archive, zip).unwrap();
    fs::create_dir_all(&into).unwrap();
    let result = unpack(&archive, &into, limits, &());
    let files = tree(&tmp.path().join("box"));
    (result, files, tmp)
}

#[test]
fn valid_archive_unpacks_without_code_files() {
    let zip = zip_of(&[
        entry("m/__init__.py", b"evil()"),
        entry("m/lib.SO", b"evil"),
        entry("m/lib.so.1", b"evil"),
        entry("m/data.json", b"{}"),
        Entry { mode: 0o040_755, ..entry("m/empty/", b"") },
        Entry { mode: 0, ..entry("m/sub/é.txt", b"e") },
    ]);
    let (result, files, tmp) = try_unpack(&zip, LIMITS);
    result.unwrap();
    assert_eq!(files, ["in/m/data.json", "in/m/sub/é.txt"]);
    assert_eq!(fs::read(tmp.path().join("box/in/m/data.json")).unwrap(), b"{}");
}

#[test]
fn hostile_archives_are_rejected_before_writing() {
    let fine = || entry("a.txt", b"fine");
    for name in [
        "../x",
        "a/../../x",
        "/x",
        "//x",
        "a//b",
        "./x",
        "C:x",
        "C:\\x",
        "..\\x",
        "a\\b",
        "",
        "/",
        "..",
        "a/..",
        "x\0y",
        "x\ny",
    ] {
        let (result, files, _tmp) = try_unpack(&zip_of(&[fine(), entry(name, b"evil")]), LIMITS);
        expect_error(result, &["x.whl", "refused"]);
        assert_eq!(files, [""; 0], "{name:?}");
    }
    for mode in [0o120_777, 0o060_000, 0o010_000, 0o140_000, 0o020_000] {
        let (result, files, _tmp) =
            try_unpack(&zip_of(&[fine(), Entry { mode, ..entry("link", b"/etc/passwd") }]), LIMITS);
        expect_error(result, &["\"link\"", "link or a device"]);
        assert_eq!(files, [""; 0]);
    }
    let many: Vec<Entry> = (0..20).map(|n| entry(&format!("f{n}"), b"")).collect();
    expect_error(try_unpack(&zip_of(&many), Limits { entries: 10, ..LIMITS }).0, &["20 entries", "10"]);
    // Of two entries with one name, the last counts, as in Python's `zipfile`.
    let (result, files, tmp) = try_unpack(&zip_of(&[fine(), entry("a.txt", b"last")]), LIMITS);
    result.unwrap();
    assert_eq!(files, ["in/a.txt"]);
    assert_eq!(fs::read(tmp.path().join("box/in/a.txt")).unwrap(), b"last");
}

#[test]
fn zip_bombs_stay_within_limits() {
    let mut writer = zip::ZipWriter::new(std::io::Cursor::new(Vec::new()));
    writer.start_file("zeros", zip::write::SimpleFileOptions::default()).unwrap();
    writer.write_all(&vec![0; 64 << 20]).unwrap();
    let bomb = writer.finish().unwrap().into_inner();
    assert!(bomb.len() < 100_000);
    let (result, files, _tmp) = try_unpack(&bomb, LIMITS);
    expect_error(result, &["67108864", "limit"]);
    assert_eq!(files, [""; 0]);
    // Within the ratio, but over the total.
    let zip = zip_of(&[entry("a", &noise(3000))]);
    expect_error(try_unpack(&zip, Limits { bytes: 2000, ..LIMITS }).0, &["3000", "2000"]);
    // It declares few bytes and holds many.
    let mut understated = bomb.clone();
    let size = (64_u32 << 20).to_le_bytes();
    for at in 0..understated.len() - 4 {
        if understated[at..at + 4] == size {
            understated[at..at + 4].copy_from_slice(&1000_u32.to_le_bytes());
        }
    }
    let (result, files, tmp) = try_unpack(&understated, LIMITS);
    expect_error(result, &["\"zeros\""]);
    assert_eq!(files, ["in/zeros"]);
    assert!(fs::metadata(tmp.path().join("box/in/zeros")).unwrap().len() < 1 << 20);
}

#[test]
fn corrupt_archives_are_rejected() {
    let sound = zip_of(&[entry("a", &noise(500)), entry("b", &noise(600))]);
    try_unpack(&sound, LIMITS).0.unwrap();
    let damaged = zip_of(&[Entry { crc: 1, ..entry("a", b"data") }]);
    expect_error(try_unpack(&damaged, LIMITS).0, &["\"a\"", "does not unpack", "hecksum"]);
    for declared in [0, 3, 5, 400] {
        assert!(try_unpack(&zip_of(&[Entry { declared, ..entry("a", b"data") }]), LIMITS).0.is_err(), "{declared}");
    }
    for keep in [0, 1, 30, 200, sound.len() / 2, sound.len() - 1] {
        assert!(try_unpack(&sound[..keep], LIMITS).0.is_err(), "{keep}");
    }
    expect_error(try_unpack(b"<html>not found</html>", LIMITS).0, &["not a sound zip"]);
}

/// Any bytes: nothing panics, nothing is written outside, and nothing exceeds the limit.
#[test]
fn mutated_archives_never_panic() {
    let mut writer = zip::ZipWriter::new(std::io::Cursor::new(Vec::new()));
    writer.start_file("m/text.json", zip::write::SimpleFileOptions::default()).unwrap();
    writer.write_all("the same words again ".repeat(40).as_bytes()).unwrap();
    let seeds = [
        writer.finish().unwrap().into_inner(),
        zip_of(&[entry("m/config.json", b"{}"), entry("m/model.safetensors", &noise(300)), entry("m/../x", b"")]),
        zip_of(&[entry("m/config.json", b"{}"), entry("m/n/model.safetensors", &noise(300))]),
    ];
    let tmp = TempDir::new().unwrap();
    let (archive, into) = (tmp.path().join("x.whl"), tmp.path().join("box/in"));
    let good = Cell::new(0);
    let damage = mutations(0..=4, b"\x00\xff/.\\\x7f", &[b"../"]);
    check(1500, &(0..seeds.len(), damage), |(seed, damage)| {
        let mut bytes = seeds[seed].clone();
        damage.iter().for_each(|mutation| mutation.apply(&mut bytes, usize::MAX));
        fs::write(&archive, &bytes).unwrap();
        fs::create_dir_all(&into).unwrap();
        let result = unpack(&archive, &into, Limits { bytes: 100_000, ..LIMITS }, &());
        let names = tree(tmp.path());
        let size: u64 = tree(&into).iter().map(|name| fs::metadata(into.join(name)).unwrap().len()).sum();
        fs::remove_dir_all(tmp.path().join("box")).unwrap();
        good.set(good.get() + usize::from(result.is_ok()));
        let outside: Vec<_> = names.into_iter().filter(|name| !name.starts_with("box/in/")).collect();
        assert_eq!(outside, ["x.whl"]);
        assert!(size < 200_000, "{size}");
    });
    assert!((75..1250).contains(&good.get()), "{}", good.get());
}

/// A disk that fills up halfway.
#[test]
fn copy_errors_name_the_failed_side() {
    use super::super::store::{CopyError, copy_to};
    struct Full(usize);
    impl Write for Full {
        fn write(&mut self, bytes: &[u8]) -> std::io::Result<usize> {
            let n = bytes.len().min(self.0);
            self.0 -= n;
            if n == 0 { Err(std::io::ErrorKind::StorageFull.into()) } else { Ok(n) }
        }
        fn flush(&mut self) -> std::io::Result<()> {
            Ok(())
        }
    }
    let result = copy_to(&mut &noise(100_000)[..], &mut Full(70_000), &mut |_| {});
    assert!(matches!(result, Err(CopyError::Write(error)) if error.kind() == std::io::ErrorKind::StorageFull));
}
