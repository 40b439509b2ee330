//! The block tables of a paged KV cache, with a prefix cache: which slot holds which token. Pure:
//! numbers in, numbers out.
//!
//! The cache is an array of blocks of `size` slots; a slot holds the keys and values of one token
//! in every layer. Each sequence has a block table: its position p is in slot `table[p / size] ·
//! size + p mod size`.
//!
//! Blocks are shared in two ways. *Forks*: a fork has its parent's blocks, the last, partly filled
//! one included, and copies that block on its first write. *Prefix cache*: a full block whose keys
//! and values are computed is cached under the text up to its end, and a later prompt with that
//! prefix reuses the block. Full blocks are never written again, so sharing them needs no copy.
//!
//! A block does not store the text up to its end. Its key is its own tokens and the id that the
//! prefix before it got when it was cached. Keys are compared in full, not only by hash, so no
//! collision can mix two texts.
//!
//! A block without owners keeps its content until it is needed; the least recently used is evicted
//! first. An owner of a block owns all blocks before it, and tables are freed from their end, so a
//! prefix is never evicted before its continuations, and no cached block becomes unreachable.

use super::free_list::FreeList;
use std::collections::HashMap;
#[cfg(test)]
use std::ops::Range;
use std::sync::Arc;

/// A sequence's id, chosen by the caller.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub(crate) struct SeqId(pub(crate) u64);

/// There are fewer free blocks than needed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct OutOfBlocks {
    /// Blocks needed.
    pub(crate) need: usize,
    /// Free blocks.
    pub(crate) free: usize,
}

/// Counts since creation.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Stats {
    /// Prompt tokens that were looked up in the prefix cache and later got slots.
    pub(crate) queried: u64,
    /// Those of them that were found.
    pub(crate) hit: u64,
    /// Cached blocks that were evicted.
    pub(crate) evicted: u64,
}

/// The block tables and the prefix cache. Every operation costs O(1) per block touched.
pub(crate) struct Blocks {
    size: usize,
    blocks: Vec<Block>,
    /// Blocks without owners: first those that are not cached, then cached ones, least recently
    /// used first.
    free: FreeList,
    cached: HashMap<Key, u32>,
    tables: HashMap<SeqId, Table>,
    /// The id of the newest cached prefix.
    last_prefix: u64,
    stats: Stats,
}

#[derive(Default)]
struct Block {
    /// Tables that contain the block.
    owners: u32,
    /// The prefix that ends with this block, if it is cached.
    prefix: Option<Prefix>,
}

struct Prefix {
    id: u64,
    key: Key,
}

/// The id of the prefix before (low half, high half), then the block's own tokens.
type Key = Arc<[u32]>;

/// The id of the empty prefix.
const EMPTY_PREFIX: u64 = 0;

#[derive(Clone, Default)]
struct Table {
    blocks: Vec<u32>,
    /// Positions that have a slot. They fill all blocks except perhaps the last.
    len: usize,
    /// How many blocks, from the first, are cached.
    cached: usize,
    /// The id of the prefix up to the end of the last cached block.
    prefix: u64,
    /// Tokens that were looked up and are not yet in the counts.
    queried: usize,
}

impl Blocks {
    /// A cache of `count` blocks of `size` tokens.
    pub(crate) fn new(count: u32, size: u32) -> Result<Blocks, String> {
        if count == 0 || size == 0 {
            return Err(format!("a KV cache of {count} blocks of {size} tokens is empty"));
        }
        if count.checked_mul(size).is_none() {
            return Err(format!(
                "{count} blocks of {size} tokens are more slots than 32 bits can number; use fewer blocks"
            ));
        }
        Ok(Blocks {
            size: size as usize,
            blocks: (0..count).map(|_| Block::default()).collect(),
            free: FreeList::full(count),
            cached: HashMap::new(),
            tables: HashMap::new(),
            last_prefix: EMPTY_PREFIX,
            stats: Stats::default(),
        })
    }

    /// Tokens per block.
    pub(crate) fn size(&self) -> usize {
        self.size
    }

    /// Number of blocks.
    pub(crate) fn count(&self) -> usize {
        self.blocks.len()
    }

    /// Number of blocks without owners.
    pub(crate) fn free_blocks(&self) -> usize {
        self.free.len()
    }

    /// Counts since creation.
    pub(crate) fn stats(&self) -> Stats {
        self.stats
    }

    /// The block table of the sequence.
    pub(crate) fn table(&self, sequence: SeqId) -> &[u32] {
        &self.tables[&sequence].blocks
    }

