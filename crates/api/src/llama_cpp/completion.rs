//! `/completion`, `/completions` and `/infill`.

use super::prompt::{Prompts, PromptsSchema};
use super::settings::GenerationSettings;
use crate::openai::common::OneOrMore;
use crate::timings::{PromptProgress, Timings};
use serde::{Deserialize, Serialize};
use serde_json::Value;
use utoipa::ToSchema;

/// `POST /completion`.
#[derive(Clone, Debug, Deserialize, ToSchema)]
#[schema(as = LlamaCppCompletionRequest)]
pub struct CompletionRequest {
    /// One or several prompts, as text or tokens. Control tokens in a text are read as such.
    #[schema(value_type = PromptsSchema)]
    pub prompt: Prompts,
    /// Name of the model; by default the first that generates text.
    pub model: Option<String>,
    /// Most tokens of an answer; -1 for as many as fit into the context. With 0, the prompt is
    /// computed and nothing generated.
    #[serde(alias = "max_tokens", alias = "max_completion_tokens")]
    pub n_predict: Option<i64>,
    /// Number of answers to each prompt.
    #[serde(alias = "n_cmpl")]
    pub n: Option<u32>,
    /// Stream the answer.
    pub stream: Option<bool>,
    /// Sampling temperature; 0 takes the most likely token.
    pub temperature: Option<f32>,
    /// Keeps the `top_k` most likely tokens; 0 and -1 keep all.
    pub top_k: Option<i64>,
    /// Keeps the fewest tokens whose probabilities sum to this.
    pub top_p: Option<f32>,
    /// Keeps tokens with at least this fraction of the highest probability.
    pub min_p: Option<f32>,
    /// Above 1, tokens of the prompt and the answer become less likely.
    #[serde(alias = "repetition_penalty")]
    pub repeat_penalty: Option<f32>,
    /// Tokens that the penalties look back; -1 for all, 0 for no penalties.
    pub repeat_last_n: Option<i64>,
    /// Subtracted from a token's logit if it is in the answer.
    pub presence_penalty: Option<f32>,
    /// Subtracted from a token's logit for each occurrence in the answer.
    pub frequency_penalty: Option<f32>,
    /// Added to the logits of tokens, by id or by text, whose tokens all get it. `false` excludes a
    /// token.
    #[schema(value_type = Option<Object>)]
    pub logit_bias: Option<LogitBias>,
    /// Seed of the random numbers; -1 for a random one.
    pub seed: Option<i64>,
    /// Stop strings.
    pub stop: Option<OneOrMore>,
    /// Never generate the end token.
    pub ignore_eos: Option<bool>,
    /// A grammar of the answer, in GBNF.
    pub grammar: Option<String>,
    /// A JSON schema of the answer.
    #[schema(value_type = Option<Object>)]
    pub json_schema: Option<Value>,
    /// Number of the most likely tokens to return for each token, up to 100.
    #[serde(alias = "logprobs")]
    pub n_probs: Option<u32>,
    /// Return probabilities after sampling's cuts instead of the model's log probabilities.
    pub post_sampling_probs: Option<bool>,
    /// Return the tokens of the answer.
    pub return_tokens: Option<bool>,
    /// Return timings with every token of a stream.
    pub timings_per_token: Option<bool>,
    /// Return the progress of the prompt in a stream.
    pub return_progress: Option<bool>,
    /// Return these fields alone; `/` leads into an object.
    pub response_fields: Option<Vec<String>>,
    /// End an answer that takes longer, in milliseconds since its first token, once it has a line
    /// break; 0 for never.
    pub t_max_predict_ms: Option<i64>,
    /// Without effect unless false: the prefix of a prompt is always reused.
    pub cache_prompt: Option<bool>,
    /// Without effect: any sequence runs in any slot.
    pub id_slot: Option<i64>,
}

/// A bias by token.
#[derive(Clone, Debug, PartialEq, Deserialize)]
#[serde(untagged, expecting = "a list of [token, bias], or an object of biases by token")]
pub enum LogitBias {
    /// Pairs of a token, or a text, and a bias.
    List(Vec<(TokenOrText, Bias)>),
    /// Biases by token id or text.
    Map(std::collections::BTreeMap<String, Bias>),
}

impl LogitBias {
    /// Each token or text with its bias; `None` excludes it.
    pub fn into_pairs(self) -> Vec<(TokenOrText, Option<f32>)> {
        let value = |bias| match bias {
            Bias::Number(bias) => Some(bias),
            Bias::Allowed(allowed) => allowed.then_some(0.0),
        };
        match self {
            LogitBias::List(all) => all.into_iter().map(|(token, bias)| (token, value(bias))).collect(),
            LogitBias::Map(all) => {
                let token = |key: String| key.parse().map_or(TokenOrText::Text(key), TokenOrText::Id);
                all.into_iter().map(|(key, bias)| (token(key), value(bias))).collect()
            }
        }
    }
}

/// A token id or a text.
#[derive(Clone, Debug, PartialEq, Deserialize)]
#[serde(untagged, expecting = "a token id or a text")]
pub enum TokenOrText {
    /// A token id.
    Id(u32),
    /// A text.
    Text(String),
}

/// A bias.
#[derive(Clone, Copy, Debug, PartialEq, Deserialize)]
#[serde(untagged, expecting = "a number, or false to exclude the token")]
pub enum Bias {
    /// A number.
    Number(f32),
    /// `false` excludes the token.
    Allowed(bool),
}

