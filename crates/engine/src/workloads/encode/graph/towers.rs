//! The towers of CLIP and SigLIP as graphs: one file with both, or one for each.

use super::super::pipeline::{LONGEST, Parts};
use super::encoder::{GraphEncoder, Opened, check_output, missing, padding};
use crate::error::{Error, Result};
use crate::graph::{Element, GraphFile, GraphRuntime, GraphSummary, GraphText, ImageOutput, TextOutput};
use sconce_models::{Backbone, Batch, DualKind, DualSizes, Limits, dual_sizes};
use sconce_ops::{DType, Place, Tensor};
use serde_json::Value;
use std::path::Path;

/// The names of the towers' files, as exporters write them; other formats have more between these
/// words and `.onnx`.
const FILES: [&str; 2] = ["text_model", "vision_model"];

/// The largest width and height of an image, in pixels: memory is taken for it before any is seen.
const LARGEST_SIDE: usize = 1 << 12;

/// The heads of a model's graphs: that of both towers, or that of the texts and that of the images.
pub(super) fn inspect(runtime: &dyn GraphRuntime, root: &Path, named: Option<&str>) -> Result<Vec<GraphSummary>> {
    let exists = |file: &str| [root.to_path_buf(), root.join("onnx")].iter().any(|folder| folder.join(file).is_file());
    let pair = match named {
        Some(file) => {
            let tower = FILES.iter().find(|name| file.contains(*name));
            tower.map(|name| FILES.map(|tower| file.replace(name, tower)))
        }
        None if exists("model.onnx") => None,
        None => Some(FILES.map(|name| format!("{name}.onnx"))),
    };
    let pair = pair.filter(|pair| pair.iter().any(|file| exists(file)));
    let Some([text, vision]) = pair else {
        let both = runtime.inspect(root, named)?;
        check_towers(&both, true, true)?;
        return Ok(vec![both]);
    };
    if let Some(absent) = [&text, &vision].into_iter().find(|file| !exists(file)) {
        let there = if *absent == text { &vision } else { &text };
        let what =
            format!("has {there} but no {absent}; a model for texts and images needs both towers: export {absent} too");
        return Err(Error::file(root, what));
    }
    let (text, vision) = (runtime.inspect(root, Some(&text))?, runtime.inspect(root, Some(&vision))?);
    check_towers(&text, true, false)?;
    check_towers(&vision, false, true)?;
    Ok(vec![text, vision])
}

/// Refuses a graph that does not read what its towers need.
fn check_towers(summary: &GraphSummary, texts: bool, images: bool) -> Result<()> {
    let described = |texts, images| match (texts, images) {
        (true, true) => "texts and images",
        (true, false) => "texts",
        (false, true) => "images",
        (false, false) => "neither texts nor images",
    };
    let reads = (summary.texts().is_some(), summary.images().is_some());
    if reads == (texts, images) {
        return Ok(());
    }
    let what = format!(
        "reads {} instead of {} (input_ids, pixel_values); a model for texts and images is one file with both towers, or \
         text_model.onnx and vision_model.onnx",
        described(reads.0, reads.1),
        described(texts, images)
    );
    Err(Error::file(&summary.path, what))
}

/// Both towers, run by another engine.
pub(crate) struct GraphTowers {
    text: GraphEncoder,
    /// The graph of the images, if it is a file of its own.
    vision: Option<Opened>,
    /// The sizes of both towers.
    pub(crate) sizes: DualSizes,
    /// Whether the graph computes logits, in f32.
    has_logits: bool,
    place: Place,
}

impl Parts {
    /// The towers, if graphs run the model.
    pub(crate) fn graph_towers(&self) -> Result<Option<GraphTowers>> {
        let Some(plan) = &self.graph else { return Ok(None) };
        let sizes = dual_sizes(&self.config)?;
        check_sizes(&sizes).map_err(|what| Error::file(&self.root.join("config.json"), what))?;
        let (text, vision) = match &plan.files[..] {
            [both] => (both, None),
            [text, vision] => (text, Some(vision)),
            files => return Err(plan.error(format!("{} graphs were planned for two towers", files.len()))),
        };
        let fixed = text.summary.fixed_length();
        if let (Some(padding), Some(fixed)) = (sizes.padding, fixed)
            && padding != fixed
        {
            let what = format!("was exported for texts of {fixed} tokens, but the model pads them to {padding}");
            return Err(Error::file(&text.summary.path, what));
        }
        let image_file = vision.unwrap_or(text);
        let logits =
            text.summary.output(&["logits_per_image"]).filter(|port| vision.is_none() && port.element == Element::F32);
        let texts = self.text_output(&sizes, text)?;
        let images = ImageOutput { logits: logits.map(|port| port.name.clone()), ..image_output(&sizes, image_file)? };
        let has_logits = images.logits.is_some();
        let open = |file, outputs| Opened::open(&self.place, plan, file, outputs);
        let (text, vision) = match vision {
            None => (open(text, (Some(texts), Some(images)))?, None),
            Some(vision) => (open(text, (Some(texts), None))?, Some(open(vision, (None, Some(images)))?)),
        };
        let limits = Limits { positions: sizes.limits.positions.min(fixed.unwrap_or(LONGEST)), ..sizes.limits };
        let text = GraphEncoder::of_rows(text, sizes.dimension, limits, self.place.clone());
        Ok(Some(GraphTowers { text, vision, sizes, has_logits, place: self.place.clone() }))
    }

