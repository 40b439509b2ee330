//! `sconce generate`: texts that a language model goes on from.

mod prompts;
mod results;

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
use results::{Made, Outcome};
use sconce_engine::{Llm, Stream};
use serde_json::{Value, json};
use std::collections::VecDeque;
use std::io::Write;
use std::process::ExitCode;
use std::time::Instant;

/// Prompts that are handed over for each that runs: answers come in the order of their prompts, and behind one that is long
/// others must be there to run.
const AHEAD: usize = 16;

/// Go on from prompts with a language model.
///
/// One prompt is answered as it comes; Ctrl-C ends the answer. Several run together, and their answers come in the order of
/// the prompts. A line that cannot be answered fails alone, and the exit code is 1.
#[derive(Args)]
#[command(after_help = "Examples:\n  \
    sconce generate -m smollm \"The capital of France is\" --max-tokens 16\n  \
    sconce generate -m smollm -f prompts.txt --max-tokens 64 -o answers.jsonl\n  \
    sconce generate -m smollm \"A cat, in JSON: \" --constrain schema:cat.json\n  \
    echo '{\"messages\": [{\"role\": \"user\", \"content\": \"Hello!\"}], \"temperature\": 0.7}' | \
    sconce generate -m smollm --jsonl --json")]
pub(crate) struct Generate {
    #[command(flatten)]
    input: Input,
    #[command(flatten)]
    model: LanguageModel,
    #[command(flatten)]
    sampling: Sampling,
    #[command(flatten)]
    wanted: Wanted,
    /// The most answers that are worked on at once.
    #[arg(long, value_name = "N", default_value_t = 64, value_parser = clap::builder::RangedU64ValueParser::<usize>::new().range(1..=4096))]
    parallel: usize,
    #[command(flatten)]
    output: Output,
}

/// A prompt that was handed over.
struct Asked {
    text: Text,
    id: Option<Value>,
    seed: u64,
    stream: Result<Stream, String>,
}

impl Generate {
    pub(crate) fn run(self, report: &Report) -> Result<ExitCode, Failure> {
        self.output.check(false)?;
        self.sampling.check()?;
        let mut prompts = self.input.prompts()?;
        let only = if self.input.is_one() { prompts.next().transpose()? } else { None };
        let llm = self.model.load(report, self.parallel)?;
        match only {
            Some(prompt) if self.output.is_shown() && prompt.wanted.over(self.wanted).n.unwrap_or(1) == 1 => {
                self.show(&llm, &prompt, report)
            }
            Some(prompt) => self.batch(&llm, std::iter::once(Ok(prompt)), report),
            None => self.batch(&llm, prompts, report),
        }
    }

    /// The one answer, as it comes.
    fn show(&self, llm: &Llm, prompt: &Prompt, report: &Report) -> Result<ExitCode, Failure> {
        let interrupt = Interrupt::install()?;
        let stream = self.start(llm, prompt).0?;
        let mut out = std::io::stdout();
        let told = tell(stream, &interrupt, &mut out)?;
        if !told.text.ends_with('\n') {
            writeln!(out)?;
        }
        told.say_speed(report);
        report.say(&ran_line(llm));
        Ok(ExitCode::SUCCESS)
    }

    /// All of them together.
    fn batch(
        &self,
        llm: &Llm,
        mut prompts: impl Iterator<Item = Result<Prompt, Failure>>,
        report: &Report,
    ) -> Result<ExitCode, Failure> {
        let mut writer = self.output.open(Answers { many: "results", one: None, array: None })?;
        let template = match self.input.bytes() {
            Some(_) => "{msg} [{bar:30}] {percent}% {eta}",
            None => "{msg} {spinner}",
        };
        let (bar, begun) = (report.bar(template, self.input.bytes()), Instant::now());
        let (mut waiting, mut done, mut failed) = (VecDeque::new(), 0usize, 0usize);
        let (mut read, mut wrote) = (0usize, 0usize);
        loop {
            while waiting.len() < self.parallel.saturating_mul(AHEAD)
                && let Some(prompt) = prompts.next()
            {
                waiting.push_back(self.ask(llm, prompt));
            }
            let Some(Asked { text, id, seed, stream }) = waiting.pop_front() else { break };
            let made = match stream.and_then(|stream| stream.wait().map_err(|e| e.to_string())) {
                Ok(generation) => {
                    read += generation.prompt_tokens;
                    wrote += generation.answers.iter().map(|a| a.picks.len()).sum::<usize>();
                    Ok(Made::new(llm, generation, seed)?)
                }
                Err(why) => {
                    failed += 1;
                    bar.suspend(|| report.error(&located(&text.origin, &why)));
                    Err(why)
                }
            };
            writer.write(&text, &Outcome { index: done, id, origin: &text.origin, made }, None)?;
            writer.show()?;
            done += 1;
            bar.inc(text.bytes);
            let rate = wrote as f64 / begun.elapsed().as_secs_f64();
            bar.set_message(format!("{done} prompts, {rate:.0} tokens/s"));
        }
        bar.finish_and_clear();
        let about = json!({"failed": failed, "usage": results::usage(read, wrote)});
        writer.finish(&with_ran(about, llm))?;
        let (s, seconds) = (if done == 1 { "" } else { "s" }, begun.elapsed().as_secs_f64());
        let rate = wrote as f64 / seconds;
        let counts = format!("{done} prompt{s} of {read} tokens, {wrote} new tokens in {seconds:.2} s, {rate:.1}/s");
        report.say(&format!("{counts}, on {}", ran_line(llm)));
        if failed > 0 {
            report.error(&format!("{failed} of {done} prompts failed"));
            return Ok(ExitCode::FAILURE);
        }
        Ok(ExitCode::SUCCESS)
    }

    /// Hands a prompt over; what is wrong with it is told when its turn comes.
    fn ask(&self, llm: &Llm, prompt: Result<Prompt, Failure>) -> Asked {
        match prompt {
            Ok(prompt) => {
                let (stream, seed) = self.start(llm, &prompt);
                let stream = stream.map_err(|e| e.to_string());
                let Prompt { id, origin, bytes, .. } = prompt;
                Asked { text: Text { text: String::new(), object: None, origin, bytes }, id, seed, stream }
            }
            // An unreadable line says itself where it stands.
            Err(e) => {
                let text = Text { text: String::new(), object: None, origin: String::new(), bytes: 0 };
                Asked { text, id: None, seed: 0, stream: Err(e.to_string()) }
            }
        }
    }

    fn start(&self, llm: &Llm, prompt: &Prompt) -> (sconce_engine::Result<Stream>, u64) {
        let sampling = prompt.sampling.clone().over(&self.sampling);
        let wanted = prompt.wanted.over(self.wanted);
        let request = wanted.of(sampling.request(llm.params()));
        let seed = request.params.as_ref().map_or(0, |p| p.seed);
        (prompt.begin.start(llm, request), seed)
    }
}

/// What went wrong, and where.
fn located(origin: &str, why: &str) -> String {
    if origin.is_empty() { why.to_string() } else { format!("{origin}: {why}") }
}
