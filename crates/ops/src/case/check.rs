//! Runs a case on a place and a rung, and compares or times it.

use super::Case;
use crate::cpu::Isa;
use crate::ladder::{Ladder, Policy, Rung};
use crate::{DType, Device, Error, Place, Result};
use std::fmt;
use std::time::{Duration, Instant};

/// A rung, and for our CPU kernels the instruction set.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Variant {
    /// The rung.
    pub rung: Rung,
    /// The instruction set, for our own CPU kernels.
    pub isa: Option<Isa>,
}

impl fmt::Display for Variant {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.isa {
            Some(isa) => f.pad(&format!("{} {isa}", self.rung)),
            None => self.rung.fmt(f),
        }
    }
}

/// Every way that `device` can run an op: our kernel (on a CPU, once per instruction set it has),
/// and the composed form.
pub fn variants(device: Device) -> Vec<Variant> {
    let fused: Vec<_> = match device {
        Device::Cpu => Isa::all().map(|isa| Variant { rung: Rung::Fused, isa: Some(isa) }).collect(),
        _ => vec![Variant { rung: Rung::Fused, isa: None }],
    };
    fused.into_iter().chain([Variant { rung: Rung::Composed, isa: None }]).collect()
}

/// The result of a case.
#[derive(Clone, Debug)]
pub struct Outcome {
    /// The op.
    pub op: &'static str,
    /// The case.
    pub case: String,
    /// Activation dtype.
    pub dtype: DType,
    /// The rung and instruction set it ran on.
    pub variant: Variant,
    /// The largest error of an element.
    pub worst: f64,
    /// The mean error.
    pub mean: f64,
    /// The largest error allowed.
    pub allowed: f64,
    /// Why the case fails: an error while running, or an error too large. None if it passes.
    pub failure: Option<String>,
}

/// Runs the case and compares; `None` if this rung does not take the call on this place.
pub fn check(case: &Case, place: &Place, variant: Variant) -> Option<Outcome> {
    let mut outcome = Outcome {
        op: case.op,
        case: case.name.clone(),
        dtype: case.dtype,
        variant,
        worst: f64::NAN,
        mean: f64::NAN,
        allowed: case.tolerance.worst(variant.rung, case.dtype),
        failure: None,
    };
    let got = under(variant, || (case.prepare)(place)?()?.to_f32());
    match got {
        Err(Error::Refused { .. }) => return None,
        Err(e) => outcome.failure = Some(e.to_string()),
        Ok(got) => {
            let want = (case.reference)();
            (outcome.worst, outcome.mean) = distance(&got, &want);
            let mean = case.tolerance.mean(variant.rung, case.dtype);
            // Written so that NaN fails.
            let holds = got.len() == want.len() && outcome.worst <= outcome.allowed && outcome.mean <= mean;
            if !holds {
                outcome.failure = Some(format!(
                    "worst error {:.2e} (allowed {:.2e}), mean {:.2e} (allowed {mean:.2e})",
                    outcome.worst, outcome.allowed, outcome.mean
                ));
            }
        }
    }
    Some(outcome)
}

/// Median time of one call until the device has finished it; `None` if this rung does not take the
/// call on this place.
pub fn time(case: &Case, place: &Place, variant: Variant, budget: Duration) -> Result<Option<Duration>> {
    let median = under(variant, || {
        let call = (case.prepare)(place)?;
        let start = Instant::now();
        let once = || -> Result<Duration> {
            let start = Instant::now();
            let y = call()?;
            place.synchronize()?;
            drop(y);
            Ok(start.elapsed())
        };
        once()?;
        let mut times = vec![once()?];
        while start.elapsed() < budget && times.len() < 1000 {
            times.push(once()?);
        }
        times.sort_unstable();
        Ok(times[times.len() / 2])
    });
    match median {
        Ok(t) => Ok(Some(t)),
        Err(Error::Refused { .. }) => Ok(None),
        Err(e) => Err(e),
    }
}

fn under<T>(variant: Variant, f: impl FnOnce() -> Result<T>) -> Result<T> {
    let policy = Policy { force: Some(variant.rung), isa: variant.isa, ..Policy::default() };
    let _here = Ladder::new(policy).enter();
    f()
}

/// Worst and mean of |y − r| / (|r| + rms(r)).
fn distance(got: &[f32], want: &[f64]) -> (f64, f64) {
    let n = want.len().max(1) as f64;
    let rms = (want.iter().map(|r| r * r).sum::<f64>() / n).sqrt();
    let (mut worst, mut sum) = (0f64, 0f64);
    for (y, r) in got.iter().zip(want) {
        let error = (f64::from(*y) - r).abs() / (r.abs() + rms).max(f64::MIN_POSITIVE);
        // `max` would drop a NaN.
        worst = if error.is_nan() || worst.is_nan() { f64::NAN } else { worst.max(error) };
        sum += error;
    }
    (worst, sum / n)
}
