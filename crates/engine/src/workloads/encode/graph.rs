//! An encoder whose graph another engine runs: whether a model is run so, its plan, and its rows.

use super::pipeline::{LONGEST, Parts, Pipeline};
use crate::error::{Error, Result};
use crate::graph::{EngineChoice, Graph, GraphCounts, GraphPlan, GraphPort, GraphSettings, GraphText, Provider};
use crate::options::{DeviceChoice, LoadOptions};
use sconce_formats::{Model, is_gguf, json};
use sconce_models::{self as models, Backbone, Batch, LayerHook, Limits, Positions};
use sconce_ops::{DType, Device, Place, Raw, Splade, Store, Tensor, threads};
use serde_json::Value;
use std::borrow::Cow;
use std::path::Path;
use std::sync::Arc;

/// The inputs of a graph that we can fill.
const INPUTS: [&str; 4] = ["input_ids", "attention_mask", "token_type_ids", "position_ids"];
/// Families that count positions from the padding id on, so that their tables have rows to spare.
const FROM_PADDING: [&str; 4] = ["roberta", "xlm-roberta", "camembert", "mpnet"];

/// What a row of the graph's output stands for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Rows {
    /// A token.
    Tokens,
    /// A sequence.
    Sequences,
    /// A sequence: the logits of its tokens over the vocabulary, pooled.
    Vocabulary(Splade),
}

