//! Types that chats and completions share.

use serde::{Deserialize, Serialize};
use serde_json::Value;
use utoipa::ToSchema;

/// One or several texts.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(untagged, expecting = "a text or a list of texts")]
pub enum OneOrMore {
    /// One text.
    One(String),
    /// Several texts.
    More(Vec<String>),
}

impl OneOrMore {
    /// All texts.
    pub fn into_vec(self) -> Vec<String> {
        match self {
            OneOrMore::One(text) => vec![text],
            OneOrMore::More(texts) => texts,
        }
    }
}

/// Options of a stream.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct StreamOptions {
    /// Send the token usage in a last chunk without choices.
    pub include_usage: Option<bool>,
    /// Padding against traffic analysis; not supported, `true` has no effect.
    pub include_obfuscation: Option<bool>,
}

/// Structured output, in OpenAI's format.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, ToSchema)]
#[serde(tag = "type", rename_all = "snake_case")]
pub enum ResponseFormat {
    /// Any text.
    Text,
    /// A JSON object.
    JsonObject {
        /// Schema that it must satisfy, as in llama.cpp; any object if absent.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        #[schema(value_type = Option<Object>)]
        schema: Option<Value>,
    },
    /// JSON that satisfies a schema.
    JsonSchema {
        /// The schema and its name.
        json_schema: NamedSchema,
    },
}

/// A JSON schema with a name.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, ToSchema)]
pub struct NamedSchema {
    /// Name of the schema; ignored.
    pub name: Option<String>,
    /// Description of the schema; ignored.
    pub description: Option<String>,
    /// The schema; any object if absent.
    #[schema(value_type = Option<Object>)]
    pub schema: Option<Value>,
    /// Ignored: answers always satisfy the schema.
    pub strict: Option<bool>,
}

/// Structured output in vLLM's format. Exactly one field may be set.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub struct StructuredOutputs {
    /// A JSON schema, as an object or a string.
    #[schema(value_type = Option<Object>)]
    pub json: Option<Value>,
    /// A regular expression that must match the whole answer.
    pub regex: Option<String>,
    /// The allowed answers.
    pub choice: Option<Vec<String>>,
    /// A grammar in llguidance's dialect of Lark.
    pub grammar: Option<String>,
    /// Any JSON object.
    pub json_object: Option<bool>,
}

/// Token usage of a request.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct Usage {
    /// Tokens of all prompts.
    pub prompt_tokens: usize,
    /// Tokens of all answers.
    pub completion_tokens: usize,
    /// Sum of both.
    pub total_tokens: usize,
    /// Details of the prompt tokens.
    pub prompt_tokens_details: PromptTokensDetails,
    /// Details of the generated tokens, of a model that reasons.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub completion_tokens_details: Option<CompletionTokensDetails>,
}

impl Usage {
    /// Usage from prompt tokens, prompt tokens found in the prefix cache, and generated tokens.
    pub fn new(prompt_tokens: usize, cached_tokens: usize, completion_tokens: usize) -> Usage {
        Usage {
            prompt_tokens,
            completion_tokens,
            total_tokens: prompt_tokens + completion_tokens,
            prompt_tokens_details: PromptTokensDetails { cached_tokens },
            completion_tokens_details: None,
        }
    }

    /// The same, with the number of tokens of thoughts.
    pub fn with_reasoning_tokens(self, reasoning_tokens: usize) -> Usage {
        Usage { completion_tokens_details: Some(CompletionTokensDetails { reasoning_tokens }), ..self }
    }
}

/// Details of the prompt tokens.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct PromptTokensDetails {
    /// Tokens found in the prefix cache.
    pub cached_tokens: usize,
}

/// Details of the generated tokens.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct CompletionTokensDetails {
    /// Tokens of thoughts.
    pub reasoning_tokens: usize,
}

/// Why an answer ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "snake_case")]
pub enum FinishReason {
    /// End-of-sequence token or stop string.
    Stop,
    /// `max_tokens` or the context length was reached.
    Length,
    /// The answer calls tools.
    ToolCalls,
}
