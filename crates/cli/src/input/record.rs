//! Records of input files. The extension of a file decides how it is read.

use super::csv_file::CsvRecords;
use super::json_array::JsonArray;
use super::lines::{Line, Lines};
use super::{MAX_ROW_BYTES, Text, check_names};
use crate::Failure;
use crate::parquet_file::ParquetRows;
use crate::row::Row;
use std::path::Path;

/// A plain text or a row with fields, and its origin.
pub(crate) struct Record {
    pub(crate) content: Content,
    pub(crate) origin: String,
    pub(crate) bytes: u64,
}

pub(crate) enum Content {
    Text(String),
    Row(Row),
}

/// How a file is read.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum FileFormat {
    /// One text per line.
    Lines,
    /// One JSON object per line.
    Jsonl,
    /// An array of JSON objects or strings.
    Json,
    Csv {
        delimiter: u8,
    },
    Parquet,
}

impl FileFormat {
    /// The format of a file by its extension. Lines of other files are JSON objects if a field was
    /// named.
    pub(crate) fn of(path: &Path, has_field: bool) -> FileFormat {
        let ending = path.extension().and_then(|e| e.to_str()).map(str::to_ascii_lowercase);
        match ending.as_deref() {
            Some("jsonl" | "ndjson") => FileFormat::Jsonl,
            Some("json") => FileFormat::Json,
            Some("csv") => FileFormat::Csv { delimiter: b',' },
            Some("tsv") => FileFormat::Csv { delimiter: b'\t' },
            Some("parquet") => FileFormat::Parquet,
            _ if has_field => FileFormat::Jsonl,
            _ => FileFormat::Lines,
        }
    }
}

/// The fields of a row that are used.
#[derive(Clone, Copy, Debug)]
pub(crate) enum NeededFields<'a> {
    All,
    Only(&'a [&'a str]),
}

/// The records of a file, read lazily.
pub(crate) struct Records {
    pub(crate) records: Box<dyn Iterator<Item = Result<Record, Failure>> + Send>,
    /// The fields of every row, if the file declares them, and the name of the file.
    pub(crate) declared: Option<(Vec<String>, String)>,
}

impl Records {
    pub(crate) fn open(path: &Path, format: FileFormat, needed: NeededFields<'_>) -> Result<Records, Failure> {
        let name = path.display().to_string();
        Ok(match format {
            FileFormat::Lines => {
                let text = |Line { text, origin, bytes }| Record { content: Content::Text(text), origin, bytes };
                Records { records: Box::new(Lines::open(path)?.map(move |line| line.map(text))), declared: None }
            }
            FileFormat::Jsonl => {
                let is_blank = |line: &Result<Line, Failure>| line.as_ref().is_ok_and(|l| l.text.trim().is_empty());
                let lines = Lines::open(path)?.filter(move |line| !is_blank(line));
                Records { records: Box::new(lines.map(|line| parse_object(line?))), declared: None }
            }
            FileFormat::Json => Records { records: Box::new(JsonArray::open(path)?), declared: None },
            FileFormat::Csv { delimiter } => {
                let records = CsvRecords::open(path, delimiter)?;
                let declared = Some((records.names().to_vec(), name));
                Records { records: Box::new(records), declared }
            }
            FileFormat::Parquet => {
                let only = match needed {
                    NeededFields::All => None,
                    NeededFields::Only(fields) => Some(fields),
                };
                let rows = ParquetRows::open(path, only)?;
                check_names(&name, rows.names())?;
                let declared = Some((rows.names().to_vec(), name));
                let record = |(row, origin, bytes)| Record { content: Content::Row(Row::Parquet(row)), origin, bytes };
                Records { records: Box::new(rows.map(move |row| row.map(record))), declared }
            }
        })
    }

    /// Rejects a file that declares its fields and lacks this one.
    pub(crate) fn check_field(&self, name: &str, flag: &str) -> Result<(), Failure> {
        match &self.declared {
            Some((names, file)) if !names.iter().any(|n| n == name) => {
                let names = names.iter().map(String::as_str);
                Err(format!("{file}: {}", no_field(name, names, flag)).into())
            }
            _ => Ok(()),
        }
    }
}

fn parse_object(Line { text, origin, bytes }: Line) -> Result<Record, Failure> {
    match serde_json::from_str(&text) {
        Ok(object) => Ok(Record { content: Content::Row(Row::Object(object)), origin, bytes }),
        Err(e) => Err(format!("{origin}: not a JSON object: {e}").into()),
    }
}

impl Record {
    /// The plain text, or the field of the row.
    pub(crate) fn into_text(self, field: &str) -> Result<Text, Failure> {
        let Record { content, origin, bytes } = self;
        let text = match content {
            Content::Text(text) => Text { text, object: None, origin, number: None, bytes },
            Content::Row(row) => {
                let mut text = Text { text: String::new(), object: Some(row), origin, number: None, bytes };
                text.text = text.field(field, "--field")?.to_string();
                text
            }
        };
        if text.text.len() > MAX_ROW_BYTES {
            return Err(format!("{}: the text is longer than {} MiB", text.origin, MAX_ROW_BYTES >> 20).into());
        }
        Ok(text)
    }
}

/// Says that a field is missing, which there are, and the flag that chooses another.
pub(crate) fn no_field<'a>(name: &str, names: impl Iterator<Item = &'a str>, flag: &str) -> String {
    const MOST: usize = 20;
    let mut list: Vec<String> = names.map(|name| format!("`{name}`")).collect();
    let more = list.len().saturating_sub(MOST);
    list.truncate(MOST);
    if more > 0 {
        list.push(format!("and {more} more"));
    }
    match list.is_empty() {
        true => format!("no field `{name}`; there are no fields"),
        false => format!("no field `{name}`; the fields are {}; choose one with {flag} NAME", list.join(", ")),
    }
}
