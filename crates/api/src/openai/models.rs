//! Which models there are.

use serde::{Deserialize, Serialize};
use utoipa::ToSchema;

/// `GET /v1/models`.
#[derive(Clone, Debug, Deserialize, Serialize, ToSchema)]
pub struct ModelList {
    /// `list`.
    pub object: String,
    /// In the order in which they were asked for.
    pub data: Vec<Model>,
}

/// A model that can be asked.
#[derive(Clone, Debug, Deserialize, Serialize, ToSchema)]
pub struct Model {
    /// Its name in requests.
    pub id: String,
    /// `model`.
    pub object: String,
    /// Seconds since 1970 when it was loaded.
    pub created: u64,
    /// `sconce`.
    pub owned_by: String,
}
