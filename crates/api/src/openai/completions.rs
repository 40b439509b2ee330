//! `POST /v1/completions`.

use super::common::{FinishReason, OneOrMore, ResponseFormat, StreamOptions, StructuredOutputs, Usage};
use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;
use utoipa::ToSchema;

/// A text to go on from.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, ToSchema)]
pub struct CompletionRequest {
    /// Which model.
    pub model: Option<String>,
    /// The text, or several, or their tokens.
    pub prompt: Prompt,
    /// The most tokens of an answer; 16 if it is not said.
    pub max_tokens: Option<usize>,
    /// Divides the logits; 0 takes the most likely token each time.
    pub temperature: Option<f32>,
    /// Keeps the fewest tokens that have this much of the probability.
    pub top_p: Option<f32>,
    /// Keeps the so many most likely tokens; 0 and -1 keep all.
    pub top_k: Option<i64>,
    /// Keeps tokens with this much of the probability of the most likely one.
    pub min_p: Option<f32>,
    /// Above 1, tokens of the prompt and the answer become less likely.
    pub repetition_penalty: Option<f32>,
    /// Taken from a token's logit if it is in the answer.
    pub presence_penalty: Option<f32>,
    /// Taken from a token's logit for every time it is in the answer.
    pub frequency_penalty: Option<f32>,
    /// Added to the logits of tokens, by their ids.
    pub logit_bias: Option<BTreeMap<String, f32>>,
    /// The same seed gives the same answer.
    pub seed: Option<i64>,
    /// How many answers to each prompt.
    pub n: Option<u32>,
    /// The same as `n`: answers that were not to be given are not made.
    pub best_of: Option<u32>,
    /// Up to four texts that end an answer.
    pub stop: Option<OneOrMore>,
    /// How many of the most likely tokens to name with each, up to 5 at OpenAI and up to 20 here.
    pub logprobs: Option<u32>,
    /// Whether the answer begins with the prompt.
    pub echo: Option<bool>,
    /// Refused unless empty: no model here fills in the middle.
    pub suffix: Option<String>,
    /// What an answer must be.
    pub response_format: Option<ResponseFormat>,
    /// Forms that OpenAI has no name for.
    pub structured_outputs: Option<StructuredOutputs>,
    /// Whether the answer comes piece by piece.
    pub stream: Option<bool>,
    /// What a stream is to tell besides.
    pub stream_options: Option<StreamOptions>,
    /// Whether an answer goes on behind the model's own end.
    pub ignore_eos: Option<bool>,
    /// On whose behalf; not looked at.
    pub user: Option<String>,
}

/// What to go on from.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(untagged, expecting = "a text, a list of texts, a list of tokens or a list of lists of tokens")]
pub enum Prompt {
    /// A text.
    Text(String),
    /// Texts.
    Texts(Vec<String>),
    /// Tokens of one prompt.
    Tokens(Vec<u32>),
    /// Tokens of several.
    Several(Vec<Vec<u32>>),
}

/// The answers to prompts.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, ToSchema)]
pub struct Completion {
    /// By which it is told apart from others.
    pub id: String,
    /// `text_completion`, in every piece too.
    pub object: String,
    /// When, in seconds since 1970.
    pub created: u64,
    /// Which model answered.
    pub model: String,
    /// The answers, or what is new of one.
    pub choices: Vec<CompletionChoice>,
    /// What computed it. The same seed gives the same answer as long as this stays the same.
    pub system_fingerprint: String,
    /// What it took. In a stream: in the last chunk, and null before, if it was asked for.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schema(value_type = Option<Usage>)]
    pub usage: Option<Option<Usage>>,
}

/// An answer, or what is new of it.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, ToSchema)]
pub struct CompletionChoice {
    /// Its text.
    pub text: String,
    /// Which of the answers: those to the first prompt come first.
    pub index: usize,
    /// How likely its tokens were.
    pub logprobs: Option<CompletionLogprobs>,
    /// Why it ended; null in a stream until it has.
    pub finish_reason: Option<FinishReason>,
}

/// How likely the tokens of a text were, side by side.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, ToSchema)]
pub struct CompletionLogprobs {
    /// The tokens.
    pub tokens: Vec<String>,
    /// The logarithm of each one's probability; null of the first of an echoed prompt, which nothing precedes.
    pub token_logprobs: Vec<Option<f32>>,
    /// The most likely tokens at each place.
    pub top_logprobs: Vec<Option<BTreeMap<String, f32>>>,
    /// Where each begins, in characters from the beginning of the answer.
    pub text_offset: Vec<usize>,
}
