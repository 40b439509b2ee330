//! `sconce ask`: an answer from the documents of an index, with its sources.

mod prompt;

use super::{print, run_line, with_run_info};
use crate::Failure;
use crate::args::LanguageModel;
use crate::index::{DatabaseArgs, FilterArgs, IndexModel, beside, hit_json, location_of, one_line};
use crate::report::Report;
use crate::stream_printer::{Ending, Interrupt, finish_reason, print_stream};
use clap::Args;
use prompt::{Source, answer_format, citations, prompt};
use sconce_engine::{Llm, Request, Start};
use sconce_index::{EmbeddingKind, Hit, Mode, OpenOptions, Query};
use serde_json::{Value, json};
use std::io::Write;
use std::path::{Path, PathBuf};
use std::process::ExitCode;

/// The least cosine of a question and the best passage for which the language model is asked.
///
/// benches/index/quality.py measured it by a rule that was fixed before, with the default model on
/// rust-doc: it refuses 1 % of the questions that the documents answer, and 93 % of those on other
/// subjects. Models differ: --min-similarity sets it.
const MIN_SIMILARITY: f32 = 0.35;

/// Answer a question from the documents of an index.
///
/// Finds the passages that fit the question, and lets a language model answer from them. Citations
/// such as [1] can only name passages that were found; they are listed below the answer with file
/// and line. If no passage is similar to the question, the language model is not asked.
#[derive(Args)]
#[command(after_help = "Examples:\n  \
    sconce ask -m Qwen/Qwen3-0.6B \"How do I install it?\"\n  \
    sconce ask -m ./model.gguf \"Who pays?\" --db contracts.db -n 4 --json")]
pub(crate) struct Ask {
    /// The question.
    #[arg(value_name = "QUESTION")]
    question: String,
    #[command(flatten)]
    model: LanguageModel,
    #[command(flatten)]
    database: DatabaseArgs,
    /// Most passages that the answer may use.
    #[arg(short = 'n', long = "limit", value_name = "N", default_value_t = 8,
        value_parser = clap::builder::RangedU64ValueParser::<usize>::new().range(1..=64))]
    limit: usize,
    #[command(flatten)]
    filter: FilterArgs,
    /// Say that nothing was found if the cosine of the question and the best passage is lower. For
    /// indexes with dense embeddings.
    #[arg(long, value_name = "COSINE", default_value_t = MIN_SIMILARITY, allow_negative_numbers = true)]
    min_similarity: f32,
    /// Most tokens of the answer.
    #[arg(long, value_name = "N", default_value_t = 512,
        value_parser = clap::builder::RangedU64ValueParser::<usize>::new().range(1..=1 << 16))]
    max_tokens: usize,
    /// Sampling temperature: 0 is greedy, 1 samples from the model's own probabilities.
    #[arg(long, value_name = "T", default_value_t = 0.0)]
    temperature: f32,
    /// Print JSON when the answer is complete.
    #[arg(long)]
    json: bool,
}

/// A prompt with the first sources.
struct SourcedPrompt {
    start: Start,
    /// How many sources it has.
    used: usize,
}

/// What was found for a question.
struct Retrieved {
    database: PathBuf,
    hits: Vec<Hit>,
    /// The cosine of the question and the best passage; `None` if the index has no dense
    /// embeddings.
    similarity: Option<f32>,
}

impl Ask {
    pub(crate) fn run(self, report: &Report) -> Result<ExitCode, Failure> {
        if !(self.temperature.is_finite() && self.temperature >= 0.0) {
            return Err(format!("--temperature is {}; use 0 (the most likely token) or above", self.temperature).into());
        }
        // The embedding model is unloaded before the language model is loaded.
        let found = self.retrieve(report)?;
        if found.hits.is_empty() || found.similarity.is_some_and(|similarity| similarity < self.min_similarity) {
            return self.show_nothing(&found);
        }
        let llm = self.model.load(report, 1)?;
        let prompt = self.fit(&llm, &sources(&found.hits))?;
        if prompt.used < found.hits.len() {
            let (used, context) = (prompt.used, llm.context());
            report.warn(&format!(
                "only {used} of {} passages fit into the context of {context} tokens; --context may allow more",
                found.hits.len()
            ));
        }
        self.answer(&llm, prompt, &found, report)
    }

    /// Finds the passages for the question.
    fn retrieve(&self, report: &Report) -> Result<Retrieved, Failure> {
        let database = self.database.existing()?;
        let index = sconce_index::Index::open(&database, &OpenOptions { create: false, read_only: true })?;
        let known = index.model()?;
        // The flags for format and batch are for the language model.
        let run_args = beside(&self.model.run_args);
        let model = known.as_ref().map(|known| IndexModel::load_again(known, &run_args, report)).transpose()?;
        let embedder = model.as_ref().map(IndexModel::embedder);
        let query = Query {
            mode: if model.is_some() { Mode::Hybrid } else { Mode::Bm25 },
            vector: embedder.map(|embedder| embedder.embed_query(&self.question)).transpose()?,
            limit: self.limit,
            filter: self.filter.all(),
            threads: self.model.run_args.threads.threads,
            ..Query::new(&self.question)
        };
        let hits = index.search(&query, embedder, None)?;
        let similarity = match known.as_ref().map(|known| known.kind) {
            // The best passage by cosine need not be among the best of the fusion.
            Some(EmbeddingKind::Dense) => {
                let best = index.search(&Query { mode: Mode::Dense, limit: 1, ..query }, embedder, None)?;
                best.first().and_then(|hit| hit.ranks.dense).map(|rank| rank.score)
            }
            _ => None,
        };
        Ok(Retrieved { database, hits, similarity })
    }

