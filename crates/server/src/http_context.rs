//! Context of an HTTP request: its id, and the values for the response headers, the log and the
//! trace.

use crate::error::Dialect;
use crate::traces::RequestSpan;
use axum::http::{HeaderMap, HeaderValue};
use std::collections::BTreeSet;
use std::hash::{BuildHasher, RandomState};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, LazyLock, Mutex, PoisonError};
use std::time::Instant;

/// In the extensions of a request: it is a line of a batch, at low priority.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Background;

/// Longest `x-request-id` that is accepted from a client.
const MAX_ID_LENGTH: usize = 128;
/// Most ignored fields that the response names.
const MAX_IGNORED: usize = 32;

/// Context of one request, shared by the layers and the handler. (The engine's `RequestContext`
/// carries cancellation and the deadline.)
#[derive(Debug)]
pub struct HttpContext {
    /// The client's `x-request-id`, or a new one.
    pub id: HeaderValue,
    /// When the request head was read.
    pub started_at: Instant,
    fields: Mutex<Fields>,
}

#[derive(Debug, Default)]
struct Fields {
    ignored: BTreeSet<String>,
    dialect: Option<Dialect>,
    model: Option<String>,
    span: Option<RequestSpan>,
    counted: bool,
    background: bool,
}

impl HttpContext {
    pub(crate) fn new(headers: &HeaderMap) -> Arc<HttpContext> {
        let given = headers.get("x-request-id").filter(|id| (1..=MAX_ID_LENGTH).contains(&id.len()));
        let given = given.filter(|id| id.as_bytes().iter().all(u8::is_ascii_graphic)).cloned();
        let id = given.unwrap_or_else(|| HeaderValue::from_str(&fresh_id()).unwrap_or(HeaderValue::from_static("-")));
        Arc::new(HttpContext { id, started_at: Instant::now(), fields: Mutex::default() })
    }

    fn fields(&self) -> std::sync::MutexGuard<'_, Fields> {
        self.fields.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Records a request field that had no effect. The response header `x-sconce-ignored` names it.
    pub fn note_ignored(&self, field: &str) {
        // A header value is visible ASCII, and a comma would split the name in two.
        let plain = |c: char| if c.is_ascii_graphic() && c != ',' { c } else { '?' };
        let mut fields = self.fields();
        if fields.ignored.len() < MAX_IGNORED {
            fields.ignored.insert(field.chars().take(64).map(plain).collect());
        }
    }

    /// Overrides the API of the path, for bodies that belong to another API.
    pub fn set_dialect(&self, dialect: Dialect) {
        self.fields().dialect = Some(dialect);
    }

    /// Records the model, for the log.
    pub fn set_model(&self, model: &str) {
        self.fields().model = Some(model.chars().take(MAX_ID_LENGTH).collect());
    }

    /// Marks the request as counted by the metrics.
    pub(crate) fn mark_counted(&self) {
        self.fields().counted = true;
    }

    pub(crate) fn is_counted(&self) -> bool {
        self.fields().counted
    }

    /// Marks the request as a line of a batch. It takes no permit of those for clients.
    pub(crate) fn mark_background(&self) {
        self.fields().background = true;
    }

    pub(crate) fn is_background(&self) -> bool {
        self.fields().background
    }

    /// Attaches the trace span, which ends with this context.
    pub(crate) fn set_span(&self, span: RequestSpan) {
        self.fields().span = Some(span);
    }

    /// Calls `record` with the trace span, if there is one.
    pub(crate) fn with_span(&self, record: impl FnOnce(&mut RequestSpan)) {
        if let Some(span) = &mut self.fields().span {
            record(span);
        }
    }

    pub(crate) fn dialect(&self) -> Option<Dialect> {
        self.fields().dialect
    }

    pub(crate) fn model(&self) -> Option<String> {
        self.fields().model.clone()
    }

    /// `a,b`: the fields that had no effect.
    pub(crate) fn ignored_header(&self) -> Option<HeaderValue> {
        let fields = self.fields();
        let names: Vec<&str> = fields.ignored.iter().map(String::as_str).collect();
        (!names.is_empty()).then(|| HeaderValue::from_str(&names.join(",")).ok()).flatten()
    }
}

/// A new unique id of 32 hexadecimal digits.
pub fn fresh_id() -> String {
    static SEEDS: LazyLock<[RandomState; 2]> = LazyLock::new(|| [RandomState::new(), RandomState::new()]);
    static COUNT: AtomicU64 = AtomicU64::new(0);
    let n = COUNT.fetch_add(1, Ordering::Relaxed);
    let [a, b] = &*SEEDS;
    format!("{:016x}{:016x}", a.hash_one(n), b.hash_one(n))
}