    fn text_output(&self, sizes: &DualSizes, file: &GraphFile) -> Result<TextOutput> {
        let empty = Value::Null;
        let padding = padding(self.config.get("text_config").unwrap_or(&empty), sizes.limits);
        let name = embedding(sizes, &file.summary, "text_embeds")?;
        Ok(TextOutput { name, is_per_token: false, width: sizes.dimension, padding })
    }
}

/// Refuses sizes that no tower has. Nothing else checks them, because there are no weights whose
/// shapes would contradict.
fn check_sizes(sizes: &DualSizes) -> Result<(), String> {
    let DualSizes { limits, image, .. } = sizes;
    if limits.vocabulary == 0 || !(2..=LONGEST).contains(&limits.positions) {
        let (vocabulary, positions) = (limits.vocabulary, limits.positions);
        return Err(format!("text_config has a vocabulary of {vocabulary} and {positions} positions, out of range"));
    }
    if image.side > LARGEST_SIDE {
        return Err(format!("vision_config has images of {} pixels; Sconce runs at most {LARGEST_SIDE}", image.side));
    }
    Ok(())
}

fn image_output(sizes: &DualSizes, file: &GraphFile) -> Result<ImageOutput> {
    let (summary, side) = (&file.summary, sizes.image.side);
    let fixed = summary.images().map_or([None; 3], |port| [1, 2, 3].map(|place| port.dim(place)));
    if fixed.iter().zip([3, side, side]).any(|(fixed, wanted)| fixed.is_some_and(|n| n != wanted)) {
        let what = format!("its images do not have 3 × {side} × {side} numbers, as config.json says");
        return Err(Error::file(&summary.path, what));
    }
    let name = embedding(sizes, summary, "image_embeds")?;
    Ok(ImageOutput { name, width: sizes.dimension, side, logits: None })
}

/// The name of the output with the embeddings of a tower.
fn embedding(sizes: &DualSizes, summary: &GraphSummary, name: &str) -> Result<String> {
    // SigLIP's pooled output is its embedding; CLIP's is projected first.
    let names = match sizes.kind {
        DualKind::Sigmoid => vec![name, "pooler_output"],
        DualKind::Softmax => vec![name],
    };
    let port = summary.output(&names).ok_or_else(|| missing(summary, &names.join(" or ")))?;
    let width = sizes.dimension;
    if !port.dims.is_empty() && (port.dims.len() != 2 || port.dim(1).is_some_and(|n| n != width)) {
        let what = format!("its output {port} should have 2 dimensions and, by config.json, {width} numbers in a row");
        return Err(Error::file(&summary.path, what));
    }
    check_output(summary, port, width)?;
    Ok(port.name.clone())
}

impl GraphTowers {
    /// The largest ids and positions of the text tower.
    pub(crate) fn limits(&self) -> Limits {
        self.text.limits()
    }

    /// Embeddings of texts, f32 `[sequences, dimension]`, not normalized.
    pub(crate) fn texts(&self, batch: &Batch) -> Result<Tensor> {
        Ok(self.text.forward(batch, &mut |_, _| {})?)
    }

    /// Embeddings of images `[3, side, side]`, f32 `[images, dimension]`, not normalized.
    pub(crate) fn images(&self, pixels: &[&[f32]]) -> Result<Tensor> {
        let (side, width) = (self.sizes.image.side, self.sizes.dimension);
        if let Some(other) = pixels.iter().find(|pixels| pixels.len() != 3 * side * side) {
            let what = format!("an image of {} values; the model needs 3 × {side} × {side}", other.len());
            return Err(Error::Input(what));
        }
        let opened = self.vision.as_ref().unwrap_or(&self.text.opened);
        let mut values = vec![0f32; pixels.len() * width];
        if let Some(graph) = &opened.graph {
            let take = &mut |i: usize, row: &[f32]| values[i * width..][..width].copy_from_slice(row);
            opened.counted(graph.run_images(pixels, take))?;
        }
        Ok(Tensor::from_f32(&values, &[pixels.len(), width], DType::F32, &self.place)?)
    }

