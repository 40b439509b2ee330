//! The lines of a batch's input file, and the check of all of them before any is answered.

use super::line::{Line, LineError, Rules};
use sconce_api::openai::batches::BatchError;
use std::collections::HashSet;
use std::fs::File;
use std::io::{self, BufRead, BufReader, Read};
use std::path::Path;

/// The most errors that are reported.
const MAX_ERRORS: usize = 100;

/// The limits of a file.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Limits {
    /// The most lines.
    pub(crate) lines: usize,
    /// The most bytes.
    pub(crate) bytes: u64,
    /// The most bytes of a line.
    pub(crate) line_bytes: usize,
}

/// Reads the lines of a file, without empty ones.
pub(crate) struct Lines {
    reader: BufReader<File>,
    max_bytes: usize,
    number: usize,
}

/// A line, before it is parsed.
pub(crate) struct RawLine {
    /// From 1.
    pub(crate) number: usize,
    /// `None`: it has too many bytes.
    pub(crate) bytes: Option<Vec<u8>>,
}

impl Lines {
    pub(crate) fn open(path: &Path, max_bytes: usize) -> io::Result<Lines> {
        Ok(Lines { reader: BufReader::with_capacity(256 << 10, File::open(path)?), max_bytes, number: 0 })
    }

    /// The next line that is not empty.
    pub(crate) fn next(&mut self) -> io::Result<Option<RawLine>> {
        loop {
            let mut bytes = Vec::new();
            let limit = self.max_bytes as u64 + 1;
            if self.reader.by_ref().take(limit).read_until(b'\n', &mut bytes)? == 0 {
                return Ok(None);
            }
            self.number += 1;
            let is_whole = bytes.ends_with(b"\n") || bytes.len() <= self.max_bytes;
            if !is_whole {
                self.skip_line()?;
            }
            // Some editors begin a file with a byte order mark.
            if self.number == 1 && bytes.starts_with(b"\xef\xbb\xbf") {
                bytes.drain(..3);
            }
            if !bytes.trim_ascii().is_empty() {
                return Ok(Some(RawLine { number: self.number, bytes: is_whole.then_some(bytes) }));
            }
        }
    }

    /// Skips the rest of a line.
    fn skip_line(&mut self) -> io::Result<()> {
        loop {
            let buffer = self.reader.fill_buf()?;
            let (used, is_end) = match buffer.iter().position(|byte| *byte == b'\n') {
                Some(at) => (at + 1, true),
                None => (buffer.len(), buffer.is_empty()),
            };
            self.reader.consume(used);
            if is_end {
                return Ok(());
            }
        }
    }
}

/// The result of a check.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct Checked {
    /// Lines with a request.
    pub(crate) total: usize,
    /// The model, if all lines name the same.
    pub(crate) model: Option<String>,
    /// The first errors; the file is good if there are none.
    pub(crate) errors: Vec<BatchError>,
}

/// Checks a file: every line, and that no `custom_id` occurs twice.
pub(crate) fn check(path: &Path, rules: &Rules<'_>, limits: &Limits) -> io::Result<Checked> {
    let mut checked = Checked::default();
    let bytes = std::fs::metadata(path)?.len();
    if bytes > limits.bytes {
        let what = format!("the file has {bytes} bytes; a batch may have {}: split the file", limits.bytes);
        checked.errors.push(error(LineError::new("file_too_large", None, what), None));
        return Ok(checked);
    }
    let mut lines = Lines::open(path, limits.line_bytes)?;
    let mut seen = HashSet::new();
    let mut models: Option<Option<String>> = None;
    while let Some(raw) = lines.next()? {
        if checked.total == limits.lines {
            let what = format!("the file has more than {} requests; split it", limits.lines);
            checked.errors.push(error(LineError::new("too_many_requests", None, what), Some(raw.number)));
            break;
        }
        checked.total += 1;
        match parse(&raw, rules, limits).and_then(|line| first_of_its_id(line, &mut seen)) {
            Ok(line) => match &mut models {
                Some(model) if *model != line.model => *model = None,
                Some(_) => {}
                none => *none = Some(line.model),
            },
            Err(wrong) => checked.errors.push(error(wrong, Some(raw.number))),
        }
        if checked.errors.len() >= MAX_ERRORS {
            break;
        }
    }
    if checked.total == 0 {
        let what = "the file has no requests; write one per line";
        checked.errors.push(error(LineError::new("empty_file", None, what), None));
    }
    checked.model = models.flatten();
    Ok(checked)
}

