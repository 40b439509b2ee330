//! `sconce plan`: what will run where, before anything is loaded.

use super::{bytes, print, table};
use crate::Failure;
use crate::args::How;
use crate::report::Report;
use clap::Args;
use sconce_engine::ops::{Device, Rung, Step};
use sconce_engine::source::{Reference, resolve};
use sconce_engine::{Kind, LoadOptions, Plan as Planned, plan};
use serde_json::{Value, json};
use std::path::Path;
use std::process::ExitCode;

/// Show op by op what a model will run on, why not on something better, and the memory it will take.
///
/// The device need not be in this machine: the plan is made on phantoms, from the configuration and the shapes of the weights.
#[derive(Args)]
#[command(after_help = "Examples:\n  sconce plan BAAI/bge-base-en-v1.5 -d cuda --dtype bf16\n  \
    sconce plan cross-encoder/ms-marco-MiniLM-L6-v2 --all-devices")]
pub(crate) struct Plan {
    /// A directory, a hub id, pip:NAME, or a short name.
    #[arg(default_value = "minilm")]
    model: String,
    /// What the model is to do: embed, classify, tag, sparse, multi, m3 or clip. By default what its files are made for.
    #[arg(long, value_name = "TASK")]
    task: Option<Kind>,
    /// Compare cpu, cuda and metal instead, a line each: which rung takes how many of the op calls, and whether all are taken.
    #[arg(long)]
    all_devices: bool,
    #[command(flatten)]
    how: How,
    /// Print JSON.
    #[arg(long)]
    json: bool,
}

impl Plan {
    pub(crate) fn run(self, report: &Report) -> Result<ExitCode, Failure> {
        let options = self.how.options()?;
        let files = resolve(&self.model.parse::<Reference>()?, &options.source, report)?;
        let dir = files.directory()?;
        let kind = self.task.map_or_else(|| Kind::of(dir), Ok)?;
        if self.all_devices {
            return self.compare(dir, kind, &options);
        }
        let (devices, why) = options.device.candidates(options.fallback);
        if let Some(why) = why {
            report.say(&format!("device: {}, chosen by auto ({why})", devices[0]));
        }
        let (mut chosen, mut verdict) = planned(dir, kind, devices[0], &options)?;
        for next in &devices[1..] {
            let Err(why) = &verdict else { break };
            report.say(&format!("{} cannot serve: {why}; falling back to {next}, as was allowed", chosen.device));
            (chosen, verdict) = planned(dir, kind, *next, &options)?;
        }
        print(&if self.json {
            as_json(kind, &chosen, &verdict).to_string()
        } else {
            as_text(kind, &chosen, &verdict)
        })?;
        Ok(if verdict.is_ok() { ExitCode::SUCCESS } else { ExitCode::FAILURE })
    }

    /// One line a kind of device. It is well where every kind takes every call, be it here or not.
    fn compare(&self, dir: &Path, kind: Kind, options: &LoadOptions) -> Result<ExitCode, Failure> {
        let mut rows = vec![
            ["device", "fused", "composed", "host", "refused", "weights", "workspace", "verdict"]
                .map(String::from)
                .to_vec(),
        ];
        let (mut all, mut is_full) = (Vec::new(), true);
        for device in [Device::Cpu, Device::Cuda(0), Device::Metal(0)] {
            let (plan, verdict) = planned(dir, kind, device, options)?;
            let on = |rung: Rung| plan.steps.iter().filter(|s| s.rung == Ok(rung)).count();
            let counts = Rung::ALL.map(on);
            let refused = plan.steps.len() - counts.iter().sum::<usize>();
            is_full &= refused == 0;
            let sentence = verdict.as_ref().map_or_else(Clone::clone, Clone::clone);
            let mut row = vec![device.to_string()];
            row.extend(counts.map(|n| n.to_string()));
            row.extend([refused.to_string(), bytes(plan.weights), bytes(plan.workspace), sentence.clone()]);
            rows.push(row);
            let [fused, composed, host] = counts;
            all.push(json!({"device": device.to_string(), "fused": fused, "composed": composed, "host": host,
                "refused": refused, "weights_bytes": plan.weights, "workspace_bytes": plan.workspace,
                "runs": verdict.is_ok(), "verdict": sentence}));
        }
        print(&if self.json {
            json!({"task": kind.to_string(), "dtype": options.dtype.to_string(), "devices": all}).to_string()
        } else {
            format!("task {kind}, {}; op calls of one pass by rung:\n\n{}", options.dtype, table(&rows))
        })?;
        Ok(if is_full { ExitCode::SUCCESS } else { ExitCode::FAILURE })
    }
}

