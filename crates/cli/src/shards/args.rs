//! Options of `--shards`.

use super::plan::{self, Plan};
use super::run::ShardRun;
use crate::Failure;
use crate::args::RunArgs;
use crate::input::Input;
use clap::Args;
use sconce_engine::EngineChoice;
use sconce_shards::{Job, Manifest, ModelPin, open_inputs, open_output};
use serde_json::{Map, Value, json};
use std::time::Duration;

/// Rows of a shard: enough that reading and writing take little time beside a model, few enough
/// that a shard which must be computed again costs minutes.
const SHARD_ROWS: u64 = 50_000;

/// Seconds of silence after which a process counts as gone.
const LEASE_SECONDS: f64 = 60.0;

#[derive(Args, Clone)]
pub(crate) struct ShardArgs {
    /// Compute files to files: the arguments are input files (.jsonl, .parquet) or folders of them,
    /// and each shard of theirs becomes a Parquet file in OUT, a folder or s3://BUCKET/PREFIX.
    ///
    /// Start the same command on as many machines as you like, with a disk or bucket that they
    /// share: they divide the shards among them, and take over those of a process that ends. Run it
    /// again to go on. `sconce shards status OUT` shows how far it is. Rows that cannot be processed
    /// are listed in OUT/bad.
    #[arg(long, value_name = "OUT")]
    shards: Option<String>,
    /// With --shards: keep these columns of the input, separated by commas. The number of each row
    /// in its file is always there, as `row`.
    #[arg(long, value_name = "NAMES", value_delimiter = ',', requires = "shards")]
    keep: Vec<String>,
    /// With --shards: divide input files into shards of about N rows (of Parquet files, whole row
    /// groups). Default: 50000, and 1000 for generate.
    #[arg(long, value_name = "N", requires = "shards", value_parser = clap::value_parser!(u64).range(1..))]
    shard_rows: Option<u64>,
    /// With --shards: a process that is silent for so long has ended, and others take over its
    /// shard. Default: 60.
    #[arg(long, value_name = "SECONDS", requires = "shards")]
    lease: Option<f64>,
}

/// What a command computes for each row.
pub(crate) struct ShardRequest<'a> {
    pub(crate) task: &'static str,
    pub(crate) model: &'a str,
    pub(crate) run_args: &'a RunArgs,
    /// The command's options that decide about the output, as an object.
    pub(crate) options: Value,
    /// Names of input files and folders.
    pub(crate) names: Vec<String>,
    /// The field with the text.
    pub(crate) field: &'a str,
    /// The field with the second text of a pair.
    pub(crate) pair_field: Option<&'a str>,
    /// Rows of a shard, if that is not the usual number.
    pub(crate) rows: Option<u64>,
}

impl<'a> ShardRequest<'a> {
    /// A request for the texts of an input. `model` is its reference, and how it runs.
    pub(crate) fn of(
        task: &'static str,
        model: (&'a str, &'a RunArgs),
        input: &'a Input,
        options: Value,
    ) -> ShardRequest<'a> {
        let ((model, run_args), names, field) = (model, input.names(), input.field());
        ShardRequest { task, model, run_args, options, names, field, pair_field: None, rows: None }
    }
}

impl ShardArgs {
    /// Whether the command works on shards.
    pub(crate) fn is_on(&self) -> bool {
        self.shards.is_some()
    }

    /// Finds the inputs, and the run if it has begun. What cannot work is an error here, before a
    /// model is loaded. `None` without --shards.
    pub(crate) fn open(&self, request: ShardRequest<'_>) -> Result<Option<ShardRun>, Failure> {
        let Some(out) = &self.shards else { return Ok(None) };
        if request.names.is_empty() {
            return Err("--shards needs input files: .jsonl or .parquet files, or folders of them".into());
        }
        let seconds = self.lease.unwrap_or(LEASE_SECONDS);
        if !(1.0..=86_400.0).contains(&seconds) {
            return Err(format!("--lease {seconds}: give 1 to 86400 seconds").into());
        }
        let rows = self.shard_rows.or(request.rows).unwrap_or(SHARD_ROWS);
        let store = open_output(out)?;
        let inputs = open_inputs(&request.names)?;
        let mut files = Vec::new();
        for name in &request.names {
            files.extend(inputs.list(name)?);
        }
        let job = Job {
            version: env!("CARGO_PKG_VERSION").into(),
            task: request.task.into(),
            model: ModelPin { reference: request.model.into(), revision: None, dtype: None },
            options: self.options(&request, rows, seconds),
        };
        let (field, pair_field) = (request.field.into(), request.pair_field.map(String::from));
        let needed = plan::Needed { field, pair_field, keep: self.keep.clone() };
        let known = Manifest::read(&*store)?;
        let plan = match &known {
            Some(manifest) => {
                manifest.check_job(&job, &*store)?;
                manifest.check_inputs(&plan::identify(&inputs, &files)?, &*store)?;
                Plan {
                    columns: plan::recorded_columns(&manifest.columns, &inputs, &files)?,
                    inputs: manifest.inputs.clone(),
                    shards: manifest.shards.clone(),
                }
            }
            None if !store.list("data")?.is_empty() => {
                let why = format!("{out} has a folder `data` but no manifest.json: choose another folder");
                return Err(why.into());
            }
            None => plan::plan(&inputs, &files, &needed, rows)?,
        };
        let lease = Duration::from_secs_f64(seconds);
        Ok(Some(ShardRun { out: out.clone(), store, inputs, files, job, lease, known, plan, needed }))
    }

    /// All options that decide about the output, under the names of their flags.
    fn options(&self, request: &ShardRequest<'_>, rows: u64, seconds: f64) -> Map<String, Value> {
        let run = request.run_args;
        let engine = (run.onnx.engine != EngineChoice::Auto).then(|| run.onnx.engine.to_string());
        let more = json!({
            "--field": request.field,
            "--keep": self.keep,
            "--shard-rows": rows,
            "--lease": seconds,
            "--isa": run.isa.map(|isa| isa.to_string()),
            "--rung": run.rung.map(|rung| rung.to_string()),
            "--engine": engine,
            "--onnx-file": run.onnx.onnx_file,
            "--batch-dependent": run.onnx.batch_dependent,
        });
        let mut all = Map::new();
        for object in [&request.options, &more] {
            let set = object.as_object().into_iter().flatten().filter(|(_, value)| !value.is_null());
            all.extend(set.map(|(name, value)| (name.clone(), value.clone())));
        }
        all
    }
}
