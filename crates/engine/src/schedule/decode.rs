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

use super::step::{Advance, Budget, Request, Sampled, ScheduledChunk, Step, SubmitError};
use crate::kv::{Blocks, SeqId};
use std::collections::{HashMap, HashSet, VecDeque};

#[derive(Clone)]
struct Sequence {
    tokens: Vec<u32>,
    /// How many tokens are in the KV cache, or will be when the step in flight is committed.
    computed: usize,
    limit: usize,
    /// Sequences that it will fork into (the `n` of the request).
    branches: usize,
    /// The logits of every prompt token are wanted, until all of them are computed.
    scored: bool,
}

impl Sequence {
    fn remaining(&self) -> usize {
        self.tokens.len() - self.computed
    }

    /// Rows of logits that `tokens` tokens of the prompt produce.
    fn rows(&self, tokens: usize) -> usize {
        if self.scored { tokens } else { 1 }
    }

    /// The most prompt tokens that may be computed within `tokens` tokens and `rows` rows of
    /// logits.
    fn max_chunk(&self, tokens: usize, rows: usize) -> usize {
        let most = if self.scored { tokens.min(rows) } else { tokens };
        most.min(self.remaining())
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
    in_flight: Vec<ScheduledChunk>,
}

impl Scheduler {
    /// Puts a prompt at the end of the queue.
    pub(crate) fn submit(&mut self, request: Request, blocks: &Blocks) -> Result<(), SubmitError> {
        let Request { sequence, tokens, limit, n, scored } = request;
        if tokens.is_empty() {
            return Err(SubmitError::Empty);
        }
        if tokens.len() >= limit {
            return Err(SubmitError::Full { tokens: tokens.len(), limit });
        }
        // The last token ends the sequence and never goes through the model.
        let need = (limit - 1).div_ceil(blocks.size());
        if need > blocks.count() {
            let (blocks, size) = (blocks.count(), blocks.size());
            return Err(SubmitError::TooLong { tokens: tokens.len(), limit, need, blocks, size });
        }
        if self.sequences.contains_key(&sequence) {
            return Err(SubmitError::Duplicate(sequence));
        }
        let branches = n.max(1);
        self.sequences.insert(sequence, Sequence { tokens, computed: 0, limit, branches, scored });
        self.waiting.push_back(sequence);
        Ok(())
    }

