//! The events of a request as an iterator.

use super::{Answer, Event, Generation};
use crate::error::{Error, Result};
use crate::runtime::{Reply, RequestContext, Sink};
use sconce_ops::Device;
use std::sync::mpsc::{Receiver, RecvTimeoutError, channel};
use std::sync::{Arc, Weak};
use std::time::{Duration, Instant};

/// The events of one request as they arrive. Dropping it cancels the request.
pub struct Stream {
    events: Receiver<Result<Event>>,
    /// Dropped when the last event was sent.
    reply: Weak<Reply<Event>>,
    info: StreamInfo,
    begun: Instant,
    left: usize,
}

/// Facts about the request of a stream.
#[derive(Clone, Copy, Debug)]
pub(crate) struct StreamInfo {
    pub(crate) device: Device,
    pub(crate) answers: usize,
    pub(crate) prompt_tokens: usize,
    pub(crate) truncated: bool,
}

impl Stream {
    /// A stream, and the reply whose events it yields.
    pub(crate) fn new(context: &RequestContext, info: StreamInfo) -> (Stream, Arc<Reply<Event>>) {
        let (sender, events) = channel();
        // If the stream was dropped, sending fails, and the request ends before the next step.
        let sink: Sink<Event> = Box::new(move |event| drop(sender.send(event)));
        let reply = Arc::new(Reply::new(context.clone(), info.device, sink));
        let stream = Stream { events, reply: Arc::downgrade(&reply), info, begun: Instant::now(), left: info.answers };
        (stream, reply)
    }

    /// Tokens of the prompt.
    pub fn prompt_tokens(&self) -> usize {
        self.info.prompt_tokens
    }

    /// Whether the input was too long and was truncated.
    pub fn truncated(&self) -> bool {
        self.info.truncated
    }

    /// The next event if it arrives within `patience`. Between two calls the caller can react to
    /// other things, such as Ctrl-C.
    pub fn within(&mut self, patience: Duration) -> NextEvent {
        if self.left == 0 {
            return NextEvent::Done;
        }
        match self.events.recv_timeout(patience) {
            Err(RecvTimeoutError::Timeout) => NextEvent::Nothing,
            Err(RecvTimeoutError::Disconnected) => {
                let disconnected = self.disconnected();
                NextEvent::Event(self.count_end(disconnected))
            }
            Ok(event) => NextEvent::Event(self.count_end(event)),
        }
    }

    fn disconnected(&self) -> Result<Event> {
        Err(Error::Stopped { device: self.info.device, why: "unknown reason".into() })
    }

    fn count_end(&mut self, event: Result<Event>) -> Result<Event> {
        match &event {
            Ok(Event::Begun { .. } | Event::Progress { .. } | Event::Text { .. }) => {}
            Ok(Event::End { .. }) => self.left -= 1,
            Err(_) => self.left = 0,
        }
        event
    }

    /// Waits for the whole result.
    pub fn wait(self) -> Result<Generation> {
        let (begun, StreamInfo { prompt_tokens, answers, .. }) = (self.begun, self.info);
        let mut all: Vec<Answer> = (0..answers).map(|_| Answer::default()).collect();
        let mut first = None;
        for event in self {
            match event? {
                Event::Begun { .. } | Event::Progress { .. } => {}
                Event::Text { answer, text, sampled } => {
                    // Echoed text is sent before anything is computed.
                    if !sampled.is_empty() {
                        first.get_or_insert_with(|| begun.elapsed());
                    }
                    all[answer].text.push_str(&text);
                    all[answer].sampled.extend(sampled);
                }
                Event::End { answer, finish, score } => (all[answer].finish, all[answer].score) = (Some(finish), score),
            }
        }
        Ok(Generation { answers: all, prompt_tokens, first, took: begun.elapsed() })
    }
}

impl Drop for Stream {
    fn drop(&mut self) {
        if let Some(reply) = self.reply.upgrade() {
            reply.close();
        }
    }
}

impl Iterator for Stream {
    type Item = Result<Event>;

    fn next(&mut self) -> Option<Result<Event>> {
        if self.left == 0 {
            return None;
        }
        let event = self.events.recv().unwrap_or_else(|_| self.disconnected());
        Some(self.count_end(event))
    }
}

/// The result of waiting for an event.
#[derive(Debug)]
pub enum NextEvent {
    /// An event.
    Event(Result<Event>),
    /// No event yet.
    Nothing,
    /// There are no more events.
    Done,
}
