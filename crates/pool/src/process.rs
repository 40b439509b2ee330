//! Processes: starting them, knowing them again, ending them.

use crate::core::{Birth, Process};
use crate::logs;
use std::io;
use std::path::Path;
use std::process::{ExitStatus, Stdio};
use tokio::process::{Child, Command};

/// Starts a process that outlives us: in a group of its own, so that a Ctrl-C meant for us is not meant for it, and with a file
/// to write to, since a pipe would end with us.
pub(crate) fn spawn(
    binary: &Path,
    arguments: &[String],
    key: (&str, &str),
    log: &Path,
) -> io::Result<(Child, Process)> {
    let file = logs::open(log)?;
    let mut command = Command::new(binary);
    command.args(arguments).env(key.0, key.1).stdin(Stdio::null()).stdout(file.try_clone()?).stderr(file);
    #[cfg(unix)]
    command.process_group(0);
    let child = command.spawn()?;
    let pid = child.id().ok_or_else(|| io::Error::other("it ended at once"))?;
    Ok((child, Process { pid, born: born(pid) }))
}

/// When a process that runs began. `None`: there is none, or it has ended and nobody has asked how, or it is not to be known.
#[cfg(target_os = "linux")]
pub(crate) fn born(pid: u32) -> Option<Birth> {
    let stat = std::fs::read_to_string(format!("/proc/{pid}/stat")).ok()?;
    Some(Birth { boot: boot()?, ticks: ticks(&stat)? })
}

/// Ticks from the machine's start to the process's, of a line of `/proc/PID/stat`: never set anew, as the clock may be. `None` for one
/// that has ended.
#[cfg(target_os = "linux")]
fn ticks(stat: &str) -> Option<u64> {
    // The second field is the program's name in parentheses, and may hold anything, parentheses and spaces too.
    let mut fields = stat.rsplit_once(')')?.1.split_ascii_whitespace();
    let state = fields.next()?;
    // The third field was the state; the twenty-second is the start.
    (!matches!(state, "Z" | "X" | "x")).then(|| fields.nth(18)?.parse().ok()).flatten()
}

/// Which start of the machine this is: a number drawn anew at each.
#[cfg(target_os = "linux")]
fn boot() -> Option<(u64, u64)> {
    let text = std::fs::read_to_string("/proc/sys/kernel/random/boot_id").ok()?;
    let id = u128::from_str_radix(&text.trim().replace('-', ""), 16).ok()?;
    Some(((id >> 64) as u64, id as u64))
}

/// When a process that runs began. `None`: there is none, or it has ended and nobody has asked how, or it is not to be known.
#[cfg(not(target_os = "linux"))]
pub(crate) fn born(pid: u32) -> Option<Birth> {
    use sysinfo::{Pid, ProcessRefreshKind, ProcessStatus, ProcessesToUpdate, System};
    let (pid, mut system) = (Pid::from_u32(pid), System::new().ok()?);
    system.refresh_processes_specifics(ProcessesToUpdate::Some(&[pid]), true, ProcessRefreshKind::nothing());
    let process = system.process(pid)?;
    let ended = matches!(process.status(), ProcessStatus::Zombie | ProcessStatus::Dead);
    // These systems note the time itself.
    (!ended).then(|| Birth { boot: (0, 0), ticks: process.start_time() })
}

