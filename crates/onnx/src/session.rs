//! A session of ONNX Runtime: one graph on one execution provider.

use crate::batch::{Bucketing, Padded, pad};
use crate::inputs::{self, Input, Kind, Pixels};
use crate::library::{Library, library};
use crate::{nodes, provider};
use half::f16;
use ort::session::builder::SessionBuilder;
use ort::session::{HasSelectedOutputs, OutputSelector, RunOptions, Session};
use ort::value::{DynValue, Shape};
use sconce_engine::{Graph, GraphSettings, GraphSummary, GraphText, ImageOutput, ProviderNodes, TextOutput};
use std::borrow::Cow;
use std::cell::RefCell;
use std::path::Path;

/// An opened graph.
pub(crate) struct OnnxGraph {
    session: RefCell<Session>,
    inputs: Vec<Input>,
    texts: Option<Texts>,
    images: Option<Images>,
    settings: GraphSettings,
    fixed_length: Option<usize>,
    nodes: Vec<ProviderNodes>,
    library: &'static Library,
}

/// An output to compute.
struct Selected {
    name: String,
    options: RunOptions<HasSelectedOutputs>,
}

/// What is computed of texts.
struct Texts {
    output: Selected,
    settings: TextOutput,
    bucketing: Bucketing,
}

/// What is computed of images.
struct Images {
    output: Selected,
    settings: ImageOutput,
    logits: Option<Selected>,
}

impl Selected {
    fn new(name: &str) -> ort::Result<Selected> {
        let options = RunOptions::new()?.with_outputs(OutputSelector::no_default().with(name));
        Ok(Selected { name: name.into(), options })
    }
}

impl OnnxGraph {
    pub(crate) fn open(
        path: Option<&Path>,
        summary: &GraphSummary,
        settings: &GraphSettings,
    ) -> Result<OnnxGraph, String> {
        let library = library(path)?;
        let refused = |e: &dyn std::fmt::Display| {
            let file = summary.path.display();
            format!("ONNX Runtime {} cannot open {file} on {}: {e}", library.version, settings.provider)
        };
        provider::check(settings.provider, library)?;
        let inputs = inputs::of(summary).map_err(|e| refused(&e))?;
        let build = || -> ort::Result<Session> {
            let mut builder = configured(library, settings)?;
            if let Some(provider) = provider::dispatch(settings.provider) {
                builder = builder.with_execution_providers([provider])?;
                if !settings.allow_host {
                    builder = builder.with_disable_cpu_fallback()?;
                }
            }
            builder.commit_from_file(&summary.path)
        };
        let session = build().map_err(|e| refused(&e))?;
        let nodes = nodes::assigned(&session).map_err(|e| refused(&e))?;
        let fixed_length = summary.fixed_length();
        let texts = settings.texts.as_ref().map(|texts| -> ort::Result<Texts> {
            let bucketing = Bucketing {
                width: texts.width,
                is_per_token: texts.is_per_token,
                one_per_call: settings.one_per_call,
                is_unmasked: !inputs::has(&inputs, Kind::Mask),
                batch_tokens: settings.batch_tokens,
                fixed_length,
            };
            Ok(Texts { output: Selected::new(&texts.name)?, settings: texts.clone(), bucketing })
        });
        let images = settings.images.as_ref().map(|images| -> ort::Result<Images> {
            let logits = images.logits.as_deref().map(Selected::new).transpose()?;
            Ok(Images { output: Selected::new(&images.name)?, settings: images.clone(), logits })
        });
        Ok(OnnxGraph {
            session: RefCell::new(session),
            inputs,
            texts: texts.transpose().map_err(|e| refused(&e))?,
            images: images.transpose().map_err(|e| refused(&e))?,
            settings: settings.clone(),
            fixed_length,
            nodes,
            library,
        })
    }

    /// Calls the graph, and hands the shape and the numbers of an output to `read`.
    fn call<T>(
        &self,
        mut texts: Padded,
        mut pixels: Pixels,
        output: &Selected,
        read: impl FnOnce(&[usize], &[f32]) -> Result<T, String>,
    ) -> Result<T, String> {
        let inputs = inputs::fill(&self.inputs, &mut texts, &mut pixels).map_err(|e| e.to_string())?;
        let mut session = self.session.borrow_mut();
        let outputs = session.run_with_options(inputs, &output.options).map_err(|e| e.to_string())?;
        let value = outputs.get(&output.name).ok_or("the graph did not compute its output")?;
        let (dims, values) = floats(value)?;
        read(&dims, &values)
    }

