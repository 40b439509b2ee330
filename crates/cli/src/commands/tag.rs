//! `sconce tag`: token classification (named entity recognition).

use crate::Failure;
use crate::args::TaskModel;
use crate::input::{Input, Text};
use crate::output::{Output, ResultNames, ResultRow};
use crate::report::Report;
use crate::shards::{ShardArgs, ShardRequest};
use crate::source::{ResultOutput, Source};
use crate::window_runner::{ModelCall, Texts, strings};
use clap::{Args, ValueEnum};
use sconce_engine::Loaded;
use sconce_engine::{Entity, Gliner, GlinerOptions, RequestContext, Strategy, TagOptions, Tagger};
use serde::{Serialize, Serializer};
use serde_json::json;
use std::process::ExitCode;

/// Names of the results: entities with scores and offsets.
const ENTITIES: ResultNames = ResultNames {
    many: "results",
    one: Some("entities"),
    fields: &[],
    array: None,
    column: Some(
        "required group entities (LIST) { repeated group list { required group element {
            required binary label (STRING); required float score; optional int64 index;
            required binary word (STRING); required binary text (STRING);
            required int64 start; required int64 end; } } }",
    ),
};

/// Find named entities in texts (token classification, NER). Models for this have labels of their
/// own, except GLiNER's, which find entities of any --labels.
///
/// Offsets count characters from 0.
#[derive(Args)]
#[command(after_help = "Examples:\n  \
    sconce tag -m dslim/bert-base-NER \"Anna Lindqvist lives in Uppsala.\"\n  \
    sconce tag -m dslim/bert-base-NER -f letters.txt --aggregation first --threshold 0.8 -o found.jsonl\n  \
    sconce tag -m dslim/bert-base-NER -f books.jsonl --stride 128 -o found.jsonl\n  \
    sconce tag -m ./gliner-small --labels person,place,drug \"Anna was given aspirin in Uppsala.\"")]
pub(crate) struct Tag {
    #[command(flatten)]
    input: Input,
    #[command(flatten)]
    model: TaskModel,
    #[command(flatten)]
    output: Output,
    #[command(flatten)]
    shards: ShardArgs,
    /// How to merge tokens into entities.
    #[arg(long, value_enum, value_name = "STRATEGY", default_value_t)]
    aggregation: Aggregation,
    /// Print only entities with a score of at least X; with --labels above X, by default 0.5.
    #[arg(long, value_name = "X")]
    threshold: Option<f32>,
    /// Read texts that are longer than the model in windows that share N tokens, instead of
    /// truncating them. Where entities of two windows overlap, the longer one stays.
    #[arg(long, value_name = "N", conflicts_with = "labels")]
    stride: Option<usize>,
    /// Labels of the entities to find, separated by commas, for GLiNER models.
    #[arg(long, value_name = "LABELS", value_delimiter = ',', conflicts_with = "aggregation")]
    labels: Vec<String>,
    /// With --labels: an entity may lie inside another one.
    #[arg(long, requires = "labels")]
    nested: bool,
    /// With --labels: the same words may have several labels.
    #[arg(long, requires = "labels")]
    multi_label: bool,
}

#[derive(Clone, Copy, Default, ValueEnum)]
enum Aggregation {
    /// Every token by itself, with its full label.
    None,
    /// Adjacent tokens with the same label.
    #[default]
    Simple,
    /// Words; each has the label of its first token.
    First,
    /// Words; each has the label with the highest mean score.
    Average,
    /// Words; each has the label of its highest-scoring token.
    Max,
}

impl Tag {
    pub(crate) fn run(self, report: &Report) -> Result<ExitCode, Failure> {
        if !self.labels.is_empty() {
            return self.run_with_labels(report);
        }
        let source = self.open()?;
        let context = RequestContext::default();
        let tagger = self.model.load(report, Tagger::load)?.with_context(&context);
        let strategy = match self.aggregation {
            Aggregation::None => Strategy::None,
            Aggregation::Simple => Strategy::Simple,
            Aggregation::First => Strategy::First,
            Aggregation::Average => Strategy::Average,
            Aggregation::Max => Strategy::Max,
        };
        let show_origin = !self.input.is_one();
        let options = TagOptions::default()
            .with_strategy(strategy)
            .with_threshold(self.threshold.unwrap_or(0.0))
            .with_stride(self.stride);
        let run = |window: &[Text]| Ok(tagger.tag_with(&strings(window), &options)?);
        let result_output = ResultOutput {
            output: &self.output,
            names: ENTITIES,
            model: &tagger,
            about: json!({"labels": tagger.labels()}),
            way_out: self.stride.is_none().then_some("--stride"),
        };
        source.write_results(
            report,
            result_output,
            ModelCall { context: &context, run },
            |writer, text, entities, info| writer.write(text, &Entities::of(&entities, text, show_origin), info),
        )
    }

