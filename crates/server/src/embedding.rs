//! Vectors of whatever was sent, for every dialect that gives them.

use crate::call::Usage;
use crate::error::{Fault, FaultKind};
use crate::served::{Served, Task, Want};
use base64::Engine;
use base64::engine::general_purpose::STANDARD;
use sconce_api::input::Item;
use sconce_engine::{Caller, Clip, Embeddings, Image, Prompt};
use std::sync::{Mutex, PoisonError};

/// What becomes of inputs and vectors.
#[derive(Clone, Debug)]
pub(crate) struct How {
    /// Cut what is too long, or refuse it.
    pub(crate) truncate: bool,
    /// What stands before each text.
    pub(crate) prompt: Prompt,
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
pub(crate) fn embed(served: &Served, caller: &Caller, items: Vec<Item>, how: &How) -> Result<Made, Fault> {
    let plan = served.task.loaded().plan();
    if let Some(n) = how.dimensions.filter(|n| !(1..=plan.dimension).contains(n)) {
        let what = format!("`dimensions` is {n}, and the vectors of `{}` have {}", served.id, plan.dimension);
        return Err(Fault::invalid(what).at("dimensions"));
    }
    let (mut texts, mut images, mut order) = (Vec::new(), Vec::new(), Vec::new());
    for item in items {
        match item {
            Item::Text(text) => {
                order.push((false, texts.len()));
                texts.push(text);
            }
            Item::Image(image) => {
                order.push((true, images.len()));
                images.push(image);
            }
            Item::Ids(_) => return Err(Fault::invalid("token ids are not read here; send the text").at(how.param)),
        }
    }
    let characters = texts.iter().map(|t| t.chars().count()).sum();
    let read = match (&served.task, texts.is_empty()) {
        (_, true) => Embeddings::default(),
        (Task::Embed(embedder), _) => embedder.embed(&texts, &how.prompt)?,
        (Task::Clip(clip), _) => clip.texts(&texts)?,
        (Task::M3(m3), _) => dense(m3.embed(&texts)?),
        _ => return Err(served.unfit(Want::Embed)),
    };
    refuse_cut(&read.truncated, how.truncate, plan.max_tokens, how.param)?;
    let seen = match &served.task {
        _ if images.is_empty() => Embeddings::default(),
        Task::Clip(clip) => see(clip, caller, &images, how.param)?,
        _ => return Err(served.unfit(Want::See)),
    };
    let rows = order.into_iter().map(|(image, i)| finished(if image { seen.row(i) } else { read.row(i) }, how));
    Ok(Made { rows: rows.collect(), usage: Usage { tokens: read.tokens.iter().sum(), characters } })
}

/// The dense ones of bge-m3's three.
fn dense(three: sconce_engine::Threes) -> Embeddings {
    let dimension = three.texts.first().map_or(0, |t| t.dense.len());
    let values = three.texts.into_iter().flat_map(|t| t.dense).collect();
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

/// Refuses texts that had to be cut, unless that was allowed.
pub(crate) fn refuse_cut(cut: &[usize], allowed: bool, most: usize, param: &str) -> Result<(), Fault> {
    match cut.first() {
        Some(first) if !allowed => {
            let what = format!(
                "`{param}` {} is longer than {most} tokens, which is the most; shorten it, or send `truncate: true`",
                first + 1
            );
            Err(Fault::new(FaultKind::TooLong, what).at(param))
        }
        _ => Ok(()),
    }
}

/// Vectors of images. One picture is decoded at a time, of all requests: a small file may be a large picture.
fn see(clip: &Clip, caller: &Caller, images: &[String], param: &str) -> Result<Embeddings, Fault> {
    static DARKROOM: Mutex<()> = Mutex::new(());
    let mut all = Embeddings::default();
    for (i, given) in images.iter().enumerate() {
        if caller.is_cancelled() {
            return Err(Fault::new(FaultKind::Cancelled, "nobody waits for it any more"));
        }
        let bytes = bytes(given).map_err(|why| Fault::invalid(format!("image {}: {why}", i + 1)).at(param))?;
        let one = {
            let _alone = DARKROOM.lock().unwrap_or_else(PoisonError::into_inner);
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
            truncate: false,
            prompt: Prompt::Default,
            normalize,
            dimensions,
            param: "input",
        };
        assert_eq!(finished(&[3.0, 4.0, 12.0], &how(true, Some(2))), [0.6, 0.8]);
        assert_eq!(finished(&[3.0, 4.0, 12.0], &how(false, Some(2))), [3.0, 4.0]);
        assert_eq!(finished(&[0.0, 0.0], &how(true, None)), [0.0, 0.0]);
    }
}
