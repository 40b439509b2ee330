//! Which tokens of which sequences the model sees next. Pure: a budget and the free blocks in, a plan out.
//!
//! A sequence is its tokens so far and how many of them the model has seen. One token unseen is a *decode*; more, a *prefill*,
//! which may be cut into pieces. A step takes
//!
//! 1. every decode, so that no prompt, however long, holds up a running answer;
//! 2. then prefills with the tokens left: half for the oldest, so that a long prompt goes on whatever comes after it, and
//!    half for the others, shortest first, so that a short prompt does not wait for a long one.
//!
//! Sequences begin in the order in which they came, and the line of age decides about blocks too: an older prefill's blocks
//! are promised to it, and when blocks run out the newest gives its own back, waits at the head of the queue and is computed
//! again from its tokens. So the oldest moves in every step, and everyone becomes the oldest.
//! That needs `tokens > sequences` in the budget, or decodes alone could use it up.

use super::step::{Budget, Next, Refused, Request, Sampled, ScheduledChunk, Step};
use crate::kv::{Blocks, SeqId};
use std::collections::{HashMap, HashSet, VecDeque};

#[derive(Clone)]
struct Sequence {
    tokens: Vec<u32>,
    /// The first so many are in the cache, or will be when the step in flight is committed.
    seen: usize,
    limit: usize,
    /// Sequences that it will be.
    seats: usize,
    /// The logits of every token are wanted, until all of them were seen.
    scored: bool,
}

impl Sequence {
    fn unseen(&self) -> usize {
        self.tokens.len() - self.seen
    }

    /// Rows of logits that come of so many tokens of a prompt.
    fn rows(&self, tokens: usize) -> usize {
        if self.scored { tokens } else { 1 }
    }

    /// The most tokens of a prompt that may be computed with so many left, and so many rows of logits.
    fn most(&self, tokens: usize, rows: usize) -> usize {
        let most = if self.scored { tokens.min(rows) } else { tokens };
        most.min(self.unseen())
    }
}

/// Sequences that wait and that run.
#[derive(Default)]
pub(crate) struct Scheduler {
    sequences: HashMap<SeqId, Sequence>,
    /// Oldest first; all younger than those that run.
    waiting: VecDeque<SeqId>,
    /// Oldest first.
    running: Vec<SeqId>,
    /// The step that was given out and not yet committed.
    flying: Vec<ScheduledChunk>,
}

impl Scheduler {
    /// Puts a prompt at the end of the queue.
    pub(crate) fn submit(&mut self, request: Request, blocks: &Blocks) -> Result<(), Refused> {
        let Request { sequence, tokens, limit, n, scored } = request;
        if tokens.is_empty() {
            return Err(Refused::Empty);
        }
        if tokens.len() >= limit {
            return Err(Refused::Full { tokens: tokens.len(), limit });
        }
        // The last token ends the sequence and is never seen by the model.
        let need = (limit - 1).div_ceil(blocks.size());
        if need > blocks.count() {
            let (blocks, size) = (blocks.count(), blocks.size());
            return Err(Refused::TooLong { tokens: tokens.len(), limit, need, blocks, size });
        }
        if self.sequences.contains_key(&sequence) {
            return Err(Refused::Duplicate(sequence));
        }
        let seats = n.max(1);
        self.sequences.insert(sequence, Sequence { tokens, seen: 0, limit, seats, scored });
        self.waiting.push_back(sequence);
        Ok(())
    }

    /// Ends a sequence wherever it is, and gives its blocks back. What its piece of the step in flight wrote is unknown, and does
    /// not become known; the other pieces can be committed.
    pub(crate) fn release(&mut self, blocks: &mut Blocks, sequence: SeqId) {
        self.flying.retain(|piece| piece.sequence != sequence);
        self.running.retain(|id| *id != sequence);
        self.waiting.retain(|id| *id != sequence);
        if self.sequences.remove(&sequence).is_some() {
            blocks.free(sequence);
        }
    }

    /// The tokens of a sequence so far; `None` if it has ended.
    pub(crate) fn tokens(&self, sequence: SeqId) -> Option<&[u32]> {
        self.sequences.get(&sequence).map(|s| s.tokens.as_slice())
    }

    /// Sequences that wait.
    pub(crate) fn waiting(&self) -> usize {
        self.waiting.len()
    }

