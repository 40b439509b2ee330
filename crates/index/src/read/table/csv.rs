//! CSV: the first row names the columns; the type of a column follows from its first values.

use csv::{ByteRecord, ReaderBuilder};

use super::bounded::{Allowance, Bounded};
use super::row::{Cell, Row};
use super::{ReadError, Rows};
use crate::document::Value;
use crate::read::source::Source;

/// How many rows decide the types of columns.
const TYPED_ROWS: usize = 1000;

/// How many bytes of rows are kept at most before types are decided.
const TYPED_BYTES: usize = 8 << 20;

/// More columns are no table that a person would search.
const MAX_COLUMNS: usize = 10_000;

/// Reads CSV. Without a delimiter, the header decides between comma, semicolon, tab and bar.
pub(super) fn read(source: Source, delimiter: Option<u8>, rows: &mut Rows<'_>) -> Result<(), ReadError> {
    if source.head.contains(&0) {
        return Err(ReadError::Binary);
    }
    let delimiter = delimiter.unwrap_or_else(|| delimiter_of(&source.head));
    let allowance = Allowance::new(rows.limits.row_bytes);
    let mut reader = ReaderBuilder::new()
        .delimiter(delimiter)
        .flexible(true)
        .has_headers(true)
        .from_reader(Bounded::new(source.file, allowance.clone()));
    let malformed = |error: csv::Error| ReadError::Malformed(error.to_string());
    let names = column_names(reader.byte_headers().map_err(malformed)?);
    if names.len() > MAX_COLUMNS {
        return Err(ReadError::Malformed(format!("its first row has more than {MAX_COLUMNS} columns")));
    }
    let mut first: Vec<ByteRecord> = Vec::new();
    let mut bytes = 0;
    let mut record = ByteRecord::new();
    while first.len() < TYPED_ROWS && bytes < TYPED_BYTES {
        allowance.renew();
        if !reader.read_byte_record(&mut record).map_err(malformed)? {
            break;
        }
        bytes += record.as_slice().len() + record.len() * size_of::<usize>();
        first.push(record.clone());
    }
    let types: Vec<Type> =
        (0..names.len()).map(|column| Type::of(first.iter().filter_map(|r| r.get(column)))).collect();
    let table = Columns { names, types };
    let mut number = 0;
    for record in first {
        number += 1;
        if rows.push(number, table.row(&record))?.is_break() {
            return Ok(());
        }
    }
    loop {
        allowance.renew();
        if !reader.read_byte_record(&mut record).map_err(malformed)? {
            return Ok(());
        }
        number += 1;
        if rows.push(number, table.row(&record))?.is_break() {
            return Ok(());
        }
    }
}

struct Columns {
    names: Vec<String>,
    types: Vec<Type>,
}

impl Columns {
    fn row(&self, record: &ByteRecord) -> Row {
        let mut row = Row::default();
        for (column, cell) in record.iter().take(MAX_COLUMNS).enumerate() {
            match (self.names.get(column), self.types.get(column)) {
                (Some(name), Some(kind)) => row.push(name, Cell::Scalar(kind.value(cell))),
                // A row may be longer than the header.
                _ => row.push(&format!("column {}", column + 1), Cell::Scalar(Type::Text.value(cell))),
            }
        }
        row
    }
}

/// The type of a column.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Type {
    Bool,
    Integer,
    Float,
    Text,
}

impl Type {
    /// The narrowest type that all values have; empty ones have any.
    fn of<'a>(values: impl Iterator<Item = &'a [u8]>) -> Self {
        let mut types = [Self::Bool, Self::Integer, Self::Float].to_vec();
        let mut is_empty = true;
        for value in values.map(<[u8]>::trim_ascii).filter(|value| !value.is_empty()) {
            is_empty = false;
            types.retain(|kind| kind.parse(value).is_some());
            if types.is_empty() {
                break;
            }
        }
        if is_empty { Self::Text } else { types.first().copied().unwrap_or(Self::Text) }
    }

    /// The value of a cell. One that does not have the column's type stays text.
    fn value(self, cell: &[u8]) -> Value {
        let trimmed = cell.trim_ascii();
        if trimmed.is_empty() {
            return Value::Null;
        }
        self.parse(trimmed).unwrap_or_else(|| Value::Text(String::from_utf8_lossy(cell).into_owned()))
    }

    fn parse(self, cell: &[u8]) -> Option<Value> {
        let text = std::str::from_utf8(cell).ok()?;
        match self {
            Self::Bool if text.eq_ignore_ascii_case("true") => Some(Value::Bool(true)),
            Self::Bool if text.eq_ignore_ascii_case("false") => Some(Value::Bool(false)),
            Self::Integer if is_number(text) => text.parse().ok().map(Value::Integer),
            Self::Float if is_number(text) => text.parse().ok().filter(|v: &f64| v.is_finite()).map(Value::Float),
            _ => None,
        }
    }
}

/// Numbers as programs write them. `007` and `+49…` are codes, `nan` and `inf` are words.
fn is_number(text: &str) -> bool {
    let digits = text.strip_prefix('-').unwrap_or(text);
    let mut bytes = digits.bytes();
    match (bytes.next(), bytes.next()) {
        (Some(b'0'), Some(next)) => !next.is_ascii_digit(),
        (Some(first), _) => first.is_ascii_digit(),
        (None, _) => false,
    }
}

/// The names of columns: empty ones get a number, repeated ones too.
fn column_names(header: &ByteRecord) -> Vec<String> {
    let mut seen = std::collections::HashSet::new();
    let mut names = Vec::with_capacity(header.len().min(MAX_COLUMNS));
    for (i, name) in header.iter().take(MAX_COLUMNS + 1).enumerate() {
        let name = String::from_utf8_lossy(name);
        let name: String = name.trim().chars().take(200).collect();
        let name = if name.is_empty() { format!("column {}", i + 1) } else { name };
        let name = if seen.contains(&name) { format!("{name} ({})", i + 1) } else { name };
        seen.insert(name.clone());
        names.push(name);
    }
    names
}

/// The delimiter that the first line has most of.
fn delimiter_of(head: &[u8]) -> u8 {
    let line = head.split(|&b| b == b'\n').next().unwrap_or(head);
    let count = |delimiter: u8| line.iter().filter(|&&b| b == delimiter).count();
    // The last of equals wins, so a comma is the choice without any.
    [b'|', b'\t', b';', b','].into_iter().max_by_key(|&delimiter| count(delimiter)).unwrap_or(b',')
}
