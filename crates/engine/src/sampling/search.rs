//! Search methods of sequence-to-sequence models.

use super::{EarlyStopping, GenerationParams};

/// A search method.
#[derive(Clone, Debug, PartialEq)]
pub enum Search {
    /// Sampling token by token. A temperature of 0 is greedy search.
    Sample(GenerationParams),
    /// Beam search.
    Beams(BeamSearch),
}

impl Search {
    /// Greedy search: the likeliest token at each step.
    pub fn greedy() -> Search {
        Search::Sample(GenerationParams { temperature: 0.0, ..GenerationParams::default() })
    }
}

/// Parameters of a beam search, as in transformers' `generate`.
#[derive(Clone, Debug, PartialEq)]
pub struct BeamSearch {
    /// Number of beams.
    pub num_beams: usize,
    /// An answer's score is its log probability divided by its length to this power: values above 0
    /// favour long answers.
    pub length_penalty: f32,
    /// When to stop looking for better answers.
    pub early_stopping: EarlyStopping,
    /// Number of answers to return, best first.
    pub num_return_sequences: usize,
}

impl Default for BeamSearch {
    fn default() -> BeamSearch {
        BeamSearch { num_beams: 4, length_penalty: 1.0, early_stopping: EarlyStopping::No, num_return_sequences: 1 }
    }
}
