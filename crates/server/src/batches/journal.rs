//! The results of a batch while it runs: a file of result lines that only grows. A line that is
//! recorded here survives the end of the process and a loss of power, and is never answered again.

use sconce_api::openai::batches::ResultLine;
use serde::Deserialize;
use serde::de::IgnoredAny;
use std::collections::HashSet;
use std::fs::{File, OpenOptions, TryLockError};
use std::io::{self, BufRead, BufReader, Seek, SeekFrom, Write};
use std::path::Path;

/// Results so far.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Counts {
    /// Requests that succeeded.
    pub(crate) completed: usize,
    /// Requests that failed or were not answered.
    pub(crate) failed: usize,
}

impl Counts {
    /// Both.
    pub(crate) fn all(self) -> usize {
        self.completed + self.failed
    }

    fn add(&mut self, succeeded: bool) {
        match succeeded {
            true => self.completed += 1,
            false => self.failed += 1,
        }
    }
}

/// A file of results. One process writes it at a time.
pub(crate) struct Journal {
    file: File,
    /// Bytes of whole lines.
    bytes: u64,
    counts: Counts,
}

/// The part of a recorded line that says what it is.
#[derive(Deserialize)]
struct Recorded {
    custom_id: String,
    response: Option<RecordedResponse>,
    error: Option<IgnoredAny>,
}

#[derive(Deserialize)]
struct RecordedResponse {
    status_code: u16,
}

/// Whether a result goes into the file of results rather than that of errors.
pub(crate) fn is_success(line: &ResultLine) -> bool {
    line.error.is_none() && line.response.as_ref().is_some_and(|response| is_ok(response.status_code))
}

fn is_ok(status: u16) -> bool {
    (200..300).contains(&status)
}

impl Journal {
    /// Opens a journal, and makes it if it is missing. Returns the ids that are recorded.
    ///
    /// A last line without its end was being written when the process ended: it is removed. Any
    /// other line that is not a result is an error: then the file is something else.
    pub(crate) fn open(path: &Path) -> io::Result<(Journal, HashSet<String>)> {
        let mut options = OpenOptions::new();
        options.read(true).write(true).create(true).truncate(false);
        #[cfg(unix)]
        std::os::unix::fs::OpenOptionsExt::mode(&mut options, 0o600);
        let file = options.open(path)?;
        match file.try_lock() {
            Ok(()) => {}
            Err(TryLockError::WouldBlock) => return Err(io::Error::other("another process writes to it")),
            Err(TryLockError::Error(e)) => return Err(e),
        }
        let (mut bytes, mut counts, mut ids) = (0, Counts::default(), HashSet::new());
        let mut reader = BufReader::with_capacity(1 << 20, &file);
        let (mut line, mut number) = (Vec::new(), 0);
        loop {
            line.clear();
            number += 1;
            let read = reader.read_until(b'\n', &mut line)?;
            if read == 0 {
                break;
            }
            let wrong = |why: String| io::Error::new(io::ErrorKind::InvalidData, format!("line {number} {why}"));
            if !line.ends_with(b"\n") {
                match is_torn(&line) {
                    true => break,
                    false => return Err(wrong("is not the result of a request".into())),
                }
            }
            let recorded: Recorded =
                serde_json::from_slice(&line).map_err(|e| wrong(format!("is not the result of a request: {e}")))?;
            counts.add(recorded.error.is_none() && recorded.response.is_some_and(|r| is_ok(r.status_code)));
            if let Some(twice) = ids.replace(recorded.custom_id) {
                return Err(wrong(format!("has a second result of `{twice}`")));
            }
            bytes += read as u64;
        }
        drop(reader);
        file.set_len(bytes)?;
        (&file).seek(SeekFrom::Start(bytes))?;
        Ok((Journal { file, bytes, counts }, ids))
    }

    /// Results so far.
    pub(crate) fn counts(&self) -> Counts {
        self.counts
    }

