//! What runs on the device for a task: an encoder and the layers after it.

use super::graph;
use crate::config::{Dense, DenseWeights, InputSpec};
use crate::dtype::Formats;
use crate::error::{Error, Result};
use crate::graph::GraphPlan;
use crate::options::LoadOptions;
use crate::plan::{Plan, PlanDetails, Trace};
use sconce_formats::{Checkpoint, Model};
use sconce_models::{Backbone, Batch, Limits, Sequence, backbone, sequence_backbone};
use sconce_ops::{DType, Device, Linear, Place, Pooling, Tensor, WeightFormat, Weights, replay};
use serde_json::Value;
use std::ops::Range;
use std::path::PathBuf;
use std::sync::Arc;

/// The longest sequence of any encoder; a file that claims more is broken.
pub(super) const LONGEST: usize = 1 << 20;

/// The inputs for loading a pipeline.
pub(crate) struct Parts {
    /// The folder with the encoder's files, or its GGUF file.
    pub(crate) root: PathBuf,
    /// The encoder's configuration.
    pub(crate) config: Value,
    /// The encoder's weights, in the dtype of the activations.
    pub(crate) weights: Weights,
    /// The dtype of the activations.
    pub(crate) dtype: DType,
    /// The place to load into.
    pub(super) place: Place,
    /// The graph that another engine runs in place of the encoder.
    pub(super) graph: Option<GraphPlan>,
}

impl Parts {
    pub(crate) fn new(model: Model, (dtype, weight_format): (DType, WeightFormat), place: Place) -> Parts {
        let Model { root, config, store, .. } = model;
        let weights = Weights::new(store, dtype, place.clone()).with_format(weight_format);
        Parts { root, config, weights, dtype, place, graph: None }
    }

    /// The same parts, with a graph that another engine runs in place of the encoder.
    pub(super) fn with_graph(self, graph: Option<GraphPlan>) -> Parts {
        Parts { graph, ..self }
    }

    /// The encoder, and whether its rows are pooled already, as a graph may do. Fails if the files
    /// declare an attention direction that we do not support.
    pub(crate) fn encoder_or_graph(&self) -> Result<(Box<dyn Backbone>, bool)> {
        let Some(plan) = &self.graph else { return Ok((self.encoder()?, false)) };
        let encoder = self.graph_encoder(plan)?;
        let is_pooled = encoder.is_pooled();
        Ok((Box::new(encoder), is_pooled))
    }

    /// The encoder. Fails if the files declare an attention direction that we do not support.
    pub(crate) fn encoder(&self) -> Result<Box<dyn Backbone>> {
        self.check_direction(backbone(&self.config, &self.weights)?)
    }

    /// The encoder under a sequence classification head.
    pub(crate) fn sequence_encoder(&self) -> Result<Box<dyn Backbone>> {
        self.check_direction(sequence_backbone(&self.config, &self.weights)?)
    }

    fn check_direction(&self, encoder: Box<dyn Backbone>) -> Result<Box<dyn Backbone>> {
        let says = |key: &str, value: bool| self.config.get(key).and_then(Value::as_bool) == Some(value);
        if encoder.cache().is_some() && (says("is_causal", false) || says("use_bidirectional_attention", true)) {
            let kind = self.config.get("model_type").and_then(Value::as_str).unwrap_or_default();
            let what = format!(
                "model_type `{kind}` with bidirectional attention (is_causal, use_bidirectional_attention) is not \
                 supported"
            );
            return Err(Error::file(&self.root, what));
        }
        Ok(encoder)
    }

    /// A dense layer for inputs of this width, and the tensors in its folder that it does not read.
    pub(crate) fn dense(&self, dense: &Dense, inputs: usize, dtype: DType) -> Result<(Linear, Vec<String>)> {
        match &dense.weights {
            DenseWeights::Folder(dir) => {
                let w = Weights::new(Arc::new(Checkpoint::open(dir)?), dtype, self.place.clone());
                Ok((dense.load(inputs, &w)?, w.unused()))
            }
            DenseWeights::Encoder(prefix) => {
                let w = self.weights.of_head().in_dtype(dtype).sub(prefix);
                Ok((dense.load(inputs, &w)?, Vec::new()))
            }
        }
    }