/// The graph that runs the model in `root`, and on which provider; `None` if we run the model
/// ourselves. `device` is the one that is planned for.
pub(super) fn choose<P: Pipeline>(root: &Path, device: Device, options: &LoadOptions) -> Result<Option<GraphPlan>> {
    let graph = &options.graph;
    let wants = match graph.engine {
        EngineChoice::Native => false,
        EngineChoice::Onnx => true,
        // A file or a provider that the user names can only belong to a graph.
        EngineChoice::Auto => {
            let names_graph = graph.file.is_some() || matches!(options.device, DeviceChoice::Provider(_));
            names_graph || P::BY_GRAPH && !is_native(root) && graph.runtime.as_ref().is_some_and(|r| r.finds(root))
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
    if !P::BY_GRAPH || is_gguf(root) {
        let what = "cannot be run by ONNX Runtime for this task; it serves embed, rerank, classify, tag and sparse from a \
                    folder: take --engine native";
        return Err(Error::file(root, what));
    }
    let summary = runtime.inspect(root, graph.file.as_deref())?;
    if let Some(port) = summary.inputs.iter().find(|port| !INPUTS.contains(&port.name.as_str())) {
        let what = format!("its input `{}` is not one of an encoder of texts ({})", port.name, INPUTS.join(", "));
        return Err(Error::file(&summary.path, what));
    }
    let texts = summary.inputs.iter().find(|port| port.name == INPUTS[0]).and_then(|port| port.dims.first().copied());
    let one_per_call = match texts.flatten() {
        None => summary.is_batch_dependent && !graph.batch_dependent,
        Some(1) => true,
        Some(n) => {
            let what = format!("was exported for {n} texts at once; export it with any number of texts, or with one");
            return Err(Error::file(&summary.path, what));
        }
    };
    let provider = match options.device {
        DeviceChoice::Provider(provider) => provider,
        // On `auto` the CPU: the library's other providers are known only when it is loaded.
        DeviceChoice::Auto => Provider::Cpu,
        DeviceChoice::Only(_) => Provider::of(device)?,
    };
    Ok(Some(GraphPlan {
        runtime: runtime.clone(),
        summary,
        provider,
        allow_host: options.policy.allow_host,
        one_per_call,
        counts: Arc::default(),
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

/// Whether we have the architecture, and the files have its weights.
fn is_native(root: &Path) -> bool {
    let names = ["model.safetensors", "pytorch_model.bin"];
    let has_weights = is_gguf(root)
        || names.iter().any(|name| root.join(name).exists() || root.join(format!("{name}.index.json")).exists());
    // Without a configuration it is a static table, which we run.
    let is_known = json(&root.join("config.json")).map_or(true, |config: Value| models::is_supported(&config));
    has_weights && is_known
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

/// A graph in place of an encoder, and of its head where the graph has one.
pub(crate) struct GraphEncoder {
    /// The opened graph; `None` in a phantom place.
    graph: Option<Box<dyn Graph>>,
    rows: Rows,
    width: usize,
    limits: Limits,
    place: Place,
    counts: Arc<GraphCounts>,
    /// Stands for the graph's weights in a plan; the other engine holds the real ones.
    _weights: Option<Tensor>,
}

impl Parts {
    /// The graph's hidden states, a row per token; or, if the graph pools them itself, a row per
    /// sequence.
    pub(super) fn graph_encoder(&self, plan: &GraphPlan) -> Result<GraphEncoder> {
        let hidden = plan.summary.output(&["last_hidden_state", "token_embeddings"]).map(|port| (port, Rows::Tokens));
        let pooled = || plan.summary.output(&["sentence_embedding"]).map(|port| (port, Rows::Sequences));
        let only = || match &plan.summary.outputs[..] {
            [port] if port.name != "logits" => match port.dims.len() {
                3 => Some((port, Rows::Tokens)),
                2 => Some((port, Rows::Sequences)),
                _ => None,
            },
            _ => None,
        };
        let Some((port, rows)) = hidden.or_else(pooled).or_else(only) else {
            return Err(missing(plan, "last_hidden_state, token_embeddings or sentence_embedding"));
        };
        let number = |name: &&str| self.config.get(*name).and_then(Value::as_u64);
        let configured = ["hidden_size", "dim", "d_model", "n_embd"].iter().find_map(number).map(|n| n as usize);
        let last = port.dims.last().copied().flatten().or(configured.filter(|_| rows == Rows::Tokens));
        let Some(width) = last.filter(|width| *width > 0) else {
            let what = format!("its output {} has no fixed width, and config.json no hidden_size", port.name);
            return Err(Error::file(&plan.summary.path, what));
        };
        GraphEncoder::open(self, plan, (port, rows), width)
    }

    /// The logits of a graph with a head, if a graph runs the model: `width` numbers in each row.
    pub(crate) fn graph_logits(&self, rows: Rows, width: usize) -> Result<Option<Box<dyn Backbone>>> {
        let Some(plan) = &self.graph else { return Ok(None) };
        if width == 0 {
            let what = "config.json names no labels and no vocabulary, so the graph's logits have no meaning; ONNX Runtime does \
                        not run language models here";
            return Err(Error::file(&self.root, what));
        }
        let port = match &plan.summary.outputs[..] {
            [only] => Some(only),
            _ => plan.summary.output(&["logits"]),
        };
        let port = port.ok_or_else(|| missing(plan, "logits"))?;
        let wanted = if rows == Rows::Sequences { 2 } else { 3 };
        let held = port.dims.last().copied().flatten().unwrap_or(width);
        // A reranker's score may have no dimension of its own.
        let is_scalar = width == 1 && port.dims.len() + 1 == wanted;
        if !port.dims.is_empty() && !is_scalar && (port.dims.len() != wanted || held != width) {
            let what = format!(
                "its output {} has the shape {}, but by config.json a row has {width} numbers and there are {wanted} dimensions; \
                 was it exported for another task?",
                port.name,
                shape(port)
            );
            return Err(Error::file(&plan.summary.path, what));
        }
        Ok(Some(Box::new(GraphEncoder::open(self, plan, (port, rows), width)?)))
    }
}

fn missing(plan: &GraphPlan, wanted: &str) -> Error {
    let names: Vec<_> = plan.summary.outputs.iter().map(|port| port.name.as_str()).collect();
    let what = format!("has no output {wanted}, only {}; was it exported for another task?", names.join(", "));
    Error::file(&plan.summary.path, what)
}

/// A shape for messages, with `?` for any length.
fn shape(port: &GraphPort) -> String {
    let dims: Vec<_> = port.dims.iter().map(|dim| dim.map_or_else(|| "?".into(), |n| n.to_string())).collect();
    format!("[{}]", dims.join(", "))
}

impl GraphEncoder {
    fn open(parts: &Parts, plan: &GraphPlan, (port, rows): (&GraphPort, Rows), width: usize) -> Result<GraphEncoder> {
        let GraphPlan { runtime, summary, provider, allow_host, one_per_call, counts } = plan;
        let padding = parts.config.get("pad_token_id").and_then(Value::as_u64).and_then(|id| u32::try_from(id).ok());
        let settings = GraphSettings {
            provider: *provider,
            allow_host: *allow_host,
            threads: threads::count(),
            padding: padding.unwrap_or(0),
            one_per_call: *one_per_call,
            output: port.name.clone(),
            is_per_token: rows != Rows::Sequences,
            width,
        };
        let (graph, weights) = match parts.place.is_phantom() {
            true => {
                let numbers = (summary.bytes / 4) as usize;
                (None, Some(Tensor::from_f32(&[], &[numbers], DType::F32, &parts.place)?))
            }
            false => {
                let graph = runtime.open(summary, &settings).map_err(failed)?;
                counts.opened(graph.version(), graph.nodes());
                (Some(graph), None)
            }
        };
        Ok(GraphEncoder {
            graph,
            rows,
            width,
            limits: limits(parts, plan)?,
            place: parts.place.clone(),
            counts: counts.clone(),
            _weights: weights,
        })
    }

    /// Whether the graph pools its hidden states itself.
    pub(crate) fn is_pooled(&self) -> bool {
        self.rows != Rows::Tokens
    }
}

fn failed(what: String) -> Error {
    Error::Op(sconce_ops::Error::Call { op: "onnx", what })
}

/// The sizes of the model's tables, by its configuration: a graph does not name them.
fn limits(parts: &Parts, plan: &GraphPlan) -> Result<Limits> {
    let number = |name: &str| parts.config.get(name).and_then(Value::as_u64).map(|n| n as usize);
    let Some(vocabulary) = number("vocab_size").filter(|n| *n > 0) else {
        return Err(Error::file(
            &parts.root.join("config.json"),
            "no vocab_size, which a model needs that ONNX Runtime runs",
        ));
    };
    let kind = parts.config.get("model_type").and_then(Value::as_str).unwrap_or_default();
    let table = number("max_position_embeddings").or(number("n_positions")).unwrap_or(LONGEST);
    let before = if FROM_PADDING.contains(&kind) { number("pad_token_id").unwrap_or(1) + 1 } else { 0 };
    let positions = table.saturating_sub(before).min(plan.summary.fixed_length().unwrap_or(LONGEST));
    Ok(Limits {
        vocabulary,
        positions,
        types: number("type_vocab_size").filter(|n| *n > 0),
        counting: Positions::FromZero,
    })
}

impl Backbone for GraphEncoder {
    fn forward(&self, batch: &Batch, _: LayerHook<'_>) -> models::Result<Tensor> {
        let (segments, width) = (&batch.segments, self.width);
        let rows = if self.rows == Rows::Tokens { segments.tokens() } else { segments.count() };
        let Some(graph) = &self.graph else {
            return Ok(Tensor::from_f32(&[], &[rows, width], DType::F32, &self.place)?);
        };
        let (ids, types) = (batch.observe_ids(), batch.types.to_u32()?);
        let (ranges, keys) = (segments.observe(), batch.keys.observe());
        let text = |i: usize| {
            let range = ranges.range(i);
            GraphText { ids: &ids[range.clone()], types: &types[range], keys: keys.range(i).len() }
        };
        let texts: Vec<_> = (0..segments.count()).map(text).collect();
        let mut values = vec![0f32; rows * width];
        let calls = graph.run(&texts, &mut |i, rows| match self.rows {
            Rows::Tokens => values[ranges.range(i).start * width..][..rows.len()].copy_from_slice(rows),
            Rows::Sequences => values[i * width..][..width].copy_from_slice(rows),
            Rows::Vocabulary(options) => pool_logits(rows, options, &mut values[i * width..][..width]),
        });
        let calls = calls.map_err(|what| sconce_ops::Error::Call { op: "onnx", what })?;
        self.counts.add_calls(calls);
        Ok(Tensor::from_f32(&values, &[rows, width], DType::F32, &self.place)?)
    }

    fn hidden_size(&self) -> usize {
        self.width
    }

    fn limits(&self) -> Limits {
        self.limits
    }
}

/// SPLADE's pooling of one sequence's logits `[tokens, vocabulary]`, which the op `splade` computes
/// together with the projection that here is in the graph.
fn pool_logits(logits: &[f32], options: Splade, into: &mut [f32]) {
    for row in logits.chunks_exact(into.len()) {
        for (pooled, logit) in into.iter_mut().zip(row) {
            if *logit <= 0.0 {
                continue;
            }
            let once = f64::from(*logit).ln_1p();
            let weight = if options.twice { once.ln_1p() } else { once } as f32;
            if options.sum {
                *pooled += weight;
            } else if weight > *pooled || weight.is_nan() {
                // NaN stays, so that it is reported.
                *pooled = weight;
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn pooled_logits_are_those_of_the_formula() {
        let logits = [1.0, -2.0, 3.0, 0.5, 4.0, -1.0];
        let pooled = |options| {
            let mut into = [0f32; 3];
            pool_logits(&logits, options, &mut into);
            into.map(f64::from)
        };
        let (once, twice) = (|x: f64| x.ln_1p(), |x: f64| x.ln_1p().ln_1p());
        let close = |a: [f64; 3], b: [f64; 3]| a.iter().zip(&b).all(|(a, b)| (a - b).abs() < 1e-6);
        assert!(close(pooled(Splade { sum: false, twice: false }), [once(1.0), once(4.0), once(3.0)]));
        assert!(close(pooled(Splade { sum: true, twice: true }), [twice(1.0) + twice(0.5), twice(4.0), twice(3.0)]));
    }
}
