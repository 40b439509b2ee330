//! The checks of one device, in a process of their own: an untested kernel may crash it.
//!
//! Reads the checks to run from standard input, and prints when each begins and how it ended.

use crate::Failure;
use crate::commands::print;
use sconce_ops::case::{Case, Variant, check, time, variants};
use sconce_ops::{Device, Isa, Place, Rung};
use serde::{Deserialize, Serialize};
use std::cell::OnceCell;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::process::abort;
use std::str::FromStr;
use std::thread::park;
use std::time::Duration;

/// A case and a variant, as indices into the lists that both processes have.
pub(super) type Check = (usize, usize);

/// Messages of the checking process.
#[derive(Debug, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub(super) enum CheckMessage {
    /// The device cannot be opened, and why.
    Closed(String),
    Begun(Check),
    /// `None` if the rung does not take the call.
    Done(Check, Option<CheckResult>),
}

/// Result of a check. Numbers are `None` if there are none.
#[derive(Clone, Debug, Default, Serialize, Deserialize)]
pub(super) struct CheckResult {
    pub(super) worst: Option<f64>,
    pub(super) mean: Option<f64>,
    pub(super) allowed: Option<f64>,
    /// Median time of a call, with the device synchronized.
    pub(super) seconds: Option<f64>,
    /// Why the check failed.
    pub(super) failure: Option<String>,
}

impl CheckResult {
    pub(super) fn failed(why: impl Into<String>) -> CheckResult {
        CheckResult { failure: Some(why.into()), ..CheckResult::default() }
    }
}

/// A fault injected into a kernel, to test that it is noticed: `layer_norm=wrong`.
#[derive(Clone, Debug)]
pub(super) struct FaultInjection {
    op: String,
    fault: Fault,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Fault {
    Wrong,
    Panic,
    Abort,
    Hang,
}

const FAULTS: [(&str, Fault); 4] =
    [("wrong", Fault::Wrong), ("panic", Fault::Panic), ("abort", Fault::Abort), ("hang", Fault::Hang)];

impl FromStr for FaultInjection {
    type Err = String;
    fn from_str(s: &str) -> Result<Self, String> {
        let known = |fault: &str| FAULTS.into_iter().find(|(name, _)| *name == fault);
        let parts = s.split_once('=').and_then(|(op, fault)| Some((op, known(fault)?)));
        let (op, (_, fault)) = parts.ok_or("OP=HOW, where HOW is wrong, panic, abort or hang")?;
        Ok(FaultInjection { op: op.into(), fault })
    }
}

impl std::fmt::Display for FaultInjection {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let name = FAULTS.into_iter().find(|(_, fault)| *fault == self.fault).map_or("", |(name, _)| name);
        write!(f, "{}={name}", self.op)
    }
}

/// Runs the checks that standard input lists, until one leaves this process unusable.
pub(super) fn examine(device: Device, cases: Vec<Case>, drill: Option<&FaultInjection>) -> Result<(), Failure> {
    let wanted: Vec<Check> = serde_json::from_reader(std::io::stdin())?;
    let place = match catch_unwind(|| Place::open(device)) {
        Ok(Ok(place)) => place,
        Ok(Err(e)) => return send(&CheckMessage::Closed(e.to_string())),
        Err(panic) => return send(&CheckMessage::Closed(panic_message(&*panic))),
    };
    let variants = variants(device);
    let largest: Vec<bool> = cases.iter().map(|case| is_largest(case, &cases)).collect();
    for (i, case) in cases.into_iter().enumerate() {
        let case = cache_reference(case);
        for j in wanted.iter().filter(|(wanted, _)| *wanted == i).map(|(_, j)| *j) {
            let variant = variants[j];
            let used = variant.isa.is_none_or(|isa| isa == Isa::best());
            let fault = drill.filter(|d| d.op == case.op && variant.rung == Rung::Fused && used).map(|d| d.fault);
            send(&CheckMessage::Begun((i, j)))?;
            let found = catch_unwind(AssertUnwindSafe(|| run_check(&case, &place, variant, fault)));
            let mut found = found.unwrap_or_else(|panic| Some(CheckResult::failed(panic_message(&*panic))));
            // A kernel that failed is not timed.
            if let Some(found) = found.as_mut().filter(|f| f.failure.is_none() && (used || largest[i])) {
                let timed = || time(&case, &place, variant, Duration::from_millis(5));
                let timed = catch_unwind(AssertUnwindSafe(timed)).ok().and_then(Result::ok).flatten();
                found.seconds = timed.map(|t| t.as_secs_f64());
            }
            // An error may stay in a GPU's context and would then be blamed on the next check.
            let is_unusable =
                device.is_gpu() && found.as_ref().is_some_and(|f| f.failure.is_some() && f.worst.is_none());
            send(&CheckMessage::Done((i, j), found))?;
            if is_unusable {
                return Ok(());
            }
        }
    }
    Ok(())
}

fn run_check(case: &Case, place: &Place, variant: Variant, fault: Option<Fault>) -> Option<CheckResult> {
    match fault {
        None => {}
        Some(Fault::Wrong) => {
            return Some(CheckResult { worst: Some(1.0), ..CheckResult::failed("an injected fault") });
        }
        Some(Fault::Panic) => panic!("an injected fault"),
        Some(Fault::Abort) => abort(),
        Some(Fault::Hang) => loop {
            park();
        },
    }
    let outcome = check(case, place, variant)?;
    let number = |x: f64| x.is_finite().then_some(x);
    Some(CheckResult {
        worst: number(outcome.worst),
        mean: number(outcome.mean),
        allowed: number(outcome.allowed),
        seconds: None,
        failure: outcome.failure,
    })
}

/// Whether this case is compared with the composed form: the last of the largest cases of its op
/// and dtype.
pub(super) fn is_largest(case: &Case, all: &[Case]) -> bool {
    let alike = all.iter().filter(|c| c.op == case.op && c.dtype == case.dtype);
    alike.max_by_key(|c| c.flops).is_some_and(|c| std::ptr::eq(c, case))
}

/// The same case with its reference computed once for all variants.
fn cache_reference(case: Case) -> Case {
    let (reference, known) = (case.reference, OnceCell::new());
    Case { reference: Box::new(move || known.get_or_init(&reference).clone()), ..case }
}

fn send(what: &CheckMessage) -> Result<(), Failure> {
    Ok(print(&serde_json::to_string(what)?)?)
}

/// Message of a panic.
fn panic_message(panic: &(dyn std::any::Any + Send)) -> String {
    let text = panic.downcast_ref::<String>().map(String::as_str).or_else(|| panic.downcast_ref::<&str>().copied());
    format!("panicked: {}", text.unwrap_or("without a message"))
}
