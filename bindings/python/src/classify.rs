//! Sequence classification.

use crate::array::Array;
use crate::call::call;
use crate::model::{Model, wrong_task};
use pyo3::prelude::*;
use sconce_engine::{Classifier, Loaded, RequestContext, Result, TaskModel, TextOrPair};

/// A text, or a pair of texts.
type Input = (String, Option<String>);

fn classifier(model: &TaskModel, context: &RequestContext, max_tokens: Option<usize>) -> Result<Classifier> {
    match model {
        TaskModel::Classify(classifier) => Ok(classifier.with_context(context).with_max_tokens(max_tokens)),
        _ => Err(wrong_task("classify")),
    }
}

fn inputs(texts: &[Input]) -> Vec<TextOrPair<'_>> {
    texts.iter().map(|(text, pair)| TextOrPair { text, pair: pair.as_deref() }).collect()
}

/// The labels of each text with their scores, best first.
#[pyfunction]
pub(crate) fn classify(
    py: Python<'_>,
    model: &Bound<'_, Model>,
    texts: Vec<Input>,
    raw: bool,
    max_tokens: Option<usize>,
) -> PyResult<Vec<Vec<(String, f32)>>> {
    let model = model.get().get(py)?;
    call(py, move |context| {
        let outputs = classifier(&model, context, max_tokens)?.classify(&inputs(&texts), raw)?;
        let labels = |all: Vec<sconce_engine::Label>| all.into_iter().map(|one| (one.label, one.score)).collect();
        Ok(outputs.results.into_iter().map(labels).collect())
    })
}

/// The logits, f32 `[texts, labels]`, in the order of the model's labels.
#[pyfunction]
pub(crate) fn logits(
    py: Python<'_>,
    model: &Bound<'_, Model>,
    texts: Vec<Input>,
    max_tokens: Option<usize>,
) -> PyResult<Array> {
    let model = model.get().get(py)?;
    call(py, move |context| {
        let classifier = classifier(&model, context, max_tokens)?;
        let outputs = classifier.logits(&inputs(&texts))?;
        Ok(Array::rows(outputs.results.concat(), classifier.labels().len()))
    })
}
