//! `sconce doctor`: every kernel against its reference, on this very machine.

mod examine;
mod machine;
mod shown;
mod watch;

use self::examine::{Check, Drill, Finding};
use self::watch::{Examined, Manner};
use super::print;
use crate::Failure;
use crate::report::Report;
use clap::Args;
use sconce_engine::hub::Options;
use sconce_engine::{DeviceChoice, Verdict, verdict_path};
use sconce_ops::case::{Case, Variant, support_md, variants};
use sconce_ops::{DType, Device, DeviceInfo, Isa, Rung, cases_on};
use serde_json::Value;
use std::process::ExitCode;
use std::time::{Duration, Instant};

/// Check every kernel against its f64 reference on this machine's devices, and time it against the composed form.
///
/// A kernel that fails here is withdrawn here: later commands run the composed form instead and say so. Each device is examined
/// in a process of its own, so that a kernel that crashes or hangs is named like one that is wrong. The JSON has every case, and
/// of the machine its model, system and processor: attach it to an issue.
#[derive(Args)]
#[command(
    after_help = "Examples:\n  sconce doctor\n  sconce doctor --json > doctor.json\n  sconce doctor -d metal --op linear"
)]
pub(crate) struct Doctor {
    /// Only this device; by default all there are.
    #[arg(short, long, value_name = "DEVICE")]
    device: Option<DeviceChoice>,
    /// Only this op.
    #[arg(long, value_name = "OP")]
    op: Option<String>,
    /// Seconds after which a case that has not ended counts as hanging.
    #[arg(long, value_name = "S", default_value_t = 120.0)]
    patience: f64,
    /// Print JSON.
    #[arg(long)]
    json: bool,
    /// Print SUPPORT.md instead: what runs where, by declaration.
    #[arg(long)]
    support: bool,
    /// Make the kernel of an op fail, to see that it is noticed: OP=wrong, panic, abort or hang.
    #[arg(long, value_name = "OP=HOW", hide = true)]
    drill: Option<Drill>,
    /// Be the process that is examined.
    #[arg(long, hide = true, requires = "device")]
    examine: bool,
}

/// All cases of one op in one dtype on one variant.
struct Row {
    device: Device,
    op: &'static str,
    dtype: DType,
    variant: Variant,
    /// Of every case that the rung takes.
    checks: Vec<(String, Finding)>,
    /// Cases that the rung declares it does not take.
    not_taken: usize,
    /// Cases left out, since one before them ended the process.
    not_run: usize,
    /// The time of the largest case, and how many times faster than the composed form that is.
    seconds: Option<f64>,
    speed: Option<f64>,
}

impl Row {
    fn new(device: Device, case: &Case, variant: Variant) -> Row {
        let (op, dtype) = (case.op, case.dtype);
        Row { device, op, dtype, variant, checks: Vec::new(), not_taken: 0, not_run: 0, seconds: None, speed: None }
    }

    /// The case nearest to, or furthest over, what it is allowed.
    fn worst(&self) -> Option<&Finding> {
        let ratio = |f: &Finding| f.worst.zip(f.allowed).map_or(f64::INFINITY, |(worst, allowed)| worst / allowed);
        self.checks.iter().map(|(_, f)| f).max_by(|a, b| ratio(a).total_cmp(&ratio(b)))
    }

    /// The largest mean error of a case.
    fn mean(&self) -> Option<f64> {
        self.checks.iter().filter_map(|(_, f)| f.mean).max_by(f64::total_cmp)
    }

    fn failures(&self) -> impl Iterator<Item = (&str, &str)> {
        self.checks.iter().filter_map(|(case, f)| Some((&**case, f.failure.as_deref()?)))
    }

    fn holds(&self) -> bool {
        self.failures().next().is_none()
    }
}

/// A device, and why it could not be examined to the end.
struct Patient {
    info: DeviceInfo,
    closed: Option<String>,
}

/// All that was found.
struct Doctored {
    machine: Value,
    build: Value,
    patients: Vec<Patient>,
    rows: Vec<Row>,
    seconds: f64,
}

impl Doctored {
    fn holds(&self) -> bool {
        self.rows.iter().all(Row::holds) && self.patients.iter().all(|p| p.closed.is_none())
    }

    /// What would be used here and failed.
    fn withdrawn(&self) -> impl Iterator<Item = &Row> {
        let used = |r: &&Row| r.variant.isa.is_none_or(|isa| isa == Isa::best());
        self.rows.iter().filter(used).filter(|r| !r.holds())
    }
}

