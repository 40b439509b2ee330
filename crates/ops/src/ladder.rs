//! The ladder: fused → composed → host. The first rung that declares that it can run a call takes
//! it, and the choice is counted.
//!
//! `can` decides before anything runs, from the op's declarations and from this machine's last
//! doctor verdict. If that rung then fails, this is an error, never a reason to step down:
//! otherwise users would run on the CPU without knowing.

mod context;
mod joint;
mod op;

pub use context::{Entered, at};
pub(crate) use context::{Mode, capture, current, is_dry};
pub(crate) use joint::{Joint, whole};
pub(crate) use op::{Can, Op, own_kernels};

use crate::cpu::Isa;
use crate::ledger::{Lease, Ledger};
use crate::{DType, Device, Error, Place, Result, Tensor, replay, threads};
use derive_setters::Setters;
use std::collections::BTreeMap;
use std::fmt;
use std::str::FromStr;
use std::sync::{Arc, Mutex, PoisonError};

/// A way to run an op, best first.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Rung {
    /// Our own kernel for this device.
    Fused,
    /// The formula in Candle's tensor ops, on the same device.
    Composed,
    /// Copied to the CPU, run there, copied back.
    Host,
}

impl Rung {
    /// From the best to the last resort.
    pub const ALL: [Rung; 3] = [Rung::Fused, Rung::Composed, Rung::Host];
}

impl fmt::Display for Rung {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(match self {
            Rung::Fused => "fused",
            Rung::Composed => "composed",
            Rung::Host => "host",
        })
    }
}

impl FromStr for Rung {
    type Err = Error;
    fn from_str(s: &str) -> Result<Self> {
        Rung::ALL
            .into_iter()
            .find(|r| r.to_string() == s)
            .ok_or_else(|| Error::Parse(format!("unknown rung `{s}`; one of fused, composed, host")))
    }
}

/// What the user allows.
#[derive(Clone, Debug, Default, Setters)]
#[setters(prefix = "with_")]
#[non_exhaustive]
pub struct Policy {
    /// Only this rung; a call it cannot take is an error.
    pub force: Option<Rung>,
    /// Whether a GPU may hand ops to the CPU.
    pub allow_host: bool,
    /// Only this CPU instruction set, instead of the widest found.
    pub isa: Option<Isa>,
    /// Rungs that failed their cases on this machine, by `doctor`'s verdict.
    pub withdrawn: Vec<Withdrawn>,
}

/// A rung of an op that `doctor` found wrong on this machine.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Withdrawn {
    /// The op.
    pub op: String,
    /// `cpu`, `cuda` or `metal`.
    pub kind: String,
    /// The dtype it failed in.
    pub dtype: DType,
    /// Our kernel, or the composed form.
    pub rung: Rung,
}

impl fmt::Display for Withdrawn {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} in {} on {} ({})", self.op, self.dtype, self.kind, self.rung)
    }
}

/// The key of a count.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Counted {
    /// The op.
    pub op: &'static str,
    /// The device of the tensors, even if the host rung ran the call elsewhere.
    pub device: Device,
    /// Activation dtype.
    pub dtype: DType,
    /// The rung that took the call.
    pub rung: Rung,
}

/// One op call of a traced forward pass.
#[derive(Clone, Debug)]
#[non_exhaustive]
pub struct Step {
    /// The op.
    pub op: &'static str,
    /// Where in the model, or empty.
    pub at: String,
    /// Shapes and options.
    pub detail: String,
    /// Activation dtype.
    pub dtype: DType,
    /// The rung that takes the call, or why none does.
    pub rung: Result<Rung, String>,
    /// Why each better rung does not take the call.
    pub why_not: Vec<String>,
}

/// The state of the op calls on one thread: the policy goes in, counts and the ledger come out.
///
/// Ops take tensors only, so the ladder is ambient (`context.rs`): the thread that owns a device
/// enters its ladder once. Nothing is global.
#[derive(Debug, Default)]
pub struct Ladder {
    /// What is allowed.
    pub policy: Policy,
    /// Bytes held by tensors made under this ladder.
    pub ledger: Arc<Ledger>,
    counts: Mutex<BTreeMap<Counted, u64>>,
    trace: Mutex<Option<Vec<Step>>>,
}

