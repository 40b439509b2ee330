//! Sparse embeddings.

use crate::array::Array;
use crate::call::{call, detached};
use crate::model::{Model, wrong_task};
use pyo3::prelude::*;
use sconce_engine::{Loaded, Prompt, Route, TaskModel, TextOrTokens};

/// Sparse embeddings as a CSR matrix: where each row ends, token ids, weights.
#[pyfunction]
pub(crate) fn embed_sparse(
    py: Python<'_>,
    model: &Bound<'_, Model>,
    texts: Vec<String>,
    max_tokens: Option<usize>,
    route: Option<String>,
) -> PyResult<(Array, Array, Array)> {
    let model = model.get().get(py)?;
    call(py, move |context| {
        let TaskModel::Sparse(encoder) = &*model else { return Err(wrong_task("sparse")) };
        let route = match route.as_deref() {
            Some("query") => Route::Query,
            Some("document") => Route::Document,
            _ => Route::Default,
        };
        let encoder = encoder.with_context(context).with_max_tokens(max_tokens);
        let inputs: Vec<_> = texts.iter().map(|text| TextOrTokens::Text(text)).collect();
        // The texts have their prompts already.
        let rows = encoder.embed_inputs_with(&inputs, route, &Prompt::Text(String::new()))?.results;
        let mut starts = vec![0];
        let (mut ids, mut weights) = (Vec::new(), Vec::new());
        for row in rows {
            ids.extend(row.ids.into_iter().map(i64::from));
            weights.extend(row.weights);
            starts.push(ids.len() as i64);
        }
        Ok((Array::indices(starts), Array::indices(ids), Array::list(weights)))
    })
}

/// The tokens of ids; `None` for an id outside of the vocabulary.
#[pyfunction]
pub(crate) fn sparse_tokens(py: Python<'_>, model: &Bound<'_, Model>, ids: Vec<u32>) -> PyResult<Vec<Option<String>>> {
    let model = model.get().get(py)?;
    detached(py, || match &*model {
        TaskModel::Sparse(encoder) => Ok(ids.into_iter().map(|id| encoder.token(id)).collect()),
        _ => Err(wrong_task("sparse")),
    })
}
