//! Gemma as a reranker. The prompt asks whether passage B contains an answer to query A, and the
//! score is the logit of "Yes". bge-reranker-v2-gemma (Chen et al. 2024, arXiv:2402.03216) was
//! trained with exactly this prompt.

use crate::config::{FileFacts, plain_input_spec};
use crate::error::{Error, Result};
use crate::tasks::classify::{ClassifierSpec, Scores};
use sconce_formats::{Model, is_gguf, json};
use sconce_text::{Encoded, ModelTokenizer, Reader, TokenizerOptions, Truncate};
use serde_json::Value;
use std::path::Path;

/// The prompt after query and passage; the next token is the answer.
const PROMPT: &str = "Given a query A and a passage B, determine whether the passage contains an answer to the query by \
                      providing a prediction of either 'Yes' or 'No'.";

/// Between query, passage and prompt.
const SEPARATOR: &str = "\n";

/// The answer whose logit is the score.
const ANSWER: &str = "Yes";

/// The most tokens of query and passage together, as the model's authors set it.
const LONGEST: usize = 1024;

/// Whether the files are of such a model: it has no classification head.
pub(super) fn is_passage_reranker(facts: &FileFacts) -> bool {
    facts.class() == "GemmaForCausalLM"
}

/// Reads the settings of such a model.
pub(super) fn spec(root: &Path) -> Result<ClassifierSpec> {
    let mut input_spec = plain_input_spec(root)?;
    let tokenizer = ModelTokenizer::load(root, LONGEST, TokenizerOptions::default())?;
    let fixed = tokenizer.reader(Truncate::Right).encode_bare(&[SEPARATOR, PROMPT, ANSWER], usize::MAX)?;
    let [separator, prompt, answer] = &fixed[..] else { return Err(Error::file(root, "its tokenizer failed")) };
    let answer = answer.ids.first().copied();
    let answer = answer.ok_or_else(|| Error::file(root, format!("its vocabulary has no token for `{ANSWER}`")))?;
    let most = LONGEST + separator.ids.len() + prompt.ids.len();
    input_spec.max_tokens = Some(input_spec.max_tokens.map_or(most, |own| own.min(most)));
    Ok(ClassifierSpec {
        input_spec,
        labels: vec![ANSWER.into()],
        scores: Scores::Sigmoid,
        has_pooler: false,
        answers: vec![answer],
    })
}

/// The prompt around query and passage.
#[derive(Clone)]
pub(crate) struct PassagePrompt {
    /// The token that begins a text.
    begin: u32,
    separator: Vec<u32>,
    pub(crate) instruction: String,
}

impl PassagePrompt {
    pub(crate) fn new(root: &Path, tokenizer: &ModelTokenizer) -> Result<PassagePrompt> {
        let config: Value = if is_gguf(root) { Model::open(root)?.config } else { json(&root.join("config.json"))? };
        let begin = config.get("bos_token_id").and_then(Value::as_u64).and_then(|id| u32::try_from(id).ok());
        let begin = begin.ok_or_else(|| Error::file(root, "has no bos_token_id, which the reranking prompt needs"))?;
        let separator = tokenizer.reader(Truncate::Right).encode_bare(&[SEPARATOR], usize::MAX)?;
        let separator = separator.into_iter().flat_map(|e| e.ids).collect();
        Ok(PassagePrompt { begin, separator, instruction: PROMPT.into() })
    }

    /// The prompt for each query and document. Queries are truncated to three quarters of the room
    /// for both, documents to the rest.
    pub(crate) fn encode(&self, t: Reader<'_>, pairs: &[(&str, &str)]) -> Result<Vec<Encoded>> {
        if t.truncate() == Truncate::Left {
            let what = "this reranker truncates queries and documents on the right, as it was trained";
            return Err(Error::Input(what.into()));
        }
        let prompt = t.encode_bare(&[&self.instruction], usize::MAX)?;
        let end: Vec<u32> = self.separator.iter().chain(prompt.iter().flat_map(|e| &e.ids)).copied().collect();
        // Room for the first token, a query, the separator and a document.
        let least = 4 * (self.separator.len() + 2);
        let room = t.max_tokens().checked_sub(end.len()).filter(|room| *room >= least).ok_or_else(|| {
            let what = format!("the reranking prompt alone takes {} tokens; allow {least} more", end.len());
            Error::Input(what)
        })?;
        let room = room.min(LONGEST);
        let queries: Vec<String> = pairs.iter().map(|(query, _)| format!("A: {query}")).collect();
        let documents: Vec<String> = pairs.iter().map(|(_, document)| format!("B: {document}")).collect();
        let queries = t.encode_bare(&queries, room * 3 / 4)?;
        let documents = t.encode_bare(&documents, room)?;
        let join = |(query, mut document): (Encoded, Encoded)| {
            let left = room.saturating_sub(1 + query.ids.len() + self.separator.len());
            document.truncated |= query.truncated || document.ids.len() > left;
            document.ids.truncate(left);
            document.ids = [&[self.begin][..], &query.ids, &self.separator, &document.ids, &end].concat();
            document
        };
        Ok(queries.into_iter().zip(documents).map(join).collect())
    }
}
