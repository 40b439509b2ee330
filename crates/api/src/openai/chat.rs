//! `POST /v1/chat/completions`.

use super::common::{FinishReason, OneOrMore, ResponseFormat, StreamOptions, StructuredOutputs, Usage};
use super::tools::{Tool, ToolCall, ToolCallDelta, ToolChoice};
use serde::{Deserialize, Serialize};
use serde_json::{Map, Value};
use std::collections::BTreeMap;
use utoipa::ToSchema;

/// A chat completion request.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, ToSchema)]
pub struct ChatRequest {
    /// Name of the model; by default the first that generates text.
    pub model: Option<String>,
    /// The conversation. Stored as received, because a chat template may read any field.
    #[schema(value_type = Vec<ChatMessage>)]
    pub messages: Vec<Map<String, Value>>,
    /// Most tokens per answer.
    pub max_tokens: Option<usize>,
    /// The newer name of `max_tokens`; takes precedence.
    pub max_completion_tokens: Option<usize>,
    /// Sampling temperature: divides the logits; 0 takes the most likely token.
    pub temperature: Option<f32>,
    /// Nucleus sampling: keeps the fewest tokens whose probabilities sum to this.
    pub top_p: Option<f32>,
    /// Keeps the `top_k` most likely tokens; 0 and -1 keep all.
    pub top_k: Option<i64>,
    /// Keeps tokens with at least this fraction of the highest probability.
    pub min_p: Option<f32>,
    /// Above 1, tokens of the prompt and the answer become less likely.
    pub repetition_penalty: Option<f32>,
    /// Subtracted from a token's logit if it is in the answer.
    pub presence_penalty: Option<f32>,
    /// Subtracted from a token's logit for each occurrence in the answer.
    pub frequency_penalty: Option<f32>,
    /// Added to the logits of tokens, by token id.
    pub logit_bias: Option<BTreeMap<String, f32>>,
    /// Seed of the random numbers for sampling.
    pub seed: Option<i64>,
    /// Number of answers.
    pub n: Option<u32>,
    /// Up to four stop strings.
    pub stop: Option<OneOrMore>,
    /// Return the logprobs of the tokens.
    pub logprobs: Option<bool>,
    /// Number of top logprobs per token, up to 20.
    pub top_logprobs: Option<u32>,
    /// Structured output, in OpenAI's format.
    pub response_format: Option<ResponseFormat>,
    /// Structured output, in vLLM's format.
    pub structured_outputs: Option<StructuredOutputs>,
    /// Tools that the model may call.
    pub tools: Option<Vec<Tool>>,
    /// Whether the model may or must call a tool.
    pub tool_choice: Option<ToolChoice>,
    /// Allow several tool calls in one answer; by default true.
    pub parallel_tool_calls: Option<bool>,
    /// How much a model that reasons thinks before it answers.
    pub reasoning_effort: Option<ReasoningEffort>,
    /// Most tokens of a thought; 0 for none. Then the thought is ended.
    pub reasoning_budget: Option<usize>,
    /// Further variables of the model's chat template (`enable_thinking`, …).
    #[schema(value_type = Option<Object>)]
    pub chat_template_kwargs: Option<Map<String, Value>>,
    /// Stream the answer.
    pub stream: Option<bool>,
    /// Options of a stream.
    pub stream_options: Option<StreamOptions>,
    /// Continue after the end-of-sequence token.
    pub ignore_eos: Option<bool>,
    /// Accepted and ignored.
    pub user: Option<String>,
    /// Refused; use `tools`.
    #[schema(value_type = Option<Object>)]
    pub functions: Option<Value>,
    /// Refused; use `tool_choice`.
    #[schema(value_type = Option<Object>)]
    pub function_call: Option<Value>,
    /// Must be `["text"]` if set.
    pub modalities: Option<Vec<String>>,
}

/// How much a model that reasons thinks before it answers.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "snake_case")]
pub enum ReasoningEffort {
    /// Not at all.
    None,
    /// As little as possible.
    Minimal,
    /// Little.
    Low,
    /// Moderately.
    Medium,
    /// Much.
    High,
    /// Without a limit.
    Xhigh,
}