    /// The scale and bias that make logits of cosine similarities, measured on a few pairs: the
    /// trained numbers are constants of the graph without a name. `None` if the graph computes no
    /// logits, or not exactly enough.
    pub(crate) fn logits(&self) -> Result<Option<(f32, f32)>> {
        let (Some(graph), true) = (&self.text.opened.graph, self.has_logits) else { return Ok(None) };
        let Limits { vocabulary, positions, .. } = self.limits();
        let length = self.sizes.padding.unwrap_or(8).min(positions);
        // Ids and pixels from all over their ranges.
        let ids = [7, 31].map(|step: usize| (1..=length).map(|i| (i * step % vocabulary) as u32).collect::<Vec<u32>>());
        let side = self.sizes.image.side;
        let pixels =
            [7, 31].map(|step| (0..3 * side * side).map(|i| (i * step % 97) as f32 / 48.0 - 1.0).collect::<Vec<_>>());
        let (zeros, places): (Vec<u32>, Vec<u32>) = (vec![0; length], (0..length as u32).collect());
        let text = |ids| GraphText { ids, types: &zeros, positions: &places, keys: length };
        let (texts, images) = (ids.each_ref().map(|ids| text(ids)), pixels.each_ref().map(Vec::as_slice));
        let failed = |what| sconce_ops::Error::Call { op: "onnx", what };
        let (mut of_texts, mut of_images) = (vec![Vec::new(); 2], vec![Vec::new(); 2]);
        graph.run(&texts, &mut |i, row| of_texts[i] = row.to_vec()).map_err(failed)?;
        graph.run_images(&images, &mut |i, row| of_images[i] = row.to_vec()).map_err(failed)?;
        let mut pairs = Vec::new();
        for (text, of_text) in texts.iter().zip(&of_texts) {
            for (image, of_image) in images.iter().zip(&of_images) {
                let logit = graph.logit(text, image).map_err(failed)?;
                pairs.push((cosine(of_text, of_image), f64::from(logit)));
            }
        }
        Ok(fit(&pairs, self.sizes.kind))
    }
}

fn cosine(a: &[f32], b: &[f32]) -> f64 {
    let dot = |a: &[f32], b: &[f32]| a.iter().zip(b).map(|(a, b)| f64::from(*a) * f64::from(*b)).sum::<f64>();
    dot(a, b) / (dot(a, a) * dot(b, b)).sqrt()
}

/// The line through pairs of a cosine similarity and a logit: its slope and, for SigLIP, its
/// intercept. `None` if the logits are not on a line.
fn fit(pairs: &[(f64, f64)], kind: DualKind) -> Option<(f32, f32)> {
    let count = pairs.len() as f64;
    let mean = |of: &dyn Fn(&(f64, f64)) -> f64| match kind {
        DualKind::Sigmoid => pairs.iter().map(of).sum::<f64>() / count,
        // CLIP's line goes through the origin.
        DualKind::Softmax => 0.0,
    };
    let (x, y) = (mean(&|pair| pair.0), mean(&|pair| pair.1));
    let product: f64 = pairs.iter().map(|pair| (pair.0 - x) * (pair.1 - y)).sum();
    let square: f64 = pairs.iter().map(|pair| (pair.0 - x).powi(2)).sum();
    let scale = product / square;
    let bias = y - scale * x;
    let largest = pairs.iter().map(|pair| pair.1.abs()).fold(0.0, f64::max);
    let is_exact = pairs.iter().all(|pair| (pair.0 * scale + bias - pair.1).abs() <= 1e-4 * largest.max(1.0));
    // False for NaN, of an infinite embedding or equal cosine similarities.
    (scale > 0.0 && is_exact).then_some((scale as f32, bias as f32))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_scale_of_logits_is_found_from_pairs() {
        let line = |scale: f64, bias: f64| [0.1, -0.2, 0.05, 0.3].map(|cosine| (cosine, cosine * scale + bias));
        assert_eq!(fit(&line(100.0, 0.0), DualKind::Softmax), Some((100.0, 0.0)));
        let (scale, bias) = fit(&line(112.5, -16.5), DualKind::Sigmoid).expect("a line");
        assert!((scale - 112.5).abs() < 1e-4 && (bias + 16.5).abs() < 1e-4, "{scale} {bias}");
        // A bias that CLIP does not have, logits of something else, and equal similarities.
        assert_eq!(fit(&line(100.0, 5.0), DualKind::Softmax), None);
        assert_eq!(fit(&[(0.1, 3.0), (0.2, -4.0), (0.3, 9.0)], DualKind::Sigmoid), None);
        assert_eq!(fit(&[(0.1, 3.0), (0.1, 3.0)], DualKind::Sigmoid), None);
    }
}
