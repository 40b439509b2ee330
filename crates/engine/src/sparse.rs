//! Texts to weights over the vocabulary.

use crate::loaded::{Loaded, loaded};
use crate::m3::{M3, has_m3};
use crate::pipeline::{Parts, Pipeline, Reading};
use crate::sentence::{Entry, plain_reading, reading};
use crate::session::{Lot, Session};
use crate::{Error, LoadOptions, Result};
use sconce_formats::{json, optional_json};
use sconce_hub::{Progress, Reference};
use sconce_models::{Batch, Encoder, Head, Limits, Task, encoder, head};
use sconce_ops::{Splade as How, Tensor, splade};
use sconce_text::TextOrTokens;
use serde::Deserialize;
use std::path::Path;

/// Weights of some tokens of the vocabulary; all others are zero.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct SparseVector {
    /// Token ids, ascending.
    pub ids: Vec<u32>,
    /// Their weights, above zero.
    pub weights: Vec<f32>,
}

impl SparseVector {
    /// From a weight per token of the vocabulary.
    fn of(row: &[f32]) -> SparseVector {
        let some = || row.iter().enumerate().filter(|(_, w)| **w > 0.0);
        SparseVector { ids: some().map(|(i, _)| i as u32).collect(), weights: some().map(|(_, w)| *w).collect() }
    }

    /// The products of the tokens that both have, summed: how alike two texts are.
    pub fn dot(&self, other: &SparseVector) -> f32 {
        let weight = |(i, id)| other.ids.binary_search(id).map_or(0.0, |j| self.weights[i] * other.weights[j]);
        self.ids.iter().enumerate().map(weight).sum()
    }
}

/// Sparse vectors of several texts.
#[derive(Clone, Debug, Default)]
pub struct SparseEmbeddings {
    /// In the order of the texts.
    pub vectors: Vec<SparseVector>,
    /// Tokens of each text, as the model saw it.
    pub tokens: Vec<usize>,
    /// Which texts were longer than the model can take and were cut.
    pub truncated: Vec<usize>,
}

/// A model that weighs the vocabulary, loaded and proven: SPLADE through the head of a masked language model, or bge-m3.
#[derive(Clone)]
pub struct Sparse(Kind);

#[derive(Clone)]
enum Kind {
    Splade(Session<Splade>),
    M3(M3),
}

impl Sparse {
    /// Finds the files, plans, loads and proves the model.
    pub fn load(reference: &Reference, options: &LoadOptions, progress: &dyn Progress) -> Result<Sparse> {
        let files = sconce_hub::resolve(reference, &options.source, progress)?;
        if has_m3(&files.dir) {
            return Ok(Sparse(Kind::M3(M3::load_from(&files, options, progress)?)));
        }
        Ok(Sparse(Kind::Splade(Session::load_from(&files, options, progress, SpladeRecipe::read)?)))
    }

    /// Weights of `texts`, in their order.
    pub fn embed<T: AsRef<str> + Sync>(&self, texts: &[T]) -> Result<SparseEmbeddings> {
        let inputs: Vec<_> = texts.iter().map(|text| TextOrTokens::Text(text.as_ref())).collect();
        self.embed_inputs(&inputs)
    }

    /// The same where some are tokens already.
    pub fn embed_inputs(&self, inputs: &[TextOrTokens<'_>]) -> Result<SparseEmbeddings> {
        let session = match &self.0 {
            Kind::M3(m3) => {
                let all = m3.embed_inputs(inputs)?;
                let vectors = all.texts.into_iter().map(|t| t.sparse).collect();
                return Ok(SparseEmbeddings { vectors, tokens: all.tokens, truncated: all.truncated });
            }
            Kind::Splade(session) => session,
        };
        let encoded = session.read(|reader| reader.encode_inputs(inputs, ""))?;
        let Lot { works, tokens, truncated } = Lot::of(encoded, 0);
        let mut vectors = vec![SparseVector::default(); works.len()];
        session.run(works, |i, results| {
            vectors[i] = SparseVector::of(results[0]);
            Ok(())
        })?;
        Ok(SparseEmbeddings { vectors, tokens, truncated })
    }

    /// The token of an id, as the tokenizer writes it.
    pub fn token(&self, id: u32) -> Option<String> {
        match &self.0 {
            Kind::Splade(session) => session.tokenizer.token(id),
            Kind::M3(m3) => m3.token(id),
        }
    }
}

loaded!(Sparse, self => match &self.0 {
    Kind::Splade(session) => session as &dyn Loaded,
    Kind::M3(m3) => m3,
}, how => Sparse(match &self.0 {
    Kind::Splade(session) => Kind::Splade(session.but(how)),
    Kind::M3(m3) => Kind::M3(m3.but(how)),
}));

/// What the files say of the weights.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct SpladeRecipe {
    reading: Reading,
    how: How,
}

