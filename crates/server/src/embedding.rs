//! Vectors of whatever was sent, for every dialect that gives them.

use crate::call::Usage;
use crate::error::{Fault, FaultKind};
use crate::served::{Served, Want};
use base64::Engine;
use base64::engine::general_purpose::STANDARD;
use sconce_api::input::Item;
use sconce_engine::{Clip, EmbedOptions, Embeddings, Image, Prompt, RequestContext, TextOrTokens, Truncate};
use sconce_engine::{Loaded, M3Embedding, Outputs, TaskModel};
use std::sync::{Mutex, PoisonError};

/// What becomes of inputs and vectors.
#[derive(Clone, Debug)]
pub(crate) struct How {
    /// Cut what is too long, or refuse it.
    pub(crate) truncate: Truncate,
    /// What stands before each text.
    pub(crate) prompt: Prompt,
    /// Whether the request itself named it.
    pub(crate) prompted: bool,
    /// Bring vectors to length one.
    pub(crate) normalize: bool,
    /// Only so many numbers of each.
    pub(crate) dimensions: Option<usize>,
    /// The field that inputs came in.
    pub(crate) param: &'static str,
}

/// Vectors, and what they cost.
pub(crate) struct Made {
    pub(crate) rows: Vec<Vec<f32>>,
    pub(crate) usage: Usage,
}

/// What is wanted of a model that is to read `items`.
pub(crate) fn wanted(items: &[Item]) -> Want {
    if items.iter().any(|item| matches!(item, Item::Image(_))) { Want::See } else { Want::Embed }
}

/// A vector an item, in their order.
pub(crate) fn embed(served: &Served, caller: &RequestContext, items: Vec<Item>, how: &How) -> Result<Made, Fault> {
    read(served, caller, items, how).map_err(|fault| match fault.kind {
        FaultKind::TooLong | FaultKind::Tokenizer => fault.at(how.param),
        _ => fault,
    })
}

fn read(served: &Served, caller: &RequestContext, items: Vec<Item>, how: &How) -> Result<Made, Fault> {
    let plan = served.model.loaded().plan();
    if let Some(n) = how.dimensions.filter(|n| !(1..=plan.dimension).contains(n)) {
        let what = format!("`dimensions` is {n}, and the vectors of `{}` have {}", served.id, plan.dimension);
        return Err(Fault::invalid(what).at("dimensions"));
    }
    let images: Vec<&str> = items.iter().filter_map(image).collect();
    let (made, seen) = match &served.model {
        TaskModel::Embed(embedder) if images.is_empty() => {
            let options =
                EmbedOptions { prompt: how.prompt.clone(), normalize: Some(how.normalize), dimensions: how.dimensions };
            let embedder = embedder.with_context(caller).with_truncation(how.truncate);
            (embedder.embed_with(&inputs(&items), &options)?, Embeddings::default())
        }
        TaskModel::M3(m3) if images.is_empty() => {
            unprompted(how.prompted)?;
            always_normal(how)?;
            let m3 = m3.with_context(caller).with_truncation(how.truncate);
            (dense(m3.embed_inputs(&inputs(&items))?), Embeddings::default())
        }
        TaskModel::Clip(clip) => {
            unprompted(how.prompted)?;
            always_normal(how)?;
            let clip = clip.with_context(caller).with_truncation(how.truncate);
            let read = match texts(&items, how.param)? {
                none if none.is_empty() => Embeddings::default(),
                texts => clip.texts(&texts)?,
            };
            (read, see(&clip, caller, &images, how.param)?)
        }
        _ => return Err(served.unfit(wanted(&items))),
    };
    let (mut texts, mut pictures) = (made.rows(), seen.rows());
    let row = |item: &Item| match item {
        Item::Image(_) => pictures.next(),
        Item::Text(_) | Item::Ids(_) => texts.next(),
    };
    let rows = items.iter().filter_map(row).map(|row| finished(row, how)).collect();
    Ok(Made { rows, usage: Usage { tokens: made.tokens.iter().sum(), characters: characters(&items) } })
}

fn image(item: &Item) -> Option<&str> {
    match item {
        Item::Image(image) => Some(image),
        Item::Text(_) | Item::Ids(_) => None,
    }
}

/// Characters of all texts.
pub(crate) fn characters(items: &[Item]) -> usize {
    let count = |item: &Item| match item {
        Item::Text(text) => text.chars().count(),
        Item::Ids(_) | Item::Image(_) => 0,
    };
    items.iter().map(count).sum()
}

/// Texts and tokens as the engine reads them.
pub(crate) fn inputs<'a>(items: &'a [Item]) -> Vec<TextOrTokens<'a>> {
    let input = |item: &'a Item| match item {
        Item::Text(text) => Some(TextOrTokens::Text(text)),
        Item::Ids(ids) => Some(TextOrTokens::Tokens(ids)),
        Item::Image(_) => None,
    };
    items.iter().filter_map(input).collect()
}