    /// Opens the input, before the model is loaded.
    fn open(&self) -> Result<Source, Failure> {
        self.output.check(false, true)?;
        if self.shards.is_on() {
            self.output.check_unused()?;
        }
        let aggregation = self.aggregation.to_possible_value();
        let options = json!({
            "--aggregation": aggregation.as_ref().map(|value| value.get_name()),
            "--threshold": self.threshold,
            "--stride": self.stride,
            "--labels": self.labels,
            "--nested": self.nested,
            "--multi-label": self.multi_label,
        });
        let request = ShardRequest::of("tag", (self.model.model.as_str(), &self.model.run_args), &self.input, options);
        Ok(match self.shards.open(request)? {
            Some(run) => Source::Shards(Box::new(run)),
            None => Source::Texts(Box::new(Texts::open_for(&self.input, &self.output, None)?)),
        })
    }

    /// Entities of the labels given, by a GLiNER model.
    fn run_with_labels(self, report: &Report) -> Result<ExitCode, Failure> {
        let source = self.open()?;
        let context = RequestContext::default();
        let labels: Vec<&str> = self.labels.iter().map(|label| label.trim()).collect();
        if labels.contains(&"") {
            return Err(format!("--labels {} has an empty label", self.labels.join(",")).into());
        }
        let model = self.model.load(report, Gliner::load)?.with_context(&context);
        let threshold = self.threshold.unwrap_or(GlinerOptions::default().threshold);
        let options = GlinerOptions { threshold, nested: self.nested, multi_label: self.multi_label };
        let show_origin = !self.input.is_one();
        let run = |window: &[Text]| Ok(model.tag(&strings(window), &labels, &options)?);
        let result_output = ResultOutput {
            output: &self.output,
            names: ENTITIES,
            model: &model,
            about: json!({"labels": labels}),
            way_out: None,
        };
        source.write_results(
            report,
            result_output,
            ModelCall { context: &context, run },
            |writer, text, entities, info| writer.write(text, &Entities::of(&entities, text, show_origin), info),
        )
    }
}

struct Entities<'a> {
    found: Vec<TaggedText<'a>>,
    show_origin: bool,
}

impl<'a> Entities<'a> {
    fn of(entities: &'a [Entity], of: &'a Text, show_origin: bool) -> Entities<'a> {
        // The byte of each character, looked up for all entities of a text that may be a book.
        let bytes = || of.text.char_indices().map(|(at, _)| at).chain([of.text.len()]);
        let bytes: Vec<usize> = if entities.is_empty() { Vec::new() } else { bytes().collect() };
        let byte = |n: usize| bytes.get(n).copied().unwrap_or(of.text.len());
        let spelled = |e: &Entity| of.text.get(byte(e.start)..byte(e.end)).unwrap_or_default();
        let found = entities.iter().map(|e| TaggedText { entity: e, text: spelled(e) }).collect();
        Entities { found, show_origin }
    }
}

struct TaggedText<'a> {
    entity: &'a Entity,
    /// The entity as it is spelled in the text.
    text: &'a str,
}

impl Serialize for Entities<'_> {
    fn serialize<S: Serializer>(&self, s: S) -> Result<S::Ok, S::Error> {
        s.collect_seq(&self.found)
    }
}

impl Serialize for TaggedText<'_> {
    fn serialize<S: Serializer>(&self, s: S) -> Result<S::Ok, S::Error> {
        #[derive(Serialize)]
        struct Fields<'a> {
            label: &'a str,
            score: f32,
            #[serde(skip_serializing_if = "Option::is_none")]
            index: Option<usize>,
            word: &'a str,
            text: &'a str,
            start: usize,
            end: usize,
        }
        let Entity { label, score, index, word, start, end } = self.entity;
        Fields { label, score: *score, index: *index, word, text: self.text, start: *start, end: *end }.serialize(s)
    }
}

impl ResultRow for Entities<'_> {
    fn lines(&self, of: &Text) -> String {
        let origin = if self.show_origin { format!("{}: ", of.origin) } else { String::new() };
        let line = |TaggedText { entity: e, text }: &TaggedText| {
            let text = text.replace(char::is_control, " ");
            format!("{origin}{}..{} {} {:.4} {text}\n", e.start, e.end, e.label, e.score)
        };
        self.found.iter().map(line).collect()
    }
}
