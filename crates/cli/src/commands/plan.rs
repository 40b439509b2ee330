//! `sconce plan`: what will run where, before anything is loaded.

use super::{bytes, print, table};
use crate::Failure;
use crate::args::{KvCacheArgs, RunArgs};
use crate::report::Report;
use clap::Args;
use sconce_engine::hub::{Files, Reference, resolve};
use sconce_engine::{DeviceChoice, GraphFile, GraphPlan, LlmOptions, LoadOptions, Plan as Planned, Provider, Task};
use sconce_ops::{Device, Rung, Step};
use serde_json::{Value, json};
use std::process::ExitCode;

/// Show for each op which rung runs it, why no better one does, and how much memory the model
/// needs.
///
/// The device need not be in this machine: a plan needs only the model's configuration and the
/// shapes of its weights.
#[derive(Args)]
#[command(after_help = "Examples:\n  sconce plan BAAI/bge-base-en-v1.5 -d cuda --dtype bf16\n  \
    sconce plan cross-encoder/ms-marco-MiniLM-L6-v2 --all-devices\n  \
    sconce plan smollm --context 2048")]
pub(crate) struct Plan {
    /// A directory or .gguf file, a hub id, pip:NAME, or a short name.
    #[arg(default_value = "minilm")]
    model: String,
    /// The model, as other commands take it.
    #[arg(short = 'm', long = "model", value_name = "MODEL", hide = true, conflicts_with = "model")]
    named_model: Option<String>,
    /// Task: embed, rerank, classify, tag, sparse, multi, m3, clip, generate or seq2seq. Default:
    /// detected from the model's files.
    #[arg(long, value_name = "TASK")]
    task: Option<Task>,
    /// Compare cpu, cuda and metal, one line each: op calls per rung, and whether all calls can
    /// run.
    #[arg(long)]
    all_devices: bool,
    #[command(flatten)]
    run_args: RunArgs,
    #[command(flatten)]
    kv_cache: KvCacheArgs,
    /// Print JSON.
    #[arg(long)]
    json: bool,
}

impl Plan {
    pub(crate) fn run(self, report: &Report) -> Result<ExitCode, Failure> {
        let options = self.run_args.options()?;
        let model = self.named_model.as_ref().unwrap_or(&self.model);
        let files = resolve(&model.parse::<Reference>()?, &options.hub_options(), report)?;
        let task = self.task.map_or_else(|| Task::detect(files.root()), Ok)?;
        if task == Task::Seq2Seq && self.kv_cache.context.is_some() {
            return Err(
                "--context is for language models; the input length of a sequence-to-sequence model is fixed".into()
            );
        }
        let options = self.kv_cache.apply_to(options, LlmOptions::default().sequences);
        let model = Model { files: &files, task, options: &options };
        if self.all_devices {
            return self.compare(&model);
        }
        let (devices, why) = options.device.candidates(options.fallback);
        if let Some(why) = why {
            report.info(&format!("device: {}, chosen by auto ({why})", devices[0]));
        }
        let (mut chosen, mut verdict) = model.planned(devices[0])?;
        for next in &devices[1..] {
            let Err(why) = &verdict else { break };
            report.info(&format!("{why}; falling back to {next} (--fallback)"));
            (chosen, verdict) = model.planned(*next)?;
        }
        let provider = chosen.graph.as_ref().map_or(Provider::Cpu, |graph| graph.provider);
        if let (Err(why), true) = (&verdict, options.fallback && provider != Provider::Cpu) {
            report.info(&format!("{why}; falling back to cpu (--fallback)"));
            let options = &options.clone().with_device(DeviceChoice::Provider(Provider::Cpu));
            (chosen, verdict) = Model { options, ..model }.planned(Device::Cpu)?;
        }
        print(&if self.json {
            as_json(task, &chosen, &verdict).to_string()
        } else {
            as_text(task, &chosen, &verdict)
        })?;
        Ok(if verdict.is_ok() { ExitCode::SUCCESS } else { ExitCode::FAILURE })
    }

