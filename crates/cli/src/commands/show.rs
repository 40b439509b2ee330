//! `sconce show`: what a model is for and how large it is.

use super::{bytes, print};
use crate::Failure;
use crate::args::OnnxArgs;
use crate::report::Report;
use clap::Args;
use sconce_engine::hub::{Files, resolve};
use sconce_engine::{Device, Family, GraphPlan, LoadOptions, ModelDescription, Task, family_tasks};
use serde_json::{Value, json};
use std::process::ExitCode;

/// Show what a model is for, its files and its limits, without loading it.
#[derive(Args)]
pub(crate) struct Show {
    /// A directory or .gguf file, a hub id, pip:NAME, or a short name.
    model: String,
    /// Use only files that are on this machine; download nothing.
    #[arg(long)]
    offline: bool,
    #[command(flatten)]
    onnx: OnnxArgs,
    /// Print JSON.
    #[arg(long)]
    json: bool,
}

impl Show {
    pub(crate) fn run(self, report: &Report) -> Result<ExitCode, Failure> {
        let mut options = LoadOptions::from_env()?;
        options.hub.offline |= self.offline;
        options.graph = self.onnx.options();
        let files = resolve(&self.model.parse()?, &options.hub_options(), report)?;
        let about = ModelDescription::read(&files)?;
        let plan = about.task.plan(&files, Device::Cpu, &options)?;
        let graph = plan.graph.as_ref();
        let size =
            graph.map_or_else(|| size_of(&files), |graph| graph.files.iter().map(|file| file.summary.bytes).sum());
        let format = graph.map_or_else(|| files.format().to_string(), |_| "ONNX".into());
        let stored = about.stored.as_deref().unwrap_or("unknown");
        if self.json {
            let value = json!({"model": self.model, "source": files.origin.to_string(), "path": files.root(),
                "task": about.task.to_string(), "architecture": about.architecture, "format": format,
                "engine": graph.map_or_else(|| "native".into(), GraphPlan::engine),
                "dtype": about.stored, "weights_bytes": size, "dimension": plan.dimension,
                "max_tokens": plan.max_tokens, "vocabulary": plan.vocabulary, "family": about.family.map(json_of)});
            print(&value.to_string())?;
            return Ok(ExitCode::SUCCESS);
        }
        let reach = match about.task {
            Task::Generate => format!("context       {} tokens, prompt and answer", plan.max_tokens),
            Task::Gliner => format!("reads         labels and text up to {} tokens", plan.max_tokens),
            Task::Seq2Seq => format!("reads         texts up to {} tokens", plan.max_tokens),
            _ => format!("vectors       {} numbers, texts up to {} tokens", plan.dimension, plan.max_tokens),
        };
        print(&format!(
            "model         {}\nsource        {}\nfiles         {}\ntask          {}: sconce {} -m {}\n\
             architecture  {}\nformat        {} {stored}\nweights       {}\n{reach}{}",
            self.model,
            files.origin,
            files.root().display(),
            about.task,
            about.command,
            self.model,
            about.architecture,
            format,
            bytes(size),
            about.family.map(lines_of).unwrap_or_default(),
        ))?;
        Ok(ExitCode::SUCCESS)
    }
}

/// Names of the tasks of a family.
fn tasks_of(family: &Family) -> Vec<&'static str> {
    family_tasks(family).into_iter().map(Task::name).collect()
}

/// A family in JSON.
fn json_of(family: &Family) -> Value {
    json!({"name": family.name, "model_types": family.types, "tasks": tasks_of(family), "gguf": family.gguf,
        "reference": family.reference, "test": family.test, "models": family.models})
}

/// The lines about a family, after those about the model.
fn lines_of(family: &Family) -> String {
    let gguf = if family.gguf.is_empty() { String::new() } else { format!(", GGUF ({})", family.gguf.join(", ")) };
    format!(
        "\n\nfamily        {}: {}\nreads         safetensors, torch{gguf}\nchecked       against {}: \
         cargo test --release -p sconce-engine --test {}\nknown         {}",
        family.name,
        tasks_of(family).join(", "),
        family.reference,
        family.test,
        family.models.join(", "),
    )
}

/// Bytes of the weight files.
fn size_of(files: &Files) -> u64 {
    let is_weights = |name: &str| [".safetensors", ".bin"].iter().any(|end| name.ends_with(end));
    let in_dir = || {
        let entries = std::fs::read_dir(&files.dir).into_iter().flatten().flatten();
        entries.filter(|entry| is_weights(&entry.file_name().to_string_lossy())).map(|entry| entry.path()).collect()
    };
    let weights: Vec<_> = files.gguf.clone().unwrap_or_else(in_dir);
    weights.iter().filter_map(|file| Some(std::fs::metadata(file).ok()?.len())).sum()
}
