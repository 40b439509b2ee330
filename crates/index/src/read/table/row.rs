//! A row of a table as a document: its text, its title and its metadata.

use crate::document::{Document, Kind, Layout, Metadata, Value};

/// Columns of these names hold the text of a row, in this order; others describe it.
const TEXT_COLUMNS: [&str; 3] = ["text", "content", "body"];

/// Longer values are text, not something to filter by.
const MAX_VALUE: usize = 1024;

/// More columns than this have no place in metadata.
const MAX_KEYS: usize = 64;

/// A row: names of columns and their values.
#[derive(Default)]
pub(super) struct Row {
    cells: Vec<(String, Cell)>,
}

/// A value of a row.
pub(super) enum Cell {
    /// One value.
    Scalar(Value),
    /// A list or an object as text: it is searched, but filters cannot use it.
    Nested(String),
}

impl Row {
    pub(super) fn push(&mut self, name: &str, cell: Cell) {
        self.cells.push((clean(name), cell));
    }

    /// The row's document; `None` if the row is empty.
    pub(super) fn into_document(self, number: u64) -> Option<Document> {
        let text_of = |name: &str| {
            self.cells.iter().position(|(key, cell)| {
                key.eq_ignore_ascii_case(name)
                    && matches!(cell, Cell::Scalar(Value::Text(text)) if !text.trim().is_empty())
            })
        };
        let title =
            text_of("title").and_then(|at| self.cells[at].1.text()).map(|title| title.chars().take(200).collect());
        let text_at = TEXT_COLUMNS.iter().find_map(|name| text_of(name));
        let text = match text_at.and_then(|at| self.cells[at].1.text()) {
            Some(text) => text,
            None => self.lines(),
        };
        if text.trim().is_empty() {
            return None;
        }
        let mut metadata = Metadata::new();
        for (at, (key, cell)) in self.cells.into_iter().enumerate() {
            let is_short = key.len() <= MAX_VALUE && metadata.len() < MAX_KEYS;
            match cell {
                _ if Some(at) == text_at || !is_short => {}
                Cell::Scalar(Value::Text(text)) if text.len() > MAX_VALUE => {}
                Cell::Scalar(Value::Text(text)) => {
                    metadata.insert(key, Value::Text(clean(&text)));
                }
                Cell::Scalar(value) => {
                    metadata.insert(key, value);
                }
                Cell::Nested(_) => {}
            }
        }
        let layout = Layout::default();
        Some(Document { title, kind: Kind::Table, text, metadata, row: Some(number), layout })
    }

    /// A line `name: value` for each column that has a value.
    fn lines(&self) -> String {
        let lines = self.cells.iter().filter_map(|(key, cell)| {
            let value = cell.text()?;
            (!value.trim().is_empty()).then(|| format!("{key}: {value}"))
        });
        lines.collect::<Vec<_>>().join("\n")
    }
}

impl Cell {
    fn text(&self) -> Option<String> {
        match self {
            Self::Scalar(Value::Null) => None,
            Self::Scalar(Value::Bool(value)) => Some(value.to_string()),
            Self::Scalar(Value::Integer(value)) => Some(value.to_string()),
            Self::Scalar(Value::Float(value)) => Some(value.to_string()),
            Self::Scalar(Value::Text(text)) | Self::Nested(text) => Some(clean(text)),
        }
    }
}

/// The text without NUL, which ends strings in C libraries behind us.
fn clean(text: &str) -> String {
    text.replace('\0', " ")
}