impl Ladder {
    /// A ladder with this policy and nothing counted.
    pub fn new(policy: Policy) -> Arc<Ladder> {
        Arc::new(Ladder { policy, ..Ladder::default() })
    }

    /// What has run so far.
    pub fn counts(&self) -> Vec<(Counted, u64)> {
        lock(&self.counts).iter().map(|(k, v)| (*k, *v)).collect()
    }

    /// Runs `f`, which should work on phantoms, and returns the op calls it made. Refusals are
    /// recorded, not raised.
    pub fn trace<T>(self: &Arc<Self>, f: impl FnOnce() -> T) -> (T, Vec<Step>) {
        let _here = self.clone().enter();
        *lock(&self.trace) = Some(Vec::new());
        let out = f();
        (out, lock(&self.trace).take().unwrap_or_default())
    }

    /// The rung that takes `op`, and why each rung above it does not; if none takes it, why each
    /// does not.
    fn choose<O: Op>(&self, op: &O) -> (Option<Rung>, Vec<String>) {
        let mut why_not = Vec::new();
        for rung in Rung::ALL {
            match self.can(op, rung) {
                Can::Yes => return (Some(rung), why_not),
                Can::No(why) => why_not.push(format!("{rung}: {why}")),
            }
        }
        (None, why_not)
    }

    /// Whether the policy and doctor's verdict allow this rung of an op.
    pub(crate) fn allows(&self, name: &str, device: Device, dtype: DType, rung: Rung) -> Can {
        if let Some(force) = self.policy.force
            && force != rung
        {
            return Can::no(format!("{force} is forced"));
        }
        let failed = |w: &Withdrawn| (&*w.op, &*w.kind, w.dtype, w.rung) == (name, device.kind(), dtype, rung);
        match self.policy.withdrawn.iter().any(failed) {
            true => Can::no("failed its cases on this machine (`sconce doctor`) and is withdrawn"),
            false => Can::Yes,
        }
    }

    fn can<O: Op>(&self, op: &O, rung: Rung) -> Can {
        let (device, dtype) = (op.x().device(), op.x().dtype());
        let allowed = self.allows(O::NAME, device, dtype, rung);
        if allowed != Can::Yes {
            return allowed;
        }
        // If the CPU lacks the requested instruction set, no rung takes the call, not even the
        // composed one.
        if device == Device::Cpu
            && let Err(e) = Isa::of(&self.policy)
        {
            return Can::no(e.to_string());
        }
        match rung {
            Rung::Fused => op.fused(device),
            Rung::Composed => op.composable(device),
            Rung::Host if !device.is_gpu() => Can::no("this is the host"),
            Rung::Host if !self.policy.allow_host && self.policy.force != Some(Rung::Host) => {
                Can::no("a GPU's op runs on the CPU only with --allow-host")
            }
            Rung::Host => op.movable(),
        }
    }

    /// Adds the counts of a captured pass that was replayed.
    pub(crate) fn add_counts(&self, counts: &[(Counted, u64)]) {
        let mut all = lock(&self.counts);
        counts.iter().for_each(|(counted, n)| *all.entry(*counted).or_default() += n);
    }

    pub(crate) fn count(&self, counted: Counted) {
        *lock(&self.counts).entry(counted).or_default() += 1;
    }
}

/// Runs the call on the first rung that can take it, and counts it.
pub(crate) fn run<O: Op>(op: O) -> Result<Tensor> {
    let ((dims, dtype), device) = (op.out(), op.x().device());
    // The scratch memory stays in the ledger until the result is in it too: the rung held both at
    // once.
    let Performed { result, scratch: _held } = perform(&op)?;
    Ok(match result {
        Some((result, Rung::Fused)) if !matches!(device, Device::Metal(_)) => Tensor::pooled(result, dtype, device),
        Some((result, _)) => Tensor::real(result, dtype, device),
        None => Tensor::phantom(&dims, dtype, device),
    })
}

/// Like [`run`], for a call whose result is an existing tensor, which is in the ledger already.
pub(crate) fn run_in_place<O: Op>(op: O) -> Result<()> {
    perform(&op).map(drop)
}

