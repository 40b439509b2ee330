//! Multi-vector embeddings, compared by late interaction (ColBERT: Khattab and Zaharia 2020,
//! arXiv:2004.12832).

use super::TaskType;
use super::m3::OrM3;
use crate::config::{ColbertSpec, FileFacts, InputSpec, Side};
use crate::error::Result;
use crate::options::LoadOptions;
use crate::plan::Plan;
use crate::runtime::{Loaded, ModelInfo, RequestSettings};
use crate::workloads::encode::{EncodeItem, OutputKind, Outputs, Parts, Pipeline, Texts};
use sconce_hub::{Files, Progress, Reference};
use sconce_models::{Backbone, Batch, Limits};
use sconce_ops::{Device, Linear, Tensor, l2_norm};

/// The multi-vector embedding of one text: a vector per token.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct MultiVector {
    /// All rows, one after another.
    pub values: Vec<f32>,
    /// Dimension of a row.
    pub dimension: usize,
}

impl MultiVector {
    /// The rows, in the order of the tokens.
    pub fn rows(&self) -> impl Iterator<Item = &[f32]> {
        self.values.chunks_exact(self.dimension.max(1))
    }

    /// The MaxSim score of this document for the query: the sum over the query's vectors of their
    /// best match.
    pub fn max_sim(&self, query: &MultiVector) -> f32 {
        let dot = |a: &[f32], b: &[f32]| a.iter().zip(b).map(|(a, b)| a * b).sum::<f32>();
        let best = |q: &[f32]| self.rows().map(|d| dot(q, d)).fold(f32::NEG_INFINITY, f32::max);
        if self.values.is_empty() { 0.0 } else { query.rows().map(best).sum() }
    }
}

/// A multi-vector model, loaded and checked: ColBERT in Stanford's or PyLate's format, or bge-m3.
///
/// ```no_run
/// use sconce_engine::{LoadOptions, MultiVectorEncoder};
///
/// let model = "colbert-ir/colbertv2.0".parse()?;
/// let encoder = MultiVectorEncoder::load(&model, &LoadOptions::from_env()?, &())?;
/// let query = &encoder.queries(&["How many people live in Berlin?"])?.results[0];
/// let document = &encoder.documents(&["Berlin has 3.7 million inhabitants."])?.results[0];
/// println!("{:.2}", document.max_sim(query));
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[derive(Clone)]
pub struct MultiVectorEncoder(OrM3<ColbertPipeline>);

impl MultiVectorEncoder {
    /// Finds the files, plans, loads and checks the model.
    pub fn load(reference: &Reference, options: &LoadOptions, progress: &dyn Progress) -> Result<MultiVectorEncoder> {
        super::load(reference, options, progress)
    }

    /// Embeddings of queries: with the query marker, and expanded if the model was trained so.
    pub fn queries<T: AsRef<str> + Sync>(&self, texts: &[T]) -> Result<Outputs<MultiVector>> {
        self.embed(texts, Side::Query)
    }

    /// Embeddings of documents: with the document marker, and without tokens of the skip list.
    pub fn documents<T: AsRef<str> + Sync>(&self, texts: &[T]) -> Result<Outputs<MultiVector>> {
        self.embed(texts, Side::Document)
    }

    fn embed<T: AsRef<str> + Sync>(&self, texts: &[T], side: Side) -> Result<Outputs<MultiVector>> {
        let session = match &self.0 {
            OrM3::M3(m3) => return Ok(m3.embed(texts)?.map(|three| three.multi)),
            OrM3::Own(session) => session,
        };
        let inputs = session.read(|reader| session.spec.encode(reader, texts, side))?;
        let tokens = inputs.iter().map(|m| m.sequence.ids.len()).collect();
        let truncated = (0..inputs.len()).filter(|i| inputs[*i].truncated).collect();
        let (items, has_vector): (Vec<_>, Vec<_>) =
            inputs.into_iter().map(|m| (EncodeItem { sequence: m.sequence, skip: 0 }, m.has_vector)).unzip();
        let dimension = session.plan.dimension;
        session.outputs(OutputKind::Task, Texts { items, tokens, truncated }, |i, results| {
            let rows = results[0].chunks_exact(dimension).zip(&has_vector[i]).filter(|(_, has_vector)| **has_vector);
            Ok(MultiVector { values: rows.flat_map(|(row, _)| row.iter().copied()).collect(), dimension })
        })
    }
}

