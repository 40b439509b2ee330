//! Reranking: orders documents by their relevance to a query.

mod llm;
mod passage;
mod question;

use super::TaskType;
use super::classify::{ClassifierPipeline, ClassifierSpec, labels, sigmoid};
use crate::config::FileFacts;
use crate::error::{Error, Result};
use crate::options::LoadOptions;
use crate::plan::Plan;
use crate::runtime::{Loaded, ModelInfo, RequestSettings};
use crate::workloads::encode::{self, OutputKind, Outputs, Session, Texts};
use derive_setters::Setters;
use llm::YesNoPrompt;
use passage::PassagePrompt;
use sconce_hub::{Files, Progress, Reference};
use sconce_ops::{Device, Pooling};
use sconce_text::{Encoded, ModelTokenizer, Reader, TextOrPair};
use std::path::Path;
use std::sync::Arc;

/// Options for reranking.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Setters)]
#[setters(prefix = "with_")]
#[non_exhaustive]
pub struct RankOptions {
    /// Return logits instead of scores between 0 and 1.
    pub raw: bool,
    /// Return only the best `top_n`; all by default.
    pub top_n: Option<usize>,
    /// Return the documents with their scores.
    pub texts: bool,
    /// Which hidden states of query and document the classifier reads.
    pub pooling: RankPooling,
}

/// What a reranker's classifier reads of query and document.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum RankPooling {
    /// The model's own head; for BERT its pooler, a dense layer over the first token.
    #[default]
    Pooler,
    /// The first token's hidden state, for BERT models trained without a pooler.
    Cls,
    /// The mean of all hidden states, for BERT models trained without a pooler.
    Mean,
}

impl RankPooling {
    fn output_kind(self) -> OutputKind {
        match self {
            RankPooling::Pooler => OutputKind::Task,
            RankPooling::Cls => OutputKind::Pooled(Pooling::Cls),
            RankPooling::Mean => OutputKind::Pooled(Pooling::Mean),
        }
    }
}

/// A ranked document.
#[derive(Clone, Debug, PartialEq)]
pub struct Ranked {
    /// Index of the document in the input.
    pub index: usize,
    /// Its relevance to the query.
    pub score: f32,
    /// The document, if requested.
    pub text: Option<String>,
}

/// The ranking of documents.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Ranking {
    /// Best first.
    pub ranked: Vec<Ranked>,
    /// Tokens of all pairs, after truncation.
    pub tokens: usize,
    /// Indices of the documents that were truncated.
    pub truncated: Vec<usize>,
}

/// A reranker, loaded and checked: a cross-encoder, which reads query and document together and
/// returns one score, or a language model without such a head, whose score is the logit of "yes"
/// minus that of "no" (Qwen3-Reranker) or the logit of "Yes" (bge-reranker-v2-gemma). A model that
/// was trained with a prompt around query and document gets it.
///
/// ```no_run
/// use sconce_engine::{LoadOptions, RankOptions, Reranker};
///
/// let model = "cross-encoder/ms-marco-MiniLM-L6-v2".parse()?;
/// let reranker = Reranker::load(&model, &LoadOptions::from_env()?, &())?;
/// let documents = ["Berlin is known for its museums.", "Berlin has 3.7 million inhabitants."];
/// let options = RankOptions::default().with_top_n(Some(1));
/// let best = &reranker.rerank("How many people live in Berlin?", &documents, options)?.ranked[0];
/// println!("{:.3} {}", best.score, documents[best.index]);
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[derive(Clone)]
pub struct Reranker {
    session: Session<ClassifierPipeline>,
    /// The prompt around query and document, if the model has one.
    prompt: Option<Arc<Prompt>>,
}

/// The prompt around query and document.
#[derive(Clone)]
enum Prompt {
    YesNo(YesNoPrompt),
    Passage(PassagePrompt),
    Question,
}

impl Prompt {
    fn of(root: &Path, tokenizer: &ModelTokenizer) -> Result<Option<Prompt>> {
        let facts = FileFacts::read(root)?;
        Ok(if llm::is_llm_reranker(&facts) {
            Some(Prompt::YesNo(YesNoPrompt::new(root, tokenizer)?))
        } else if passage::is_passage_reranker(&facts) {
            Some(Prompt::Passage(PassagePrompt::new(root, tokenizer)?))
        } else {
            question::is_question_reranker(&facts).then_some(Prompt::Question)
        })
    }

    /// The instruction in the prompt, if it has one.
    fn instruction(&mut self) -> Option<&mut String> {
        match self {
            Prompt::YesNo(prompt) => Some(&mut prompt.instruction),
            Prompt::Passage(prompt) => Some(&mut prompt.instruction),
            Prompt::Question => None,
        }
    }