    fn pad(&self, texts: &[GraphText<'_>]) -> Padded {
        let padding = self.texts.as_ref().map_or(0, |texts| texts.settings.padding);
        pad(texts, self.fixed_length, padding)
    }

    /// A text for calls that compute nothing of texts; nothing if the graph reads none.
    fn dummy_text(&self) -> Padded {
        match inputs::has(&self.inputs, Kind::Ids) {
            true => self.pad(&[GraphText { ids: &[0], types: &[0], positions: &[0], keys: 1 }]),
            false => Padded::default(),
        }
    }

    /// An image for calls that compute nothing of images; nothing if the graph reads none.
    fn dummy_image(&self) -> Pixels {
        let side = self.images.as_ref().map_or(0, |images| images.settings.side);
        match inputs::has(&self.inputs, Kind::Pixels) {
            true => Pixels { images: 1, side, values: vec![0.0; 3 * side * side] },
            false => Pixels::default(),
        }
    }

    fn call_texts(
        &self,
        texts: &Texts,
        all: &[GraphText<'_>],
        indices: &[usize],
        sink: &mut dyn FnMut(usize, &[f32]),
    ) -> Result<(), String> {
        let members: Vec<GraphText<'_>> = indices.iter().map(|i| all[*i]).collect();
        let padded = self.pad(&members);
        let (count, length) = (padded.texts, padded.length);
        let TextOutput { name, is_per_token, width, .. } = &texts.settings;
        self.call(padded, self.dummy_image(), &texts.output, |dims, values| {
            let wanted = if *is_per_token { vec![count, length, *width] } else { vec![count, *width] };
            check_shape(name, dims, &wanted)?;
            for (place, (index, text)) in indices.iter().zip(&members).enumerate() {
                let (start, rows) = if *is_per_token { (place * length, text.ids.len()) } else { (place, 1) };
                sink(*index, &values[start * width..(start + rows) * width]);
            }
            Ok(())
        })
    }
}

impl Graph for OnnxGraph {
    fn run(&self, all: &[GraphText<'_>], sink: &mut dyn FnMut(usize, &[f32])) -> Result<u64, String> {
        let texts = self.texts.as_ref().ok_or("the graph was not opened for texts")?;
        let lengths: Vec<usize> = all.iter().map(|text| text.ids.len()).collect();
        let calls = texts.bucketing.calls(&lengths);
        calls.iter().try_for_each(|call| self.call_texts(texts, all, call, sink))?;
        Ok(calls.len() as u64)
    }

    fn run_images(&self, all: &[&[f32]], sink: &mut dyn FnMut(usize, &[f32])) -> Result<u64, String> {
        let images = self.images.as_ref().ok_or("the graph was not opened for images")?;
        let ImageOutput { name, width, side, .. } = &images.settings;
        let each = if self.settings.one_per_call { 1 } else { all.len().max(1) };
        for (place, call) in all.chunks(each).enumerate() {
            let pixels = Pixels { images: call.len(), side: *side, values: call.concat() };
            self.call(self.dummy_text(), pixels, &images.output, |dims, values| {
                check_shape(name, dims, &[call.len(), *width])?;
                values.chunks_exact(*width).enumerate().for_each(|(i, row)| sink(place * each + i, row));
                Ok(())
            })?;
        }
        Ok(all.len().div_ceil(each) as u64)
    }

    fn logit(&self, text: &GraphText<'_>, image: &[f32]) -> Result<f32, String> {
        let images = self.images.as_ref().ok_or("the graph was not opened for images")?;
        let logits = images.logits.as_ref().ok_or("the graph computes no logits")?;
        let pixels = Pixels { images: 1, side: images.settings.side, values: image.to_vec() };
        self.call(self.pad(&[*text]), pixels, logits, |dims, values| match values {
            [logit] => Ok(*logit),
            _ => Err(format!("the graph's output {} has the shape {dims:?} for one image and one text", logits.name)),
        })
    }

    fn nodes(&self) -> Vec<ProviderNodes> {
        self.nodes.clone()
    }

    fn version(&self) -> String {
        self.library.version.clone()
    }
}

/// A builder with threads and memory as Sconce wants them.
fn configured(library: &Library, settings: &GraphSettings) -> ort::Result<SessionBuilder> {
    Ok(Session::builder(&library.environment)?
        .with_intra_threads(settings.threads)?
        .with_inter_threads(1)?
        // A server's threads must not burn the processor between requests.
        .with_intra_op_spinning(false)?
        // A pattern is kept for every shape of a batch, and there is no end of shapes.
        .with_memory_pattern(false)?
        .with_config_entry("session.record_ep_graph_assignment_info", "1")?)
}

fn check_shape(name: &str, dims: &[usize], wanted: &[usize]) -> Result<(), String> {
    // One score per text may have no dimension of its own.
    let is_scalar = wanted.last() == Some(&1) && dims == &wanted[..wanted.len() - 1];
    match dims == wanted || is_scalar {
        true => Ok(()),
        false => Err(format!("the graph's output {name} has the shape {dims:?} instead of {wanted:?}")),
    }
}

/// The shape and the values of an output in f32 or f16.
fn floats(output: &DynValue) -> Result<(Vec<usize>, Cow<'_, [f32]>), String> {
    let dims = |shape: &Shape| shape.iter().map(|n| usize::try_from(*n).unwrap_or(0)).collect();
    if let Ok((shape, values)) = output.try_extract_tensor::<f32>() {
        return Ok((dims(shape), values.into()));
    }
    let (shape, values) = output.try_extract_tensor::<f16>().map_err(|e| format!("{e}; outputs are f32 or f16"))?;
    Ok((dims(shape), values.iter().map(|value| value.to_f32()).collect()))
}
