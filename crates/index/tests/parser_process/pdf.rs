//! PDF files, friendly and hostile.

use std::time::{Duration, Instant};

use sconce_index::read::{FileRef, Format, Limits, ReadError};
use sconce_index::{Kind, Unit};
use sconce_testkit::Rng;

use super::{file, one, parse_with, parser};

/// A PDF file of objects. The first is the catalog, which refers to the second.
fn pdf(objects: &[Vec<u8>], trailer: &str) -> Vec<u8> {
    let mut file = b"%PDF-1.4\n".to_vec();
    let mut offsets = Vec::new();
    for (i, object) in objects.iter().enumerate() {
        offsets.push(file.len());
        file.extend(format!("{} 0 obj\n", i + 1).bytes());
        file.extend(object);
        file.extend(b"\nendobj\n");
    }
    let start = file.len();
    file.extend(format!("xref\n0 {}\n0000000000 65535 f \n", objects.len() + 1).bytes());
    for offset in offsets {
        file.extend(format!("{offset:010} 00000 n \n").bytes());
    }
    let size = objects.len() + 1;
    file.extend(format!("trailer\n<< /Size {size} /Root 1 0 R {trailer} >>\nstartxref\n{start}\n%%EOF\n").bytes());
    file
}

fn stream(dictionary: &str, content: &[u8]) -> Vec<u8> {
    let head = format!("<< /Length {} {dictionary} >>\nstream\n", content.len());
    [head.as_bytes(), content, b"\nendstream"].concat()
}

const FONT: &str = "<< /Type /Font /Subtype /Type1 /BaseFont /Helvetica /Encoding /WinAnsiEncoding >>";

fn pages_pdf(texts: &[&str]) -> Vec<u8> {
    let kids: String = (0..texts.len()).map(|i| format!("{} 0 R ", 5 + 2 * i)).collect();
    let mut objects = vec![
        b"<< /Type /Catalog /Pages 2 0 R >>".to_vec(),
        format!("<< /Type /Pages /Kids [ {kids}] /Count {} /MediaBox [0 0 612 792] >>", texts.len()).into_bytes(),
        FONT.as_bytes().to_vec(),
        b"<< /Title (The title) >>".to_vec(),
    ];
    for (i, text) in texts.iter().enumerate() {
        let page = "<< /Type /Page /Parent 2 0 R /Resources << /Font << /F1 3 0 R >> >> /Contents";
        objects.push(format!("{page} {} 0 R >>", 6 + 2 * i).into_bytes());
        objects.push(stream("", format!("BT /F1 12 Tf 72 720 Td ({text}) Tj ET").as_bytes()));
    }
    pdf(&objects, "/Info 4 0 R")
}

pub(crate) fn pdf_has_pages() {
    let document = one("a.pdf", pages_pdf(&["Hello first page", "And the second"]));
    assert_eq!(document.kind, Kind::Pdf);
    assert_eq!(document.title.as_deref(), Some("The title"));
    assert_eq!(document.layout.unit, Unit::Page);
    let at = |part: &str| document.text.find(part).unwrap_or_else(|| panic!("{:?}", document.text));
    let [first, second] = document.layout.starts[..] else { panic!("{:?}", document.layout) };
    assert_eq!((first, second.1), ((0, 1), 2));
    assert!(at("Hello first page") < second.0 && second.0 <= at("And the second"));
}

/// Forms that draw the next one twice: 2^64 of them.
pub(crate) fn looping_pdf() -> Vec<u8> {
    let mut objects = vec![
        b"<< /Type /Catalog /Pages 2 0 R >>".to_vec(),
        b"<< /Type /Pages /Kids [3 0 R] /Count 1 /MediaBox [0 0 612 792] >>".to_vec(),
        b"<< /Type /Page /Parent 2 0 R /Resources << /XObject << /F 5 0 R >> >> /Contents 4 0 R >>".to_vec(),
        stream("", b"/F Do"),
    ];
    for next in 6..70 {
        let form =
            format!("/Type /XObject /Subtype /Form /BBox [0 0 9 9] /Resources << /XObject << /F {next} 0 R >> >>");
        objects.push(stream(&form, b"/F Do /F Do"));
    }
    objects.push(stream("/Type /XObject /Subtype /Form /BBox [0 0 9 9] /Resources << >>", b""));
    pdf(&objects, "")
}

