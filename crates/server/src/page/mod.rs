//! The page for people at `/`: static files inside the binary. What they show comes from the same
//! paths that programs use; the page has no access of its own.

mod files;

use crate::app::App;
use crate::error::{Fault, FaultKind};
use axum::Router;
use axum::extract::Path;
use axum::http::header::{
    CACHE_CONTROL, CONTENT_SECURITY_POLICY, CONTENT_TYPE, ETAG, IF_NONE_MATCH, REFERRER_POLICY, X_CONTENT_TYPE_OPTIONS,
    X_DNS_PREFETCH_CONTROL, X_FRAME_OPTIONS,
};
use axum::http::{HeaderMap, HeaderName, HeaderValue, Method, StatusCode};
use axum::response::{IntoResponse, Response};
use axum::routing::get;
use files::{File, INDEX};
use std::sync::Arc;

/// Nothing but the page's own files runs or loads, whatever a model or a document says. Trusted Types
/// make the browser refuse markup in strings, and nobody may frame the page.
const POLICY: &str = "default-src 'none'; script-src 'self'; style-src 'self'; connect-src 'self'; \
    img-src 'self' data: blob:; base-uri 'none'; form-action 'none'; frame-ancestors 'none'; \
    require-trusted-types-for 'script'; trusted-types 'none'";

/// The headers of every file.
const HEADERS: [(HeaderName, &str); 8] = [
    (CONTENT_SECURITY_POLICY, POLICY),
    (X_CONTENT_TYPE_OPTIONS, "nosniff"),
    (X_FRAME_OPTIONS, "DENY"),
    (X_DNS_PREFETCH_CONTROL, "off"),
    (REFERRER_POLICY, "no-referrer"),
    (HeaderName::from_static("cross-origin-opener-policy"), "same-origin"),
    (HeaderName::from_static("cross-origin-resource-policy"), "same-origin"),
    // The browser asks each time, and gets 304 unless another version of the server answers.
    (CACHE_CONTROL, "no-cache"),
];

/// The page's routes; none with --no-page. They are not in the OpenAPI document, which is for
/// programs; neither is `/docs`.
pub(crate) fn routes(app: &App) -> Router<Arc<App>> {
    match app.config.page {
        true => Router::new().route("/", get(index)).route("/page/{*file}", get(file)),
        false => Router::new(),
    }
}

/// Whether a request is for a file of the page. These need no API key: they have no data, and the
/// page asks for the key.
pub(crate) fn is_page(app: &App, method: &Method, path: &str) -> bool {
    app.config.page && matches!(*method, Method::GET | Method::HEAD) && (path == "/" || path.starts_with("/page/"))
}

async fn index(headers: HeaderMap) -> Response {
    answer(&INDEX, &headers)
}

async fn file(Path(path): Path<String>, headers: HeaderMap) -> Result<Response, Fault> {
    let absent = || Fault::new(FaultKind::NoRoute, format!("the page has no file `{path}`; it begins at /"));
    Ok(answer(files::find(&path).ok_or_else(absent)?, &headers))
}

/// The file, or status 304 if the browser has it.
fn answer(file: &File, request: &HeaderMap) -> Response {
    let tag = file.etag();
    let known = request.get_all(IF_NONE_MATCH).iter().filter_map(|tags| tags.to_str().ok());
    let is_known = |given: &str| [tag.as_str(), "*"].contains(&given.trim().trim_start_matches("W/"));
    let mut response = match known.flat_map(|tags| tags.split(',')).any(is_known) {
        true => StatusCode::NOT_MODIFIED.into_response(),
        false => ([(CONTENT_TYPE, file.kind())], file.content).into_response(),
    };
    let headers = response.headers_mut();
    headers.extend(HEADERS.map(|(name, value)| (name, HeaderValue::from_static(value))));
    if let Ok(tag) = HeaderValue::from_str(&tag) {
        headers.insert(ETAG, tag);
    }
    response
}