    /// Records a group of results. When this returns, they are on the disk.
    pub(crate) fn append(&mut self, group: &[ResultLine]) -> io::Result<()> {
        let mut text = Vec::new();
        for line in group {
            serde_json::to_writer(&mut text, line)?;
            text.push(b'\n');
        }
        let written = self.file.write_all(&text).and_then(|()| self.file.sync_data());
        if let Err(e) = written {
            // A part of a line must not stay in the middle. If this fails too, the next process does it.
            let _ = self.file.set_len(self.bytes).and_then(|()| self.file.seek(SeekFrom::Start(self.bytes)));
            return Err(e);
        }
        self.bytes += text.len() as u64;
        group.iter().for_each(|line| self.counts.add(is_success(line)));
        Ok(())
    }
}

/// Whether a last line may be the beginning of a result. After a loss of power it may be zeros.
fn is_torn(line: &[u8]) -> bool {
    let begin = b"{\"id\":\"";
    line.starts_with(begin) || begin.starts_with(line) || line.iter().all(|byte| *byte == 0)
}

/// All results of a journal that no process writes to.
pub(crate) fn results(path: &Path) -> io::Result<impl Iterator<Item = io::Result<ResultLine>>> {
    let lines = BufReader::with_capacity(1 << 20, File::open(path)?).lines();
    Ok(lines.map(|line| Ok(serde_json::from_str(&line?)?)))
}

#[cfg(test)]
mod tests {
    use super::*;
    use sconce_api::openai::batches::{ResultError, ResultResponse};
    use serde_json::json;

    fn answered(id: &str, status_code: u16) -> ResultLine {
        let response = ResultResponse { status_code, request_id: "r".into(), body: json!({"text": "a\nb"}) };
        ResultLine { id: format!("batch_req_{id}"), custom_id: id.into(), response: Some(response), error: None }
    }

    fn expired(id: &str) -> ResultLine {
        let error = ResultError { code: "batch_expired".into(), message: "late".into() };
        ResultLine { response: None, error: Some(error), ..answered(id, 0) }
    }

    #[test]
    fn torn_lines_are_removed_and_others_stay() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("journal");
        let (mut journal, ids) = Journal::open(&path).unwrap();
        assert!(ids.is_empty());
        assert!(Journal::open(&path).is_err(), "only one process may write");
        journal.append(&[answered("a", 200), answered("b", 400)]).unwrap();
        journal.append(&[expired("c")]).unwrap();
        assert_eq!(journal.counts(), Counts { completed: 1, failed: 2 });
        drop(journal);
        let whole = std::fs::read(&path).unwrap();
        let torn = serde_json::to_vec(&answered("d", 200)).unwrap();
        let zeros = vec![0; 100];
        for cut in [&torn[..0], &torn[..1], &torn[..torn.len() / 2], &torn, &zeros] {
            std::fs::write(&path, [&whole[..], cut].concat()).unwrap();
            let (mut journal, ids) = Journal::open(&path).unwrap();
            assert_eq!((ids.len(), journal.counts()), (3, Counts { completed: 1, failed: 2 }), "{cut:?}");
            journal.append(&[answered("d", 200)]).unwrap();
            drop(journal);
            let all: Vec<ResultLine> = results(&path).unwrap().map(Result::unwrap).collect();
            assert_eq!(all, [answered("a", 200), answered("b", 400), expired("c"), answered("d", 200)]);
        }
    }

    #[test]
    fn files_of_something_else_are_left_alone() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("notes.txt");
        let twice = format!("{0}\n{0}\n", serde_json::to_string(&answered("a", 200)).unwrap());
        for (text, why) in [
            ("my notes\nmore\n", "line 1 is not the result"),
            ("my notes", "line 1 is not the result"),
            (&*twice, "line 2 has a second result"),
        ] {
            std::fs::write(&path, text).unwrap();
            let error = Journal::open(&path).map(drop).unwrap_err().to_string();
            assert!(error.contains(why), "{error}");
            assert_eq!(std::fs::read_to_string(&path).unwrap(), text);
        }
    }
}
