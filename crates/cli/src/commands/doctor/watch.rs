//! Starts the examination of a device, listens, and starts it again where a kernel ended it.

use super::examine::{Check, Drill, Finding, Said};
use crate::Failure;
use sconce_ops::Device;
use std::io::{BufRead, BufReader};
use std::process::{Child, Command, Stdio};
use std::sync::mpsc::{Receiver, RecvTimeoutError, channel};
use std::thread;
use std::time::Duration;

/// What came of one device.
#[derive(Default)]
pub(super) struct Examined {
    /// Why it could not be examined, or no further.
    pub(super) closed: Option<String>,
    pub(super) found: Vec<(Check, Option<Finding>)>,
    /// Checks that were not made, since one like them ended the process.
    pub(super) left: Vec<Check>,
}

/// How to examine.
pub(super) struct Manner<'a> {
    pub(super) device: Device,
    pub(super) op: Option<&'a str>,
    pub(super) drill: Option<&'a Drill>,
    /// How long one check may take.
    pub(super) patience: Duration,
}

/// Why a process said no more.
enum End {
    /// By itself.
    Left,
    Died(String),
}

/// Makes all these checks; those for which `alike` gives the same answer are left out once one of them has ended the process.
pub(super) fn examined<K: PartialEq>(
    manner: &Manner<'_>,
    mut wanted: Vec<Check>,
    alike: impl Fn(Check) -> K,
    mut told: impl FnMut(),
) -> Result<Examined, Failure> {
    let mut all = Examined::default();
    while !wanted.is_empty() {
        let (mut child, said) = start(manner, &wanted)?;
        let (mut at, before) = (None, all.found.len());
        let end = loop {
            match said.recv_timeout(manner.patience) {
                Ok(Said::Closed(why)) => all.closed = Some(why),
                Ok(Said::Begun(check)) => at = Some(check),
                Ok(Said::Done(check, finding)) => {
                    at = None;
                    all.found.push((check, finding));
                    told();
                }
                Err(RecvTimeoutError::Timeout) => {
                    child.kill()?;
                    child.wait()?;
                    break End::Died(format!("no answer within {} s", manner.patience.as_secs_f64()));
                }
                Err(RecvTimeoutError::Disconnected) => {
                    let status = child.wait()?;
                    break if status.success() { End::Left } else { End::Died(format!("the process died: {status}")) };
                }
            }
        };
        match (end, at) {
            (End::Died(why), Some(check)) => {
                all.found.push((check, Some(Finding::failed(why))));
                told();
                all.left.extend(wanted.iter().filter(|w| **w != check && alike(**w) == alike(check)));
            }
            // Not in a check: another process would do the same.
            (End::Died(why), None) => all.closed = all.closed.or(Some(why)),
            (End::Left, _) => {}
        }
        all.left.retain(|left| !all.found.iter().any(|(done, _)| done == left));
        wanted.retain(|w| !all.left.contains(w) && !all.found[before..].iter().any(|(done, _)| done == w));
        if all.closed.is_some() || all.found.len() == before {
            break;
        }
    }
    Ok(all)
}

/// A process that makes these checks, and what it says.
fn start(manner: &Manner<'_>, wanted: &[Check]) -> Result<(Child, Receiver<Said>), Failure> {
    let mut command = Command::new(std::env::current_exe()?);
    command.args(["doctor", "--examine", "--device", &manner.device.to_string()]);
    if let Some(op) = manner.op {
        command.args(["--op", op]);
    }
    if let Some(drill) = manner.drill {
        command.args(["--drill", &drill.to_string()]);
    }
    let mut child = command.stdin(Stdio::piped()).stdout(Stdio::piped()).spawn()?;
    // Dropped when written, so that the reader sees the end. One that died before it read is noticed by its silence.
    let _ = child.stdin.take().map(|stdin| serde_json::to_writer(stdin, wanted));
    let (tell, said) = channel();
    if let Some(stdout) = child.stdout.take() {
        thread::spawn(move || {
            for line in BufReader::new(stdout).lines().map_while(Result::ok) {
                // What a driver prints is none of ours.
                let Ok(said) = serde_json::from_str(&line) else { continue };
                if tell.send(said).is_err() {
                    return;
                }
            }
        });
    }
    Ok((child, said))
}
