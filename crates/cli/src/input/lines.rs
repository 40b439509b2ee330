//! Lines of a text file or of standard input.

use super::MAX_ROW_BYTES;
use crate::Failure;
use std::fs::File;
use std::io::{BufRead, BufReader, IsTerminal, Read};
use std::path::Path;

/// A line and its origin.
pub(crate) struct Line {
    pub(crate) text: String,
    pub(crate) origin: String,
    pub(crate) bytes: u64,
}

/// Lines of a UTF-8 file. A line that is not UTF-8 is an error and reading continues; an I/O error
/// or a line that is too long ends it.
pub(crate) struct Lines {
    reader: Box<dyn BufRead + Send>,
    name: String,
    number: usize,
    broken: bool,
}

/// Opens a file for reading, with its name for messages.
pub(super) fn open_file(path: &Path) -> Result<(File, String), Failure> {
    let name = path.display().to_string();
    let fail = |e: std::io::Error| format!("{name}: {e}");
    let file = File::open(path).map_err(fail)?;
    if file.metadata().map_err(fail)?.is_dir() {
        return Err(format!("{name}: is a directory").into());
    }
    Ok((file, name))
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
        let (file, name) = open_file(path)?;
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
        match self.reader.by_ref().take(MAX_ROW_BYTES as u64 + 1).read_until(b'\n', &mut bytes) {
            Ok(0) => return None,
            Ok(read) if read > MAX_ROW_BYTES => {
                self.broken = true;
                return Some(Err(format!("{origin}: the line is longer than {} MiB", MAX_ROW_BYTES >> 20).into()));
            }
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
