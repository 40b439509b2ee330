//! PDF files: the text of each page.

use std::cell::RefCell;
use std::fmt;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::rc::Rc;

use pdf_extract::{ConvertToFmt, MediaBox, OutputDev, OutputError, PlainTextOutput, Transform};

use super::error::ReadError;
use super::source::Source;
use super::{Limits, Reading};
use crate::document::{Document, Kind, Layout, Metadata, Unit};

/// Reads a PDF file. Called in the child process: the parser panics at many malformed files, and
/// does not bound what streams unpack to.
pub(super) fn read(source: Source, limits: &Limits) -> Result<Reading, ReadError> {
    let content = source.content(limits.file_bytes)?;
    let malformed = |error: &dyn fmt::Display| ReadError::Malformed(error.to_string());
    let mut pdf = pdf_extract::Document::load_mem(&content).map_err(|e| malformed(&e))?;
    drop(content);
    if pdf.is_encrypted() && pdf.decrypt("").is_err() {
        return Err(ReadError::Malformed("it is encrypted, and the password is not empty".to_string()));
    }
    let pages = Rc::new(RefCell::new(Pages { text_bytes: limits.text_bytes, ..Pages::default() }));
    let notes = extract(&pdf, &pages)?;
    let title = title(&pdf);
    let pages = std::mem::take(&mut *pages.borrow_mut());
    if pages.text.trim().is_empty() && notes.is_empty() {
        return Err(ReadError::Malformed("its pages have no text; they may be scanned images".to_string()));
    }
    let layout = Layout { unit: Unit::Page, starts: pages.starts, headings: Vec::new() };
    let document = Document { title, kind: Kind::Pdf, text: pages.text, metadata: Metadata::new(), row: None, layout };
    Ok(Reading { documents: vec![document], notes })
}

/// Extracts all pages. Where one fails, it is noted, and the pages behind it are read one by one.
fn extract(pdf: &pdf_extract::Document, pages: &Rc<RefCell<Pages>>) -> Result<Vec<String>, ReadError> {
    let run = |only: Option<u32>| {
        let mut output =
            PageOutput { pages: Rc::clone(pages), inner: PlainTextOutput::new(PageWriter(Rc::clone(pages))) };
        let result = catch_unwind(AssertUnwindSafe(|| match only {
            None => pdf_extract::output_doc(pdf, &mut output),
            Some(page) => pdf_extract::output_doc_page(pdf, &mut output, page),
        }));
        match result {
            Ok(Ok(())) => None,
            Ok(Err(error)) => Some(error.to_string()),
            Err(_) => Some("the parser panicked".to_string()),
        }
    };
    let Some(first) = run(None) else { return Ok(Vec::new()) };
    let numbers: Vec<u32> = pdf.get_pages().into_keys().collect();
    let reached = pages.borrow().starts.last().map_or(0, |(_, page)| *page);
    let (mut failed, mut reason, mut count) = (reached.max(1), first, 1_u32);
    for page in numbers.into_iter().filter(|&page| page > reached.max(1)) {
        if pages.borrow().is_full {
            break;
        }
        if let Some(error) = run(Some(page)) {
            (failed, reason, count) = (page, error, count + 1);
        }
    }
    let pages = pages.borrow();
    if pages.is_full {
        return Ok(vec![format!("only the first {} bytes of the text were read", pages.text_bytes)]);
    }
    if pages.text.trim().is_empty() {
        return Err(ReadError::Malformed(reason));
    }
    Ok(vec![format!("{count} pages could not be read, the last of them page {failed}: {reason}")])
}

/// The text so far, and where pages begin in it.
#[derive(Default)]
struct Pages {
    text: String,
    starts: Vec<(usize, u32)>,
    text_bytes: usize,
    is_full: bool,
}

struct PageWriter(Rc<RefCell<Pages>>);

impl ConvertToFmt for PageWriter {
    type Writer = PageWriter;
    fn convert(self) -> PageWriter {
        self
    }
}

impl fmt::Write for PageWriter {
    fn write_str(&mut self, s: &str) -> fmt::Result {
        let mut pages = self.0.borrow_mut();
        if pages.text.len() + s.len() > pages.text_bytes {
            pages.is_full = true;
            return Err(fmt::Error);
        }
        let clean = s.chars().map(|c| if c.is_control() && c != '\n' { ' ' } else { c });
        pages.text.extend(clean);
        Ok(())
    }
}

/// Records where pages begin, and leaves the rest to the crate.
struct PageOutput {
    pages: Rc<RefCell<Pages>>,
    inner: PlainTextOutput<PageWriter>,
}

impl OutputDev for PageOutput {
    fn begin_page(
        &mut self,
        number: u32,
        media_box: &MediaBox,
        art_box: Option<(f64, f64, f64, f64)>,
    ) -> Result<(), OutputError> {
        let mut pages = self.pages.borrow_mut();
        if !pages.text.is_empty() && pages.text.len() + 2 <= pages.text_bytes {
            let ends = pages.text.bytes().rev().take_while(|&b| b == b'\n').count();
            pages.text.push_str(&"\n\n"[ends.min(2)..]);
        }
        let start = pages.text.len();
        pages.starts.push((start, number));
        drop(pages);
        self.inner.begin_page(number, media_box, art_box)
    }

    fn end_page(&mut self) -> Result<(), OutputError> {
        self.inner.end_page()
    }

    fn output_character(
        &mut self,
        trm: &Transform,
        width: f64,
        spacing: f64,
        font_size: f64,
        char: &str,
    ) -> Result<(), OutputError> {
        self.inner.output_character(trm, width, spacing, font_size, char)
    }

    fn begin_word(&mut self) -> Result<(), OutputError> {
        self.inner.begin_word()
    }

    fn end_word(&mut self) -> Result<(), OutputError> {
        self.inner.end_word()
    }

    fn end_line(&mut self) -> Result<(), OutputError> {
        self.inner.end_line()
    }
}

/// The title in the file's properties: UTF-16, or bytes that are nearly Latin-1.
fn title(pdf: &pdf_extract::Document) -> Option<String> {
    let info = pdf.trailer.get(b"Info").ok()?.as_reference().ok()?;
    let bytes = pdf.get_dictionary(info).ok()?.get(b"Title").ok()?.as_str().ok()?;
    let title: String = match bytes.strip_prefix(&[0xfe, 0xff]) {
        Some(rest) => {
            let (units, _) = rest.as_chunks::<2>();
            String::from_utf16_lossy(&units.iter().map(|unit| u16::from_be_bytes(*unit)).collect::<Vec<_>>())
        }
        None => match std::str::from_utf8(bytes) {
            Ok(text) => text.to_string(),
            Err(_) => bytes.iter().map(|&b| char::from(b)).collect(),
        },
    };
    let title: String = title.split_whitespace().collect::<Vec<_>>().join(" ");
    let title: String = title.chars().filter(|c| !c.is_control()).take(super::markdown::MAX_HEADING).collect();
    Some(title).filter(|title| !title.is_empty())
}
