//! `sconce embed`: texts to vectors.

use super::{ran, ran_line};
use crate::Failure;
use crate::args::Model;
use crate::input::{Input, Text};
use crate::output::Output;
use crate::report::Report;
use clap::Args;
use sconce_engine::{Error, Loaded, Prompt};
use std::path::PathBuf;
use std::process::ExitCode;
use std::time::Instant;

/// Texts that are tokenized, sorted and packed together: enough to fill batches well, few enough to keep a bar moving.
const WINDOW: usize = 512;

/// Turn texts into vectors.
#[derive(Args)]
#[command(after_help = "Examples:\n  sconce embed \"A man is eating food.\"\n  \
    sconce embed -f texts.txt -o vectors.npy\n  \
    sconce embed -f docs.jsonl --field body -o docs.embedded.jsonl --dtype bf16")]
pub(crate) struct Embed {
    #[command(flatten)]
    input: Input,
    #[command(flatten)]
    model: Model,
    #[command(flatten)]
    output: Output,
    /// Put one of the model's own prompts before each text, by name (such as query or document).
    #[arg(long, value_name = "NAME", conflicts_with = "prompt")]
    prompt_name: Option<String>,
    /// Put these words before each text.
    #[arg(long, value_name = "WORDS")]
    prompt: Option<String>,
}

impl Embed {
    pub(crate) fn run(self, report: &Report) -> Result<ExitCode, Failure> {
        let mut texts = self.input.texts()?.peekable();
        // An input that cannot be read at all should not wait for a model to load.
        if let Some(Err(_)) = texts.peek() {
            texts.next().transpose()?;
        }
        let embedder = self.model.load(report)?;
        let prompt = match (&self.prompt_name, &self.prompt) {
            (Some(name), _) => Prompt::Named(name.clone()),
            (_, Some(words)) => Prompt::Text(words.clone()),
            _ => Prompt::Default,
        };
        let mut writer = self.output.open(embedder.plan().dimension)?;
        remove_on_ctrl_c(writer.scratch())?;
        let template = match self.input.bytes() {
            Some(_) => "{msg} [{bar:30}] {percent}% {eta}",
            None => "{msg} {spinner}",
        };
        let bar = report.bar(template, self.input.bytes());
        let start = Instant::now();
        let (mut done, mut tokens, mut cut, mut first_cut, mut blank) = (0, 0, 0, None, 0);
        loop {
            let window = texts.by_ref().take(WINDOW).collect::<Result<Vec<Text>, _>>()?;
            if window.is_empty() {
                break;
            }
            let words: Vec<&str> = window.iter().map(|t| t.text.as_str()).collect();
            let embeddings = embedder.embed(&words, &prompt).map_err(|e| match e {
                Error::Text { text, why } => format!("{}: {why}", window[text].origin).into(),
                e => Failure::from(e),
            })?;
            if first_cut.is_none() {
                first_cut = embeddings.truncated.first().map(|i| window[*i].origin.clone());
            }
            cut += embeddings.truncated.len();
            blank += words.iter().filter(|w| w.trim().is_empty()).count();
            tokens += embeddings.tokens.iter().sum::<usize>();
            done += window.len();
            bar.inc(window.iter().map(|t| t.bytes).sum());
            let rate = done as f64 / start.elapsed().as_secs_f64();
            bar.set_message(format!("{done} texts, {rate:.0}/s"));
            writer.write(&embeddings, window)?;
        }
        writer.finish(ran(&embedder))?;
        bar.finish_and_clear();
        if let Some(origin) = first_cut {
            let most = embedder.plan().max_tokens;
            report.warn(&format!(
                "{cut} of {done} texts are longer than {most} tokens and were cut (the first: {origin})"
            ));
        }
        if blank > 0 {
            report.warn(&format!("{blank} of {done} texts are blank; their vector is that of an empty text"));
        }
        let seconds = start.elapsed().as_secs_f64();
        report.say(&format!("{} in {seconds:.2} s on {}", counted(done, tokens), ran_line(&embedder)));
        Ok(ExitCode::SUCCESS)
    }
}

fn counted(texts: usize, tokens: usize) -> String {
    format!("{texts} text{}, {tokens} tokens", if texts == 1 { "" } else { "s" })
}

/// Ctrl-C ends at once, and takes a half-written file with it.
fn remove_on_ctrl_c(scratch: Option<PathBuf>) -> Result<(), Failure> {
    let stop = move || {
        if let Some(path) = &scratch {
            // Gone already, or about to be: either way there is nobody left to tell.
            let _ = std::fs::remove_file(path);
        }
        std::process::exit(130);
    };
    Ok(ctrlc::set_handler(stop)?)
}