/// Texts alone, for a model that reads nothing else besides images.
pub(crate) fn texts<'a>(items: &'a [Item], param: &str) -> Result<Vec<&'a str>, Fault> {
    let text = |item: &'a Item| match item {
        Item::Text(text) => Some(Ok(text.as_str())),
        Item::Ids(_) => Some(Err(Fault::invalid("this model reads no token ids; send the text").at(param))),
        Item::Image(_) => None,
    };
    items.iter().filter_map(text).collect()
}

/// Refuses vectors as the model makes them, where it makes them of length one.
fn always_normal(how: &How) -> Result<(), Fault> {
    match how.normalize {
        true => Ok(()),
        false => Err(Fault::invalid("this model's vectors are always of length one").at("normalize")),
    }
}

/// Refuses a prompt for a model that has none; the server's own is for models that have.
pub(crate) fn unprompted(prompted: bool) -> Result<(), Fault> {
    match prompted {
        false => Ok(()),
        true => Err(Fault::invalid("this model has no prompts").at("prompt_name")),
    }
}

/// The dense ones of bge-m3's three.
fn dense(three: Outputs<M3Embedding>) -> Embeddings {
    let dimension = three.results.first().map_or(0, |t| t.dense.len());
    let values = three.results.into_iter().flat_map(|t| t.dense).collect();
    Embeddings { values, dimension, tokens: three.tokens, truncated: three.truncated }
}

/// Cut, and of length one, as asked.
fn finished(row: &[f32], how: &How) -> Vec<f32> {
    let row = &row[..how.dimensions.unwrap_or(row.len())];
    if !how.normalize {
        return row.to_vec();
    }
    let length = row.iter().map(|v| f64::from(*v).powi(2)).sum::<f64>().sqrt().max(1e-12);
    // A vector that has it already stays bit for bit what the model made.
    if (length - 1.0).abs() < 1e-6 {
        row.to_vec()
    } else {
        row.iter().map(|v| (f64::from(*v) / length) as f32).collect()
    }
}

/// Vectors of images. One picture is decoded at a time, of all requests: a small file may be a large picture.
fn see(clip: &Clip, caller: &RequestContext, images: &[&str], param: &str) -> Result<Embeddings, Fault> {
    static DARKROOM: Mutex<()> = Mutex::new(());
    let mut all = Embeddings::default();
    for (i, given) in images.iter().enumerate() {
        if caller.is_cancelled() {
            return Err(Fault::new(FaultKind::Cancelled, "nobody waits for it any more"));
        }
        let bytes = bytes(given).map_err(|why| Fault::invalid(format!("image {}: {why}", i + 1)).at(param))?;
        let one = {
            let _alone = DARKROOM.lock().unwrap_or_else(PoisonError::into_inner);
            if caller.is_cancelled() {
                continue;
            }
            let image = Image::decode(&bytes).map_err(|e| Fault::from(e).at(param))?;
            clip.images(&[image])?
        };
        all.dimension = one.dimension;
        all.values.extend(one.values);
    }
    Ok(all)
}

/// The bytes of an image: of a `data:` URI, or of base64 alone. Addresses are never fetched.
fn bytes(given: &str) -> Result<Vec<u8>, String> {
    let coded = match given.strip_prefix("data:") {
        Some(rest) => {
            let (kind, data) = rest.split_once(',').ok_or("a data URI has a comma before its data")?;
            if !kind.ends_with(";base64") {
                return Err("a data URI of an image is in base64: data:image/png;base64,…".into());
            }
            data
        }
        None if given.contains("://") => {
            return Err("addresses are not fetched; send the image itself as data:image/png;base64,…".into());
        }
        None => given,
    };
    STANDARD.decode(coded.trim()).map_err(|e| format!("it is not base64: {e}"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn images_come_as_data_and_never_by_address() {
        assert_eq!(bytes("data:image/png;base64,AAEC"), Ok(vec![0, 1, 2]));
        assert_eq!(bytes("AAEC"), Ok(vec![0, 1, 2]));
        for (given, why) in [
            ("http://169.254.169.254/", "not fetched"),
            ("file:///etc/passwd", "not fetched"),
            ("data:image/png,abc", "base64"),
            ("data:image/png;base64", "comma"),
            ("%%%", "not base64"),
        ] {
            assert!(bytes(given).unwrap_err().contains(why), "{given}");
        }
    }

    #[test]
    fn vectors_are_cut_then_brought_to_length_one() {
        let how = |normalize, dimensions| How {
            truncate: Truncate::Never,
            prompt: Prompt::Default,
            prompted: false,
            normalize,
            dimensions,
            param: "input",
        };
        assert_eq!(finished(&[3.0, 4.0, 12.0], &how(true, Some(2))), [0.6, 0.8]);
        assert_eq!(finished(&[3.0, 4.0, 12.0], &how(false, Some(2))), [3.0, 4.0]);
        assert_eq!(finished(&[0.0, 0.0], &how(true, None)), [0.0, 0.0]);
    }
}
