//! The examination itself, in a process of its own: a kernel that has never run on a chip may take the process with it.
//!
//! Reads the checks to make from standard input and says on standard output when each begins and how it ended.

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

/// A case and a variant, by their places in the lists that both processes have.
pub(super) type Check = (usize, usize);

/// What the examined process says.
#[derive(Debug, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub(super) enum Said {
    /// The device cannot be opened, and why.
    Closed(String),
    Begun(Check),
    /// Nothing where the rung does not take the call.
    Done(Check, Option<Finding>),
}

/// How a check went. No number where there is none.
#[derive(Clone, Debug, Default, Serialize, Deserialize)]
pub(super) struct Finding {
    pub(super) worst: Option<f64>,
    pub(super) mean: Option<f64>,
    pub(super) allowed: Option<f64>,
    /// Median time of a call, the device waited for.
    pub(super) seconds: Option<f64>,
    /// Why it does not hold.
    pub(super) failure: Option<String>,
}

impl Finding {
    pub(super) fn failed(why: impl Into<String>) -> Finding {
        Finding { failure: Some(why.into()), ..Finding::default() }
    }
}

/// A kernel that is made to fail, to see that the alarm works: `layer_norm=wrong`.
#[derive(Clone, Debug)]
pub(super) struct Drill {
    op: String,
    how: Fault,
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

impl FromStr for Drill {
    type Err = String;
    fn from_str(s: &str) -> Result<Self, String> {
        let known = |how: &str| FAULTS.into_iter().find(|(name, _)| *name == how);
        let parts = s.split_once('=').and_then(|(op, how)| Some((op, known(how)?)));
        let (op, (_, how)) = parts.ok_or("OP=HOW, where HOW is wrong, panic, abort or hang")?;
        Ok(Drill { op: op.into(), how })
    }
}

impl std::fmt::Display for Drill {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let name = FAULTS.into_iter().find(|(_, how)| *how == self.how).map_or("", |(name, _)| name);
        write!(f, "{}={name}", self.op)
    }
}

/// Makes the checks that standard input names, until one shows that this process can be trusted no longer.
pub(super) fn examine(device: Device, cases: Vec<Case>, drill: Option<&Drill>) -> Result<(), Failure> {
    let wanted: Vec<Check> = serde_json::from_reader(std::io::stdin())?;
    let place = match catch_unwind(|| Place::open(device)) {
        Ok(Ok(place)) => place,
        Ok(Err(e)) => return say(&Said::Closed(e.to_string())),
        Err(panic) => return say(&Said::Closed(words(&*panic))),
    };
    let variants = variants(device);
    let largest: Vec<bool> = cases.iter().map(|case| is_largest(case, &cases)).collect();
    for (i, case) in cases.into_iter().enumerate() {
        let case = remembering(case);
        for j in wanted.iter().filter(|(wanted, _)| *wanted == i).map(|(_, j)| *j) {
            let variant = variants[j];
            let used = variant.isa.is_none_or(|isa| isa == Isa::best());
            let fault = drill.filter(|d| d.op == case.op && variant.rung == Rung::Fused && used).map(|d| d.how);
            say(&Said::Begun((i, j)))?;
            let found = catch_unwind(AssertUnwindSafe(|| checked(&case, &place, variant, fault)));
            let mut found = found.unwrap_or_else(|panic| Some(Finding::failed(words(&*panic))));
            // Whatever is wrong with it, it has no speed.
            if let Some(found) = found.as_mut().filter(|f| f.failure.is_none() && (used || largest[i])) {
                let timed = || time(&case, &place, variant, Duration::from_millis(5));
                let timed = catch_unwind(AssertUnwindSafe(timed)).ok().and_then(Result::ok).flatten();
                found.seconds = timed.map(|t| t.as_secs_f64());
            }
            // An error may stay with a GPU's context, and would be blamed on whatever runs next.
            let spoilt = device.is_gpu() && found.as_ref().is_some_and(|f| f.failure.is_some() && f.worst.is_none());
            say(&Said::Done((i, j), found))?;
            if spoilt {
                return Ok(());
            }
        }
    }
    Ok(())
}

fn checked(case: &Case, place: &Place, variant: Variant, fault: Option<Fault>) -> Option<Finding> {
    match fault {
        None => {}
        Some(Fault::Wrong) => return Some(Finding { worst: Some(1.0), ..Finding::failed("a drill") }),
        Some(Fault::Panic) => panic!("a drill"),
        Some(Fault::Abort) => abort(),
        Some(Fault::Hang) => loop {
            park();
        },
    }
    let outcome = check(case, place, variant)?;
    let number = |x: f64| x.is_finite().then_some(x);
    Some(Finding {
        worst: number(outcome.worst),
        mean: number(outcome.mean),
        allowed: number(outcome.allowed),
        seconds: None,
        failure: outcome.failure,
    })
}

/// Whether it is the case by which its op and dtype are compared with the composed form: the last of the largest.
pub(super) fn is_largest(case: &Case, all: &[Case]) -> bool {
    let alike = all.iter().filter(|c| c.op == case.op && c.dtype == case.dtype);
    alike.max_by_key(|c| c.flops).is_some_and(|c| std::ptr::eq(c, case))
}

/// The same case, which works out its reference once for all variants.
fn remembering(case: Case) -> Case {
    let (reference, known) = (case.reference, OnceCell::new());
    Case { reference: Box::new(move || known.get_or_init(&reference).clone()), ..case }
}

fn say(what: &Said) -> Result<(), Failure> {
    Ok(print(&serde_json::to_string(what)?)?)
}

/// What a panic said.
fn words(panic: &(dyn std::any::Any + Send)) -> String {
    let text = panic.downcast_ref::<String>().map(String::as_str).or_else(|| panic.downcast_ref::<&str>().copied());
    format!("panicked: {}", text.unwrap_or("without a word"))
}