/// Whether our kernel for this op is neither withdrawn nor excluded by the policy. A joint call
/// whose kernel includes this op checks it first.
pub(crate) fn is_allowed<O: Op>(device: Device, dtype: DType) -> bool {
    current().allows(O::NAME, device, dtype, Rung::Fused) == Can::Yes
}

/// The result of a call.
struct Performed {
    /// The result and its rung. None on phantoms, whose step is traced instead.
    result: Option<(candle_core::Tensor, Rung)>,
    /// The ledger entry of the rung's scratch buffers.
    scratch: Option<Arc<Lease>>,
}

fn perform<O: Op>(op: &O) -> Result<Performed> {
    let ladder = current();
    let (device, dtype) = (op.x().device(), op.x().dtype());
    let (rung, why_not) = ladder.choose(op);
    let (dims, out) = op.out();
    let scratch = rung.map(|rung| ladder.ledger.lease(op.scratch(rung)));

    if op.x().is_phantom() {
        let step = Step {
            op: O::NAME,
            at: context::part().unwrap_or_default(),
            detail: op.detail(),
            dtype,
            rung: rung.ok_or_else(|| why_not.join("; ")),
            why_not,
        };
        if let Some(steps) = lock(&ladder.trace).as_mut() {
            steps.push(step);
        }
        return Ok(Performed { result: None, scratch });
    }

    let at = || context::part().map_or_else(String::new, |at| format!(" ({at})"));
    let Some(rung) = rung else {
        return Err(Error::Refused { op: O::NAME, dtype, device, at: at(), why: why_not.join("; ") });
    };
    if rung != Rung::Fused && is_dry() {
        return Err(Error::call(O::NAME, format!("the {rung} rung cannot be compiled without running it")));
    }
    if rung != Rung::Fused {
        replay::refuse_capture()?;
    }
    let result = match rung {
        Rung::Fused => match device {
            Device::Cpu => op.cpu(Isa::of(&ladder.policy)?),
            Device::Cuda(_) => op.cuda(),
            Device::Metal(_) => op.metal(),
        },
        // Candle's ops may use rayon: see `with_candle`, whose threads have not entered the ladder.
        Rung::Composed if device == Device::Cpu => threads::with_candle(|| {
            let _here = ladder.clone().enter();
            op.composed()
        })
        .flatten(),
        Rung::Composed => op.composed(),
        Rung::Host => host(op, &ladder),
    };
    match result {
        Ok(t) if t.dims() == dims && t.dtype() == out.candle() => {
            ladder.count(Counted { op: O::NAME, device, dtype, rung });
            if rung != Rung::Fused {
                // Candle's ops may return a view of an input.
                op.map(&|t| {
                    t.share();
                    Ok(t.clone())
                })?;
            }
            Ok(Performed { result: Some((t, rung)), scratch })
        }
        Ok(t) => {
            let what = format!("the {rung} rung gave {:?} in {:?}, not {dims:?} in {out}", t.dims(), t.dtype());
            Err(Error::call(O::NAME, what))
        }
        Err(e) => Err(Error::Failed { op: O::NAME, dtype, device, at: at(), rung, source: Box::new(e) }),
    }
}

/// The host rung, written once for every op: copy to the CPU, run the CPU's ladder, copy back.
fn host<O: Op>(op: &O, ladder: &Arc<Ladder>) -> Result<candle_core::Tensor> {
    let Policy { isa, withdrawn, .. } = ladder.policy.clone();
    let _here = Ladder::new(Policy { isa, withdrawn, ..Policy::default() }).enter();
    let device = op.x().candle()?.device().clone();
    let cpu = Place::cpu();
    let moved = op.map(&|t| {
        Tensor::upload(t.dims(), t.dtype(), &cpu, || Ok(t.candle()?.to_device(&candle_core::Device::Cpu)?))
    })?;
    Ok(run(moved)?.candle()?.to_device(&device)?)
}

/// A poisoned lock only means that another thread panicked between two complete updates.
fn lock<T>(mutex: &Mutex<T>) -> std::sync::MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

#[cfg(test)]
mod tests;
