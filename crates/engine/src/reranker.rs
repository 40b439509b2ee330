//! A query and documents to an order.

use crate::classifier::{Logits, LogitsRecipe, Representation, sigmoid};
use crate::judge::{self, Judge};
use crate::loaded::loaded;
use crate::session::{Lot, Session};
use crate::{Error, LoadOptions, Result};
use sconce_formats::Model;
use sconce_hub::{Progress, Reference};
use sconce_text::TextOrPair;
use std::sync::Arc;

/// How documents are to be ranked.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct RankOptions {
    /// Leave the logits as they are, instead of a score between 0 and 1.
    pub raw: bool,
    /// Only so many of the best; all where none is said.
    pub top_n: Option<usize>,
    /// Give the documents back with their scores.
    pub texts: bool,
}

/// A document in its place.
#[derive(Clone, Debug, PartialEq)]
pub struct Ranked {
    /// Which document, counted from 0 in the order given.
    pub index: usize,
    /// How well it answers the query.
    pub score: f32,
    /// The document, if asked for.
    pub text: Option<String>,
}

/// An order of documents.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Ranking {
    /// The best first.
    pub ranked: Vec<Ranked>,
    /// Tokens in all, as the model saw them.
    pub tokens: usize,
    /// Which documents were cut, with their query, to what the model can take.
    pub truncated: Vec<usize>,
}

/// A cross-encoder: a model that reads query and document together and gives one score. Loaded and proven. A language model
/// without a head for scores (Qwen3-Reranker) is asked, and its score is how much rather it says yes than no.
#[derive(Clone)]
pub struct Reranker {
    session: Session<Logits>,
    /// How it is asked, if it is.
    judge: Option<Arc<Judge>>,
}

loaded!(Reranker, self => &self.session, how => Reranker { session: self.session.but(how), ..self.clone() });

impl Reranker {
    /// Finds the files, plans, loads and proves the model, with the head as its files have it.
    pub fn load(reference: &Reference, options: &LoadOptions, progress: &dyn Progress) -> Result<Reranker> {
        Self::load_with(reference, options, Representation::Pooler, progress)
    }

    /// The same with another row before the classifier, for BERTs that were trained so.
    pub fn load_with(
        reference: &Reference,
        options: &LoadOptions,
        representation: Representation,
        progress: &dyn Progress,
    ) -> Result<Reranker> {
        let session = Session::<Logits>::load(reference, options, progress, |dir| {
            if judge::can_be_asked(&Model::open(dir)?.config) {
                return judge::recipe(dir);
            }
            let recipe = LogitsRecipe::read(dir)?;
            if recipe.labels.len() != 1 {
                let what = format!(
                    "gives {} scores ({}); a reranker gives one. `sconce classify` reads this model",
                    recipe.labels.len(),
                    recipe.labels.join(", ")
                );
                return Err(Error::file(&dir.join("config.json"), what));
            }
            Ok(LogitsRecipe { representation, ..recipe })
        })?;
        let asked = session.recipe.answers.is_some();
        let judge = if asked { Some(Arc::new(Judge::new(&session.tokenizer)?)) } else { None };
        Ok(Reranker { session, judge })
    }

    /// The same told what to look for, in a sentence; only models that are asked can be told.
    pub fn with_instruction(mut self, instruction: &str) -> Result<Reranker> {
        match &mut self.judge {
            Some(judge) => Arc::make_mut(judge).instruction = instruction.into(),
            None => {
                return Err(Error::Input("the model takes no instruction: it reads query and document alone".into()));
            }
        }
        Ok(self)
    }

    /// Orders `documents` by how well they answer `query`.
    pub fn rerank<T: AsRef<str> + Sync>(&self, query: &str, documents: &[T], options: RankOptions) -> Result<Ranking> {
        let pair = |document| TextOrPair { text: query, pair: Some(document) };
        let encoded = self.session.read(|reader| match &self.judge {
            Some(judge) => judge.encode(reader, query, documents),
            None => Ok(reader.encode_pairs(&documents.iter().map(|d| pair(d.as_ref())).collect::<Vec<_>>())?),
        })?;
        let Lot { works, tokens, truncated } = Lot::of(encoded, 0);
        let mut ranked = Vec::with_capacity(documents.len());
        self.session.run(works, |index, results| {
            // Of one that was asked: how much rather yes than no, the sigmoid of which is yes's share of the two.
            let logit = results[0].iter().copied().reduce(|yes, no| yes - no).unwrap_or_default();
            let score = if options.raw { logit } else { sigmoid(logit) };
            ranked.push((logit, Ranked { index, score, text: None }));
            Ok(())
        })?;
        // By logit: far out many scores are the same f32. Of equals the first given comes first.
        ranked.sort_by(|(a, x), (b, y)| b.total_cmp(a).then(x.index.cmp(&y.index)));
        let mut ranked: Vec<Ranked> = ranked.into_iter().map(|(_, r)| r).collect();
        ranked.truncate(options.top_n.unwrap_or(usize::MAX));
        if options.texts {
            ranked.iter_mut().for_each(|r| r.text = Some(documents[r.index].as_ref().to_string()));
        }
        Ok(Ranking { ranked, tokens: tokens.iter().sum(), truncated })
    }
}
