//! `sconce generate --shards`: answers to the prompts of files, in shards.

use super::generator::{Generator, RunningGeneration};
use super::results::{self, PromptResult};
use super::{Generate, QUEUED_PER_RUNNING};
use crate::Failure;
use crate::input::{Content, Text};
use crate::output::{ResultNames, ResultsOf};
use crate::report::Report;
use crate::shards::{OpenShard, ShardOutput, ShardRequest, ShardRow};
use crate::window_runner::Total;
use sconce_engine::{Error, ErrorClass, RequestContext};
use serde_json::{Map, Value, json};
use std::collections::VecDeque;
use std::process::ExitCode;

/// Rows of a shard: an answer takes much longer than an embedding.
const SHARD_ROWS: u64 = 1000;

/// A prompt that runs, or could not begin.
struct RunningRow {
    text: Text,
    number: u64,
    begun: Result<(RunningGeneration, Option<u64>), Failure>,
}

impl Generate {
    /// Answers the prompts of all shards. A prompt that fails is a bad row.
    pub(super) fn run_shards(&self, report: &Report) -> Result<ExitCode, Failure> {
        self.output.check_unused()?;
        let Some(run) = self.shards.open(self.shard_request())? else { return Err("--shards is missing".into()) };
        let context = RequestContext::default();
        let model = Generator::load(self, None, report)?.with_context(&context);
        let column = Some(results::COLUMNS);
        let names = ResultNames { many: "results", one: None, fields: &[], array: None, column };
        let output = ShardOutput { model: model.loaded(), names, of: ResultsOf::Others, way_out: None };
        run.each(report, &output, &context, |open, _, total| self.answer_shard(&model, open, total))
    }

    fn shard_request(&self) -> ShardRequest<'_> {
        let (options, cache) = (self.options, &self.model.kv_cache);
        let own = json!({
            "-n": options.n,
            "--beams": options.beams,
            "--logprobs": options.logprobs,
            "--echo": options.echo,
            "--ignore-eos": options.ignore_eos,
            "--context": cache.context,
            "--kv-dtype": cache.kv_dtype.map(|format| format.to_string()),
        });
        let mut all: Map<String, Value> = self.sampling.explicit();
        all.extend(own.as_object().cloned().unwrap_or_default());
        ShardRequest {
            task: "generate",
            model: &self.model.model,
            run_args: &self.model.run_args,
            options: Value::Object(all),
            names: self.input.names(),
            field: self.input.field(),
            pair_field: None,
            rows: Some(SHARD_ROWS),
        }
    }

    fn answer_shard(&self, model: &Generator, open: &mut OpenShard<'_>, total: &mut Total) -> Result<(), Failure> {
        let mut rows = open.rows();
        let ahead = model.loaded().plan().most_sequences.saturating_mul(QUEUED_PER_RUNNING);
        let mut running: VecDeque<RunningRow> = VecDeque::new();
        let mut index = 0;
        loop {
            while running.len() < ahead
                && let Some(row) = rows.next()
            {
                let ShardRow { record, number } = row?;
                // A prompt with options has no row, but its columns may be kept.
                let object = match &record.content {
                    Content::Row(row) => Some(row.clone()),
                    Content::Text(_) => None,
                };
                let (origin, bytes) = (record.origin.clone(), record.bytes);
                let text = Text { text: String::new(), object, origin, number: Some(number), bytes };
                let begun = self.input.prompt(record, true).and_then(|prompt| {
                    let seed = self.sampling.seed.unwrap_or(0).wrapping_add(number);
                    model.begin(&model.with_seed(prompt, self, seed), self)
                });
                running.push_back(RunningRow { text, number, begun });
            }
            let Some(RunningRow { text, number, begun }) = running.pop_front() else { return Ok(()) };
            open.check()?;
            match begun.and_then(|(running, seed)| model.wait(running, seed)) {
                Ok(answers) => {
                    let tokens = answers.read + answers.wrote;
                    open.count(1, tokens as u64, u64::from(answers.truncated));
                    total.summary.tokens += tokens;
                    let result = PromptResult { index, id: None, origin: &text.origin, outcome: Ok(answers) };
                    open.writer.write(&text, &result, None)?;
                    index += 1;
                }
                Err(why) if is_of_prompt(&why) => open.add_bad(number, &text.origin, &why.to_string()),
                Err(why) => return Err(why),
            }
            total.summary.texts += 1;
            let rate = total.summary.rate();
            total.bar.inc(text.bytes);
            total.bar.set_message(format!("{} prompts, {rate:.1}/s", total.summary.texts));
        }
    }
}

/// Whether a prompt is the cause of an error, and not the device or the model.
fn is_of_prompt(why: &Failure) -> bool {
    why.downcast_ref::<Error>().is_none_or(|e| e.class() == ErrorClass::Input)
}
