//! Where vectors go: text, JSON, JSONL, .npy or raw little-endian f32; to standard output or to a file.
//!
//! A file appears under its name only when it is whole.

use crate::Failure;
use clap::{Args, ValueEnum};
use sconce_engine::Embeddings;
use serde_json::{Map, Value, json};
use std::fs::File;
use std::io::{BufWriter, Seek, SeekFrom, Write};
use std::path::{Path, PathBuf};
use tempfile::NamedTempFile;

#[derive(Args, Clone)]
pub(crate) struct Output {
    /// Write to this file instead of standard output.
    #[arg(short, long, value_name = "FILE")]
    out: Option<PathBuf>,
    /// By default what the file's ending says (.json, .jsonl, .npy, .bin), else text.
    #[arg(long, value_enum, value_name = "FORMAT")]
    format: Option<Format>,
    /// The same as --format json.
    #[arg(long, conflicts_with = "format")]
    json: bool,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
enum Format {
    /// Numbers with spaces between, a vector a line.
    Text,
    /// One object: `embeddings`, `tokens`, `truncated`, and what ran.
    Json,
    /// One object a vector, with the input object's fields where there is one.
    Jsonl,
    /// A numpy array.
    Npy,
    /// f32, little-endian, nothing else.
    Bin,
}

/// An output that is open.
pub(crate) struct Writer {
    sink: Sink,
    format: Format,
    rows: usize,
    dimension: usize,
    tokens: Vec<usize>,
    truncated: Vec<usize>,
}

enum Sink {
    Stdout(BufWriter<std::io::Stdout>),
    /// A file's rows, to be renamed; or a spool for what cannot be streamed to standard output.
    File {
        file: BufWriter<NamedTempFile>,
        to: Option<PathBuf>,
    },
}

impl Output {
    /// Opens the output. A file is written beside its place first, so a full disk or Ctrl-C leaves the old one as it was.
    pub(crate) fn open(&self, dimension: usize) -> Result<Writer, Failure> {
        let ending = self.out.as_deref().and_then(Path::extension).and_then(|e| e.to_str());
        let format = match (self.json, self.format, ending) {
            (true, ..) | (_, None, Some("json")) => Format::Json,
            (_, Some(format), _) => format,
            (_, _, Some("jsonl" | "ndjson")) => Format::Jsonl,
            (_, _, Some("npy")) => Format::Npy,
            (_, _, Some("bin")) => Format::Bin,
            _ => Format::Text,
        };
        let sink = match &self.out {
            Some(path) => {
                let dir = path.parent().filter(|d| !d.as_os_str().is_empty()).unwrap_or(Path::new("."));
                let file = NamedTempFile::new_in(dir).map_err(|e| format!("cannot write to {}: {e}", dir.display()))?;
                Sink::File { file: BufWriter::new(file), to: Some(path.clone()) }
            }
            // The header counts the rows, which are not known before the end.
            None if format == Format::Npy => Sink::File { file: BufWriter::new(NamedTempFile::new()?), to: None },
            None => Sink::Stdout(BufWriter::new(std::io::stdout())),
        };
        let mut writer = Writer { sink, format, rows: 0, dimension, tokens: Vec::new(), truncated: Vec::new() };
        match format {
            Format::Npy => writer.npy_header()?,
            Format::Json => writer.sink().write_all(b"{\"embeddings\":[")?,
            Format::Text | Format::Jsonl | Format::Bin => {}
        }
        Ok(writer)
    }
}

impl Writer {
    /// Writes a window of vectors; `objects` are the JSON objects their texts came from.
    pub(crate) fn write(&mut self, e: &Embeddings, objects: Vec<Option<Map<String, Value>>>) -> Result<(), Failure> {
        for ((i, row), object) in e.rows().enumerate().zip(objects) {
            let separator: &[u8] = if self.rows > 0 { b",\n" } else { b"\n" };
            let format = self.format;
            let truncated = e.truncated.binary_search(&i).is_ok();
            let sink = self.sink();
            match format {
                Format::Text => {
                    let numbers: Vec<String> = row.iter().map(f32::to_string).collect();
                    writeln!(sink, "{}", numbers.join(" "))?;
                }
                Format::Json => {
                    sink.write_all(separator)?;
                    serde_json::to_writer(&mut *sink, row)?;
                }
                Format::Jsonl => {
                    let mut object = object.unwrap_or_default();
                    object.insert("embedding".into(), json!(row));
                    object.insert("tokens".into(), json!(e.tokens[i]));
                    object.insert("truncated".into(), json!(truncated));
                    serde_json::to_writer(&mut *sink, &object)?;
                    sink.write_all(b"\n")?;
                }
                Format::Npy | Format::Bin => {
                    row.iter().try_for_each(|v| sink.write_all(&v.to_le_bytes()))?;
                }
            }
            if truncated {
                self.truncated.push(self.rows);
            }
            self.tokens.push(e.tokens[i]);
            self.rows += 1;
        }
        if matches!(self.sink, Sink::Stdout(_)) {
            self.sink().flush()?;
        }
        Ok(())
    }

    /// Completes the output and puts it under its name. `about` is what JSON output says besides.
    pub(crate) fn finish(mut self, about: Value) -> Result<(), Failure> {
        match self.format {
            Format::Json => {
                let mut rest = json!({"dimension": self.dimension, "tokens": self.tokens, "truncated": self.truncated});
                if let (Value::Object(rest), Value::Object(about)) = (&mut rest, about) {
                    rest.extend(about);
                }
                let rest = rest.to_string();
                writeln!(self.sink(), "\n],{}", &rest[1..])?;
            }
            Format::Npy => self.npy_header()?,
            Format::Text | Format::Jsonl | Format::Bin => {}
        }
        match self.sink {
            Sink::Stdout(mut out) => out.flush()?,
            Sink::File { file, to } => {
                let mut file = file.into_inner().map_err(|e| e.into_error())?;
                match to {
                    Some(path) => {
                        let kept = file.persist(&path).map_err(|e| format!("cannot write {}: {e}", path.display()))?;
                        open_to_others(&kept);
                    }
                    None => {
                        file.seek(SeekFrom::Start(0))?;
                        std::io::copy(&mut file, &mut std::io::stdout())?;
                    }
                }
            }
        }
        Ok(())
    }

    fn sink(&mut self) -> &mut dyn Write {
        match &mut self.sink {
            Sink::Stdout(out) => out,
            Sink::File { file, .. } => file,
        }
    }

    /// Always 128 bytes, so that it can be written again when the rows have been counted.
    fn npy_header(&mut self) -> Result<(), Failure> {
        let header =
            format!("{{'descr': '<f4', 'fortran_order': False, 'shape': ({}, {}), }}", self.rows, self.dimension);
        let Sink::File { file, .. } = &mut self.sink else { return Err("an .npy file needs a file".into()) };
        file.seek(SeekFrom::Start(0))?;
        file.write_all(b"\x93NUMPY\x01\x00\x76\x00")?;
        writeln!(file, "{header:<117}")?;
        Ok(())
    }
}

/// A temporary file is private; what the user asked for is an ordinary file.
#[cfg(unix)]
fn open_to_others(file: &File) {
    use std::os::unix::fs::PermissionsExt;
    // Best effort: the file is whole either way.
    let _ = file.set_permissions(std::fs::Permissions::from_mode(0o644));
}

#[cfg(not(unix))]
fn open_to_others(_: &File) {}
