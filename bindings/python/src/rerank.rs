//! Reranking, and the tokens of pairs.

use crate::array::Array;
use crate::call::call;
use crate::model::{Model, wrong_task};
use pyo3::prelude::*;
use sconce_engine::{Loaded, RankPooling, TaskModel, TextOrPair};

/// The logit of each pair of a query and a document.
#[pyfunction]
pub(crate) fn rerank_logits(
    py: Python<'_>,
    model: &Bound<'_, Model>,
    pairs: Vec<(String, String)>,
    max_tokens: Option<usize>,
) -> PyResult<Array> {
    let model = model.get().get(py)?;
    call(py, move |context| {
        let TaskModel::Rerank(reranker) = &*model else { return Err(wrong_task("rerank")) };
        let reranker = reranker.with_context(context).with_max_tokens(max_tokens);
        let pairs: Vec<_> = pairs.iter().map(|(query, document)| (query.as_str(), document.as_str())).collect();
        Ok(Array::list(reranker.logits(&pairs, RankPooling::Pooler)?.results))
    })
}

/// The number of tokens of each pair, truncated as for the model.
#[pyfunction]
pub(crate) fn count_pair_tokens(
    py: Python<'_>,
    model: &Bound<'_, Model>,
    pairs: Vec<(String, String)>,
    max_tokens: Option<usize>,
) -> PyResult<Vec<usize>> {
    let model = model.get().get(py)?;
    call(py, move |context| {
        let pairs: Vec<_> = pairs.iter().map(|(query, document)| (query.as_str(), document.as_str())).collect();
        match &*model {
            TaskModel::Rerank(reranker) => {
                reranker.with_context(context).with_max_tokens(max_tokens).count_tokens(&pairs)
            }
            TaskModel::Classify(classifier) => {
                let pairs: Vec<_> = pairs.into_iter().map(TextOrPair::from).collect();
                classifier.with_context(context).with_max_tokens(max_tokens).count_tokens(&pairs)
            }
            _ => Err(wrong_task("rerank")),
        }
    })
}
