//! Parameters that chats and completions share.

use serde::{Deserialize, Serialize};
use serde_json::{Map, Value};
use utoipa::ToSchema;

/// Sampling parameters. Other options (`num_gpu`, `mirostat`, …) are accepted, have no effect and
/// are named in the header `x-sconce-ignored`.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, ToSchema)]
#[schema(as = OllamaOptions)]
pub struct Options {
    /// Sampling temperature: divides the logits; 0 takes the most likely token.
    pub temperature: Option<f32>,
    /// Keeps the `top_k` most likely tokens; 0 keeps all.
    pub top_k: Option<i64>,
    /// Nucleus sampling: keeps the fewest tokens whose probabilities sum to this.
    pub top_p: Option<f32>,
    /// Keeps tokens with at least this fraction of the highest probability.
    pub min_p: Option<f32>,
    /// Above 1, tokens of the prompt and the answer become less likely.
    pub repeat_penalty: Option<f32>,
    /// Subtracted from a token's logit if it is in the answer.
    pub presence_penalty: Option<f32>,
    /// Subtracted from a token's logit for each occurrence in the answer.
    pub frequency_penalty: Option<f32>,
    /// Seed of the random numbers for sampling.
    pub seed: Option<i64>,
    /// Most tokens of the answer; 0 and below: as many as the context has room for.
    pub num_predict: Option<i64>,
    /// Up to four stop strings.
    pub stop: Option<Vec<String>>,
    /// Embeddings: most tokens of a text. A language model has the context that it was loaded with,
    /// so there the option has no effect.
    pub num_ctx: Option<i64>,
}

/// Format of the answer.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, ToSchema)]
#[schema(as = OllamaFormat)]
#[serde(untagged, expecting = "\"json\" or a JSON schema")]
pub enum AnswerFormat {
    /// `json` for a JSON object; an empty text for any text.
    Name(String),
    /// A JSON schema, which the answer satisfies.
    #[schema(value_type = Object)]
    Schema(Map<String, Value>),
}

/// Whether and how much the model reasons before its answer.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[schema(as = OllamaThink)]
#[serde(untagged, expecting = "true, false, \"low\", \"medium\" or \"high\"")]
pub enum Think {
    /// Whether the model reasons.
    Switch(bool),
    /// How much it reasons.
    Level(ThinkLevel),
}

/// How much a model reasons.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[schema(as = OllamaThinkLevel)]
#[serde(rename_all = "lowercase")]
pub enum ThinkLevel {
    /// Little.
    Low,
    /// Some.
    Medium,
    /// Much.
    High,
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn formats_and_think_are_one_of_several_types() {
        let format = |json: &str| serde_json::from_str::<AnswerFormat>(json).ok();
        assert_eq!(format(r#""json""#), Some(AnswerFormat::Name("json".into())));
        assert!(matches!(format(r#"{"type": "object"}"#), Some(AnswerFormat::Schema(schema)) if schema.len() == 1));
        assert_eq!(format("[1]"), None);
        let think = |json: &str| serde_json::from_str::<Think>(json).map_err(|e| e.to_string());
        assert_eq!(think("false"), Ok(Think::Switch(false)));
        assert_eq!(think(r#""high""#), Ok(Think::Level(ThinkLevel::High)));
        assert!(think(r#""much""#).unwrap_err().contains("\"medium\""));
    }
}
