//! Requests to `POST /v1/responses` and `POST /v1/responses/input_tokens`.

use super::input::InputItem;
use crate::openai::chat::ReasoningEffort;
use crate::openai::lists::Order;
use crate::text_or::TextOr;
use serde::{Deserialize, Serialize};
use serde_json::{Map, Value};
use std::collections::BTreeMap;
use utoipa::{IntoParams, ToSchema};

/// A request for a response, or for the number of its prompt's tokens.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, ToSchema)]
pub struct ResponseRequest {
    /// Name of the model; by default the first that generates text.
    pub model: Option<String>,
    /// The new items of the conversation.
    #[schema(value_type = Option<ResponseInput>)]
    pub input: Option<TextOr<Vec<InputItem>>>,
    /// Instructions in front of the conversation. They are not part of later responses.
    pub instructions: Option<String>,
    /// A stored response, whose conversation goes on.
    pub previous_response_id: Option<String>,
    /// Keep the response, so that it can be retrieved and continued; by default true.
    pub store: Option<bool>,
    /// Stream the response.
    pub stream: Option<bool>,
    /// Options of a stream.
    pub stream_options: Option<ResponseStreamOptions>,
    /// Most generated tokens, thoughts included.
    pub max_output_tokens: Option<usize>,
    /// Sampling temperature: divides the logits; 0 takes the most likely token.
    pub temperature: Option<f32>,
    /// Nucleus sampling: keeps the fewest tokens whose probabilities sum to this.
    pub top_p: Option<f32>,
    /// Keeps the `top_k` most likely tokens; 0 and -1 keep all.
    pub top_k: Option<i64>,
    /// Keeps tokens with at least this fraction of the highest probability.
    pub min_p: Option<f32>,
    /// Seed of the random numbers for sampling.
    pub seed: Option<i64>,
    /// Number of top logprobs per token, up to 20; `include` asks for them.
    pub top_logprobs: Option<u32>,
    /// Further parts of the response: `message.output_text.logprobs`. Thoughts are always readable,
    /// so `reasoning.encrypted_content` adds nothing.
    pub include: Option<Vec<String>>,
    /// Tools that the model may call.
    pub tools: Option<Vec<FunctionTool>>,
    /// Whether the model may or must call a tool.
    #[schema(value_type = Option<ResponseToolChoiceSchema>)]
    pub tool_choice: Option<TextOr<ResponseToolChoice>>,
    /// Allow several tool calls in one response; by default true.
    pub parallel_tool_calls: Option<bool>,
    /// Format of the text.
    pub text: Option<TextConfig>,
    /// How the model reasons.
    pub reasoning: Option<ReasoningConfig>,
    /// What to do with a conversation longer than the context.
    pub truncation: Option<Truncation>,
    /// Up to 16 pairs, which the response repeats.
    pub metadata: Option<BTreeMap<String, String>>,
    /// Must not be true.
    pub background: Option<bool>,
    /// Refused; use `previous_response_id`.
    #[schema(value_type = Option<Object>)]
    pub conversation: Option<Value>,
    /// Refused; use `instructions` and `input`.
    #[schema(value_type = Option<Object>)]
    pub prompt: Option<Value>,
    /// Accepted: the limit is for tools that the server runs, and it runs none.
    pub max_tool_calls: Option<u64>,
    /// Accepted: the prefix cache needs no key.
    pub prompt_cache_key: Option<String>,
    /// Accepted and ignored.
    pub prompt_cache_retention: Option<String>,
    /// Accepted and ignored.
    pub safety_identifier: Option<String>,
    /// Accepted and ignored.
    pub service_tier: Option<String>,
    /// Accepted and ignored.
    pub user: Option<String>,
}

/// OpenAPI schema of `input`.
#[derive(ToSchema)]
#[serde(untagged)]
#[allow(dead_code, reason = "read by the derive alone")]
pub enum ResponseInput {
    /// A message of the user.
    Text(String),
    /// Items.
    Items(Vec<InputItem>),
}

/// Options of a stream.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct ResponseStreamOptions {
    /// Padding against traffic analysis; not supported, `true` has no effect.
    pub include_obfuscation: Option<bool>,
}

