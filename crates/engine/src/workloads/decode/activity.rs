//! Statistics of a language model.

use crate::kv::{Blocks, Stats};
use crate::schedule::Scheduler;
use sconce_ops::KvCacheFormat;

/// What a language model is doing, and what it has done since it was loaded.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct Activity {
    /// Running sequences, in prefill or decode.
    pub running: usize,
    /// Waiting requests and preempted sequences.
    pub waiting: usize,
    /// The part of the KV cache that sequences hold, from 0 to 1, without prefix cache blocks that
    /// can be evicted.
    pub cache_used: f32,
    /// How often a sequence was preempted, to be computed again.
    pub preemptions: u64,
    /// Prompt tokens that were looked up in the prefix cache.
    pub prefix_queries: u64,
    /// Those of them that were found.
    pub prefix_hits: u64,
    /// Prompt tokens of requests that have started.
    pub prompt_tokens: u64,
    /// Tokens that were sampled.
    pub generated_tokens: u64,
}

/// The paged KV cache of a language model, as it was planned and allocated. Fixed while the model
/// is loaded.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct CacheConfig {
    /// Tokens per block.
    pub block_size: usize,
    /// Blocks, on whichever device the model runs.
    pub blocks: usize,
    /// Format of keys and values.
    pub format: KvCacheFormat,
}

/// Counts since loading.
#[derive(Default)]
pub(super) struct Counts {
    pub(super) preemptions: u64,
    pub(super) prompt_tokens: u64,
    pub(super) generated_tokens: u64,
    /// Prefix cache counts of block tables that were replaced.
    past: Stats,
}

impl Counts {
    /// The current activity.
    pub(super) fn activity(&self, scheduler: &Scheduler, blocks: &Blocks) -> Activity {
        let (all, free, stats) = (blocks.count(), blocks.free_blocks(), blocks.stats());
        Activity {
            running: scheduler.running(),
            waiting: scheduler.waiting(),
            cache_used: (all - free) as f32 / all.max(1) as f32,
            preemptions: self.preemptions,
            prefix_queries: self.past.queried + stats.queried,
            prefix_hits: self.past.hit + stats.hit,
            prompt_tokens: self.prompt_tokens,
            generated_tokens: self.generated_tokens,
        }
    }

    /// Keeps the counts of block tables that are about to be replaced.
    pub(super) fn close(&mut self, blocks: &Blocks) {
        let stats = blocks.stats();
        self.past.queried += stats.queried;
        self.past.hit += stats.hit;
    }
}
