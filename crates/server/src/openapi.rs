//! The OpenAPI document, from the types and handlers, and a page that shows it.

use crate::error::Dialect;
use axum::Router;
use axum::http::header::CONTENT_TYPE;
use axum::response::Html;
use axum::routing::get;
use sconce_api::{cohere, openai, tei};
use std::fmt::Write;
use std::sync::Arc;
use utoipa::OpenApi as _;
use utoipa::openapi::path::{Operation, PathItem};
use utoipa::openapi::security::{HttpAuthScheme, HttpBuilder, SecurityRequirement, SecurityScheme};
use utoipa::openapi::{ContentBuilder, OpenApi, Ref, ResponseBuilder};

#[derive(utoipa::OpenApi)]
#[openapi(
    info(title = "Sconce", description = "Transformer models over HTTP, in the dialects that clients already speak"),
    components(schemas(tei::ErrorResponse, openai::error::ErrorResponse, cohere::ErrorResponse, WorkerError))
)]
struct About;

/// How a pool's member words what went wrong.
#[derive(utoipa::ToSchema)]
#[schema(as = WorkerErrorResponse)]
#[allow(dead_code, reason = "read by the derive alone")]
struct WorkerError {
    /// In one word.
    code: String,
    /// In words.
    message: String,
    /// Whether the same request may succeed later.
    retriable: bool,
}

/// What the document says of itself, before any path is added.
pub(crate) fn about() -> OpenApi {
    About::openapi()
}

/// The document with what holds for every path: how it fails, and that a key may be asked for.
pub(crate) fn finished(mut document: OpenApi) -> OpenApi {
    for (mut path, mut item) in std::mem::take(&mut document.paths.paths) {
        let dialect = Dialect::of(&path);
        for (reads_body, operation) in operations(&mut item) {
            fails(operation, dialect, reads_body, path.starts_with("/v1/models/"));
            operation.tags = Some(vec![named(dialect, &path).into()]);
        }
        // How the router writes a name with slashes in it.
        path = path.replace("{*", "{");
        document.paths.paths.insert(path, item);
    }
    if let Some(components) = &mut document.components {
        let bearer = SecurityScheme::Http(HttpBuilder::new().scheme(HttpAuthScheme::Bearer).build());
        components.security_schemes.insert("key".into(), bearer);
    }
    // Asked for only where the server was given one.
    document.security =
        Some(vec![SecurityRequirement::default(), SecurityRequirement::new::<_, [&str; 0], _>("key", [])]);
    document
}

/// Operations of a path, and whether each reads a body.
fn operations(item: &mut PathItem) -> impl Iterator<Item = (bool, &mut Operation)> {
    [(false, &mut item.get), (true, &mut item.post), (false, &mut item.delete)]
        .into_iter()
        .filter_map(|(body, operation)| operation.as_mut().map(|o| (body, o)))
}

fn named(dialect: Dialect, path: &str) -> &'static str {
    match (dialect, path) {
        (_, "/health" | "/ping" | "/metrics" | "/info") => "Server",
        (Dialect::Tei, _) => "text-embeddings-inference",
        (Dialect::OpenAi, _) => "OpenAI",
        (Dialect::Cohere, _) => "Cohere and Jina",
        (Dialect::Worker, _) => "Worker",
    }
}

/// Adds every way in which an operation may fail that it does not tell of itself.
fn fails(operation: &mut Operation, dialect: Dialect, reads_body: bool, guarded: bool) {
    let mut statuses = vec![(401, "No key, or a wrong one"), (500, "A bug of ours"), (503, "Not ready, or unwell")];
    statuses.push((404, "No such model"));
    if reads_body {
        statuses.extend([
            (400, "The request cannot be"),
            (408, "The body did not come in time"),
            (413, "Too much at once"),
            (415, "The body is not JSON by its own account"),
            (429, "Too many requests at once"),
            (504, "It took too long"),
        ]);
        if dialect == Dialect::Tei {
            statuses.extend([(422, "The request cannot be"), (424, "The model failed")]);
        }
    }
    if guarded {
        statuses.extend([(403, "Not from there"), (409, "Something stands against it")]);
    }
    let schema = match dialect {
        Dialect::Tei => "ErrorResponse",
        Dialect::OpenAi => "OpenAiErrorResponse",
        Dialect::Cohere => "CohereErrorResponse",
        Dialect::Worker => "WorkerErrorResponse",
    };
    for (status, what) in statuses {
        let content = ContentBuilder::new().schema(Some(Ref::from_schema_name(schema))).build();
        let response = ResponseBuilder::new().description(what).content("application/json", content).build();
        operation.responses.responses.entry(status.to_string()).or_insert(response.into());
    }
}

/// The routes that show `document`.
pub(crate) fn routes<S: Clone + Send + Sync + 'static>(document: &OpenApi) -> Router<S> {
    // What is written in several forms is read as the first that fits, and may fit several: an empty list is a list of anything.
    let json: Arc<str> = document.to_json().unwrap_or_default().replace("\"oneOf\"", "\"anyOf\"").into();
    let page: Arc<str> = page(document).into();
    let shown = move || {
        let json = json.clone();
        async move { ([(CONTENT_TYPE, "application/json")], json.to_string()) }
    };
    let read = move || {
        let page = page.clone();
        async move { Html(page.to_string()) }
    };
    Router::new()
        .route("/openapi.json", get(shown.clone()))
        .route("/api-doc/openapi.json", get(shown))
        .route("/docs", get(read))
}

/// A page for people. Nothing in it is fetched from anywhere.
fn page(document: &OpenApi) -> String {
    let mut rows = String::new();
    for (path, item) in &document.paths.paths {
        for (method, operation) in [("GET", &item.get), ("POST", &item.post), ("DELETE", &item.delete)] {
            let Some(operation) = operation else { continue };
            let words = operation.summary.as_deref().or(operation.description.as_deref()).unwrap_or_default();
            let tag = operation.tags.iter().flatten().next().map(String::as_str).unwrap_or_default();
            // Writing to memory does not fail.
            let _ = writeln!(
                rows,
                "<tr><td>{}</td><td><code>{method} {}</code></td><td>{}</td></tr>",
                escaped(tag),
                escaped(path),
                escaped(words)
            );
        }
    }
    format!(
        "<!doctype html><html lang=en><meta charset=utf-8><title>Sconce {version}</title>\n\
         <style>body{{font:16px/1.5 system-ui;margin:2em auto;max-width:60em;padding:0 1em}}\
         td{{padding:.2em 1em .2em 0;vertical-align:top}}</style>\n\
         <h1>Sconce {version}</h1><p>What can be asked here. Every field is in <a href=/openapi.json>/openapi.json</a>.\n\
         <table>\n{rows}</table></html>\n",
        version = env!("CARGO_PKG_VERSION")
    )
}

fn escaped(text: &str) -> String {
    text.replace('&', "&amp;").replace('<', "&lt;").replace('>', "&gt;")
}
