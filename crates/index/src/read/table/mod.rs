//! Tables: one document for each row.

mod bounded;
mod csv;
mod json_lines;
mod parquet;
mod row;

use std::ops::ControlFlow;

use super::error::ReadError;
use super::source::Source;
use super::{Format, Limits};
use crate::document::Document;
use row::Row;

/// Reads a table and passes on its rows. The result is the notes for the user.
pub(super) fn read(
    source: Source,
    format: Format,
    limits: &Limits,
    each: &mut dyn FnMut(Document) -> std::io::Result<()>,
) -> Result<Vec<String>, ReadError> {
    let mut rows = Rows { limits, each, count: 0, text_bytes: 0, notes: Vec::new(), bad: None };
    match format {
        Format::Csv => csv::read(source, None, &mut rows)?,
        Format::Tsv => csv::read(source, Some(b'\t'), &mut rows)?,
        Format::JsonLines => json_lines::read(source, &mut rows)?,
        Format::Parquet => parquet::read(source, &mut rows)?,
        _ => return Err(ReadError::Process(format!("{format:?} is not a table"))),
    }
    Ok(rows.finish())
}

/// Where rows go, within the limits.
struct Rows<'a> {
    limits: &'a Limits,
    each: &'a mut dyn FnMut(Document) -> std::io::Result<()>,
    count: u64,
    text_bytes: usize,
    notes: Vec<String>,
    /// How many rows could not be read, and why the first could not.
    bad: Option<(u64, String)>,
}

impl Rows<'_> {
    /// Passes a row on. `Break` where a limit is reached. A row without text has no document.
    fn push(&mut self, number: u64, row: Row) -> Result<ControlFlow<()>, ReadError> {
        let Limits { rows, text_bytes, .. } = *self.limits;
        let Some(document) = row.into_document(number) else { return Ok(ControlFlow::Continue(())) };
        if self.count >= rows {
            self.notes.push(format!("only the first {rows} rows were read"));
            return Ok(ControlFlow::Break(()));
        }
        self.text_bytes += document.text.len();
        if self.text_bytes > text_bytes {
            self.notes
                .push(format!("only the first {} rows were read: they have {text_bytes} bytes of text", self.count));
            return Ok(ControlFlow::Break(()));
        }
        self.count += 1;
        (self.each)(document)?;
        Ok(ControlFlow::Continue(()))
    }

    /// Records a row that could not be read.
    fn bad_row(&mut self, why: impl FnOnce() -> String) {
        match &mut self.bad {
            Some((count, _)) => *count += 1,
            None => self.bad = Some((1, why())),
        }
    }

    fn finish(mut self) -> Vec<String> {
        if let Some((count, first)) = self.bad {
            self.notes.push(format!("{count} rows could not be read; the first: {first}"));
        }
        self.notes
    }
}
