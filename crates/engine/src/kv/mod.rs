//! The paged KV cache (PagedAttention: Kwon et al. 2023): which sequence owns which block.

mod blocks;
mod free_list;

pub(crate) use blocks::{Blocks, SeqId, Stats};
