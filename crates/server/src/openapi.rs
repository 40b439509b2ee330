//! The OpenAPI document, generated from the types and handlers, and a page that shows it.

use crate::error::Dialect;
use axum::Router;
use axum::http::header::CONTENT_TYPE;
use axum::response::Html;
use axum::routing::get;
use sconce_api::{anthropic, cohere, llama_cpp, ollama, openai, tei};
use std::fmt::Write;
use std::sync::Arc;
use utoipa::OpenApi as _;
use utoipa::openapi::path::{Operation, PathItem};
use utoipa::openapi::security::{HttpAuthScheme, HttpBuilder, SecurityRequirement, SecurityScheme};
use utoipa::openapi::{ContentBuilder, OpenApi, Ref, ResponseBuilder};

#[derive(utoipa::OpenApi)]
#[openapi(
    info(
        title = "Sconce",
        description = "Transformer models over HTTP with the APIs of OpenAI, Anthropic, text-embeddings-inference, Ollama, Cohere, Jina and vLLM"
    ),
    components(schemas(
        tei::ErrorResponse,
        openai::error::ErrorResponse,
        anthropic::error::ErrorResponse,
        cohere::ErrorResponse,
        ollama::ErrorResponse,
        llama_cpp::ErrorResponse,
        WorkerError
    ))
)]
struct About;

/// Error response of a worker.
#[derive(utoipa::ToSchema)]
#[schema(as = WorkerErrorResponse)]
#[allow(dead_code, reason = "read by the derive alone")]
struct WorkerError {
    /// Error code.
    code: String,
    /// What failed, and what to do next.
    message: String,
    /// Whether the same request may succeed later.
    retriable: bool,
}

/// The document's title and schemas, before any path is added.
pub(crate) fn base() -> OpenApi {
    About::openapi()
}

/// Adds what holds for every path: error responses and the API key.
pub(crate) fn complete(mut document: OpenApi) -> OpenApi {
    for (mut path, mut item) in std::mem::take(&mut document.paths.paths) {
        let dialect = Dialect::of(&path);
        for (reads_body, operation) in operations(&mut item) {
            let has_state = ["/v1/files", "/v1/vector_stores", "/v1/responses", "/v1/batches"]
                .iter()
                .any(|root| path.starts_with(root));
            let guarded = path.starts_with("/v1/models/") || has_state || dialect == Dialect::Ollama;
            add_errors(operation, dialect, reads_body, guarded);
            if matches!(path.as_str(), "/props" | "/slots") {
                // They ask a model.
                add_error(operation, dialect, (400, "No language model"));
                add_error(operation, dialect, (429, "Too many concurrent requests"));
                add_error(operation, dialect, (504, "The request timed out"));
            }
            if has_state {
                // Parameters of the path and the query can be wrong too.
                add_error(operation, dialect, (400, "Invalid request"));
                add_error(operation, dialect, (413, "More than the server keeps or returns"));
            }
            if path == "/v1/plan" {
                add_error(operation, dialect, (400, "Invalid query"));
            }
            operation.tags = Some(vec![tag(dialect, &path).into()]);
        }
        // `{*id}` is the router's syntax for a name with slashes.
        path = path.replace("{*", "{");
        document.paths.paths.insert(path, item);
    }
    if let Some(components) = &mut document.components {
        let bearer = SecurityScheme::Http(HttpBuilder::new().scheme(HttpAuthScheme::Bearer).build());
        components.security_schemes.insert("key".into(), bearer);
    }
    // The key is optional: not every server has one.
    document.security =
        Some(vec![SecurityRequirement::default(), SecurityRequirement::new::<_, [&str; 0], _>("key", [])]);
    document
}

/// The operations of a path, and whether each reads a body.
fn operations(item: &mut PathItem) -> impl Iterator<Item = (bool, &mut Operation)> {
    [(false, &mut item.get), (true, &mut item.post), (false, &mut item.delete)]
        .into_iter()
        .filter_map(|(body, operation)| operation.as_mut().map(|o| (body || o.request_body.is_some(), o)))
}

fn tag(dialect: Dialect, path: &str) -> &'static str {
    match (dialect, path) {
        (_, "/health" | "/ping" | "/metrics" | "/info" | "/v1/status" | "/v1/plan") => "Server",
        (_, "/score" | "/v1/score" | "/pooling" | "/v1/classify") => "vLLM",
        (Dialect::Tei, _) => "text-embeddings-inference",
        (Dialect::OpenAi, _) => "OpenAI",
        (Dialect::Anthropic, _) => "Anthropic",
        (Dialect::Cohere, _) => "Cohere and Jina",
        (Dialect::Ollama, _) => "Ollama",
        (Dialect::Worker, _) => "Worker",
        (Dialect::LlamaCpp, _) => "llama.cpp",
    }
}

