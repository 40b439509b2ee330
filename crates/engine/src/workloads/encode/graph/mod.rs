//! Models whose encoder another engine runs as a graph: whether a model is run so, and its plan.

mod encoder;
mod towers;

pub(crate) use encoder::Rows;
pub(crate) use towers::GraphTowers;

use super::pipeline::{GraphUse, LONGEST, Pipeline};
use crate::error::{Error, Result};
use crate::graph::{EngineChoice, GraphFile, GraphOptions, GraphPlan, GraphSummary, Provider};
use crate::options::{DeviceChoice, LoadOptions};
use sconce_formats::{Model, is_gguf, json};
use sconce_models as models;
use sconce_ops::{Device, Raw, Store};
use serde_json::Value;
use std::borrow::Cow;
use std::path::Path;
use std::sync::Arc;

/// The inputs for texts that we can fill.
const TEXT_INPUTS: [&str; 4] = ["input_ids", "attention_mask", "token_type_ids", "position_ids"];

/// The graphs that run the model in `root`, and on which provider; `None` if we run the model
/// ourselves. `device` is the one that is planned for.
pub(super) fn choose<P: Pipeline>(root: &Path, device: Device, options: &LoadOptions) -> Result<Option<GraphPlan>> {
    let graph = &options.graph;
    let wants = match graph.engine {
        EngineChoice::Native => false,
        EngineChoice::Onnx => true,
        // A file or a provider that the user names can only belong to a graph.
        EngineChoice::Auto => {
            let names_graph = graph.file.is_some() || matches!(options.device, DeviceChoice::Provider(_));
            let is_native = has_weights(root) && (P::GRAPH == GraphUse::None || is_known(root));
            names_graph || !is_native && graph.runtime.as_ref().is_some_and(|r| r.finds(root))
        }
    };
    if !wants {
        graph.refuse_native(options)?;
        return Ok(None);
    }
    let Some(runtime) = &graph.runtime else {
        let what = "this build cannot run ONNX models: it lacks the feature `onnx`; take --engine native";
        return Err(Error::Input(what.into()));
    };
    if P::GRAPH == GraphUse::None || is_gguf(root) {
        let what = "cannot be run by ONNX Runtime for this task; it serves embed, rerank, classify, tag, sparse and clip from \
                    a folder: take --engine native and weights in safetensors";
        return Err(Error::file(root, what));
    }
    GraphOptions::refuse_graph(options)?;
    let summaries = match P::GRAPH {
        GraphUse::Towers => towers::inspect(runtime.as_ref(), root, graph.file.as_deref())?,
        GraphUse::Texts | GraphUse::None => vec![runtime.inspect(root, graph.file.as_deref())?],
    };
    let file = |summary: GraphSummary| {
        let is_single = check_inputs(&summary, P::GRAPH)?;
        let one_per_call = is_single || summary.is_batch_dependent && !graph.batch_dependent;
        Ok(GraphFile { summary, one_per_call, counts: Arc::default() })
    };
    let provider = match options.device {
        DeviceChoice::Provider(provider) => provider,
        // On `auto` the CPU: the library's other providers are known only when it is loaded.
        DeviceChoice::Auto => Provider::Cpu,
        DeviceChoice::Only(_) => Provider::of(device)?,
    };
    Ok(Some(GraphPlan {
        runtime: runtime.clone(),
        provider,
        allow_host: options.policy.allow_host,
        batch_tokens: options.batch_tokens(provider.sized_as())?,
        files: summaries.into_iter().map(file).collect::<Result<_>>()?,
    }))
}

/// The device and options to load or plan with: if a graph runs the model, what is ours runs on the
/// CPU, and the device that the user named is the graph's.
pub(super) fn for_engine<'a, P: Pipeline>(
    root: &Path,
    device: Device,
    options: &'a LoadOptions,
) -> Result<(Device, Cow<'a, LoadOptions>)> {
    let Some(plan) = choose::<P>(root, device, options)? else { return Ok((device, Cow::Borrowed(options))) };
    let graph = options.graph.clone().with_engine(EngineChoice::Onnx);
    let options = LoadOptions { graph, device: DeviceChoice::Provider(plan.provider), ..options.clone() };
    Ok((Device::Cpu, Cow::Owned(options)))
}

/// The options for the next provider after one that failed with `error`: the CPU, if the user
/// allows a fallback.
pub(super) fn fallback(options: &LoadOptions, error: &Error) -> Option<LoadOptions> {
    let DeviceChoice::Provider(provider) = options.device else { return None };
    let may_fall_back = options.fallback && provider != Provider::Cpu && error.is_device_error();
    may_fall_back.then(|| options.clone().with_device(DeviceChoice::Provider(Provider::Cpu)))
}

/// Whether the files have weights that we read.
fn has_weights(root: &Path) -> bool {
    let names = ["model.safetensors", "pytorch_model.bin"];
    is_gguf(root)
        || names.iter().any(|name| root.join(name).exists() || root.join(format!("{name}.index.json")).exists())
}

/// Whether we have the architecture. Without a configuration it is a static table, which we run.
fn is_known(root: &Path) -> bool {
    json(&root.join("config.json")).map_or(true, |config: Value| models::is_supported(&config))
}

