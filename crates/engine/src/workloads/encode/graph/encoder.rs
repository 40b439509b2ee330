//! An encoder whose graph another engine runs.

use super::super::pipeline::{LONGEST, Parts};
use crate::error::{Error, Result};
use crate::graph::{
    Graph, GraphCounts, GraphFile, GraphPlan, GraphPort, GraphSettings, GraphSummary, GraphText, ImageOutput,
    TextOutput,
};
use sconce_models::{self as models, Backbone, Batch, LayerHook, Limits, Positions};
use sconce_ops::{DType, Place, Splade, Tensor, threads};
use serde_json::Value;
use std::sync::Arc;

/// The widest row: wider than any vocabulary, and small enough that a batch of them can be counted.
const WIDEST: usize = 1 << 22;
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

/// A file of the plan, opened; or its phantom.
pub(super) struct Opened {
    /// `None` in a phantom place.
    pub(super) graph: Option<Box<dyn Graph>>,
    pub(super) counts: Arc<GraphCounts>,
    /// Stands for the graph's weights in a plan; the other engine holds the real ones.
    _weights: Option<Tensor>,
}

impl Opened {
    pub(super) fn open(
        place: &Place,
        plan: &GraphPlan,
        file: &GraphFile,
        (texts, images): (Option<TextOutput>, Option<ImageOutput>),
    ) -> Result<Opened> {
        let counts = file.counts.clone();
        if place.is_phantom() {
            let numbers = (file.summary.bytes / 4) as usize;
            let weights = Tensor::from_f32(&[], &[numbers], DType::F32, place)?;
            return Ok(Opened { graph: None, counts, _weights: Some(weights) });
        }
        let settings = GraphSettings {
            provider: plan.provider,
            allow_host: plan.allow_host,
            threads: threads::count(),
            batch_tokens: plan.batch_tokens,
            one_per_call: file.one_per_call,
            texts,
            images,
        };
        let graph = plan.runtime.open(&file.summary, &settings).map_err(|why| plan.error(why))?;
        counts.opened(graph.version(), graph.nodes());
        Ok(Opened { graph: Some(graph), counts, _weights: None })
    }

    /// Counts the calls of a run.
    pub(super) fn counted(&self, calls: Result<u64, String>) -> Result<(), sconce_ops::Error> {
        self.counts.add_calls(calls.map_err(|what| sconce_ops::Error::Call { op: "onnx", what })?);
        Ok(())
    }
}

/// A graph in place of an encoder, and of its head where the graph has one.
pub(crate) struct GraphEncoder {
    pub(super) opened: Opened,
    rows: Rows,
    width: usize,
    limits: Limits,
    place: Place,
}

impl Parts {
    /// The graph's hidden states, a row per token; or, if the graph pools them itself, a row per
    /// sequence.
    pub(in super::super) fn graph_encoder(&self, plan: &GraphPlan) -> Result<GraphEncoder> {
        let file = single_file(plan)?;
        let summary = &file.summary;
        let hidden = summary.output(&["last_hidden_state", "token_embeddings"]).map(|port| (port, Rows::Tokens));
        let pooled = || summary.output(&["sentence_embedding"]).map(|port| (port, Rows::Sequences));
        let only = || match &summary.outputs[..] {
            [port] if port.name != "logits" => match port.dims.len() {
                3 => Some((port, Rows::Tokens)),
                2 => Some((port, Rows::Sequences)),
                _ => None,
            },
            _ => None,
        };
        let Some((port, rows)) = hidden.or_else(pooled).or_else(only) else {
            return Err(missing(summary, "last_hidden_state, token_embeddings or sentence_embedding"));
        };
        let rank = if rows == Rows::Tokens { 3 } else { 2 };
        if !port.dims.is_empty() && port.dims.len() != rank {
            return Err(Error::file(&summary.path, format!("its output {port} does not have {rank} dimensions")));
        }
        let number = |name: &&str| self.config.get(*name).and_then(Value::as_u64);
        let configured = ["hidden_size", "dim", "d_model", "n_embd"].iter().find_map(number).map(|n| n as usize);
        let last = port.dims.last().copied().flatten().or(configured.filter(|_| rows == Rows::Tokens));
        let Some(width) = last else {
            let what = format!("its output {port} has no fixed width, and config.json no hidden_size");
            return Err(Error::file(&summary.path, what));
        };
        self.open(plan, file, (port, rows), width)
    }

    /// The logits of a graph with a head, if a graph runs the model: `width` numbers in each row.
    pub(crate) fn graph_logits(&self, rows: Rows, width: usize) -> Result<Option<Box<dyn Backbone>>> {
        let Some(plan) = &self.graph else { return Ok(None) };
        let file = single_file(plan)?;
        if width == 0 {
            let what = "config.json names no labels and no vocabulary, so the graph's logits have no meaning; ONNX Runtime does \
                        not run language models here";
            return Err(Error::file(&self.root, what));
        }
        let port = match &file.summary.outputs[..] {
            [only] => Some(only),
            _ => file.summary.output(&["logits"]),
        };
        let port = port.ok_or_else(|| missing(&file.summary, "logits"))?;
        let wanted = if rows == Rows::Sequences { 2 } else { 3 };
        let held = port.dims.last().copied().flatten().unwrap_or(width);
        // A reranker's score may have no dimension of its own.
        let is_scalar = width == 1 && port.dims.len() + 1 == wanted;
        if !port.dims.is_empty() && !is_scalar && (port.dims.len() != wanted || held != width) {
            let what = format!(
                "its output {port} should have {wanted} dimensions and, by config.json, {width} numbers in a row; was it \
                 exported for another task?"
            );
            return Err(Error::file(&file.summary.path, what));
        }
        Ok(Some(Box::new(self.open(plan, file, (port, rows), width)?)))
    }