fn parse(raw: &RawLine, rules: &Rules<'_>, limits: &Limits) -> Result<Line, LineError> {
    match &raw.bytes {
        Some(bytes) => Line::parse(bytes, rules),
        None => {
            let what = format!("the line has more than {} bytes", limits.line_bytes);
            Err(LineError::new("line_too_long", None, what))
        }
    }
}

fn first_of_its_id(line: Line, seen: &mut HashSet<String>) -> Result<Line, LineError> {
    if seen.insert(line.custom_id.clone()) {
        return Ok(line);
    }
    let what = format!("the `custom_id` `{}` occurs in an earlier line; it must be unique in the file", line.custom_id);
    Err(LineError::new("duplicate_custom_id", Some("custom_id"), what))
}

fn error(LineError { code, message, param }: LineError, line: Option<usize>) -> BatchError {
    BatchError { code: code.into(), message, param: param.map(Into::into), line }
}

#[cfg(test)]
mod tests {
    use super::*;

    const LIMITS: Limits = Limits { lines: 3, bytes: 1_000, line_bytes: 200 };

    fn line(id: &str, model: &str) -> String {
        format!(r#"{{"custom_id":"{id}","method":"POST","url":"/v1/embeddings","body":{{"model":"{model}"}}}}"#)
    }

    fn run(text: &str) -> Checked {
        let file = tempfile::NamedTempFile::new().unwrap();
        std::fs::write(file.path(), text).unwrap();
        let rules = Rules { endpoint: None, knows_model: &|_: &str| true };
        check(file.path(), &rules, &LIMITS).unwrap()
    }

    fn errors(text: &str) -> Vec<(String, Option<usize>)> {
        run(text).errors.into_iter().map(|error| (error.code, error.line)).collect()
    }

    #[test]
    fn good_files_are_counted() {
        let text = format!("\u{feff}{}\r\n\n  \n{}", line("a", "m"), line("b", "m"));
        assert_eq!(run(&text), Checked { total: 2, model: Some("m".into()), errors: Vec::new() });
        assert_eq!(run(&[line("a", "m"), line("b", "n"), line("c", "m")].join("\n")).model, None);
    }

    #[test]
    fn every_kind_of_error_has_its_line() {
        let one = |code: &str, line| vec![(code.to_owned(), line)];
        assert_eq!(errors(""), one("empty_file", None));
        assert_eq!(errors(" \n\n"), one("empty_file", None));
        assert_eq!(errors(&[line("a", "m"), line("a", "m")].join("\n")), one("duplicate_custom_id", Some(2)));
        assert_eq!(errors(&format!("{}\nnot json\n", line("a", "m"))), one("invalid_json_line", Some(2)));
        assert_eq!(
            errors(&(0..4).map(|i| line(&i.to_string(), "m") + "\n").collect::<String>()),
            one("too_many_requests", Some(4))
        );
        let long = format!("{}\n{}\n{}", line("a", "m"), line("b", &"m".repeat(200)), line("c", "m"));
        assert_eq!(errors(&long), one("line_too_long", Some(2)));
        assert_eq!(errors(&"x".repeat(1_001)), one("file_too_large", None));
        assert_eq!(errors(&"x".repeat(900)), one("line_too_long", Some(1)));
    }

    #[test]
    fn the_number_of_errors_is_bounded() {
        let file = tempfile::NamedTempFile::new().unwrap();
        std::fs::write(file.path(), "x\n".repeat(500)).unwrap();
        let rules = Rules { endpoint: None, knows_model: &|_: &str| true };
        let limits = Limits { lines: 1_000, bytes: 10_000, line_bytes: 200 };
        assert_eq!(check(file.path(), &rules, &limits).unwrap().errors.len(), MAX_ERRORS);
    }
}