/// Checks that we can fill every input of a graph. Returns whether a call takes one text or image
/// only.
fn check_inputs(summary: &GraphSummary, uses: GraphUse) -> Result<bool> {
    let refused = |what: String| Err(Error::file(&summary.path, what));
    let has_towers = uses == GraphUse::Towers;
    let (mut is_single, mut has_mask) = (false, false);
    for port in &summary.inputs {
        let is_text = TEXT_INPUTS.contains(&port.name.as_str());
        has_mask |= port.name == TEXT_INPUTS[1];
        let (rank, is_filled, types) = match port.name.as_str() {
            _ if is_text => (2, port.element.is_integer(), "int64 or int32"),
            "pixel_values" if has_towers => (4, port.element.is_float(), "float32 or float16"),
            _ => {
                let known = if has_towers { ", pixel_values" } else { "" };
                let what = format!("its input {port} is not one that Sconce fills: {}{known}", TEXT_INPUTS.join(", "));
                return refused(what);
            }
        };
        if !is_filled {
            return refused(format!("its input {port} has a type that Sconce does not fill; it fills {types}"));
        }
        if !port.dims.is_empty() && port.dims.len() != rank {
            return refused(format!("its input {port} does not have {rank} dimensions"));
        }
        match port.dim(0) {
            None => {}
            Some(1) => is_single = true,
            Some(n) => {
                let what = format!(
                    "its input {port} was exported for {n} at once; export it with any number of texts, or with one"
                );
                return refused(what);
            }
        }
        if is_text && port.dim(1).is_some() && port.dim(1) != summary.fixed_length() {
            return refused(format!("its input {port} and its token ids differ in their lengths"));
        }
    }
    if summary.texts().is_none() && !has_towers {
        return refused("has no input input_ids, so it is not an encoder of texts".into());
    }
    match summary.fixed_length() {
        Some(n) if !(2..=LONGEST).contains(&n) => refused(format!("texts of {n} tokens; Sconce runs 2 to {LONGEST}")),
        // A tower reads padding as it was trained to, or not at all because it is causal.
        Some(n) if !has_mask && !has_towers => refused(format!(
            "was exported for texts of {n} tokens without an attention_mask, so it would read the padding of shorter texts; \
             export it with any length, or with a mask"
        )),
        _ => Ok(is_single),
    }
}

/// The configuration of a model whose weights are in its graph.
pub(super) fn model(root: &Path) -> Result<Model> {
    Ok(Model { root: root.into(), config: json(&root.join("config.json"))?, store: Arc::new(NoWeights), gguf: None })
}

struct NoWeights;

impl Store for NoWeights {
    fn get(&self, _: &str) -> sconce_ops::Result<Option<Raw<'_>>> {
        Ok(None)
    }
    fn names(&self) -> Vec<String> {
        Vec::new()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::graph::{Element, GraphPort};

    fn port(name: &str, element: Element, dims: &[Option<usize>]) -> GraphPort {
        GraphPort { name: name.into(), element, dims: dims.to_vec() }
    }

    fn graph(inputs: Vec<GraphPort>) -> GraphSummary {
        GraphSummary { inputs, ..GraphSummary::default() }
    }

    fn refused(inputs: Vec<GraphPort>, uses: GraphUse) -> String {
        check_inputs(&graph(inputs), uses).expect_err("a refusal").to_string()
    }

    #[test]
    fn inputs_that_cannot_be_filled_are_named() {
        let any = [None, None];
        let ids = || port("input_ids", Element::I64, &any);
        let texts = |other: GraphPort| refused(vec![ids(), other], GraphUse::Texts);
        assert!(texts(port("inputs_embeds", Element::F32, &[None; 3])).contains("inputs_embeds (float32 [?, ?, ?])"));
        assert!(texts(port("pixel_values", Element::F32, &[None; 4])).contains("pixel_values"));
        assert!(texts(port("attention_mask", Element::Other(9), &any)).contains("(bool [?, ?]) has a type"));
        assert!(texts(port("attention_mask", Element::I64, &[None; 4])).contains("2 dimensions"));
        assert!(texts(port("attention_mask", Element::I64, &[None, Some(8)])).contains("differ in their lengths"));
        assert!(
            refused(vec![port("attention_mask", Element::I64, &any)], GraphUse::Texts).contains("no input input_ids")
        );
        let image =
            |element, dims: &[Option<usize>]| refused(vec![port("pixel_values", element, dims)], GraphUse::Towers);
        assert!(image(Element::I64, &[None; 4]).contains("float32 or float16"));
        assert!(image(Element::F32, &[None; 3]).contains("4 dimensions"));
    }

    #[test]
    fn fixed_shapes_are_taken_where_they_cannot_change_results() {
        let check = |dims: [Option<usize>; 2], names: &[&str], uses| {
            check_inputs(&graph(names.iter().map(|name| port(name, Element::I32, &dims)).collect()), uses)
        };
        let (texts, masked) = (GraphUse::Texts, ["input_ids", "attention_mask"]);
        assert!(!check([None, None], &masked, texts).expect("any shape"));
        assert!(check([Some(1), Some(128)], &masked, texts).expect("one text"));
        assert!(!check([None, None], &masked[..1], texts).expect("no mask"));
        let why = |dims, names: &[&str]| check(dims, names, texts).expect_err("a refusal").to_string();
        assert!(why([Some(4), None], &masked).contains("for 4 at once"));
        assert!(why([None, Some(128)], &masked[..1]).contains("without an attention_mask"));
        assert!(why([None, Some(1)], &masked).contains("1 tokens"));
        assert!(why([None, Some(usize::MAX)], &masked).contains("Sconce runs"));
        assert!(!check([None, Some(77)], &masked[..1], GraphUse::Towers).expect("a causal tower"));
    }
}
