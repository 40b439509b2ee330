//! Calls into the engine: without the GIL, and interruptible.

use crate::error::{OrRaise, exception, to_python};
use pyo3::prelude::*;
use sconce_engine::hub::Progress;
use sconce_engine::{Error, RequestContext, Result};
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::mpsc::{RecvTimeoutError, Sender, channel};
use std::sync::{Arc, Mutex, PoisonError};
use std::thread;
use std::time::Duration;

/// How often a waiting call looks for signals (Ctrl-C).
pub(crate) const POLL: Duration = Duration::from_millis(50);

/// Runs `f` on a thread of its own and waits for it without the GIL. A signal whose Python handler
/// raises (Ctrl-C) ends the wait at once and cancels the request; a pass that is running finishes
/// by itself.
pub(crate) fn call<R: Send + 'static>(
    py: Python<'_>,
    f: impl FnOnce(&RequestContext) -> Result<R> + Send + 'static,
) -> PyResult<R> {
    call_in(py, RequestContext::default(), f)
}

/// Like [`call`], in this context, which another thread may cancel.
pub(crate) fn call_in<R: Send + 'static>(
    py: Python<'_>,
    context: RequestContext,
    f: impl FnOnce(&RequestContext) -> Result<R> + Send + 'static,
) -> PyResult<R> {
    run(py, context, None, move |caller: &Caller| f(&caller.context))
}

/// Like [`call`], and passes the progress that `f` reports to `on_progress`, a Python function of
/// the event's kind, a text and a number.
pub(crate) fn call_with_progress<R: Send + 'static>(
    py: Python<'_>,
    on_progress: Option<&Bound<'_, PyAny>>,
    f: impl FnOnce(&Caller) -> Result<R> + Send + 'static,
) -> PyResult<R> {
    run(py, RequestContext::default(), on_progress, f)
}

/// Runs `f`, which is short or cannot be interrupted, on this thread without the GIL.
pub(crate) fn detached<R: Send>(py: Python<'_>, f: impl FnOnce() -> Result<R> + Send) -> PyResult<R> {
    match py.detach(|| catch_unwind(AssertUnwindSafe(f))) {
        Ok(result) => result.or_raise(py),
        Err(panic) => Err(bug(py, &panic_message(&*panic))),
    }
}

fn run<R: Send + 'static>(
    py: Python<'_>,
    context: RequestContext,
    on_progress: Option<&Bound<'_, PyAny>>,
    f: impl FnOnce(&Caller) -> Result<R> + Send + 'static,
) -> PyResult<R> {
    let (messages, inbox) = channel();
    // Locked by this thread alone; a receiver by itself cannot leave its thread.
    let inbox = Mutex::new(inbox);
    let caller = Caller { context: context.clone(), messages };
    let slot = Arc::new(Mutex::new(None));
    let result = slot.clone();
    let body = move || {
        let done = catch_unwind(AssertUnwindSafe(|| f(&caller))).map_err(|panic| panic_message(&*panic));
        *slot.lock().unwrap_or_else(PoisonError::into_inner) = Some(done);
        let _ = caller.messages.send(Message::Done);
    };
    thread::Builder::new().name("sconce call".into()).spawn(body)?;
    loop {
        let message = py.detach(|| inbox.lock().unwrap_or_else(PoisonError::into_inner).recv_timeout(POLL));
        let outcome = match message {
            Ok(Message::Done) => {
                let result = result.lock().unwrap_or_else(PoisonError::into_inner).take();
                return match result.unwrap_or_else(|| Err("no result".into())) {
                    Ok(result) => result.map_err(|e| to_python(py, &e)),
                    Err(why) => Err(bug(py, &why)),
                };
            }
            Ok(Message::Progress(kind, text, number)) => match on_progress {
                Some(function) => function.call1((kind, text, number)).map(drop),
                None => Ok(()),
            },
            Err(RecvTimeoutError::Timeout) => py.check_signals(),
            Err(RecvTimeoutError::Disconnected) => return Err(bug(py, "the thread of the call has ended")),
        };
        if let Err(interrupted) = outcome {
            context.cancel();
            return Err(interrupted);
        }
    }
}

/// The error for a panic, which only a bug of ours can cause.
fn bug(py: Python<'_>, why: &str) -> PyErr {
    exception(py, "InternalError", &format!("internal error, please report it: {why}"))
}

fn panic_message(panic: &(dyn std::any::Any + Send)) -> String {
    let text = panic.downcast_ref::<String>().map(String::as_str).or(panic.downcast_ref::<&str>().copied());
    text.unwrap_or("no message").to_string()
}

/// Parses the options of a call.
pub(crate) fn parse<T: serde::de::DeserializeOwned>(json: &str) -> Result<T> {
    serde_json::from_str(json).map_err(|e| Error::Input(e.to_string()))
}

enum Message {
    /// Kind, text and number of an event.
    Progress(&'static str, String, u64),
    Done,
}

/// Cancels calls that were given it, from any thread.
#[pyclass(frozen, module = "sconce._sconce")]
pub(crate) struct Cancellation(pub(crate) RequestContext);

#[pymethods]
impl Cancellation {
    #[new]
    fn new() -> Cancellation {
        Cancellation(RequestContext::default())
    }

    /// Cancels the calls.
    fn cancel(&self) {
        self.0.cancel();
    }
}

/// A call as seen by the thread that works for it.
pub(crate) struct Caller {
    pub(crate) context: RequestContext,
    messages: Sender<Message>,
}

impl Caller {
    /// Reports progress of another kind than a download's, as JSON.
    pub(crate) fn report(&self, json: &str) {
        self.send("progress", json, 0);
    }

    fn send(&self, kind: &'static str, text: &str, number: u64) {
        // The receiver is gone if the call was interrupted.
        let _ = self.messages.send(Message::Progress(kind, text.to_owned(), number));
    }
}

impl Progress for Caller {
    fn note(&self, line: &str) {
        self.send("note", line, 0);
    }
    fn begin(&self, what: &str, bytes: u64) {
        self.send("begin", what, bytes);
    }
    fn advance(&self, bytes: u64) {
        self.send("advance", "", bytes);
    }
    fn end(&self) {
        self.send("end", "", 0);
    }
}
