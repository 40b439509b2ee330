//! The HTTP APIs ("dialects"), one file or folder each. Adding a route also adds it to the OpenAPI
//! document, so no path is undocumented.

pub mod admin;
pub mod anthropic;
pub mod cohere;
pub mod common;
pub mod llama_cpp;
pub mod ollama;
pub mod openai;
pub mod pipeline;
pub mod status;
pub mod tei;
pub mod vllm;
pub mod worker;

use crate::app::App;
use crate::{layers, openapi, page};
use axum::Router;
use axum::middleware::from_fn_with_state;
use std::sync::Arc;
use utoipa_axum::router::OpenApiRouter;

/// All APIs on one router.
pub(crate) fn router(app: &Arc<App>) -> Router {
    let router = routes(app).layer(from_fn_with_state(app.clone(), layers::key));
    let router = match &app.config.cors_origins[..] {
        [] => router,
        origins => router.layer(layers::cors(origins)),
    };
    let router = router.layer(from_fn_with_state(app.clone(), layers::host));
    router.layer(from_fn_with_state(app.clone(), layers::around)).with_state(app.clone())
}

/// All APIs for requests that the server makes to itself, for the lines of batches: their key was
/// checked when the batch was created.
pub(crate) fn background_router(app: &Arc<App>) -> Router {
    routes(app).layer(from_fn_with_state(app.clone(), layers::around)).with_state(app.clone())
}

fn routes(app: &Arc<App>) -> Router<Arc<App>> {
    let worker = if app.member.is_some() { worker::routes(app) } else { OpenApiRouter::new() };
    let (routes, document) = OpenApiRouter::with_openapi(openapi::base())
        .merge(common::routes())
        .merge(admin::routes(app))
        .merge(anthropic::routes())
        .merge(cohere::routes())
        .merge(llama_cpp::routes())
        .merge(ollama::routes(app))
        .merge(openai::routes())
        .merge(pipeline::routes())
        .merge(status::routes())
        .merge(tei::routes())
        .merge(vllm::routes())
        .merge(worker)
        .split_for_parts();
    let router: Router<Arc<App>> = routes.merge(openapi::routes(&openapi::complete(document))).merge(page::routes(app));
    router.fallback(layers::no_route).method_not_allowed_fallback(layers::no_method)
}
