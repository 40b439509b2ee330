//! Output of results: text, JSON, JSONL, and for vectors .npy or raw little-endian bytes; to
//! standard output or a file.

use crate::Failure;
use crate::input::Text;
use crate::output_file::{OutputFile, remove_on_ctrl_c};
use clap::{Args, ValueEnum};
use serde::Serialize;
use serde::ser::{SerializeMap, Serializer};
use serde_json::{Map, Value, json};
use std::io::{self, ErrorKind, Write};
use std::path::{Path, PathBuf};

#[derive(Args, Clone)]
pub(crate) struct Output {
    /// Write to this file instead of standard output.
    #[arg(short, long, value_name = "FILE")]
    out: Option<PathBuf>,
    /// Output format. Default: by the extension of --out (.json, .jsonl, .npy, .bin), else text.
    #[arg(long, value_enum, value_name = "FORMAT")]
    format: Option<Format>,
    /// Same as --format json.
    #[arg(long, conflicts_with = "format")]
    json: bool,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
enum Format {
    /// Lines for people and line-based tools; vectors as numbers separated by spaces.
    Text,
    /// One object: the results, their `tokens`, the indices of `truncated` texts, and what ran.
    Json,
    /// One object per text, with the fields of the input object if there is one.
    Jsonl,
    /// A numpy array; vectors only.
    Npy,
    /// Raw little-endian numbers; vectors only.
    Bin,
}

/// The result for one text in each output format.
pub(crate) trait ResultRow: Serialize {
    /// Lines of text, each with its newline; empty if there is nothing to print.
    fn lines(&self, of: &Text) -> String;
    /// The numbers as little-endian bytes, if they are a row of an array.
    fn bytes(&self) -> Vec<u8> {
        Vec::new()
    }
}

/// How a text was tokenized.
#[derive(Clone, Copy, Debug)]
pub(crate) struct TokenInfo {
    pub(crate) tokens: usize,
    pub(crate) truncated: bool,
}

/// Names of the results in the output, and their array type.
#[derive(Clone, Copy, Debug)]
pub(crate) struct ResultNames {
    /// JSON field with all results.
    pub(crate) many: &'static str,
    /// JSONL field with one result; `None` if the result is an object itself.
    pub(crate) one: Option<&'static str>,
    /// Numpy type and numbers per row.
    pub(crate) array: Option<(&'static str, usize)>,
}

/// An open output.
pub(crate) struct Writer {
    file: OutputFile,
    name: String,
    format: Format,
    names: ResultNames,
    rows: usize,
    tokens: Vec<usize>,
    truncated: Vec<usize>,
}

impl Output {
    /// Opens the output. Ctrl-C removes a partial file.
    pub(crate) fn open(&self, names: ResultNames) -> Result<Writer, Failure> {
        self.check(names.array.is_some())?;
        let format = self.format();
        let name = self.out.as_ref().map_or_else(|| "standard output".into(), |path| path.display().to_string());
        // The .npy header contains the number of rows, which is known only at the end.
        let file = OutputFile::open(self.out.as_deref(), format == Format::Npy).map_err(|e| name_error(&name, e))?;
        remove_on_ctrl_c(file.temporary_path())?;
        let (tokens, truncated) = (Vec::new(), Vec::new());
        let mut writer = Writer { file, name, format, names, rows: 0, tokens, truncated };
        let begun = match format {
            Format::Npy => writer.npy_header(),
            Format::Json => write!(writer.file, "{{\"{}\":[", names.many),
            Format::Text | Format::Jsonl | Format::Bin => Ok(()),
        };
        begun.map_err(|e| name_error(&writer.name, e))?;
        Ok(writer)
    }

    /// Rejects a format that cannot hold the results, before a model is loaded.
    pub(crate) fn check(&self, is_array: bool) -> Result<(), Failure> {
        if !is_array && matches!(self.format(), Format::Npy | Format::Bin) {
            return Err("--format npy and bin need one vector per text; use text, json or jsonl".into());
        }
        Ok(())
    }

    /// Whether a text could be streamed to standard output.
    pub(crate) fn can_stream(&self) -> bool {
        self.format() == Format::Text && self.out.is_none()
    }

    /// Whether vectors could be written as base64 strings.
    pub(crate) fn is_json(&self) -> bool {
        matches!(self.format(), Format::Json | Format::Jsonl)
    }

