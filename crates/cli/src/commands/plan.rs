//! `sconce plan`: what will run where, before anything is loaded.

use super::{bytes, print, table};
use crate::Failure;
use crate::args::How;
use crate::report::Report;
use clap::Args;
use sconce_engine::ops::{Device, Step};
use sconce_engine::source::{Reference, resolve};
use sconce_engine::{Kind, Plan as Planned, plan};
use serde_json::{Value, json};
use std::process::ExitCode;

/// Show op by op what a model will run on, why not on something better, and the memory it will take.
///
/// The device need not be in this machine: the plan is made on phantoms, from the configuration and the shapes of the weights.
#[derive(Args)]
pub(crate) struct Plan {
    /// A directory, a hub id, pip:NAME, or a short name.
    #[arg(default_value = "minilm")]
    model: String,
    /// What the model is to do: embed, classify, tag, sparse, multi, m3 or clip. By default what its files are made for.
    #[arg(long, value_name = "TASK")]
    task: Option<Kind>,
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
        let (devices, why) = options.device.candidates(false);
        let device = devices[0];
        if let Some(why) = why {
            report.say(&format!("device: {device}, chosen by auto ({why})"));
        }
        let kind = self.task.map_or_else(|| Kind::of(&files.dir), Ok)?;
        let plan = plan(&files.dir, kind, device, &options)?;
        let verdict = judge(&plan, device);
        print(&if self.json { as_json(&plan, &verdict).to_string() } else { as_text(&plan, &verdict) })?;
        Ok(if verdict.is_ok() { ExitCode::SUCCESS } else { ExitCode::FAILURE })
    }
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

fn as_text(plan: &Planned, verdict: &Result<String, String>) -> String {
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
        "{}\n\ndevice      {}\nweights     {}\nworkspace   {} (batches of {} tokens)\nvectors     {} numbers, texts up to {} tokens{unread}\n\n{}",
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

fn as_json(plan: &Planned, verdict: &Result<String, String>) -> Value {
    let step = |s: &Step| {
        json!({"op": s.op, "at": s.at, "what": s.detail, "dtype": s.dtype.to_string(),
            "rung": s.rung.as_ref().ok().map(ToString::to_string), "why_not": s.why_not})
    };
    json!({
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
