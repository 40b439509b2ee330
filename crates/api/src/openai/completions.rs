//! `POST /v1/completions`.

use super::common::{FinishReason, OneOrMore, ResponseFormat, StreamOptions, StructuredOutputs, Usage};
use serde::{Deserialize, Serialize};
use serde_json::Value;
use std::collections::BTreeMap;
use utoipa::ToSchema;

/// A text completion request.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, ToSchema)]
pub struct CompletionRequest {
    /// Name of the model; by default the first that generates text.
    pub model: Option<String>,
    /// One or several prompts, as texts or token ids.
    pub prompt: Prompt,
    /// Most tokens per answer; by default 16.
    pub max_tokens: Option<usize>,
    /// Sampling temperature: divides the logits; 0 takes the most likely token.
    pub temperature: Option<f32>,
    /// Nucleus sampling: keeps the fewest tokens whose probabilities sum to this.
    pub top_p: Option<f32>,
    /// Keeps the `top_k` most likely tokens; 0 and -1 keep all.
    pub top_k: Option<i64>,
    /// Keeps tokens with at least this fraction of the highest probability.
    pub min_p: Option<f32>,
    /// Above 1, tokens of the prompt and the answer become less likely.
    #[serde(alias = "repeat_penalty")]
    pub repetition_penalty: Option<f32>,
    /// Subtracted from a token's logit if it is in the answer.
    pub presence_penalty: Option<f32>,
    /// Subtracted from a token's logit for each occurrence in the answer.
    pub frequency_penalty: Option<f32>,
    /// Added to the logits of tokens, by token id.
    pub logit_bias: Option<BTreeMap<String, f32>>,
    /// Seed of the random numbers for sampling.
    pub seed: Option<i64>,
    /// Answers per prompt.
    pub n: Option<u32>,
    /// Must equal `n`: every generated answer is returned.
    pub best_of: Option<u32>,
    /// Up to four stop strings.
    pub stop: Option<OneOrMore>,
    /// Number of top logprobs per token, up to 20 (5 at OpenAI).
    pub logprobs: Option<u32>,
    /// Begin the answer with the prompt.
    pub echo: Option<bool>,
    /// Refused unless empty: fill-in-the-middle is not supported.
    pub suffix: Option<String>,
    /// Structured output, in OpenAI's format.
    pub response_format: Option<ResponseFormat>,
    /// Structured output, in vLLM's format.
    pub structured_outputs: Option<StructuredOutputs>,
    /// A grammar of the answer, in llama.cpp's GBNF or llguidance's dialect of Lark.
    pub grammar: Option<String>,
    /// A JSON schema of the answer, as in llama.cpp.
    #[schema(value_type = Option<Object>)]
    pub json_schema: Option<Value>,
    /// Stream the answer.
    pub stream: Option<bool>,
    /// Options of a stream.
    pub stream_options: Option<StreamOptions>,
    /// Continue after the end-of-sequence token.
    pub ignore_eos: Option<bool>,
    /// Accepted and ignored.
    pub user: Option<String>,
}

/// One or several prompts.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(untagged, expecting = "a text, a list of texts, a list of tokens or a list of lists of tokens")]
pub enum Prompt {
    /// A text.
    Text(String),
    /// Several texts.
    Texts(Vec<String>),
    /// Token ids of one prompt.
    Tokens(Vec<u32>),
    /// Token ids of several prompts.
    Several(Vec<Vec<u32>>),
}

/// A text completion, or a chunk of one.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, ToSchema)]
pub struct Completion {
    /// Unique id.
    pub id: String,
    /// `text_completion`, also in chunks.
    pub object: String,
    /// Time in seconds since 1970.
    pub created: u64,
    /// Name of the model.
    pub model: String,
    /// The answers, or the new text of one.
    pub choices: Vec<CompletionChoice>,
    /// Version, device and format. When it changes, the same seed may give another answer.
    pub system_fingerprint: String,
    /// Token usage. In a stream, if requested: in the last chunk, null before.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schema(value_type = Option<Usage>)]
    pub usage: Option<Option<Usage>>,
}

/// An answer, or its new text.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, ToSchema)]
pub struct CompletionChoice {
    /// The text.
    pub text: String,
    /// Index of the answer; answers to the first prompt come first.
    pub index: usize,
    /// Logprobs of the tokens.
    pub logprobs: Option<CompletionLogprobs>,
    /// Why the answer ended; null in a stream until it has.
    pub finish_reason: Option<FinishReason>,
}

/// Logprobs of the tokens of a text, as parallel lists.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, ToSchema)]
pub struct CompletionLogprobs {
    /// The tokens.
    pub tokens: Vec<String>,
    /// Log probability of each token; null for the first token of an echoed prompt.
    pub token_logprobs: Vec<Option<f32>>,
    /// The most likely tokens at each position.
    pub top_logprobs: Vec<Option<BTreeMap<String, f32>>>,
    /// Character offset of each token within the answer.
    pub text_offset: Vec<usize>,
}
