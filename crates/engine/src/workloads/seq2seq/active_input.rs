//! The running answers to one input: logits in, tokens out.

use crate::error::{Error, Result};
use crate::generation::{
    ActiveSequence, Finish, GenerateRequest, GenerationReply, NextToken, SampledToken, StepOutput,
};
use crate::sampling::{Beams, Continued, Hypothesis, log_softmax};
use sconce_ops::Device;
use std::collections::BTreeSet;
use std::sync::Arc;
use tokenizers::Tokenizer;

/// A tokenized input, and how to generate its answers.
pub(crate) struct Seq2SeqRequest {
    pub(crate) ids: Vec<u32>,
    /// The most tokens of an answer.
    pub(crate) most: usize,
    pub(crate) search: SearchRequest,
}

/// How to generate answers.
pub(crate) enum SearchRequest {
    /// By sampling; the prompt is the start token.
    Sample(Box<GenerateRequest>),
    /// By beam search.
    Beams(Box<BeamRequest>),
}

/// A beam search that has not begun, and what it needs to report its answers.
pub(crate) struct BeamRequest {
    pub(crate) beams: Beams,
    /// Beams at once, and answers at the end.
    pub(crate) width: usize,
    pub(crate) answers: usize,
    pub(crate) tokenizer: Arc<Tokenizer>,
    /// Tokens that end an answer and are not part of its text.
    pub(crate) ends: Arc<BTreeSet<u32>>,
}

/// The running answers to an input.
pub(super) struct ActiveInput {
    reply: Arc<GenerationReply>,
    answers: Answers,
}

enum Answers {
    /// One per row.
    Sample(Vec<ActiveSequence>),
    /// `None` once the search is over.
    Beams(Option<Box<BeamRequest>>),
}

impl SearchRequest {
    /// The most sequences that the answers take.
    pub(super) fn width(&self) -> usize {
        match self {
            SearchRequest::Sample(request) => request.params.n.max(1) as usize,
            SearchRequest::Beams(request) => request.width,
        }
    }

    /// The number of sequences that decoding begins with: a beam search has one until its first
    /// token.
    pub(super) fn first(&self) -> usize {
        match self {
            SearchRequest::Sample(_) => self.width(),
            SearchRequest::Beams(_) => 1,
        }
    }

    /// The number of answers.
    pub(super) fn answers(&self) -> usize {
        match self {
            SearchRequest::Sample(_) => self.width(),
            SearchRequest::Beams(request) => request.answers,
        }
    }
}

impl ActiveInput {
    pub(super) fn new(search: SearchRequest, reply: Arc<GenerationReply>) -> ActiveInput {
        let width = search.width();
        let answers = match search {
            SearchRequest::Sample(request) => {
                Answers::Sample((0..width).map(|answer| ActiveSequence::new(answer, &request, None, &reply)).collect())
            }
            SearchRequest::Beams(request) => Answers::Beams(Some(request)),
        };
        ActiveInput { reply, answers }
    }

    /// Called when the input's first step begins.
    pub(super) fn begin(&self) {
        self.reply.begin(0);
    }

    /// Takes the logits of the next token, `[rows][vocabulary]`, for rows with these tokens.
    /// Returns which rows continue, with which token, in the order of the next step.
    pub(super) fn advance(&mut self, logits: &mut [f32], rows: &[&[u32]], device: Device) -> Vec<Continued> {
        let width = (logits.len() / rows.len().max(1)).max(1);
        match &mut self.answers {
            Answers::Sample(sequences) => {
                let logits = logits.chunks_mut(width).map(NextToken::Logits);
                let all = sequences.drain(..).zip(rows).zip(logits).enumerate();
                let next =
                    all.filter_map(|(beam, ((mut sequence, tokens), logits))| match sequence.next(logits, tokens) {
                        StepOutput::Token(token) => Some((Continued { beam, token }, sequence)),
                        StepOutput::Ended => None,
                    });
                let (continued, left): (Vec<_>, Vec<_>) = next.unzip();
                *sequences = left;
                continued
            }
            Answers::Beams(request) => {
                if !logits.iter().all(|l| l.is_finite()) {
                    self.reply.fail(self.reply.unsound());
                    return Vec::new();
                }
                let Some(search) = request else { return Vec::new() };
                logits.chunks_mut(width).for_each(log_softmax);
                let continued = search.beams.step(&logits.chunks(width).collect::<Vec<_>>());
                if continued.is_empty()
                    && let Some(search) = request.take()
                {
                    let BeamRequest { beams, tokenizer, ends, answers, .. } = *search;
                    let found = beams.answers();
                    // A vocabulary smaller than the number of beams yields fewer answers than
                    // requested.
                    (found.len()..answers).for_each(|answer| self.reply.end(answer, Finish::Length, None));
                    for (answer, found) in found.into_iter().enumerate() {
                        match finished(found, &tokenizer, &ends, device) {
                            Ok((text, sampled, finish, score)) => {
                                self.reply.text(answer, text, sampled);
                                self.reply.end(answer, finish, Some(score));
                            }
                            Err(error) => self.reply.fail(error),
                        }
                    }
                }
                continued
            }
        }
    }
}

/// Text, tokens, finish reason and score of an answer that a beam search found.
fn finished(
    Hypothesis { tokens: mut ids, score }: Hypothesis,
    tokenizer: &Tokenizer,
    ends: &BTreeSet<u32>,
    device: Device,
) -> Result<(String, Vec<SampledToken>, Finish, f32)> {
    let has_ended = ids.last().is_some_and(|id| ends.contains(id));
    if has_ended {
        ids.pop();
    }
    let text = tokenizer
        .decode(&ids, true)
        .map_err(|e| Error::bug(device, &format!("an answer cannot be detokenized: {e}")))?;
    let sampled = ids.into_iter().map(|id| SampledToken { id, logprobs: None }).collect();
    Ok((text, sampled, if has_ended { Finish::End } else { Finish::Length }, score))
}