#[derive(Deserialize)]
struct PoolingConfig {
    #[serde(default = "max")]
    pooling_strategy: String,
    #[serde(default = "relu")]
    activation_function: String,
}

fn max() -> String {
    "max".into()
}

fn relu() -> String {
    "relu".into()
}

impl SpladeRecipe {
    /// The sentence-transformers files, or a plain masked language model, which is read as SPLADE's authors do.
    pub(crate) fn read(dir: &Path) -> Result<SpladeRecipe> {
        let path = dir.join("modules.json");
        let Some(modules) = optional_json::<Vec<Entry>>(&path)? else {
            return Ok(SpladeRecipe { reading: plain_reading(dir)?, how: How { sum: false, twice: false } });
        };
        let classes: Vec<&str> = modules.iter().map(Entry::class).collect();
        let ["Transformer" | "MLMTransformer", "SpladePooling"] = classes[..] else {
            let what = format!(
                "modules {}: not a SPLADE model, which is a transformer and a SpladePooling",
                classes.join(", ")
            );
            return Err(Error::file(&path, what));
        };
        let reading = reading(&modules[0].folder(dir, &path)?, dir)?;
        let path = modules[1].folder(dir, &path)?.join("config.json");
        let config: PoolingConfig = json(&path)?;
        let sum = match &*config.pooling_strategy {
            "max" => false,
            "sum" => true,
            other => return Err(Error::file(&path, format!("pooling_strategy `{other}` is not known"))),
        };
        let twice = match &*config.activation_function {
            "relu" => false,
            "log1p_relu" => true,
            other => return Err(Error::file(&path, format!("activation_function `{other}` is not known"))),
        };
        Ok(SpladeRecipe { reading, how: How { sum, twice } })
    }
}

/// An encoder, and the head of a masked language model taken together over each sequence.
pub(crate) struct Splade {
    encoder: Box<dyn Encoder>,
    head: Head,
    how: How,
}

impl Pipeline for Splade {
    type Recipe = SpladeRecipe;

    fn reading(recipe: &SpladeRecipe) -> Reading {
        recipe.reading.clone()
    }

    fn load(parts: &Parts, recipe: &SpladeRecipe) -> Result<Splade> {
        let encoder = encoder(&parts.config, &parts.weights)?;
        let head = head(Task::Vocabulary, &parts.config, &parts.weights)?;
        Ok(Splade { encoder, head, how: recipe.how })
    }

    fn limits(&self) -> Limits {
        self.encoder.limits()
    }

    fn width(&self) -> usize {
        self.head.out.outputs()
    }

    /// A row is a vocabulary: 256 of them are 30 MB of BERT's and 256 MB of XLM-RoBERTa's.
    fn most_sequences(&self) -> usize {
        256
    }

    /// f32 `[sequences, vocabulary]`.
    fn forward(&self, batch: &Batch, _: &[usize]) -> Result<Vec<Tensor>> {
        let hidden = self.encoder.forward(batch, &mut |_, _| {})?;
        let hidden = self.head.before(&hidden)?;
        Ok(vec![splade(&hidden, &batch.segments, &self.head.out, self.how)?])
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sparse_vectors_keep_what_is_above_zero_and_meet_where_both_have_a_weight() {
        let (a, b) = (SparseVector::of(&[0.0, 2.0, 0.0, 1.0]), SparseVector::of(&[5.0, 3.0, 0.0, 0.5]));
        assert_eq!((a.ids.as_slice(), a.weights.as_slice()), (&[1, 3][..], &[2.0, 1.0][..]));
        assert_eq!((a.dot(&b), b.dot(&a)), (6.5, 6.5));
        assert_eq!(a.dot(&SparseVector::default()), 0.0);
    }
}
