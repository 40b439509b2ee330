//! Processes: starting them, knowing them again, ending them.

use crate::core::Process;
use std::fs::{self, File, OpenOptions};
use std::io::{self, Read, Seek, SeekFrom};
use std::path::Path;
use std::process::{ExitStatus, Stdio};
use sysinfo::{Pid, ProcessRefreshKind, ProcessStatus, ProcessesToUpdate, System};
use tokio::process::{Child, Command};

/// The longest log that is written on.
const LONGEST: u64 = 16 << 20;
/// What of a log's end is told of a process that ended.
const LAST: u64 = 2_048;

/// Starts a process that outlives us: in a group of its own, so that a Ctrl-C meant for us is not meant for it, and with a file
/// to write to, since a pipe would end with us.
pub(crate) fn spawn(
    binary: &Path,
    arguments: &[String],
    key: (&str, &str),
    log: &Path,
) -> io::Result<(Child, Process)> {
    let file = open_log(log)?;
    let mut command = Command::new(binary);
    command.args(arguments).env(key.0, key.1).stdin(Stdio::null()).stdout(file.try_clone()?).stderr(file);
    #[cfg(unix)]
    command.process_group(0);
    let child = command.spawn()?;
    let pid = child.id().ok_or_else(|| io::Error::other("it ended at once"))?;
    let born = born(pid).unwrap_or(0);
    Ok((child, Process { pid, born }))
}

fn open_log(path: &Path) -> io::Result<File> {
    if fs::metadata(path).is_ok_and(|m| m.len() > LONGEST) {
        fs::rename(path, path.with_extension("log.1"))?;
    }
    let open = OpenOptions::new().create(true).append(true).open(path);
    // A full disk, or one that refuses, must not keep a worker from running: it then runs without a log.
    open.or_else(|e| {
        tracing::warn!("{}: {e}; its worker runs without a log", path.display());
        OpenOptions::new().write(true).open("/dev/null")
    })
}

/// When a process that runs began, in seconds since 1970. `None`: there is none, or it has ended and nobody has asked how.
pub(crate) fn born(pid: u32) -> Option<u64> {
    let (pid, mut system) = (Pid::from_u32(pid), System::new().ok()?);
    system.refresh_processes_specifics(ProcessesToUpdate::Some(&[pid]), true, ProcessRefreshKind::nothing());
    let process = system.process(pid)?;
    (!matches!(process.status(), ProcessStatus::Zombie | ProcessStatus::Dead)).then(|| process.start_time())
}

/// Whether a process still runs. Its number alone does not tell: numbers are given out again. The time of its birth is counted from
/// that of the machine's start, which may be told a second sooner or later when the clock is set.
pub(crate) fn runs(process: Process) -> bool {
    born(process.pid).is_some_and(|born| process.born == 0 || born.abs_diff(process.born) <= 2)
}

/// How a process is told to end.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Tell {
    /// SIGTERM.
    Terminate,
    /// SIGKILL.
    Kill,
}

/// Sends it, if the process is still itself.
#[cfg(unix)]
pub(crate) fn tell(process: Process, what: Tell) {
    use rustix::process::{Pid, Signal, kill_process};
    let signal = match what {
        Tell::Terminate => Signal::TERM,
        Tell::Kill => Signal::KILL,
    };
    let pid = i32::try_from(process.pid).ok().and_then(Pid::from_raw);
    if let Some(pid) = pid.filter(|_| runs(process))
        && let Err(e) = kill_process(pid, signal)
    {
        tracing::warn!("process {} could not be sent {signal:?}: {e}", process.pid);
    }
}

/// Sends it, if the process is still itself.
#[cfg(not(unix))]
pub(crate) fn tell(process: Process, _what: Tell) {
    if !runs(process) {
        return;
    }
    let Ok(mut system) = System::new() else { return };
    let pid = Pid::from_u32(process.pid);
    system.refresh_processes_specifics(ProcessesToUpdate::Some(&[pid]), true, ProcessRefreshKind::nothing());
    if let Some(process) = system.process(pid) {
        process.kill();
    }
}

/// How a process ended, in words, with the last of what it wrote.
pub(crate) fn how(status: ExitStatus, log: &Path) -> String {
    #[cfg(unix)]
    let signal = std::os::unix::process::ExitStatusExt::signal(&status).map(|s| format!("signal {s}"));
    #[cfg(not(unix))]
    let signal: Option<String> = None;
    let ended = match (status.code(), signal) {
        (Some(code), _) => format!("exit code {code}"),
        (None, Some(signal)) => signal,
        (None, None) => "nobody knows how".into(),
    };
    match last_line(log) {
        Some(line) => format!("{ended}; it last said: {line}"),
        None => ended,
    }
}

fn last_line(log: &Path) -> Option<String> {
    let mut file = File::open(log).ok()?;
    let length = file.metadata().ok()?.len();
    file.seek(SeekFrom::Start(length.saturating_sub(LAST))).ok()?;
    let mut tail = Vec::new();
    file.take(LAST).read_to_end(&mut tail).ok()?;
    let text = String::from_utf8_lossy(&tail);
    let line = text.lines().rev().find(|l| !l.trim().is_empty())?;
    Some(line.trim().chars().filter(|c| !c.is_control()).take(400).collect())
}