    /// The prompt with as many sources as the context has room for.
    fn fit(&self, llm: &Llm, sources: &[Source]) -> Result<SourcedPrompt, Failure> {
        let (context, mut least) = (llm.context(), 0);
        for used in (1..=sources.len()).rev() {
            let start = prompt(llm, &self.question, &sources[..used])?;
            least = llm.encode(&start)?.len();
            if least + self.max_tokens <= context {
                return Ok(SourcedPrompt { start, used });
            }
        }
        Err(format!(
            "the question with one passage has {least} tokens, and the context of {context} has no room for an answer of {}: \
             use a larger --context or a smaller --max-tokens",
            self.max_tokens
        )
        .into())
    }

    /// Says that nothing was found.
    fn show_nothing(&self, found: &Retrieved) -> Result<ExitCode, Failure> {
        if self.json {
            let about = json!({
                "question": self.question,
                "found": false,
                "answer": null,
                "similarity": found.similarity,
                "min_similarity": self.min_similarity,
                "database": found.database.to_string_lossy(),
                "sources": [],
            });
            print(&about.to_string())?;
            return Ok(ExitCode::SUCCESS);
        }
        let why = match found.similarity {
            Some(similarity) if !found.hits.is_empty() => format!(
                " The passage most similar to it has a cosine of {similarity:.2}, below {:.2} (--min-similarity).",
                self.min_similarity
            ),
            _ => String::new(),
        };
        print(&format!("Nothing was found that answers the question.{why}"))?;
        Ok(ExitCode::SUCCESS)
    }

    /// Generates and prints the answer.
    fn answer(
        &self,
        llm: &Llm,
        prompt: SourcedPrompt,
        found: &Retrieved,
        report: &Report,
    ) -> Result<ExitCode, Failure> {
        let SourcedPrompt { start, used } = prompt;
        let request = Request {
            start,
            params: Some(llm.params().clone().with_temperature(self.temperature)),
            max_tokens: Some(self.max_tokens),
            format: Some(answer_format(used)),
            ..Request::default()
        };
        let interrupt = Interrupt::install()?;
        let (mut out, mut sink) = (std::io::stdout(), std::io::sink());
        let to: &mut dyn Write = if self.json { &mut sink } else { &mut out };
        let answer = print_stream(llm.stream(&request)?, &interrupt, to)?;
        let cited = citations(&answer.text, used);
        if self.json {
            let source = |number: usize| {
                let mut source = hit_json(&found.hits[number - 1]);
                source["number"] = number.into();
                source
            };
            let (read, wrote) = (answer.prompt_tokens, answer.sampled.len());
            let about = json!({
                "question": self.question,
                "found": true,
                "answer": answer.text,
                "citations": cited,
                "sources": (1..=used).map(source).collect::<Vec<Value>>(),
                "similarity": found.similarity,
                "min_similarity": self.min_similarity,
                "database": found.database.to_string_lossy(),
                "finish_reason": match &answer.ending {
                    Ending::Finished(finish) => finish_reason(finish),
                    Ending::Interrupted => "interrupted",
                },
                "usage": {"prompt_tokens": read, "completion_tokens": wrote, "total_tokens": read + wrote},
                "seconds": answer.took.as_secs_f64(),
            });
            print(&with_run_info(about, llm).to_string())?;
            return Ok(ExitCode::SUCCESS);
        }
        if !answer.text.ends_with('\n') {
            writeln!(out)?;
        }
        match cited.is_empty() {
            true => report.warn("the answer cites no passage; check it against the documents (sconce search)"),
            false => print(&format!("\n{}", links(&found.hits, &cited)))?,
        }
        answer.report_speed(report);
        report.info(&run_line(llm));
        Ok(ExitCode::SUCCESS)
    }
}

/// The passages as the language model reads them.
fn sources(hits: &[Hit]) -> Vec<Source> {
    let from = std::env::current_dir().ok();
    hits.iter().map(|hit| source(hit, from.as_deref())).collect()
}

fn source(hit: &Hit, from: Option<&Path>) -> Source {
    let heading = hit.heading.clone().or_else(|| hit.title.clone());
    Source { name: location_of(hit, from), heading, text: hit.text.clone() }
}

/// The cited passages, one per line: `[1] path:line  heading`.
fn links(hits: &[Hit], cited: &[usize]) -> String {
    let from = std::env::current_dir().ok();
    let link = |number: &usize| {
        let source = source(hits.get(number - 1)?, from.as_deref());
        let heading = source.heading.map_or_else(String::new, |heading| format!("  {}", one_line(&heading)));
        Some(format!("[{number}] {}{heading}", source.name))
    };
    cited.iter().filter_map(link).collect::<Vec<_>>().join("\n")
}
