//! Works of all callers, waiting in line for one model. Who runs it takes the next batch when the device is free, whoever is in it;
//! nobody waits for a batch to fill.

use crate::schedule::{Budget, Queue, Standing};
use crate::{Caller, Error, Result};
use sconce_models::Sequence;
use sconce_ops::Segments;
use std::collections::BTreeMap;
use std::sync::atomic::{AtomicUsize, Ordering::Relaxed};
use std::sync::mpsc::{Receiver, Sender, channel};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Instant;

/// Parts of an answer that a caller may leave unread before it is passed over: one to read, one to read next. Rows can be wide.
const UNREAD: usize = 2;

/// One sequence to be run, and how many tokens at its head belong to a prompt that does not count.
#[derive(Clone, Debug, Default)]
pub(crate) struct Work {
    pub(crate) sequence: Sequence,
    pub(crate) skip: usize,
}

/// What is wanted of sequences.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) enum Want {
    /// What the task makes of them.
    #[default]
    Task,
    /// The encoder's last row of every token.
    Hidden,
}

/// What waits for a model, and what it ran last.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Waiting {
    /// Requests of which something waits.
    pub requests: usize,
    /// Tokens that wait.
    pub tokens: usize,
    /// Sequences of the last batch.
    pub batch_sequences: usize,
    /// Their tokens.
    pub batch_tokens: usize,
}

/// Where works wait.
pub(crate) struct Line(Mutex<State>);

struct State {
    queue: Queue,
    requests: BTreeMap<u64, Request>,
    /// The name of the next one.
    next: u64,
    batch: (usize, usize), // sequences, tokens
}

struct Request {
    works: Vec<Work>,
    want: Want,
    caller: Caller,
    /// Works that are not answered.
    left: usize,
    asked: Instant,
    begun: Option<Instant>,
    answers: Sender<Result<Part>>,
    unread: Arc<AtomicUsize>,
}

impl Request {
    /// Tells why there will be no answer.
    fn fail(self, error: Error) {
        self.note_time();
        let _ = self.answers.send(Err(error));
    }

    fn note_time(&self) {
        match self.begun {
            Some(begun) => self.caller.ran(begun.elapsed()),
            None => self.caller.waited(self.asked.elapsed()),
        }
    }
}

/// Sequences to be run together.
pub(crate) struct Taken {
    pub(crate) want: Want,
    /// Requests, and which of their works.
    whose: Vec<(u64, usize)>,
    pub(crate) sequences: Vec<Sequence>,
    pub(crate) skips: Vec<usize>,
}

/// What came of a batch.
pub(crate) struct Results {
    pub(crate) segments: Segments,
    /// Rows, and all their numbers.
    pub(crate) values: Vec<(usize, Vec<f32>)>,
}

impl Results {
    /// Those of the sequence at `place`: a row of its own, or a row a token.
    pub(crate) fn of(&self, place: usize) -> Vec<&[f32]> {
        let own = |(rows, values): &'_ (usize, Vec<f32>)| {
            let range =
                if *rows == self.segments.count() { place..place + 1 } else { self.segments.observe().range(place) };
            let width = values.len() / (*rows).max(1);
            range.start * width..range.end * width
        };
        self.values.iter().map(|result| &result.1[own(result)]).collect()
    }
}

/// A caller's part of a batch.
pub(crate) struct Part {
    pub(crate) results: Arc<Results>,
    /// Its works, and their places in the batch.
    pub(crate) whose: Vec<(usize, usize)>,
}

impl Line {
    /// For batches of at most so much.
    pub(crate) fn new(budget: Budget) -> Line {
        let (queue, requests) = (Queue::new(budget), BTreeMap::new());
        Line(Mutex::new(State { queue, requests, next: 0, batch: (0, 0) }))
    }

