//! Input texts: from arguments, files or standard input; lines, or a field of rows.

mod csv_file;
mod json_array;
mod lines;
mod record;
#[cfg(test)]
mod tests;

pub(crate) use record::{Content, FileFormat, NeededFields, Record, Records, no_field};

use crate::Failure;
use crate::parquet_file::ParquetRows;
use crate::row::{Columns, FieldType, Row};
use clap::Args;
use serde_json::{Map, Value};
use std::iter::Peekable;
use std::path::{Path, PathBuf};

/// Most bytes of a line, a record or a text. The memory for a hostile file is bounded.
pub(crate) const MAX_ROW_BYTES: usize = 64 << 20;

/// Why `--field` and its like are refused; with `--shards` the arguments are files.
pub(crate) const NO_FIELDS: &str =
    "texts that are arguments have no fields: leave out --field and --pair-field, or name files with --file";

/// The field with the text, if no other is named.
pub(crate) const DEFAULT_FIELD: &str = "text";

#[derive(Args, Clone)]
pub(crate) struct Input {
    /// Texts. Without TEXT and --file, standard input is read, one text per line.
    #[arg(value_name = "TEXT")]
    texts: Vec<String>,
    /// Read texts from this file (`-` is standard input). May be repeated.
    ///
    /// The extension decides: .jsonl has a JSON object per line, .json an array of objects or
    /// strings, .csv and .tsv name the fields in the first line, .parquet has columns. The text is
    /// the field `text`, or that of --field. Other files have one text per line.
    #[arg(short, long, value_name = "FILE", conflicts_with = "texts")]
    file: Vec<PathBuf>,
    /// Take the text from field NAME. JSONL and Parquet output keep the other fields. Lines of
    /// standard input and of files with another extension are then JSON objects.
    #[arg(long, value_name = "NAME")]
    field: Option<String>,
}

/// A text and its origin.
#[derive(Clone, Debug)]
pub(crate) struct Text {
    pub(crate) text: String,
    /// The row that contains it.
    pub(crate) object: Option<Row>,
    /// `file:line`, `file: row N` or `argument N`.
    pub(crate) origin: String,
    /// Number of its row in the file, if the output has it.
    pub(crate) number: Option<u64>,
    /// Input bytes, for the progress bar.
    pub(crate) bytes: u64,
}

impl Text {
    /// A string field of the row; `flag` is the flag that chooses it.
    pub(crate) fn field(&self, name: &str, flag: &str) -> Result<&str, Failure> {
        let why = match self.object.as_ref().and_then(|row| row.text(name)) {
            Some(Ok(text)) => return Ok(text),
            Some(Err(why)) => why,
            None => {
                let names = self.object.as_ref().map(Row::names).unwrap_or_default();
                no_field(name, names.into_iter(), flag)
            }
        };
        Err(format!("{}: {why}", self.origin).into())
    }

    /// The first characters of the text, on one line.
    pub(crate) fn preview(&self) -> String {
        preview(&self.text)
    }
}

/// The first characters of a text, on one line.
pub(crate) fn preview(text: &str) -> String {
    let head: String = text.chars().take(48).map(|c| if c.is_control() { ' ' } else { c }).collect();
    if text.chars().nth(48).is_some() { format!("{head}…") } else { head }
}

/// Texts, read lazily.
pub(crate) type TextIterator = Peekable<Box<dyn Iterator<Item = Result<Text, Failure>> + Send>>;

impl Input {
    /// The arguments and files, if the arguments are names of files.
    pub(crate) fn names(&self) -> Vec<String> {
        let files = self.file.iter().map(|path| path.display().to_string());
        self.texts.iter().cloned().chain(files).collect()
    }

    /// Whether the input is a single argument, so that answers need not name their text.
    pub(crate) fn is_one(&self) -> bool {
        self.texts.len() == 1
    }

    /// Whether there are texts among the arguments.
    pub(crate) fn has_arguments(&self) -> bool {
        !self.texts.is_empty()
    }

    /// The field with the text.
    pub(crate) fn field(&self) -> &str {
        self.field.as_deref().unwrap_or(DEFAULT_FIELD)
    }

    /// The texts, read lazily. Of Parquet files only the needed fields are read.
    pub(crate) fn texts(&self, needed: NeededFields<'_>) -> Result<TextIterator, Failure> {
        if !self.texts.is_empty() {
            if self.field.is_some() {
                return Err(NO_FIELDS.into());
            }
            let text = |(i, text): (usize, String)| {
                let (origin, bytes) = (format!("argument {}", i + 1), text.len() as u64);
                Ok(Text { text, object: None, origin, number: None, bytes })
            };
            return Ok(boxed(self.texts.clone().into_iter().enumerate().map(text)));
        }
        // Opens all files first, and reads the first text of each: a misspelled name or field must
        // not surface after an hour's work on the others.
        let open = self.files().into_iter().map(|path| self.open(&path, needed)).collect::<Result<Vec<_>, _>>()?;
        Ok(boxed(open.into_iter().flatten()))
    }

