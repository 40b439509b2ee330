//! Which slot of the cache holds which token. Pure: numbers in, numbers out.
//!
//! The cache is a row of blocks of `size` slots; a slot has room for the keys and values of one token in every layer. Each
//! sequence has a table of blocks: position p of it lies in slot `table[p / size] · size + p mod size`.
//!
//! Blocks are shared in two ways. *By descent*: a fork has its parent's blocks, the last, partly filled one included, and
//! whoever writes first into such a block copies it. *By content*: a full block whose keys and values were computed is known
//! by the text up to its end, and a later prompt that begins with that text begins with that block. Full blocks are never
//! written again, so sharing them needs no copy.
//!
//! The text up to a block's end is not kept with every block: a block is known by its own tokens and the number that the text
//! before it got when it became known. Both are compared whole, not only their hash, so no collision can mix two texts.
//!
//! A block that nobody has any more keeps its content until its place is needed, the longest unused first. Whoever has a
//! block has all before it, and tables are given back from their end: so a text is never forgotten before its continuations,
//! and none of these lies in the cache out of reach.

use super::free_list::FreeList;
use std::collections::HashMap;
#[cfg(test)]
use std::ops::Range;
use std::sync::Arc;

/// A sequence's name, the caller's choice.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub(crate) struct SeqId(pub(crate) u64);

/// There are fewer free blocks than are needed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct NeedBlocks {
    /// Blocks needed now.
    pub(crate) need: usize,
    /// Blocks there are.
    pub(crate) free: usize,
}

/// Counts since the beginning.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Stats {
    /// Tokens of prompts that were looked up and then given slots.
    pub(crate) asked: u64,
    /// Those of them that were in the cache.
    pub(crate) hit: u64,
    /// Known blocks whose place was needed.
    pub(crate) evicted: u64,
}

/// The bookkeeping of a cache. Every operation costs O(1) a block touched.
pub(crate) struct Blocks {
    size: usize,
    blocks: Vec<Block>,
    /// Blocks that nobody has: first those that hold nothing of use, then known ones, longest unused first.
    free: FreeList,
    known: HashMap<Key, u32>,
    tables: HashMap<SeqId, Table>,
    /// The number of the newest known text.
    texts: u64,
    stats: Stats,
}

#[derive(Default)]
struct Block {
    /// Tables that it is in.
    owners: u32,
    /// The text up to its end, if it is known by it.
    text: Option<Text>,
}

struct Text {
    number: u64,
    key: Key,
}

/// The number of the text before (low half, high half), then the block's own tokens.
type Key = Arc<[u32]>;

/// The number of the empty text.
const EMPTY: u64 = 0;

#[derive(Clone, Default)]
struct Table {
    blocks: Vec<u32>,
    /// Positions that have a slot; fills all blocks but perhaps the last.
    len: usize,
    /// The first so many blocks are known ones.
    known: usize,
    /// The number of the text up to the end of the last known one.
    text: u64,
    /// Tokens that were looked up and are not yet in the counts.
    asked: usize,
}

