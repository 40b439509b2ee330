//! `sconce generate`: texts that a language model goes on from, or that a model reads to write another.

mod prompts;
mod results;
mod speaker;

use super::{ran_line, with_ran};
use crate::Failure;
use crate::args::LanguageModel;
use crate::input::Text;
use crate::output::{Answers, Output};
use crate::report::Report;
use crate::sampling::Sampling;
use crate::told::{Interrupt, tell};
use clap::Args;
use prompts::{Input, Prompt, Wanted};
use results::Outcome;
use sconce_engine::Stream;
use serde_json::{Value, json};
use speaker::{Begun, Speaker};
use std::collections::VecDeque;
use std::io::Write;
use std::process::ExitCode;
use std::time::Instant;

/// Prompts that are handed over for each that runs: answers come in the order of their prompts, and behind one that is long
/// others must be there to run.
const AHEAD: usize = 16;

/// Go on from prompts with a language model, or write what T5 and its kin make of them.
///
/// One prompt is answered as it comes; Ctrl-C ends the answer. Several run together, and their answers come in the order of
/// the prompts. A line that cannot be answered fails alone, and the exit code is 1.
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
    wanted: Wanted,
    /// The most answers that are worked on at once; by default 64, and 16 of a model that reads a text and writes another.
    #[arg(long, value_name = "N", value_parser = clap::builder::RangedU64ValueParser::<usize>::new().range(1..=4096))]
    parallel: Option<usize>,
    #[command(flatten)]
    output: Output,
}

/// A prompt that was handed over.
struct Asked {
    text: Text,
    id: Option<Value>,
    begun: Result<(Begun, Option<u64>), Failure>,
}

impl Generate {
    pub(crate) fn run(self, report: &Report) -> Result<ExitCode, Failure> {
        self.output.check(false)?;
        self.sampling.check()?;
        let mut prompts = self.input.prompts()?;
        let only = if self.input.is_one() { prompts.next().transpose()? } else { None };
        let model = Speaker::load(&self, only.as_ref(), report)?;
        let Some(prompt) = only else { return self.batch(&model, prompts, report) };
        match self.output.is_shown() {
            true => match model.stream(&prompt, &self)? {
                Some(stream) => Self::show(&model, stream, report),
                None => self.batch(&model, std::iter::once(Ok(prompt)), report),
            },
            false => self.batch(&model, std::iter::once(Ok(prompt)), report),
        }
    }

    /// The one answer, as it comes.
    fn show(model: &Speaker, stream: Stream, report: &Report) -> Result<ExitCode, Failure> {
        let interrupt = Interrupt::install()?;
        let mut out = std::io::stdout();
        let cut = stream.truncated();
        let told = tell(stream, &interrupt, &mut out)?;
        if !told.text.ends_with('\n') {
            writeln!(out)?;
        }
        warn_of_cuts(usize::from(cut), 1, model, report);
        told.say_speed(report);
        report.say(&ran_line(model.loaded()));
        Ok(ExitCode::SUCCESS)
    }

    /// All of them together.
    fn batch(
        &self,
        model: &Speaker,
        mut prompts: impl Iterator<Item = Result<Prompt, Failure>>,
        report: &Report,
    ) -> Result<ExitCode, Failure> {
        let mut writer = self.output.open(Answers { many: "results", one: None, array: None })?;
        let template = match self.input.bytes() {
            Some(_) => "{msg} [{bar:30}] {percent}% {eta}",
            None => "{msg} {spinner}",
        };
        let (bar, since) = (report.bar(template, self.input.bytes()), Instant::now());
        let (mut waiting, mut done, mut failed) = (VecDeque::new(), 0usize, 0usize);
        let (mut read, mut wrote, mut cut) = (0usize, 0usize, 0usize);
        let ahead = model.loaded().plan().most_sequences.saturating_mul(AHEAD);
        loop {
            while waiting.len() < ahead
                && let Some(prompt) = prompts.next()
            {
                waiting.push_back(self.ask(model, prompt));
            }
            let Some(Asked { text, id, begun: asked }) = waiting.pop_front() else { break };
            let made = match asked.and_then(|(asked, seed)| model.wait(asked, seed)) {
                Ok(made) => {
                    read += made.read;
                    wrote += made.wrote;
                    cut += usize::from(made.truncated);
                    Ok(made)
                }
                Err(why) => {
                    failed += 1;
                    let why = why.to_string();
                    bar.suspend(|| report.error(&located(&text.origin, &why)));
                    Err(why)
                }
            };
            writer.write(&text, &Outcome { index: done, id, origin: &text.origin, made }, None)?;
            writer.show()?;
            done += 1;
            bar.inc(text.bytes);
            let rate = wrote as f64 / since.elapsed().as_secs_f64();
            bar.set_message(format!("{done} prompts, {rate:.0} tokens/s"));
        }
        bar.finish_and_clear();
        let about = json!({"failed": failed, "usage": results::usage(read, wrote)});
        writer.finish(&with_ran(about, model.loaded()))?;
        warn_of_cuts(cut, done, model, report);
        let (s, seconds) = (if done == 1 { "" } else { "s" }, since.elapsed().as_secs_f64());
        let rate = wrote as f64 / seconds;
        let counts = format!("{done} prompt{s} of {read} tokens, {wrote} new tokens in {seconds:.2} s, {rate:.1}/s");
        report.say(&format!("{counts}, on {}", ran_line(model.loaded())));
        if failed > 0 {
            report.error(&format!("{failed} of {done} prompts failed"));
            return Ok(ExitCode::FAILURE);
        }
        Ok(ExitCode::SUCCESS)
    }

    /// Hands a prompt over; what is wrong with it is told when its turn comes.
    fn ask(&self, model: &Speaker, prompt: Result<Prompt, Failure>) -> Asked {
        match prompt {
            Ok(prompt) => {
                let begun = model.begin(&prompt, self);
                let Prompt { id, origin, bytes, .. } = prompt;
                Asked { text: Text { text: String::new(), object: None, origin, bytes }, id, begun }
            }
            // An unreadable line says itself where it stands.
            Err(e) => {
                let text = Text { text: String::new(), object: None, origin: String::new(), bytes: 0 };
                Asked { text, id: None, begun: Err(e) }
            }
        }
    }
}

/// Says that texts were longer than there is room for.
fn warn_of_cuts(cut: usize, of: usize, model: &Speaker, report: &Report) {
    if cut > 0 {
        let most = model.loaded().plan().max_tokens;
        report.warn(&format!("{cut} of {of} texts are longer than {most} tokens and were cut"));
    }
}

/// What went wrong, and where.
fn located(origin: &str, why: &str) -> String {
    if origin.is_empty() { why.to_string() } else { format!("{origin}: {why}") }
}