    /// Weights in a file `name` next to the encoder's, in the dtype of the activations.
    pub(crate) fn sibling_weights(&self, name: &str) -> Result<Weights> {
        let store = Checkpoint::open_extra(&self.root, name)?;
        Ok(Weights::new(Arc::new(store), self.dtype, self.place.clone()))
    }
}

/// What of a kind of model another engine can run.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum GraphUse {
    /// Nothing.
    None,
    /// The encoder of texts.
    Texts,
    /// The encoders of texts and of images.
    Towers,
}

/// What runs on the device for a task: an encoder and the layers after it.
pub(crate) trait Pipeline: Sized + 'static {
    /// The task's settings from the model's files.
    type Spec: Clone + Send + Sync + 'static;
    /// Whether a GGUF file can hold such a model.
    const IN_GGUF: bool = false;
    /// What of such a model another engine can run.
    const GRAPH: GraphUse = GraphUse::None;

    /// The tokenization settings.
    fn input_spec(spec: &Self::Spec) -> &InputSpec;
    /// Loads the weights onto the device; in a phantom place, only their shapes.
    fn load(parts: &Parts, spec: &Self::Spec) -> Result<Self>;
    /// The largest ids and positions it can take.
    fn limits(&self) -> Limits;
    /// Width of a row of the first output.
    fn width(&self) -> usize;
    /// Outputs with one row per sequence or per token. The first `skips[i]` tokens of sequence `i`
    /// belong to a prompt.
    fn forward(&self, batch: &Batch, skips: &[usize]) -> Result<Vec<Tensor>>;
    /// The rows of each sequence, if a sequence has neither one row nor one per token. Then the
    /// outputs are parts of one result, which follow each other.
    fn result_rows(&self, _: &Batch) -> Option<Vec<Range<usize>>> {
        None
    }
    /// Like [`Pipeline::forward`], with this pooling instead of its own, for tasks that offer it.
    fn forward_pooled(&self, _: &Batch, _: &[usize], _: Pooling) -> Result<Vec<Tensor>> {
        Err(Error::Input("only embedding models and rerankers take another pooling".into()))
    }
    /// The encoder's last hidden state, a row per token, for tasks that offer it.
    fn hidden(&self, _: &Batch) -> Result<Tensor> {
        Err(Error::Input("only embedding models give the vectors of single tokens".into()))
    }
    /// The most sequences in a batch, for wide outputs.
    fn most_sequences(&self) -> usize {
        usize::MAX
    }
    /// How many tasks have a low-rank update (LoRA) that batches may ask for.
    fn tasks(&self) -> usize {
        0
    }
    /// Unread weights in files other than the encoder's.
    fn unread(&self) -> Vec<String> {
        Vec::new()
    }
    /// Runs the largest batches, for the plan and to compile kernels: a batch of long texts needs
    /// the most memory for activations, one of short texts the most for outputs.
    fn dry_run(&self, place: &Place, tokens: usize, longest: usize) -> Result<()> {
        self.dry_pass(place, tokens, 1)?;
        self.dry_pass(place, tokens, longest)
    }
    /// Runs a batch of texts of `length` tokens, and with a task's update, which needs more memory
    /// than without.
    fn dry_pass(&self, place: &Place, tokens: usize, length: usize) -> Result<()> {
        let sequences = dummy_sequences(tokens, length, self.most_sequences());
        let batch = Batch::new(&sequences, self.limits(), place)?.for_task((self.tasks() > 0).then_some(0));
        self.forward(&batch, &vec![0; sequences.len()])?;
        Ok(())
    }
    /// Runs texts of several lengths; their outputs must be finite.
    fn sanity_check(&self, place: &Place) -> Result<Vec<Tensor>> {
        let limits = self.limits();
        let longest = sanity_tokens(place.device());
        let sequence =
            |n: usize| Sequence { ids: varied_ids(n.min(limits.positions), limits.vocabulary), ..Sequence::default() };
        let batch = Batch::new(&[3, 17, longest].map(sequence), limits, place)?;
        let mut results = self.forward(&batch, &[0; 3])?;
        for task in 0..self.tasks() {
            results.extend(self.forward(&batch.clone().for_task(Some(task)), &[0; 3])?);
        }
        Ok(results)
    }
}

