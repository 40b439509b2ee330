//! Whom the events of a request go to, and on whose behalf it runs.

use super::{Event, Pick};
use crate::{Caller, Error, Result};
use sconce_ops::Device;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::Instant;

/// Takes events; called by the thread that runs the model.
pub(crate) type Sink = Box<dyn FnMut(Result<Event>) + Send>;

/// Who listens to a request. All of its answers share one.
///
/// The last event is the end of the last answer, or an error; also if the request is forgotten, when this is dropped. Then the sink
/// is dropped. One that panics hears no more, and its request ends.
pub(crate) struct Listener {
    caller: Caller,
    device: Device,
    /// Nobody listens any more where this is none.
    open: Mutex<Option<Open>>,
}

struct Open {
    sink: Sink,
    /// Answers that have not ended.
    answers: usize,
    left: usize,
    /// What every answer begins with.
    echo: Option<Echo>,
    asked: Instant,
    begun: Option<Instant>,
}

/// The prompt, where answers begin with it.
pub(crate) struct Echo {
    pub(crate) text: String,
    /// Whether it waits until it is known how likely its tokens were.
    pub(crate) scored: bool,
}

impl Listener {
    /// Who listens to `answers` answers, which begin with `echo`.
    pub(crate) fn new(caller: Caller, device: Device, answers: usize, echo: Option<Echo>, sink: Sink) -> Listener {
        let open = Open { sink, answers, left: answers, echo, asked: Instant::now(), begun: None };
        Listener { caller, device, open: Mutex::new(Some(open)) }
    }

    /// The prompt is being run, of which so many tokens were in the cache. Said once, however often that is.
    pub(crate) fn begin(&self, cached_tokens: usize) -> bool {
        let mut guard = self.lock();
        let Some(open) = guard.as_mut().filter(|open| open.begun.is_none()) else { return false };
        open.begun = Some(Instant::now());
        self.caller.waited(open.asked.elapsed());
        let echo = open.echo.take_if(|echo| !echo.scored);
        tell(&mut guard, Ok(Event::Begun { cached_tokens }));
        show(&mut guard, echo, &[]);
        true
    }

    /// It is known how likely the tokens of the prompt were.
    pub(crate) fn scored(&self, picks: Vec<Pick>) {
        let mut guard = self.lock();
        let echo = guard.as_mut().and_then(|open| open.echo.take());
        show(&mut guard, echo, &picks);
    }

    pub(crate) fn tell(&self, event: Result<Event>) {
        let mut guard = self.lock();
        let Some(open) = guard.as_mut() else { return };
        let last = match &event {
            Ok(Event::Begun { .. } | Event::Text { .. }) => false,
            Ok(Event::End { .. }) => {
                open.left -= 1;
                open.left == 0
            }
            Err(_) => true,
        };
        if last {
            // Before it is told: who hears it may want to know.
            match open.begun {
                Some(begun) => self.caller.ran(begun.elapsed()),
                None => self.caller.waited(open.asked.elapsed()),
            }
        }
        tell(&mut guard, event);
        if last {
            *guard = None;
        }
    }

    /// Nothing more is told.
    pub(crate) fn close(&self) {
        *self.lock() = None;
    }

    /// Whether nobody listens any more. Who would, but is cancelled or late, is told so.
    pub(crate) fn gone(&self, now: Instant) -> bool {
        if let Some(why) = self.caller.over(now) {
            self.tell(Err(why));
        }
        self.lock().is_none()
    }

    fn lock(&self) -> MutexGuard<'_, Option<Open>> {
        self.open.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Drop for Listener {
    fn drop(&mut self) {
        self.tell(Err(Error::Stopped { device: self.device, why: "the answer was forgotten".into() }));
    }
}

/// The beginning of every answer.
fn show(open: &mut Option<Open>, echo: Option<Echo>, picks: &[Pick]) {
    let answers = open.as_ref().map_or(0, |open| open.answers);
    for (answer, echo) in echo.iter().flat_map(|echo| (0..answers).map(move |answer| (answer, echo))) {
        tell(open, Ok(Event::Text { answer, text: echo.text.clone(), picks: picks.to_vec() }));
    }
}

/// A panic in a sink is its owner's: the thread that runs the model has others to serve.
fn tell(open: &mut Option<Open>, event: Result<Event>) {
    let Some(listening) = open else { return };
    if catch_unwind(AssertUnwindSafe(|| (listening.sink)(event))).is_err() {
        *open = None;
    }
}