    /// Sequences that run.
    pub(crate) fn running(&self) -> usize {
        self.running.len()
    }

    /// Whether there is nothing to do.
    #[cfg(test)]
    pub(crate) fn is_idle(&self) -> bool {
        self.sequences.is_empty()
    }

    /// What to run next. A step that was not committed, because the model failed, is taken back first: what it left in the
    /// cache is unknown, so its sequences wait to be computed again. Release those that are to fail with it.
    pub(crate) fn step(&mut self, blocks: &mut Blocks, budget: Budget) -> Step {
        let mut step = Step::default();
        self.take_back(blocks, &mut step);
        let mut left = budget;
        self.decode(blocks, &mut left, &mut step);
        if left.tokens > 0 && left.sequences > 0 {
            self.admit(blocks, budget.sequences);
        }
        self.prefill(blocks, &mut left, &mut step);
        self.flying.clone_from(&step.pieces);
        step
    }

    /// Records what the model made of the last step. A sequence whose logits were wanted and that is not in `sampled` ends.
    /// Gives those that are no more, because they stopped or came to their limit.
    pub(crate) fn commit(&mut self, blocks: &mut Blocks, sampled: Vec<Sampled>) -> Vec<SeqId> {
        let mut sampled: HashMap<SeqId, Sampled> = sampled.into_iter().map(|s| (s.sequence, s)).collect();
        let mut ended = Vec::new();
        for piece in std::mem::take(&mut self.flying) {
            let id = piece.sequence;
            let Some(s) = self.sequences.get_mut(&id) else { continue };
            s.seen = piece.range.end;
            blocks.computed(id, &s.tokens[..s.seen]);
            if !piece.sample {
                continue;
            }
            s.seats = 1;
            s.scored = false;
            let answer = sampled.remove(&id).unwrap_or(Sampled { sequence: id, next: Next::Stop, forks: Vec::new() });
            for (child, next) in answer.forks.into_iter().rev() {
                self.fork(blocks, id, child);
                self.go_on(blocks, child, next, &mut ended);
            }
            self.go_on(blocks, id, answer.next, &mut ended);
        }
        self.running.retain(|id| self.sequences.contains_key(id));
        ended
    }

    /// A sequence like `parent`, and as old.
    fn fork(&mut self, blocks: &mut Blocks, parent: SeqId, child: SeqId) {
        debug_assert!(!self.sequences.contains_key(&child), "{child:?} is there already");
        let (Some(s), Some(at)) = (self.sequences.get(&parent), self.running.iter().position(|r| *r == parent)) else {
            return;
        };
        self.sequences.insert(child, s.clone());
        self.running.insert(at + 1, child);
        blocks.fork(parent, child);
    }

    fn go_on(&mut self, blocks: &mut Blocks, id: SeqId, next: Next, ended: &mut Vec<SeqId>) {
        let Some(s) = self.sequences.get_mut(&id) else { return };
        if let Next::Token(token) = next {
            s.tokens.push(token);
            if s.tokens.len() < s.limit {
                return;
            }
        }
        self.sequences.remove(&id);
        blocks.free(id);
        ended.push(id);
    }

    fn take_back(&mut self, blocks: &mut Blocks, step: &mut Step) {
        let flying: Vec<SeqId> = std::mem::take(&mut self.flying).into_iter().map(|p| p.sequence).collect();
        if flying.is_empty() {
            return;
        }
        // Those that did not fly keep their blocks; but the queue is of younger ones than run, so the younger go too.
        let oldest = self.running.iter().position(|id| flying.contains(id)).unwrap_or(self.running.len());
        while self.running.len() > oldest {
            self.preempt(blocks, step);
        }
    }

    /// One token of every sequence that has just one, oldest first.
    fn decode(&mut self, blocks: &mut Blocks, left: &mut Budget, step: &mut Step) {
        let mut promised = 0;
        let mut i = 0;
        while i < self.running.len() && left.tokens > 0 && left.sequences > 0 {
            let id = self.running[i];
            i += 1;
            let unseen = self.sequences[&id].unseen();
            if unseen > 1 {
                promised += blocks.need(id, unseen);
                continue;
            }
            // It may have to go itself; all after it have gone by then.
            while self.running.len() >= i && blocks.need(id, 1) + promised > blocks.free_blocks() {
                self.preempt(blocks, step);
            }
            if self.running.len() >= i {
                self.plan(blocks, id, 1, step);
                left.tokens -= 1;
                left.sequences -= 1;
            }
        }
    }

