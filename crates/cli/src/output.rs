//! Where answers go: text, JSON, JSONL, and for vectors .npy or raw little-endian bytes; to standard output or to a file.

use crate::Failure;
use crate::input::Text;
use crate::sink::{Sink, remove_on_ctrl_c};
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
    /// By default what the file's ending says (.json, .jsonl, .npy, .bin), else text.
    #[arg(long, value_enum, value_name = "FORMAT")]
    format: Option<Format>,
    /// The same as --format json.
    #[arg(long, conflicts_with = "format")]
    json: bool,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
enum Format {
    /// For a person, or a tool that reads lines: of vectors, numbers with spaces between.
    Text,
    /// One object: the answers, their `tokens`, which were `truncated`, and what ran.
    Json,
    /// One object a text, with the input object's fields where there is one.
    Jsonl,
    /// A numpy array, of vectors only.
    Npy,
    /// The numbers of vectors, little-endian, nothing else.
    Bin,
}

/// What the model says of one text, in each of the formats.
pub(crate) trait Cell: Serialize {
    /// Lines for a person, each with its end; none where there is nothing to tell.
    fn lines(&self, of: &Text) -> String;
    /// The numbers, little-endian, where they make a row of an array.
    fn bytes(&self) -> Vec<u8> {
        Vec::new()
    }
}

/// How the model saw a text.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Seen {
    pub(crate) tokens: usize,
    pub(crate) truncated: bool,
}

/// What answers are called, and whether they are rows of an array.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Answers {
    /// All of them, in JSON.
    pub(crate) many: &'static str,
    /// One of them, in JSONL; none where an answer is an object by itself.
    pub(crate) one: Option<&'static str>,
    /// What numpy calls the numbers, and how many there are in a row.
    pub(crate) array: Option<(&'static str, usize)>,
}

/// An output that is open.
pub(crate) struct Writer {
    sink: Sink,
    name: String,
    format: Format,
    answers: Answers,
    rows: usize,
    tokens: Vec<usize>,
    truncated: Vec<usize>,
}

impl Output {
    /// Opens the output. Ctrl-C removes what is half written.
    pub(crate) fn open(&self, answers: Answers) -> Result<Writer, Failure> {
        self.check(answers.array.is_some())?;
        let format = self.format();
        let name = self.out.as_ref().map_or_else(|| "standard output".into(), |path| path.display().to_string());
        // The header of an array counts the rows, which are not known before the end.
        let sink = Sink::open(self.out.as_deref(), format == Format::Npy).map_err(|e| named(&name, e))?;
        remove_on_ctrl_c(sink.scratch())?;
        let (tokens, truncated) = (Vec::new(), Vec::new());
        let mut writer = Writer { sink, name, format, answers, rows: 0, tokens, truncated };
        let begun = match format {
            Format::Npy => writer.npy_header(),
            Format::Json => write!(writer.sink, "{{\"{}\":[", answers.many),
            Format::Text | Format::Jsonl | Format::Bin => Ok(()),
        };
        begun.map_err(|e| named(&writer.name, e))?;
        Ok(writer)
    }

    /// Refuses a format that cannot hold the answers: worth knowing before a model is loaded.
    pub(crate) fn check(&self, is_array: bool) -> Result<(), Failure> {
        if !is_array && matches!(self.format(), Format::Npy | Format::Bin) {
            return Err("--format npy and bin are for one vector a text; take text, json or jsonl".into());
        }
        Ok(())
    }

    /// Whether a text could be shown as it comes.
    pub(crate) fn is_shown(&self) -> bool {
        self.format() == Format::Text && self.out.is_none()
    }

    /// Whether numbers could be given as a string.
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
    /// Writes the answer to `text`, or to an image, which has no tokens.
    pub(crate) fn write(&mut self, text: &Text, cell: &impl Cell, seen: Option<Seen>) -> Result<(), Failure> {
        if self.format == Format::Jsonl {
            self.free_of_ours(text)?;
        }
        self.row(text, cell, seen).map_err(|e| named(&self.name, e))?;
        if let Some(seen) = seen {
            self.tokens.push(seen.tokens);
            self.truncated.extend(seen.truncated.then_some(self.rows));
        }
        self.rows += 1;
        Ok(())
    }

