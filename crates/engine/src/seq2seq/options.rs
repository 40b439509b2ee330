//! What is asked of such a model, and what comes back.

use crate::generate::Finish;
use crate::sample::{EarlyStopping, Params};
use sconce_ops::CacheFormat;

/// How much room such a model is to have.
#[derive(Clone, Copy, Debug)]
pub struct Seq2SeqRoom {
    /// The longest input, in tokens; what is longer is cut, and said to be. `None`: what the model was trained with.
    pub input: Option<usize>,
    /// The longest answer, in tokens.
    pub output: usize,
    /// The most answers that are written at once; every beam counts as one.
    pub sequences: usize,
    /// The format of what is kept of tokens; `None`: f16 beside weights that are not f32.
    pub cache_format: Option<CacheFormat>,
}

impl Default for Seq2SeqRoom {
    fn default() -> Seq2SeqRoom {
        Seq2SeqRoom { input: None, output: 256, sequences: 16, cache_format: None }
    }
}

/// How an answer is found.
#[derive(Clone, Debug, PartialEq)]
pub enum Search {
    /// Token by token. A temperature of 0 takes the most likely each time.
    Sample(Params),
    /// The likeliest whole answers.
    Beams(BeamSearch),
}

impl Search {
    /// The most likely token each time.
    pub fn greedy() -> Search {
        Search::Sample(Params { temperature: 0.0, ..Params::default() })
    }
}

/// A search for the likeliest answers, as transformers' `generate` does it.
#[derive(Clone, Debug, PartialEq)]
pub struct BeamSearch {
    /// Answers that are followed at once.
    pub num_beams: usize,
    /// An answer's score is the logarithm of its probability over its length to this power: above 0 favours long ones.
    pub length_penalty: f32,
    /// When to stop looking for better ones.
    pub early_stopping: EarlyStopping,
    /// Answers to give, the best first.
    pub num_return_sequences: usize,
}

impl Default for BeamSearch {
    fn default() -> BeamSearch {
        BeamSearch { num_beams: 4, length_penalty: 1.0, early_stopping: EarlyStopping::No, num_return_sequences: 1 }
    }
}

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
pub struct Written {
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
    pub answers: Vec<Written>,
    /// Tokens of the input.
    pub input_tokens: usize,
    /// Whether the input was longer, and was cut.
    pub truncated: bool,
}