/// Plans a pipeline on a device that need not be in this machine.
pub(super) fn plan<P: Pipeline>(spec: &P::Spec, device: Device, options: &LoadOptions) -> Result<Plan> {
    let InputSpec { root, max_tokens, .. } = P::input_spec(spec);
    let graph = graph::choose::<P>(root, device, options)?;
    let budget = graph.as_ref().map_or_else(|| options.batch_tokens(device), |graph| Ok(graph.batch_tokens))?;
    let (device, model, formats) = match &graph {
        // The other engine has the device; what follows the graph runs on the CPU.
        Some(_) => (Device::Cpu, graph::model(root)?, Formats::of_graph(options.dtype)?),
        None => {
            let model = Model::open(root)?;
            let formats = options.dtype.of_encoder(&model, device, &options.policy)?;
            (device, model, formats)
        }
    };
    let mut trace = Trace::new(device, &options.policy);
    let (pipeline, unread, trained) = trace.load(|place| {
        let parts = Parts::new(model, (formats.dtype, formats.weight_format), place.clone()).with_graph(graph.clone());
        let pipeline = P::load(&parts, spec).map_err(|e| e.with_root(root))?;
        let mut unread = parts.weights.unused();
        unread.extend(pipeline.unread());
        let length = parts.config.get("max_position_embeddings").or(parts.config.get("n_positions"));
        let trained = length.and_then(Value::as_u64).unwrap_or(512);
        Ok((pipeline, unread, trained as usize))
    })?;
    // A model without a maximum length truncates at its training length, unless its files say
    // otherwise.
    let most = pipeline.limits().positions;
    let max_tokens = max_tokens.unwrap_or(if most > LONGEST { trained } else { most }).min(most);
    if !(2..=LONGEST).contains(&max_tokens) {
        return Err(Error::file(
            root,
            format!("a maximum length of {max_tokens} tokens is out of range: 2 to {LONGEST}"),
        ));
    }
    if pipeline.width() == 0 {
        return Err(Error::file(root, "the model's embeddings have 0 dimensions"));
    }
    let batch_tokens = budget.max(max_tokens);
    let place = trace.place.clone();
    // Most models make the same calls for both batches; the plan lists those for short texts.
    let steps = trace.pass(|| pipeline.dry_pass(&place, batch_tokens, 1))?;
    trace.pass(|| pipeline.dry_pass(&place, batch_tokens, max_tokens))?;
    let captured = replay::most_tokens(device).unwrap_or(0);
    trace.captured_pass(|| pipeline.dry_run(&place, captured.min(batch_tokens), captured.min(max_tokens)))?;
    let details = PlanDetails {
        formats,
        cache_format: None,
        cache_tokens: 0,
        batch_tokens,
        max_tokens,
        dimension: pipeline.width(),
        vocabulary: pipeline.limits().vocabulary,
        most_sequences: pipeline.most_sequences(),
        root: root.clone(),
        unread,
    };
    Ok(Plan { graph, ..trace.plan(steps, 0, details) })
}

/// The length of the longest text in a sanity check: that of a paragraph on a GPU, where formats
/// overflow and tokens are cheap.
pub(crate) fn sanity_tokens(device: Device) -> usize {
    if device.is_gpu() { 256 } else { 32 }
}

/// Ids from all over the vocabulary.
pub(crate) fn varied_ids(n: usize, vocabulary: usize) -> Vec<u32> {
    // The step is a prime near the golden ratio of 2^32, so that neighbours are far apart.
    (0..n as u64).map(|i| (i.wrapping_mul(2_654_435_761) % vocabulary.max(1) as u64) as u32).collect()
}

/// `tokens` tokens in at most `most` sequences of `length`, the last one shorter.
pub(crate) fn dummy_sequences(tokens: usize, length: usize, most: usize) -> Vec<Sequence> {
    let of = |n: usize| Sequence { ids: vec![0; n], ..Sequence::default() };
    (0..tokens).step_by(length).take(most).map(|start| of(length.min(tokens - start))).collect()
}