impl Loaded for MultiVectorEncoder {
    fn model(&self) -> &ModelInfo {
        self.0.model()
    }
    fn settings(&mut self) -> &mut RequestSettings {
        self.0.settings()
    }
}

impl TaskType for MultiVectorEncoder {
    fn serves(facts: &FileFacts) -> bool {
        facts.has_module("MultiVectorMask") || facts.has_module("Dense") || facts.class() == "HF_ColBERT"
    }
    fn also_reads(facts: &FileFacts) -> bool {
        facts.has_m3
    }
    fn plan_files(files: &Files, device: Device, options: &LoadOptions) -> Result<Plan> {
        OrM3::<ColbertPipeline>::plan(files, device, options, ColbertSpec::read)
    }
    fn load_files(files: &Files, options: &LoadOptions, progress: &dyn Progress) -> Result<MultiVectorEncoder> {
        Ok(MultiVectorEncoder(OrM3::load(files, options, progress, ColbertSpec::read)?))
    }
}

/// An encoder with a projection of every token. The vectors are L2-normalized if the files say so.
pub(crate) struct ColbertPipeline {
    encoder: Box<dyn Backbone>,
    projections: Vec<Linear>,
    normalize: bool,
    dimension: usize,
    unread: Vec<String>,
}

impl Pipeline for ColbertPipeline {
    type Spec = ColbertSpec;

    fn input_spec(spec: &ColbertSpec) -> &InputSpec {
        &spec.input_spec
    }

    fn load(parts: &Parts, spec: &ColbertSpec) -> Result<ColbertPipeline> {
        let encoder = parts.encoder()?;
        let (mut projections, mut unread) = (Vec::new(), Vec::new());
        let mut dimension = encoder.hidden_size();
        for dense in &spec.dense {
            let (projection, not_read) = parts.dense(dense, dimension, parts.dtype)?;
            projections.push(projection);
            dimension = dense.outputs;
            unread.extend(not_read);
        }
        // Stanford's projection; ignored if PyLate's files have the same one.
        parts.weights.skip("linear.weight");
        if spec.stanford {
            let w = parts.weights.of_head().sub("linear");
            let outputs = w.dims("weight")?.and_then(|dims| dims.first().copied()).unwrap_or(0);
            projections.push(Linear::load(&w, dimension, outputs, false)?);
            dimension = outputs;
        }
        Ok(ColbertPipeline { encoder, projections, normalize: spec.normalize, dimension, unread })
    }

    fn limits(&self) -> Limits {
        self.encoder.limits()
    }

    fn width(&self) -> usize {
        self.dimension
    }

    /// `[tokens, dimension]`.
    fn forward(&self, batch: &Batch, _: &[usize]) -> Result<Vec<Tensor>> {
        let mut y = self.encoder.forward(batch, &mut |_, _| {})?;
        for projection in &self.projections {
            y = projection.forward(&y)?;
        }
        Ok(vec![if self.normalize { l2_norm(&y)? } else { y }])
    }

    fn unread(&self) -> Vec<String> {
        self.unread.clone()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn max_sim_sums_the_best_match_per_query_vector() {
        let of = |values: &[f32]| MultiVector { values: values.to_vec(), dimension: 2 };
        let (query, document) = (of(&[1.0, 0.0, 0.0, 1.0]), of(&[0.5, 0.0, 0.6, -1.0, 0.0, 0.25]));
        assert_eq!(document.max_sim(&query), 0.6 + 0.25);
        assert_eq!(of(&[]).max_sim(&query), 0.0);
    }
}