    fn open(
        &self,
        plan: &GraphPlan,
        file: &GraphFile,
        (port, rows): (&GraphPort, Rows),
        width: usize,
    ) -> Result<GraphEncoder> {
        check_output(&file.summary, port, width)?;
        let limits = limits(self, file)?;
        let is_per_token = rows != Rows::Sequences;
        let padding = padding(&self.config, limits);
        let output = TextOutput { name: port.name.clone(), is_per_token, width, padding };
        let opened = Opened::open(&self.place, plan, file, (Some(output), None))?;
        Ok(GraphEncoder { opened, rows, width, limits, place: self.place.clone() })
    }
}

/// The file of a model with one graph.
fn single_file(plan: &GraphPlan) -> Result<&GraphFile> {
    plan.files.first().ok_or_else(|| plan.error("no graph was planned".into()))
}

pub(super) fn missing(summary: &GraphSummary, wanted: &str) -> Error {
    // A hostile file may have very many.
    let names: Vec<_> = summary.outputs.iter().take(8).map(|port| port.name.as_str()).collect();
    let more = if names.len() < summary.outputs.len() { ", …" } else { "" };
    let what = format!("has no output {wanted}, only {}{more}; was it exported for another task?", names.join(", "));
    Error::file(&summary.path, what)
}

/// Refuses an output whose numbers we do not read.
pub(super) fn check_output(summary: &GraphSummary, port: &GraphPort, width: usize) -> Result<()> {
    let what = if !port.element.is_float() {
        format!("its output {port} has a type that Sconce does not read; it reads float32 and float16")
    } else if !(1..=WIDEST).contains(&width) {
        format!("its output {port} would have {width} numbers in a row; Sconce reads 1 to {WIDEST}")
    } else {
        return Ok(());
    };
    Err(Error::file(&summary.path, what))
}

/// The id that fills short texts up.
pub(super) fn padding(config: &Value, limits: Limits) -> u32 {
    let configured = config.get("pad_token_id").and_then(Value::as_u64).filter(|id| *id < limits.vocabulary as u64);
    configured.and_then(|id| u32::try_from(id).ok()).unwrap_or(0)
}

/// The sizes of the model's tables, by its configuration: a graph does not name them.
fn limits(parts: &Parts, file: &GraphFile) -> Result<Limits> {
    let number = |name: &str| parts.config.get(name).and_then(Value::as_u64).and_then(|n| usize::try_from(n).ok());
    let Some(vocabulary) = number("vocab_size").filter(|n| *n > 0) else {
        let what = "no vocab_size, which a model needs that ONNX Runtime runs";
        return Err(Error::file(&parts.root.join("config.json"), what));
    };
    let kind = parts.config.get("model_type").and_then(Value::as_str).unwrap_or_default();
    let table = number("max_position_embeddings").or(number("n_positions")).unwrap_or(LONGEST);
    let counting = match FROM_PADDING.contains(&kind) {
        true => Positions::AfterPadding(number("pad_token_id").and_then(|id| u32::try_from(id).ok()).unwrap_or(1)),
        false => Positions::FromZero,
    };
    let before = if let Positions::AfterPadding(id) = counting { (id as usize).saturating_add(1) } else { 0 };
    let positions = table.saturating_sub(before).min(file.summary.fixed_length().unwrap_or(LONGEST));
    Ok(Limits { vocabulary, positions, types: number("type_vocab_size").filter(|n| *n > 0), counting })
}

impl GraphEncoder {
    /// An encoder of one row for each text, with these limits.
    pub(super) fn of_rows(opened: Opened, width: usize, limits: Limits, place: Place) -> GraphEncoder {
        GraphEncoder { opened, rows: Rows::Sequences, width, limits, place }
    }

    /// Whether the graph pools its hidden states itself.
    pub(crate) fn is_pooled(&self) -> bool {
        self.rows != Rows::Tokens
    }
}

impl Backbone for GraphEncoder {
    fn forward(&self, batch: &Batch, _: LayerHook<'_>) -> models::Result<Tensor> {
        let (segments, width) = (&batch.segments, self.width);
        let rows = if self.rows == Rows::Tokens { segments.tokens() } else { segments.count() };
        let Some(graph) = &self.opened.graph else {
            return Ok(Tensor::from_f32(&[], &[rows, width], DType::F32, &self.place)?);
        };
        let (ids, types, positions) = (batch.observe_ids(), batch.types.to_u32()?, batch.positions.to_u32()?);
        let (ranges, keys) = (segments.observe(), batch.keys.observe());
        let text = |i: usize| {
            let range = ranges.range(i);
            let (ids, positions) = (&ids[range.clone()], &positions[range.clone()]);
            GraphText { ids, types: &types[range], positions, keys: keys.range(i).len() }
        };
        let texts: Vec<_> = (0..segments.count()).map(text).collect();
        let mut values = vec![0f32; rows * width];
        let calls = graph.run(&texts, &mut |i, rows| match self.rows {
            Rows::Tokens => values[ranges.range(i).start * width..][..rows.len()].copy_from_slice(rows),
            Rows::Sequences => values[i * width..][..width].copy_from_slice(rows),
            Rows::Vocabulary(options) => pool_logits(rows, options, &mut values[i * width..][..width]),
        });
        self.opened.counted(calls)?;
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
