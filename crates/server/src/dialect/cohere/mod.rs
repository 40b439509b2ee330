//! Cohere's and Jina's rerank API, and Cohere's embeddings.

mod embed;
mod rerank;

use crate::app::App;
use std::sync::Arc;
use utoipa_axum::router::OpenApiRouter;

pub(crate) use rerank::{is_cohere, rerank};

/// Routes of this API.
pub(crate) fn routes() -> OpenApiRouter<Arc<App>> {
    OpenApiRouter::new().merge(rerank::routes()).merge(embed::routes())
}
