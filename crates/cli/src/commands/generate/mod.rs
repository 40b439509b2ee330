//! `sconce generate`: text generation with language models and T5.

mod generator;
mod prompts;
mod results;
mod shards;

use super::{run_line, with_run_info};
use crate::Failure;
use crate::args::LanguageModel;
use crate::input::Text;
use crate::output::{Output, ResultNames, ResultsOf};
use crate::report::Report;
use crate::row::Columns;
use crate::sampling::Sampling;
use crate::shards::ShardArgs;
use crate::stream_printer::{Interrupt, print_stream};
use clap::Args;
use generator::{Generator, RunningGeneration};
use prompts::{GenerateOptions, Input, Prompt};
use results::PromptResult;
use sconce_engine::Stream;
use serde_json::{Value, json};
use std::collections::VecDeque;
use std::io::Write;
use std::process::ExitCode;
use std::time::Instant;

/// Prompts queued per answer that runs at once: results are written in the order of the prompts, so
/// behind a long answer others must be ready to run.
const QUEUED_PER_RUNNING: usize = 16;

/// Generate text from prompts with a language model, or text from text with T5.
///
/// A single answer is printed while it is generated; Ctrl-C ends it. Several prompts run together,
/// and their answers are printed in the order of the prompts. A prompt that fails does not stop the
/// others, but the exit code is 1.
#[derive(Args)]
#[command(after_help = "Examples:\n  \
    sconce generate -m smollm \"The capital of France is\" --max-tokens 16\n  \
    sconce generate -m smollm -f prompts.txt --max-tokens 64 -o answers.jsonl\n  \
    sconce generate -m smollm \"A cat, in JSON: \" --constrain schema:cat.json\n  \
    echo '{\"messages\": [{\"role\": \"user\", \"content\": \"Hello!\"}], \"temperature\": 0.7}' | \
    sconce generate -m smollm --jsonl --json\n  \
    sconce generate -m google/flan-t5-small --beams 4 \"Translate to German: The house is wonderful.\"")]
pub(crate) struct Generate {
    #[command(flatten)]
    input: Input,
    #[command(flatten)]
    model: LanguageModel,
    #[command(flatten)]
    sampling: Sampling,
    #[command(flatten)]
    options: GenerateOptions,
    /// Most answers generated at once. Default: 64, and 16 for T5.
    #[arg(long, value_name = "N", value_parser = clap::builder::RangedU64ValueParser::<usize>::new().range(1..=4096))]
    parallel: Option<usize>,
    #[command(flatten)]
    output: Output,
    #[command(flatten)]
    shards: ShardArgs,
}

/// A queued prompt.
struct QueuedPrompt {
    text: Text,
    id: Option<Value>,
    begun: Result<(RunningGeneration, Option<u64>), Failure>,
}

impl Generate {
    pub(crate) fn run(self, report: &Report) -> Result<ExitCode, Failure> {
        self.output.check(false, true)?;
        self.sampling.check()?;
        if self.shards.is_on() {
            return self.run_shards(report);
        }
        let mut prompts = self.input.prompts(self.output.keeps_fields())?;
        let only = if self.input.is_one() { prompts.next().transpose()? } else { None };
        let model = Generator::load(&self, only.as_ref(), report)?;
        let Some(prompt) = only else { return self.batch(&model, prompts, report) };
        match self.output.can_stream() {
            true => match model.stream(&prompt, &self)? {
                Some(stream) => Self::show(&model, stream, report),
                None => self.batch(&model, std::iter::once(Ok(prompt)), report),
            },
            false => self.batch(&model, std::iter::once(Ok(prompt)), report),
        }
    }

    /// Prints the only answer while it is generated.
    fn show(model: &Generator, stream: Stream, report: &Report) -> Result<ExitCode, Failure> {
        let interrupt = Interrupt::install()?;
        let mut out = std::io::stdout();
        let truncated = stream.truncated();
        let answer = print_stream(stream, &interrupt, &mut out)?;
        if !answer.text.ends_with('\n') {
            writeln!(out)?;
        }
        warn_truncated(usize::from(truncated), 1, model, report);
        answer.report_speed(report);
        report.info(&run_line(model.loaded()));
        Ok(ExitCode::SUCCESS)
    }

