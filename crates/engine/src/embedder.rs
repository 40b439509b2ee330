//! Texts to vectors.

use crate::sentence::{Module, Recipe};
use crate::session::{Lot, Parts, Pipeline, Reading, Session, Work, loaded};
use crate::source::{Progress, Reference};
use crate::{Error, LoadOptions, Result};
use sconce_models::{Batch, Encoder, Limits};
use sconce_ops::{DType, Linear, Pooling, Tensor, l2_norm, pool};

/// Which prompt stands before each text.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub enum Prompt {
    /// The model's default, if it has one.
    #[default]
    Default,
    /// One of the model's prompts, by name (`query`, `document`).
    Named(String),
    /// These words.
    Text(String),
}

/// Vectors of several texts.
#[derive(Clone, Debug, Default)]
pub struct Embeddings {
    /// All rows, one after another, in the order of the texts.
    pub values: Vec<f32>,
    /// Numbers in a row.
    pub dimension: usize,
    /// Tokens of each text, as the model saw it.
    pub tokens: Vec<usize>,
    /// Which texts were longer than the model can take and were cut.
    pub truncated: Vec<usize>,
}

impl Embeddings {
    /// The vector of text `i`.
    pub fn row(&self, i: usize) -> &[f32] {
        &self.values[i * self.dimension..][..self.dimension]
    }

    /// All vectors, in the order of the texts.
    pub fn rows(&self) -> impl Iterator<Item = &[f32]> {
        self.values.chunks_exact(self.dimension.max(1))
    }

    /// The first `dimension` numbers of each vector, brought to length one again: for models trained to be cut (Matryoshka,
    /// Kusupati et al. 2022, arXiv:2205.13147).
    pub fn cut(self, dimension: usize) -> Result<Embeddings> {
        if !(1..=self.dimension).contains(&dimension) {
            let what = format!("{dimension} dimensions of a vector that has {}: choose from 1 to that", self.dimension);
            return Err(Error::Input(what));
        }
        let cut = |row: &[f32]| -> Vec<f32> {
            let row = &row[..dimension];
            let length = row.iter().map(|v| f64::from(*v).powi(2)).sum::<f64>().sqrt().max(1e-12);
            row.iter().map(|v| (f64::from(*v) / length) as f32).collect()
        };
        let values = self.rows().flat_map(cut).collect();
        Ok(Embeddings { values, dimension, ..self })
    }
}

/// A sentence-transformers model, or a GGUF file of one, loaded and proven.
pub struct Embedder {
    session: Session<Sentence>,
}

loaded!(Embedder, self => &self.session);

impl Embedder {
    /// Finds the files, plans, loads and proves the model. Nothing is loaded that the plan says cannot run or will not fit.
    pub fn load(reference: &Reference, options: &LoadOptions, progress: &dyn Progress) -> Result<Embedder> {
        Ok(Embedder { session: Session::load(reference, options, progress, Recipe::read)? })
    }

    /// Vectors of `texts`, in their order. The vector of a text does not depend on the others.
    pub fn embed<T: AsRef<str> + Sync>(&self, texts: &[T], prompt: &Prompt) -> Result<Embeddings> {
        let Session { tokenizer, recipe, plan, .. } = &self.session;
        let prompt = recipe.prompt(prompt)?;
        let skip = match prompt {
            "" => 0,
            _ if recipe.include_prompt => 0,
            _ => tokenizer.prompt_tokens(prompt)?,
        };
        let Lot { mut works, tokens, truncated } = Lot::of(tokenizer.encode(texts, prompt)?, skip);
        // Where nothing but the prompt is left, nothing counts: the pooled vector is all zeros, as in sentence-transformers. Only
        // a dense layer would make something of those, and it is given the last token.
        if !recipe.tail.iter().any(|module| matches!(module, Module::Dense(_))) {
            works
                .iter_mut()
                .filter(|work| work.skip >= work.sequence.ids.len())
                .for_each(|work| *work = Work::default());
        }
        let dimension = plan.dimension;
        let mut values = vec![0f32; texts.len() * dimension];
        self.session.run(works, |i, results| {
            values[i * dimension..][..dimension].copy_from_slice(results[0]);
            Ok(())
        })?;
        Ok(Embeddings { values, dimension, tokens, truncated })
    }

    /// Names of the model's prompts.
    pub fn prompts(&self) -> impl Iterator<Item = &str> {
        self.session.recipe.prompts.keys().map(String::as_str)
    }
}

/// Encoder, pooling and what follows.
pub(crate) struct Sentence {
    encoder: Box<dyn Encoder>,
    poolings: Vec<Pooling>,
    tail: Vec<Stage>,
    dimension: usize,
    unread: Vec<String>,
}

enum Stage {
    Dense(Linear),
    Normalize,
}

impl Pipeline for Sentence {
    type Recipe = Recipe;
    const IN_GGUF: bool = true;

    fn reading(recipe: &Recipe) -> Reading {
        recipe.reading.clone()
    }

    fn load(parts: &Parts, recipe: &Recipe) -> Result<Sentence> {
        let encoder = parts.encoder()?;
        let mut dimension = encoder.hidden_size() * recipe.poolings.len();
        let (mut tail, mut unread) = (Vec::new(), Vec::new());
        for module in &recipe.tail {
            tail.push(match module {
                Module::Normalize => Stage::Normalize,
                Module::Dense(dense) => {
                    // Vectors are f32 from the pooling on.
                    let w = parts.module(&dense.dir, DType::F32)?;
                    let linear = dense.load(dimension, &w)?;
                    dimension = dense.outputs;
                    unread.extend(w.unused());
                    Stage::Dense(linear)
                }
            });
        }
        Ok(Sentence { encoder, poolings: recipe.poolings.clone(), tail, dimension, unread })
    }

    fn limits(&self) -> Limits {
        self.encoder.limits()
    }

    fn width(&self) -> usize {
        self.dimension
    }

    /// f32 `[sequences, dimension]`.
    fn forward(&self, batch: &Batch, skips: &[usize]) -> Result<Vec<Tensor>> {
        let hidden = self.encoder.forward(batch, &mut |_, _| {})?;
        let mut y = pool(&hidden, &batch.segments, skips, &self.poolings)?;
        drop(hidden);
        for stage in &self.tail {
            y = match stage {
                Stage::Dense(linear) => linear.forward(&y)?,
                Stage::Normalize => l2_norm(&y)?,
            };
        }
        Ok(vec![y])
    }

    fn unread(&self) -> Vec<String> {
        self.unread.clone()
    }
}
