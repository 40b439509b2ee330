//! What runs on the device for a task: an encoder and what stands behind it.

use crate::config::Reading;
use crate::error::{Error, Result};
use crate::options::{Format, LoadOptions};
use crate::plan::{Outline, Plan, Trace};
use sconce_formats::{Checkpoint, Model};
use sconce_models::{Batch, Encoder, Limits, Sequence, encoder};
use sconce_ops::{DType, Device, Place, Tensor, WeightFormat, Weights, replay};
use serde_json::Value;
use std::path::{Path, PathBuf};
use std::sync::Arc;

/// No encoder has positions for longer texts; a file that says so is broken.
const LONGEST: usize = 1 << 20;

/// What a pipeline is made from.
pub(crate) struct Parts {
    /// The folder with the encoder's files, or its GGUF.
    pub(crate) root: PathBuf,
    /// Its configuration.
    pub(crate) config: Value,
    /// Its weights, in the dtype of the activations.
    pub(crate) weights: Weights,
    /// The dtype of the activations.
    pub(crate) dtype: DType,
    /// Where everything goes.
    place: Place,
}

impl Parts {
    pub(crate) fn open(root: &Path, (dtype, weight_format): (DType, WeightFormat), place: Place) -> Result<Parts> {
        let Model { config, store, .. } = Model::open(root)?;
        let weights = Weights::new(store, dtype, place.clone()).with_format(weight_format);
        Ok(Parts { root: root.to_path_buf(), config, weights, dtype, place })
    }

    /// The encoder, which must look at a text as the model in the files does.
    pub(crate) fn encoder(&self) -> Result<Box<dyn Encoder>> {
        let encoder = encoder(&self.config, &self.weights)?;
        let says = |key: &str, value: bool| self.config.get(key).and_then(Value::as_bool) == Some(value);
        if encoder.cache().is_some() && (says("is_causal", false) || says("use_bidirectional_attention", true)) {
            let what = "is a language model changed to look both ways (is_causal, use_bidirectional_attention), which is \
                        not supported";
            return Err(Error::file(&self.root, what));
        }
        Ok(encoder)
    }

    /// Weights of a module that has files of its own.
    pub(crate) fn module(&self, dir: &Path, dtype: DType) -> Result<Weights> {
        Ok(Weights::new(Arc::new(Checkpoint::open(dir)?), dtype, self.place.clone()))
    }

    /// Weights in a file `name` beside the encoder's, in the dtype of the activations.
    pub(crate) fn beside(&self, name: &str) -> Result<Weights> {
        let store = Checkpoint::beside(&self.root, name)?;
        Ok(Weights::new(Arc::new(store), self.dtype, self.place.clone()))
    }
}

/// All that runs on the device for a task: an encoder and what stands behind it.
pub(crate) trait Pipeline: Sized + 'static {
    /// What the model's files say of the task.
    type Spec: Clone + Send + Sync + 'static;
    /// Whether a GGUF file can hold such a model.
    const IN_GGUF: bool = false;

    /// How texts go in.
    fn reading(spec: &Self::Spec) -> &Reading;
    /// Loads what runs on the device; on a phantom place, only its shapes.
    fn load(parts: &Parts, spec: &Self::Spec) -> Result<Self>;
    /// The largest ids it can take.
    fn limits(&self) -> Limits;
    /// Numbers in a row of the first result.
    fn width(&self) -> usize;
    /// Results with a row for each sequence or for each token. `skips[i]` tokens at the head of sequence `i` belong to a prompt.
    fn forward(&self, batch: &Batch, skips: &[usize]) -> Result<Vec<Tensor>>;
    /// The encoder's last hidden state, a row for each token, where the task can do without what stands behind it.
    fn hidden(&self, _: &Batch) -> Result<Tensor> {
        Err(Error::Input("only models of sentence embeddings give the vectors of single tokens".into()))
    }
    /// The most sequences of a batch, where a result is wide.
    fn most_sequences(&self) -> usize {
        usize::MAX
    }
    /// Weights that were not read, of files besides the encoder's.
    fn unread(&self) -> Vec<String> {
        Vec::new()
    }
    /// Runs the largest batches there will be, for the plan and to compile kernels: long texts make the most activations, short
    /// ones the most results, and what holds for both holds for all between.
    fn dry_run(&self, place: &Place, tokens: usize, longest: usize) -> Result<()> {
        for length in [1, longest] {
            let sequences = dummy_sequences(tokens, length, self.most_sequences());
            self.forward(&Batch::new(&sequences, self.limits(), place)?, &vec![0; sequences.len()])?;
        }
        Ok(())
    }
    /// Runs a short sequence; what comes out must be numbers.
    fn sanity_check(&self, place: &Place) -> Result<Vec<Tensor>> {
        let limits = self.limits();
        let ids = (0..limits.positions.min(8)).map(|i| (i % limits.vocabulary) as u32).collect();
        self.forward(&Batch::new(&[Sequence { ids, ..Sequence::default() }], limits, place)?, &[0])
    }
}

