//! Reading plain text, Markdown and code in the process itself.

use std::fs;
use std::path::PathBuf;

use proptest::prelude::*;
use sconce_index::read::{FileRef, Format, Limits, ReadError, Reading, read};
use sconce_index::{Document, Unit};
use sconce_testkit::check;
use tempfile::TempDir;

fn file(name: &str, content: &[u8]) -> (TempDir, PathBuf) {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join(name);
    fs::write(&path, content).unwrap();
    (dir, path)
}

fn read_bytes(name: &str, content: &[u8]) -> Result<Reading, ReadError> {
    let (_dir, path) = file(name, content);
    read(FileRef::of(&path), Format::of(&path, content).unwrap_or(Format::Text), &Limits::default())
}

fn document(name: &str, content: &str) -> Document {
    let mut reading = read_bytes(name, content.as_bytes()).unwrap();
    assert_eq!((reading.documents.len(), reading.notes.len()), (1, 0));
    reading.documents.remove(0)
}

#[test]
fn text_stays_as_it_is() {
    let text = "One\r\ntwo\n\n  three é";
    let document = document("a.txt", text);
    assert_eq!(document.text, text);
    assert_eq!((document.layout.unit, document.layout.starts.len()), (Unit::Line, 0));
    assert_eq!(document.title, None);
}

#[test]
fn encodings() {
    let utf16 = |units: Vec<[u8; 2]>, mark: [u8; 2]| [vec![mark], units].concat().concat();
    let text = "Grüße 🎉\n";
    let little = utf16(text.encode_utf16().map(u16::to_le_bytes).collect(), [0xff, 0xfe]);
    let big = utf16(text.encode_utf16().map(u16::to_be_bytes).collect(), [0xfe, 0xff]);
    let marked = [b"\xef\xbb\xbf", text.as_bytes()].concat();
    for content in [little, big, marked] {
        assert_eq!(read_bytes("a.txt", &content).unwrap().documents[0].text, text);
    }
    let latin = read_bytes("a.txt", b"Gr\xfc\xdfe aus K\xf6ln, viele Gr\xfc\xdfe").unwrap();
    assert_eq!(latin.documents[0].text, "Gr\u{fffd}\u{fffd}e aus K\u{fffd}ln, viele Gr\u{fffd}\u{fffd}e");
    assert!(latin.notes[0].starts_with("5 "), "{:?}", latin.notes);
}

#[test]
fn what_is_no_text_is_skipped() {
    assert_eq!(read_bytes("a.txt", b"\x7fELF\0\0\0\x01").unwrap_err(), ReadError::Binary);
    let random: Vec<u8> = (0..4000_u32).map(|i| 0x80 | (i.wrapping_mul(2_654_435_761) >> 24) as u8).collect();
    assert_eq!(read_bytes("a.txt", &random).unwrap_err(), ReadError::Binary);
    for key in ["-----BEGIN RSA PRIVATE KEY-----\nabc", "\n-----BEGIN OPENSSH PRIVATE KEY-----\r\nabc"] {
        assert_eq!(read_bytes("notes.txt", key.as_bytes()).unwrap_err(), ReadError::Secret);
    }
    assert!(read_bytes("notes.txt", b"-----BEGIN CERTIFICATE-----\n").is_ok());
}

/// The file has one line of a gigabyte, and takes no space on the disk.
#[test]
fn a_line_of_a_gigabyte_is_skipped() {
    let (_dir, path) = file("a.txt", b"one line");
    fs::OpenOptions::new().write(true).open(&path).unwrap().set_len(1 << 30).unwrap();
    let error = read(FileRef::of(&path), Format::Text, &Limits::default()).unwrap_err();
    // Its zeros show that it is no text before its size matters.
    assert_eq!(error, ReadError::Binary);
    let (_dir, path) = file("b.txt", &[b'x'; 9000]);
    fs::OpenOptions::new().write(true).open(&path).unwrap().set_len(1 << 30).unwrap();
    let error = read(FileRef::of(&path), Format::Text, &Limits::default()).unwrap_err();
    assert_eq!(error, ReadError::TooLarge { size: 1 << 30, limit: 64 << 20 });
    assert!(error.is_skip());
}

