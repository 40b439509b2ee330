//! Log files of workers: bounded in size, and deleted some time after their worker ended.

use std::collections::BTreeSet;
use std::fs::{self, File, OpenOptions};
use std::io::{self, Read, Seek, SeekFrom};
use std::path::Path;
use std::time::{Duration, SystemTime};

/// Largest log file; its former content is kept once, as `.log.1`.
const MAX_BYTES: u64 = 16 << 20;
/// Bytes of a log's end that are searched for the last line.
const TAIL_BYTES: u64 = 2_048;
/// How long the log of an ended worker is kept.
const RETENTION: Duration = Duration::from_secs(24 * 3600);

/// Opens a log file for appending.
pub(crate) fn open(path: &Path) -> io::Result<File> {
    // In append mode the file can be truncated while a worker writes to it.
    let open = OpenOptions::new().create(true).append(true).open(path);
    // A worker must run even if its log cannot be written: it then runs without one.
    open.or_else(|e| {
        tracing::warn!("{}: {e}; its worker runs without a log", path.display());
        OpenOptions::new().write(true).open("/dev/null")
    })
}

/// The last line of a log.
pub(crate) fn last_line(log: &Path) -> Option<String> {
    let mut file = File::open(log).ok()?;
    let length = file.metadata().ok()?.len();
    file.seek(SeekFrom::Start(length.saturating_sub(TAIL_BYTES))).ok()?;
    let mut tail = Vec::new();
    file.take(TAIL_BYTES).read_to_end(&mut tail).ok()?;
    let text = String::from_utf8_lossy(&tail);
    let line = text.lines().rev().find(|l| !l.trim().is_empty())?;
    Some(line.trim().chars().filter(|c| !c.is_control()).take(400).collect())
}

/// Truncates logs that are too long and deletes those of ended workers. What fails is retried at
/// the next call.
pub(crate) fn clean_up(dir: &Path, workers: &BTreeSet<String>, now: SystemTime) {
    let Ok(entries) = fs::read_dir(dir) else { return };
    for path in entries.flatten().map(|e| e.path()) {
        let name = path.file_name().and_then(|n| n.to_str()).unwrap_or_default();
        let Some(id) = name.strip_suffix(".log").or_else(|| name.strip_suffix(".log.1")) else { continue };
        let Ok(metadata) = fs::metadata(&path) else { continue };
        let age = metadata.modified().ok().and_then(|written| now.duration_since(written).ok()).unwrap_or_default();
        if !workers.contains(id) && age >= RETENTION {
            let _ = fs::remove_file(&path);
        } else if name.ends_with(".log") && metadata.len() > MAX_BYTES {
            truncate(&path);
        }
    }
}

/// Copies the log to `.log.1` and truncates it. The worker has the file open, so it cannot be
/// renamed; lines written between the two steps are lost.
fn truncate(path: &Path) {
    if let Err(e) = fs::copy(path, path.with_extension("log.1")) {
        tracing::warn!("{}: cannot copy the log before truncating it: {e}", path.display());
    }
    if let Err(e) = OpenOptions::new().write(true).open(path).and_then(|file| file.set_len(0)) {
        tracing::warn!("{}: cannot truncate the log: {e}", path.display());
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::io::Write;

    #[test]
    fn logs_are_rotated_and_deleted_after_retention() {
        let dir = tempfile::tempdir().unwrap();
        let at = |name: &str| dir.path().join(name);
        let mut long = open(&at("a.log")).unwrap();
        long.write_all(&vec![b'x'; MAX_BYTES as usize]).unwrap();
        fs::write(at("b.log"), "log of an ended worker").unwrap();
        fs::write(at("b.log.1"), "older log of an ended worker").unwrap();
        fs::write(at("c"), "not a log").unwrap();
        let workers = BTreeSet::from(["a".to_string()]);
        clean_up(dir.path(), &workers, SystemTime::now());
        assert_eq!(fs::metadata(at("a.log")).unwrap().len(), MAX_BYTES, "the log is not over the limit");
        long.write_all(b"y\n").unwrap();
        clean_up(dir.path(), &workers, SystemTime::now());
        long.write_all(b"z\n").unwrap();
        assert_eq!(fs::read(at("a.log")).unwrap(), b"z\n", "the worker continues to write to it");
        assert_eq!(fs::metadata(at("a.log.1")).unwrap().len(), MAX_BYTES + 2);
        assert!(
            at("b.log").exists() && at("b.log.1").exists(),
            "logs of an ended worker stay until the retention ends"
        );
        clean_up(dir.path(), &workers, SystemTime::now() + RETENTION + Duration::from_secs(60));
        let remaining: BTreeSet<_> = fs::read_dir(dir.path()).unwrap().map(|e| e.unwrap().file_name()).collect();
        assert_eq!(
            remaining,
            ["a.log", "a.log.1", "c"].map(Into::into).into(),
            "the logs of running workers and other files stay"
        );
    }

    #[test]
    fn log_errors_prevent_neither_truncation_nor_start() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("a.log");
        fs::write(&path, vec![b'x'; MAX_BYTES as usize + 1]).unwrap();
        fs::create_dir(dir.path().join("a.log.1")).unwrap();
        clean_up(dir.path(), &BTreeSet::from(["a".to_string()]), SystemTime::now());
        assert_eq!(fs::metadata(&path).unwrap().len(), 0);
        assert!(open(&path).is_ok());
        assert!(open(&dir.path().join("no/such/place.log")).is_ok(), "a worker runs without a log");
    }
}
