//! text-embeddings-inference (TEI): embeddings, classification, reranking, tokenization; the same
//! paths, JSON formats and headers.

mod info;
mod scores;
mod tokens;
mod vectors;

use crate::app::App;
use sconce_api::tei::TruncationDirection;
use sconce_engine::{Prompt, Truncate};
use std::sync::Arc;
use utoipa_axum::router::OpenApiRouter;

pub(crate) use scores::{ClassifyParams, classify, length, predictions, rerank};
pub(crate) use vectors::{embed_all_of, embed_of, embed_sparse_of, is_similarity, similarity_of};

/// Routes of this API.
pub(crate) fn routes() -> OpenApiRouter<Arc<App>> {
    OpenApiRouter::new().merge(vectors::routes()).merge(scores::routes()).merge(tokens::routes()).merge(info::routes())
}

impl App {
    /// Truncation: the request's choice, or the server's default.
    pub(crate) fn truncation(&self, requested: Option<bool>, direction: TruncationDirection) -> Truncate {
        match (requested.unwrap_or(self.config.auto_truncate), direction) {
            (false, _) => Truncate::Never,
            (true, TruncationDirection::Left) => Truncate::Left,
            (true, TruncationDirection::Right) => Truncate::Right,
        }
    }

    /// Prompt: the request's choice, or the server's default.
    pub(crate) fn prompt(&self, requested: Option<String>) -> Prompt {
        requested.map_or_else(|| self.config.default_prompt.clone(), Prompt::Named)
    }
}