#[test]
fn other_formats_need_a_parser() {
    let (_dir, path) = file("a.pdf", b"%PDF-1.4");
    assert_eq!(read(FileRef::of(&path), Format::Pdf, &Limits::default()), Err(ReadError::NeedsParser(Format::Pdf)));
}

#[cfg(unix)]
#[test]
fn only_regular_files_are_opened() {
    let (dir, path) = file("a.txt", b"x");
    let (fifo, link) = (dir.path().join("fifo.txt"), dir.path().join("link.txt"));
    assert!(std::process::Command::new("mkfifo").arg(&fifo).status().unwrap().success());
    std::os::unix::fs::symlink(&path, &link).unwrap();
    for path in [fifo.as_path(), link.as_path(), dir.path()] {
        let result = read(FileRef::of(path), Format::Text, &Limits::default());
        assert_eq!(result, Err(ReadError::NotAFile), "{}", path.display());
    }
}

/// Between the walk and the reading, somebody may replace a folder by a link to another place.
#[cfg(unix)]
#[test]
fn no_link_below_the_root_is_followed() {
    use std::path::Path;
    let outside = tempfile::tempdir().unwrap();
    fs::write(outside.path().join("a.txt"), "secret").unwrap();
    let dir = tempfile::tempdir().unwrap();
    let root = dir.path().join("root");
    fs::create_dir_all(root.join("sub/deep")).unwrap();
    fs::write(root.join("sub/deep/a.txt"), "text").unwrap();
    let text = |root: &Path, relative: &str| {
        let file = FileRef { root, relative: Path::new(relative) };
        read(file, Format::Text, &Limits::default()).map(|reading| reading.documents[0].text.clone())
    };
    assert_eq!(text(&root, "sub/deep/a.txt").as_deref(), Ok("text"));
    std::os::unix::fs::symlink(outside.path(), root.join("sub/link")).unwrap();
    assert!(matches!(text(&root, "sub/link/a.txt"), Err(ReadError::Io(_))));
    std::os::unix::fs::symlink(&root, dir.path().join("root link")).unwrap();
    assert_eq!(text(&dir.path().join("root link"), "sub/deep/a.txt").as_deref(), Ok("text"));
    let absolute = outside.path().join("a.txt");
    for path in ["", ".", "..", "../root/sub/deep/a.txt", "sub/../sub/deep/a.txt", absolute.to_str().unwrap()] {
        assert!(text(&root, path).is_err(), "{path}");
    }
}

#[test]
fn headings_of_markdown() {
    let text = "---\ntitle: \"The title\"\n# no: heading\n---\n# One #\n\ntext\n## Two\n```\n# code\n```\nThree\n=====\n\n\
                Four\n----\n    # indented code\n#hash\n- item\n---\n";
    let document = document("a.md", text);
    assert_eq!(document.title.as_deref(), Some("The title"));
    let headings: Vec<(u8, &str)> = document.layout.headings.iter().map(|h| (h.level, h.text.as_str())).collect();
    assert_eq!(headings, [(1, "One"), (2, "Two"), (1, "Three"), (2, "Four")]);
    for heading in &document.layout.headings {
        assert!(text[heading.offset..].trim_start_matches(['#', ' ']).starts_with(&heading.text));
    }
}

#[test]
fn headings_are_in_the_text_whatever_it_is() {
    let line = prop_oneof![
        Just("# H\n"),
        Just("##\n"),
        Just("```\n"),
        Just("~~~x\n"),
        Just("---\n"),
        Just("===\n"),
        Just("é é\n"),
        Just("\r\n"),
        Just("   ## x ##\r\n"),
        Just("title: t\n"),
        Just("- a\n"),
        Just("#######\n"),
    ];
    check(300, &prop::collection::vec(line, 0..40), |lines| {
        let text = lines.concat();
        let document = document("a.md", &text);
        let headings = &document.layout.headings;
        assert!(headings.is_sorted_by(|a, b| a.offset < b.offset));
        assert!(headings.iter().all(|h| text.is_char_boundary(h.offset) && (1..=6).contains(&h.level)));
    });
}
