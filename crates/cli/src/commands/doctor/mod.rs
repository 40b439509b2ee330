//! `sconce doctor`: checks every kernel against its reference on this machine.

mod child_process;
mod examine;
mod machine;
mod report;

use self::child_process::{CheckOptions, DeviceResults};
use self::examine::{Check, CheckResult, FaultInjection};
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

/// Check every kernel against its f64 reference on this machine's devices, and time it against the
/// composed form.
///
/// A kernel that fails is withdrawn on this machine: later commands run the composed form instead
/// and report it. Each device is checked in its own process, so that a kernel that crashes or hangs
/// is reported like one with wrong results. The JSON report has every case, and the machine's
/// model, system and processor: attach it to an issue.
#[derive(Args)]
#[command(
    after_help = "Examples:\n  sconce doctor\n  sconce doctor --json > doctor.json\n  sconce doctor -d metal --op linear"
)]
pub(crate) struct Doctor {
    /// Check only this device. Default: all devices.
    #[arg(short, long, value_name = "DEVICE")]
    device: Option<DeviceChoice>,
    /// Check only this op.
    #[arg(long, value_name = "OP")]
    op: Option<String>,
    /// Seconds after which a case counts as hanging.
    #[arg(long, alias = "patience", value_name = "S", default_value_t = 120.0)]
    timeout: f64,
    /// Print JSON.
    #[arg(long)]
    json: bool,
    /// Print SUPPORT.md instead: what runs where, by declaration.
    #[arg(long)]
    support: bool,
    /// Make the kernel of an op fail, to test that it is noticed: OP=wrong, panic, abort or hang.
    #[arg(long, value_name = "OP=HOW", hide = true)]
    drill: Option<FaultInjection>,
    /// Be the process that runs the checks.
    #[arg(long, hide = true, requires = "device")]
    examine: bool,
}

/// All cases of one op, dtype and variant.
struct Row {
    device: Device,
    op: &'static str,
    dtype: DType,
    variant: Variant,
    /// Results of the cases that the rung takes.
    checks: Vec<(String, CheckResult)>,
    /// Cases that the rung declares it does not take.
    not_taken: usize,
    /// Cases skipped because an earlier one ended the process.
    not_run: usize,
    /// Time of the largest case, and its speed-up over the composed form.
    seconds: Option<f64>,
    speed: Option<f64>,
}

impl Row {
    fn new(device: Device, case: &Case, variant: Variant) -> Row {
        let (op, dtype) = (case.op, case.dtype);
        Row { device, op, dtype, variant, checks: Vec::new(), not_taken: 0, not_run: 0, seconds: None, speed: None }
    }

