//! text-embeddings-inference (TEI): embeddings, classification, reranking, tokenization; the same
//! paths, JSON formats and headers.

mod info;
mod scores;
mod tokens;
mod vectors;

use crate::app::App;
use crate::error::Fault;
use sconce_api::tei::{Pooling, TruncationDirection};
use sconce_engine::{Prompt, Truncate};
use std::sync::Arc;
use utoipa_axum::router::OpenApiRouter;

pub(crate) use info::op_count;
pub(crate) use scores::{ClassifyParams, classify, length, predictions, rank_pooling, rerank, rerank_either};
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

    /// Pooling: the request's choice, or the server's default; `None`: the model's own.
    pub(crate) fn pooling(&self, requested: Option<Pooling>) -> Result<Option<sconce_engine::Pooling>, Fault> {
        Ok(Some(match requested {
            None => return Ok(self.config.pooling),
            Some(Pooling::Mean) => sconce_engine::Pooling::Mean,
            Some(Pooling::Cls) => sconce_engine::Pooling::Cls,
            Some(Pooling::Last) => sconce_engine::Pooling::LastToken,
            Some(Pooling::Max) => sconce_engine::Pooling::Max,
            Some(Pooling::None) => {
                let what = "`pooling` is none, which this API has no format for; send the inputs to /embed_all";
                return Err(Fault::invalid(what).at("pooling"));
            }
        }))
    }

    /// Prompt: the request's choice, or the server's default.
    pub(crate) fn prompt(&self, requested: Option<String>) -> Prompt {
        requested.map_or_else(|| self.config.default_prompt.clone(), Prompt::Named)
    }
}
