//! Where vectors go: text, JSON, JSONL, .npy or raw little-endian f32; to standard output or to a file.
//!
//! A file appears under its name only when it is whole.

use crate::Failure;
use crate::input::Text;
use clap::{Args, ValueEnum};
use sconce_engine::Embeddings;
use serde_json::{Value, json};
use std::fs::File;
use std::io::{self, BufWriter, ErrorKind, Seek, SeekFrom, Write};
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

/// The fields that JSONL output adds to an object.
const ADDED: [&str; 3] = ["embedding", "tokens", "truncated"];

/// An output that is open.
pub(crate) struct Writer {
    sink: Sink,
    name: String,
    format: Format,
    rows: usize,
    dimension: usize,
    tokens: Vec<usize>,
    truncated: Vec<usize>,
}

enum Sink {
    /// Standard output, or a file that is not an ordinary one (a pipe, `/dev/null`) and must not be replaced by one.
    Stream(BufWriter<Box<dyn Write>>),
    /// A temporary file, and what becomes of it in the end.
    Scratch(BufWriter<NamedTempFile>, Then),
}

enum Then {
    /// It takes this name.
    Rename(PathBuf),
    /// It is copied there.
    Copy(Box<dyn Write>),
}

impl Output {
    /// Opens the output. A file is written beside its place first, so a full disk or Ctrl-C leaves the old one as it was.
    pub(crate) fn open(&self, dimension: usize) -> Result<Writer, Failure> {
        let format = self.format();
        let name = self.out.as_ref().map_or_else(|| "standard output".into(), |path| path.display().to_string());
        let ordinary = |path: &Path| std::fs::symlink_metadata(path).map_or(true, |m| m.is_file());
        let sink = || -> io::Result<Sink> {
            let stream: Box<dyn Write> = match &self.out {
                Some(path) if ordinary(path) => {
                    let file = scratch_beside(path)?;
                    return Ok(Sink::Scratch(BufWriter::new(file), Then::Rename(path.clone())));
                }
                Some(path) => Box::new(File::options().write(true).open(path)?),
                None => Box::new(io::stdout()),
            };
            // The header of an array counts the rows, which are not known before the end.
            match format {
                Format::Npy => Ok(Sink::Scratch(BufWriter::new(NamedTempFile::new()?), Then::Copy(stream))),
                _ => Ok(Sink::Stream(BufWriter::new(stream))),
            }
        };
        let sink = sink().map_err(|e| named(&name, e))?;
        let mut writer = Writer { sink, name, format, rows: 0, dimension, tokens: Vec::new(), truncated: Vec::new() };
        let begun = match format {
            Format::Npy => writer.npy_header(),
            Format::Json => writer.sink().write_all(b"{\"embeddings\":["),
            Format::Text | Format::Jsonl | Format::Bin => Ok(()),
        };
        begun.map_err(|e| named(&writer.name, e))?;
        Ok(writer)
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
    /// The temporary file, to be removed if the command is interrupted.
    pub(crate) fn scratch(&self) -> Option<PathBuf> {
        match &self.sink {
            Sink::Scratch(file, _) => Some(file.get_ref().path().to_path_buf()),
            Sink::Stream(_) => None,
        }
    }

    /// Writes the vectors of `texts`.
    pub(crate) fn write(&mut self, e: &Embeddings, texts: Vec<Text>) -> Result<(), Failure> {
        for ((i, row), text) in e.rows().enumerate().zip(texts) {
            let truncated = e.truncated.binary_search(&i).is_ok();
            let object = match self.format {
                Format::Jsonl => Some(extended(text, json!([row, e.tokens[i], truncated]))?),
                _ => None,
            };
            self.row(row, object).map_err(|e| named(&self.name, e))?;
            if truncated {
                self.truncated.push(self.rows);
            }
            self.tokens.push(e.tokens[i]);
            self.rows += 1;
        }
        if let Sink::Stream(stream) = &mut self.sink {
            stream.flush().map_err(|e| named(&self.name, e))?;
        }
        Ok(())
    }

    fn row(&mut self, row: &[f32], object: Option<Value>) -> io::Result<()> {
        let (format, first) = (self.format, self.rows == 0);
        let sink = self.sink();
        match format {
            Format::Text => {
                let numbers: Vec<String> = row.iter().map(f32::to_string).collect();
                writeln!(sink, "{}", numbers.join(" "))
            }
            Format::Json => {
                sink.write_all(if first { b"\n" } else { b",\n" })?;
                Ok(serde_json::to_writer(sink, row)?)
            }
            Format::Jsonl => writeln!(sink, "{}", object.unwrap_or_default()),
            Format::Npy | Format::Bin => row.iter().try_for_each(|v| sink.write_all(&v.to_le_bytes())),
        }
    }

    /// Completes the output and puts it under its name. `about` is what JSON output says besides.
    pub(crate) fn finish(mut self, about: Value) -> Result<(), Failure> {
        let name = self.name.clone();
        let end = move || -> io::Result<()> {
            match self.format {
                Format::Json => {
                    let rest = json!({"dimension": self.dimension, "tokens": self.tokens, "truncated": self.truncated});
                    let (rest, about) = (rest.to_string(), about.to_string());
                    writeln!(self.sink(), "\n],{},{}", &rest[1..rest.len() - 1], &about[1..])?;
                }
                Format::Npy => self.npy_header()?,
                Format::Text | Format::Jsonl | Format::Bin => {}
            }
            match self.sink {
                Sink::Stream(mut stream) => stream.flush(),
                Sink::Scratch(file, then) => {
                    let mut file = file.into_inner().map_err(io::IntoInnerError::into_error)?;
                    match then {
                        Then::Rename(path) => file.persist(path).map(drop).map_err(io::Error::from),
                        Then::Copy(mut stream) => {
                            file.seek(SeekFrom::Start(0))?;
                            io::copy(&mut file, &mut stream)?;
                            stream.flush()
                        }
                    }
                }
            }
        };
        end().map_err(|e| named(&name, e))
    }

    fn sink(&mut self) -> &mut dyn Write {
        match &mut self.sink {
            Sink::Stream(stream) => stream,
            Sink::Scratch(file, _) => file,
        }
    }

    /// Always 128 bytes, so that it can be written again when the rows have been counted.
    fn npy_header(&mut self) -> io::Result<()> {
        let shape = format!("({}, {})", self.rows, self.dimension);
        let header = format!("{{'descr': '<f4', 'fortran_order': False, 'shape': {shape}, }}");
        let Sink::Scratch(file, _) = &mut self.sink else { return Err(ErrorKind::NotSeekable.into()) };
        file.seek(SeekFrom::Start(0))?;
        file.write_all(b"\x93NUMPY\x01\x00\x76\x00")?;
        writeln!(file, "{header:<117}")
    }
}

/// The input's object with our fields, none of which it may have already: nothing is overwritten.
fn extended(text: Text, values: Value) -> Result<Value, Failure> {
    let mut object = text.object.unwrap_or_default();
    for (field, value) in ADDED.into_iter().zip(values.as_array().cloned().unwrap_or_default()) {
        if object.insert(field.into(), value).is_some() {
            return Err(format!("{}: the object has a field `{field}` already; rename it first", text.origin).into());
        }
    }
    Ok(object.into())
}

/// A temporary file where `path` will be.
fn scratch_beside(path: &Path) -> io::Result<NamedTempFile> {
    let dir = path.parent().filter(|d| !d.as_os_str().is_empty()).unwrap_or(Path::new("."));
    ordinary_file().tempfile_in(dir)
}

/// With the permissions of any new file, not the private ones of a temporary.
#[cfg(unix)]
fn ordinary_file() -> tempfile::Builder<'static, 'static> {
    let mut builder = tempfile::Builder::new();
    builder.permissions(std::os::unix::fs::PermissionsExt::from_mode(0o666));
    builder
}

#[cfg(not(unix))]
fn ordinary_file() -> tempfile::Builder<'static, 'static> {
    tempfile::Builder::new()
}

/// An error that says where; a reader that has gone stays what it is, for it is no failure.
fn named(name: &str, e: io::Error) -> Failure {
    if e.kind() == ErrorKind::BrokenPipe { e.into() } else { format!("cannot write {name}: {e}").into() }
}
