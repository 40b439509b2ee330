//! Work items of the Metal kernel: each is a block of rows of a sequence, over some of its keys. A
//! row is a query of one head; the heads that share a KV head (GQA) are rows of the same blocks.
#![cfg_attr(not(metal), allow(dead_code, reason = "other devices use only the memory estimate"))]

use super::{Attention, Bias, Keys};
use crate::replay::OpScope;

/// Head sizes that the kernels have, padded in threadgroup memory.
pub(super) const SIZES: [usize; 5] = [32, 64, 96, 128, 256];

pub(super) const LARGEST: usize = SIZES[4];

/// Rows of a large block, and of a small one, whose SIMD-groups take different keys.
const LARGE_ROWS: usize = 32;
const SMALL_ROWS: usize = 8;

/// Threadgroups that keep a GPU busy: with fewer, the keys of a block are split.
const BUSY_GROUPS: usize = 128;

/// Keys below which a block is not split; parts are multiples of `KEYS`.
const SPLIT_FROM: usize = 128;
const KEYS: usize = 32;

/// Slot of an item that has all keys of its rows.
const NO_SLOT: u32 = u32::MAX;

/// Numbers per item, and per join.
pub(super) const ITEM: usize = 8;
pub(super) const JOIN: usize = 5;

#[derive(Debug, Default)]
pub(super) struct Plan {
    /// Items of blocks of 32 rows, and of 8.
    pub(super) large: Vec<u32>,
    pub(super) small: Vec<u32>,
    /// Blocks whose keys are split.
    pub(super) joins: Vec<u32>,
    /// Rows of all parts of split blocks; each has a result in f32, its largest score and its sum.
    pub(super) slots: usize,
    /// Page tables, concatenated.
    pub(super) pages: Vec<u32>,
    /// Query positions, and keys of the longest sequence.
    pub(super) positions: usize,
    pub(super) keys: usize,
}

/// Rows of a sequence, and the keys that some of them attend to.
struct Block {
    sequence: usize,
    small: bool,
    rows: std::ops::Range<usize>,
    keys: std::ops::Range<usize>,
}

impl Plan {
    /// For `kv_heads` KV heads, each shared by `group` heads of queries.
    pub(super) fn of(options: &Attention, scope: OpScope, kv_heads: usize, group: usize) -> Plan {
        let mut plan = Plan { keys: options.keys.longest(scope), ..Plan::default() };
        let mut tables = Vec::with_capacity(options.queries.count());
        let mut blocks = Vec::new();
        for (sequence, queries) in options.queries.lengths(scope).iter().enumerate() {
            let (rows, keys) = (queries.len() * group, options.keys.len(scope, sequence));
            let offset = options.mask.query_offset(queries.len(), keys);
            plan.positions = plan.positions.max(offset + queries.len());
            tables.push(plan.pages.len());
            if let Keys::Paged(pages) = &options.keys {
                plan.pages.extend(pages.tables(scope).table(sequence));
            }
            // With disentangled positions all SIMD-groups of a threadgroup share the keys of a
            // block.
            let small = rows <= SMALL_ROWS && !matches!(options.bias, Bias::Disentangled(_));
            let step = if small { SMALL_ROWS } else { LARGE_ROWS };
            blocks.extend((0..rows).step_by(step).map(|first| {
                let rows = first..(first + step).min(rows);
                let visible_keys = |row: usize| options.mask.range(offset + row / group, keys);
                let keys = visible_keys(rows.start).start..visible_keys(rows.end - 1).end;
                Block { sequence, small, rows, keys }
            }));
        }
        let splits = BUSY_GROUPS.div_ceil((blocks.len() * kv_heads).max(1));
        for Block { sequence, small, rows, keys } in blocks {
            let queries = options.queries.lengths(scope).range(sequence);
            let offset = options.mask.query_offset(queries.len(), options.keys.len(scope, sequence));
            let step =
                keys.len().div_ceil(keys.len().div_ceil(SPLIT_FROM).clamp(1, splits)).next_multiple_of(KEYS).max(KEYS);
            let parts = keys.len().div_ceil(step).max(1);
            let base = match &options.keys {
                Keys::Packed(segments) => segments.lengths(scope).range(sequence).start,
                Keys::Paged(_) => tables[sequence],
            };
            let block = [queries.start, rows.start, rows.len()].map(|n| n as u32);
            if parts > 1 {
                plan.joins.extend(block);
                plan.joins.extend([plan.slots as u32, parts as u32]);
            }
            for part in 0..parts {
                let start = keys.start + part * step;
                let end = (start + step).min(keys.end);
                let slot = if parts > 1 { plan.slots as u32 } else { NO_SLOT };
                let items = if small { &mut plan.small } else { &mut plan.large };
                items.extend(block);
                items.extend([offset, start, end, base].map(|n| n as u32));
                items.push(slot);
                plan.slots += if parts > 1 { kv_heads * rows.len() } else { 0 };
            }
        }
        plan
    }

    /// Bytes that the kernel takes besides its result: partial results and lists.
    pub(super) fn bytes(&self, bias: &Bias, heads: usize, size: usize) -> usize {
        let distances = match bias {
            Bias::None => 0,
            Bias::Alibi(_) => heads,
            Bias::Buckets { .. } => heads * (self.positions + self.keys),
            Bias::Disentangled(_) => self.positions + self.keys,
        };
        let lists = self.large.len() + self.small.len() + self.joins.len() + self.pages.len();
        4 * (self.parts(size) + lists + distances)
    }

    /// Floats of the partial results.
    pub(super) fn parts(&self, size: usize) -> usize {
        self.slots * (size + 2)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{Segments, attention::Mask, replay::op_scope};

    /// Items cover every key that a row attends to, and parts of a split block have a join.
    #[test]
    fn items_cover_every_key_once() {
        let lengths = [300, 1, 40, 5];
        let segments = Segments::new(&lengths).unwrap();
        for mask in [Mask::All, Mask::Causal, Mask::CausalWindow(200), Mask::Window(20)] {
            let options = Attention { mask, ..Attention::full(&segments, 1.0) };
            for group in [1, 3] {
                let plan = Plan::of(&options, op_scope(), 1, group);
                let items: Vec<&[u32]> = plan.small.chunks(ITEM).chain(plan.large.chunks(ITEM)).collect();
                for (sequence, range) in segments.observe().iter().enumerate() {
                    let covering = items.iter().filter(|item| item[0] as usize == range.start);
                    for row in 0..lengths[sequence] * group {
                        let covering =
                            covering.clone().filter(|item| (item[1]..item[1] + item[2]).contains(&(row as u32)));
                        let keys: Vec<u32> = covering.flat_map(|item| item[4]..item[5]).collect();
                        let visible = options.mask.range(row / group, lengths[sequence]);
                        assert!(keys.windows(2).all(|w| w[1] == w[0] + 1), "{mask:?}: {keys:?}");
                        let covered = keys[0] as usize..keys[keys.len() - 1] as usize + 1;
                        assert!(
                            covered.start <= visible.start && covered.end >= visible.end,
                            "{mask:?}: {visible:?} of {covered:?}"
                        );
                    }
                }
                let split = items.iter().filter(|item| item[7] != NO_SLOT);
                assert_eq!(split.clone().map(|item| item[2] as usize).sum::<usize>(), plan.slots, "{mask:?}");
                let joined = plan.joins.chunks(JOIN).map(|join| join[4] as usize).sum::<usize>();
                assert_eq!(split.count(), joined, "{mask:?}");
            }
        }
    }
}
