//! Output of results: text, JSON, JSONL, Parquet, and for vectors .npy or raw little-endian bytes;
//! to standard output or a file.

mod rows;
mod shard;

use crate::Failure;
use crate::input::{Input, Text};
use crate::output_file::{OutputFile, remove_on_ctrl_c};
use crate::parquet_file::{ParquetWriter, io_error};
use crate::row::{Columns, Row};
use clap::{Args, ValueEnum};
use rows::{line, merged_line, numbered, parquet_row};
use sconce_engine::Chunk;
use serde::Serialize;
use serde_json::{Value, json};
use std::io::{self, ErrorKind, Write};
use std::path::{Path, PathBuf};

#[derive(Args, Clone)]
pub(crate) struct Output {
    /// Write to this file instead of standard output.
    #[arg(short, long, value_name = "FILE")]
    out: Option<PathBuf>,
    /// Output format. Default: by the extension of --out (.json, .jsonl, .parquet, .npy, .bin),
    /// else text.
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
    /// One object per text, with the fields of the input's row if there is one.
    Jsonl,
    /// One row per text, with the columns of the input.
    Parquet,
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
    /// The part of the text that the result is of, if it is one of several.
    pub(crate) chunk: Option<Chunk>,
}

/// Names of the results in the output, and their array type.
#[derive(Clone, Copy, Debug)]
pub(crate) struct ResultNames {
    /// JSON field with all results.
    pub(crate) many: &'static str,
    /// JSONL field with one result; `None` if the result is an object itself.
    pub(crate) one: Option<&'static str>,
    /// Fields of a result that is an object itself.
    pub(crate) fields: &'static [&'static str],
    /// Numpy type and numbers per row.
    pub(crate) array: Option<(&'static str, usize)>,
    /// Parquet columns with one result, as in a message type; `None` if there are none.
    pub(crate) column: Option<&'static str>,
}

/// Parquet columns after that of the result, if the results are of texts.
const TOKEN_COLUMNS: &str = "required int64 tokens; required boolean truncated;";

/// Parquet column after those, if the results are of chunks.
const CHUNK_COLUMN: &str = "required group chunk { required int64 index; required int64 start; required int64 end; }";

/// An open output.
pub(crate) struct Writer {
    to: Destination,
    name: String,
    format: Format,
    names: ResultNames,
    rows: usize,
    tokens: Vec<usize>,
    truncated: Vec<usize>,
    /// `None` if the results are of whole texts.
    chunks: Option<Vec<Chunk>>,
}

enum Destination {
    File(OutputFile),
    Parquet(Box<ParquetWriter>),
}

/// What the results are of, and so what Parquet output keeps.
pub(crate) enum ResultsOf {
    /// Texts, with these columns of the input.
    Texts(Columns),
    /// Chunks of texts, with these columns of the input.
    Chunks(Columns),
    /// Images or prompts, whose results have no columns for tokens.
    Others(Columns),
}

impl Output {
    /// Opens the output. Ctrl-C removes a partial file.
    pub(crate) fn open(&self, names: ResultNames, of: ResultsOf) -> Result<Writer, Failure> {
        self.check(names.array.is_some(), names.column.is_some())?;
        let format = self.format();
        let name = self.out.as_ref().map_or_else(|| "standard output".into(), |path| path.display().to_string());
        // The .npy header contains the number of rows, which is known only at the end.
        let file = OutputFile::open(self.out.as_deref(), format == Format::Npy).map_err(|e| name_error(&name, e))?;
        remove_on_ctrl_c(file.temporary_path())?;
        let (tokens, truncated) = (Vec::new(), Vec::new());
        let chunks = matches!(of, ResultsOf::Chunks(_)).then(Vec::new);
        let to = match (format, names.column, of) {
            (Format::Parquet, Some(column), ResultsOf::Texts(columns)) => {
                let column = format!("{column} {TOKEN_COLUMNS}");
                Destination::Parquet(Box::new(ParquetWriter::new(file, columns, &column)?))
            }
            (Format::Parquet, Some(column), ResultsOf::Chunks(columns)) => {
                let column = format!("{column} {TOKEN_COLUMNS} {CHUNK_COLUMN}");
                Destination::Parquet(Box::new(ParquetWriter::new(file, columns, &column)?))
            }
            (Format::Parquet, Some(column), ResultsOf::Others(columns)) => {
                Destination::Parquet(Box::new(ParquetWriter::new(file, columns, column)?))
            }
            _ => Destination::File(file),
        };
        let mut writer = Writer { to, name, format, names, rows: 0, tokens, truncated, chunks };
        let begun = match (format, &mut writer.to) {
            (Format::Npy, _) => writer.npy_header(),
            (Format::Json, Destination::File(file)) => write!(file, "{{\"{}\":[", names.many),
            _ => Ok(()),
        };
        begun.map_err(|e| name_error(&writer.name, e))?;
        Ok(writer)
    }

