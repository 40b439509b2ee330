//! `/tokenize`, `/detokenize`, `/apply-template` and counts of tokens.

use super::prompt::{Prompts, PromptsSchema};
use serde::{Deserialize, Serialize};
use utoipa::ToSchema;

/// `POST /tokenize` with `content`.
#[derive(Clone, Debug, Deserialize, ToSchema)]
#[schema(as = LlamaCppTokenizeRequest)]
pub struct TokenizeRequest {
    /// A text, or a list of texts and token ids.
    #[schema(value_type = PromptsSchema)]
    pub content: Prompts,
    /// Name of the model; by default the first.
    pub model: Option<String>,
    /// Add special tokens, such as the one that begins a text.
    #[serde(default)]
    pub add_special: bool,
    /// Read control tokens in the text as such; by default true.
    pub parse_special: Option<bool>,
    /// Return the text of each token.
    #[serde(default)]
    pub with_pieces: bool,
}

/// The tokens of a text.
#[derive(Clone, Debug, Serialize, ToSchema)]
#[schema(as = LlamaCppTokenizeResponse)]
pub struct TokenizeResponse {
    /// The tokens.
    pub tokens: TokenPieces,
}

/// Tokens, with or without their texts.
#[derive(Clone, Debug, Serialize, ToSchema)]
#[schema(as = LlamaCppTokenPieces)]
#[serde(untagged)]
pub enum TokenPieces {
    /// Token ids.
    Ids(Vec<u32>),
    /// Token ids and texts.
    Pieces(Vec<TokenPiece>),
}

/// A token and its text.
#[derive(Clone, Debug, Serialize, ToSchema)]
#[schema(as = LlamaCppTokenPiece)]
#[serde(untagged)]
pub enum TokenPiece {
    /// A token of whole characters.
    Text {
        /// Token id.
        id: u32,
        /// Its text.
        piece: String,
    },
    /// A token with a part of a character.
    Bytes {
        /// Token id.
        id: u32,
        /// Its bytes.
        piece: Vec<u8>,
    },
}

/// `POST /detokenize`.
#[derive(Clone, Debug, Deserialize, ToSchema)]
#[schema(as = LlamaCppDetokenizeRequest)]
pub struct DetokenizeRequest {
    /// Token ids.
    pub tokens: Vec<u32>,
    /// Name of the model; by default the first.
    pub model: Option<String>,
}

/// The text of tokens.
#[derive(Clone, Debug, Serialize, ToSchema)]
#[schema(as = LlamaCppDetokenizeResponse)]
pub struct DetokenizeResponse {
    /// The text.
    pub content: String,
}

/// The prompt that the chat template makes.
#[derive(Clone, Debug, Serialize, ToSchema)]
#[schema(as = LlamaCppApplyTemplateResponse)]
pub struct ApplyTemplateResponse {
    /// The prompt.
    pub prompt: String,
}

/// The number of tokens of a chat's prompt.
#[derive(Clone, Copy, Debug, Serialize, ToSchema)]
#[schema(as = LlamaCppInputTokens)]
pub struct InputTokens {
    /// Tokens.
    pub input_tokens: usize,
}
