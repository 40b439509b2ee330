//! OpenAI: one file a resource.

pub mod classify;
pub mod embeddings;
pub mod models;

use crate::app::App;
use std::sync::Arc;
use utoipa_axum::router::OpenApiRouter;

/// Its paths.
pub(crate) fn routes() -> OpenApiRouter<Arc<App>> {
    OpenApiRouter::new().merge(models::routes()).merge(embeddings::routes()).merge(classify::routes())
}