/// A function that the model may call.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, ToSchema)]
#[schema(as = ResponseFunctionTool)]
pub struct FunctionTool {
    /// `function`; tools that a server runs are refused.
    #[serde(rename = "type")]
    pub kind: String,
    /// Name of the function.
    #[serde(default)]
    pub name: String,
    /// What the function does, and when to call it.
    pub description: Option<String>,
    /// JSON schema of its arguments; absent if it takes none.
    #[schema(value_type = Option<Object>)]
    pub parameters: Option<Map<String, Value>>,
    /// Whether arguments must satisfy the schema. With `tool_choice` `required` or a named function
    /// they always do.
    pub strict: Option<bool>,
}

/// A tool that must be called, or the tools that may be.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct ResponseToolChoice {
    /// `function` or `allowed_tools`.
    #[serde(rename = "type")]
    pub kind: String,
    /// Of `function`: the function that must be called.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub name: Option<String>,
    /// Of `allowed_tools`: `auto` or `required`.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub mode: Option<String>,
    /// Of `allowed_tools`: the tools that the model may call.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub tools: Option<Vec<AllowedTool>>,
}

/// A tool that may be called.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct AllowedTool {
    /// `function`.
    #[serde(rename = "type")]
    pub kind: String,
    /// Name of the function.
    pub name: Option<String>,
}

/// OpenAPI schema of `tool_choice`.
#[derive(ToSchema)]
#[schema(as = ResponseToolChoiceOrMode)]
#[serde(untagged)]
#[allow(dead_code, reason = "read by the derive alone")]
pub enum ResponseToolChoiceSchema {
    /// `none`, `auto` or `required`.
    Mode(String),
    /// Tools by name.
    Tools(ResponseToolChoice),
}

/// Format of the text.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, ToSchema)]
pub struct TextConfig {
    /// Structured output.
    pub format: Option<TextFormat>,
    /// Not supported; without effect.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub verbosity: Option<String>,
}

/// Structured output.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, ToSchema)]
#[serde(tag = "type", rename_all = "snake_case")]
pub enum TextFormat {
    /// Any text.
    Text,
    /// A JSON object.
    JsonObject,
    /// JSON that satisfies a schema.
    JsonSchema {
        /// Name of the schema.
        name: String,
        /// The schema.
        #[schema(value_type = Object)]
        schema: Value,
        /// Description of the schema; ignored.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        description: Option<String>,
        /// Ignored: texts always satisfy the schema.
        #[serde(default)]
        strict: Option<bool>,
    },
}

/// How the model reasons.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct ReasoningConfig {
    /// How much a model that reasons thinks before it answers.
    pub effort: Option<ReasoningEffort>,
    /// Give thoughts as summaries: `auto`, `concise` or `detailed`. They are not abridged.
    pub summary: Option<SummaryKind>,
    /// The older name of `summary`.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub generate_summary: Option<SummaryKind>,
}

/// Kind of summary.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "snake_case")]
pub enum SummaryKind {
    /// The whole thought.
    Auto,
    /// The whole thought.
    Concise,
    /// The whole thought.
    Detailed,
}

/// What to do with a conversation longer than the context.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "snake_case")]
pub enum Truncation {
    /// Leave out the oldest turns.
    Auto,
    /// Refuse it.
    #[default]
    Disabled,
}

/// Options of `GET /v1/responses/{id}`.
#[derive(Clone, Debug, Default, Deserialize, IntoParams)]
#[into_params(parameter_in = Query)]
pub struct RetrieveQuery {
    /// Must not be true: only a running response could be streamed.
    pub stream: Option<bool>,
}

/// Which input items of a response.
#[derive(Clone, Debug, Default, Deserialize, IntoParams)]
#[into_params(parameter_in = Query)]
pub struct InputItemsQuery {
    /// Only items after this id, in the order of the list.
    pub after: Option<String>,
    /// The most items; the default is 20.
    #[param(minimum = 1, maximum = 100)]
    pub limit: Option<usize>,
    /// In the order of the conversation (`asc`), or from its end; the default is `desc`.
    #[param(inline)]
    pub order: Option<Order>,
}