    /// Rejects options of a single output where there is one for each shard.
    pub(crate) fn check_unused(&self) -> Result<(), Failure> {
        match self.out.is_some() || self.format.is_some() || self.json {
            true => Err("--shards writes Parquet files into its folder: leave out --out, --format and --json".into()),
            false => Ok(()),
        }
    }

    /// Rejects a format that cannot hold the results, before a model is loaded.
    pub(crate) fn check(&self, is_array: bool, has_column: bool) -> Result<(), Failure> {
        if !has_column && self.format() == Format::Parquet {
            return Err(
                "--format parquet is for embed, classify, tag, clip and generate; use text, json or jsonl".into()
            );
        }
        if !is_array && matches!(self.format(), Format::Npy | Format::Bin) {
            return Err("--format npy and bin need one vector per text; use text, json or jsonl".into());
        }
        Ok(())
    }

    /// Whether a text could be streamed to standard output.
    pub(crate) fn can_stream(&self) -> bool {
        self.format() == Format::Text && self.out.is_none()
    }

    /// Whether the output keeps the fields of the input.
    pub(crate) fn keeps_fields(&self) -> bool {
        matches!(self.format(), Format::Jsonl | Format::Parquet)
    }

    pub(crate) fn is_parquet(&self) -> bool {
        self.format() == Format::Parquet
    }

    /// The columns of the input that the output keeps.
    pub(crate) fn columns(&self, input: &Input) -> Result<Columns, Failure> {
        if self.is_parquet() { input.columns() } else { Ok(Columns::default()) }
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
            (_, _, Some("parquet")) => Format::Parquet,
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
        self.row(text, cell, info)?;
        if let Some(info) = info {
            self.tokens.push(info.tokens);
            self.truncated.extend(info.truncated.then_some(self.rows));
            if let Some(chunks) = &mut self.chunks {
                chunks.extend(info.chunk);
            }
        }
        self.rows += 1;
        Ok(())
    }

    /// Flushes, so that the reader of a pipe sees the results so far.
    pub(crate) fn flush_stream(&mut self) -> Result<(), Failure> {
        match &mut self.to {
            Destination::File(file) => file.flush_stream().map_err(|e| name_error(&self.name, e)),
            Destination::Parquet(_) => Ok(()),
        }
    }

    fn row(&mut self, text: &Text, cell: &impl ResultRow, info: Option<TokenInfo>) -> Result<(), Failure> {
        let (one, rows) = (self.names.one, self.rows);
        let file = match &mut self.to {
            Destination::File(file) => file,
            Destination::Parquet(writer) => {
                let written = parquet_row(writer, text, one, (cell, info), self.names.array);
                return written.map_err(|e| named_row_error(&self.name, text, e));
            }
        };
        let object = match (&text.object, self.format) {
            (Some(row), Format::Jsonl) => Some(row.object().map_err(|why| format!("{}: {why}", text.origin))?),
            _ => None,
        };
        let mut write = || match self.format {
            Format::Text => file.write_all(cell.lines(text).as_bytes()),
            Format::Json => {
                file.write_all(if rows == 0 { b"\n" } else { b",\n" })?;
                Ok(serde_json::to_writer(&mut *file, cell)?)
            }
            Format::Jsonl => {
                match (one, object.as_deref()) {
                    (Some(one), object) => line(file, object, one, cell, info)?,
                    (None, Some(object)) => merged_line(file, object, cell)?,
                    (None, None) => serde_json::to_writer(&mut *file, cell)?,
                }
                file.write_all(b"\n")
            }
            Format::Npy | Format::Bin => file.write_all(&cell.bytes()),
            Format::Parquet => Ok(()),
        };
        write().map_err(|e| name_error(&self.name, e))
    }