/// The plan for a device, and whether it will run here.
fn planned(
    dir: &Path,
    kind: Kind,
    device: Device,
    options: &LoadOptions,
) -> Result<(Planned, Result<String, String>), Failure> {
    let plan = plan(dir, kind, device, options)?;
    let verdict = judge(&plan, device);
    Ok((plan, verdict))
}

/// Whether it will run here, in a sentence either way.
fn judge(plan: &Planned, device: Device) -> Result<String, String> {
    let info = match device.info() {
        Ok(info) => info,
        Err(e) if plan.refusals().is_empty() => return Err(format!("it would run, but not here: {e}")),
        Err(e) => return Err(e.to_string()),
    };
    plan.check(info.free_bytes).map_err(|e| e.to_string())?;
    Ok(format!("it will run, and fits: {} of {} free", bytes(plan.weights + plan.workspace), bytes(info.free_bytes)))
}

/// Calls that are alike, with how many there are.
fn grouped(steps: &[Step]) -> Vec<(&Step, usize)> {
    let mut groups: Vec<(&Step, usize)> = Vec::new();
    for step in steps {
        let alike = |(s, _): &&mut (&Step, usize)| {
            s.op == step.op && s.detail == step.detail && s.dtype == step.dtype && s.rung == step.rung
        };
        match groups.iter_mut().find(alike) {
            Some((_, n)) => *n += 1,
            None => groups.push((step, 1)),
        }
    }
    groups
}

fn as_text(kind: Kind, plan: &Planned, verdict: &Result<String, String>) -> String {
    let mut rows = vec![["op", "what", "dtype", "rung", "calls", "why not better"].map(String::from).to_vec()];
    for (step, n) in grouped(&plan.steps) {
        let rung = step.rung.as_ref().map_or_else(|_| "none".to_string(), ToString::to_string);
        rows.push(vec![
            step.op.into(),
            step.detail.clone(),
            step.dtype.to_string(),
            rung,
            n.to_string(),
            step.why_not.join("; "),
        ]);
    }
    let unread = match plan.unread.len() {
        0 => String::new(),
        n => format!("\nunread      {n} tensors of the file: {}", plan.unread.join(", ")),
    };
    format!(
        "{}\n\ntask        {kind}\ndevice      {}\nweights     {}\nworkspace   {} (batches of {} tokens)\nvectors     {} numbers, texts up to {} tokens{unread}\n\n{}",
        table(&rows),
        plan.device,
        bytes(plan.weights),
        bytes(plan.workspace),
        plan.batch_tokens,
        plan.dimension,
        plan.max_tokens,
        match verdict {
            Ok(yes) => yes,
            Err(no) => no,
        }
    )
}

fn as_json(kind: Kind, plan: &Planned, verdict: &Result<String, String>) -> Value {
    let step = |s: &Step| {
        json!({"op": s.op, "at": s.at, "what": s.detail, "dtype": s.dtype.to_string(),
            "rung": s.rung.as_ref().ok().map(ToString::to_string), "why_not": s.why_not})
    };
    json!({
        "task": kind.to_string(),
        "device": plan.device.to_string(),
        "dtype": plan.dtype.to_string(),
        "weights_bytes": plan.weights,
        "workspace_bytes": plan.workspace,
        "batch_tokens": plan.batch_tokens,
        "max_tokens": plan.max_tokens,
        "dimension": plan.dimension,
        "unread": plan.unread,
        "runs": verdict.is_ok(),
        "verdict": verdict.as_ref().map_or_else(Clone::clone, Clone::clone),
        "steps": plan.steps.iter().map(step).collect::<Vec<_>>(),
    })
}
