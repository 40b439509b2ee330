//! `sconce rerank`: documents in the order in which they answer a query.

use super::{print, table, with_ran};
use crate::Failure;
use crate::args::TaskModel;
use crate::input::{Input, Text};
use crate::report::Report;
use crate::work::{Asking, Texts, words};
use clap::{Args, ValueEnum};
use sconce_engine::Loaded;
use sconce_engine::{RankOptions, Representation, RequestContext, Reranker, Scores};
use serde::Serialize;
use serde_json::json;
use std::process::ExitCode;

/// Order documents by how well they answer a query, with a cross-encoder.
#[derive(Args)]
#[command(after_help = "Examples:\n  \
    sconce rerank -m cross-encoder/ms-marco-MiniLM-L6-v2 --query \"Who eats?\" \"A man eats.\" \"It rains.\"\n  \
    sconce rerank -m BAAI/bge-reranker-base --query \"Who eats?\" -f docs.txt --top-n 10 --texts --json")]
pub(crate) struct Rerank {
    /// What the documents should answer.
    #[arg(long, value_name = "TEXT")]
    query: String,
    #[command(flatten)]
    input: Input,
    #[command(flatten)]
    model: TaskModel,
    /// Show only the N best.
    #[arg(long, value_name = "N")]
    top_n: Option<usize>,
    /// Give the model's own scores, not squeezed between 0 and 1.
    #[arg(long)]
    raw: bool,
    /// Put whole documents into the output, not their number and beginning alone.
    #[arg(long = "texts")]
    whole: bool,
    /// What stands for query and document before the classifier.
    #[arg(long, value_enum, value_name = "WHAT", default_value_t)]
    representation: Stands,
    /// What to look for, in a sentence, for language models that are asked (Qwen3-Reranker).
    #[arg(long, value_name = "TEXT")]
    instruction: Option<String>,
    /// Print JSON.
    #[arg(long)]
    json: bool,
}

#[derive(Clone, Copy, Default, ValueEnum)]
enum Stands {
    /// What the model's own head takes.
    #[default]
    Pooler,
    /// The first token as it is, for BERTs trained so.
    Cls,
    /// The mean of all tokens, for BERTs trained so.
    Mean,
}

/// A document in its place.
#[derive(Serialize)]
struct Placed {
    index: usize,
    score: f32,
    #[serde(skip_serializing_if = "Option::is_none")]
    text: Option<String>,
    #[serde(skip)]
    logit: f32,
    #[serde(skip)]
    preview: String,
}

impl Rerank {
    pub(crate) fn run(self, report: &Report) -> Result<ExitCode, Failure> {
        let texts = Texts::open(&self.input)?;
        let representation = match self.representation {
            Stands::Pooler => Representation::Pooler,
            Stands::Cls => Representation::Cls,
            Stands::Mean => Representation::Mean,
        };
        let load = |r: &_, o: &_, p: &dyn sconce_engine::hub::Progress| {
            let reranker = Reranker::load_with(r, o, representation, p)?;
            match &self.instruction {
                Some(instruction) => reranker.with_instruction(instruction),
                None => Ok(reranker),
            }
        };
        let caller = RequestContext::default();
        let reranker = self.model.load(report, load)?.with_context(&caller);
        // Windows are put in order together, by logit: far out many scores are the same number.
        let options = RankOptions { raw: true, top_n: None, texts: false };
        let (mut placed, mut truncated, mut done) = (Vec::new(), Vec::new(), 0);
        let tally = texts.each(
            report,
            Asking {
                caller: &caller,
                ask: |window: &[Text]| Ok(reranker.rerank(&self.query, &words(window), options)?),
            },
            |ranking, mut window| {
                truncated.extend(ranking.truncated.iter().map(|i| i + done));
                for r in ranking.ranked {
                    let score = if self.raw { r.score } else { Scores::Sigmoid.apply(&[r.score])[0] };
                    let (index, preview) = (r.index + done, window[r.index].preview());
                    let text = self.whole.then(|| std::mem::take(&mut window[r.index].text));
                    placed.push(Placed { index, score, text, logit: r.score, preview });
                }
                done += window.len();
                self.keep_best(&mut placed);
                Ok(())
            },
        )?;
        if self.json {
            let about = json!({"query": self.query, "documents": done, "tokens": tally.tokens, "truncated": truncated});
            let (results, rest) = (serde_json::to_string(&placed)?, with_ran(about, &reranker).to_string());
            print(&format!("{{\"results\":{results},{}", &rest[1..]))?;
        } else {
            let mut rows = vec![["score", "index", "text"].map(String::from).to_vec()];
            rows.extend(placed.into_iter().map(|p| {
                vec![
                    format!("{:.6}", p.score),
                    p.index.to_string(),
                    p.text.map_or(p.preview, |t| t.replace(char::is_control, " ")),
                ]
            }));
            print(&table(&rows))?;
        }
        tally.close(report, &reranker);
        Ok(ExitCode::SUCCESS)
    }

    /// The best first, of equals the first given; no more than are wanted.
    fn keep_best(&self, placed: &mut Vec<Placed>) {
        placed.sort_by(|a, b| b.logit.total_cmp(&a.logit).then(a.index.cmp(&b.index)));
        placed.truncate(self.top_n.unwrap_or(usize::MAX));
    }
}
