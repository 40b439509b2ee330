//! `sconce classify`: labels for texts or pairs of texts.

use crate::Failure;
use crate::args::TaskModel;
use crate::input::{Input, NO_FIELDS, Text};
use crate::output::{Output, ResultNames, ResultRow};
use crate::report::Report;
use crate::shards::{ShardArgs, ShardRequest};
use crate::source::{ResultOutput, Source};
use crate::window_runner::{ModelCall, Texts};
use clap::Args;
use sconce_engine::Loaded;
use sconce_engine::{Classifier, Label, RequestContext, TextOrPair};
use serde::{Serialize, Serializer};
use serde_json::json;
use std::process::ExitCode;

/// Names of the results: labels with scores.
pub(crate) const LABELS: ResultNames = ResultNames {
    many: "results",
    one: Some("labels"),
    fields: &[],
    array: None,
    column: Some(
        "required group labels (LIST) { repeated group list { required group element {
            required binary label (STRING); required float score; } } }",
    ),
};

/// Classify texts, or pairs of texts.
#[derive(Args)]
#[command(after_help = "Examples:\n  \
    sconce classify -m distilbert/distilbert-base-uncased-finetuned-sst-2-english \"What a lovely day.\"\n  \
    sconce classify -m cross-encoder/nli-deberta-v3-base \"A man eats.\" --pair \"Somebody eats.\"\n  \
    sconce classify -m MODEL -f pairs.jsonl --field premise --pair-field hypothesis -o labelled.jsonl --top-k 1\n  \
    sconce classify -m MODEL --shards labels/ --keep id reviews/*.parquet")]
pub(crate) struct Classify {
    #[command(flatten)]
    input: Input,
    #[command(flatten)]
    model: TaskModel,
    #[command(flatten)]
    output: Output,
    #[command(flatten)]
    shards: ShardArgs,
    /// Second text of every pair, for models that read two.
    #[arg(long, value_name = "TEXT", conflicts_with = "pair_field")]
    pair: Option<String>,
    /// Field that holds the second text of each row.
    #[arg(long, value_name = "NAME")]
    pair_field: Option<String>,
    /// Print the model's raw scores (logits).
    #[arg(long)]
    raw: bool,
    /// Print only the K best labels of each text.
    #[arg(long, value_name = "K")]
    top_k: Option<usize>,
    /// Print only labels with a score of at least X.
    #[arg(long, value_name = "X", allow_negative_numbers = true)]
    threshold: Option<f32>,
}

impl Classify {
    pub(crate) fn run(self, report: &Report) -> Result<ExitCode, Failure> {
        self.output.check(false, true)?;
        if self.shards.is_on() {
            self.output.check_unused()?;
        } else if self.pair_field.is_some() && self.input.has_arguments() {
            return Err(NO_FIELDS.into());
        }
        let source = match self.shards.open(self.shard_request())? {
            Some(run) => Source::Shards(Box::new(run)),
            None => Source::Texts(Box::new(Texts::open_for(&self.input, &self.output, self.pair_field.as_deref())?)),
        };
        let context = RequestContext::default();
        let classifier = self.model.load(report, Classifier::load)?.with_context(&context);
        let run = |window: &[Text]| {
            let pairs = window.iter().map(|t| Ok(TextOrPair { text: &t.text, pair: self.pair_text(t)? }));
            let pairs = pairs.collect::<Result<Vec<_>, Failure>>()?;
            Ok(classifier.classify(&pairs, self.raw)?)
        };
        let result_output = ResultOutput {
            output: &self.output,
            names: LABELS,
            model: &classifier,
            about: json!({"labels": classifier.labels()}),
            way_out: None,
        };
        source.write_results(
            report,
            result_output,
            ModelCall { context: &context, run },
            |writer, text, mut labels, info| {
                labels.retain(|l| self.threshold.is_none_or(|x| l.score >= x));
                labels.truncate(self.top_k.unwrap_or(usize::MAX));
                writer.write(text, &Labels(labels), info)
            },
        )
    }

    fn shard_request(&self) -> ShardRequest<'_> {
        let options = json!({
            "--pair": self.pair,
            "--pair-field": self.pair_field,
            "--raw": self.raw,
            "--top-k": self.top_k,
            "--threshold": self.threshold,
        });
        ShardRequest {
            pair_field: self.pair_field.as_deref(),
            ..ShardRequest::of("classify", (self.model.model.as_str(), &self.model.run_args), &self.input, options)
        }
    }

    fn pair_text<'a>(&'a self, text: &'a Text) -> Result<Option<&'a str>, Failure> {
        match &self.pair_field {
            Some(field) => text.field(field, "--pair-field").map(Some),
            None => Ok(self.pair.as_deref()),
        }
    }
}

/// Labels with their scores, the best first.
pub(crate) struct Labels(pub(crate) Vec<Label>);

#[derive(Serialize)]
struct Scored<'a> {
    label: &'a str,
    score: f32,
}

impl Serialize for Labels {
    fn serialize<S: Serializer>(&self, s: S) -> Result<S::Ok, S::Error> {
        s.collect_seq(self.0.iter().map(|l| Scored { label: &l.label, score: l.score }))
    }
}

impl ResultRow for Labels {
    /// One line per text.
    fn lines(&self, of: &Text) -> String {
        let labels: Vec<String> = self.0.iter().map(|l| format!("{} {:.4}", l.label, l.score)).collect();
        format!("{}  | {}\n", labels.join("  "), of.preview())
    }
}