/// Adds the error responses that the operation does not declare itself.
fn add_errors(operation: &mut Operation, dialect: Dialect, reads_body: bool, guarded: bool) {
    let mut statuses =
        vec![(401, "Missing or wrong API key"), (500, "Internal error"), (503, "Not ready, or unhealthy")];
    statuses.push((404, "Unknown model or object"));
    if reads_body {
        statuses.extend([
            (400, "Invalid request"),
            (408, "The body did not arrive in time"),
            (413, "Body or batch too large"),
            (415, "The content type is not JSON"),
            (429, "Too many concurrent requests"),
            (504, "The request timed out"),
        ]);
        if dialect == Dialect::Anthropic {
            statuses.push((529, "Not ready, or unhealthy"));
        }
        if dialect == Dialect::Tei {
            statuses.extend([(422, "Invalid request"), (424, "The model failed")]);
        }
    }
    if guarded {
        statuses.extend([(403, "Only allowed from this machine"), (409, "Conflicts with the current state")]);
    }
    for error in statuses {
        add_error(operation, dialect, error);
    }
}

/// Adds an error response, unless the operation has one of this status.
fn add_error(operation: &mut Operation, dialect: Dialect, (status, what): (u16, &str)) {
    let schema = match dialect {
        Dialect::Tei => "ErrorResponse",
        Dialect::OpenAi => "OpenAiErrorResponse",
        Dialect::Anthropic => "AnthropicErrorResponse",
        Dialect::Cohere => "CohereErrorResponse",
        Dialect::Ollama => "OllamaErrorResponse",
        Dialect::Worker => "WorkerErrorResponse",
        Dialect::LlamaCpp => "LlamaCppErrorResponse",
    };
    let content = ContentBuilder::new().schema(Some(Ref::from_schema_name(schema))).build();
    let response = ResponseBuilder::new().description(what).content("application/json", content).build();
    operation.responses.responses.entry(status.to_string()).or_insert(response.into());
}

/// Routes that serve `document`.
pub(crate) fn routes<S: Clone + Send + Sync + 'static>(document: &OpenApi) -> Router<S> {
    // Several variants of an untagged enum may match, and serde takes the first: an empty list
    // matches every list type. So `anyOf` is correct, not `oneOf`.
    let json: Arc<str> = document.to_json().unwrap_or_default().replace("\"oneOf\"", "\"anyOf\"").into();
    let page: Arc<str> = page(document).into();
    let serve_json = move || {
        let json = json.clone();
        async move { ([(CONTENT_TYPE, "application/json")], json.to_string()) }
    };
    let serve_page = move || {
        let page = page.clone();
        async move { Html(page.to_string()) }
    };
    Router::new()
        .route("/openapi.json", get(serve_json.clone()))
        .route("/api-doc/openapi.json", get(serve_json))
        .route("/docs", get(serve_page))
}

/// An HTML page of all paths. It loads nothing from elsewhere.
fn page(document: &OpenApi) -> String {
    let mut rows = String::new();
    for (path, item) in &document.paths.paths {
        for (method, operation) in [("GET", &item.get), ("POST", &item.post), ("DELETE", &item.delete)] {
            let Some(operation) = operation else { continue };
            let summary = operation.summary.as_deref().or(operation.description.as_deref()).unwrap_or_default();
            let tag = operation.tags.iter().flatten().next().map(String::as_str).unwrap_or_default();
            // Writing to a string cannot fail.
            let _ = writeln!(
                rows,
                "<tr><td>{}</td><td><code>{method} {}</code></td><td>{}</td></tr>",
                escaped(tag),
                escaped(path),
                escaped(summary)
            );
        }
    }
    format!(
        "<!doctype html><html lang=en><meta charset=utf-8><title>Sconce {version}</title>\n\
         <style>body{{font:16px/1.5 system-ui;margin:2em auto;max-width:60em;padding:0 1em}}\
         td{{padding:.2em 1em .2em 0;vertical-align:top}}</style>\n\
         <h1>Sconce {version}</h1><p>Paths of this server. All fields are in <a href=/openapi.json>/openapi.json</a>.\n\
         <table>\n{rows}</table></html>\n",
        version = env!("CARGO_PKG_VERSION")
    )
}

fn escaped(text: &str) -> String {
    text.replace('&', "&amp;").replace('<', "&lt;").replace('>', "&gt;")
}
