//! Processes of workers: spawning, recognizing and signalling them.

use crate::core::{Process, StartTime};
use crate::logs;
use std::io;
use std::path::Path;
use std::process::{ExitStatus, Stdio};
use tokio::process::{Child, Command};

/// Spawns a process that outlives the manager: in its own process group, so that Ctrl-C in the
/// manager's terminal does not reach it, and with a log file, since a pipe would close with the
/// manager.
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
    let pid = child.id().ok_or_else(|| io::Error::other("the process ended at once"))?;
    Ok((child, Process { pid, born: start_time(pid) }))
}

/// Start time of a running process. `None` if there is no such process, it is a zombie, or the
/// system does not say.
#[cfg(target_os = "linux")]
pub(crate) fn start_time(pid: u32) -> Option<StartTime> {
    let stat = std::fs::read_to_string(format!("/proc/{pid}/stat")).ok()?;
    Some(StartTime { boot: boot_id()?, ticks: ticks(&stat)? })
}

/// Ticks from boot to the start of the process, from a line of `/proc/PID/stat`; unlike the wall
/// clock they are never adjusted. `None` for a zombie.
#[cfg(target_os = "linux")]
fn ticks(stat: &str) -> Option<u64> {
    // The second field is the program's name in parentheses, which may itself contain parentheses
    // and spaces.
    let mut fields = stat.rsplit_once(')')?.1.split_ascii_whitespace();
    let state = fields.next()?;
    // The third field is the state, the twenty-second the start time.
    (!matches!(state, "Z" | "X" | "x")).then(|| fields.nth(18)?.parse().ok()).flatten()
}

/// Boot id: a random number that changes at each boot.
#[cfg(target_os = "linux")]
fn boot_id() -> Option<(u64, u64)> {
    let text = std::fs::read_to_string("/proc/sys/kernel/random/boot_id").ok()?;
    let id = u128::from_str_radix(&text.trim().replace('-', ""), 16).ok()?;
    Some(((id >> 64) as u64, id as u64))
}

/// Start time of a running process. `None` if there is no such process, it is a zombie, or the
/// system does not say.
#[cfg(not(target_os = "linux"))]
pub(crate) fn start_time(pid: u32) -> Option<StartTime> {
    use sysinfo::{Pid, ProcessRefreshKind, ProcessStatus, ProcessesToUpdate, System};
    let (pid, mut system) = (Pid::from_u32(pid), System::new().ok()?);
    system.refresh_processes_specifics(ProcessesToUpdate::Some(&[pid]), true, ProcessRefreshKind::nothing());
    let process = system.process(pid)?;
    let ended = matches!(process.status(), ProcessStatus::Zombie | ProcessStatus::Dead);
    // These systems report the time itself.
    (!ended).then(|| StartTime { boot: (0, 0), ticks: process.start_time() })
}

/// Whether a process still runs. The pid alone does not tell, because pids are reused.
pub(crate) fn is_running(process: Process) -> bool {
    process.born.is_some() && start_time(process.pid) == process.born
}

/// The signal that ends a process.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum EndSignal {
    /// SIGTERM.
    Terminate,
    /// SIGKILL.
    Kill,
}

/// Signals a process if its start time still matches.
pub(crate) fn signal(process: Process, end: EndSignal) {
    if is_running(process) {
        send_signal(process.pid, end);
    }
}

/// Signals whatever process has this pid. The pid of a child that was not waited for cannot be
/// reused.
#[cfg(unix)]
pub(crate) fn send_signal(pid: u32, end: EndSignal) {
    use rustix::process::{Pid, Signal, kill_process};
    let signal = match end {
        EndSignal::Terminate => Signal::TERM,
        EndSignal::Kill => Signal::KILL,
    };
    if let Some(known) = i32::try_from(pid).ok().and_then(Pid::from_raw)
        && let Err(e) = kill_process(known, signal)
    {
        tracing::warn!("cannot send {signal:?} to process {pid}: {e}");
    }
}

