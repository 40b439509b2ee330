//! Input texts: from arguments, files or standard input; one per line, or a field of one JSON
//! object per line.

use crate::Failure;
use clap::Args;
use serde_json::{Map, Value};
use std::fs::File;
use std::io::{BufRead, BufReader, IsTerminal};
use std::path::{Path, PathBuf};

#[derive(Args, Clone)]
pub(crate) struct Input {
    /// Texts. Without TEXT and --file, standard input is read, one text per line.
    #[arg(value_name = "TEXT")]
    texts: Vec<String>,
    /// Read texts from this file, one per line (`-` is standard input). May be repeated.
    #[arg(short, long, value_name = "FILE", conflicts_with = "texts")]
    file: Vec<PathBuf>,
    /// Each line is a JSON object: take the text from field NAME, and keep the other fields in
    /// JSONL output.
    #[arg(long, value_name = "NAME", conflicts_with = "texts")]
    field: Option<String>,
}

/// A text and its origin.
#[derive(Debug)]
pub(crate) struct Text {
    pub(crate) text: String,
    /// The JSON object that contains it.
    pub(crate) object: Option<Map<String, Value>>,
    /// `file:line` or `argument N`.
    pub(crate) origin: String,
    /// Input bytes, for the progress bar.
    pub(crate) bytes: u64,
}

impl Text {
    /// A string field of the JSON object.
    pub(crate) fn field(&self, name: &str) -> Result<&str, Failure> {
        match self.object.as_ref().and_then(|object| object.get(name)) {
            Some(Value::String(text)) => Ok(text),
            Some(other) => Err(format!("{}: field `{name}` is {other}, not a string", self.origin).into()),
            None => Err(format!("{}: no field `{name}`", self.origin).into()),
        }
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

impl Input {
    /// Whether the input is a single argument, so that answers need not name their text.
    pub(crate) fn is_one(&self) -> bool {
        self.texts.len() == 1
    }

    /// The texts, read lazily.
    pub(crate) fn texts(&self) -> Result<Box<dyn Iterator<Item = Result<Text, Failure>> + Send>, Failure> {
        if !self.texts.is_empty() {
            let text = |(i, text): (usize, String)| {
                let (origin, bytes) = (format!("argument {}", i + 1), text.len() as u64);
                Ok(Text { text, object: None, origin, bytes })
            };
            return Ok(Box::new(self.texts.clone().into_iter().enumerate().map(text)));
        }
        let stdin = [PathBuf::from("-")];
        let files = if self.file.is_empty() { &stdin[..] } else { &self.file };
        // Opens all files first: a misspelled name must not surface after an hour's work on the
        // others.
        let open = files.iter().map(|path| Lines::open(path)).collect::<Result<Vec<_>, _>>()?;
        let field = self.field.clone();
        Ok(Box::new(open.into_iter().flatten().map(move |line| parse(line?, field.as_deref()))))
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

/// The line, or a field of its JSON object.
fn parse(line: Line, field: Option<&str>) -> Result<Text, Failure> {
    let Line { text, origin, bytes } = line;
    let Some(field) = field else { return Ok(Text { text, object: None, origin, bytes }) };
    let object: Map<String, Value> =
        serde_json::from_str(&text).map_err(|e| format!("{origin}: not a JSON object: {e}"))?;
    let mut text = Text { text: String::new(), object: Some(object), origin, bytes };
    text.text = text.field(field)?.to_string();
    Ok(text)
}

/// A line and its origin.
pub(crate) struct Line {
    pub(crate) text: String,
    pub(crate) origin: String,
    pub(crate) bytes: u64,
}

/// Lines of a UTF-8 file. A line that is not UTF-8 is an error and reading continues; an I/O error
/// ends it.
pub(crate) struct Lines {
    reader: Box<dyn BufRead + Send>,
    name: String,
    number: usize,
    broken: bool,
}

impl Lines {
    pub(crate) fn open(path: &Path) -> Result<Lines, Failure> {
        if path == Path::new("-") {
            if std::io::stdin().is_terminal() {
                eprintln!("reading texts from the terminal, one per line; end with Ctrl-D");
            }
            let reader = Box::new(BufReader::new(std::io::stdin()));
            return Ok(Lines { reader, name: "stdin".into(), number: 0, broken: false });
        }
        let name = path.display().to_string();
        let fail = |e: std::io::Error| format!("{name}: {e}");
        let file = File::open(path).map_err(fail)?;
        if file.metadata().map_err(fail)?.is_dir() {
            return Err(format!("{name}: is a directory").into());
        }
        Ok(Lines { reader: Box::new(BufReader::with_capacity(1 << 16, file)), name, number: 0, broken: false })
    }
}

impl Iterator for Lines {
    type Item = Result<Line, Failure>;

    fn next(&mut self) -> Option<Self::Item> {
        if self.broken {
            return None;
        }
        let mut bytes = Vec::new();
        self.number += 1;
        let origin = format!("{}:{}", self.name, self.number);
        match self.reader.read_until(b'\n', &mut bytes) {
            Ok(0) => return None,
            Ok(_) => {}
            Err(e) => {
                self.broken = true;
                return Some(Err(format!("{origin}: {e}").into()));
            }
        }
        let read = bytes.len() as u64;
        if bytes.last() == Some(&b'\n') {
            bytes.pop();
            if bytes.last() == Some(&b'\r') {
                bytes.pop();
            }
        }
        let text = String::from_utf8(bytes).map_err(|e| {
            let at = e.utf8_error().valid_up_to() + 1;
            format!("{origin}: not UTF-8 at byte {at}; convert the file first, for example with iconv").into()
        });
        Some(text.map(|text| Line { text, origin, bytes: read }))
    }
}
