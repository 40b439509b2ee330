//! Image–text embeddings.

use crate::array::{Array, floats};
use crate::call::call;
use crate::model::{Model, wrong_task};
use pyo3::prelude::*;
use pyo3::types::PyBytes;
use sconce_engine::{Clip, Embeddings, Error, Image, Loaded, RequestContext, Result, TaskModel};

fn clip(model: &TaskModel, context: &RequestContext) -> Result<Clip> {
    match model {
        TaskModel::Clip(clip) => Ok(clip.with_context(context)),
        _ => Err(wrong_task("clip")),
    }
}

/// Embeddings of texts, f32 `[texts, dimension]`.
#[pyfunction]
pub(crate) fn clip_texts(py: Python<'_>, model: &Bound<'_, Model>, texts: Vec<String>) -> PyResult<Array> {
    let model = model.get().get(py)?;
    call(py, move |context| {
        let embeddings = clip(&model, context)?.texts(&texts)?;
        Ok(Array::rows(embeddings.values, embeddings.dimension))
    })
}

/// Width and height of an image whose bytes are pixels; `None` if the bytes are those of a file.
type ImageSize = Option<(usize, usize)>;

/// Embeddings of images, f32 `[images, dimension]`. An image is the bytes of a file, or width,
/// height and the bytes of red, green and blue of every pixel.
#[pyfunction]
pub(crate) fn clip_images(
    py: Python<'_>,
    model: &Bound<'_, Model>,
    images: Vec<(ImageSize, Bound<'_, PyBytes>)>,
) -> PyResult<Array> {
    let model = model.get().get(py)?;
    let images: Vec<_> = images.into_iter().map(|(size, bytes)| (size, bytes.as_bytes().to_vec())).collect();
    call(py, move |context| {
        let image = |(i, (size, bytes)): (usize, (ImageSize, Vec<u8>))| {
            let decoded = match size {
                Some((width, height)) => Image::new(width, height, bytes),
                None => Image::decode(&bytes).map_err(|e| e.to_string()),
            };
            decoded.map_err(|why| Error::Image { image: i, why })
        };
        let images = images.into_iter().enumerate().map(image).collect::<Result<Vec<_>>>()?;
        let embeddings = clip(&model, context)?.images(&images)?;
        Ok(Array::rows(embeddings.values, embeddings.dimension))
    })
}

/// The score of each text for each image, f32 `[images, texts]`, from embeddings of `dimension`
/// numbers, given as the bytes of f32 numbers.
#[pyfunction]
pub(crate) fn clip_scores(
    py: Python<'_>,
    model: &Bound<'_, Model>,
    images: &[u8],
    texts: &[u8],
    dimension: usize,
) -> PyResult<Array> {
    let model = model.get().get(py)?;
    let (images, texts) = (floats(images), floats(texts));
    call(py, move |context| {
        let of = |values| Embeddings { values, dimension, ..Embeddings::default() };
        let texts = of(texts);
        let columns = texts.rows().count();
        Ok(Array::rows(clip(&model, context)?.score(&of(images), &texts)?.concat(), columns))
    })
}