    /// Positions of the sequence that have a slot; `None` if it has no table.
    pub(crate) fn len(&self, sequence: SeqId) -> Option<usize> {
        self.tables.get(&sequence).map(|t| t.len)
    }

    /// Slots of positions of the sequence.
    #[cfg(test)]
    pub(crate) fn slots(&self, sequence: SeqId, positions: Range<usize>) -> impl Iterator<Item = u32> + '_ {
        let table = &self.tables[&sequence];
        debug_assert!(positions.end <= table.len, "{positions:?} of {}", table.len);
        positions.map(|p| table.blocks[p / self.size] * self.size as u32 + (p % self.size) as u32)
    }

    /// Begins the sequence's table with the cached prefix of `tokens`, and returns its length.
    ///
    /// The hit never covers all tokens: the model must compute at least the last, or there would be
    /// no logits to sample from. The other tokens have no slots yet, see [`Blocks::reserve`].
    pub(crate) fn allocate(&mut self, sequence: SeqId, tokens: &[u32]) -> usize {
        self.free(sequence);
        let mut table = Table { prefix: EMPTY_PREFIX, queried: tokens.len(), ..Table::default() };
        for (block, prefix) in self.find(tokens) {
            self.acquire(block);
            table.blocks.push(block);
            table.prefix = prefix;
        }
        table.cached = table.blocks.len();
        table.len = table.cached * self.size;
        let hit = table.len;
        self.tables.insert(sequence, table);
        hit
    }

    /// How many of `tokens` [`Blocks::allocate`] would find.
    pub(crate) fn cached_len(&self, tokens: &[u32]) -> usize {
        self.find(tokens).len() * self.size
    }

    /// Gives slots to a prefix whose keys and values were stored elsewhere, except to its first
    /// `cached` tokens, whole blocks that are in the prefix cache. The caller writes the others, marks
    /// them as computed and frees the sequence: then the prefix is cached. This is not counted as a
    /// lookup.
    pub(crate) fn begin_restore(&mut self, sequence: SeqId, tokens: &[u32], cached: usize) -> Result<(), OutOfBlocks> {
        // A lookup leaves out the last token.
        let hit = self.allocate(sequence, tokens.get(..=cached).unwrap_or(tokens));
        self.tables.entry(sequence).and_modify(|table| table.queried = 0);
        // The hit ends with a full block, so nothing has to be copied.
        self.reserve(sequence, tokens.len() - hit).map(drop).inspect_err(|_| self.free(sequence))
    }

    /// The cached blocks of a prefix of `tokens` that leaves out at least the last token, each with
    /// the id of the prefix up to its end.
    fn find(&self, tokens: &[u32]) -> Vec<(u32, u64)> {
        let mut found = Vec::new();
        let mut before = EMPTY_PREFIX;
        let mut key = Vec::with_capacity(self.size + 2);
        let max_blocks = tokens.len().saturating_sub(1) / self.size;
        for block_tokens in tokens.chunks_exact(self.size).take(max_blocks) {
            write_key(&mut key, before, block_tokens);
            let Some((block, prefix)) = self.cached.get(&key[..]).and_then(|b| Some((*b, self.prefix_id(*b)?))) else {
                break;
            };
            found.push((block, prefix));
            before = prefix;
        }
        found
    }

    /// Blocks needed for `more` positions.
    pub(crate) fn need(&self, sequence: SeqId, more: usize) -> usize {
        let table = &self.tables[&sequence];
        let fresh = (table.len + more).div_ceil(self.size) - table.blocks.len();
        fresh + usize::from(more > 0 && self.shared_last_block(table).is_some())
    }

    /// How many more positions `blocks` free blocks would hold.
    pub(crate) fn capacity(&self, sequence: SeqId, blocks: usize) -> usize {
        let table = &self.tables[&sequence];
        let slack = table.blocks.len() * self.size - table.len;
        match self.shared_last_block(table) {
            Some(_) if blocks == 0 => 0,
            Some(_) => slack + (blocks - 1) * self.size,
            None => slack + blocks * self.size,
        }
    }

    /// Gives slots to `more` positions, or fails if there are too few free blocks. If it returns a
    /// copy `(from, to)`, the caller must copy that block before it writes to the new slots, and
    /// several copies in the order in which they were returned.
    pub(crate) fn reserve(&mut self, sequence: SeqId, more: usize) -> Result<Option<(u32, u32)>, OutOfBlocks> {
        let (need, free) = (self.need(sequence, more), self.free_blocks());
        if need > free {
            return Err(OutOfBlocks { need, free });
        }
        let mut table = self.tables.remove(&sequence).expect("need() found it");
        let mut copy = None;
        if more > 0
            && let Some(from) = self.shared_last_block(&table)
        {
            let to = self.take_free();
            self.release(from);
            *table.blocks.last_mut().expect("it has an end") = to;
            copy = Some((from, to));
        }
        // Count only now: a scheduler may look up a prompt several times before it admits it.
        if table.queried > 0 {
            self.stats.queried += std::mem::take(&mut table.queried) as u64;
            self.stats.hit += table.len as u64;
        }
        table.len += more;
        while table.blocks.len() * self.size < table.len {
            table.blocks.push(self.take_free());
        }
        self.tables.insert(sequence, table);
        Ok(copy)
    }

    /// Records that the keys and values of `tokens`, the sequence from its beginning, are in their
    /// slots, and adds its full blocks to the prefix cache. A block whose prefix is already cached
    /// is freed and replaced by the cached one, which saves memory and gives the prefix id that the
    /// next blocks of the sequence are cached under.
    pub(crate) fn mark_computed(&mut self, sequence: SeqId, tokens: &[u32]) {
        let Some(mut table) = self.tables.remove(&sequence) else { return };
        debug_assert!(tokens.len() <= table.len);
        let mut key = Vec::with_capacity(self.size + 2);
        for block_tokens in tokens.chunks_exact(self.size).skip(table.cached) {
            write_key(&mut key, table.prefix, block_tokens);
            let own_block = table.blocks[table.cached];
            match self.cached.get(&key[..]).and_then(|b| Some((*b, self.prefix_id(*b)?))) {
                Some((block, prefix)) => {
                    if block != own_block {
                        self.acquire(block);
                        self.release(own_block);
                        table.blocks[table.cached] = block;
                    }
                    table.prefix = prefix;
                }
                None => {
                    let key: Key = key.as_slice().into();
                    self.last_prefix += 1;
                    table.prefix = self.last_prefix;
                    self.cached.insert(Arc::clone(&key), own_block);
                    self.blocks[own_block as usize].prefix = Some(Prefix { id: self.last_prefix, key });
                }
            }
            table.cached += 1;
        }
        self.tables.insert(sequence, table);
    }

    /// Shares all blocks of `parent` with `child`, without a copy.
    pub(crate) fn fork(&mut self, parent: SeqId, child: SeqId) {
        self.free(child);
        let table = self.tables[&parent].clone();
        table.blocks.iter().for_each(|b| self.acquire(*b));
        self.tables.insert(child, table);
    }

    /// Frees all blocks of the sequence, if it has any.
    pub(crate) fn free(&mut self, sequence: SeqId) {
        let Some(table) = self.tables.remove(&sequence) else { return };
        table.blocks.iter().rev().for_each(|b| self.release(*b));
    }

    /// The last block of a table, if the next position is in it and other tables share it.
    fn shared_last_block(&self, table: &Table) -> Option<u32> {
        let last = *table.blocks.last()?;
        (!table.len.is_multiple_of(self.size) && self.blocks[last as usize].owners > 1).then_some(last)
    }

    fn prefix_id(&self, block: u32) -> Option<u64> {
        self.blocks[block as usize].prefix.as_ref().map(|t| t.id)
    }

    /// Takes a free block for new content. There must be one.
    fn take_free(&mut self) -> u32 {
        let i = self.free.pop_front().expect("the caller counted the free blocks");
        let block = &mut self.blocks[i as usize];
        block.owners = 1;
        if let Some(prefix) = block.prefix.take() {
            self.cached.remove(&prefix.key);
            self.stats.evicted += 1;
        }
        i
    }

    fn acquire(&mut self, i: u32) {
        let block = &mut self.blocks[i as usize];
        if block.owners == 0 {
            self.free.remove(i);
        }
        block.owners += 1;
    }

    fn release(&mut self, i: u32) {
        let block = &mut self.blocks[i as usize];
        block.owners -= 1;
        match (block.owners, &block.prefix) {
            (0, Some(_)) => self.free.push_back(i),
            (0, None) => self.free.push_front(i),
            _ => {}
        }
    }
}

fn write_key(key: &mut Vec<u32>, before: u64, block_tokens: &[u32]) {
    key.clear();
    key.extend([before as u32, (before >> 32) as u32]);
    key.extend(block_tokens);
}

#[cfg(test)]
#[path = "tests.rs"]
mod tests;
