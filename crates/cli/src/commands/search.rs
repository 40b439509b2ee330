//! `sconce search`: passages of an index.

use super::{print, with_run_info};
use crate::Failure;
use crate::args::RunArgs;
use crate::index::{
    DatabaseArgs, FilterArgs, IndexModel, Style, beside, highlighted, hit_json, load_reranker, location_of, one_line,
};
use crate::report::Report;
use clap::{Args, ValueEnum};
use sconce_index::{Hit, Mode, OpenOptions, Query, Rerank};
use serde_json::{Value, json};
use std::process::ExitCode;
use std::time::Instant;

/// Search an index that `sconce index` made.
///
/// Finds passages by meaning (embeddings) and by words (BM25), and adds their scores
/// with weights.
#[derive(Args)]
#[command(after_help = "Examples:\n  \
    sconce search \"how do I install it?\"\n  \
    sconce search LayerNorm --mode bm25 -n 3\n  \
    sconce search \"results of the survey\" --filter \"path:reports/*\" --filter \"year>=2024\"\n  \
    sconce search \"who pays?\" --rerank cross-encoder/ms-marco-MiniLM-L6-v2 --json")]
pub(crate) struct Search {
    /// The query.
    #[arg(value_name = "QUERY")]
    query: String,
    #[command(flatten)]
    database: DatabaseArgs,
    /// Most passages.
    #[arg(short = 'n', long = "limit", value_name = "N", default_value_t = 10,
        value_parser = clap::builder::RangedU64ValueParser::<usize>::new().range(1..=Query::MAX_LIMIT as u64))]
    limit: usize,
    /// How passages are ranked. Default: hybrid.
    #[arg(long, value_enum, value_name = "MODE")]
    mode: Option<ModeArg>,
    #[command(flatten)]
    filter: FilterArgs,
    /// Order the passages anew with this reranker.
    #[arg(long, value_name = "MODEL")]
    rerank: Option<String>,
    #[command(flatten)]
    run_args: RunArgs,
    /// Print JSON.
    #[arg(long)]
    json: bool,
}

/// See [`Mode`].
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
enum ModeArg {
    /// BM25 and the embeddings of the index: a weighted sum of their scores.
    Hybrid,
    /// Cosine of dense embeddings.
    Dense,
    /// Words (BM25); no model is loaded.
    Bm25,
    /// Dot product of sparse embeddings, for an index with a SPLADE model.
    Sparse,
    /// Late interaction, for an index with a ColBERT model.
    MultiVector,
}

impl From<ModeArg> for Mode {
    fn from(mode: ModeArg) -> Mode {
        match mode {
            ModeArg::Hybrid => Mode::Hybrid,
            ModeArg::Dense => Mode::Dense,
            ModeArg::Bm25 => Mode::Bm25,
            ModeArg::Sparse => Mode::Sparse,
            ModeArg::MultiVector => Mode::MultiVector,
        }
    }
}

impl ModeArg {
    fn name(self) -> String {
        self.to_possible_value().map_or_else(String::new, |value| value.get_name().to_string())
    }
}

impl Search {
    pub(crate) fn run(self, report: &Report) -> Result<ExitCode, Failure> {
        let path = self.database.existing()?;
        let index = sconce_index::Index::open(&path, &OpenOptions { create: false, read_only: true })?;
        let known = index.model()?;
        let mode = match (self.mode, &known) {
            (Some(mode), _) => mode,
            (None, Some(_)) => ModeArg::Hybrid,
            // Nothing was embedded so far.
            (None, None) => ModeArg::Bm25,
        };
        let model = match &known {
            Some(known) if mode != ModeArg::Bm25 => Some(
                IndexModel::load_again(known, &self.run_args, report)
                    .map_err(|e| format!("{e}\n`--mode bm25` searches without a model"))?,
            ),
            _ => None,
        };
        let reranker =
            self.rerank.as_deref().map(|name| load_reranker(name, &beside(&self.run_args), report)).transpose()?;
        let query = Query {
            mode: mode.into(),
            limit: self.limit,
            filter: self.filter.all(),
            threads: self.run_args.threads.threads,
            ..Query::new(&self.query)
        };
        let started = Instant::now();
        let hits = index.search(
            &query,
            model.as_ref().map(IndexModel::embedder),
            reranker.as_ref().map(|reranker| reranker as &dyn Rerank),
        )?;
        let seconds = started.elapsed().as_secs_f64();
        if self.json {
            let about = json!({
                "query": self.query,
                "mode": mode.name(),
                "database": path.to_string_lossy(),
                "results": hits.iter().map(hit_json).collect::<Vec<Value>>(),
                "seconds": seconds,
            });
            let about = match &model {
                Some(model) => with_run_info(about, model.loaded()),
                None => about,
            };
            print(&about.to_string())?;
            return Ok(ExitCode::SUCCESS);
        }
        match hits.is_empty() {
            true => report.info("nothing was found"),
            false => print(&passages(&hits, Style::of_stdout()))?,
        }
        Ok(ExitCode::SUCCESS)
    }
}

/// The passages for a person: rank, place, heading and a snippet.
fn passages(hits: &[Hit], style: Style) -> String {
    let from = std::env::current_dir().ok();
    let width = hits.len().to_string().len();
    let passage = |(i, hit): (usize, &Hit)| {
        let heading = hit.heading.as_ref().or(hit.title.as_ref()).map(|heading| one_line(heading));
        let heading = heading.filter(|heading| !heading.is_empty()).map_or_else(String::new, |h| format!("  {h}"));
        let snippet = highlighted(&hit.snippet.text, &hit.snippet.highlights, style);
        let location = location_of(hit, from.as_deref());
        format!("{:>width$}  {location}{heading}\n{:width$}  {snippet}", i + 1, "")
    };
    hits.iter().enumerate().map(passage).collect::<Vec<_>>().join("\n\n")
}

#[cfg(test)]
mod tests {
    use super::*;
    use sconce_index::{Metadata, Ranks, Snippet, Unit};

    fn hit(path: &str, snippet: &str) -> Hit {
        Hit {
            chunk: 1,
            document: 1,
            path: path.into(),
            row: None,
            title: Some("Title".into()),
            heading: None,
            unit: Unit::Line,
            place: Some(3),
            range: 0..1,
            score: 1.0,
            ranks: Ranks::default(),
            text: snippet.into(),
            snippet: Snippet { text: snippet.into(), highlights: std::iter::once(4..7).collect(), range: 0..1 },
            metadata: Metadata::new(),
        }
    }

    #[test]
    fn passages_have_rank_place_heading_and_snippet() {
        let hits = [hit("/nowhere/a.md", "The cat sat."), hit("/nowhere/\x1b]0;x\x07b.md", "The \x1b[2Jmat.")];
        let want = "1  /nowhere/a.md:3  Title\n   The cat sat.\n\n2  /nowhere/b.md:3  Title\n   The ";
        let plain = passages(&hits, Style::Plain);
        assert!(plain.starts_with(want) && !plain.contains('\x1b'), "{plain}");
        let bold = passages(&hits[..1], Style::Bold);
        assert!(bold.ends_with("The \x1b[1mcat\x1b[0m sat."), "{bold}");
    }

    #[test]
    fn modes_have_the_names_of_the_flag() {
        let names: Vec<String> = ModeArg::value_variants().iter().map(|mode| mode.name()).collect();
        assert_eq!(names, ["hybrid", "dense", "bm25", "sparse", "multi-vector"]);
    }
}
