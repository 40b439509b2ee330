//! Sequence-to-sequence models.

use crate::call::{Cancellation, call, call_in, parse};
use crate::llm::Sampling;
use crate::model::{Model, wrong_task};
use crate::stream::Stream;
use pyo3::prelude::*;
use sconce_engine::{
    BeamSearch, EarlyStopping, GenerationParams, Loaded, Result, Search, Seq2Seq, Seq2SeqOptions, TaskModel,
};
use serde::Deserialize;
use serde_json::{Value, json};

/// Options of a call, a JSON object. Without `num_beams` and `sampling`, the search is that of the
/// model's files.
#[derive(Default, Deserialize)]
#[serde(default, deny_unknown_fields)]
struct Options {
    num_beams: Option<usize>,
    length_penalty: Option<f32>,
    early_stopping: Option<bool>,
    num_return_sequences: Option<usize>,
    sampling: Option<Sampling>,
    max_tokens: Option<usize>,
}

impl Options {
    fn options(self, model: &Seq2Seq) -> Seq2SeqOptions {
        let search = match (self.num_beams, self.sampling) {
            (Some(num_beams), _) if num_beams > 1 => {
                let own = match model.search() {
                    Search::Beams(own) => own.clone(),
                    Search::Sample(_) => BeamSearch::default(),
                };
                let early = |stop| if stop { EarlyStopping::Yes } else { EarlyStopping::No };
                Some(Search::Beams(BeamSearch {
                    num_beams,
                    length_penalty: self.length_penalty.unwrap_or(own.length_penalty),
                    early_stopping: self.early_stopping.map_or(own.early_stopping, early),
                    num_return_sequences: self.num_return_sequences.unwrap_or(own.num_return_sequences),
                }))
            }
            (Some(_), None) => Some(Search::greedy()),
            (_, Some(sampling)) => {
                let own = match model.search() {
                    Search::Sample(own) => own.clone(),
                    Search::Beams(_) => GenerationParams::default(),
                };
                Some(Search::Sample(sampling.apply(own)))
            }
            (None, None) => None,
        };
        Seq2SeqOptions::default().with_search(search).with_max_tokens(self.max_tokens)
    }
}

fn seq2seq_model(model: &TaskModel) -> Result<&Seq2Seq> {
    match model {
        TaskModel::Seq2Seq(model) => Ok(model),
        _ => Err(wrong_task("seq2seq")),
    }
}

/// The answers to each text, a JSON list of lists. `cancellation` ends the call from another
/// thread.
#[pyfunction]
pub(crate) fn seq2seq(
    py: Python<'_>,
    model: &Bound<'_, Model>,
    texts: Vec<String>,
    options: String,
    cancellation: Option<&Bound<'_, Cancellation>>,
) -> PyResult<String> {
    let model = model.get().get(py)?;
    let context = cancellation.map_or_else(Default::default, |cancellation| cancellation.get().0.clone());
    call_in(py, context, move |context| {
        let model = seq2seq_model(&model)?.with_context(context);
        let all = model.generate(&texts, &parse::<Options>(&options)?.options(&model))?;
        let answers = all.iter().map(|answers| {
            let answer = |a: &sconce_engine::Seq2SeqAnswer| json!({"text": a.text, "ids": a.ids, "score": a.score});
            Value::Array(answers.answers.iter().map(answer).collect())
        });
        Ok(Value::Array(answers.collect()).to_string())
    })
}

/// Streams the answer to one text.
#[pyfunction]
pub(crate) fn seq2seq_stream(
    py: Python<'_>,
    model: &Bound<'_, Model>,
    text: String,
    options: String,
) -> PyResult<Stream> {
    let model = model.get().get(py)?;
    let events = call(py, move |_| {
        let model = seq2seq_model(&model)?;
        model.stream(&text, &parse::<Options>(&options)?.options(model))
    })?;
    Ok(Stream::new(events))
}
