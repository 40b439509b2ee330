//! bge-m3: dense, sparse and multi-vector embeddings from one pass (Chen et al. 2024,
//! arXiv:2402.03216).

use super::TaskType;
use super::multi_vector::MultiVector;
use super::sparse::SparseVector;
use crate::config::{FileFacts, InputSpec, M3_MULTI_VECTOR, M3_SPARSE, SentenceSpec, has_m3};
use crate::error::{Error, Result};
use crate::options::LoadOptions;
use crate::plan::Plan;
use crate::runtime::{Loaded, ModelInfo, RequestSettings};
use crate::workloads::encode::{self, OutputKind, Outputs, Parts, Pipeline, Session, Texts};
use sconce_hub::{Files, Progress, Reference};
use sconce_models::{Backbone, Batch, Limits};
use sconce_ops::{Activation, Device, Linear, Tensor, l2_norm, pool};
use sconce_text::{Encoded, TextOrTokens};
use std::collections::BTreeMap;
use std::path::Path;
use std::sync::Arc;

/// Reads the settings of a bge-m3 model.
fn spec(dir: &Path) -> Result<SentenceSpec> {
    if !has_m3(dir) {
        let what = format!("no {M3_SPARSE} and {M3_MULTI_VECTOR} beside the weights: not a bge-m3 model");
        return Err(Error::file(dir, what));
    }
    SentenceSpec::read(dir)
}

/// All three embeddings of one text.
#[derive(Clone, Debug, Default)]
pub struct M3Embedding {
    /// The dense embedding, L2-normalized.
    pub dense: Vec<f32>,
    /// The sparse embedding: weights of the text's tokens.
    pub sparse: SparseVector,
    /// The multi-vector embedding: a vector per token except the first; each L2-normalized.
    pub multi: MultiVector,
}

/// A bge-m3 model, loaded and checked.
///
/// ```no_run
/// use sconce_engine::{LoadOptions, M3};
///
/// // One pass gives the dense, the sparse and the multi-vector embedding of a text.
/// let model = M3::load(&"BAAI/bge-m3".parse()?, &LoadOptions::from_env()?, &())?;
/// let embedding = &model.embed(&["A man is eating food."])?.results[0];
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[derive(Clone)]
pub struct M3 {
    session: Session<M3Pipeline>,
    /// Special tokens, which get no sparse weight.
    special: Arc<[u32]>,
}

impl Loaded for M3 {
    fn model(&self) -> &ModelInfo {
        &self.session.info
    }
    fn settings(&mut self) -> &mut RequestSettings {
        &mut self.session.settings
    }
}

impl TaskType for M3 {
    fn serves(facts: &FileFacts) -> bool {
        facts.has_m3
    }
    fn plan_files(files: &Files, device: Device, options: &LoadOptions) -> Result<Plan> {
        encode::plan::<M3Pipeline>(files, device, options, spec)
    }
    fn load_files(files: &Files, options: &LoadOptions, progress: &dyn Progress) -> Result<M3> {
        let session: Session<M3Pipeline> = Session::load(files, options, progress, spec)?;
        let special = ["<s>", "</s>", "<pad>", "<unk>", "[CLS]", "[SEP]", "[PAD]", "[UNK]"];
        let special = special.iter().filter_map(|token| session.text.id(token)).collect();
        Ok(M3 { session, special })
    }
}

impl M3 {
    /// Finds the files, plans, loads and checks the model.
    pub fn load(reference: &Reference, options: &LoadOptions, progress: &dyn Progress) -> Result<M3> {
        super::load(reference, options, progress)
    }

    /// All three embeddings of each text, in the order of the texts.
    pub fn embed<T: AsRef<str> + Sync>(&self, texts: &[T]) -> Result<Outputs<M3Embedding>> {
        self.run(self.session.read(|reader| reader.encode(texts, ""))?)
    }

