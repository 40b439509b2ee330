//! Runs the checks of a device in a child process, and restarts it if a kernel ended it.

use super::examine::{Check, CheckMessage, CheckResult, FaultInjection};
use crate::Failure;
use crate::program::program;
use sconce_ops::Device;
use std::io::{BufRead, BufReader};
use std::process::{Child, Command, Stdio};
use std::sync::mpsc::{Receiver, RecvTimeoutError, channel};
use std::thread;
use std::time::Duration;

/// Results of one device.
#[derive(Default)]
pub(super) struct DeviceResults {
    /// Why the checks of the device did not start or did not finish.
    pub(super) closed: Option<String>,
    pub(super) results: Vec<(Check, Option<CheckResult>)>,
    /// Checks skipped because a similar one ended the process.
    pub(super) skipped: Vec<Check>,
}

/// What to check, and how.
pub(super) struct CheckOptions<'a> {
    pub(super) device: Device,
    pub(super) op: Option<&'a str>,
    pub(super) drill: Option<&'a FaultInjection>,
    /// Time-out of one check.
    pub(super) timeout: Duration,
}

/// Why a process ended.
enum ProcessEnd {
    /// By itself.
    Exited,
    Died(String),
}

/// Runs all these checks. Once a check has ended the process, others with the same `group` are
/// skipped.
pub(super) fn run_checks<K: PartialEq>(
    options: &CheckOptions<'_>,
    mut wanted: Vec<Check>,
    group: impl Fn(Check) -> K,
    mut on_result: impl FnMut(),
) -> Result<DeviceResults, Failure> {
    let mut all = DeviceResults::default();
    while !wanted.is_empty() {
        let (mut child, messages) = start(options, &wanted)?;
        let (mut at, before) = (None, all.results.len());
        let end = loop {
            match messages.recv_timeout(options.timeout) {
                Ok(CheckMessage::Closed(why)) => all.closed = Some(why),
                Ok(CheckMessage::Begun(check)) => at = Some(check),
                Ok(CheckMessage::Done(check, result)) => {
                    at = None;
                    all.results.push((check, result));
                    on_result();
                }
                Err(RecvTimeoutError::Timeout) => {
                    child.kill()?;
                    child.wait()?;
                    break ProcessEnd::Died(format!("no answer within {} s", options.timeout.as_secs_f64()));
                }
                Err(RecvTimeoutError::Disconnected) => {
                    let status = child.wait()?;
                    break if status.success() {
                        ProcessEnd::Exited
                    } else {
                        ProcessEnd::Died(format!("the process died: {status}"))
                    };
                }
            }
        };
        match (end, at) {
            (ProcessEnd::Died(why), Some(check)) => {
                all.results.push((check, Some(CheckResult::failed(why))));
                on_result();
                all.skipped.extend(wanted.iter().filter(|w| **w != check && group(**w) == group(check)));
            }
            // Not during a check: another process would end the same way.
            (ProcessEnd::Died(why), None) => all.closed = all.closed.or(Some(why)),
            (ProcessEnd::Exited, _) => {}
        }
        all.skipped.retain(|skipped| !all.results.iter().any(|(done, _)| done == skipped));
        wanted.retain(|w| !all.skipped.contains(w) && !all.results[before..].iter().any(|(done, _)| done == w));
        if all.closed.is_some() || all.results.len() == before {
            break;
        }
    }
    Ok(all)
}

/// Starts a process that runs these checks; the receiver gets its messages.
fn start(options: &CheckOptions<'_>, wanted: &[Check]) -> Result<(Child, Receiver<CheckMessage>), Failure> {
    let mut command = Command::new(program()?);
    command.args(["doctor", "--examine", "--device", &options.device.to_string()]);
    if let Some(op) = options.op {
        command.args(["--op", op]);
    }
    if let Some(drill) = options.drill {
        command.args(["--drill", &drill.to_string()]);
    }
    let mut child = command.stdin(Stdio::piped()).stdout(Stdio::piped()).spawn()?;
    // Dropped once written, so that the child sees the end. A child that died before reading is
    // noticed because it sends nothing.
    let _ = child.stdin.take().map(|stdin| serde_json::to_writer(stdin, wanted));
    let (sender, messages) = channel();
    if let Some(stdout) = child.stdout.take() {
        thread::spawn(move || {
            for line in BufReader::new(stdout).lines().map_while(Result::ok) {
                // Output of a driver.
                let Ok(message) = serde_json::from_str(&line) else { continue };
                if sender.send(message).is_err() {
                    return;
                }
            }
        });
    }
    Ok((child, messages))
}
