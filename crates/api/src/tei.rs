//! text-embeddings-inference: what its clients send, and what they expect.

use crate::input::{Inputs, InputsSchema};
use serde::{Deserialize, Serialize};
use utoipa::ToSchema;

/// Which end of a text that is too long goes.
#[derive(Clone, Copy, Debug, Default, Deserialize, Serialize, PartialEq, Eq, ToSchema)]
pub enum TruncationDirection {
    /// Its beginning.
    #[serde(rename = "left", alias = "Left")]
    Left,
    /// Its end.
    #[default]
    #[serde(rename = "right", alias = "Right")]
    Right,
}

fn yes() -> bool {
    true
}

/// `POST /embed`.
#[derive(Clone, Debug, Deserialize, ToSchema)]
pub struct EmbedRequest {
    /// What is to be embedded.
    #[schema(value_type = InputsSchema)]
    pub inputs: Inputs,
    /// Which model, where several are served; the first that embeds where none is said.
    pub model: Option<String>,
    /// Cut texts that are longer than the model can take, instead of refusing them.
    pub truncate: Option<bool>,
    /// Which end goes.
    #[serde(default)]
    pub truncation_direction: TruncationDirection,
    /// One of the model's prompts, by name.
    pub prompt_name: Option<String>,
    /// Whether vectors are brought to length one.
    #[serde(default = "yes")]
    pub normalize: bool,
    /// Only so many numbers of each vector.
    pub dimensions: Option<usize>,
}

/// A vector an input.
#[derive(Clone, Debug, Serialize, ToSchema)]
pub struct EmbedResponse(pub Vec<Vec<f32>>);

/// What went wrong.
#[derive(Clone, Debug, Deserialize, Serialize, ToSchema)]
pub struct ErrorResponse {
    /// In words.
    pub error: String,
    /// In one of a few.
    pub error_type: ErrorType,
}

/// What kind of thing went wrong.
#[derive(Clone, Copy, Debug, Deserialize, Serialize, PartialEq, Eq, ToSchema)]
pub enum ErrorType {
    /// The server or model cannot serve now.
    Unhealthy,
    /// The model failed.
    Backend,
    /// Too much is asked at once.
    Overloaded,
    /// What was asked cannot be.
    Validation,
    /// The texts could not be read.
    Tokenizer,
    /// Nothing was asked.
    Empty,
    /// No key, or a wrong one.
    Unauthorized,
    /// There is no such thing.
    NotFound,
}