    fn format(&self) -> Format {
        let ending = self.out.as_deref().and_then(Path::extension).and_then(|e| e.to_str());
        match (self.json, self.format, ending) {
            (true, ..) | (_, None, Some("json")) => Format::Json,
            (_, Some(format), _) => format,
            (_, _, Some("jsonl" | "ndjson")) => Format::Jsonl,
            (_, _, Some("npy")) => Format::Npy,
            (_, _, Some("bin")) => Format::Bin,
            _ => Format::Text,
        }
    }
}

impl Writer {
    /// Writes the result for `text`, or for an image, which has no tokens.
    pub(crate) fn write(&mut self, text: &Text, cell: &impl ResultRow, info: Option<TokenInfo>) -> Result<(), Failure> {
        if self.format == Format::Jsonl {
            self.check_fields(text)?;
        }
        self.row(text, cell, info).map_err(|e| name_error(&self.name, e))?;
        if let Some(info) = info {
            self.tokens.push(info.tokens);
            self.truncated.extend(info.truncated.then_some(self.rows));
        }
        self.rows += 1;
        Ok(())
    }

    /// Flushes, so that the reader of a pipe sees the results so far.
    pub(crate) fn flush_stream(&mut self) -> Result<(), Failure> {
        self.file.flush_stream().map_err(|e| name_error(&self.name, e))
    }

    fn row(&mut self, text: &Text, cell: &impl ResultRow, info: Option<TokenInfo>) -> io::Result<()> {
        let (one, file) = (self.names.one, &mut self.file);
        match self.format {
            Format::Text => file.write_all(cell.lines(text).as_bytes()),
            Format::Json => {
                file.write_all(if self.rows == 0 { b"\n" } else { b",\n" })?;
                Ok(serde_json::to_writer(file, cell)?)
            }
            Format::Jsonl => {
                match one {
                    Some(one) => line(file, text.object.as_ref(), one, cell, info)?,
                    None => serde_json::to_writer(&mut *file, cell)?,
                }
                file.write_all(b"\n")
            }
            Format::Npy | Format::Bin => file.write_all(&cell.bytes()),
        }
    }

    /// The input object must not contain our fields already, because nothing is overwritten.
    fn check_fields(&self, text: &Text) -> Result<(), Failure> {
        let taken = |field: &&str| text.object.as_ref().is_some_and(|o| o.contains_key(*field));
        match self.names.one.into_iter().chain(["tokens", "truncated"]).find(taken) {
            Some(field) => {
                Err(format!("{}: the object already has a field `{field}`; rename it first", text.origin).into())
            }
            None => Ok(()),
        }
    }

    /// Completes the output and renames it to its final name. `about` is an object with further
    /// fields for JSON.
    pub(crate) fn finish(mut self, about: &Value) -> Result<(), Failure> {
        let name = self.name.clone();
        let end = move || -> io::Result<()> {
            match self.format {
                Format::Json => {
                    write!(self.file, "\n],")?;
                    if self.tokens.len() == self.rows {
                        let rest = json!({"tokens": self.tokens, "truncated": self.truncated}).to_string();
                        write!(self.file, "{},", &rest[1..rest.len() - 1])?;
                    }
                    writeln!(self.file, "{}", &about.to_string()[1..])?;
                }
                Format::Npy => self.npy_header()?,
                Format::Text | Format::Jsonl | Format::Bin => {}
            }
            self.file.finish()
        };
        end().map_err(|e| name_error(&name, e))
    }

    /// Always 128 bytes, so that it can be rewritten once the rows are counted.
    fn npy_header(&mut self) -> io::Result<()> {
        let (descr, dimension) = self.names.array.ok_or(ErrorKind::Unsupported)?;
        let shape = format!("({}, {dimension})", self.rows);
        let header = format!("{{'descr': '{descr}', 'fortran_order': False, 'shape': {shape}, }}");
        self.file.rewind()?;
        self.file.write_all(b"\x93NUMPY\x01\x00\x76\x00")?;
        writeln!(self.file, "{header:<117}")
    }
}

/// One object: the fields of the input, then ours.
fn line(
    to: &mut OutputFile,
    object: Option<&Map<String, Value>>,
    one: &str,
    cell: &impl ResultRow,
    info: Option<TokenInfo>,
) -> serde_json::Result<()> {
    let mut to = serde_json::Serializer::new(to);
    let mut map = to.serialize_map(None)?;
    for (field, value) in object.into_iter().flatten() {
        map.serialize_entry(field, value)?;
    }
    map.serialize_entry(one, cell)?;
    if let Some(info) = info {
        map.serialize_entry("tokens", &info.tokens)?;
        map.serialize_entry("truncated", &info.truncated)?;
    }
    map.end()
}

/// An error that names the file. A broken pipe stays an `io::Error`, because it is not a failure.
fn name_error(name: &str, e: io::Error) -> Failure {
    if e.kind() == ErrorKind::BrokenPipe { e.into() } else { format!("cannot write {name}: {e}").into() }
}