    /// Generates all answers together.
    fn batch(
        &self,
        model: &Generator,
        mut prompts: impl Iterator<Item = Result<Prompt, Failure>>,
        report: &Report,
    ) -> Result<ExitCode, Failure> {
        let fields = &["index", "answers", "usage", "truncated", "seed", "error"];
        let columns = if self.output.is_parquet() { self.input.columns()? } else { Columns::default() };
        let of_rows = !columns.is_empty();
        let column = if of_rows { results::COLUMNS } else { results::COLUMNS_WITH_ID };
        let names = ResultNames { many: "results", one: None, fields, array: None, column: Some(column) };
        let mut writer = self.output.open(names, ResultsOf::Others(columns))?;
        let template = match self.input.bytes() {
            Some(_) => "{msg} [{bar:30}] {percent}% {eta}",
            None => "{msg} {spinner}",
        };
        let (bar, since) = (report.bar(template, self.input.bytes()), Instant::now());
        let (mut waiting, mut done, mut failed) = (VecDeque::new(), 0usize, 0usize);
        let (mut read, mut wrote, mut truncated) = (0usize, 0usize, 0usize);
        let ahead = model.loaded().plan().most_sequences.saturating_mul(QUEUED_PER_RUNNING);
        loop {
            while waiting.len() < ahead
                && let Some(prompt) = prompts.next()
            {
                waiting.push_back(self.queue(model, prompt));
            }
            let Some(QueuedPrompt { text, id, begun: queued }) = waiting.pop_front() else { break };
            if of_rows && id.is_some() {
                let why = "a prompt with an `id` among rows, whose columns Parquet output keeps; write jsonl instead";
                return Err(with_origin(&text.origin, why).into());
            }
            let answers = match queued.and_then(|(running, seed)| model.wait(running, seed)) {
                Ok(answers) => {
                    read += answers.read;
                    wrote += answers.wrote;
                    truncated += usize::from(answers.truncated);
                    Ok(answers)
                }
                Err(why) => {
                    failed += 1;
                    let why = why.to_string();
                    bar.suspend(|| report.error(&with_origin(&text.origin, &why)));
                    Err(why)
                }
            };
            writer.write(&text, &PromptResult { index: done, id, origin: &text.origin, outcome: answers }, None)?;
            writer.flush_stream()?;
            done += 1;
            bar.inc(text.bytes);
            let rate = wrote as f64 / since.elapsed().as_secs_f64();
            bar.set_message(format!("{done} prompts, {rate:.0} tokens/s"));
        }
        bar.finish_and_clear();
        let about = json!({"failed": failed, "usage": results::usage(read, wrote)});
        writer.finish(&with_run_info(about, model.loaded()))?;
        warn_truncated(truncated, done, model, report);
        let (s, seconds) = (if done == 1 { "" } else { "s" }, since.elapsed().as_secs_f64());
        let rate = wrote as f64 / seconds;
        let counts = format!("{done} prompt{s} of {read} tokens, {wrote} new tokens in {seconds:.2} s, {rate:.1}/s");
        report.info(&format!("{counts}, on {}", run_line(model.loaded())));
        if failed > 0 {
            report.error(&format!("{failed} of {done} prompts failed"));
            return Ok(ExitCode::FAILURE);
        }
        Ok(ExitCode::SUCCESS)
    }

    /// Queues a prompt; an error is reported in its turn.
    fn queue(&self, model: &Generator, prompt: Result<Prompt, Failure>) -> QueuedPrompt {
        match prompt {
            Ok(prompt) => {
                let begun = model.begin(&prompt, self);
                let Prompt { id, row, origin, bytes, .. } = prompt;
                QueuedPrompt { text: Text { text: String::new(), object: row, origin, number: None, bytes }, id, begun }
            }
            // The error of an unreadable line names its origin.
            Err(e) => {
                let text = Text { text: String::new(), object: None, origin: String::new(), number: None, bytes: 0 };
                QueuedPrompt { text, id: None, begun: Err(e) }
            }
        }
    }
}

/// Warns about truncated texts.
fn warn_truncated(truncated: usize, of: usize, model: &Generator, report: &Report) {
    if truncated > 0 {
        let most = model.loaded().plan().max_tokens;
        report.warn(&format!("{truncated} of {of} texts are longer than {most} tokens and were cut"));
    }
}

/// Puts the origin before an error.
fn with_origin(origin: &str, why: &str) -> String {
    if origin.is_empty() { why.to_string() } else { format!("{origin}: {why}") }
}
