//! The cache of keys and values: who owns which part of it.

mod blocks;
mod free_list;

pub(crate) use blocks::{Blocks, SeqId, Stats};
