//! Multi-vector embeddings.

use crate::array::Array;
use crate::call::call;
use crate::model::{Model, wrong_task};
use pyo3::prelude::*;
use sconce_engine::{Loaded, TaskModel};

/// A vector per token, f32 `[tokens, dimension]` for each text.
#[pyfunction]
pub(crate) fn embed_multi(
    py: Python<'_>,
    model: &Bound<'_, Model>,
    texts: Vec<String>,
    is_query: bool,
    max_tokens: Option<usize>,
) -> PyResult<Vec<Array>> {
    let model = model.get().get(py)?;
    call(py, move |context| {
        let TaskModel::Multi(encoder) = &*model else { return Err(wrong_task("multi")) };
        let encoder = encoder.with_context(context).with_max_tokens(max_tokens);
        let outputs = if is_query { encoder.queries(&texts)? } else { encoder.documents(&texts)? };
        Ok(outputs.results.into_iter().map(|rows| Array::rows(rows.values, rows.dimension)).collect())
    })
}