    /// One line per kind of device. The exit code is 0 if every kind can run every call, whether or
    /// not it is here.
    fn compare(&self, model: &Model) -> Result<ExitCode, Failure> {
        let task = model.task;
        let mut rows = vec![
            ["device", "dtype", "fused", "composed", "host", "refused", "weights", "workspace", "verdict"]
                .map(String::from)
                .to_vec(),
        ];
        let (mut all, mut is_full) = (Vec::new(), true);
        for device in [Device::Cpu, Device::Cuda(0), Device::Metal(0)] {
            let (plan, verdict) = model.planned(device)?;
            // What is left of a graph's model runs on the CPU, whatever the device.
            let is_graph = plan.graph.is_some();
            let on = |rung: Rung| plan.steps.iter().filter(|s| s.rung == Ok(rung)).count();
            let counts = Rung::ALL.map(on);
            let refused = plan.steps.len() - counts.iter().sum::<usize>();
            is_full &= refused == 0;
            let sentence = verdict.as_ref().map_or_else(Clone::clone, Clone::clone);
            let name = if is_graph { plan.runs_on() } else { device.to_string() };
            let mut row = vec![name.clone(), plan.format()];
            row.extend(counts.map(|n| n.to_string()));
            row.extend([refused.to_string(), bytes(plan.weights), bytes(plan.workspace), sentence.clone()]);
            rows.push(row);
            let [fused, composed, host] = counts;
            all.push(
                json!({"device": name, "dtype": plan.format(), "fused": fused, "composed": composed, "host": host,
                "refused": refused, "weights_bytes": plan.weights, "workspace_bytes": plan.workspace,
                "runs": verdict.is_ok(), "verdict": sentence}),
            );
            if is_graph {
                break;
            }
        }
        print(&if self.json {
            json!({"task": task.to_string(), "devices": all}).to_string()
        } else {
            format!("task {task}; op calls of one pass by rung:\n\n{}", table(&rows))
        })?;
        Ok(if is_full { ExitCode::SUCCESS } else { ExitCode::FAILURE })
    }
}

/// The model to plan.
struct Model<'a> {
    files: &'a Files,
    task: Task,
    options: &'a LoadOptions,
}

impl Model<'_> {
    /// The plan for a device, and whether it will run here.
    fn planned(&self, device: Device) -> Result<(Planned, Result<String, String>), Failure> {
        let plan = self.task.plan(self.files, device, self.options)?;
        // What a graph leaves to us runs on the CPU, whatever its provider is.
        let device = if plan.graph.is_some() { plan.device } else { device };
        let verdict = judge(&plan, device);
        Ok((plan, verdict))
    }
}

/// Whether the plan will run here, as a sentence in both cases.
fn judge(plan: &Planned, device: Device) -> Result<String, String> {
    let info = match device.info() {
        Ok(info) => info,
        Err(e) if plan.refusals().is_empty() => return Err(format!("it would run, but not here: {e}")),
        Err(e) => return Err(e.to_string()),
    };
    plan.check(info.free_bytes).map_err(|e| e.to_string())?;
    plan.check_engine().map_err(|e| format!("it would run, but not here: {e}"))?;
    let fits = format!("{} of {} free", bytes(plan.bytes()), bytes(info.free_bytes));
    Ok(match plan.graph.as_ref().map(|graph| (graph.provider, graph.allow_host)) {
        None | Some((Provider::Cpu, _) | (_, true)) => format!("it will run, and fits: {fits}"),
        Some((provider, false)) => {
            format!("it fits: {fits}; whether {provider} takes every node is known when it opens the graph")
        }
    })
}

