//! Dense embeddings.

use crate::array::{Array, floats};
use crate::call::{call, detached, parse};
use crate::model::{Model, wrong_task};
use pyo3::prelude::*;
use sconce_engine::{
    EmbedOptions, Embedder, Embeddings, Loaded, Pooling, Precision, Prompt, Ranges, RequestContext, Result, TaskModel,
    TextOrTokens,
};
use serde::Deserialize;

/// Options of a call, a JSON object.
#[derive(Default, Deserialize)]
#[serde(default, deny_unknown_fields)]
struct Options {
    /// The text before each input; the model's default prompt by default.
    prompt: Option<String>,
    normalize: Option<bool>,
    dimensions: Option<usize>,
    pooling: Option<String>,
    task: Option<String>,
    max_tokens: Option<usize>,
}

impl Options {
    fn prompt(&self) -> Prompt {
        self.prompt.clone().map_or(Prompt::Default, Prompt::Text)
    }
}

fn embedder(model: &TaskModel, context: &RequestContext, max_tokens: Option<usize>) -> Result<Embedder> {
    match model {
        TaskModel::Embed(embedder) => Ok(embedder.with_context(context).with_max_tokens(max_tokens)),
        _ => Err(wrong_task("embed")),
    }
}

/// Embeddings, f32 `[texts, dimension]`.
#[pyfunction]
pub(crate) fn embed(py: Python<'_>, model: &Bound<'_, Model>, texts: Vec<String>, options: String) -> PyResult<Array> {
    let model = model.get().get(py)?;
    call(py, move |context| {
        let options: Options = parse(&options)?;
        let pooling: Option<Pooling> = options.pooling.as_ref().map(|pooling| pooling.parse()).transpose()?;
        let inputs: Vec<_> = texts.iter().map(|text| TextOrTokens::Text(text)).collect();
        let embed_options = EmbedOptions::default()
            .with_prompt(options.prompt())
            .with_normalize(options.normalize)
            .with_dimensions(options.dimensions)
            .with_pooling(pooling)
            .with_task(options.task);
        let embeddings = embedder(&model, context, options.max_tokens)?.embed_with(&inputs, &embed_options)?;
        Ok(Array::rows(embeddings.values, embeddings.dimension))
    })
}

/// The last hidden state of every token, f32 `[tokens, hidden]` for each text.
#[pyfunction]
pub(crate) fn embed_tokens(
    py: Python<'_>,
    model: &Bound<'_, Model>,
    texts: Vec<String>,
    options: String,
) -> PyResult<Vec<Array>> {
    let model = model.get().get(py)?;
    call(py, move |context| {
        let options: Options = parse(&options)?;
        let inputs: Vec<_> = texts.iter().map(|text| TextOrTokens::Text(text)).collect();
        let outputs = embedder(&model, context, options.max_tokens)?.embed_all(&inputs, &options.prompt())?;
        Ok(outputs.results.into_iter().map(|rows| Array::rows(rows.values, rows.dimension)).collect())
    })
}

/// Quantizes embeddings, given as the bytes of f32 numbers. `ranges` are the lowest and the highest
/// number of each dimension, for int8 and uint8.
#[pyfunction]
pub(crate) fn quantize(
    py: Python<'_>,
    values: &[u8],
    dimension: usize,
    precision: &str,
    ranges: Option<(Vec<f32>, Vec<f32>)>,
) -> PyResult<Array> {
    detached(py, || {
        let embeddings = Embeddings { values: floats(values), dimension, ..Embeddings::default() };
        let ranges = ranges.map(|(low, high)| Ranges::new(low, high)).transpose()?;
        let quantized = embeddings.quantize(precision.parse::<Precision>()?, ranges.as_ref())?;
        Ok(Array::bytes(quantized.bytes, quantized.dimension, quantized.is_signed))
    })
}
