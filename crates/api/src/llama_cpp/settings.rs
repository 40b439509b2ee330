//! The settings of a generation, as they were used.

use serde::{Deserialize, Serialize};
use utoipa::ToSchema;

/// The settings that a request was generated with.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, ToSchema)]
#[schema(as = LlamaCppGenerationSettings)]
pub struct GenerationSettings {
    /// Seed of the random numbers.
    pub seed: u64,
    /// Sampling temperature.
    pub temperature: f32,
    /// Most likely tokens that are kept; 0 for all.
    pub top_k: u32,
    /// Probability of the tokens that are kept.
    pub top_p: f32,
    /// Fraction of the highest probability that a token needs.
    pub min_p: f32,
    /// Tokens that the penalties look back; -1 for all.
    pub repeat_last_n: i64,
    /// Repetition penalty; 1 for none.
    pub repeat_penalty: f32,
    /// Presence penalty.
    pub presence_penalty: f32,
    /// Frequency penalty.
    pub frequency_penalty: f32,
    /// Stop strings.
    pub stop: Vec<String>,
    /// Most tokens of an answer; -1 for as many as fit into the context.
    pub max_tokens: i64,
    /// The same.
    pub n_predict: i64,
    /// Whether the end token is never generated.
    pub ignore_eos: bool,
    /// Whether the answer is streamed.
    pub stream: bool,
    /// What is added to the logits of tokens.
    pub logit_bias: Vec<TokenBias>,
    /// Number of probabilities per token.
    pub n_probs: u32,
    /// The grammar of the answer.
    pub grammar: String,
    /// Samplers, in their order.
    pub samplers: Vec<String>,
    /// Whether timings come with every token.
    pub timings_per_token: bool,
    /// Whether probabilities are those after sampling's cuts.
    pub post_sampling_probs: bool,
    /// Always empty: this server has no adapters.
    pub lora: Vec<LoraScale>,
    /// Always 0: not supported.
    pub dynatemp_range: f32,
    /// Always 1: not supported.
    pub dynatemp_exponent: f32,
    /// Always 1: not supported.
    pub typical_p: f32,
    /// Always 0: not supported.
    pub xtc_probability: f32,
    /// Always 0: not supported.
    pub dry_multiplier: f32,
    /// Always 0: not supported.
    pub mirostat: u32,
    /// Always -1: not supported.
    pub top_n_sigma: f32,
    /// Always -1: not supported.
    pub adaptive_target: f32,
    /// Always 0: not supported.
    pub adaptive_decay: f32,
    /// Always 0: a context is not shifted.
    pub n_keep: u32,
}

/// What is added to the logit of a token.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize, ToSchema)]
#[schema(as = LlamaCppTokenBias)]
pub struct TokenBias {
    /// Token id.
    pub token: u32,
    /// The bias; null if the token is never generated.
    pub bias: Option<f32>,
}

/// An adapter and its weight.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize, ToSchema)]
#[schema(as = LlamaCppLoraScale)]
pub struct LoraScale {
    /// Id of the adapter.
    pub id: u32,
    /// Its weight.
    pub scale: f32,
}
