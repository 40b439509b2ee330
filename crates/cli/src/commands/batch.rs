//! `sconce batch`: a file of requests, answered without a server.

use crate::args::{KvCacheArgs, PromptCacheArgs, RunArgs};
use crate::report::Report;
use crate::{Failure, logs, runtime};
use clap::Args;
use sconce_engine::Task;
use sconce_server::{BatchFile, BatchProgress, BatchSummary, Config, ModelSpec, Stop, answer_file};
use std::path::PathBuf;
use std::process::ExitCode;
use std::time::Instant;

/// The largest request.
const MAX_REQUEST: usize = 64 << 20;

/// Answer a file of requests in the format of OpenAI's batches, without a server.
///
/// Every line of IN is a request: {"custom_id": "a", "method": "POST", "url":
/// "/v1/chat/completions", "body": {…}}. The paths are those of `sconce serve` that batches may use:
/// /v1/chat/completions, /v1/completions, /v1/embeddings and /v1/responses. All lines are checked
/// before the first is answered. The results are written in the order in which they are ready;
/// `custom_id` tells them apart. Ctrl-C and SIGTERM keep what is done, and so does a kill: the same
/// command goes on with the lines that have no result in OUT. If a request fails, its result says
/// why, and the exit code is 1.
#[derive(Args)]
#[command(after_help = "Examples:\n  sconce batch in.jsonl -o out.jsonl -m smollm\n  \
    sconce batch in.jsonl -o out.jsonl -m gpt-4o-mini=Qwen/Qwen3-0.6B -m minilm\n  \
    echo '{\"custom_id\": \"1\", \"method\": \"POST\", \"url\": \"/v1/completions\", \
    \"body\": {\"prompt\": \"The capital of France is\", \"max_tokens\": 8}}' > in.jsonl")]
pub(crate) struct Batch {
    /// File with a request per line.
    #[arg(value_name = "IN")]
    input: PathBuf,
    /// File for the results. If it has some already, their requests are not answered again.
    #[arg(short, long, value_name = "OUT")]
    output: PathBuf,
    /// A model, as for other commands, or NAME=MODEL to name it in requests. May be repeated, or
    /// list several separated by commas.
    #[arg(short, long = "model", value_name = "MODEL", env = "SCONCE_MODEL", value_delimiter = ',', required = true)]
    models: Vec<String>,
    /// Task of a single model; default: detected from the model's files.
    #[arg(long, value_name = "TASK")]
    task: Option<Task>,
    /// Most requests answered at once.
    #[arg(long, value_name = "N", default_value_t = 64, value_parser = clap::builder::RangedU64ValueParser::<usize>::new().range(1..=4096))]
    parallel: usize,
    #[command(flatten)]
    run_args: RunArgs,
    #[command(flatten)]
    kv_cache: KvCacheArgs,
    #[command(flatten)]
    prompt_cache: PromptCacheArgs,
}

impl Batch {
    pub(crate) fn run(self, report: &Report) -> Result<ExitCode, Failure> {
        if self.task.is_some() && self.models.len() != 1 {
            return Err(format!("--task is for a single model, but {} were given", self.models.len()).into());
        }
        // Errors only: a line per request would fill the screen.
        logs::start(false, true)?;
        let options = self.kv_cache.apply_to(self.run_args.options()?, self.parallel);
        let options = self.prompt_cache.apply_to(options);
        let spec = |given: &String| {
            let mut spec = ModelSpec::new(given, options.clone());
            spec.task = self.task;
            spec
        };
        let models = self.models.iter().map(spec).collect();
        // A request may take as long as it needs: nobody waits for it.
        let config = Config {
            payload_limit: MAX_REQUEST,
            request_timeout: None,
            max_client_batch: usize::MAX,
            batch_lines: self.parallel,
            ..Config::default()
        };
        let file = BatchFile { input: self.input.clone(), output: self.output.clone() };
        let bar = report.bar("{msg} [{bar:30}] {pos}/{len} {eta}", Some(0));
        bar.set_message("loading the models");
        let (shown, since) = (bar.clone(), Instant::now());
        let progress = move |now: BatchProgress| {
            shown.set_length(now.total as u64);
            shown.set_position((now.completed + now.failed) as u64);
            shown.set_message(format!("{} failed", now.failed));
        };
        // One thread for each request that may wait for a model, which blocks it.
        let threads = self.parallel + 16;
        let answered =
            runtime::serve(threads, async { answer_file(config, models, file, Stop::on_signals(), progress).await })?;
        bar.finish_and_clear();
        Ok(self.conclude(&answered?, since, report))
    }

    /// Says how the run ended.
    fn conclude(&self, summary: &BatchSummary, since: Instant, report: &Report) -> ExitCode {
        let BatchSummary { progress: BatchProgress { total, completed, failed }, earlier, stopped } = *summary;
        let (done, output) = (completed + failed, self.output.display());
        let seconds = since.elapsed().as_secs_f64();
        let before = if earlier > 0 { format!(", {earlier} of them before") } else { String::new() };
        report.info(&format!("{done} of {total} requests are answered{before}, in {seconds:.2} s: {output}"));
        if stopped && done < total {
            report.error("stopped; the same command goes on with the other requests");
            return ExitCode::FAILURE;
        }
        if failed > 0 {
            report.error(&format!("{failed} of {total} requests failed; their results in {output} say why"));
            return ExitCode::FAILURE;
        }
        ExitCode::SUCCESS
    }
}