/// `POST /infill`: a completion between two texts.
#[derive(Clone, Debug, Deserialize, ToSchema)]
#[schema(as = LlamaCppInfillRequest)]
pub struct InfillRequest {
    /// The text before the gap.
    pub input_prefix: String,
    /// The text after the gap.
    pub input_suffix: String,
    /// Texts of other files.
    #[serde(default)]
    pub input_extra: Vec<InfillExtra>,
    /// The beginning of what fills the gap.
    #[serde(default)]
    pub prompt: String,
    /// The other fields are those of `/completion`.
    #[serde(flatten)]
    #[schema(value_type = Object)]
    pub options: serde_json::Map<String, Value>,
}

/// Another file.
#[derive(Clone, Debug, Deserialize, ToSchema)]
#[schema(as = LlamaCppInfillExtra)]
pub struct InfillExtra {
    /// Its text.
    pub text: String,
    /// Its name.
    pub filename: Option<String>,
}

/// Why an answer ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[schema(as = LlamaCppStopType)]
#[serde(rename_all = "snake_case")]
pub enum StopType {
    /// It has not.
    None,
    /// The model ended it.
    Eos,
    /// The limit of tokens, of time or of the context.
    Limit,
    /// A stop string.
    Word,
}

/// An answer, or a part of one in a stream. `response_fields` may leave out any field.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, ToSchema)]
#[schema(as = LlamaCppCompletion)]
#[serde(default)]
pub struct Completion {
    /// Index of the answer; answers to the first prompt come first.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub index: Option<usize>,
    /// The text, or the new text.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub content: Option<String>,
    /// Its tokens, in a stream or with `return_tokens`.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub tokens: Option<Vec<u32>>,
    /// Always -1: any sequence runs in any slot.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub id_slot: Option<i64>,
    /// Whether the answer has ended.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub stop: Option<bool>,
    /// Tokens of the answer so far.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub tokens_predicted: Option<usize>,
    /// Tokens of the prompt.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub tokens_evaluated: Option<usize>,
    /// Name of the model.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub model: Option<String>,
    /// The settings.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub generation_settings: Option<GenerationSettings>,
    /// The prompt as text.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub prompt: Option<String>,
    /// Whether the answer has a line break.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub has_new_line: Option<bool>,
    /// Whether the end of the context ended the answer.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub truncated: Option<bool>,
    /// Why the answer ended.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub stop_type: Option<StopType>,
    /// The stop string that ended it; empty if none did.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub stopping_word: Option<String>,
    /// Tokens of prompt and answer.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub tokens_cached: Option<usize>,
    /// Timings.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub timings: Option<Timings>,
    /// How far the prompt is computed.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub prompt_progress: Option<PromptProgress>,
    /// Probabilities of the tokens.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub completion_probabilities: Option<Vec<TokenProbability>>,
}

/// The response of `/completion`: a list, if the request has a list of prompts or several answers.
#[derive(Clone, Debug, Serialize, ToSchema)]
#[schema(as = LlamaCppCompletionResponse)]
#[serde(untagged)]
pub enum CompletionResponse {
    /// One answer.
    One(Box<Completion>),
    /// Several.
    Several(Vec<Completion>),
}

/// A token, with the most likely ones at its position. It has log probabilities, or with
/// `post_sampling_probs` probabilities.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, ToSchema)]
#[schema(as = LlamaCppTokenProbability)]
pub struct TokenProbability {
    /// Token id.
    pub id: u32,
    /// Its text.
    pub token: String,
    /// Its bytes.
    pub bytes: Vec<u8>,
    /// Its log probability.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub logprob: Option<f32>,
    /// Its probability.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub prob: Option<f32>,
    /// The most likely tokens, best first, with log probabilities.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub top_logprobs: Option<Vec<TopToken>>,
    /// The most likely tokens, best first, with probabilities.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub top_probs: Option<Vec<TopToken>>,
}

/// A likely token.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, ToSchema)]
#[schema(as = LlamaCppTopToken)]
pub struct TopToken {
    /// Token id.
    pub id: u32,
    /// Its text.
    pub token: String,
    /// Its bytes.
    pub bytes: Vec<u8>,
    /// Its log probability.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub logprob: Option<f32>,
    /// Its probability.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub prob: Option<f32>,
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn biases_are_read_by_token_and_by_text() {
        let pairs = |json: &str| serde_json::from_str::<LogitBias>(json).map(LogitBias::into_pairs).unwrap();
        let text = |text: &str| TokenOrText::Text(text.into());
        let all = vec![(TokenOrText::Id(5), Some(-100.0)), (text(" a "), None), (text("b"), Some(0.5))];
        assert_eq!(pairs(r#"[[5, -100], [" a ", false], ["b", 0.5]]"#), all);
        assert_eq!(
            pairs(r#"{"5": -100, " a ": 1}"#),
            vec![(text(" a "), Some(1.0)), (TokenOrText::Id(5), Some(-100.0))]
        );
    }

    #[test]
    fn infill_keeps_the_options_of_a_completion() {
        let json = r#"{"input_prefix": "a", "input_suffix": "b", "input_extra": [{"text": "c"}], "n_predict": 3}"#;
        let request: InfillRequest = serde_json::from_str(json).unwrap();
        assert_eq!(request.options.get("n_predict"), Some(&3.into()));
        assert!(serde_json::from_str::<InfillRequest>(r#"{"input_prefix": "a"}"#).is_err());
        let extra = r#"{"input_prefix": "a", "input_suffix": "b", "input_extra": [{"filename": "x"}]}"#;
        assert!(serde_json::from_str::<InfillRequest>(extra).is_err());
    }
}
