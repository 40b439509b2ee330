//! What is asked of a sequence-to-sequence model, and what comes back.

use crate::generation::Finish;
use crate::sampling::Search;

/// What is asked for, of all inputs of a call alike.
#[derive(Clone, Debug, Default)]
pub struct Seq2SeqOptions {
    /// How answers are found; `None`: as the model's own files recommend.
    pub search: Option<Search>,
    /// The most tokens of an answer; `None`: what the model's files recommend, or as many as there is room for.
    pub max_tokens: Option<usize>,
    /// Whether an answer goes on behind the model's own end.
    pub ignore_end: bool,
}

/// An answer.
#[derive(Clone, Debug, PartialEq)]
pub struct Seq2SeqAnswer {
    /// Its text.
    pub text: String,
    /// Its tokens, without those that begin and end every answer.
    pub ids: Vec<u32>,
    /// Of a beam search: the logarithm of its probability over its length to the penalty.
    pub score: Option<f32>,
    /// Why it ended.
    pub finish: Finish,
}

/// What came of one input.
#[derive(Clone, Debug, PartialEq)]
pub struct Answers {
    /// The answers, the best first.
    pub answers: Vec<Seq2SeqAnswer>,
    /// Tokens of the input.
    pub input_tokens: usize,
    /// Whether the input was longer, and was cut.
    pub truncated: bool,
}
