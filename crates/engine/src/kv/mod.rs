//! The paged KV cache: which sequence owns which block.

mod blocks;
mod free_list;

pub(crate) use blocks::{Blocks, SeqId, Stats};
