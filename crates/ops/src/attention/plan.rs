//! What the GPU's kernel is told to do: a list of items, each a block of rows of a sequence over some of its keys. A row is a
//! query of one head; the heads that share keys are rows of the same blocks.
#![cfg_attr(not(metal), allow(dead_code, reason = "elsewhere only the memory is counted"))]

use super::{Attention, Bias, Keys};
use crate::replay::OpScope;

/// Sizes of heads, as they are padded in threadgroup memory.
pub(super) const SIZES: [usize; 5] = [32, 64, 96, 128, 256];

/// The largest of them.
pub(super) const LARGEST: usize = SIZES[4];

/// Rows of a block, and of one that a SIMD-group has alone.
const ROWS: usize = 32;
const FEW: usize = 8;

/// Threadgroups that keep a GPU busy: where there are fewer, the keys of a block are split.
const BUSY: usize = 128;

/// Keys below which a block is not worth splitting, and of which parts are multiples.
const PART: usize = 128;
const KEYS: usize = 32;

/// The slot of an item that has all keys of its rows.
const NO_SLOT: u32 = u32::MAX;

/// The numbers of an item, and of a join.
pub(super) const ITEM: usize = 8;
pub(super) const JOIN: usize = 5;

#[derive(Debug, Default)]
pub(super) struct Plan {
    /// Items of blocks of 32 rows, and of 8.
    pub(super) many: Vec<u32>,
    pub(super) few: Vec<u32>,
    /// Blocks whose keys are split.
    pub(super) joins: Vec<u32>,
    /// Rows, of each part of each of those: a result in f32, its largest score and its sum.
    pub(super) slots: usize,
    /// Page tables, one after another.
    pub(super) pages: Vec<u32>,
    /// The places of queries, at most, and the most keys of a sequence.
    pub(super) places: usize,
    pub(super) keys: usize,
}

/// Rows of a sequence, and the keys that some of them see.
struct Block {
    sequence: usize,
    few: bool,
    rows: std::ops::Range<usize>,
    keys: std::ops::Range<usize>,
}

impl Plan {
    /// For `shared` heads of keys, each for `group` heads of queries.
    pub(super) fn of(how: &Attention, scope: OpScope, shared: usize, group: usize) -> Plan {
        let mut plan = Plan { keys: how.keys.longest(scope), ..Plan::default() };
        let mut tables = Vec::with_capacity(how.queries.count());
        let mut blocks = Vec::new();
        for (sequence, queries) in how.queries.lengths(scope).iter().enumerate() {
            let (rows, keys) = (queries.len() * group, how.keys.len(scope, sequence));
            let place = how.sees.first(queries.len(), keys);
            plan.places = plan.places.max(place + queries.len());
            tables.push(plan.pages.len());
            if let Keys::Paged(pages) = &how.keys {
                plan.pages.extend(pages.tables(scope).table(sequence));
            }
            // Positions meet the keys of a block by all of its SIMD-groups.
            let few = rows <= FEW && !matches!(how.bias, Bias::Disentangled(_));
            let step = if few { FEW } else { ROWS };
            blocks.extend((0..rows).step_by(step).map(|first| {
                let rows = first..(first + step).min(rows);
                let sees = |row: usize| how.sees.range(place + row / group, keys);
                let keys = sees(rows.start).start..sees(rows.end - 1).end;
                Block { sequence, few, rows, keys }
            }));
        }
        let wanted = BUSY.div_ceil((blocks.len() * shared).max(1));
        for Block { sequence, few, rows, keys } in blocks {
            let queries = how.queries.lengths(scope).range(sequence);
            let place = how.sees.first(queries.len(), how.keys.len(scope, sequence));
            let step = keys.len().div_ceil(keys.len().div_ceil(PART).clamp(1, wanted)).next_multiple_of(KEYS).max(KEYS);
            let parts = keys.len().div_ceil(step).max(1);
            let base = match &how.keys {
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
                let items = if few { &mut plan.few } else { &mut plan.many };
                items.extend(block);
                items.extend([place, start, end, base].map(|n| n as u32));
                items.push(slot);
                plan.slots += if parts > 1 { shared * rows.len() } else { 0 };
            }
        }
        plan
    }

    /// Bytes that the kernel takes beside its result: parts, and lists.
    pub(super) fn bytes(&self, bias: &Bias, heads: usize, size: usize) -> usize {
        let distances = match bias {
            Bias::None => 0,
            Bias::Alibi(_) => heads,
            Bias::Buckets { .. } => heads * (self.places + self.keys),
            Bias::Disentangled(_) => self.places + self.keys,
        };
        let lists = self.many.len() + self.few.len() + self.joins.len() + self.pages.len();
        4 * (self.parts(size) + lists + distances)
    }

    /// Floats of the parts.
    pub(super) fn parts(&self, size: usize) -> usize {
        self.slots * (size + 2)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{Segments, attention::Mask, replay::op_scope};

    /// Every row has an item for every key that it sees, and those of one block are joined where they are several.
    #[test]
    fn items_cover_every_key_once() {
        let lengths = [300, 1, 40, 5];
        let segments = Segments::new(&lengths).unwrap();
        for sees in [Mask::All, Mask::Causal, Mask::Recent(200), Mask::Window(20)] {
            let how = Attention { sees, ..Attention::over(&segments, 1.0) };
            for group in [1, 3] {
                let plan = Plan::of(&how, op_scope(), 1, group);
                let items: Vec<&[u32]> = plan.few.chunks(ITEM).chain(plan.many.chunks(ITEM)).collect();
                for (sequence, range) in segments.observe().iter().enumerate() {
                    let own = items.iter().filter(|item| item[0] as usize == range.start);
                    for row in 0..lengths[sequence] * group {
                        let own = own.clone().filter(|item| (item[1]..item[1] + item[2]).contains(&(row as u32)));
                        let keys: Vec<u32> = own.flat_map(|item| item[4]..item[5]).collect();
                        let seen = how.sees.range(row / group, lengths[sequence]);
                        assert!(keys.windows(2).all(|w| w[1] == w[0] + 1), "{sees:?}: {keys:?}");
                        let held = keys[0] as usize..keys[keys.len() - 1] as usize + 1;
                        assert!(held.start <= seen.start && held.end >= seen.end, "{sees:?}: {seen:?} of {held:?}");
                    }
                }
                let split = items.iter().filter(|item| item[7] != NO_SLOT);
                assert_eq!(split.clone().map(|item| item[2] as usize).sum::<usize>(), plan.slots, "{sees:?}");
                let joined = plan.joins.chunks(JOIN).map(|join| join[4] as usize).sum::<usize>();
                assert_eq!(split.count(), joined, "{sees:?}");
            }
        }
    }
}
