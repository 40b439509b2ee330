//! Wire types of llama.cpp's server.

mod completion;
mod embedding;
mod error;
mod prompt;
mod server;
mod settings;
mod text;

pub use completion::{
    Bias, Completion, CompletionRequest, CompletionResponse, InfillExtra, InfillRequest, LogitBias, StopType,
    TokenOrText, TokenProbability, TopToken,
};
pub use embedding::{EmbeddingRequest, EmbeddingResponse, IndexedEmbedding};
pub use error::{ErrorBody, ErrorResponse};
pub use prompt::{PartSchema, PromptPart, PromptSchema, Prompts, PromptsSchema};
pub use server::{DefaultSettings, LoraAdapter, Modalities, Props, Slot};
pub use settings::{GenerationSettings, LoraScale, TokenBias};
pub use text::{
    ApplyTemplateResponse, DetokenizeRequest, DetokenizeResponse, InputTokens, TokenPiece, TokenPieces,
    TokenizeRequest, TokenizeResponse,
};
