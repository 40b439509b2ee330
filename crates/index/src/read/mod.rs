//! Readers: files to documents. Plain text is read here; other formats in a child process.

mod error;
mod format;
mod html;
mod html_elements;
mod markdown;
mod pdf;
mod process;
mod source;
mod table;
mod text;
mod wire;
pub mod worker;

use serde::{Deserialize, Serialize};

pub use error::ReadError;
pub use format::Format;
pub use process::{Parser, ParserCommand};
pub(crate) use source::open_regular;
pub use source::{FileRef, head_of};

use crate::document::Document;

/// What reading one file may cost.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub struct Limits {
    /// The largest file that is read as a whole (text, HTML and PDF), in bytes.
    pub file_bytes: u64,
    /// The most text of one file, in bytes.
    pub text_bytes: usize,
    /// The most rows of one table.
    pub rows: u64,
    /// The longest row of a table, in bytes.
    pub row_bytes: u64,
    /// The seconds that a parser may take for one file.
    pub seconds: u64,
    /// The memory that a parser may take, in bytes. Linux only: elsewhere the other limits hold.
    pub memory_bytes: u64,
}

impl Default for Limits {
    fn default() -> Self {
        Self {
            file_bytes: 64 << 20,
            text_bytes: 64 << 20,
            rows: 200_000,
            row_bytes: 16 << 20,
            seconds: 30,
            memory_bytes: 1 << 30,
        }
    }
}

/// What a file holds.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct Reading {
    /// One document, or one for each row of a table.
    pub documents: Vec<Document>,
    /// What was left out or replaced, for the report to the user.
    pub notes: Vec<String>,
}

/// Reads a file of plain text, Markdown or source code in this process. Other formats need a
/// [`Parser`], because their parsers are not safe with hostile files.
pub fn read(file: FileRef<'_>, format: Format, limits: &Limits) -> Result<Reading, ReadError> {
    if format.needs_parser() {
        return Err(ReadError::NeedsParser(format));
    }
    text::read(source::open(file)?, format, limits)
}