fn as_text(task: Task, plan: &Planned, verdict: &Result<String, String>) -> String {
    let mut rows = vec![["op", "what", "dtype", "rung", "calls", "why not better"].map(String::from).to_vec()];
    for (step, n) in plan.grouped_steps() {
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
    let reach = match task {
        Task::Generate => format!("context     {} tokens, prompt and answer", plan.max_tokens),
        Task::Gliner => format!("reads       labels and text up to {} tokens", plan.max_tokens),
        Task::Seq2Seq => format!("reads       texts up to {} tokens", plan.max_tokens),
        _ => format!("vectors     {} numbers, texts up to {} tokens", plan.dimension, plan.max_tokens),
    };
    let cache = match plan.cache {
        0 => String::new(),
        n => {
            let format = plan.cache_format.map_or_else(String::new, |format| format!(" in {format}"));
            let (tokens, each) = (plan.cache_tokens, bytes(token_bytes(plan)));
            format!("\nKV cache    {} ({tokens} tokens{format} at {each})", bytes(n))
        }
    };
    let format = match task {
        Task::Generate | Task::Seq2Seq => format!("{} ({})", plan.format(), plan.dtype_reason),
        _ => precision(plan),
    };
    let copies = match plan.weight_copies {
        0 => String::new(),
        n => format!(" ({} of them a copy in {} for prompts)", bytes(n), plan.dtype),
    };
    format!(
        "{}\n\ntask        {task}\n{}device      {}\nformat      {format}\nweights     {}{copies}{cache}\nworkspace   {} (batches of {} tokens)\n{reach}{unread}\n\n{}",
        table(&rows),
        plan.graph.as_ref().map_or_else(String::new, graph_text),
        plan.runs_on(),
        bytes(plan.weights),
        bytes(plan.workspace),
        plan.batch_tokens,
        match verdict {
            Ok(yes) => yes,
            Err(no) => no,
        }
    )
}

/// What another engine will run. Which provider gets which node is known only when its library has
/// read the graph.
fn graph_text(graph: &GraphPlan) -> String {
    let host = match (graph.provider, graph.allow_host) {
        (Provider::Cpu, _) => "",
        (_, true) => "; nodes that it lacks run on the CPU (--allow-host)",
        (_, false) => "; refused if it lacks a node",
    };
    let files: String = graph.files.iter().map(graph_file_text).collect();
    format!("engine      {}: {} on {}{host}\n{files}", graph.engine(), graph.paths(), graph.provider)
}

/// The nodes of a file, and how it is called.
fn graph_file_text(GraphFile { summary, one_per_call, .. }: &GraphFile) -> String {
    let nodes: u64 = summary.operators.values().sum();
    let mut operators: Vec<_> = summary.operators.iter().collect();
    operators.sort_by_key(|(name, n)| (std::cmp::Reverse(**n), (*name).clone()));
    let operators: Vec<_> = operators.iter().take(8).map(|(name, n)| format!("{n} {name}")).collect();
    let more = if summary.operators.len() > operators.len() { ", …" } else { "" };
    let item = if summary.texts().is_some() { "text" } else { "image" };
    let calls = match (one_per_call, summary.is_batch_dependent) {
        (true, true) => {
            format!("\ncalls       one {item} each: dynamic quantization would mix {item}s (--batch-dependent)")
        }
        (true, false) => format!("\ncalls       one {item} each, as the graph was exported"),
        (false, _) => String::new(),
    };
    format!("graph       {nodes} nodes: {}{more}{calls}\n", operators.join(", "))
}

/// Format of an encoder, why, and the known bound on its error.
fn precision(plan: &Planned) -> String {
    let bound = plan.bound().map_or_else(String::new, |least| format!("; cosine to f32 at least {least} on MiniLM"));
    format!("{} ({}){bound}", plan.format(), plan.dtype_reason)
}

/// Bytes of KV cache per token.
fn token_bytes(plan: &Planned) -> u64 {
    plan.cache / plan.cache_tokens.max(1) as u64
}

fn as_json(task: Task, plan: &Planned, verdict: &Result<String, String>) -> Value {
    let step = |s: &Step| {
        json!({"op": s.op, "at": s.at, "what": s.detail, "dtype": s.dtype.to_string(),
            "rung": s.rung.as_ref().ok().map(ToString::to_string), "why_not": s.why_not})
    };
    json!({
        "task": task.to_string(),
        "device": plan.runs_on(),
        "dtype": plan.format(),
        "dtype_reason": plan.dtype_reason,
        "least_cosine": if matches!(task, Task::Generate | Task::Seq2Seq) { None } else { plan.bound() },
        "weights_bytes": plan.weights,
        "weight_copies_bytes": plan.weight_copies,
        "cache_bytes": plan.cache,
        "cache_format": plan.cache_format.map(|format| format.to_string()),
        "cache_tokens": plan.cache_tokens,
        "cache_bytes_per_token": token_bytes(plan),
        "workspace_bytes": plan.workspace,
        "batch_tokens": plan.batch_tokens,
        "max_tokens": plan.max_tokens,
        "dimension": plan.dimension,
        "root": plan.root,
        "engine": plan.graph.as_ref().map_or_else(|| "native".into(), GraphPlan::engine),
        "graph": plan.graph.as_ref().map(|graph| json!({
            "provider": graph.provider.to_string(),
            "files": graph.files.iter().map(graph_file_json).collect::<Vec<_>>(),
        })),
        "unread": plan.unread,
        "runs": verdict.is_ok(),
        "verdict": verdict.as_ref().map_or_else(Clone::clone, Clone::clone),
        "steps": plan.steps.iter().map(step).collect::<Vec<_>>(),
    })
}

fn graph_file_json(file: &GraphFile) -> Value {
    json!({"file": file.summary.path, "operators": file.summary.operators, "one_per_call": file.one_per_call})
}
