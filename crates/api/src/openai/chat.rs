//! `POST /v1/chat/completions`.

use super::common::{FinishReason, OneOrMore, ResponseFormat, StreamOptions, StructuredOutputs, Usage};
use super::tools::{Tool, ToolCall, ToolCallDelta, ToolChoice};
use serde::{Deserialize, Serialize};
use serde_json::{Map, Value};
use std::collections::BTreeMap;
use utoipa::ToSchema;

/// A conversation to be answered.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, ToSchema)]
pub struct ChatRequest {
    /// Which model.
    pub model: Option<String>,
    /// What was said. Kept as it came: a template may read any field of it.
    #[schema(value_type = Vec<ChatMessage>)]
    pub messages: Vec<Map<String, Value>>,
    /// The most tokens of an answer.
    pub max_tokens: Option<usize>,
    /// The same, as it is called now. It goes before the other.
    pub max_completion_tokens: Option<usize>,
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
    /// How many answers.
    pub n: Option<u32>,
    /// Up to four texts that end an answer.
    pub stop: Option<OneOrMore>,
    /// Whether to say how likely the tokens were.
    pub logprobs: Option<bool>,
    /// How many of the most likely tokens to name with each.
    pub top_logprobs: Option<u32>,
    /// What an answer must be.
    pub response_format: Option<ResponseFormat>,
    /// Forms that OpenAI has no name for.
    pub structured_outputs: Option<StructuredOutputs>,
    /// Functions the model may call.
    pub tools: Option<Vec<Tool>>,
    /// Whether it does.
    pub tool_choice: Option<ToolChoice>,
    /// Whether it may call several at once; `true` if it is not said.
    pub parallel_tool_calls: Option<bool>,
    /// Whatever else the model's chat template reads (`enable_thinking`, …).
    #[schema(value_type = Option<Object>)]
    pub chat_template_kwargs: Option<Map<String, Value>>,
    /// Whether the answer comes piece by piece.
    pub stream: Option<bool>,
    /// What a stream is to tell besides.
    pub stream_options: Option<StreamOptions>,
    /// Whether an answer goes on behind the model's own end.
    pub ignore_eos: Option<bool>,
    /// On whose behalf; not looked at.
    pub user: Option<String>,
    /// Refused: `tools` took its place.
    #[schema(value_type = Option<Object>)]
    pub functions: Option<Value>,
    /// Refused: `tool_choice` took its place.
    #[schema(value_type = Option<Object>)]
    pub function_call: Option<Value>,
    /// Only `["text"]`.
    pub modalities: Option<Vec<String>>,
}

/// One message, in the fields that every template reads.
#[derive(Clone, Debug, Serialize, Deserialize, ToSchema)]
pub struct ChatMessage {
    /// Who speaks: `system`, `developer`, `user`, `assistant`, `tool`.
    pub role: String,
    /// What is said: a text, or parts `{"type": "text", "text": …}`.
    #[schema(value_type = Option<MessageContent>)]
    pub content: Option<Value>,
    /// Calls that the model made.
    pub tool_calls: Option<Vec<ToolCall>>,
    /// Of which call this is the result.
    pub tool_call_id: Option<String>,
    /// The speaker's name.
    pub name: Option<String>,
}

/// What a message says.
#[derive(Clone, Debug, Serialize, Deserialize, ToSchema)]
#[serde(untagged)]
pub enum MessageContent {
    /// A text.
    Text(String),
    /// Parts of a text.
    Parts(Vec<ContentPart>),
}

/// A part of a message.
#[derive(Clone, Debug, Serialize, Deserialize, ToSchema)]
#[serde(tag = "type", rename_all = "snake_case")]
pub enum ContentPart {
    /// A text.
    Text {
        /// The text.
        text: String,
    },
}

/// The answers to a conversation.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, ToSchema)]
pub struct ChatCompletion {
    /// By which it is told apart from others.
    pub id: String,
    /// `chat.completion`.
    pub object: String,
    /// When, in seconds since 1970.
    pub created: u64,
    /// Which model answered.
    pub model: String,
    /// The answers.
    pub choices: Vec<ChatChoice>,
    /// What it took.
    pub usage: Usage,
    /// What computed it. The same seed gives the same answer as long as this stays the same.
    pub system_fingerprint: String,
}

/// An answer.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, ToSchema)]
pub struct ChatChoice {
    /// Which of the answers.
    pub index: usize,
    /// What the model says.
    pub message: AssistantMessage,
    /// How likely its tokens were.
    pub logprobs: Option<ChatLogprobs>,
    /// Why it ended.
    pub finish_reason: FinishReason,
}

/// What the model says.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, ToSchema)]
pub struct AssistantMessage {
    /// `assistant`.
    pub role: String,
    /// Its text; none where it only calls tools.
    pub content: Option<String>,
    /// Always null: models here do not refuse in a field of its own.
    pub refusal: Option<String>,
    /// Its calls.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub tool_calls: Option<Vec<ToolCall>>,
}

/// How likely the tokens of an answer were.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, ToSchema)]
pub struct ChatLogprobs {
    /// Token by token.
    pub content: Vec<TokenLogprob>,
    /// Always null.
    pub refusal: Option<Vec<TokenLogprob>>,
}

/// How likely a token was.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, ToSchema)]
pub struct TokenLogprob {
    /// Its text.
    pub token: String,
    /// The logarithm of its probability.
    pub logprob: f32,
    /// Its bytes; null where it has none of its own.
    pub bytes: Option<Vec<u8>>,
    /// The most likely tokens here, best first.
    pub top_logprobs: Vec<TopLogprob>,
}

/// How likely a token would have been.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, ToSchema)]
pub struct TopLogprob {
    /// Its text.
    pub token: String,
    /// The logarithm of its probability.
    pub logprob: f32,
    /// Its bytes; null where it has none of its own.
    pub bytes: Option<Vec<u8>>,
}

/// A piece of the answers.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, ToSchema)]
pub struct ChatChunk {
    /// The same in every piece.
    pub id: String,
    /// `chat.completion.chunk`.
    pub object: String,
    /// The same in every piece.
    pub created: u64,
    /// Which model answers.
    pub model: String,
    /// What is new; nothing in the last chunk, which has the usage.
    pub choices: Vec<ChatChunkChoice>,
    /// What computed it.
    pub system_fingerprint: String,
    /// In the last chunk, and null before, if it was asked for.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schema(value_type = Option<Usage>)]
    pub usage: Option<Option<Usage>>,
}

/// What is new of an answer.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, ToSchema)]
pub struct ChatChunkChoice {
    /// Which of the answers.
    pub index: usize,
    /// What is new.
    pub delta: ChatDelta,
    /// How likely the new tokens were.
    pub logprobs: Option<ChatLogprobs>,
    /// Why it ended; null until it has.
    pub finish_reason: Option<FinishReason>,
}

/// What is new of a message.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, ToSchema)]
pub struct ChatDelta {
    /// `assistant`, in the first piece.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub role: Option<String>,
    /// More text.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub content: Option<String>,
    /// More of its calls.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub tool_calls: Option<Vec<ToolCallDelta>>,
}
