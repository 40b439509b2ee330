//! `POST /v2/embed`.

use super::Meta;
use serde::{Deserialize, Serialize};
use utoipa::ToSchema;

/// A request for embeddings. Exactly one of `texts`, `images` and `inputs` is set.
#[derive(Clone, Debug, Deserialize, ToSchema)]
#[schema(as = CohereEmbedRequest)]
pub struct EmbedRequest {
    /// Name of the model; by default the first that embeds.
    pub model: Option<String>,
    /// What the texts are for: chooses one of the model's prompts, if it has one for that.
    pub input_type: Option<EmbedInputType>,
    /// Texts.
    pub texts: Option<Vec<String>>,
    /// Images as data URIs, for CLIP models.
    pub images: Option<Vec<String>>,
    /// Inputs of one text or one image each.
    pub inputs: Option<Vec<EmbedInput>>,
    /// Truncate each text to this many tokens.
    #[schema(minimum = 1)]
    pub max_tokens: Option<usize>,
    /// Truncate embeddings to this dimension.
    #[schema(minimum = 1)]
    pub output_dimension: Option<usize>,
    /// Formats of the embeddings; by default `float`.
    pub embedding_types: Option<Vec<EmbeddingType>>,
    /// What to do with texts that are longer than the limit; by default `END`.
    pub truncate: Option<EmbedTruncate>,
}

/// An input of one part.
#[derive(Clone, Debug, Deserialize, ToSchema)]
#[schema(as = CohereEmbedInput)]
pub struct EmbedInput {
    /// One part: a text or an image.
    pub content: Vec<EmbedContent>,
}

/// A part of an input.
#[derive(Clone, Debug, Deserialize, ToSchema)]
#[schema(as = CohereEmbedContent)]
#[serde(tag = "type", rename_all = "snake_case")]
pub enum EmbedContent {
    /// A text.
    Text {
        /// The text.
        text: String,
    },
    /// An image.
    ImageUrl {
        /// The image.
        image_url: EmbedImageUrl,
    },
}

/// An image.
#[derive(Clone, Debug, Deserialize, ToSchema)]
#[schema(as = CohereImageUrl)]
pub struct EmbedImageUrl {
    /// A data URI. URLs are never fetched.
    pub url: String,
}

/// What texts are for.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Deserialize, Serialize, ToSchema)]
#[schema(as = CohereEmbedInputType)]
#[serde(rename_all = "snake_case")]
pub enum EmbedInputType {
    /// To be found.
    SearchDocument,
    /// To search with.
    SearchQuery,
    /// To be classified.
    Classification,
    /// To be clustered.
    Clustering,
    /// Images.
    Image,
}

/// What to do with texts that are too long.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Deserialize, Serialize, ToSchema)]
#[schema(as = CohereEmbedTruncate)]
#[serde(rename_all = "UPPERCASE")]
pub enum EmbedTruncate {
    /// Refuse them.
    None,
    /// Discard their beginning.
    Start,
    /// Discard their end.
    #[default]
    End,
}

/// Format of an embedding.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Deserialize, Serialize, ToSchema)]
#[schema(as = CohereEmbeddingType)]
#[serde(rename_all = "lowercase")]
pub enum EmbeddingType {
    /// Numbers.
    Float,
    /// Whole numbers from −128 to 127: 256 steps between minus and plus the largest number of the
    /// embedding.
    Int8,
    /// The same from 0 to 255.
    Uint8,
    /// One bit per number, set if it is above zero; eight in a signed byte.
    Binary,
    /// The same in an unsigned byte.
    Ubinary,
    /// Little-endian f32 in base64.
    Base64,
}

/// Embeddings in the requested formats.
#[derive(Clone, Debug, Deserialize, Serialize, ToSchema)]
#[schema(as = CohereEmbedResponse)]
pub struct EmbedResponse {
    /// Id of this response.
    pub id: String,
    /// `embeddings_by_type`.
    pub response_type: String,
    /// The embeddings, in the order of the inputs.
    pub embeddings: EmbeddingsByType,
    /// The texts.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub texts: Option<Vec<String>>,
    /// Metadata.
    pub meta: Meta,
}

/// Embeddings by format.
#[derive(Clone, Debug, Default, Deserialize, Serialize, ToSchema)]
#[schema(as = CohereEmbeddingsByType)]
pub struct EmbeddingsByType {
    /// Numbers.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub float: Option<Vec<Vec<f32>>>,
    /// Whole numbers from −128 to 127.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub int8: Option<Vec<Vec<i16>>>,
    /// Whole numbers from 0 to 255.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub uint8: Option<Vec<Vec<i16>>>,
    /// Eight bits per number, from −128 to 127.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub binary: Option<Vec<Vec<i16>>>,
    /// Eight bits per number, from 0 to 255.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub ubinary: Option<Vec<Vec<i16>>>,
    /// Little-endian f32 in base64.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub base64: Option<Vec<String>>,
}
