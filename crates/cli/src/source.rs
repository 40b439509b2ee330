//! Where the texts of a command come from, and where their results go.

use crate::Failure;
use crate::commands::with_run_info;
use crate::input::Text;
use crate::output::{Output, ResultNames, ResultsOf, TokenInfo, Writer};
use crate::report::Report;
use crate::shards::{ShardOutput, ShardRun};
use crate::window_runner::{ModelCall, Texts};
use sconce_engine::{Loaded, Outputs};
use serde_json::Value;
use std::process::ExitCode;

/// Where the texts of a command come from.
pub(crate) enum Source {
    /// Arguments, files or standard input, with one output.
    Texts(Box<Texts>),
    /// Shards of files, with an output each.
    Shards(Box<ShardRun>),
}

/// Where the results go, and the model that the summary describes.
pub(crate) struct ResultOutput<'a> {
    pub(crate) output: &'a Output,
    pub(crate) names: ResultNames,
    pub(crate) model: &'a dyn Loaded,
    /// Further fields of JSON output.
    pub(crate) about: Value,
    /// A flag that reads long texts whole.
    pub(crate) way_out: Option<&'static str>,
}

impl Source {
    /// Runs the model on every text and passes each result to `write`.
    pub(crate) fn write_results<T: Send + 'static>(
        self,
        report: &Report,
        result_output: ResultOutput<'_>,
        model_call: ModelCall<'_, impl Fn(&[Text]) -> Result<Outputs<T>, Failure> + Sync>,
        mut write: impl FnMut(&mut Writer, &Text, T, Option<TokenInfo>) -> Result<(), Failure>,
    ) -> Result<ExitCode, Failure> {
        let run = match self {
            Source::Texts(texts) => return (*texts).write_results(report, result_output, model_call, write),
            Source::Shards(run) => run,
        };
        let ResultOutput { names, model, way_out, .. } = result_output;
        let shard_output = ShardOutput { model, names, of: ResultsOf::Texts, way_out };
        run.texts(report, &shard_output, model_call, |writer, outputs: Outputs<T>, window| {
            write_window(writer, outputs, window, &mut write)
        })
    }
}

impl Texts {
    /// Writes the results of all texts to one output.
    fn write_results<T: Send + 'static>(
        mut self,
        report: &Report,
        result_output: ResultOutput<'_>,
        model_call: ModelCall<'_, impl Fn(&[Text]) -> Result<Outputs<T>, Failure> + Sync>,
        mut write: impl FnMut(&mut Writer, &Text, T, Option<TokenInfo>) -> Result<(), Failure>,
    ) -> Result<ExitCode, Failure> {
        let ResultOutput { output, names, model, about, way_out } = result_output;
        let mut writer = output.open(names, ResultsOf::Texts(std::mem::take(&mut self.columns)))?;
        let summary = self.run_windows(report, model_call, |outputs, window| {
            write_window(&mut writer, outputs, &window, &mut write)
        })?;
        writer.finish(&with_run_info(about, model))?;
        summary.report(report, model, way_out);
        Ok(ExitCode::SUCCESS)
    }
}

/// Writes the results of a window.
fn write_window<T>(
    writer: &mut Writer,
    outputs: Outputs<T>,
    window: &[Text],
    write: &mut impl FnMut(&mut Writer, &Text, T, Option<TokenInfo>) -> Result<(), Failure>,
) -> Result<(), Failure> {
    let Outputs { results, tokens, truncated } = outputs;
    for (i, (result, text)) in results.into_iter().zip(window).enumerate() {
        let truncated = truncated.binary_search(&i).is_ok();
        let info = TokenInfo { tokens: tokens[i], truncated, chunk: None };
        write(writer, text, result, Some(info))?;
    }
    writer.flush_stream()
}