    fn open(&self, path: &Path, needed: NeededFields<'_>) -> Result<TextIterator, Failure> {
        let records = Records::open(path, FileFormat::of(path, self.field.is_some()), needed)?;
        records.check_field(self.field(), "--field")?;
        if let NeededFields::Only(fields) = needed {
            fields.iter().try_for_each(|field| records.check_field(field, "--pair-field"))?;
        }
        let (field, is_named) = (self.field().to_string(), self.field.is_some());
        let text = move |record: Result<Record, Failure>| match record? {
            Record { content: Content::Text(_), origin, .. } if is_named => {
                Err(format!("{origin}: a string, which has no field `{field}`").into())
            }
            record => record.into_text(&field),
        };
        let mut texts = boxed(records.records.map(text));
        if let Some(Err(_)) = texts.peek() {
            texts.next().transpose()?;
        }
        Ok(texts)
    }

    fn files(&self) -> Vec<PathBuf> {
        if self.file.is_empty() { vec![PathBuf::from("-")] } else { self.file.clone() }
    }

    /// The columns that Parquet output keeps. They must be known before the first row is written,
    /// so files of JSON objects are read once for their fields.
    pub(crate) fn columns(&self) -> Result<Columns, Failure> {
        match self.texts.is_empty() {
            true => columns_of(&self.files(), self.field.is_some(), |_| true),
            false => Ok(Columns::default()),
        }
    }

    /// Bytes of input, if known.
    pub(crate) fn bytes(&self) -> Option<u64> {
        if !self.texts.is_empty() {
            return Some(self.texts.iter().map(|t| t.len() as u64).sum());
        }
        let size = |path: &PathBuf| std::fs::metadata(path).ok().filter(|m| m.is_file()).map(|m| m.len());
        (!self.file.is_empty()).then(|| self.file.iter().map(size).sum()).flatten()
    }
}

fn boxed(texts: impl Iterator<Item = Result<Text, Failure>> + Send + 'static) -> TextIterator {
    let texts: Box<dyn Iterator<Item = Result<Text, Failure>> + Send> = Box::new(texts);
    texts.peekable()
}

/// The columns of files, of JSON objects only those that `is_row` accepts.
pub(crate) fn columns_of(
    files: &[PathBuf],
    has_field: bool,
    is_row: impl Fn(&Map<String, Value>) -> bool,
) -> Result<Columns, Failure> {
    let mut columns = Columns::default();
    for path in files {
        let (name, format) = (path.display().to_string(), FileFormat::of(path, has_field));
        match format {
            FileFormat::Lines => {}
            FileFormat::Parquet => columns.add_parquet(ParquetRows::open(path, None)?.columns(), &name)?,
            FileFormat::Csv { .. } => {
                let records = Records::open(path, format, NeededFields::All)?;
                let fields = columns.fields(&name)?;
                for field in records.declared.into_iter().flat_map(|(names, _)| names) {
                    fields.add_field(&field, Some(FieldType::String)).map_err(|why| format!("{name}: {why}"))?;
                }
            }
            FileFormat::Jsonl | FileFormat::Json => {
                check_can_reread(path, &name)?;
                let fields = columns.fields(&name)?;
                for record in Records::open(path, format, NeededFields::All)?.records {
                    let Record { content, origin, .. } = record?;
                    if let Content::Row(Row::Object(object)) = content
                        && is_row(&object)
                    {
                        fields.add(&object).map_err(|why| format!("{origin}: {why}"))?;
                    }
                }
            }
        }
    }
    Ok(columns)
}

/// Objects are read twice for Parquet output, which a pipe does not allow.
fn check_can_reread(path: &Path, name: &str) -> Result<(), Failure> {
    let is_file = std::fs::metadata(path).is_ok_and(|m| m.is_file());
    match (path == Path::new("-"), is_file) {
        (false, true) => Ok(()),
        (true, _) => Err("Parquet output needs the fields of all objects before the first row, so it cannot \
            keep those of standard input; save them to a .jsonl file"
            .into()),
        (false, false) => Err(format!(
            "{name}: not a regular file; Parquet output needs the fields of all objects before the first row"
        )
        .into()),
    }
}

/// Rejects fields of the same name.
pub(crate) fn check_names(file: &str, names: &[String]) -> Result<(), Failure> {
    let mut seen = std::collections::HashSet::new();
    match names.iter().find(|name| !seen.insert(name.as_str())) {
        Some(name) => Err(format!("{file}: two fields are named `{name}`; rename one").into()),
        None => Ok(()),
    }
}
