//! How a sequence-to-sequence model finds its answers.

use super::{EarlyStopping, GenerationParams};

/// How an answer is found.
#[derive(Clone, Debug, PartialEq)]
pub enum Search {
    /// Token by token. A temperature of 0 takes the most likely each time.
    Sample(GenerationParams),
    /// The likeliest whole answers.
    Beams(BeamSearch),
}

impl Search {
    /// The most likely token each time.
    pub fn greedy() -> Search {
        Search::Sample(GenerationParams { temperature: 0.0, ..GenerationParams::default() })
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
