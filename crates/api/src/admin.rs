//! Models at run time, and how far one has been loaded: what no other server's dialect has words for.

use serde::{Deserialize, Serialize};
use utoipa::ToSchema;

/// How far a model has been loaded.
#[derive(Clone, Debug, Default, Deserialize, Serialize, PartialEq, ToSchema)]
pub struct Progress {
    /// Which model.
    pub model: String,
    /// What is going on, in a few words.
    pub stage: String,
    /// How much of that is done, where it is known.
    pub percent: Option<f32>,
}