/// A message, with the fields that every chat template reads.
#[derive(Clone, Debug, Serialize, Deserialize, ToSchema)]
pub struct ChatMessage {
    /// Role: `system`, `developer`, `user`, `assistant`, `tool`.
    pub role: String,
    /// The content: a text, or parts `{"type": "text", "text": …}`.
    #[schema(value_type = Option<MessageContent>)]
    pub content: Option<Value>,
    /// Earlier thoughts of an assistant message; the chat template decides which are part of the
    /// prompt.
    pub reasoning_content: Option<String>,
    /// Tool calls of an assistant message.
    pub tool_calls: Option<Vec<ToolCall>>,
    /// Id of the call whose result this is.
    pub tool_call_id: Option<String>,
    /// Name of the participant.
    pub name: Option<String>,
}

/// Content of a message.
#[derive(Clone, Debug, Serialize, Deserialize, ToSchema)]
#[serde(untagged)]
pub enum MessageContent {
    /// A text.
    Text(String),
    /// Content parts.
    Parts(Vec<ContentPart>),
}

/// A content part.
#[derive(Clone, Debug, Serialize, Deserialize, ToSchema)]
#[serde(tag = "type", rename_all = "snake_case")]
pub enum ContentPart {
    /// A text.
    Text {
        /// The text.
        text: String,
    },
}

/// A chat completion.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, ToSchema)]
pub struct ChatCompletion {
    /// Unique id.
    pub id: String,
    /// `chat.completion`.
    pub object: String,
    /// Time in seconds since 1970.
    pub created: u64,
    /// Name of the model.
    pub model: String,
    /// The answers.
    pub choices: Vec<ChatChoice>,
    /// Token usage.
    pub usage: Usage,
    /// Version, device and format. When it changes, the same seed may give another answer.
    pub system_fingerprint: String,
}

/// An answer.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, ToSchema)]
pub struct ChatChoice {
    /// Index of the answer.
    pub index: usize,
    /// The message.
    pub message: AssistantMessage,
    /// Logprobs of the tokens.
    pub logprobs: Option<ChatLogprobs>,
    /// Why the answer ended.
    pub finish_reason: FinishReason,
}

/// An assistant message.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, ToSchema)]
pub struct AssistantMessage {
    /// `assistant`.
    pub role: String,
    /// The text; null if the model only calls tools.
    pub content: Option<String>,
    /// Always null.
    pub refusal: Option<String>,
    /// The thoughts of a model that reasons.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub reasoning_content: Option<String>,
    /// Tool calls.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub tool_calls: Option<Vec<ToolCall>>,
}

/// Logprobs of the tokens of an answer.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, ToSchema)]
pub struct ChatLogprobs {
    /// One entry per token.
    pub content: Vec<TokenLogprob>,
    /// Always null.
    pub refusal: Option<Vec<TokenLogprob>>,
}

/// Logprobs of a token.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, ToSchema)]
pub struct TokenLogprob {
    /// Text of the token.
    pub token: String,
    /// Log probability.
    pub logprob: f32,
    /// Bytes of the token; null if it has none.
    pub bytes: Option<Vec<u8>>,
    /// The most likely tokens at this position, best first.
    pub top_logprobs: Vec<TopLogprob>,
}

/// One of the most likely tokens.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, ToSchema)]
pub struct TopLogprob {
    /// Text of the token.
    pub token: String,
    /// Log probability.
    pub logprob: f32,
    /// Bytes of the token; null if it has none.
    pub bytes: Option<Vec<u8>>,
}

/// A chunk of a streamed chat completion.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, ToSchema)]
pub struct ChatChunk {
    /// The same in every chunk.
    pub id: String,
    /// `chat.completion.chunk`.
    pub object: String,
    /// The same in every chunk.
    pub created: u64,
    /// Name of the model.
    pub model: String,
    /// The new parts of answers; empty in the last chunk, which has the usage.
    pub choices: Vec<ChatChunkChoice>,
    /// Version, device and format.
    pub system_fingerprint: String,
    /// Token usage, if requested: in the last chunk, null before.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schema(value_type = Option<Usage>)]
    pub usage: Option<Option<Usage>>,
}

/// The new part of an answer.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, ToSchema)]
pub struct ChatChunkChoice {
    /// Index of the answer.
    pub index: usize,
    /// The new part of the message.
    pub delta: ChatDelta,
    /// Logprobs of the new tokens.
    pub logprobs: Option<ChatLogprobs>,
    /// Why the answer ended; null until it has.
    pub finish_reason: Option<FinishReason>,
}

/// The new part of a message.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, ToSchema)]
pub struct ChatDelta {
    /// `assistant`, in the first chunk.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub role: Option<String>,
    /// New text.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub content: Option<String>,
    /// New text of a thought.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub reasoning_content: Option<String>,
    /// New parts of tool calls.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub tool_calls: Option<Vec<ToolCallDelta>>,
}
