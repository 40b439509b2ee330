//! `sconce bench`: speed of a model and of each op on this machine.

mod compare;
mod language;

use super::{print, run_line, table, with_run_info};
use crate::Failure;
use crate::args::{KvCacheArgs, Model};
use crate::report::Report;
use clap::Args;
use sconce_engine::hub::resolve;
use sconce_engine::{Embedder, Loaded, Prompt, Task};
use sconce_ops::case::{Case, time, variants};
use sconce_ops::{Place, cases_on};
use serde_json::{Value, json};
use std::process::ExitCode;
use std::time::{Duration, Instant};

/// No prompt, so that lengths are those of the table.
const NO_PROMPT: Prompt = Prompt::Text(String::new());

/// Texts per call × tokens per text.
const SHAPES: [(usize, usize); 4] = [(1, 16), (1, 128), (8, 32), (32, 128)];

/// Time a model including tokenization, other engines beside it (--compare), or every op (--ops).
///
/// A language model is timed at reading a prompt (pp, prefill) and at writing an answer (tg,
/// decoding). GB/s counts the weights that each token reads, and GFLOP/s two operations for each
/// weight that a token is multiplied with; neither counts anything else.
#[derive(Args)]
#[command(
    after_help = "Examples:\n  sconce bench\n  sconce bench --compare --python .venv/bin/python\n  sconce bench -m smollm\n  \
    sconce bench -m smollm --prompt-tokens 128 --gen-tokens 32 --parallel 8 --dtype q8_0 --json"
)]
pub(crate) struct Bench {
    #[command(flatten)]
    model: Model,
    /// Time the ops on their test cases instead.
    #[arg(long)]
    ops: bool,
    #[command(flatten)]
    compare: compare::Compare,
    #[command(flatten)]
    kv_cache: KvCacheArgs,
    /// Tokens of the prompt of a language model; 0 skips this benchmark.
    #[arg(long, value_name = "N", default_value_t = 512)]
    prompt_tokens: usize,
    /// Tokens of the answer of a language model; 0 skips this benchmark.
    #[arg(long, value_name = "N", default_value_t = 128)]
    gen_tokens: usize,
    /// Repetitions of each benchmark of a language model, or of the comparison.
    #[arg(long, value_name = "N", default_value_t = 3, value_parser = clap::builder::RangedU64ValueParser::<usize>::new().range(1..=1000))]
    reps: usize,
    /// Concurrent prompts or answers of a language model.
    #[arg(long, value_name = "N", default_value_t = 1, value_parser = clap::builder::RangedU64ValueParser::<usize>::new().range(1..=4096))]
    parallel: usize,
    /// Seconds per line of the table, for models that are not language models.
    #[arg(long, value_name = "S", default_value_t = 1.0)]
    seconds: f64,
    /// Print JSON.
    #[arg(long)]
    json: bool,
}

impl Bench {
    pub(crate) fn run(self, report: &Report) -> Result<ExitCode, Failure> {
        if !(0.0..=3600.0).contains(&self.seconds) {
            return Err("--seconds takes a number from 0 to 3600".into());
        }
        self.model.run_args.threads.apply()?;
        if self.ops {
            return self.time_ops();
        }
        let options = self.model.run_args.options()?;
        let files = resolve(&self.model.model.parse()?, &options.hub_options(), report)?;
        match Task::detect(files.root())? {
            Task::Generate | Task::Seq2Seq if self.compare.compare => Err("--compare is for embedding models".into()),
            Task::Generate => self.time_language(&files, &options, report),
            Task::Seq2Seq => Err("sequence-to-sequence models cannot be benchmarked yet".into()),
            _ if self.compare.compare => self.compare(report),
            _ => self.time_model(report),
        }
    }

    fn time_model(&self, report: &Report) -> Result<ExitCode, Failure> {
        let embedder = self.model.load(report, Embedder::load)?;
        let mut lines = Vec::new();
        for (texts, tokens) in SHAPES {
            let tokens = tokens.min(embedder.plan().max_tokens);
            let batch = vec![text_of(&embedder, tokens)?; texts];
            let median = self.median(|| embedder.embed(&batch, &NO_PROMPT))?;
            lines.push((texts, tokens, median));
        }
        if self.json {
            let line = |(texts, tokens, s): &(usize, usize, f64)| json!({"texts": texts, "tokens": tokens, "median_seconds": s, "texts_per_second": *texts as f64 / s});
            let lines: Vec<Value> = lines.iter().map(line).collect();
            print(&with_run_info(json!({"lines": lines}), &embedder).to_string())?;
        } else {
            let mut rows = vec![["texts × tokens", "median", "texts/s", "tokens/s"].map(String::from).to_vec()];
            rows.extend(lines.iter().map(|(texts, tokens, s)| {
                vec![
                    format!("{texts} × {tokens}"),
                    format!("{:.2} ms", s * 1e3),
                    format!("{:.0}", *texts as f64 / s),
                    format!("{:.0}", (texts * tokens) as f64 / s),
                ]
            }));
            print(&table(&rows))?;
        }
        report.info(&run_line(&embedder));
        Ok(ExitCode::SUCCESS)
    }

    fn time_ops(&self) -> Result<ExitCode, Failure> {
        let place = Place::open(self.model.run_args.device.candidates(false).0[0])?;
        let mut rows = vec![["op", "case", "dtype", "rung", "median", "GFLOP/s"].map(String::from).to_vec()];
        let mut all = Vec::new();
        for case in cases_on(place.device()) {
            for variant in variants(place.device()) {
                let budget = Duration::from_secs_f64(self.seconds / 20.0);
                let Some(t) = time(&case, &place, variant, budget)? else { continue };
                let rate = case.flops as f64 / t.as_secs_f64() / 1e9;
                all.push(op_json(&case, &variant.to_string(), t, rate));
                rows.push(vec![
                    case.op.into(),
                    case.name.clone(),
                    case.dtype.to_string(),
                    variant.to_string(),
                    format!("{:.1} µs", t.as_secs_f64() * 1e6),
                    format!("{rate:.1}"),
                ]);
            }
        }
        if self.json {
            print(&json!({"device": place.device().to_string(), "ops": all}).to_string())?;
        } else {
            print(&table(&rows))?;
        }
        Ok(ExitCode::SUCCESS)
    }

    fn median<T, E: Into<Failure>>(&self, mut f: impl FnMut() -> Result<T, E>) -> Result<f64, Failure> {
        f().map_err(Into::into)?;
        let (start, mut times) = (Instant::now(), Vec::new());
        while times.len() < 3 || start.elapsed().as_secs_f64() < self.seconds {
            let one = Instant::now();
            f().map_err(Into::into)?;
            times.push(one.elapsed().as_secs_f64());
        }
        times.sort_by(f64::total_cmp);
        Ok(times[times.len() / 2])
    }
}

/// A text of `tokens` tokens, or the nearest below that the tokenizer allows.
fn text_of(embedder: &Embedder, tokens: usize) -> Result<String, Failure> {
    let mut words = tokens;
    loop {
        let text = vec!["the"; words].join(" ");
        let got = embedder.embed(&[&text], &NO_PROMPT)?.tokens[0];
        if got <= tokens || words == 0 {
            return Ok(text);
        }
        words -= (got - tokens).min(words);
    }
}

fn op_json(case: &Case, variant: &str, t: Duration, rate: f64) -> Value {
    json!({"op": case.op, "case": case.name, "dtype": case.dtype.to_string(), "rung": variant,
        "median_seconds": t.as_secs_f64(), "gflops": rate})
}