/// Kills whatever process has this pid; there is no SIGTERM here. The pid of a child that was not
/// waited for cannot be reused.
#[cfg(not(unix))]
pub(crate) fn send_signal(pid: u32, _what: EndSignal) {
    use sysinfo::{Pid, ProcessRefreshKind, ProcessesToUpdate, System};
    let (pid, Ok(mut system)) = (Pid::from_u32(pid), System::new()) else { return };
    system.refresh_processes_specifics(ProcessesToUpdate::Some(&[pid]), true, ProcessRefreshKind::nothing());
    if let Some(process) = system.process(pid) {
        process.kill();
    }
}

/// How a process ended, with the last line of its log.
pub(crate) fn describe_exit(status: ExitStatus, log: &Path) -> String {
    #[cfg(unix)]
    let signal = std::os::unix::process::ExitStatusExt::signal(&status).map(|s| format!("signal {s}"));
    #[cfg(not(unix))]
    let signal: Option<String> = None;
    let ended = match (status.code(), signal) {
        (Some(code), _) => format!("exit code {code}"),
        (None, Some(signal)) => signal,
        (None, None) => "exit status unknown".into(),
    };
    match logs::last_line(log) {
        Some(line) => format!("{ended}; last line of its log: {line}"),
        None => ended,
    }
}

/// Raises the limit of open files to the hard limit, because every request takes a connection to
/// its client and one to its worker. Returns the limit, if there is one.
#[cfg(unix)]
pub(crate) fn raise_file_limit() -> Option<u64> {
    use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};
    let now = getrlimit(Resource::Nofile);
    let raised = Rlimit { current: now.maximum, ..now };
    if now.current != now.maximum
        && let Err(e) = setrlimit(Resource::Nofile, raised)
    {
        tracing::debug!("cannot raise the limit of open files: {e}");
    }
    getrlimit(Resource::Nofile).current
}

/// There is no such limit here.
#[cfg(not(unix))]
pub(crate) fn raise_file_limit() -> Option<u64> {
    None
}

#[cfg(all(test, target_os = "linux"))]
mod tests {
    use super::*;
    use sconce_testkit::wait_until_async;

    fn sleeper() -> (Child, Process) {
        let dir = tempfile::tempdir().unwrap();
        spawn(Path::new("sleep"), &["60".into()], ("X", "x"), &dir.path().join("log")).unwrap()
    }

    #[test]
    fn start_time_is_field_22_for_any_process_name() {
        let line = |name: &str, state: char| {
            format!("77 ({name}) {state} 1 77 77 0 -1 4194304 100 0 0 0 1 2 0 0 20 0 1 0 123456 8000000 200 184467")
        };
        assert_eq!(ticks(&line("sconce", 'S')), Some(123_456));
        assert_eq!(ticks(&line(") Z (1 2", 'R')), Some(123_456));
        assert_eq!(ticks(&line("sconce", 'Z')), None, "a zombie has ended");
        assert_eq!((ticks(""), ticks("77 (x) S 1")), (None, None));
    }

    #[tokio::test]
    async fn signals_reach_only_the_process_with_the_same_start_time() {
        let (mut child, process) = sleeper();
        assert!(is_running(process));
        let StartTime { boot, ticks } = process.born.unwrap();
        // The same pid with a start time one tick later, of another boot, or unknown.
        let others =
            [Some(StartTime { boot, ticks: ticks + 1 }), Some(StartTime { boot: (boot.0, !boot.1), ticks }), None];
        for other in others.map(|born| Process { born, ..process }) {
            assert!(!is_running(other), "{other:?}");
            signal(other, EndSignal::Kill);
        }
        // Time to end, which must not happen.
        tokio::time::sleep(std::time::Duration::from_millis(50)).await;
        assert!(child.try_wait().unwrap().is_none(), "the signal was for another process");
        signal(process, EndSignal::Terminate);
        assert!(!child.wait().await.unwrap().success());
        assert!(!is_running(process));
    }

    #[tokio::test]
    async fn zombie_process_is_not_running() {
        let (mut child, process) = sleeper();
        send_signal(process.pid, EndSignal::Kill);
        wait_until_async("the process is a zombie", || !is_running(process)).await;
        assert!(child.wait().await.unwrap().code().is_none());
    }

    #[test]
    fn file_limit_is_raised_to_the_hard_limit() {
        use rustix::process::{Resource, getrlimit};
        assert_eq!(raise_file_limit(), getrlimit(Resource::Nofile).maximum);
    }
}
