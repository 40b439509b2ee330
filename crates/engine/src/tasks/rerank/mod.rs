//! A query and documents to an order.

mod llm;

use super::TaskType;
use super::classify::{Logits, LogitsSpec, Representation, labels, sigmoid};
use crate::config::FileFacts;
use crate::error::{Error, Result};
use crate::options::LoadOptions;
use crate::plan::Plan;
use crate::runtime::{Loaded, ModelInfo, RequestSettings};
use crate::workloads::encode::{self, Session, Texts};
use llm::YesNoPrompt;
use sconce_hub::{self as hub, Files, Progress, Reference};
use sconce_ops::Device;
use sconce_text::TextOrPair;
use std::path::Path;
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
    /// How a language model is asked.
    prompt: Option<Arc<YesNoPrompt>>,
}

impl Loaded for Reranker {
    fn model(&self) -> &ModelInfo {
        &self.session.info
    }
    fn settings(&mut self) -> &mut RequestSettings {
        &mut self.session.settings
    }
}

impl TaskType for Reranker {
    fn serves(facts: &FileFacts) -> bool {
        facts.is_sequence_classifier() && labels(&facts.config).is_ok_and(|labels| labels.len() == 1)
    }
    fn plan_files(files: &Files, device: Device, options: &LoadOptions) -> Result<Plan> {
        encode::plan::<Logits>(files, device, options, |dir| spec(dir, Representation::Pooler))
    }
    fn load_files(files: &Files, options: &LoadOptions, progress: &dyn Progress) -> Result<Reranker> {
        Self::load_files_with(files, options, Representation::Pooler, progress)
    }
}

/// Reads the files of a reranker.
fn spec(root: &Path, representation: Representation) -> Result<LogitsSpec> {
    if llm::can_be_asked(&FileFacts::read(root)?) {
        return llm::spec(root);
    }
    let spec = LogitsSpec::read(root)?;
    if spec.labels.len() != 1 {
        let what = format!(
            "gives {} scores ({}); a reranker gives one. `sconce classify` reads this model",
            spec.labels.len(),
            spec.labels.join(", ")
        );
        return Err(Error::file(&root.join("config.json"), what));
    }
    Ok(LogitsSpec { representation, ..spec })
}

impl Reranker {
    /// Finds the files, plans, loads and checks the model, with the head as its files have it.
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
        Self::load_files_with(&hub::resolve(reference, &options.hub, progress)?, options, representation, progress)
    }

    fn load_files_with(
        files: &Files,
        options: &LoadOptions,
        representation: Representation,
        progress: &dyn Progress,
    ) -> Result<Reranker> {
        let session = Session::<Logits>::load(files, options, progress, |dir| spec(dir, representation))?;
        let asked = session.spec.yes_no.is_some();
        let prompt = if asked { Some(Arc::new(YesNoPrompt::new(&session.plan.root, &session.text)?)) } else { None };
        Ok(Reranker { session, prompt })
    }

    /// The same told what to look for, in a sentence; only models that are asked can be told.
    pub fn with_instruction(mut self, instruction: &str) -> Result<Reranker> {
        match &mut self.prompt {
            Some(prompt) => Arc::make_mut(prompt).instruction = instruction.into(),
            None => {
                return Err(Error::Input("the model takes no instruction: it reads query and document alone".into()));
            }
        }
        Ok(self)
    }

    /// Orders `documents` by how well they answer `query`.
    pub fn rerank<T: AsRef<str> + Sync>(&self, query: &str, documents: &[T], options: RankOptions) -> Result<Ranking> {
        let pair = |document| TextOrPair { text: query, pair: Some(document) };
        let encoded = self.session.read(|reader| match &self.prompt {
            Some(prompt) => prompt.encode(reader, query, documents),
            None => Ok(reader.encode_pairs(&documents.iter().map(|d| pair(d.as_ref())).collect::<Vec<_>>())?),
        })?;
        let Texts { items, tokens, truncated } = Texts::of(encoded, 0);
        let mut ranked = Vec::with_capacity(documents.len());
        self.session.run(items, |index, results| {
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
