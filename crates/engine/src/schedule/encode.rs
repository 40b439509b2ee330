//! The queue of encoder requests: which texts run together. Pure: lengths in, micro-batches out.
//!
//! Requests of any size wait in one queue and share the device by tokens: start-time fair queuing
//! with the finish time as key (Golestani 1994, self-clocked fair queueing). Time is *virtual* and
//! counts tokens. The first text of a request starts at the clock's time when the request arrives;
//! each further text starts when the one before it finishes. A text finishes its length after its
//! start. The text with the earliest finish time runs first and advances the clock. So all waiting
//! requests get equal shares of tokens, a short text that arrives after ten thousand long ones is
//! in the next micro-batch, and the ten thousand advance however many short ones arrive.

use super::step::Budget;
use std::cmp::Reverse;
use std::collections::{BTreeMap, BinaryHeap};

/// How many texts that do not fit are skipped in search of one that does.
const MAX_SKIPPED: usize = 64;

/// The queue of encoder requests.
pub(crate) struct EncodeQueue {
    budget: Budget,
    requests: BTreeMap<u64, QueuedRequest>,
    /// Finish time of the next text of each request. Entries of removed requests are dropped when
    /// they are popped.
    order: BinaryHeap<Reverse<(u64, u64)>>,
    clock: u64,
    tokens: usize,
}

struct QueuedRequest {
    /// Length and index of every text, the longest last.
    texts: Vec<(usize, usize)>,
    /// Finish time of the text before the next.
    start: u64,
}

impl EncodeQueue {
    /// A queue that makes micro-batches within `budget`; a text longer than its tokens goes alone.
    pub(crate) fn new(budget: Budget) -> EncodeQueue {
        EncodeQueue { budget, requests: BTreeMap::new(), order: BinaryHeap::new(), clock: 0, tokens: 0 }
    }

    /// Adds the texts of a request. `request` is an id that no waiting request has.
    ///
    /// Its long texts go first. Batches are packed, so mixed lengths would waste no padding; but
    /// similar lengths make similar tasks, which the threads of a CPU and the blocks of a GPU share
    /// evenly. The largest batch comes first, so that memory runs out early or never.
    pub(crate) fn push(&mut self, request: u64, lengths: &[usize]) {
        let mut texts: Vec<(usize, usize)> = lengths.iter().copied().zip(0..).collect();
        // Among equal lengths, the first text goes first.
        texts.sort_by_key(|(length, i)| (*length, Reverse(*i)));
        let Some((longest, _)) = texts.last() else { return };
        self.tokens += lengths.iter().sum::<usize>();
        self.order.push(Reverse((self.clock + *longest as u64, request)));
        self.requests.insert(request, QueuedRequest { texts, start: self.clock });
    }

    /// Removes what is left of a request.
    pub(crate) fn remove(&mut self, request: u64) {
        if let Some(queued) = self.requests.remove(&request) {
            self.tokens -= queued.texts.iter().map(|(length, _)| length).sum::<usize>();
        }
    }

    /// Number of waiting requests.
    pub(crate) fn requests(&self) -> usize {
        self.requests.len()
    }

    /// Tokens of all waiting texts.
    pub(crate) fn tokens(&self) -> usize {
        self.tokens
    }

    /// The next micro-batch: requests and indices of their texts. Skips busy requests, whose caller
    /// has not yet read earlier results: more results would only pile up.
    pub(crate) fn next(&mut self, is_busy: impl Fn(u64) -> bool) -> Vec<(u64, usize)> {
        let busy: Vec<u64> = self.requests.keys().copied().filter(|id| is_busy(*id)).collect();
        let (mut batch, mut tokens, mut skipped) = (Vec::new(), 0, Vec::new());
        while batch.len() < self.budget.sequences && tokens < self.budget.tokens && skipped.len() < MAX_SKIPPED {
            let Some(Reverse((finish, id))) = self.order.pop() else { break };
            let Some(queued) = self.requests.get_mut(&id).filter(|_| busy.binary_search(&id).is_err()) else {
                continue;
            };
            let Some(&(length, text)) = queued.texts.last() else { continue };
            if !batch.is_empty() && tokens + length > self.budget.tokens {
                // A skipped text keeps its position. It would not run earlier if the smaller texts
                // waited.
                skipped.push(Reverse((finish, id)));
                continue;
            }
            queued.texts.pop();
            queued.start = finish;
            self.clock = self.clock.max(finish);
            self.tokens -= length;
            tokens += length;
            batch.push((id, text));
            match queued.texts.last() {
                Some((length, _)) => self.order.push(Reverse((finish + *length as u64, id))),
                None => drop(self.requests.remove(&id)),
            }
        }
        self.order.extend(skipped);
        self.requeue_busy(&busy);
        batch
    }

    /// Requests that were busy start again at the current clock: they do not accumulate shares.
    fn requeue_busy(&mut self, busy: &[u64]) {
        if busy.is_empty() {
            return;
        }
        self.order.retain(|Reverse((_, id))| busy.binary_search(id).is_err());
        for id in busy {
            let Some(queued) = self.requests.get_mut(id) else { continue };
            let Some((length, _)) = queued.texts.last() else { continue };
            queued.start = queued.start.max(self.clock);
            self.order.push(Reverse((queued.start + *length as u64, *id)));
        }
    }
}

#[cfg(test)]
#[path = "encode_tests.rs"]
mod tests;
