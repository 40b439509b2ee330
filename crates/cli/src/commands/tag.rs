//! `sconce tag`: names, places and whatever else a model finds in texts.

use crate::Failure;
use crate::args::TaskModel;
use crate::input::{Input, Text};
use crate::output::{Answers, Cell, Output};
use crate::report::Report;
use crate::work::{Answering, Asking, Texts, words};
use clap::{Args, ValueEnum};
use sconce_engine::Loaded;
use sconce_engine::{Entity, RequestContext, Strategy, Tagger};
use serde::{Serialize, Serializer};
use serde_json::json;
use std::process::ExitCode;

/// Find names, places and the like in texts.
///
/// Places are counted in characters, the first being 0.
#[derive(Args)]
#[command(after_help = "Examples:\n  \
    sconce tag -m dslim/bert-base-NER \"Anna Lindqvist lives in Uppsala.\"\n  \
    sconce tag -m dslim/bert-base-NER -f letters.txt --aggregation first --threshold 0.8 -o found.jsonl")]
pub(crate) struct Tag {
    #[command(flatten)]
    input: Input,
    #[command(flatten)]
    model: TaskModel,
    #[command(flatten)]
    output: Output,
    /// How tokens that belong together become one.
    #[arg(long, value_enum, value_name = "HOW", default_value_t)]
    aggregation: Aggregation,
    /// Only what scores X at least.
    #[arg(long, value_name = "X", default_value_t = 0.0)]
    threshold: f32,
}

#[derive(Clone, Copy, Default, ValueEnum)]
enum Aggregation {
    /// Every token by itself, with its full label.
    None,
    /// Neighbours with the same label.
    #[default]
    Simple,
    /// Words; each has the label of its first token.
    First,
    /// Words; each has the label with the highest mean score.
    Average,
    /// Words; each has the label of its surest token.
    Max,
}

impl Tag {
    pub(crate) fn run(self, report: &Report) -> Result<ExitCode, Failure> {
        self.output.check(false)?;
        let texts = Texts::open(&self.input)?;
        let caller = RequestContext::default();
        let tagger = self.model.load(report, Tagger::load)?.with_context(&caller);
        let strategy = match self.aggregation {
            Aggregation::None => Strategy::None,
            Aggregation::Simple => Strategy::Simple,
            Aggregation::First => Strategy::First,
            Aggregation::Average => Strategy::Average,
            Aggregation::Max => Strategy::Max,
        };
        let says_where = !self.input.is_one();
        let ask = |window: &[Text]| Ok(tagger.tag(&words(window), strategy, self.threshold)?);
        let answering = Answering {
            output: &self.output,
            answers: Answers { many: "results", one: Some("entities"), array: None },
            model: &tagger,
            about: json!({"labels": tagger.labels()}),
        };
        texts.answer(report, answering, Asking { caller: &caller, ask }, |writer, text, entities, seen| {
            let found = entities.iter().map(|e| Found { entity: e, text: slice(&text.text, e) }).collect();
            writer.write(text, &Entities { found, says_where }, seen)
        })
    }
}

/// The text's own spelling of an entity.
fn slice<'a>(text: &'a str, e: &Entity) -> &'a str {
    let byte = |n: usize| text.char_indices().nth(n).map_or(text.len(), |(at, _)| at);
    text.get(byte(e.start)..byte(e.end)).unwrap_or_default()
}

struct Entities<'a> {
    found: Vec<Found<'a>>,
    says_where: bool,
}

struct Found<'a> {
    entity: &'a Entity,
    text: &'a str,
}

impl Serialize for Entities<'_> {
    fn serialize<S: Serializer>(&self, s: S) -> Result<S::Ok, S::Error> {
        s.collect_seq(&self.found)
    }
}

impl Serialize for Found<'_> {
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

impl Cell for Entities<'_> {
    fn lines(&self, of: &Text) -> String {
        let origin = if self.says_where { format!("{}: ", of.origin) } else { String::new() };
        let line = |Found { entity: e, text }: &Found| {
            let text = text.replace(char::is_control, " ");
            format!("{origin}{}..{} {} {:.4} {text}\n", e.start, e.end, e.label, e.score)
        };
        self.found.iter().map(line).collect()
    }
}
