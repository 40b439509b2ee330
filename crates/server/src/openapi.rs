//! The OpenAPI document, from the types and handlers, and a page that shows it.

use axum::Router;
use axum::http::header::CONTENT_TYPE;
use axum::response::IntoResponse;
use axum::routing::get;
use std::sync::Arc;
use utoipa::openapi::OpenApi;
use utoipa::openapi::info::InfoBuilder;

/// What the document says of itself.
pub(crate) fn about() -> OpenApi {
    let info = InfoBuilder::new().title("Sconce").version(env!("CARGO_PKG_VERSION")).build();
    OpenApi::new(info, utoipa::openapi::Paths::new())
}

/// The routes that show `document`.
pub(crate) fn routes<S: Clone + Send + Sync + 'static>(document: &OpenApi) -> Router<S> {
    let json: Arc<str> = document.to_json().unwrap_or_default().into();
    let shown = move || {
        let json = json.clone();
        async move { ([(CONTENT_TYPE, "application/json")], json.to_string()).into_response() }
    };
    Router::new().route("/openapi.json", get(shown.clone())).route("/api-doc/openapi.json", get(shown))
}
