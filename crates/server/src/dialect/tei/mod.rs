//! text-embeddings-inference: vectors, labels, orders, tokens; the same paths, shapes and heads.

mod info;
mod scores;
mod tokens;
mod vectors;

use crate::app::App;
use crate::embedding::How;
use sconce_engine::Prompt;
use std::sync::Arc;
use utoipa_axum::router::OpenApiRouter;

pub(crate) use scores::{classify, rerank};
pub(crate) use vectors::{embed_all_of, embed_of, embed_sparse_of, is_similarity, similarity_of};

/// Its paths.
pub(crate) fn routes() -> OpenApiRouter<Arc<App>> {
    OpenApiRouter::new().merge(vectors::routes()).merge(scores::routes()).merge(tokens::routes()).merge(info::routes())
}

impl App {
    /// Whether texts that are too long are cut: as the request says, or else the server.
    pub(crate) fn truncates(&self, asked: Option<bool>) -> bool {
        asked.unwrap_or(self.config.auto_truncate)
    }

    /// What stands before texts: as the request says, or else the server.
    pub(crate) fn prompt(&self, asked: Option<String>) -> Prompt {
        asked.map_or_else(|| self.config.default_prompt.clone(), Prompt::Named)
    }

    /// Vectors as texts-embeddings-inference makes them.
    fn how(&self, truncate: Option<bool>, prompt: Option<String>) -> How {
        let (truncate, prompt) = (self.truncates(truncate), self.prompt(prompt));
        How { truncate, prompt, normalize: true, dimensions: None, param: "inputs" }
    }
}