/// Whether a process still runs. Its number alone does not tell: numbers are given out again.
pub(crate) fn runs(process: Process) -> bool {
    process.born.is_some() && born(process.pid) == process.born
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
pub(crate) fn tell(process: Process, what: Tell) {
    if runs(process) {
        send(process.pid, what);
    }
}

/// Sends it to whoever has this number. Of a child of ours that nobody has waited for, the number is its own.
#[cfg(unix)]
pub(crate) fn send(pid: u32, what: Tell) {
    use rustix::process::{Pid, Signal, kill_process};
    let signal = match what {
        Tell::Terminate => Signal::TERM,
        Tell::Kill => Signal::KILL,
    };
    if let Some(known) = i32::try_from(pid).ok().and_then(Pid::from_raw)
        && let Err(e) = kill_process(known, signal)
    {
        tracing::warn!("process {pid} could not be sent {signal:?}: {e}");
    }
}

/// Ends whoever has this number: there is no asking here. Of a child of ours that nobody has waited for, the number is its own.
#[cfg(not(unix))]
pub(crate) fn send(pid: u32, _what: Tell) {
    use sysinfo::{Pid, ProcessRefreshKind, ProcessesToUpdate, System};
    let (pid, Ok(mut system)) = (Pid::from_u32(pid), System::new()) else { return };
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
    match logs::last_line(log) {
        Some(line) => format!("{ended}; it last said: {line}"),
        None => ended,
    }
}

/// Lets us open as many files as the system lets anybody: every request takes a connection to its client and one to its worker.
/// Says how many that is, where that is known.
#[cfg(unix)]
pub(crate) fn raise_files() -> Option<u64> {
    use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};
    let now = getrlimit(Resource::Nofile);
    let raised = Rlimit { current: now.maximum, ..now };
    if now.current != now.maximum
        && let Err(e) = setrlimit(Resource::Nofile, raised)
    {
        tracing::debug!("the limit of open files stays as it is: {e}");
    }
    getrlimit(Resource::Nofile).current
}

/// There is no such limit here.
#[cfg(not(unix))]
pub(crate) fn raise_files() -> Option<u64> {
    None
}

#[cfg(all(test, target_os = "linux"))]
mod tests {
    use super::*;

    fn sleeper() -> (Child, Process) {
        let dir = tempfile::tempdir().unwrap();
        spawn(Path::new("sleep"), &["60".into()], ("X", "x"), &dir.path().join("log")).unwrap()
    }

    #[test]
    fn the_time_of_birth_is_the_twenty_second_field_whatever_the_name() {
        let line = |name: &str, state: char| {
            format!("77 ({name}) {state} 1 77 77 0 -1 4194304 100 0 0 0 1 2 0 0 20 0 1 0 123456 8000000 200 184467")
        };
        assert_eq!(ticks(&line("sconce", 'S')), Some(123_456));
        assert_eq!(ticks(&line(") Z (1 2", 'R')), Some(123_456));
        assert_eq!(ticks(&line("sconce", 'Z')), None, "it has ended");
        assert_eq!((ticks(""), ticks("77 (x) S 1")), (None, None));
    }

    #[tokio::test]
    async fn a_process_is_known_by_its_birth_and_nobody_else_is_told_to_end() {
        let (mut child, process) = sleeper();
        assert!(runs(process));
        let Birth { boot, ticks } = process.born.unwrap();
        // The same number: a tick later, after another start of the machine, or of a birth that nobody noted.
        let others = [Some(Birth { boot, ticks: ticks + 1 }), Some(Birth { boot: (boot.0, !boot.1), ticks }), None];
        for other in others.map(|born| Process { born, ..process }) {
            assert!(!runs(other), "{other:?}");
            tell(other, Tell::Kill);
        }
        tokio::time::sleep(std::time::Duration::from_millis(50)).await;
        assert!(child.try_wait().unwrap().is_none(), "it was not meant");
        tell(process, Tell::Terminate);
        assert!(!child.wait().await.unwrap().success());
        assert!(!runs(process));
    }

    #[tokio::test]
    async fn one_that_ended_and_was_not_waited_for_does_not_run() {
        let (mut child, process) = sleeper();
        send(process.pid, Tell::Kill);
        for _ in 0..200 {
            if !runs(process) {
                break;
            }
            tokio::time::sleep(std::time::Duration::from_millis(10)).await;
        }
        assert!(!runs(process), "a zombie");
        assert!(child.wait().await.unwrap().code().is_none());
    }

    #[test]
    fn files_may_be_opened_up_to_the_hard_limit() {
        use rustix::process::{Resource, getrlimit};
        assert_eq!(raise_files(), getrlimit(Resource::Nofile).maximum);
    }
}