    /// Lets the queue in, in its order, while there are seats and blocks for all of a prompt and one for each who runs.
    fn admit(&mut self, blocks: &mut Blocks, sequences: usize) {
        let mut seats: usize = self.running.iter().map(|id| self.sequences[id].seats).sum();
        let mut promised: usize = self.running.iter().map(|id| blocks.need(*id, self.rest(*id, blocks))).sum();
        while let Some(&id) = self.waiting.front() {
            let s = &self.sequences[&id];
            // More answers than seats are served too, if nobody else is: some of them wait for others.
            if !self.running.is_empty() && seats + s.seats > sequences {
                return;
            }
            // What is in the cache has no logits any more.
            let seen = blocks.allocate(id, if s.scored { &[] } else { &s.tokens });
            let need = blocks.need(id, s.tokens.len() - seen);
            if promised + need + self.running.len() > blocks.free_blocks() {
                blocks.free(id);
                return;
            }
            promised += need;
            seats += s.seats;
            self.sequences.entry(id).and_modify(|s| s.seen = seen);
            self.waiting.pop_front();
            self.running.push(id);
        }
    }

    /// Pieces of prompts, of the tokens that are left.
    fn prefill(&mut self, blocks: &mut Blocks, left: &mut Budget, step: &mut Step) {
        let planned: HashSet<SeqId> = step.pieces.iter().map(|p| p.sequence).collect();
        let all: Vec<SeqId> = self.running.iter().copied().filter(|id| !planned.contains(id)).collect();
        for (id, grant) in all.iter().zip(self.grants(&all, *left)) {
            // Decodes may have grown into a younger one's promised blocks: it waits with what it has.
            let tokens = grant.min(blocks.room(*id, blocks.free_blocks()));
            if tokens > 0 {
                self.plan(blocks, *id, tokens, step);
                left.tokens -= tokens;
                left.sequences -= self.sequences[id].rows(tokens);
            }
        }
    }

    /// How many tokens each of `all`, oldest first, may have.
    fn grants(&self, all: &[SeqId], left: Budget) -> Vec<usize> {
        let of = |i: usize| &self.sequences[&all[i]];
        let mut grants = vec![0; all.len()];
        let Budget { mut tokens, sequences: mut rows } = left;
        if all.is_empty() || rows == 0 {
            return grants;
        }
        let oldest = of(0);
        grants[0] = oldest.most(tokens.div_ceil(2), rows.div_ceil(2));
        tokens -= grants[0];
        rows -= oldest.rows(grants[0]);
        let mut others: Vec<usize> = (1..all.len()).collect();
        others.sort_by_key(|i| of(*i).unseen());
        for i in others {
            if rows == 0 {
                break;
            }
            grants[i] = of(i).most(tokens, rows);
            tokens -= grants[i];
            rows -= of(i).rows(grants[i]);
        }
        grants[0] += oldest.most(tokens, rows).min(oldest.unseen() - grants[0]);
        grants
    }

    /// Tokens of a running sequence that have no slot yet.
    fn rest(&self, id: SeqId, blocks: &Blocks) -> usize {
        self.sequences[&id].tokens.len() - blocks.len(id).unwrap_or(0)
    }

    fn plan(&mut self, blocks: &mut Blocks, id: SeqId, tokens: usize, step: &mut Step) {
        let copy = blocks.reserve(id, tokens).expect("the caller counted the free blocks");
        let s = &self.sequences[&id];
        let range = s.seen..s.seen + tokens;
        step.copies.extend(copy);
        step.pieces.push(ScheduledChunk { sequence: id, sample: range.end == s.tokens.len(), scored: s.scored, range });
    }

    /// The newest gives its blocks back and waits at the head of the queue.
    fn preempt(&mut self, blocks: &mut Blocks, step: &mut Step) {
        let Some(id) = self.running.pop() else { return };
        blocks.free(id);
        self.sequences.entry(id).and_modify(|s| s.seen = 0);
        self.waiting.push_front(id);
        step.preempted.push(id);
    }
}

#[cfg(test)]
#[path = "decode_tests.rs"]
mod tests;

#[cfg(test)]
#[path = "decode_world.rs"]
mod world;
