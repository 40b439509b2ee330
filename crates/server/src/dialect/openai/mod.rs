//! OpenAI's API, one file per resource.

pub mod chat;
pub mod classify;
pub mod completions;
pub mod embeddings;
pub mod files;
pub mod models;
pub(crate) mod query;
mod upload;
#[cfg(feature = "index")]
pub mod vector_stores;

use crate::app::App;
use crate::http_context::fresh_id;
use std::sync::Arc;
use std::time::SystemTime;
use utoipa_axum::router::OpenApiRouter;

/// Routes of this API.
pub(crate) fn routes() -> OpenApiRouter<Arc<App>> {
    let routes = OpenApiRouter::new()
        .merge(models::routes())
        .merge(chat::routes())
        .merge(completions::routes())
        .merge(embeddings::routes())
        .merge(classify::routes())
        .merge(files::routes());
    #[cfg(feature = "index")]
    let routes = routes.merge(vector_stores::routes());
    routes
}

/// A new unique id with this prefix.
fn id(prefix: &str) -> String {
    format!("{prefix}{}", fresh_id())
}

/// Seconds since 1970.
fn now() -> u64 {
    SystemTime::now().duration_since(SystemTime::UNIX_EPOCH).map_or(0, |d| d.as_secs())
}