impl Blocks {
    /// A cache of `count` blocks of `size` tokens.
    pub(crate) fn new(count: u32, size: u32) -> Result<Blocks, String> {
        if count == 0 || size == 0 {
            return Err(format!("a cache of {count} blocks of {size} tokens holds nothing"));
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
            known: HashMap::new(),
            tables: HashMap::new(),
            texts: EMPTY,
            stats: Stats::default(),
        })
    }

    /// Tokens of a block.
    pub(crate) fn size(&self) -> usize {
        self.size
    }

    /// Blocks there are.
    pub(crate) fn count(&self) -> usize {
        self.blocks.len()
    }

    /// Blocks that nobody has.
    pub(crate) fn free_blocks(&self) -> usize {
        self.free.len()
    }

    /// Counts since the beginning.
    pub(crate) fn stats(&self) -> Stats {
        self.stats
    }

    /// Blocks of the sequence, in the order of its text.
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

    /// Begins the sequence's table with what the cache knows of `tokens`, and says how many of them that is.
    ///
    /// Never all of them: the model must see at least the last, or there were no logits to go on from. The others have no
    /// slots yet, see [`Blocks::reserve`].
    pub(crate) fn allocate(&mut self, sequence: SeqId, tokens: &[u32]) -> usize {
        self.free(sequence);
        let mut table = Table { text: EMPTY, asked: tokens.len(), ..Table::default() };
        let mut key = Vec::with_capacity(self.size + 2);
        let may = tokens.len().saturating_sub(1) / self.size;
        for own in tokens.chunks_exact(self.size).take(may) {
            spell(&mut key, table.text, own);
            let Some((&block, text)) = self.known.get(&key[..]).and_then(|b| Some((b, self.number(*b)?))) else {
                break;
            };
            self.acquire(block);
            table.blocks.push(block);
            table.text = text;
        }
        table.known = table.blocks.len();
        table.len = table.known * self.size;
        let hit = table.len;
        self.tables.insert(sequence, table);
        hit
    }

    /// Blocks that slots for `more` positions would take.
    pub(crate) fn need(&self, sequence: SeqId, more: usize) -> usize {
        let table = &self.tables[&sequence];
        let fresh = (table.len + more).div_ceil(self.size) - table.blocks.len();
        fresh + usize::from(more > 0 && self.shared_end(table).is_some())
    }

    /// How many more positions `blocks` free blocks would give slots to.
    pub(crate) fn room(&self, sequence: SeqId, blocks: usize) -> usize {
        let table = &self.tables[&sequence];
        let slack = table.blocks.len() * self.size - table.len;
        match self.shared_end(table) {
            Some(_) if blocks == 0 => 0,
            Some(_) => slack + (blocks - 1) * self.size,
            None => slack + blocks * self.size,
        }
    }

    /// Gives slots to `more` positions, or to none if blocks are lacking. A copy `(from, to)` of a whole block must be carried
    /// out before anything is written to the new slots; of several, in the order in which they were given.
    pub(crate) fn reserve(&mut self, sequence: SeqId, more: usize) -> Result<Option<(u32, u32)>, NeedBlocks> {
        let (need, free) = (self.need(sequence, more), self.free_blocks());
        if need > free {
            return Err(NeedBlocks { need, free });
        }
        let mut table = self.tables.remove(&sequence).expect("need() found it");
        let mut copy = None;
        if more > 0
            && let Some(from) = self.shared_end(&table)
        {
            let to = self.take();
            self.release(from);
            *table.blocks.last_mut().expect("it has an end") = to;
            copy = Some((from, to));
        }
        // Only now: a scheduler may ask again and again before it lets a sequence in.
        if table.asked > 0 {
            self.stats.asked += std::mem::take(&mut table.asked) as u64;
            self.stats.hit += table.len as u64;
        }
        table.len += more;
        while table.blocks.len() * self.size < table.len {
            table.blocks.push(self.take());
        }
        self.tables.insert(sequence, table);
        Ok(copy)
    }

    /// Tells that the keys and values of `tokens`, all of the sequence from its beginning, are in their slots: full blocks of
    /// them become known. One whose text is known already is given back and the known one takes its place, so the sequence
    /// needs less memory and its table holds the text that its next blocks are known by.
    pub(crate) fn computed(&mut self, sequence: SeqId, tokens: &[u32]) {
        let Some(mut table) = self.tables.remove(&sequence) else { return };
        debug_assert!(tokens.len() <= table.len);
        let mut key = Vec::with_capacity(self.size + 2);
        for own in tokens.chunks_exact(self.size).skip(table.known) {
            spell(&mut key, table.text, own);
            let mine = table.blocks[table.known];
            match self.known.get(&key[..]).and_then(|b| Some((*b, self.number(*b)?))) {
                Some((block, text)) => {
                    if block != mine {
                        self.acquire(block);
                        self.release(mine);
                        table.blocks[table.known] = block;
                    }
                    table.text = text;
                }
                None => {
                    let key: Key = key.as_slice().into();
                    self.texts += 1;
                    table.text = self.texts;
                    self.known.insert(Arc::clone(&key), mine);
                    self.blocks[mine as usize].text = Some(Text { number: self.texts, key });
                }
            }
            table.known += 1;
        }
        self.tables.insert(sequence, table);
    }

    /// Gives `child` all that `parent` has, without a copy.
    pub(crate) fn fork(&mut self, parent: SeqId, child: SeqId) {
        self.free(child);
        let table = self.tables[&parent].clone();
        table.blocks.iter().for_each(|b| self.acquire(*b));
        self.tables.insert(child, table);
    }

    /// Gives back all that the sequence has. Nothing happens if that is nothing.
    pub(crate) fn free(&mut self, sequence: SeqId) {
        let Some(table) = self.tables.remove(&sequence) else { return };
        table.blocks.iter().rev().for_each(|b| self.release(*b));
    }

    /// The last block of a table, if the next position lies in it and others have it too.
    fn shared_end(&self, table: &Table) -> Option<u32> {
        let last = *table.blocks.last()?;
        (!table.len.is_multiple_of(self.size) && self.blocks[last as usize].owners > 1).then_some(last)
    }

    fn number(&self, block: u32) -> Option<u64> {
        self.blocks[block as usize].text.as_ref().map(|t| t.number)
    }

    /// A free block, for new content. There must be one.
    fn take(&mut self) -> u32 {
        let i = self.free.pop_front().expect("the caller counted the free blocks");
        let block = &mut self.blocks[i as usize];
        block.owners = 1;
        if let Some(text) = block.text.take() {
            self.known.remove(&text.key);
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
        match (block.owners, &block.text) {
            (0, Some(_)) => self.free.push_back(i),
            (0, None) => self.free.push_front(i),
            _ => {}
        }
    }
}

fn spell(key: &mut Vec<u32>, before: u64, own: &[u32]) {
    key.clear();
    key.extend([before as u32, (before >> 32) as u32]);
    key.extend(own);
}

#[cfg(test)]
#[path = "tests.rs"]
mod tests;
