//! Tokens.

use crate::app::App;
use std::sync::Arc;
use utoipa_axum::router::OpenApiRouter;

pub(crate) fn routes() -> OpenApiRouter<Arc<App>> {
    OpenApiRouter::new()
}