pub(crate) fn a_looping_pdf_reaches_the_time_limit() {
    let (_dir, path) = file("a.pdf", looping_pdf());
    let (parser, limits) = (parser(), Limits { seconds: 2, ..Limits::default() });
    let began = Instant::now();
    let error = parser.read_all(FileRef::of(&path), Format::Pdf, &limits).unwrap_err();
    assert_eq!(error, ReadError::Time(2));
    assert!(began.elapsed() < Duration::from_secs(10));
    // The pool goes on with another child.
    let (_dir, path) = file("b.html", "<p>well");
    assert_eq!(parser.read_all(FileRef::of(&path), Format::Html, &limits).unwrap().documents[0].text, "well");
}

pub(crate) fn a_pdf_that_contains_itself_is_an_error() {
    let objects = vec![
        b"<< /Type /Catalog /Pages 2 0 R >>".to_vec(),
        b"<< /Type /Pages /Kids [3 0 R 2 0 R] /Count 2 /Parent 2 0 R >>".to_vec(),
        b"<< /Type /Page /Parent 2 0 R /Resources << /XObject << /F 5 0 R >> >> /Contents 4 0 R >>".to_vec(),
        stream("", b"/F Do"),
        stream("/Type /XObject /Subtype /Form /BBox [0 0 9 9] /Resources << /XObject << /F 5 0 R >> >>", b"/F Do"),
    ];
    let error = parse_with("a.pdf", pdf(&objects, ""), &Limits { seconds: 5, ..Limits::default() }).unwrap_err();
    let ends =
        matches!(error, ReadError::Time(_) | ReadError::Crashed(_) | ReadError::Memory(_) | ReadError::Malformed(_));
    assert!(ends, "{error:?}");
}

/// `count` zeros, deflated: one literal, and matches of 258 bytes at distance 1.
fn deflated_zeros(count: usize) -> Vec<u8> {
    let (mut bytes, mut pending, mut bits) = (vec![0x78, 0x9c], 0_u64, 0);
    // Codes are written from their first bit; other numbers from their last.
    let mut put = |code: u64, length: u32| {
        let reversed = (0..length).fold(0, |all, bit| all | ((code >> bit & 1) << (length - 1 - bit)));
        pending |= reversed << bits;
        bits += length;
        while bits >= 8 {
            bytes.push(pending as u8);
            (pending, bits) = (pending >> 8, bits - 8);
        }
    };
    put(0b110, 3);
    put(0b0011_0000, 8);
    for _ in 0..count / 258 {
        put(0b1100_0101, 8);
        put(0, 5);
    }
    put(0, 7);
    put(0, 8);
    bytes
}

pub(crate) fn a_decompression_bomb_reaches_the_memory_limit() {
    let objects = vec![
        b"<< /Type /Catalog /Pages 2 0 R >>".to_vec(),
        b"<< /Type /Pages /Kids [3 0 R] /Count 1 /MediaBox [0 0 612 792] >>".to_vec(),
        b"<< /Type /Page /Parent 2 0 R /Resources << >> /Contents 4 0 R >>".to_vec(),
        stream("/Filter /FlateDecode", &deflated_zeros(1 << 30)),
    ];
    let (_dir, path) = file("a.pdf", pdf(&objects, ""));
    let (parser, limits) = (parser(), Limits { memory_bytes: 256 << 20, ..Limits::default() });
    let error = parser.read_all(FileRef::of(&path), Format::Pdf, &limits).unwrap_err();
    if cfg!(target_os = "linux") {
        assert_eq!(error, ReadError::Memory(256 << 20));
    }
    let (_dir, path) = file("b.html", "<p>well");
    assert_eq!(parser.read_all(FileRef::of(&path), Format::Html, &limits).unwrap().documents[0].text, "well");
}

pub(crate) fn damaged_pdfs_are_errors() {
    let (whole, parser, mut rng) = (pages_pdf(&["Hello first page", "And the second"]), parser(), Rng::new(5));
    let limits = Limits { seconds: 3, memory_bytes: 256 << 20, ..Limits::default() };
    for _ in 0..60 {
        let mut damaged = whole.clone();
        for _ in 0..1 + rng.below(6) {
            let at = rng.below(damaged.len());
            match rng.below(3) {
                0 => damaged[at] = rng.below(256) as u8,
                1 => damaged.truncate(at.max(20)),
                _ => drop(damaged.splice(at..at, *b"9999999")),
            }
        }
        let (_dir, path) = file("a.pdf", damaged);
        if let Err(ReadError::Process(why)) = parser.read_all(FileRef::of(&path), Format::Pdf, &limits) {
            panic!("the child must not fail to answer: {why}");
        }
    }
}
