//! The prompt of a GLiNER: the labels, each behind a token of its own, before the words of a text.

use super::GlinerSpec;
use crate::error::{Error, Result};
use sconce_models::Marks;
use std::collections::HashSet;

/// Most bytes of all labels for each token of the model's longest sequence. Labels are tokenized
/// before every text, so that more would cost much and be cut off.
const BYTES_PER_TOKEN: usize = 32;

/// The labels of a request.
pub(super) struct Prompt<'a> {
    /// Each once, in the order of the request.
    pub(super) labels: Vec<&'a str>,
    /// The words before those of each text.
    pub(super) words: Vec<&'a str>,
}

impl<'a> Prompt<'a> {
    /// The prompt of these labels for a model that reads `max_tokens` tokens.
    pub(super) fn new<L: AsRef<str>>(labels: &'a [L], spec: &'a GlinerSpec, max_tokens: usize) -> Result<Prompt<'a>> {
        let mut seen = HashSet::new();
        let labels: Vec<&str> = labels.iter().map(|label| label.as_ref()).filter(|label| seen.insert(*label)).collect();
        if labels.is_empty() {
            let what = "no labels: GLiNER looks for entities of the labels that a request gives";
            return Err(Error::Input(what.into()));
        }
        let bytes: usize = labels.iter().map(|label| label.len()).sum();
        if labels.len() >= max_tokens || bytes > BYTES_PER_TOKEN.saturating_mul(max_tokens) {
            let n = labels.len();
            return Err(Error::Input(format!(
                "{n} labels of {bytes} bytes: labels and text together have at most {max_tokens} tokens; give fewer or \
                 shorter labels, in several requests"
            )));
        }
        let mark = &*spec.config.ent_token;
        if let Some(label) = labels.iter().find(|label| label.contains(mark)) {
            return Err(Error::Input(format!("the label `{label}` contains `{mark}`, which separates labels")));
        }
        let mut words = Vec::with_capacity(2 * labels.len() + 1);
        for label in &labels {
            words.push(mark);
            // An empty label is its mark alone.
            words.extend(Some(*label).filter(|label| !label.is_empty()));
        }
        words.push(&spec.config.sep_token);
        Ok(Prompt { labels, words })
    }
}

/// The tokens of a sequence that the model scores.
pub(super) struct MarkedWords {
    /// The token of each label, and those of each word of the text that has tokens.
    pub(super) marks: Marks,
    /// The index of each of these words among the words of the text.
    pub(super) words: Vec<usize>,
}

impl GlinerSpec {
    /// Finds the tokens of labels and words in a sequence, of which the first `prompt` words are the
    /// prompt. Where the tokenizer drops all characters of a word (a zero-width space, say), the
    /// word is left out.
    pub(super) fn marked_words(&self, ids: &[u32], word_ids: &[Option<u32>], prompt: usize) -> MarkedWords {
        let mut found = MarkedWords { marks: Marks::default(), words: Vec::new() };
        let mut end = 0;
        for same in word_ids.chunk_by(|a, b| a == b) {
            let tokens = end..end + same.len() as u32;
            end = tokens.end;
            let Some(index) = same[0] else { continue };
            match (index as usize).checked_sub(prompt) {
                None => found.marks.labels.extend(tokens.filter(|i| ids.get(*i as usize) == Some(&self.class_token))),
                Some(index) => {
                    found.marks.words.push(match &*self.config.subtoken_pooling {
                        "mean" | "max" => tokens,
                        "last" => tokens.end - 1..tokens.end,
                        _ => tokens.start..tokens.start + 1,
                    });
                    found.words.push(index);
                }
            }
        }
        found
    }
}
