//! What chats and completions have in common.

use serde::{Deserialize, Serialize};
use serde_json::Value;
use utoipa::ToSchema;

/// One text, or several.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(untagged, expecting = "a text or a list of texts")]
pub enum OneOrMore {
    /// One.
    One(String),
    /// Several.
    More(Vec<String>),
}

impl OneOrMore {
    /// All of them.
    pub fn into_vec(self) -> Vec<String> {
        match self {
            OneOrMore::One(text) => vec![text],
            OneOrMore::More(texts) => texts,
        }
    }
}

/// What a stream is to tell besides its text.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct StreamOptions {
    /// Whether a last chunk, without choices, says how many tokens were used.
    pub include_usage: Option<bool>,
    /// Padding against readers of packet sizes; there is none, and `false` is the one value that is taken.
    pub include_obfuscation: Option<bool>,
}

/// What an answer must be.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, ToSchema)]
#[serde(tag = "type", rename_all = "snake_case")]
pub enum ResponseFormat {
    /// Any text.
    Text,
    /// A JSON object.
    JsonObject {
        /// One that satisfies this schema, as llama.cpp has it; any where there is none.
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
    /// What the caller calls it.
    pub name: Option<String>,
    /// What it is for.
    pub description: Option<String>,
    /// The schema; any object where there is none.
    #[schema(value_type = Option<Object>)]
    pub schema: Option<Value>,
    /// Answers always satisfy the schema, whatever this says.
    pub strict: Option<bool>,
}

/// Forms that OpenAI has no name for, as vLLM calls them. One of them at a time.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub struct StructuredOutputs {
    /// A JSON schema, as an object or as a text.
    #[schema(value_type = Option<Object>)]
    pub json: Option<Value>,
    /// An expression that matches the whole answer.
    pub regex: Option<String>,
    /// The answers that there may be.
    pub choice: Option<Vec<String>>,
    /// A grammar in llguidance's dialect of Lark.
    pub grammar: Option<String>,
    /// Any JSON object.
    pub json_object: Option<bool>,
}

/// Tokens that a request took.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct Usage {
    /// Of the prompt, or of all prompts.
    pub prompt_tokens: usize,
    /// Of all answers.
    pub completion_tokens: usize,
    /// Both together.
    pub total_tokens: usize,
    /// Of the prompt, in particular.
    pub prompt_tokens_details: PromptTokensDetails,
}

impl Usage {
    /// Of so many tokens of a prompt, of which some did not have to be computed, and of answers.
    pub fn new(prompt_tokens: usize, cached_tokens: usize, completion_tokens: usize) -> Usage {
        Usage {
            prompt_tokens,
            completion_tokens,
            total_tokens: prompt_tokens + completion_tokens,
            prompt_tokens_details: PromptTokensDetails { cached_tokens },
        }
    }
}

/// Tokens of a prompt.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct PromptTokensDetails {
    /// Those that were known from an earlier request and not computed again.
    pub cached_tokens: usize,
}

/// Why an answer ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "snake_case")]
pub enum FinishReason {
    /// The model ended it, or a stop text came.
    Stop,
    /// There was no room for more, or no more was asked for.
    Length,
    /// It is a call of tools.
    ToolCalls,
}
