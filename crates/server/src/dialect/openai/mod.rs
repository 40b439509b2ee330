//! OpenAI: one file a resource.

pub mod chat;
pub mod classify;
pub mod completions;
mod conversation;
pub mod embeddings;
mod flow;
pub mod models;
mod pace;
mod rewrite;
mod tools;
mod wish;

use crate::app::App;
use crate::trail::fresh_id;
use std::sync::Arc;
use std::time::SystemTime;
use utoipa_axum::router::OpenApiRouter;

/// Its paths.
pub(crate) fn routes() -> OpenApiRouter<Arc<App>> {
    OpenApiRouter::new()
        .merge(models::routes())
        .merge(chat::routes())
        .merge(completions::routes())
        .merge(embeddings::routes())
        .merge(classify::routes())
}

/// An id that nobody had before, of the kind that `prefix` tells.
fn id(prefix: &str) -> String {
    format!("{prefix}{}", fresh_id())
}

/// Seconds since 1970.
fn now() -> u64 {
    SystemTime::now().duration_since(SystemTime::UNIX_EPOCH).map_or(0, |d| d.as_secs())
}
