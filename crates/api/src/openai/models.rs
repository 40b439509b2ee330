//! The list of models.

use serde::{Deserialize, Serialize};
use utoipa::ToSchema;

/// `GET /v1/models`.
#[derive(Clone, Debug, Deserialize, Serialize, ToSchema)]
pub struct ModelList {
    /// `list`.
    pub object: String,
    /// The models, in the order in which they were added.
    pub data: Vec<Model>,
}

/// A model that accepts requests.
#[derive(Clone, Debug, Deserialize, Serialize, ToSchema)]
pub struct Model {
    /// Name of the model in requests.
    pub id: String,
    /// `model`.
    pub object: String,
    /// When it was loaded, in seconds since 1970.
    pub created: u64,
    /// `sconce`.
    pub owned_by: String,
}