impl Doctor {
    pub(crate) fn run(self, report: &Report) -> Result<ExitCode, Failure> {
        if self.support {
            print(support_md().trim_end())?;
            return Ok(ExitCode::SUCCESS);
        }
        let devices: Vec<Device> = match self.device {
            Some(choice) => choice.candidates(false).0,
            None => Device::all().iter().map(|d| d.device).collect(),
        };
        let cases = |device: Device| -> Result<Vec<Case>, Failure> {
            let mut all = cases_on(device);
            all.retain(|c| self.op.as_deref().is_none_or(|op| op == c.op));
            match (&self.op, all.is_empty()) {
                (Some(op), true) => Err(format!("no op is called `{op}`; see --support").into()),
                _ => Ok(all),
            }
        };
        if self.examine {
            examine::examine(devices[0], cases(devices[0])?, self.drill.as_ref())?;
            return Ok(ExitCode::SUCCESS);
        }
        let patience = Duration::try_from_secs_f64(self.patience).map_err(|e| format!("--patience: {e}"))?;
        let begun = Instant::now();
        let mut all = Doctored {
            machine: machine::machine(),
            build: machine::build(),
            patients: Vec::new(),
            rows: Vec::new(),
            seconds: 0.0,
        };
        for device in devices {
            let info = device.info()?;
            let manner = Manner { device, op: self.op.as_deref(), drill: self.drill.as_ref(), patience };
            let cases = cases(device)?;
            let examined = all_checks(&manner, &cases, report)?;
            all.rows.extend(rows(device, &cases, &examined));
            all.patients.push(Patient { info, closed: examined.closed });
        }
        all.seconds = begun.elapsed().as_secs_f64();
        if self.json {
            print(&shown::as_json(&all).to_string())?;
        } else {
            print(&machine::line(&all.machine, &all.build))?;
            for patient in &all.patients {
                print(&format!("{}: {}", patient.info.device, patient.info.description))?;
            }
            print(&format!("\n{}", shown::as_table(&all.rows)))?;
            let failures = shown::failures(&all.rows);
            for line in &failures {
                print(line)?;
            }
            let run: usize = all.rows.iter().map(|r| r.checks.len()).sum();
            let failed: usize = all.rows.iter().map(|r| r.failures().count()).sum();
            print(&format!("\n{run} checks in {:.0} s, {failed} failed", all.seconds))?;
        }
        for patient in &all.patients {
            if let Some(why) = &patient.closed {
                report.error(&format!("{} could not be examined: {why}", patient.info.device));
            }
        }
        self.keep(&all, report)?;
        Ok(if all.holds() { ExitCode::SUCCESS } else { ExitCode::FAILURE })
    }

    /// Keeps the verdict on what was examined; the rest stays as it was judged before.
    fn keep(&self, all: &Doctored, report: &Report) -> Result<(), Failure> {
        for row in all.withdrawn() {
            let (device, rung) = (row.device, row.variant.rung);
            report.warn(&format!("{} in {} on {device} ({rung}) is withdrawn", row.op, row.dtype));
        }
        let examined = |p: &&Patient| all.rows.iter().any(|r| r.device == p.info.device);
        let judged = all.patients.iter().filter(examined).map(|patient| {
            let failed = all.withdrawn().filter(|r| r.device == patient.info.device);
            (&patient.info, failed.map(|r| (r.op.to_string(), r.dtype, r.variant.rung)).collect())
        });
        let mut verdict = Verdict::new(judged.collect::<Vec<_>>());
        let path = verdict_path(&Options::from_env()?);
        let partial = self.op.is_some() || self.device.is_some() || all.patients.iter().any(|p| p.closed.is_some());
        // One that cannot be read is an error, except to whoever judges everything anew.
        if partial && let Some(old) = Verdict::read(&path)? {
            verdict = verdict.over(old, |op| all.rows.iter().any(|r| r.op == op));
        }
        // A machine whose cache cannot be written can still be examined.
        if let Err(e) = verdict.write(&path) {
            report.warn(&e.to_string());
        }
        Ok(())
    }
}

/// Every case on every variant of the device.
fn all_checks(manner: &Manner<'_>, cases: &[Case], report: &Report) -> Result<Examined, Failure> {
    let count = variants(manner.device).len();
    let wanted: Vec<Check> = (0..cases.len()).flat_map(|i| (0..count).map(move |j| (i, j))).collect();
    let bar = report.bar("{msg} [{bar:30}] {pos}/{len}", Some(wanted.len() as u64));
    bar.set_message(format!("checking {}", manner.device));
    let row = |(i, j): Check| (cases[i].op, cases[i].dtype, j);
    let examined = watch::examined(manner, wanted, row, || bar.inc(1));
    bar.finish_and_clear();
    examined
}

/// What was found, by op, dtype and variant.
fn rows(device: Device, cases: &[Case], examined: &Examined) -> Vec<Row> {
    let variants = variants(device);
    let mut rows: Vec<Row> = Vec::new();
    let found = examined.found.iter().map(|(check, finding)| (*check, Some(finding)));
    for ((i, j), finding) in found.chain(examined.left.iter().map(|check| (*check, None))) {
        let (case, variant) = (&cases[i], variants[j]);
        let same = |r: &Row| r.op == case.op && r.dtype == case.dtype && r.variant == variant;
        let at = rows.iter().position(same).unwrap_or_else(|| {
            rows.push(Row::new(device, case, variant));
            rows.len() - 1
        });
        match finding {
            Some(Some(finding)) => rows[at].checks.push((case.name.clone(), finding.clone())),
            Some(None) => rows[at].not_taken += 1,
            None => rows[at].not_run += 1,
        }
        if let Some(Some(finding)) = finding
            && examine::is_largest(case, cases)
        {
            rows[at].seconds = finding.seconds;
        }
    }
    rows.sort_by_key(|r| (r.op, r.dtype, r.variant));
    let composed: Vec<_> =
        rows.iter().filter(|r| r.variant.rung == Rung::Composed).map(|r| (r.op, r.dtype, r.seconds)).collect();
    for row in rows.iter_mut().filter(|r| r.variant.rung == Rung::Fused) {
        let theirs = composed.iter().find(|(op, dtype, _)| (*op, *dtype) == (row.op, row.dtype)).and_then(|c| c.2);
        row.speed = theirs.zip(row.seconds).map(|(c, f)| c / f);
    }
    rows
}
