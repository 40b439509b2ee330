//! `sconce rerank`: documents ordered by relevance to a query.

use super::{print, table, with_run_info};
use crate::Failure;
use crate::args::TaskModel;
use crate::input::{Input, Text};
use crate::output::{ResultNames, ResultRow, ResultsOf, Writer};
use crate::report::Report;
use crate::shards::{ShardArgs, ShardOutput, ShardRequest};
use crate::source::Source;
use crate::window_runner::{ModelCall, Texts, strings};
use clap::{Args, ValueEnum};
use sconce_engine::Loaded;
use sconce_engine::{RankOptions, RankPooling, Ranking, RequestContext, Reranker, Scores};
use serde::Serialize;
use serde_json::json;
use std::process::ExitCode;

/// Order documents by relevance to a query, with a cross-encoder or an LLM reranker.
#[derive(Args)]
#[command(after_help = "Examples:\n  \
    sconce rerank -m cross-encoder/ms-marco-MiniLM-L6-v2 --query \"Who eats?\" \"A man eats.\" \"It rains.\"\n  \
    sconce rerank -m BAAI/bge-reranker-base --query \"Who eats?\" -f docs.txt --top-n 10 --texts --json")]
pub(crate) struct Rerank {
    /// The query.
    #[arg(long, value_name = "TEXT")]
    query: String,
    #[command(flatten)]
    input: Input,
    #[command(flatten)]
    model: TaskModel,
    #[command(flatten)]
    shards: ShardArgs,
    /// Print only the N best documents.
    #[arg(long, value_name = "N")]
    top_n: Option<usize>,
    /// Print the model's raw scores (logits) instead of their sigmoid.
    #[arg(long)]
    raw: bool,
    /// Print whole documents, not only their index and beginning.
    #[arg(long = "texts")]
    full_texts: bool,
    /// Which hidden states of query and document the classifier reads.
    #[arg(long, alias = "representation", value_enum, value_name = "POOLING", default_value_t)]
    pooling: PoolingArg,
    /// Instruction for LLM rerankers (Qwen3-Reranker), in a sentence.
    #[arg(long, value_name = "TEXT")]
    instruction: Option<String>,
    /// Print JSON.
    #[arg(long)]
    json: bool,
}

#[derive(Clone, Copy, Default, ValueEnum)]
enum PoolingArg {
    /// The input of the model's own head.
    #[default]
    Pooler,
    /// The first token's hidden state, for BERT models trained for it.
    Cls,
    /// The mean of all hidden states, for BERT models trained for it.
    Mean,
}

/// Names of the results with --shards: a score for each row.
const SCORES: ResultNames = ResultNames {
    many: "results",
    one: Some("score"),
    fields: &[],
    array: None,
    column: Some("required float score;"),
};

/// The score of a row.
#[derive(Serialize)]
#[serde(transparent)]
struct Score(f32);

impl ResultRow for Score {
    fn lines(&self, _: &Text) -> String {
        format!("{:.6}\n", self.0)
    }
}

/// A ranked document.
#[derive(Serialize)]
struct RankedDocument {
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
        if self.shards.is_on() && (self.json || self.top_n.is_some() || self.full_texts) {
            return Err("--shards writes the score of every row: leave out --json, --top-n and --texts".into());
        }
        let source = match self.shards.open(self.shard_request())? {
            Some(run) => Source::Shards(Box::new(run)),
            None => Source::Texts(Box::new(Texts::open(&self.input)?)),
        };
        let pooling = match self.pooling {
            PoolingArg::Pooler => RankPooling::Pooler,
            PoolingArg::Cls => RankPooling::Cls,
            PoolingArg::Mean => RankPooling::Mean,
        };
        let load = |r: &_, o: &_, p: &dyn sconce_engine::hub::Progress| {
            let reranker = Reranker::load(r, o, p)?;
            match &self.instruction {
                Some(instruction) => reranker.with_instruction(instruction),
                None => Ok(reranker),
            }
        };
        let context = RequestContext::default();
        let reranker = self.model.load(report, load)?.with_context(&context);
        // All windows are sorted together by logit, because many extreme scores round to the same
        // number.
        let options = RankOptions::default().with_raw(true).with_pooling(pooling);
        let rerank = |window: &[Text]| Ok(reranker.rerank(&self.query, &strings(window), options)?);
        let texts = match source {
            Source::Texts(texts) => *texts,
            Source::Shards(run) => {
                let output = ShardOutput { model: &reranker, names: SCORES, of: ResultsOf::Others, way_out: None };
                return run.texts(
                    report,
                    &output,
                    ModelCall { context: &context, run: rerank },
                    |writer, ranking, window| self.write_scores(writer, &ranking, window),
                );
            }
        };
        let (mut ranked, mut truncated, mut done) = (Vec::new(), Vec::new(), 0);
        let summary =
            texts.run_windows(report, ModelCall { context: &context, run: rerank }, |ranking, mut window| {
                truncated.extend(ranking.truncated.iter().map(|i| i + done));
                for r in ranking.ranked {
                    let score = if self.raw { r.score } else { Scores::Sigmoid.apply(&[r.score])[0] };
                    let (index, preview) = (r.index + done, window[r.index].preview());
                    let text = self.full_texts.then(|| std::mem::take(&mut window[r.index].text));
                    ranked.push(RankedDocument { index, score, text, logit: r.score, preview });
                }
                done += window.len();
                self.keep_best(&mut ranked);
                Ok(())
            })?;
        if self.json {
            let about =
                json!({"query": self.query, "documents": done, "tokens": summary.tokens, "truncated": truncated});
            let (results, rest) = (serde_json::to_string(&ranked)?, with_run_info(about, &reranker).to_string());
            print(&format!("{{\"results\":{results},{}", &rest[1..]))?;
        } else {
            let mut rows = vec![["score", "index", "text"].map(String::from).to_vec()];
            rows.extend(ranked.into_iter().map(|p| {
                vec![
                    format!("{:.6}", p.score),
                    p.index.to_string(),
                    p.text.map_or(p.preview, |t| t.replace(char::is_control, " ")),
                ]
            }));
            print(&table(&rows))?;
        }
        summary.report(report, &reranker, None);
        Ok(ExitCode::SUCCESS)
    }

    fn shard_request(&self) -> ShardRequest<'_> {
        let pooling = self.pooling.to_possible_value();
        let options = json!({
            "--query": self.query,
            "--raw": self.raw,
            "--pooling": pooling.as_ref().map(|value| value.get_name()),
            "--instruction": self.instruction,
        });
        ShardRequest::of("rerank", (self.model.model.as_str(), &self.model.run_args), &self.input, options)
    }

    /// Writes the score of every row.
    fn write_scores(&self, writer: &mut Writer, ranking: &Ranking, window: &[Text]) -> Result<(), Failure> {
        let mut logits = vec![0.0; window.len()];
        ranking.ranked.iter().for_each(|ranked| logits[ranked.index] = ranked.score);
        for (text, logit) in window.iter().zip(logits) {
            let score = if self.raw { logit } else { Scores::Sigmoid.apply(&[logit])[0] };
            writer.write(text, &Score(score), None)?;
        }
        Ok(())
    }

    /// Sorts the best first, equal ones by index, and keeps the `top_n` best.
    fn keep_best(&self, ranked: &mut Vec<RankedDocument>) {
        ranked.sort_by(|a, b| b.logit.total_cmp(&a.logit).then(a.index.cmp(&b.index)));
        ranked.truncate(self.top_n.unwrap_or(usize::MAX));
    }
}
