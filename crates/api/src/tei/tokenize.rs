//! `/tokenize` and `/decode`.

use crate::input::{Inputs, InputsSchema};
use serde::{Deserialize, Serialize};
use utoipa::ToSchema;

/// `POST /tokenize`.
#[derive(Clone, Debug, Deserialize, ToSchema)]
pub struct TokenizeRequest {
    /// One or several texts.
    #[schema(value_type = InputsSchema)]
    pub inputs: Inputs,
    /// Name of the model; by default the first.
    pub model: Option<String>,
    /// Add special tokens, such as `[CLS]`.
    #[serde(default = "super::yes")]
    pub add_special_tokens: bool,
    /// Name of one of the model's prompts, which is prepended to each text.
    pub prompt_name: Option<String>,
}

/// A token and its offsets.
#[derive(Clone, Debug, Deserialize, Serialize, PartialEq, Eq, ToSchema)]
pub struct Token {
    /// Token id.
    pub id: u32,
    /// The token's part of the text; the name of a special token.
    pub text: String,
    /// Whether it is a special token.
    pub special: bool,
    /// Character offset where the token starts, if it is part of the text.
    pub start: Option<usize>,
    /// Character offset where the token ends (exclusive).
    pub stop: Option<usize>,
}

/// The tokens of each text.
#[derive(Clone, Debug, Serialize, ToSchema)]
pub struct TokenizeResponse(pub Vec<Vec<Token>>);

/// Token ids of one or several texts.
#[derive(Clone, Debug, Deserialize, ToSchema)]
#[serde(untagged, expecting = "a list of token ids, or a list of such lists")]
pub enum Ids {
    /// Of one text.
    One(Vec<u32>),
    /// Of several texts.
    Several(Vec<Vec<u32>>),
}

/// `POST /decode`.
#[derive(Clone, Debug, Deserialize, ToSchema)]
pub struct DecodeRequest {
    /// Token ids to decode.
    pub ids: Ids,
    /// Name of the model; by default the first.
    pub model: Option<String>,
    /// Leave out special tokens.
    #[serde(default = "super::yes")]
    pub skip_special_tokens: bool,
}

/// The text of each list of ids.
#[derive(Clone, Debug, Serialize, ToSchema)]
pub struct DecodeResponse(pub Vec<String>);
