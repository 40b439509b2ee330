//! Wire types of text-embeddings-inference (TEI).

mod embed;
mod error;
mod info;
mod predict;
mod rerank;
mod tokenize;

pub use embed::{
    EmbedAllRequest, EmbedAllResponse, EmbedRequest, EmbedResponse, EmbedSparseResponse, Pooling, SimilarityInputs,
    SimilarityParameters, SimilarityRequest, SimilarityResponse, SparseValue,
};
pub use error::{ErrorResponse, ErrorType};
pub use info::{Info, ModelInfo, OpCount};
pub use predict::{PredictInputs, PredictInputsSchema, PredictRequest, PredictResponse, Prediction, TextOrPair};
pub use rerank::{Rank, RankPooling, RerankRequest, RerankResponse};
pub use tokenize::{DecodeRequest, DecodeResponse, Ids, Token, TokenizeRequest, TokenizeResponse};

use serde::{Deserialize, Serialize};
use utoipa::ToSchema;

/// Which end of a text that is too long is cut off.
#[derive(Clone, Copy, Debug, Default, Deserialize, Serialize, PartialEq, Eq, ToSchema)]
pub enum TruncationDirection {
    /// The beginning.
    #[serde(rename = "left", alias = "Left")]
    Left,
    /// The end.
    #[default]
    #[serde(rename = "right", alias = "Right")]
    Right,
}

fn yes() -> bool {
    true
}
