//! OpenAI's API, one file per resource.

mod answer_stream;
pub mod chat;
pub mod classify;
pub mod completions;
mod conversation;
pub mod embeddings;
mod latency;
pub mod models;
mod params;
mod seq2seq;

use crate::app::App;
use crate::http_context::fresh_id;
use std::sync::Arc;
use std::time::SystemTime;
use utoipa_axum::router::OpenApiRouter;

/// Routes of this API.
pub(crate) fn routes() -> OpenApiRouter<Arc<App>> {
    OpenApiRouter::new()
        .merge(models::routes())
        .merge(chat::routes())
        .merge(completions::routes())
        .merge(embeddings::routes())
        .merge(classify::routes())
}

/// A new unique id with this prefix.
fn id(prefix: &str) -> String {
    format!("{prefix}{}", fresh_id())
}

/// Seconds since 1970.
fn now() -> u64 {
    SystemTime::now().duration_since(SystemTime::UNIX_EPOCH).map_or(0, |d| d.as_secs())
}