    fn encode(&self, reader: Reader<'_>, pairs: &[(&str, &str)]) -> Result<Vec<Encoded>> {
        match self {
            Prompt::YesNo(prompt) => prompt.encode(reader, pairs),
            Prompt::Passage(prompt) => prompt.encode(reader, pairs),
            Prompt::Question => question::encode(reader, pairs),
        }
    }
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
    fn also_reads(facts: &FileFacts) -> bool {
        llm::is_llm_reranker(facts) || passage::is_passage_reranker(facts)
    }
    fn plan_files(files: &Files, device: Device, options: &LoadOptions) -> Result<Plan> {
        encode::plan::<ClassifierPipeline>(files, device, options, spec)
    }
    fn load_files(files: &Files, options: &LoadOptions, progress: &dyn Progress) -> Result<Reranker> {
        let session = Session::<ClassifierPipeline>::load(files, options, progress, spec)?;
        let prompt = Prompt::of(&session.plan.root, &session.text)?;
        Ok(Reranker { session, prompt: prompt.map(Arc::new) })
    }
}

/// Reads the settings of a reranker.
fn spec(root: &Path) -> Result<ClassifierSpec> {
    let facts = FileFacts::read(root)?;
    if llm::is_llm_reranker(&facts) {
        return llm::spec(root);
    }
    if passage::is_passage_reranker(&facts) {
        return passage::spec(root);
    }
    let spec = ClassifierSpec::read(root)?;
    if spec.labels.len() != 1 {
        let what = format!(
            "has {} labels ({}), but a reranker has one; use `sconce classify` for this model",
            spec.labels.len(),
            spec.labels.join(", ")
        );
        return Err(Error::file(&root.join("config.json"), what));
    }
    Ok(spec)
}

impl Reranker {
    /// Finds the files, plans, loads and checks the model.
    pub fn load(reference: &Reference, options: &LoadOptions, progress: &dyn Progress) -> Result<Reranker> {
        super::load(reference, options, progress)
    }

    /// Sets the instruction in the prompt, a sentence; only language models take one.
    pub fn with_instruction(mut self, instruction: &str) -> Result<Reranker> {
        match self.prompt.as_mut().and_then(|prompt| Arc::make_mut(prompt).instruction()) {
            Some(text) => *text = instruction.into(),
            None => {
                return Err(Error::Input(
                    "this model takes no instruction; only rerankers that are language models do".into(),
                ));
            }
        }
        Ok(self)
    }

    /// The logit of each pair of a query and a document, in the order of the pairs: its sigmoid is
    /// the score.
    pub fn logits(&self, pairs: &[(&str, &str)], pooling: RankPooling) -> Result<Outputs<f32>> {
        if pooling != RankPooling::Pooler && !self.session.spec.has_pooler {
            let what = "the poolings `cls` and `mean` leave BERT's pooler out, and this model is no BERT: use `pooler`";
            return Err(Error::Input(what.into()));
        }
        self.session.outputs(pooling.output_kind(), Texts::of(self.encode(pairs)?, 0), |_, results| {
            // With two logits, of "yes" and "no": their difference. Its sigmoid is the softmax of
            // "yes" over the two.
            Ok(results[0].iter().copied().reduce(|yes, no| yes - no).unwrap_or_default())
        })
    }

    /// The number of tokens of each pair as the model reads it: with special tokens or the prompt,
    /// and truncated.
    pub fn count_tokens(&self, pairs: &[(&str, &str)]) -> Result<Vec<usize>> {
        Ok(self.encode(pairs)?.iter().map(|e| e.ids.len()).collect())
    }

    fn encode(&self, pairs: &[(&str, &str)]) -> Result<Vec<Encoded>> {
        self.session.read(|reader| match &self.prompt {
            Some(prompt) => prompt.encode(reader, pairs),
            None => Ok(reader.encode_pairs(&pairs.iter().map(|pair| TextOrPair::from(*pair)).collect::<Vec<_>>())?),
        })
    }

    /// Ranks `documents` by their relevance to `query`.
    pub fn rerank<T: AsRef<str> + Sync>(&self, query: &str, documents: &[T], options: RankOptions) -> Result<Ranking> {
        let pairs: Vec<_> = documents.iter().map(|document| (query, document.as_ref())).collect();
        let Outputs { results, tokens, truncated } = self.logits(&pairs, options.pooling)?;
        let ranked = |(index, logit): (usize, f32)| {
            let score = if options.raw { logit } else { sigmoid(logit) };
            (logit, Ranked { index, score, text: None })
        };
        let mut ranked: Vec<_> = results.into_iter().enumerate().map(ranked).collect();
        // By logit, because far from zero many scores are the same f32. Equal documents keep the
        // order of the input.
        ranked.sort_by(|(a, x), (b, y)| b.total_cmp(a).then(x.index.cmp(&y.index)));
        let mut ranked: Vec<Ranked> = ranked.into_iter().map(|(_, r)| r).collect();
        ranked.truncate(options.top_n.unwrap_or(usize::MAX));
        if options.texts {
            ranked.iter_mut().for_each(|r| r.text = Some(documents[r.index].as_ref().to_string()));
        }
        Ok(Ranking { ranked, tokens: tokens.iter().sum(), truncated })
    }
}
