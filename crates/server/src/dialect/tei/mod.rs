//! text-embeddings-inference: vectors, labels, orders, tokens; the same paths, shapes and heads.

mod info;
mod scores;
mod tokens;
mod vectors;

use crate::app::App;
use sconce_api::tei::TruncationDirection;
use sconce_engine::{Prompt, Truncate};
use std::sync::Arc;
use utoipa_axum::router::OpenApiRouter;

pub(crate) use scores::{Labelling, classify, length, predictions, rerank};
pub(crate) use vectors::{embed_all_of, embed_of, embed_sparse_of, is_similarity, similarity_of};

/// Its paths.
pub(crate) fn routes() -> OpenApiRouter<Arc<App>> {
    OpenApiRouter::new().merge(vectors::routes()).merge(scores::routes()).merge(tokens::routes()).merge(info::routes())
}

impl App {
    /// What becomes of texts that are too long: as the request says, or else the server.
    pub(crate) fn truncates(&self, asked: Option<bool>, direction: TruncationDirection) -> Truncate {
        match (asked.unwrap_or(self.config.auto_truncate), direction) {
            (false, _) => Truncate::Never,
            (true, TruncationDirection::Left) => Truncate::Left,
            (true, TruncationDirection::Right) => Truncate::Right,
        }
    }

    /// What stands before texts: as the request says, or else the server.
    pub(crate) fn prompt(&self, asked: Option<String>) -> Prompt {
        asked.map_or_else(|| self.config.default_prompt.clone(), Prompt::Named)
    }
}
