//! What a language model is busy with.

use crate::kv::{Blocks, Stats};
use crate::schedule::Scheduler;
use std::sync::atomic::{AtomicUsize, Ordering::Relaxed};
use std::sync::{Mutex, PoisonError};

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

/// The same where any thread can look at it: written once a step by the one that runs the model.
#[derive(Default)]
pub(super) struct Board {
    last: Mutex<Activity>,
    /// Requests that the thread has not seen yet.
    unseen: AtomicUsize,
}

impl Board {
    pub(super) fn read(&self) -> Activity {
        let last = *self.last.lock().unwrap_or_else(PoisonError::into_inner);
        Activity { waiting: last.waiting + self.unseen.load(Relaxed), ..last }
    }

    pub(super) fn handed_over(&self) {
        self.unseen.fetch_add(1, Relaxed);
    }

    pub(super) fn taken(&self) {
        self.unseen.fetch_sub(1, Relaxed);
    }

    fn write(&self, activity: Activity) {
        *self.last.lock().unwrap_or_else(PoisonError::into_inner) = activity;
    }
}

/// Counts since loading, kept by the thread that runs the model.
#[derive(Default)]
pub(super) struct Tally {
    pub(super) preemptions: u64,
    pub(super) prompt_tokens: u64,
    pub(super) generated_tokens: u64,
    /// Of books that were given up.
    past: Stats,
}

impl Tally {
    /// Puts down how things stand.
    pub(super) fn report(&self, board: &Board, scheduler: &Scheduler, blocks: &Blocks) {
        let (all, free, stats) = (blocks.count(), blocks.free_blocks(), blocks.stats());
        board.write(Activity {
            running: scheduler.running(),
            waiting: scheduler.waiting(),
            cache_used: (all - free) as f32 / all.max(1) as f32,
            preemptions: self.preemptions,
            prefix_queries: self.past.asked + stats.asked,
            prefix_hits: self.past.hit + stats.hit,
            prompt_tokens: self.prompt_tokens,
            generated_tokens: self.generated_tokens,
        });
    }

    /// Keeps the counts of books that are closed.
    pub(super) fn close(&mut self, blocks: &Blocks) {
        let stats = blocks.stats();
        self.past.asked += stats.asked;
        self.past.hit += stats.hit;
    }
}
