//! What is known of a request besides what its handler reads: its id, and what the answer's head and the log are to tell.

use crate::error::Dialect;
use crate::traces::Traced;
use axum::http::{HeaderMap, HeaderValue};
use std::collections::BTreeSet;
use std::hash::{BuildHasher, RandomState};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, LazyLock, Mutex, PoisonError};
use std::time::Instant;

/// The longest id that is taken over from a client.
const LONGEST_ID: usize = 128;
/// The most fields that are named back to a client who sent them in vain.
const MOST_NAMED: usize = 32;

/// One for each request, shared by its layers and its handler.
#[derive(Debug)]
pub struct Trail {
    /// The client's, or one of ours.
    pub id: HeaderValue,
    /// When its head was read.
    pub begun: Instant,
    told: Mutex<Told>,
}

#[derive(Debug, Default)]
struct Told {
    ignored: BTreeSet<String>,
    dialect: Option<Dialect>,
    model: Option<String>,
    span: Option<Traced>,
    counted: bool,
}

impl Trail {
    pub(crate) fn new(headers: &HeaderMap) -> Arc<Trail> {
        let given = headers.get("x-request-id").filter(|id| (1..=LONGEST_ID).contains(&id.len()));
        let given = given.filter(|id| id.as_bytes().iter().all(u8::is_ascii_graphic)).cloned();
        let id = given.unwrap_or_else(|| HeaderValue::from_str(&fresh_id()).unwrap_or(HeaderValue::from_static("-")));
        Arc::new(Trail { id, begun: Instant::now(), told: Mutex::default() })
    }

    fn told(&self) -> std::sync::MutexGuard<'_, Told> {
        self.told.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// A field of the request had no effect. The answer names it.
    pub fn ignored(&self, field: &str) {
        // A header takes visible ASCII alone, and a comma would make two of one.
        let plain = |c: char| if c.is_ascii_graphic() && c != ',' { c } else { '?' };
        let mut told = self.told();
        if told.ignored.len() < MOST_NAMED {
            told.ignored.insert(field.chars().take(64).map(plain).collect());
        }
    }

    /// The request turned out to be of this dialect, whatever its path.
    pub fn speaks(&self, dialect: Dialect) {
        self.told().dialect = Some(dialect);
    }

    /// The request is for this model.
    pub fn asks(&self, model: &str) {
        self.told().model = Some(model.chars().take(LONGEST_ID).collect());
    }

    /// The request is counted.
    pub(crate) fn count(&self) {
        self.told().counted = true;
    }

    pub(crate) fn is_counted(&self) -> bool {
        self.told().counted
    }

    /// Ends with this trail.
    pub(crate) fn trace(&self, span: Traced) {
        self.told().span = Some(span);
    }

    /// Tells its span, if it has one.
    pub(crate) fn traced(&self, tell: impl FnOnce(&mut Traced)) {
        if let Some(span) = &mut self.told().span {
            tell(span);
        }
    }

    pub(crate) fn dialect(&self) -> Option<Dialect> {
        self.told().dialect
    }

    pub(crate) fn model(&self) -> Option<String> {
        self.told().model.clone()
    }

    /// `a,b`: the fields that had no effect.
    pub(crate) fn ignored_header(&self) -> Option<HeaderValue> {
        let told = self.told();
        let names: Vec<&str> = told.ignored.iter().map(String::as_str).collect();
        (!names.is_empty()).then(|| HeaderValue::from_str(&names.join(",")).ok()).flatten()
    }
}

/// 32 hexadecimal digits that nobody had before.
pub fn fresh_id() -> String {
    static SEEDS: LazyLock<[RandomState; 2]> = LazyLock::new(|| [RandomState::new(), RandomState::new()]);
    static COUNT: AtomicU64 = AtomicU64::new(0);
    let n = COUNT.fetch_add(1, Ordering::Relaxed);
    let [a, b] = &*SEEDS;
    format!("{:016x}{:016x}", a.hash_one(n), b.hash_one(n))
}