    /// The case with the highest ratio of error to tolerance.
    fn worst(&self) -> Option<&CheckResult> {
        let ratio = |f: &CheckResult| f.worst.zip(f.allowed).map_or(f64::INFINITY, |(worst, allowed)| worst / allowed);
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

/// A device, and why its checks could not be completed.
struct CheckedDevice {
    info: DeviceInfo,
    closed: Option<String>,
}

/// The whole report.
struct DoctorReport {
    machine: Value,
    build: Value,
    devices: Vec<CheckedDevice>,
    rows: Vec<Row>,
    seconds: f64,
}

impl DoctorReport {
    fn holds(&self) -> bool {
        self.rows.iter().all(Row::holds) && self.devices.iter().all(|p| p.closed.is_none())
    }

    /// Rows that would be used on this machine and failed.
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
                (Some(op), true) => Err(format!("no op `{op}`; --support lists the ops").into()),
                _ => Ok(all),
            }
        };
        if self.examine {
            examine::examine(devices[0], cases(devices[0])?, self.drill.as_ref())?;
            return Ok(ExitCode::SUCCESS);
        }
        let timeout = Duration::try_from_secs_f64(self.timeout).map_err(|e| format!("--timeout: {e}"))?;
        let started = Instant::now();
        let mut all = DoctorReport {
            machine: machine::machine(),
            build: machine::build(),
            devices: Vec::new(),
            rows: Vec::new(),
            seconds: 0.0,
        };
        for device in devices {
            let info = device.info()?;
            let options = CheckOptions { device, op: self.op.as_deref(), drill: self.drill.as_ref(), timeout };
            let cases = cases(device)?;
            let results = all_checks(&options, &cases, report)?;
            all.rows.extend(rows(device, &cases, &results));
            all.devices.push(CheckedDevice { info, closed: results.closed });
        }
        all.seconds = started.elapsed().as_secs_f64();
        if self.json {
            print(&report::as_json(&all).to_string())?;
        } else {
            print(&machine::line(&all.machine, &all.build))?;
            for device in &all.devices {
                print(&format!("{}: {}", device.info.device, device.info.description))?;
            }
            print(&format!("\n{}", report::as_table(&all.rows)))?;
            let failures = report::failures(&all.rows);
            for line in &failures {
                print(line)?;
            }
            let run: usize = all.rows.iter().map(|r| r.checks.len()).sum();
            let failed: usize = all.rows.iter().map(|r| r.failures().count()).sum();
            print(&format!("\n{run} checks in {:.0} s, {failed} failed", all.seconds))?;
        }
        for device in &all.devices {
            if let Some(why) = &device.closed {
                report.error(&format!("cannot check {}: {why}", device.info.device));
            }
        }
        self.save_verdict(&all, report)?;
        Ok(if all.holds() { ExitCode::SUCCESS } else { ExitCode::FAILURE })
    }

    /// Writes the verdict on what was checked; the verdict on the rest stays.
    fn save_verdict(&self, all: &DoctorReport, report: &Report) -> Result<(), Failure> {
        for row in all.withdrawn() {
            let (device, rung) = (row.device, row.variant.rung);
            report.warn(&format!("{} in {} on {device} ({rung}) is withdrawn", row.op, row.dtype));
        }
        let has_rows = |p: &&CheckedDevice| all.rows.iter().any(|r| r.device == p.info.device);
        let judged = all.devices.iter().filter(has_rows).map(|device| {
            let failed = all.withdrawn().filter(|r| r.device == device.info.device);
            (&device.info, failed.map(|r| (r.op.to_string(), r.dtype, r.variant.rung)).collect())
        });
        let mut verdict = Verdict::new(judged.collect::<Vec<_>>());
        let path = verdict_path(&Options::from_env()?);
        let partial = self.op.is_some() || self.device.is_some() || all.devices.iter().any(|p| p.closed.is_some());
        // An unreadable verdict is an error, unless everything was checked anew.
        if partial && let Some(old) = Verdict::read(&path)? {
            verdict = verdict.over(old, |op| all.rows.iter().any(|r| r.op == op));
        }
        // Without a writable cache the report is still useful.
        if let Err(e) = verdict.write(&path) {
            report.warn(&e.to_string());
        }
        Ok(())
    }
}

/// Runs every case on every variant of the device.
fn all_checks(options: &CheckOptions<'_>, cases: &[Case], report: &Report) -> Result<DeviceResults, Failure> {
    let count = variants(options.device).len();
    let wanted: Vec<Check> = (0..cases.len()).flat_map(|i| (0..count).map(move |j| (i, j))).collect();
    let bar = report.bar("{msg} [{bar:30}] {pos}/{len}", Some(wanted.len() as u64));
    bar.set_message(format!("checking {}", options.device));
    let row = |(i, j): Check| (cases[i].op, cases[i].dtype, j);
    let results = child_process::run_checks(options, wanted, row, || bar.inc(1));
    bar.finish_and_clear();
    results
}

/// The results by op, dtype and variant.
fn rows(device: Device, cases: &[Case], results: &DeviceResults) -> Vec<Row> {
    let variants = variants(device);
    let mut rows: Vec<Row> = Vec::new();
    let found = results.results.iter().map(|(check, result)| (*check, Some(result)));
    for ((i, j), result) in found.chain(results.skipped.iter().map(|check| (*check, None))) {
        let (case, variant) = (&cases[i], variants[j]);
        let same = |r: &Row| r.op == case.op && r.dtype == case.dtype && r.variant == variant;
        let at = rows.iter().position(same).unwrap_or_else(|| {
            rows.push(Row::new(device, case, variant));
            rows.len() - 1
        });
        match result {
            Some(Some(result)) => rows[at].checks.push((case.name.clone(), result.clone())),
            Some(None) => rows[at].not_taken += 1,
            None => rows[at].not_run += 1,
        }
        if let Some(Some(result)) = result
            && examine::is_largest(case, cases)
        {
            rows[at].seconds = result.seconds;
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
