//! Generation: what is asked of a language model, and what comes back while it runs.

mod live;
mod model;
mod worker;

pub(crate) use live::{Ends, Live, Turn};
pub(crate) use model::{LmPlan, PAGE, Wish, is_f32, plan, root_of};
pub(crate) use worker::{Job, Worker};

use crate::constrain::Format;
use crate::sample::{Logprobs, Params};
use crate::{Error, Result};
use sconce_ops::Device;
use std::sync::Arc;
use std::sync::mpsc::{Receiver, RecvTimeoutError};
use std::time::{Duration, Instant};

/// A text to go on from, and how.
#[derive(Clone, Debug, Default)]
pub struct Request {
    /// The text, or its tokens.
    pub start: Start,
    /// How tokens are chosen; the default is what the model's own files recommend.
    pub params: Option<Params>,
    /// The most tokens of an answer; `None`: what the model's own files say, else as many as there is room for.
    pub max_tokens: Option<usize>,
    /// Texts that end an answer. They are never shown, and no part of them.
    pub stop: Vec<String>,
    /// Whether the answer begins with the prompt.
    pub echo: bool,
    /// Whether an answer goes on behind the model's own end.
    pub ignore_end: bool,
    /// What an answer must be; `None`: any text. An answer that is cut, by `max_tokens` or a stop text, is the beginning of one.
    pub format: Option<Format>,
}

/// What a generation starts from.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Start {
    /// A text. What looks like a control token in it is text.
    Text(String),
    /// A text in which control tokens are what they look like: what a chat template wrote.
    Rendered(String),
    /// Tokens.
    Tokens(Vec<u32>),
}

impl Default for Start {
    fn default() -> Start {
        Start::Text(String::new())
    }
}

/// One chosen token.
#[derive(Clone, Debug, PartialEq)]
pub struct Pick {
    /// Its id.
    pub id: u32,
    /// How likely it and others were, if that was asked for.
    pub logprobs: Option<Logprobs>,
}

/// Why an answer ended.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Finish {
    /// The model said so, or nothing could follow in the form that the answer must have.
    End,
    /// One of the stop texts came.
    Stop(String),
    /// There was no room for more, or no more was asked for.
    Length,
}

/// What happens to an answer.
#[derive(Clone, Debug, PartialEq)]
pub enum Event {
    /// It grows, by whole characters. Tokens that have not made one yet come with the text that they become.
    Text {
        /// Which of the answers.
        answer: usize,
        /// What is new.
        text: String,
        /// The tokens behind it.
        picks: Vec<Pick>,
    },
    /// It ends.
    End {
        /// Which of the answers.
        answer: usize,
        /// Why.
        finish: Finish,
    },
}

/// Events of one request, as they come. Dropping it cancels what is not done.
pub struct Stream {
    events: Receiver<Result<Event>>,
    /// While it is there, somebody listens.
    _listener: Arc<()>,
    about: About,
    begun: Instant,
    left: usize,
}

/// What a stream is told when it is made.
#[derive(Clone, Copy, Debug)]
pub(crate) struct About {
    pub(crate) device: Device,
    pub(crate) answers: usize,
    pub(crate) prompt_tokens: usize,
    pub(crate) truncated: bool,
}

impl Stream {
    /// Of what comes to `events`, as long as `listener` is there.
    pub(crate) fn new(events: Receiver<Result<Event>>, listener: Arc<()>, about: About) -> Stream {
        Stream { events, _listener: listener, about, begun: Instant::now(), left: about.answers }
    }

    /// Tokens of the prompt.
    pub fn prompt_tokens(&self) -> usize {
        self.about.prompt_tokens
    }

    /// Whether the input was longer than there is room for, and was cut.
    pub fn truncated(&self) -> bool {
        self.about.truncated
    }

    /// The next event if it comes within `patience`: who listens may have something else to attend to, such as Ctrl-C.
    pub fn within(&mut self, patience: Duration) -> Within {
        if self.left == 0 {
            return Within::Done;
        }
        match self.events.recv_timeout(patience) {
            Err(RecvTimeoutError::Timeout) => Within::Nothing,
            Err(RecvTimeoutError::Disconnected) => {
                let gone = self.gone();
                Within::Event(self.seen(gone))
            }
            Ok(event) => Within::Event(self.seen(event)),
        }
    }

    fn gone(&self) -> Result<Event> {
        Err(Error::Stopped { device: self.about.device, why: "no reason given".into() })
    }

    fn seen(&mut self, event: Result<Event>) -> Result<Event> {
        match &event {
            Ok(Event::Text { .. }) => {}
            Ok(Event::End { .. }) => self.left -= 1,
            Err(_) => self.left = 0,
        }
        event
    }

    /// All of it, once it is done.
    pub fn wait(self) -> Result<Generation> {
        let (begun, About { prompt_tokens, answers, .. }) = (self.begun, self.about);
        let mut all: Vec<Answer> = (0..answers).map(|_| Answer::default()).collect();
        let mut first = None;
        for event in self {
            match event? {
                Event::Text { answer, text, picks } => {
                    // What is echoed came before anything was computed.
                    if !picks.is_empty() {
                        first.get_or_insert_with(|| begun.elapsed());
                    }
                    all[answer].text.push_str(&text);
                    all[answer].picks.extend(picks);
                }
                Event::End { answer, finish } => all[answer].finish = Some(finish),
            }
        }
        Ok(Generation { answers: all, prompt_tokens, first, took: begun.elapsed() })
    }
}

impl Iterator for Stream {
    type Item = Result<Event>;

    fn next(&mut self) -> Option<Result<Event>> {
        if self.left == 0 {
            return None;
        }
        let event = self.events.recv().unwrap_or_else(|_| self.gone());
        Some(self.seen(event))
    }
}

/// What came of waiting a while.
#[derive(Debug)]
pub enum Within {
    /// An event.
    Event(Result<Event>),
    /// Nothing yet.
    Nothing,
    /// There are no more.
    Done,
}

/// An answer, complete.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Answer {
    /// Its text.
    pub text: String,
    /// Its tokens.
    pub picks: Vec<Pick>,
    /// Why it ended.
    pub finish: Option<Finish>,
}

/// What came of a request.
#[derive(Clone, Debug, PartialEq)]
pub struct Generation {
    /// The answers.
    pub answers: Vec<Answer>,
    /// Tokens of the prompt.
    pub prompt_tokens: usize,
    /// From the request until the first text came that is not the prompt's.
    pub first: Option<Duration>,
    /// From the request until the end.
    pub took: Duration,
}
