//! Options and results of sequence-to-sequence generation.

use crate::generation::Finish;
use crate::sampling::Search;
use derive_setters::Setters;

/// Options for all inputs of a call.
#[derive(Clone, Debug, Default, Setters)]
#[setters(prefix = "with_")]
#[non_exhaustive]
pub struct Seq2SeqOptions {
    /// The search method; `None`: what the model's files recommend.
    pub search: Option<Search>,
    /// The most tokens of an answer; `None`: what the model's files recommend, or the limit of
    /// [`crate::Seq2SeqLimits`].
    pub max_tokens: Option<usize>,
    /// Whether an answer continues after the model's end token.
    pub ignore_end: bool,
}

/// An answer.
#[derive(Clone, Debug, PartialEq)]
pub struct Seq2SeqAnswer {
    /// Its text.
    pub text: String,
    /// Its tokens, without start and end tokens.
    pub ids: Vec<u32>,
    /// In a beam search: the log probability divided by length to the power of the length penalty.
    pub score: Option<f32>,
    /// Why it ended.
    pub finish: Finish,
}

/// The answers to one input.
#[derive(Clone, Debug, PartialEq)]
pub struct Answers {
    /// The answers, best first.
    pub answers: Vec<Seq2SeqAnswer>,
    /// Tokens of the input.
    pub input_tokens: usize,
    /// Whether the input was too long and was truncated.
    pub truncated: bool,
}
