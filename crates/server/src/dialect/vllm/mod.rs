//! vLLM's API for models that do not generate: scores of text pairs, and pooled outputs.
//! (Classification is in the OpenAI module, beside the embeddings.)

mod pooling;
mod score;

use crate::app::App;
use crate::error::Fault;
use sconce_api::tei::TruncationDirection;
use sconce_api::vllm::{PoolingUsage, TruncationSide};
use sconce_engine::Truncate;
use std::sync::Arc;
use utoipa_axum::router::OpenApiRouter;

/// Routes of this API.
pub(crate) fn routes() -> OpenApiRouter<Arc<App>> {
    OpenApiRouter::new().merge(score::routes()).merge(pooling::routes())
}

/// Truncation as a request has it: how, and to how many tokens if not to the model's limit.
fn truncation(
    app: &App,
    tokens: Option<i64>,
    side: Option<TruncationSide>,
) -> Result<(Truncate, Option<usize>), Fault> {
    let direction = match side.unwrap_or_default() {
        TruncationSide::Left => TruncationDirection::Left,
        TruncationSide::Right => TruncationDirection::Right,
    };
    match tokens {
        None => Ok((app.truncation(None, direction), None)),
        Some(-1) => Ok((app.truncation(Some(true), direction), None)),
        Some(n) => match usize::try_from(n) {
            Ok(n) if n > 0 => Ok((app.truncation(Some(true), direction), Some(n))),
            _ => {
                let what =
                    format!("`truncate_prompt_tokens` is {n}; it must be at least 1, or -1 for the model's limit");
                Err(Fault::invalid(what).at("truncate_prompt_tokens"))
            }
        },
    }
}

fn usage(tokens: usize) -> PoolingUsage {
    PoolingUsage { prompt_tokens: tokens, total_tokens: tokens, completion_tokens: 0 }
}
