//! Which texts go together. Pure: lengths in, batches out.
//!
//! Requests of any size wait in one queue, and share the device by tokens: start-time fair queuing, with the finish as the key
//! (Golestani 1994, self-clocked fair queueing). Time is *virtual*: it counts tokens. A request begins where the clock stands when it
//! comes; a text of it starts where the one before it finished, and finishes its length later. The text that finishes first goes
//! first, and sets the clock. So of requests that wait each gets as many tokens as any other, a short text that comes behind ten
//! thousand long ones is in the next batch, and the ten thousand go on however many short ones come.

use super::step::Budget;
use std::cmp::Reverse;
use std::collections::{BTreeMap, BinaryHeap};

/// How many texts that do not fit are passed over in search of one that does.
const PASSED_OVER: usize = 64;

/// Requests that wait.
pub(crate) struct EncodeQueue {
    budget: Budget,
    requests: BTreeMap<u64, Waiting>,
    /// When the next text of each request finishes. Those that are no more are left out when they are met.
    order: BinaryHeap<Reverse<(u64, u64)>>,
    clock: u64,
    tokens: usize,
}

struct Waiting {
    /// Length and number of every text, the longest last.
    texts: Vec<(usize, usize)>,
    /// Where the one before the next finished.
    start: u64,
}

impl EncodeQueue {
    /// Of batches of at most so many tokens (a longer text goes alone) and sequences.
    pub(crate) fn new(budget: Budget) -> EncodeQueue {
        EncodeQueue { budget, requests: BTreeMap::new(), order: BinaryHeap::new(), clock: 0, tokens: 0 }
    }

    /// Puts the texts of a request at the end. `request` is a name that none of those that wait has.
    ///
    /// Its long texts go first. Batches are packed, so mixing lengths would waste no padding; but alike lengths make alike tasks,
    /// which the threads of a CPU and the blocks of a GPU share evenly, and the largest batch comes first, so that memory runs
    /// out early or never.
    pub(crate) fn push(&mut self, request: u64, lengths: &[usize]) {
        let mut texts: Vec<(usize, usize)> = lengths.iter().copied().zip(0..).collect();
        // Of equals the first comes first.
        texts.sort_by_key(|(length, i)| (*length, Reverse(*i)));
        let Some((longest, _)) = texts.last() else { return };
        self.tokens += lengths.iter().sum::<usize>();
        self.order.push(Reverse((self.clock + *longest as u64, request)));
        self.requests.insert(request, Waiting { texts, start: self.clock });
    }

    /// Takes out what is left of a request.
    pub(crate) fn remove(&mut self, request: u64) {
        if let Some(waiting) = self.requests.remove(&request) {
            self.tokens -= waiting.texts.iter().map(|(length, _)| length).sum::<usize>();
        }
    }

    /// Requests that wait.
    pub(crate) fn requests(&self) -> usize {
        self.requests.len()
    }

    /// Tokens of all their texts.
    pub(crate) fn tokens(&self) -> usize {
        self.tokens
    }

    /// The next batch: requests and the numbers of their texts. Requests that are busy, whose caller has not yet read what is done,
    /// are passed over: more would only pile up.
    pub(crate) fn next(&mut self, is_busy: impl Fn(u64) -> bool) -> Vec<(u64, usize)> {
        let busy: Vec<u64> = self.requests.keys().copied().filter(|id| is_busy(*id)).collect();
        let (mut batch, mut tokens, mut passed) = (Vec::new(), 0, Vec::new());
        while batch.len() < self.budget.sequences && tokens < self.budget.tokens && passed.len() < PASSED_OVER {
            let Some(Reverse((finish, id))) = self.order.pop() else { break };
            let Some(waiting) = self.requests.get_mut(&id).filter(|_| busy.binary_search(&id).is_err()) else {
                continue;
            };
            let Some(&(length, text)) = waiting.texts.last() else { continue };
            if !batch.is_empty() && tokens + length > self.budget.tokens {
                // It keeps its place. What goes instead of it would not have kept it waiting any less by going later.
                passed.push(Reverse((finish, id)));
                continue;
            }
            waiting.texts.pop();
            waiting.start = finish;
            self.clock = self.clock.max(finish);
            self.tokens -= length;
            tokens += length;
            batch.push((id, text));
            match waiting.texts.last() {
                Some((length, _)) => self.order.push(Reverse((finish + *length as u64, id))),
                None => drop(self.requests.remove(&id)),
            }
        }
        self.order.extend(passed);
        self.come_back(&busy);
        batch
    }

    /// Who was busy begins anew where the clock stands: nobody saves up for later.
    fn come_back(&mut self, busy: &[u64]) {
        if busy.is_empty() {
            return;
        }
        self.order.retain(|Reverse((_, id))| busy.binary_search(id).is_err());
        for id in busy {
            let Some(waiting) = self.requests.get_mut(id) else { continue };
            let Some((length, _)) = waiting.texts.last() else { continue };
            waiting.start = waiting.start.max(self.clock);
            self.order.push(Reverse((waiting.start + *length as u64, *id)));
        }
    }
}

#[cfg(test)]
#[path = "encode_tests.rs"]
mod tests;