    /// The input object must not contain our fields already, because nothing is overwritten.
    fn check_fields(&self, text: &Text) -> Result<(), Failure> {
        let taken = |field: &&str| text.object.as_ref().is_some_and(|row: &Row| row.has(field));
        let own = match self.names.one {
            Some(one) if self.chunks.is_some() => vec![one, "tokens", "truncated", "chunk"],
            Some(one) => vec![one, "tokens", "truncated"],
            None => self.names.fields.to_vec(),
        };
        match own.into_iter().find(taken) {
            Some(field) => {
                Err(format!("{}: the row already has a field `{field}`; rename it first", text.origin).into())
            }
            None => Ok(()),
        }
    }

    /// Completes the output and renames it to its final name. `about` is an object with further
    /// fields for JSON.
    pub(crate) fn finish(mut self, about: &Value) -> Result<(), Failure> {
        let name = self.name.clone();
        if self.format == Format::Npy {
            self.npy_header().map_err(|e| name_error(&name, e))?;
        }
        let mut file = match self.to {
            Destination::File(file) => file,
            Destination::Parquet(writer) => writer.finish().map_err(|e| named_error(&name, e))?,
        };
        let end = move || -> io::Result<()> {
            if self.format == Format::Json {
                write!(file, "\n],")?;
                if self.tokens.len() == self.rows {
                    let rest = json!({"tokens": self.tokens, "truncated": self.truncated}).to_string();
                    write!(file, "{},", &rest[1..rest.len() - 1])?;
                }
                if let Some(chunks) = &self.chunks {
                    write!(file, "\"chunks\":{},", json!(numbered(chunks)))?;
                }
                writeln!(file, "{}", &about.to_string()[1..])?;
            }
            file.finish()
        };
        end().map_err(|e| name_error(&name, e))
    }

    /// Always 128 bytes, so that it can be rewritten once the rows are counted.
    fn npy_header(&mut self) -> io::Result<()> {
        let (descr, dimension) = self.names.array.ok_or(ErrorKind::Unsupported)?;
        let shape = format!("({}, {dimension})", self.rows);
        let Destination::File(file) = &mut self.to else { return Err(ErrorKind::Unsupported.into()) };
        let header = format!("{{'descr': '{descr}', 'fortran_order': False, 'shape': {shape}, }}");
        file.rewind()?;
        file.write_all(b"\x93NUMPY\x01\x00\x76\x00")?;
        writeln!(file, "{header:<117}")
    }
}

/// An error of the Parquet writer that names the file or, if the row is the cause, its origin.
fn named_row_error(name: &str, text: &Text, e: Failure) -> Failure {
    match io_error(e) {
        Ok(e) => name_error(name, e),
        Err(e) => format!("{}: cannot write the row to {name}: {e}", text.origin).into(),
    }
}

/// An error of the Parquet writer that names the file.
fn named_error(name: &str, e: Failure) -> Failure {
    match io_error(e) {
        Ok(e) => name_error(name, e),
        Err(e) => format!("cannot write {name}: {e}").into(),
    }
}

/// An error that names the file. A broken pipe stays an `io::Error`, because it is not a failure.
fn name_error(name: &str, e: io::Error) -> Failure {
    if e.kind() == ErrorKind::BrokenPipe { e.into() } else { format!("cannot write {name}: {e}").into() }
}
