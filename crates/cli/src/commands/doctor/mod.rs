//! `sconce doctor`: every kernel against its reference, on this very machine.

use super::{print, table};
use crate::Failure;
use crate::report::Report;
use clap::Args;
use sconce_engine::ops::case::{Case, Outcome, Variant, check, support_md, time, variants};
use sconce_engine::ops::{DType, Device, Isa, Place, Rung, cases};
use sconce_engine::source::Options;
use sconce_engine::{DeviceChoice, Verdict, verdict_path};
use serde_json::{Value, json};
use std::process::ExitCode;
use std::time::Duration;

/// Check every kernel against its f64 reference on this machine's devices, and time it against the composed form.
///
/// A kernel that fails here is withdrawn here: later commands run the composed form instead and say so.
#[derive(Args)]
pub(crate) struct Doctor {
    /// Only this device; by default all there are.
    #[arg(short, long, value_name = "DEVICE")]
    device: Option<DeviceChoice>,
    /// Only this op.
    #[arg(long, value_name = "OP")]
    op: Option<String>,
    /// Print JSON.
    #[arg(long)]
    json: bool,
    /// Print SUPPORT.md instead: what runs where, by declaration.
    #[arg(long)]
    support: bool,
}

/// All cases of one op in one dtype on one variant.
struct Row {
    device: Device,
    op: &'static str,
    dtype: DType,
    variant: Variant,
    outcomes: Vec<Outcome>,
    /// How many times faster than the composed form, on the largest case.
    speed: Option<f64>,
}

impl Row {
    /// The case nearest to, or furthest over, what it is allowed.
    fn worst(&self) -> Option<&Outcome> {
        let ratio = |o: &Outcome| if o.worst.is_nan() { f64::INFINITY } else { o.worst / o.allowed };
        self.outcomes.iter().max_by(|a, b| ratio(a).total_cmp(&ratio(b)))
    }

    fn failures(&self) -> impl Iterator<Item = &Outcome> {
        self.outcomes.iter().filter(|o| o.failure.is_some())
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
        let cases: Vec<Case> = cases().into_iter().filter(|c| self.op.as_deref().is_none_or(|op| op == c.op)).collect();
        if cases.is_empty() {
            return Err(format!("no op is called `{}`; see --support", self.op.unwrap_or_default()).into());
        }
        let mut rows = Vec::new();
        for device in devices {
            rows.extend(examine(device, &cases, report)?);
        }
        let failed: Vec<&Outcome> = rows.iter().flat_map(Row::failures).collect();
        if self.json {
            let rows: Vec<Value> = rows.iter().map(as_json).collect();
            print(&json!({"holds": failed.is_empty(), "rows": rows}).to_string())?;
        } else {
            print(&as_table(&rows))?;
            for o in &failed {
                let why = o.failure.as_deref().unwrap_or_default();
                print(&format!("FAILED {} {} {} {}: {why}", o.op, o.dtype, o.variant, o.case))?;
            }
            let run: usize = rows.iter().map(|r| r.outcomes.len()).sum();
            print(&format!("\n{run} checks, {} failed", failed.len()))?;
        }
        // A look at one op is not a verdict on the machine.
        if self.op.is_none() && self.device.is_none() {
            keep(&rows, report)?;
        }
        Ok(if failed.is_empty() { ExitCode::SUCCESS } else { ExitCode::FAILURE })
    }
}

fn examine(device: Device, cases: &[Case], report: &Report) -> Result<Vec<Row>, Failure> {
    let place = Place::open(device)?;
    let mut rows: Vec<Row> = Vec::new();
    let bar = report.bar("{msg} [{bar:30}] {pos}/{len}", Some((cases.len() * variants(device).len()) as u64));
    bar.set_message(format!("checking {device}"));
    for case in cases {
        for variant in variants(device) {
            bar.inc(1);
            let Some(outcome) = check(case, &place, variant) else { continue };
            let same = |r: &&mut Row| r.op == case.op && r.dtype == case.dtype && r.variant == variant;
            match rows.iter_mut().find(same) {
                Some(row) => row.outcomes.push(outcome),
                None => rows.push(Row {
                    device,
                    op: case.op,
                    dtype: case.dtype,
                    variant,
                    outcomes: vec![outcome],
                    speed: None,
                }),
            }
        }
    }
    let composed = Variant { rung: Rung::Composed, isa: None };
    for row in rows.iter_mut().filter(|r| r.variant.rung == Rung::Fused) {
        let largest = cases.iter().filter(|c| c.op == row.op && c.dtype == row.dtype).max_by_key(|c| c.flops);
        // A kernel that fails has no speed; that it failed stands in the table already.
        let seconds = |v| Some(time(largest?, &place, v, Duration::from_millis(30)).ok()??.as_secs_f64());
        row.speed = seconds(composed).zip(seconds(row.variant)).map(|(c, f)| c / f);
    }
    bar.finish_and_clear();
    rows.sort_by_key(|r| (r.op, r.dtype, r.variant));
    Ok(rows)
}

fn as_table(rows: &[Row]) -> String {
    let heading = ["device", "op", "dtype", "rung", "cases", "worst error", "allowed", "× composed", ""];
    let mut out = vec![heading.map(String::from).to_vec()];
    for row in rows {
        let worst = row.worst();
        out.push(vec![
            row.device.to_string(),
            row.op.into(),
            row.dtype.to_string(),
            row.variant.to_string(),
            row.outcomes.len().to_string(),
            worst.map_or_else(String::new, |o| format!("{:.1e}", o.worst)),
            worst.map_or_else(String::new, |o| format!("{:.1e}", o.allowed)),
            row.speed.map_or_else(String::new, |s| format!("{s:.1}")),
            if row.failures().next().is_none() { "holds".into() } else { "FAILED".into() },
        ]);
    }
    table(&out)
}

fn as_json(row: &Row) -> Value {
    let failures: Vec<Value> = row.failures().map(|o| json!({"case": o.case, "why": o.failure})).collect();
    json!({
        "device": row.device.to_string(), "op": row.op, "dtype": row.dtype.to_string(),
        "rung": row.variant.rung.to_string(), "isa": row.variant.isa.map(|i| i.to_string()),
        "cases": row.outcomes.len(), "worst": row.worst().map(|o| o.worst), "allowed": row.worst().map(|o| o.allowed),
        "speed": row.speed, "holds": failures.is_empty(), "failures": failures,
    })
}

/// Keeps the verdict: what would be used here and failed is withdrawn here.
fn keep(rows: &[Row], report: &Report) -> Result<(), Failure> {
    let used = |r: &&Row| r.variant.isa.is_none_or(|isa| isa == Isa::best());
    let devices = Device::all();
    let judged = devices.iter().map(|info| {
        let failed = rows.iter().filter(used).filter(|r| r.device == info.device && r.failures().next().is_some());
        (info, failed.map(|r| (r.op.to_string(), r.dtype, r.variant.rung)).collect::<Vec<_>>())
    });
    let judged: Vec<_> = judged.collect();
    for (info, failed) in &judged {
        for (op, dtype, rung) in failed {
            report.warn(&format!("{op} in {dtype} on {} ({rung}) is withdrawn", info.device));
        }
    }
    let path = verdict_path(&Options::from_env()?);
    // A machine whose cache cannot be written can still be examined.
    if let Err(e) = Verdict::new(judged).write(&path) {
        report.warn(&e.to_string());
    }
    Ok(())
}
