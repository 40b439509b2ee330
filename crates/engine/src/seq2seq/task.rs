//! One input and the answers to it in the making. Pure but for the tokenizer: logits in, tokens out.

use super::model::Where;
use crate::generate::{self, Given, Live, Turn};
use crate::kv::SeqId;
use crate::sample::{Beams, Continued, Hypothesis, log_softmax};
use crate::{Caller, Error, Result};
use std::sync::Weak;
use std::sync::mpsc::Sender;
use std::time::Instant;

/// An input, ready to be read, and what is to be made of it.
pub(super) struct Job {
    pub(super) ids: Vec<u32>,
    /// The most tokens of an answer.
    pub(super) most: usize,
    pub(super) how: How,
}

pub(super) enum How {
    /// Token by token; its text is the token that begins an answer.
    Sample(generate::Job),
    Beams {
        beams: Box<Beams>,
        width: usize,
        to: Finder,
    },
}

/// Who waits for what a beam search finds.
pub(super) struct Finder {
    pub(super) caller: Caller,
    pub(super) asked: Instant,
    pub(super) begun: Option<Instant>,
    pub(super) found: Sender<Result<Vec<Hypothesis>>>,
    /// There as long as somebody listens.
    pub(super) listener: Weak<()>,
}

impl Finder {
    fn begin(&mut self) {
        self.begun = Some(Instant::now());
        self.caller.waited(self.asked.elapsed());
    }

    /// Told once.
    fn tell(&self, found: Result<Vec<Hypothesis>>) {
        match self.begun {
            Some(begun) => self.caller.ran(begun.elapsed()),
            None => self.caller.waited(self.asked.elapsed()),
        }
        // Nobody listens any more if the caller was cancelled.
        let _ = self.found.send(found);
    }

    fn gone(&self, now: Instant) -> bool {
        let over = self.caller.over(now);
        let is_over = over.is_some();
        if let Some(why) = over {
            self.tell(Err(why));
        }
        is_over || self.listener.upgrade().is_none()
    }
}

impl Job {
    /// Sequences that its answers take at most.
    pub(super) fn width(&self) -> usize {
        match &self.how {
            How::Sample(job) => job.params.n.max(1) as usize,
            How::Beams { width, .. } => *width,
        }
    }

    /// Whether nobody listens any more. Who is cancelled or late is told so, once.
    pub(super) fn gone(&self, now: Instant) -> bool {
        match &self.how {
            How::Sample(job) => job.listener.gone(now),
            How::Beams { to, .. } => to.gone(now),
        }
    }

    /// Tells why there will be no answer.
    pub(super) fn fail(self, error: Error) {
        match self.how {
            How::Sample(job) => job.listener.tell(Err(error)),
            How::Beams { to, .. } => to.tell(Err(error)),
        }
    }
}

/// A sequence that is being written.
pub(super) struct Row {
    pub(super) id: SeqId,
    /// From the token that begins every answer.
    pub(super) tokens: Vec<u32>,
}

/// An input that was read, with its answers so far.
pub(super) struct Task {
    /// Whose pages hold what was read.
    pub(super) input: SeqId,
    pub(super) at: Where,
    /// Pages that its answers may come to.
    pub(super) pages: usize,
    pub(super) width: usize,
    pub(super) rows: Vec<Row>,
    kind: Kind,
}

enum Kind {
    /// One a row.
    Sample(Vec<Live>),
    /// `None` once its answers are told.
    Beams { beams: Option<Box<Beams>>, to: Finder },
}

impl Task {
    /// An input that is in its pages, whose answers may come to `pages`; the caller adds [`Task::first`] rows.
    pub(super) fn new(job: Job, (input, at): (SeqId, Where), pages: usize) -> Task {
        let width = job.width();
        let kind = match job.how {
            How::Sample(job) => {
                job.listener.begin(0);
                Kind::Sample((0..width).map(|answer| Live::new(answer, &job, None)).collect())
            }
            How::Beams { beams, mut to, .. } => {
                to.begin();
                Kind::Beams { beams: Some(beams), to }
            }
        };
        Task { input, at, pages, width, rows: Vec::new(), kind }
    }

    /// Sequences that it begins with: beams are one until their first token.
    pub(super) fn first(&self) -> usize {
        match &self.kind {
            Kind::Sample(lives) => lives.len(),
            Kind::Beams { .. } => 1,
        }
    }

    /// Takes the logits of the next token, `[rows][vocabulary]`; says which rows go on, with which token, in the order of the
    /// next step.
    pub(super) fn advance(&mut self, logits: &mut [f32]) -> Vec<Continued> {
        let width = logits.len() / self.rows.len().max(1);
        match &mut self.kind {
            Kind::Sample(lives) => {
                let logits = logits.chunks_mut(width.max(1)).map(Given::Logits);
                let turns = lives.drain(..).zip(&self.rows).zip(logits).enumerate();
                let next = turns.filter_map(|(beam, ((mut live, row), logits))| match live.next(logits, &row.tokens) {
                    Turn::Token(token) => Some((Continued { beam, token }, live)),
                    Turn::Ended => None,
                });
                let (continued, left): (Vec<_>, Vec<_>) = next.unzip();
                *lives = left;
                continued
            }
            Kind::Beams { beams, to } => {
                if !logits.iter().all(|l| l.is_finite()) {
                    *beams = None;
                    let what = "the model's numbers overflow in this dtype: try bf16 or f32";
                    to.tell(Err(Error::Unsound(what.into())));
                    return Vec::new();
                }
                let Some(search) = beams else { return Vec::new() };
                logits.chunks_mut(width.max(1)).for_each(log_softmax);
                let rows: Vec<&[f32]> = logits.chunks(width.max(1)).collect();
                let continued = search.step(&rows);
                if continued.is_empty()
                    && let Some(search) = beams.take()
                {
                    to.tell(Ok(search.answers()));
                }
                continued
            }
        }
    }

    /// Whether nobody listens any more. Who is cancelled or late is told so, once.
    pub(super) fn gone(&self, now: Instant) -> bool {
        match &self.kind {
            Kind::Sample(lives) => lives.iter().all(|live| live.gone(now)),
            Kind::Beams { to, .. } => to.gone(now),
        }
    }

    /// Tells an error that ends it.
    pub(super) fn fail(&self, error: Error) {
        match &self.kind {
            // All have the same listener, who is told once.
            Kind::Sample(lives) => {
                if let Some(live) = lives.first() {
                    live.fail(error);
                }
            }
            Kind::Beams { to, .. } => to.tell(Err(error)),
        }
    }
}