/// Plans a pipeline on a device that need not be in this machine.
pub(super) fn plan<P: Pipeline>(spec: &P::Spec, device: Device, options: &LoadOptions) -> Result<Plan> {
    let budget = options.batch_tokens(device)?;
    let Format { dtype, weight_format, chosen } = options.format(device)?;
    let Reading { root, max_tokens, .. } = P::reading(spec);
    let mut trace = Trace::new(device, &options.policy);
    let (pipeline, unread, trained) = trace.load(|place| {
        let parts = Parts::open(root, (dtype, weight_format), place.clone())?;
        let pipeline = P::load(&parts, spec).map_err(|e| e.of(root))?;
        let mut unread = parts.weights.unused();
        unread.extend(pipeline.unread());
        let length = parts.config.get("max_position_embeddings").or(parts.config.get("n_positions"));
        let trained = length.and_then(Value::as_u64).unwrap_or(512);
        Ok((pipeline, unread, trained as usize))
    })?;
    // A model without a longest sequence is cut where it was trained, unless its files say otherwise.
    let most = pipeline.limits().positions;
    let max_tokens = max_tokens.unwrap_or(if most > LONGEST { trained } else { most }).min(most);
    if !(2..=LONGEST).contains(&max_tokens) {
        return Err(Error::file(root, format!("a longest sequence of {max_tokens} tokens; 2 to {LONGEST} make sense")));
    }
    if pipeline.width() == 0 {
        return Err(Error::file(root, "the model gives vectors of no numbers"));
    }
    let batch_tokens = budget.max(max_tokens);
    let place = trace.place.clone();
    let mut steps = trace.pass(|| pipeline.dry_run(&place, batch_tokens, max_tokens))?;
    // Two batches that make the same calls; one of them is the plan.
    steps.truncate(steps.len() / 2);
    let captured = replay::most_tokens(device).unwrap_or(0);
    trace.captured_pass(|| pipeline.dry_run(&place, captured.min(batch_tokens), captured.min(max_tokens)))?;
    let outline = Outline {
        dtype,
        weight_format,
        chosen,
        cache_tokens: 0,
        batch_tokens,
        max_tokens,
        dimension: pipeline.width(),
        vocabulary: pipeline.limits().vocabulary,
        most_sequences: pipeline.most_sequences(),
        root: root.clone(),
        unread,
    };
    Ok(trace.plan(steps, 0, outline))
}

/// `tokens` tokens in sequences of `length`, the last one shorter, and `most` of them.
pub(crate) fn dummy_sequences(tokens: usize, length: usize, most: usize) -> Vec<Sequence> {
    let of = |n: usize| Sequence { ids: vec![0; n], ..Sequence::default() };
    (0..tokens).step_by(length).take(most).map(|start| of(length.min(tokens - start))).collect()
}