    /// Puts works at the end of the line; all have tokens.
    pub(crate) fn join(&self, works: Vec<Work>, want: Want, caller: &Caller) -> Ticket<'_> {
        let (answers, inbox) = channel();
        let unread = Arc::new(AtomicUsize::new(0));
        let lengths: Vec<usize> = works.iter().map(|w| w.sequence.ids.len()).collect();
        let (left, seen, caller) = (works.len(), unread.clone(), caller.clone());
        let mut state = self.lock();
        let request = state.next;
        state.next += 1;
        state.queue.push(request, &lengths);
        let asked = Instant::now();
        let entry = Request { works, want, caller, left, asked, begun: None, answers, unread: seen };
        state.requests.insert(request, entry);
        Ticket { line: self, request, left, inbox, unread }
    }

    /// What waits.
    pub(crate) fn waiting(&self) -> Waiting {
        let state = self.lock();
        let (batch_sequences, batch_tokens) = state.batch;
        Waiting { requests: state.queue.requests(), tokens: state.queue.tokens(), batch_sequences, batch_tokens }
    }

    /// The next batch, in as many parts as different things are wanted of it. Who is cancelled or late is told so instead.
    pub(crate) fn take(&self, now: Instant) -> Vec<Taken> {
        let mut guard = self.lock();
        let State { queue, requests, batch: last, .. } = &mut *guard;
        let next = queue.next(|id| match requests.get(&id) {
            Some(request) if request.caller.over(now).is_some() => Standing::Over,
            Some(request) if request.unread.load(Relaxed) >= UNREAD => Standing::Busy,
            Some(_) => Standing::Ready,
            None => Standing::Over,
        });
        for request in next.shed.iter().filter_map(|id| requests.remove(id)) {
            let why = request.caller.over(now).unwrap_or(Error::Cancelled);
            request.fail(why);
        }
        let mut taken: Vec<Taken> = Vec::new();
        for (id, work) in next.batch {
            let Some(request) = requests.get_mut(&id) else { continue };
            if request.begun.is_none() {
                request.begun = Some(now);
                request.caller.waited(now.saturating_duration_since(request.asked));
            }
            let Work { sequence, skip } = std::mem::take(&mut request.works[work]);
            let want = request.want;
            let at = taken.iter().position(|t| t.want == want).unwrap_or_else(|| {
                taken.push(Taken { want, whose: Vec::new(), sequences: Vec::new(), skips: Vec::new() });
                taken.len() - 1
            });
            taken[at].whose.push((id, work));
            // A text cut inside its prompt still keeps its last token.
            taken[at].skips.push(skip.min(sequence.ids.len().saturating_sub(1)));
            taken[at].sequences.push(sequence);
        }
        if !taken.is_empty() {
            let sequences = || taken.iter().flat_map(|t| &t.sequences);
            *last = (sequences().count(), sequences().map(|s| s.ids.len()).sum());
        }
        taken
    }

    /// Gives everyone their part.
    pub(crate) fn answer(&self, taken: &Taken, results: Results) {
        let results = Arc::new(results);
        let mut state = self.lock();
        for (id, whose) in taken.by_request() {
            let Some(request) = state.requests.get_mut(&id) else { continue };
            request.left -= whose.len();
            request.unread.fetch_add(1, Relaxed);
            let is_done = request.left == 0;
            if is_done {
                // Before it is told: who hears it may want to know.
                request.note_time();
            }
            let _ = request.answers.send(Ok(Part { results: results.clone(), whose }));
            if is_done {
                state.requests.remove(&id);
            }
        }
    }

    /// Ends the request that a batch is of.
    pub(crate) fn fail(&self, taken: &Taken, why: Error) {
        let mut state = self.lock();
        let Some((id, _)) = taken.whose.first() else { return };
        state.queue.remove(*id);
        if let Some(request) = state.requests.remove(id) {
            request.fail(why);
        }
    }

    /// Ends all requests.
    pub(crate) fn fail_all(&self, mut why: impl FnMut() -> Error) {
        let mut state = self.lock();
        for (id, request) in std::mem::take(&mut state.requests) {
            state.queue.remove(id);
            request.fail(why());
        }
    }

    fn lock(&self) -> MutexGuard<'_, State> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Taken {
    /// The works of each request, with their places.
    fn by_request(&self) -> BTreeMap<u64, Vec<(usize, usize)>> {
        let mut all: BTreeMap<u64, Vec<(usize, usize)>> = BTreeMap::new();
        for (place, (id, work)) in self.whose.iter().enumerate() {
            all.entry(*id).or_default().push((*work, place));
        }
        all
    }

    /// The same, every request by itself.
    pub(crate) fn apart(&self) -> Vec<Taken> {
        let of = |(id, works): (u64, Vec<(usize, usize)>)| Taken {
            want: self.want,
            whose: works.iter().map(|(work, _)| (id, *work)).collect(),
            sequences: works.iter().map(|(_, place)| self.sequences[*place].clone()).collect(),
            skips: works.iter().map(|(_, place)| self.skips[*place]).collect(),
        };
        self.by_request().into_iter().map(of).collect()
    }
}

/// A place in the line. Who leaves it takes what is not run along.
pub(crate) struct Ticket<'a> {
    line: &'a Line,
    request: u64,
    /// Works that are not answered.
    left: usize,
    inbox: Receiver<Result<Part>>,
    unread: Arc<AtomicUsize>,
}

impl Ticket<'_> {
    /// Waits for the next part of the answer; `None` when there are no more, or the thread that runs the model is gone.
    pub(crate) fn next(&mut self) -> Option<Result<Part>> {
        if self.left == 0 {
            return None;
        }
        let part = self.inbox.recv().ok()?;
        self.left -= part.as_ref().map_or(self.left, |part| part.whose.len());
        Some(part)
    }

    /// Whether all is answered.
    pub(crate) fn is_done(&self) -> bool {
        self.left == 0
    }

    /// A part was read. Whether the line had passed its owner over, and should be looked at again.
    pub(crate) fn read(&self) -> bool {
        self.unread.fetch_sub(1, Relaxed) >= UNREAD
    }
}

impl Drop for Ticket<'_> {
    fn drop(&mut self) {
        let mut state = self.line.lock();
        state.queue.remove(self.request);
        state.requests.remove(&self.request);
    }
}