    /// Ends a sequence wherever it is, and frees its blocks. The keys and values that its chunk of
    /// the step in flight wrote are unknown, so they never enter the prefix cache. The other chunks
    /// can be committed.
    pub(crate) fn release(&mut self, blocks: &mut Blocks, sequence: SeqId) {
        self.in_flight.retain(|chunk| chunk.sequence != sequence);
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
    /// the content of its KV blocks is unknown, so its sequences return to the queue and are
    /// computed again. The caller releases those that must fail.
    pub(crate) fn step(&mut self, blocks: &mut Blocks, budget: Budget) -> Step {
        let mut step = Step::default();
        self.revert_step(blocks, &mut step);
        let mut left = budget;
        self.decode(blocks, &mut left, &mut step);
        if left.tokens > 0 && left.sequences > 0 {
            self.admit(blocks, budget.sequences);
        }
        self.prefill(blocks, &mut left, &mut step);
        self.in_flight.clone_from(&step.chunks);
        step
    }

    /// Records the results of the last step. A sequence whose logits were wanted and that is not in
    /// `sampled` ends. Returns the sequences that ended, because they stopped or reached their
    /// limit.
    pub(crate) fn commit(&mut self, blocks: &mut Blocks, sampled: Vec<Sampled>) -> Vec<SeqId> {
        let mut sampled: HashMap<SeqId, Sampled> = sampled.into_iter().map(|s| (s.sequence, s)).collect();
        let mut ended = Vec::new();
        for chunk in std::mem::take(&mut self.in_flight) {
            let id = chunk.sequence;
            let Some(s) = self.sequences.get_mut(&id) else { continue };
            s.computed = chunk.range.end;
            blocks.mark_computed(id, &s.tokens[..s.computed]);
            if !chunk.sample {
                continue;
            }
            s.branches = 1;
            s.scored = false;
            let answer =
                sampled.remove(&id).unwrap_or(Sampled { sequence: id, next: Advance::Stop, forks: Vec::new() });
            for (child, next) in answer.forks.into_iter().rev() {
                self.fork(blocks, id, child);
                self.advance(blocks, child, next, &mut ended);
            }
            self.advance(blocks, id, answer.next, &mut ended);
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

    fn advance(&mut self, blocks: &mut Blocks, id: SeqId, next: Advance, ended: &mut Vec<SeqId>) {
        let Some(s) = self.sequences.get_mut(&id) else { return };
        if let Advance::Token(token) = next {
            s.tokens.push(token);
            if s.tokens.len() < s.limit {
                return;
            }
        }
        self.sequences.remove(&id);
        blocks.free(id);
        ended.push(id);
    }

    fn revert_step(&mut self, blocks: &mut Blocks, step: &mut Step) {
        let in_flight: Vec<SeqId> = std::mem::take(&mut self.in_flight).into_iter().map(|p| p.sequence).collect();
        if in_flight.is_empty() {
            return;
        }
        // Sequences outside of the step keep their blocks; but the queue must hold only sequences
        // younger than the running ones, so all that are younger than the oldest in the step are
        // preempted too.
        let oldest = self.running.iter().position(|id| in_flight.contains(id)).unwrap_or(self.running.len());
        while self.running.len() > oldest {
            self.preempt(blocks, step);
        }
    }

    /// Schedules one token of every decoding sequence, oldest first.
    fn decode(&mut self, blocks: &mut Blocks, left: &mut Budget, step: &mut Step) {
        let mut reserved = 0;
        let mut i = 0;
        while i < self.running.len() && left.tokens > 0 && left.sequences > 0 {
            let id = self.running[i];
            i += 1;
            let remaining = self.sequences[&id].remaining();
            if remaining > 1 {
                reserved += blocks.need(id, remaining);
                continue;
            }
            // The sequence itself may be preempted; by then all younger ones have been.
            while self.running.len() >= i && blocks.need(id, 1) + reserved > blocks.free_blocks() {
                self.preempt(blocks, step);
            }
            if self.running.len() >= i {
                self.schedule_chunk(blocks, id, 1, step);
                left.tokens -= 1;
                left.sequences -= 1;
            }
        }
    }

    /// Admits waiting sequences in order, while there is capacity for their forks, and blocks for
    /// the whole prompt and one for each running sequence.
    fn admit(&mut self, blocks: &mut Blocks, sequences: usize) {
        let mut branches: usize = self.running.iter().map(|id| self.sequences[id].branches).sum();
        let mut reserved: usize = self.running.iter().map(|id| blocks.need(*id, self.unallocated(*id, blocks))).sum();
        while let Some(&id) = self.waiting.front() {
            let s = &self.sequences[&id];
            // A request with more answers than the budget runs alone; some of its answers wait
            // for others.
            if !self.running.is_empty() && branches + s.branches > sequences {
                return;
            }
            // The prefix cache holds no logits, so a prompt that needs all of them skips it.
            let computed = blocks.allocate(id, if s.scored { &[] } else { &s.tokens });
            let need = blocks.need(id, s.tokens.len() - computed);
            if reserved + need + self.running.len() > blocks.free_blocks() {
                blocks.free(id);
                return;
            }
            reserved += need;
            branches += s.branches;
            self.sequences.entry(id).and_modify(|s| s.computed = computed);
            self.waiting.pop_front();
            self.running.push(id);
        }
    }

    /// Schedules chunks of prompts with the remaining tokens.
    fn prefill(&mut self, blocks: &mut Blocks, left: &mut Budget, step: &mut Step) {
        let planned: HashSet<SeqId> = step.chunks.iter().map(|p| p.sequence).collect();
        let all: Vec<SeqId> = self.running.iter().copied().filter(|id| !planned.contains(id)).collect();
        for (id, grant) in all.iter().zip(self.grants(&all, *left)) {
            // Decodes may have taken blocks that were reserved for a younger prefill, which then
            // computes only what fits.
            let tokens = grant.min(blocks.capacity(*id, blocks.free_blocks()));
            if tokens > 0 {
                self.schedule_chunk(blocks, *id, tokens, step);
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
        grants[0] = oldest.max_chunk(tokens.div_ceil(2), rows.div_ceil(2));
        tokens -= grants[0];
        rows -= oldest.rows(grants[0]);
        let mut others: Vec<usize> = (1..all.len()).collect();
        others.sort_by_key(|i| of(*i).remaining());
        for i in others {
            if rows == 0 {
                break;
            }
            grants[i] = of(i).max_chunk(tokens, rows);
            tokens -= grants[i];
            rows -= of(i).rows(grants[i]);
        }
        grants[0] += oldest.max_chunk(tokens, rows).min(oldest.remaining() - grants[0]);
        grants
    }

    /// Tokens of a running sequence that have no slot yet.
    fn unallocated(&self, id: SeqId, blocks: &Blocks) -> usize {
        self.sequences[&id].tokens.len() - blocks.len(id).unwrap_or(0)
    }

    fn schedule_chunk(&mut self, blocks: &mut Blocks, id: SeqId, tokens: usize, step: &mut Step) {
        let copy = blocks.reserve(id, tokens).expect("the caller counted the free blocks");
        let s = &self.sequences[&id];
        let range = s.computed..s.computed + tokens;
        step.copies.extend(copy);
        step.chunks.push(ScheduledChunk { sequence: id, sample: range.end == s.tokens.len(), scored: s.scored, range });
    }

    /// Preempts the newest sequence: it frees its blocks and waits at the head of the queue.
    fn preempt(&mut self, blocks: &mut Blocks, step: &mut Step) {
        let Some(id) = self.running.pop() else { return };
        blocks.free(id);
        self.sequences.entry(id).and_modify(|s| s.computed = 0);
        self.waiting.push_front(id);
        step.preempted.push(id);
    }
}

#[cfg(test)]
#[path = "decode_tests.rs"]
mod tests;

#[cfg(test)]
#[path = "decode_simulation.rs"]
mod simulation;
