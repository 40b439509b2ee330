//! What workers write, on disk: bounded, and gone some time after the worker is.

use std::collections::BTreeSet;
use std::fs::{self, File, OpenOptions};
use std::io::{self, Read, Seek, SeekFrom};
use std::path::Path;
use std::time::{Duration, SystemTime};

/// The longest log; what is older is kept once more beside it.
const LONGEST: u64 = 16 << 20;
/// What of a log's end is told of a process that ended.
const LAST: u64 = 2_048;
/// How long the log of a worker that is no more can still be read.
const KEPT: Duration = Duration::from_secs(24 * 3600);

/// Opens one to be written on.
pub(crate) fn open(path: &Path) -> io::Result<File> {
    // What is written goes to the end, wherever that is by then, so that it can be cut while somebody writes.
    let open = OpenOptions::new().create(true).append(true).open(path);
    // A full disk, or one that refuses, must not keep a worker from running: it then runs without a log.
    open.or_else(|e| {
        tracing::warn!("{}: {e}; its worker runs without a log", path.display());
        OpenOptions::new().write(true).open("/dev/null")
    })
}

/// The last thing that was written.
pub(crate) fn last_line(log: &Path) -> Option<String> {
    let mut file = File::open(log).ok()?;
    let length = file.metadata().ok()?.len();
    file.seek(SeekFrom::Start(length.saturating_sub(LAST))).ok()?;
    let mut tail = Vec::new();
    file.take(LAST).read_to_end(&mut tail).ok()?;
    let text = String::from_utf8_lossy(&tail);
    let line = text.lines().rev().find(|l| !l.trim().is_empty())?;
    Some(line.trim().chars().filter(|c| !c.is_control()).take(400).collect())
}

/// Cuts logs that are too long, and deletes those of workers that are no more. What cannot be done is done another time.
pub(crate) fn tidy(dir: &Path, workers: &BTreeSet<String>, now: SystemTime) {
    let Ok(entries) = fs::read_dir(dir) else { return };
    for path in entries.flatten().map(|e| e.path()) {
        let name = path.file_name().and_then(|n| n.to_str()).unwrap_or_default();
        let Some(id) = name.strip_suffix(".log").or_else(|| name.strip_suffix(".log.1")) else { continue };
        let Ok(about) = fs::metadata(&path) else { continue };
        let age = about.modified().ok().and_then(|written| now.duration_since(written).ok()).unwrap_or_default();
        if !workers.contains(id) && age >= KEPT {
            let _ = fs::remove_file(&path);
        } else if name.ends_with(".log") && about.len() > LONGEST {
            cut(&path);
        }
    }
}

/// Keeps what was written beside the log, which begins anew: the worker has it open, so another file in its place would be written by
/// nobody. What it writes in between is lost.
fn cut(path: &Path) {
    if let Err(e) = fs::copy(path, path.with_extension("log.1")) {
        tracing::warn!("{}: its beginning is lost: {e}", path.display());
    }
    if let Err(e) = OpenOptions::new().write(true).open(path).and_then(|file| file.set_len(0)) {
        tracing::warn!("{} cannot be cut: {e}", path.display());
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::io::Write;

    #[test]
    fn logs_are_bounded_and_go_some_time_after_their_worker() {
        let dir = tempfile::tempdir().unwrap();
        let at = |name: &str| dir.path().join(name);
        let mut long = open(&at("a.log")).unwrap();
        long.write_all(&vec![b'x'; LONGEST as usize]).unwrap();
        fs::write(at("b.log"), "of a worker that was").unwrap();
        fs::write(at("b.log.1"), "and more of it").unwrap();
        fs::write(at("c"), "no log").unwrap();
        let workers = BTreeSet::from(["a".to_string()]);
        tidy(dir.path(), &workers, SystemTime::now());
        assert_eq!(fs::metadata(at("a.log")).unwrap().len(), LONGEST, "not too long yet");
        long.write_all(b"y\n").unwrap();
        tidy(dir.path(), &workers, SystemTime::now());
        long.write_all(b"z\n").unwrap();
        assert_eq!(fs::read(at("a.log")).unwrap(), b"z\n", "it is written on");
        assert_eq!(fs::metadata(at("a.log.1")).unwrap().len(), LONGEST + 2);
        assert!(at("b.log").exists() && at("b.log.1").exists(), "they can still be read");
        tidy(dir.path(), &workers, SystemTime::now() + KEPT + Duration::from_secs(60));
        let left: BTreeSet<_> = fs::read_dir(dir.path()).unwrap().map(|e| e.unwrap().file_name()).collect();
        assert_eq!(left, ["a.log", "a.log.1", "c"].map(Into::into).into(), "the worker's own and what is no log stay");
    }

    #[test]
    fn a_copy_that_fails_does_not_keep_a_log_from_being_cut_nor_a_worker_from_running() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("a.log");
        fs::write(&path, vec![b'x'; LONGEST as usize + 1]).unwrap();
        fs::create_dir(dir.path().join("a.log.1")).unwrap();
        tidy(dir.path(), &BTreeSet::from(["a".to_string()]), SystemTime::now());
        assert_eq!(fs::metadata(&path).unwrap().len(), 0);
        assert!(open(&path).is_ok());
        assert!(open(&dir.path().join("no/such/place.log")).is_ok(), "without a log");
    }
}
