//! Texts to labelled pieces: names, places, parts of speech.

use crate::classifier::{Scores, check_labels, labels};
use crate::line::Work;
use crate::loaded::loaded;
use crate::pipeline::{Parts, Pipeline, Reading};
use crate::sentence::plain_reading;
use crate::session::{Held, Session};
use crate::{Error, LoadOptions, Result};
use sconce_formats::json;
use sconce_hub::{Progress, Reference};
use sconce_models::{Batch, Encoder, Head, Limits, Task, encoder, head};
use sconce_ops::Tensor;
use sconce_text::aggregate::{Labels, Scored, aggregate};
use sconce_text::words::Continuation;
use serde_json::Value;
use std::path::Path;

pub use sconce_text::aggregate::{Entity, Strategy};

/// What was found in a text.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Tagged {
    /// In the order of the text. Places count characters, not bytes.
    pub entities: Vec<Entity>,
    /// Tokens, as the model saw the text.
    pub tokens: usize,
    /// Whether the text was longer than the model can take, and was cut.
    pub truncated: bool,
}

/// A model with a head for token classification, loaded and proven.
#[derive(Clone)]
pub struct Tagger {
    session: Session<Tokenwise>,
    continuation: Continuation,
}

loaded!(Tagger, self => &self.session, how => Tagger { session: self.session.but(how), ..self.clone() });

impl Tagger {
    /// Finds the files, plans, loads and proves the model.
    pub fn load(reference: &Reference, options: &LoadOptions, progress: &dyn Progress) -> Result<Tagger> {
        let session: Session<Tokenwise> = Session::load(reference, options, progress, TagRecipe::read)?;
        let continuation = Continuation::of(session.tokenizer.inner());
        Ok(Tagger { session, continuation })
    }

    /// What each text holds, in the order of the texts: entities that score `threshold` at least, without those labelled `O`.
    pub fn tag<T: AsRef<str> + Sync>(&self, texts: &[T], strategy: Strategy, threshold: f32) -> Result<Vec<Tagged>> {
        let Held { tokenizer, recipe, .. } = &*self.session;
        let encoded = self.session.read(|reader| reader.encode_placed(texts))?;
        let mut answers: Vec<Tagged> = encoded
            .iter()
            .map(|(e, _)| Tagged { entities: Vec::new(), tokens: e.ids.len(), truncated: e.truncated })
            .collect();
        let (works, places): (Vec<_>, Vec<_>) = encoded.into_iter().map(|(e, places)| (Work::from(e), places)).unzip();
        let join = |tokens: Vec<String>| tokenizer.join(tokens);
        let meaning = Labels { names: &recipe.labels, ignore: &["O".to_string()], join: &join };
        self.session.run(works, |i, results| {
            let chars: Vec<char> = texts[i].as_ref().chars().collect();
            let width = recipe.labels.len();
            let scores: Vec<Vec<f32>> = results[0].chunks_exact(width).map(|row| Scores::Softmax.apply(row)).collect();
            let scored = places[i].iter().zip(&scores).map(|(place, scores)| {
                let (token, subword) = self.continuation.of_token(tokenizer.inner(), &chars, place);
                Scored { scores, token, start: place.start, end: place.end, special: place.special, subword }
            });
            let mut entities = aggregate(&scored.collect::<Vec<_>>(), strategy, &meaning);
            entities.retain(|e| e.score >= threshold);
            answers[i].entities = entities;
            Ok(())
        })?;
        Ok(answers)
    }

    /// The labels, in the order of the model's outputs.
    pub fn labels(&self) -> &[String] {
        &self.session.recipe.labels
    }
}

/// What the files say of labels.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct TagRecipe {
    reading: Reading,
    labels: Vec<String>,
}

impl TagRecipe {
    pub(crate) fn read(dir: &Path) -> Result<TagRecipe> {
        let path = dir.join("config.json");
        let config: Value = json(&path)?;
        let labels = labels(&config).map_err(|what| Error::file(&path, what))?;
        Ok(TagRecipe { reading: plain_reading(dir)?, labels })
    }
}

/// An encoder with a head over every token.
pub(crate) struct Tokenwise {
    encoder: Box<dyn Encoder>,
    head: Head,
}

impl Pipeline for Tokenwise {
    type Recipe = TagRecipe;

    fn reading(recipe: &TagRecipe) -> Reading {
        recipe.reading.clone()
    }

    fn load(parts: &Parts, recipe: &TagRecipe) -> Result<Tokenwise> {
        let encoder = encoder(&parts.config, &parts.weights)?;
        let head = head(Task::Tag, &parts.config, &parts.weights)?;
        check_labels(&parts.root, &recipe.labels, &head)?;
        Ok(Tokenwise { encoder, head })
    }

    fn limits(&self) -> Limits {
        self.encoder.limits()
    }

    fn width(&self) -> usize {
        self.head.out.outputs()
    }

    /// `[tokens, labels]`.
    fn forward(&self, batch: &Batch, _: &[usize]) -> Result<Vec<Tensor>> {
        let hidden = self.encoder.forward(batch, &mut |_, _| {})?;
        Ok(vec![self.head.forward(&hidden)?])
    }
}
