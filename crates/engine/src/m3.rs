//! bge-m3: a vector, weights over the vocabulary and a vector a token, from one pass (Chen et al. 2024, arXiv:2402.03216).

use crate::loaded::loaded;
use crate::multi::Vectors;
use crate::pipeline::{Parts, Pipeline, Reading};
use crate::sentence::Recipe;
use crate::session::{Lot, Session};
use crate::sparse::SparseVector;
use crate::{Error, LoadOptions, Result};
use sconce_hub::{self as hub, Files, Progress, Reference};
use sconce_models::{Batch, Encoder, Limits, encoder};
use sconce_ops::{Activation, Linear, Tensor, l2_norm, pool};
use sconce_text::{Encoded, TextOrTokens};
use std::collections::BTreeMap;
use std::path::Path;
use std::sync::Arc;

/// What the two projections are called beside the encoder's weights.
const SPARSE: &str = "sparse_linear";
const MULTI: &str = "colbert_linear";

/// Whether a directory holds such a model.
pub(crate) fn has_m3(dir: &Path) -> bool {
    [SPARSE, MULTI]
        .iter()
        .all(|name| ["pt", "safetensors"].iter().any(|end| dir.join(format!("{name}.{end}")).exists()))
}

/// All three of one text.
#[derive(Clone, Debug, Default)]
pub struct Three {
    /// The vector, of length one.
    pub dense: Vec<f32>,
    /// The weights of its tokens.
    pub sparse: SparseVector,
    /// A vector a token, but for the first; each of length one.
    pub multi: Vectors,
}

/// All three of several texts.
#[derive(Clone, Debug, Default)]
pub struct Threes {
    /// In the order of the texts.
    pub texts: Vec<Three>,
    /// Tokens of each text, as the model saw it.
    pub tokens: Vec<usize>,
    /// Which texts were longer than the model can take and were cut.
    pub truncated: Vec<usize>,
}

/// A bge-m3 model, loaded and proven.
#[derive(Clone)]
pub struct M3 {
    session: Session<Projected>,
    /// Tokens that carry no meaning of their own.
    special: Arc<[u32]>,
}

loaded!(M3, self => &self.session, how => M3 { session: self.session.but(how), ..self.clone() });

impl M3 {
    /// Finds the files, plans, loads and proves the model.
    pub fn load(reference: &Reference, options: &LoadOptions, progress: &dyn Progress) -> Result<M3> {
        Self::load_from(&hub::resolve(reference, &options.source, progress)?, options, progress)
    }

    pub(crate) fn load_from(files: &Files, options: &LoadOptions, progress: &dyn Progress) -> Result<M3> {
        let session: Session<Projected> = Session::load_from(files, options, progress, |dir| {
            if !has_m3(dir) {
                return Err(Error::file(
                    dir,
                    format!("no {SPARSE} and {MULTI} beside the weights: not a bge-m3 model"),
                ));
            }
            Recipe::read(dir)
        })?;
        let special = ["<s>", "</s>", "<pad>", "<unk>", "[CLS]", "[SEP]", "[PAD]", "[UNK]"];
        let special = special.iter().filter_map(|token| session.tokenizer.id(token)).collect();
        Ok(M3 { session, special })
    }

    /// All three of each text, in the order of the texts.
    pub fn embed<T: AsRef<str> + Sync>(&self, texts: &[T]) -> Result<Threes> {
        self.run(self.session.read(|reader| reader.encode(texts, ""))?)
    }

    /// The same where some are tokens already.
    pub fn embed_inputs(&self, inputs: &[TextOrTokens<'_>]) -> Result<Threes> {
        self.run(self.session.read(|reader| reader.encode_inputs(inputs, ""))?)
    }

    fn run(&self, encoded: Vec<Encoded>) -> Result<Threes> {
        let Lot { works, tokens, truncated } = Lot::of(encoded, 0);
        let ids: Vec<Vec<u32>> = works.iter().map(|w| w.sequence.ids.clone()).collect();
        let mut all = vec![Three::default(); works.len()];
        self.session.run(works, |i, results| {
            let [dense, weights, vectors] = results else { return Err(Error::Input("three results".into())) };
            let mut largest: BTreeMap<u32, f32> = BTreeMap::new();
            for (id, weight) in ids[i].iter().zip(*weights).filter(|(id, w)| **w > 0.0 && !self.special.contains(id)) {
                let kept = largest.entry(*id).or_default();
                *kept = kept.max(*weight);
            }
            let dimension = vectors.len() / ids[i].len();
            all[i] = Three {
                dense: dense.to_vec(),
                sparse: SparseVector {
                    ids: largest.keys().copied().collect(),
                    weights: largest.into_values().collect(),
                },
                // The first token stands for the text as a whole, which the dense vector does already.
                multi: Vectors { values: vectors[dimension..].to_vec(), dimension },
            };
            Ok(())
        })?;
        Ok(Threes { texts: all, tokens, truncated })
    }

    /// The token of an id, as the tokenizer writes it.
    pub fn token(&self, id: u32) -> Option<String> {
        self.session.tokenizer.token(id)
    }
}

/// An encoder with three ends.
pub(crate) struct Projected {
    encoder: Box<dyn Encoder>,
    recipe: Recipe,
    sparse: Linear,
    multi: Linear,
}

impl Pipeline for Projected {
    type Recipe = Recipe;

    fn reading(recipe: &Recipe) -> Reading {
        recipe.reading.clone()
    }

    fn load(parts: &Parts, recipe: &Recipe) -> Result<Projected> {
        let encoder = encoder(&parts.config, &parts.weights)?;
        let hidden = encoder.hidden_size();
        let (sparse, multi) = (parts.beside(SPARSE)?, parts.beside(MULTI)?);
        let vectors = multi.dims("weight")?.and_then(|dims| dims.first().copied()).unwrap_or(0);
        Ok(Projected {
            sparse: Linear::load(&sparse, hidden, 1, true)?.with(Activation::Relu),
            multi: Linear::load(&multi, hidden, vectors, true)?,
            encoder,
            recipe: recipe.clone(),
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
        let dense = l2_norm(&pool(&hidden, &batch.segments, skips, &self.recipe.poolings)?)?;
        let multi = l2_norm(&self.multi.forward(&hidden)?)?;
        Ok(vec![dense, self.sparse.forward(&hidden)?, multi])
    }
}
