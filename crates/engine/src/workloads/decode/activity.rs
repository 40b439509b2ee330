//! What a language model is busy with.

use crate::kv::{Blocks, Stats};
use crate::schedule::Scheduler;

/// What a language model is busy with, and what it has done since it was loaded.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct Activity {
    /// Sequences that run: prompts that are read and answers that are written.
    pub running: usize,
    /// Requests that wait for room, and sequences that had to give theirs back.
    pub waiting: usize,
    /// The part of the cache that sequences hold, from 0 to 1. What is kept of earlier ones and can go at any time is not counted.
    pub cache_used: f32,
    /// How often a sequence had to give its room back, to be computed again.
    pub preemptions: u64,
    /// Tokens of prompts that were looked up in the cache.
    pub prefix_queries: u64,
    /// Those of them that were there.
    pub prefix_hits: u64,
    /// Tokens of prompts that were begun.
    pub prompt_tokens: u64,
    /// Tokens that were chosen.
    pub generated_tokens: u64,
}

/// Counts since loading.
#[derive(Default)]
pub(super) struct Counts {
    pub(super) preemptions: u64,
    pub(super) prompt_tokens: u64,
    pub(super) generated_tokens: u64,
    /// Of blocks that were given up.
    past: Stats,
}

impl Counts {
    /// What the model is busy with now.
    pub(super) fn activity(&self, scheduler: &Scheduler, blocks: &Blocks) -> Activity {
        let (all, free, stats) = (blocks.count(), blocks.free_blocks(), blocks.stats());
        Activity {
            running: scheduler.running(),
            waiting: scheduler.waiting(),
            cache_used: (all - free) as f32 / all.max(1) as f32,
            preemptions: self.preemptions,
            prefix_queries: self.past.asked + stats.asked,
            prefix_hits: self.past.hit + stats.hit,
            prompt_tokens: self.prompt_tokens,
            generated_tokens: self.generated_tokens,
        }
    }

    /// Keeps the counts of blocks that are given up.
    pub(super) fn close(&mut self, blocks: &Blocks) {
        let stats = blocks.stats();
        self.past.asked += stats.asked;
        self.past.hit += stats.hit;
    }
}
