//! Answers that are being generated.

use crate::call::{POLL, detached};
use crate::error::{exception, to_python};
use crate::fork::fork_count;
use pyo3::prelude::*;
use sconce_engine::{Event, Finish, NextEvent, SampledToken, Stream as Events};
use std::sync::{Mutex, PoisonError};

/// The events of one request. Dropping it cancels the request.
#[pyclass(frozen, module = "sconce._sconce")]
pub(crate) struct Stream {
    /// `None` after `close`.
    events: Mutex<Option<Events>>,
    forks: u64,
    prompt_tokens: usize,
    truncated: bool,
}

/// Index of the answer, its new text, ids of the sampled tokens, their log probabilities, why the
/// answer ended, and its score in a beam search.
type Part = (usize, String, Vec<u32>, Vec<Option<f32>>, Option<String>, Option<f32>);

impl Stream {
    pub(crate) fn new(events: Events) -> Stream {
        let (prompt_tokens, truncated) = (events.prompt_tokens(), events.truncated());
        Stream { events: Mutex::new(Some(events)), forks: fork_count(), prompt_tokens, truncated }
    }
}

impl Drop for Stream {
    fn drop(&mut self) {
        let events = self.events.get_mut().unwrap_or_else(PoisonError::into_inner).take();
        if self.forks != fork_count() {
            // Another thread may have held a lock of the channel when this process was forked.
            std::mem::forget(events);
        }
    }
}

#[pymethods]
impl Stream {
    /// Tokens of the prompt.
    #[getter]
    fn prompt_tokens(&self) -> usize {
        self.prompt_tokens
    }

    /// Whether the input was too long and was truncated.
    #[getter]
    fn truncated(&self) -> bool {
        self.truncated
    }

    /// Waits for the next part of an answer, without the GIL; `None` after the last.
    fn next(&self, py: Python<'_>) -> PyResult<Option<Part>> {
        if self.forks != fork_count() {
            let what = "the stream was started before this process was forked; start another one here";
            return Err(exception(py, "ClosedError", what));
        }
        loop {
            // Another thread may hold the lock while it waits.
            let event = detached(py, || {
                let mut events = self.events.lock().unwrap_or_else(PoisonError::into_inner);
                Ok(events.as_mut().map(|events| events.within(POLL)))
            })?;
            match event {
                None => return Err(exception(py, "ClosedError", "the stream is closed")),
                Some(NextEvent::Done) => return Ok(None),
                Some(NextEvent::Nothing) => py.check_signals().inspect_err(|_| self.close(py))?,
                Some(NextEvent::Event(Err(e))) => return Err(to_python(py, &e)),
                Some(NextEvent::Event(Ok(event))) => match event {
                    Event::Begun { .. } | Event::Progress { .. } => {}
                    Event::Text { answer, text, sampled } => {
                        let logprob = |token: &SampledToken| token.logprobs.as_ref().map(|logprobs| logprobs.chosen);
                        let logprobs = sampled.iter().map(logprob).collect();
                        let ids = sampled.iter().map(|token| token.id).collect();
                        return Ok(Some((answer, text, ids, logprobs, None, None)));
                    }
                    Event::End { answer, finish, score } => {
                        let finish = match finish {
                            Finish::End => "end".to_owned(),
                            Finish::Length => "length".to_owned(),
                            Finish::Stop(_) => "stop".to_owned(),
                        };
                        return Ok(Some((answer, String::new(), Vec::new(), Vec::new(), Some(finish), score)));
                    }
                },
            }
        }
    }

    /// Cancels the request.
    fn close(&self, py: Python<'_>) {
        if self.forks == fork_count() {
            // A thread in `next` gives the lock back within its poll interval.
            py.detach(|| drop(self.events.lock().unwrap_or_else(PoisonError::into_inner).take()));
        }
    }
}
