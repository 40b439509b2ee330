//! llama.cpp's server: completions with its fields, infill, tokenization, templates and what its
//! clients ask about a server. Paths that it shares with other APIs are theirs: `/v1/…` is
//! OpenAI's, and `/tokenize` and `/rerank` are text-embeddings-inference's unless the body says
//! otherwise.

mod answers;
mod chat;
mod completion;
mod embedding;
mod generation;
mod infill;
mod info;
mod text;

use crate::app::App;
use std::sync::Arc;
use utoipa_axum::router::OpenApiRouter;

pub(crate) use text::{is_llama_cpp, tokenize};

/// The paths of this API without a parameter. Errors of these paths have its format.
pub(crate) const PATHS: [&str; 15] = [
    "/apply-template",
    "/chat/completions",
    "/chat/completions/input_tokens",
    "/completion",
    "/completions",
    "/detokenize",
    "/embedding",
    "/embeddings",
    "/infill",
    "/lora-adapters",
    "/models",
    "/props",
    "/reranking",
    "/slots",
    "/v1/chat/completions/input_tokens",
];

/// Routes of this API.
pub(crate) fn routes() -> OpenApiRouter<Arc<App>> {
    OpenApiRouter::new()
        .merge(completion::routes())
        .merge(infill::routes())
        .merge(chat::routes())
        .merge(text::routes())
        .merge(embedding::routes())
        .merge(info::routes())
}
