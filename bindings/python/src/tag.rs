//! Token classification.

use crate::call::call;
use crate::model::{Model, wrong_task};
use pyo3::prelude::*;
use sconce_engine::{Entity, GlinerOptions, Loaded, TagOptions, TaskModel};
use serde_json::{Value, json};

/// The entities of each text, a JSON list of lists.
#[pyfunction]
pub(crate) fn tag(
    py: Python<'_>,
    model: &Bound<'_, Model>,
    texts: Vec<String>,
    strategy: String,
    threshold: f32,
    stride: Option<usize>,
) -> PyResult<String> {
    let model = model.get().get(py)?;
    call(py, move |context| {
        let TaskModel::Tag(tagger) = &*model else { return Err(wrong_task("tag")) };
        let options =
            TagOptions::default().with_strategy(strategy.parse()?).with_threshold(threshold).with_stride(stride);
        let outputs = tagger.with_context(context).tag_with(&texts, &options)?;
        let entity = |e: &Entity| json!({"label": e.label, "score": e.score, "index": e.index, "word": e.word, "start": e.start, "end": e.end});
        let rows = outputs.results.iter().map(|all| Value::Array(all.iter().map(entity).collect()));
        Ok(Value::Array(rows.collect()).to_string())
    })
}

/// The entities of each text that have one of the labels, a JSON list of lists.
#[pyfunction]
pub(crate) fn gliner_tag(
    py: Python<'_>,
    model: &Bound<'_, Model>,
    texts: Vec<String>,
    labels: Vec<String>,
    options: (f32, bool, bool),
) -> PyResult<String> {
    let model = model.get().get(py)?;
    call(py, move |context| {
        let TaskModel::Gliner(gliner) = &*model else { return Err(wrong_task("gliner")) };
        let (threshold, nested, multi_label) = options;
        let options = GlinerOptions { threshold, nested, multi_label };
        let outputs = gliner.with_context(context).tag(&texts, &labels, &options)?;
        let entity =
            |e: &Entity| json!({"start": e.start, "end": e.end, "text": e.word, "label": e.label, "score": e.score});
        let rows = outputs.results.iter().map(|all| Value::Array(all.iter().map(entity).collect()));
        Ok(Value::Array(rows.collect()).to_string())
    })
}
