//! The scheduler of language models: continuous batching with chunked prefill and preemption. Pure:
//! a budget and the free KV blocks in, a step out.
//!
//! A sequence is its tokens so far and how many of them are computed. A sequence with one token
//! left to compute *decodes*; with more, it *prefills*, perhaps in several chunks. A step takes
//!
//! 1. every decode, so that no prompt, however long, delays a running answer;
//! 2. then prefills with the remaining tokens: half for the oldest, so that a long prompt advances
//!    whatever arrives after it, and half for the others, shortest first, so that a short prompt
//!    does not wait for a long one.
//!
//! Sequences start in order of arrival, and age decides about KV blocks too: the blocks that an
//! older prefill will need are reserved for it. When blocks run out, the newest sequence is
//! preempted: it gives its blocks back, waits at the head of the queue and is computed again from
//! its tokens. So the oldest sequence advances in every step, and every sequence becomes the
//! oldest. That requires `tokens > sequences` in the budget, or decodes alone could use it up.

use super::step::{Budget, Next, Refused, Request, Sampled, ScheduledChunk, Step};
use crate::kv::{Blocks, SeqId};
use std::collections::{HashMap, HashSet, VecDeque};

#[derive(Clone)]
struct Sequence {
    tokens: Vec<u32>,
    /// How many tokens are in the KV cache, or will be when the step in flight is committed.
    seen: usize,
    limit: usize,
    /// Sequences that it will fork into (the `n` of the request).
    seats: usize,
    /// The logits of every prompt token are wanted, until all of them are computed.
    scored: bool,
}

impl Sequence {
    fn unseen(&self) -> usize {
        self.tokens.len() - self.seen
    }

    /// Rows of logits that `tokens` tokens of the prompt produce.
    fn rows(&self, tokens: usize) -> usize {
        if self.scored { tokens } else { 1 }
    }

    /// The most prompt tokens that may be computed within `tokens` tokens and `rows` rows of
    /// logits.
    fn most(&self, tokens: usize, rows: usize) -> usize {
        let most = if self.scored { tokens.min(rows) } else { tokens };
        most.min(self.unseen())
    }
}

/// The waiting and running sequences.
#[derive(Default)]
pub(crate) struct Scheduler {
    sequences: HashMap<SeqId, Sequence>,
    /// Oldest first; all younger than the running ones.
    waiting: VecDeque<SeqId>,
    /// Oldest first.
    running: Vec<SeqId>,
    /// The chunks of the last step, until it is committed.
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
        // The last token ends the sequence and never goes through the model.
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

    /// Ends a sequence wherever it is, and frees its blocks. What its chunk of the step in flight
    /// wrote is unknown and never enters the prefix cache; the other chunks can be committed.
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

    /// Number of waiting sequences.
    pub(crate) fn waiting(&self) -> usize {
        self.waiting.len()
    }

    /// Number of running sequences.
    pub(crate) fn running(&self) -> usize {
        self.running.len()
    }

    /// Whether there are no sequences.
    #[cfg(test)]
    pub(crate) fn is_idle(&self) -> bool {
        self.sequences.is_empty()
    }

    /// The next step. A step that was not committed, because the model failed, is reverted first:
    /// what it left in the KV cache is unknown, so its sequences wait to be computed again. The
    /// caller releases those that are to fail.
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

    /// Records the results of the last step. A sequence whose logits were wanted and that is not in
    /// `sampled` ends. Returns the sequences that ended, because they stopped or reached their
    /// limit.
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

    /// Adds a copy of `parent`, of the same age.
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
        // Sequences outside of the step keep their blocks; but the queue must hold only sequences
        // younger than the running ones, so all that are younger than the oldest in the step are
        // preempted too.
        let oldest = self.running.iter().position(|id| flying.contains(id)).unwrap_or(self.running.len());
        while self.running.len() > oldest {
            self.preempt(blocks, step);
        }
    }

    /// Schedules one token of every decoding sequence, oldest first.
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
            // The sequence itself may be preempted; by then all younger ones have been.
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

    /// Admits waiting sequences in order, while there is capacity for their forks, and blocks for
    /// the whole prompt and one for each running sequence.
    fn admit(&mut self, blocks: &mut Blocks, sequences: usize) {
        let mut seats: usize = self.running.iter().map(|id| self.sequences[id].seats).sum();
        let mut promised: usize = self.running.iter().map(|id| blocks.need(*id, self.rest(*id, blocks))).sum();
        while let Some(&id) = self.waiting.front() {
            let s = &self.sequences[&id];
            // A request with more answers than the budget runs too, if alone: some of its answers
            // wait for others.
            if !self.running.is_empty() && seats + s.seats > sequences {
                return;
            }
            // The prefix cache holds no logits, so a prompt that needs all of them skips it.
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

    /// Schedules chunks of prompts with the remaining tokens.
    fn prefill(&mut self, blocks: &mut Blocks, left: &mut Budget, step: &mut Step) {
        let planned: HashSet<SeqId> = step.pieces.iter().map(|p| p.sequence).collect();
        let all: Vec<SeqId> = self.running.iter().copied().filter(|id| !planned.contains(id)).collect();
        for (id, grant) in all.iter().zip(self.grants(&all, *left)) {
            // Decodes may have taken blocks that were reserved for a younger prefill, which then
            // computes only what fits.
            let tokens = grant.min(blocks.room(*id, blocks.free_blocks()));
            if tokens > 0 {
                self.plan(blocks, *id, tokens, step);
                left.tokens -= tokens;
                left.sequences -= self.sequences[id].rows(tokens);
            }
        }
    }

    /// How many tokens each sequence of `all`, oldest first, may compute.
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

    /// Preempts the newest sequence: it frees its blocks and waits at the head of the queue.
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