    /// Lets a reader at the other end see what there is.
    pub(crate) fn show(&mut self) -> Result<(), Failure> {
        self.sink.show().map_err(|e| named(&self.name, e))
    }

    fn row(&mut self, text: &Text, cell: &impl Cell, seen: Option<Seen>) -> io::Result<()> {
        let (one, sink) = (self.answers.one, &mut self.sink);
        match self.format {
            Format::Text => sink.write_all(cell.lines(text).as_bytes()),
            Format::Json => {
                sink.write_all(if self.rows == 0 { b"\n" } else { b",\n" })?;
                Ok(serde_json::to_writer(sink, cell)?)
            }
            Format::Jsonl => {
                match one {
                    Some(one) => line(sink, text.object.as_ref(), one, cell, seen)?,
                    None => serde_json::to_writer(&mut *sink, cell)?,
                }
                sink.write_all(b"\n")
            }
            Format::Npy | Format::Bin => sink.write_all(&cell.bytes()),
        }
    }

    /// None of our fields may be in the input's object already: nothing is overwritten.
    fn free_of_ours(&self, text: &Text) -> Result<(), Failure> {
        let taken = |field: &&str| text.object.as_ref().is_some_and(|o| o.contains_key(*field));
        match self.answers.one.into_iter().chain(["tokens", "truncated"]).find(taken) {
            Some(field) => {
                Err(format!("{}: the object has a field `{field}` already; rename it first", text.origin).into())
            }
            None => Ok(()),
        }
    }

    /// Completes the output and puts it under its name. `about`, an object, is what JSON output says besides.
    pub(crate) fn finish(mut self, about: &Value) -> Result<(), Failure> {
        let name = self.name.clone();
        let end = move || -> io::Result<()> {
            match self.format {
                Format::Json => {
                    write!(self.sink, "\n],")?;
                    if self.tokens.len() == self.rows {
                        let rest = json!({"tokens": self.tokens, "truncated": self.truncated}).to_string();
                        write!(self.sink, "{},", &rest[1..rest.len() - 1])?;
                    }
                    writeln!(self.sink, "{}", &about.to_string()[1..])?;
                }
                Format::Npy => self.npy_header()?,
                Format::Text | Format::Jsonl | Format::Bin => {}
            }
            self.sink.finish()
        };
        end().map_err(|e| named(&name, e))
    }

    /// Always 128 bytes, so that it can be written again when the rows have been counted.
    fn npy_header(&mut self) -> io::Result<()> {
        let (descr, dimension) = self.answers.array.ok_or(ErrorKind::Unsupported)?;
        let shape = format!("({}, {dimension})", self.rows);
        let header = format!("{{'descr': '{descr}', 'fortran_order': False, 'shape': {shape}, }}");
        self.sink.rewind()?;
        self.sink.write_all(b"\x93NUMPY\x01\x00\x76\x00")?;
        writeln!(self.sink, "{header:<117}")
    }
}

/// One object: the input's fields, then ours.
fn line(
    to: &mut Sink,
    object: Option<&Map<String, Value>>,
    one: &str,
    cell: &impl Cell,
    seen: Option<Seen>,
) -> serde_json::Result<()> {
    let mut to = serde_json::Serializer::new(to);
    let mut map = to.serialize_map(None)?;
    for (field, value) in object.into_iter().flatten() {
        map.serialize_entry(field, value)?;
    }
    map.serialize_entry(one, cell)?;
    if let Some(seen) = seen {
        map.serialize_entry("tokens", &seen.tokens)?;
        map.serialize_entry("truncated", &seen.truncated)?;
    }
    map.end()
}

/// An error that says where; a reader that has gone stays what it is, for it is no failure.
fn named(name: &str, e: io::Error) -> Failure {
    if e.kind() == ErrorKind::BrokenPipe { e.into() } else { format!("cannot write {name}: {e}").into() }
}