    /// Like [`M3::embed`], for inputs that may be tokens.
    pub fn embed_inputs(&self, inputs: &[TextOrTokens<'_>]) -> Result<Outputs<M3Embedding>> {
        self.run(self.session.read(|reader| reader.encode_inputs(inputs, ""))?)
    }

    fn run(&self, encoded: Vec<Encoded>) -> Result<Outputs<M3Embedding>> {
        let ids: Vec<Vec<u32>> = encoded.iter().map(|e| e.ids.clone()).collect();
        let device = self.session.plan.device;
        self.session.outputs(OutputKind::Task, Texts::of(encoded, 0), |i, results| {
            let [dense, weights, vectors] = results else {
                return Err(Error::bug(device, "a pass without three outputs"));
            };
            let mut largest: BTreeMap<u32, f32> = BTreeMap::new();
            for (id, weight) in ids[i].iter().zip(*weights).filter(|(id, w)| **w > 0.0 && !self.special.contains(id)) {
                let largest_weight = largest.entry(*id).or_default();
                *largest_weight = largest_weight.max(*weight);
            }
            let dimension = vectors.len() / ids[i].len();
            Ok(M3Embedding {
                dense: dense.to_vec(),
                sparse: SparseVector {
                    ids: largest.keys().copied().collect(),
                    weights: largest.into_values().collect(),
                },
                // The first token represents the whole text, as the dense embedding already does.
                multi: MultiVector { values: vectors[dimension..].to_vec(), dimension },
            })
        })
    }

    /// The token of an id, as the tokenizer writes it.
    pub fn token(&self, id: u32) -> Option<String> {
        self.session.text.token(id)
    }
}

/// A session of a task's own pipeline, or bge-m3, whose outputs include the task's.
pub(super) enum OrM3<P: Pipeline> {
    Own(Session<P>),
    M3(M3),
}

impl<P: Pipeline> Clone for OrM3<P> {
    fn clone(&self) -> OrM3<P> {
        match self {
            OrM3::Own(session) => OrM3::Own(session.clone()),
            OrM3::M3(m3) => OrM3::M3(m3.clone()),
        }
    }
}

/// Reads a pipeline's settings from its files.
type Read<P> = fn(&Path) -> Result<<P as Pipeline>::Spec>;

impl<P: Pipeline> OrM3<P> {
    pub(super) fn plan(files: &Files, device: Device, options: &LoadOptions, read: Read<P>) -> Result<Plan> {
        match has_m3(&files.dir) {
            true => M3::plan_files(files, device, options),
            false => encode::plan::<P>(files, device, options, read),
        }
    }

    pub(super) fn load(
        files: &Files,
        options: &LoadOptions,
        progress: &dyn Progress,
        read: Read<P>,
    ) -> Result<OrM3<P>> {
        Ok(match has_m3(&files.dir) {
            true => OrM3::M3(M3::load_files(files, options, progress)?),
            false => OrM3::Own(Session::load(files, options, progress, read)?),
        })
    }

    pub(super) fn model(&self) -> &ModelInfo {
        match self {
            OrM3::Own(session) => &session.info,
            OrM3::M3(m3) => m3.model(),
        }
    }

    pub(super) fn request_settings(&self) -> &RequestSettings {
        match self {
            OrM3::Own(session) => &session.settings,
            OrM3::M3(m3) => &m3.session.settings,
        }
    }

    pub(super) fn settings(&mut self) -> &mut RequestSettings {
        match self {
            OrM3::Own(session) => &mut session.settings,
            OrM3::M3(m3) => m3.settings(),
        }
    }
}

/// An encoder with a dense, a sparse and a multi-vector output.
pub(crate) struct M3Pipeline {
    encoder: Box<dyn Backbone>,
    spec: SentenceSpec,
    sparse: Linear,
    multi: Linear,
}

impl Pipeline for M3Pipeline {
    type Spec = SentenceSpec;

    fn input_spec(spec: &SentenceSpec) -> &InputSpec {
        &spec.input_spec
    }

    fn load(parts: &Parts, spec: &SentenceSpec) -> Result<M3Pipeline> {
        let encoder = parts.encoder()?;
        let hidden = encoder.hidden_size();
        let (sparse, multi) = (parts.sibling_weights(M3_SPARSE)?, parts.sibling_weights(M3_MULTI_VECTOR)?);
        let vectors = multi.dims("weight")?.and_then(|dims| dims.first().copied()).unwrap_or(0);
        Ok(M3Pipeline {
            sparse: Linear::load(&sparse, hidden, 1, true)?.with(Activation::Relu),
            multi: Linear::load(&multi, hidden, vectors, true)?,
            encoder,
            spec: spec.clone(),
        })
    }

    fn limits(&self) -> Limits {
        self.encoder.limits()
    }

    fn width(&self) -> usize {
        self.encoder.hidden_size()
    }

    /// `[sequences, hidden]`, `[tokens, 1]` and `[tokens, dimension]`.
    fn forward(&self, batch: &Batch, skips: &[usize]) -> Result<Vec<Tensor>> {
        let hidden = self.encoder.forward(batch, &mut |_, _| {})?;
        let dense = l2_norm(&pool(&hidden, &batch.segments, skips, &self.spec.poolings)?)?;
        let multi = l2_norm(&self.multi.forward(&hidden)?)?;
        Ok(vec![dense, self.sparse.forward(&hidden)?, multi])
    }
}
