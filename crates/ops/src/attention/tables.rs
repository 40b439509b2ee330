//! What CUDA's kernels are told: one table of numbers, from which every block finds its own work by its number. The host decides
//! on launches from the largest lengths alone, so that one launch may serve other batches of the same size.
#![cfg_attr(not(cuda), allow(dead_code, reason = "elsewhere only the memory is counted"))]

use super::{Attention, AttentionOp, Bias, Keys, Sees};
use crate::DType;
use crate::store::CacheFormat;

/// Blocks that keep a GPU busy: where there are fewer, the keys of a block are split. Blocks of few rows wait for memory, and
/// several of them share a processor.
const BUSY: usize = 128;
const BUSY_WITH_FEW: usize = 384;

/// Keys below which a part is not worth a block. As in `task.cuh`.
const PART: usize = 128;

/// Rows that four warps take over other keys each.
const FEW: usize = 16;

/// Rows of a sequence from which on a block has eight warps.
const WIDE: usize = 96;

/// Which kernel.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Way {
    /// Both products by tensor cores; of heads so large that eight warps are too many for a block, or not.
    Tiles { large: bool },
    /// The same with disentangled positions.
    Placed,
    /// In f32.
    Plain,
}

impl Way {
    pub(super) fn of(op: &AttentionOp) -> Way {
        let (dtype, size) = (op.q.dtype(), op.q.dims()[2]);
        match op.how.bias {
            _ if dtype == DType::F32 || op.k.format() != CacheFormat::Float(dtype) => Way::Plain,
            // Larger ones find no room beside the positions of a block.
            Bias::Disentangled(_) if size > 64 => Way::Plain,
            Bias::Disentangled(_) => Way::Placed,
            _ => Way::Tiles { large: size > 128 },
        }
    }
}

/// One launch, for the sequences that have a number of rows between two.
#[derive(Clone, Copy, Debug)]
pub(super) struct Launch {
    /// The kernel's name, and the rows of its blocks.
    pub(super) kind: &'static str,
    pub(super) rows: usize,
    pub(super) warps: usize,
    /// Of a sequence, at most.
    pub(super) blocks: usize,
    /// Parts of a block's keys, at most.
    pub(super) splits: usize,
    pub(super) least: usize,
    pub(super) most: usize,
}

#[derive(Debug, Default)]
pub(super) struct Tables {
    /// Four numbers of each sequence, then page tables, then what the bias needs.
    pub(super) words: Vec<u32>,
    pub(super) sequences: usize,
    /// Where the bias is, and the farthest distance that it tells apart.
    pub(super) bias: usize,
    pub(super) reach: usize,
    /// Where rows of positions are by distance, how many, and which is that of distance 0.
    pub(super) distances: usize,
    pub(super) distance_count: usize,
    pub(super) origin: usize,
    pub(super) launches: Vec<Launch>,
}

impl Tables {
    /// For `heads` of queries over `shared` heads of keys.
    pub(super) fn of(how: &Attention, way: Way, heads: usize, shared: usize) -> Tables {
        let mut tables = Tables { sequences: how.queries.count(), ..Tables::default() };
        let mut pages_at = 4 * tables.sequences;
        let mut places = 0;
        for (i, queries) in how.queries.iter().enumerate() {
            let keys = how.keys.len(i);
            places = places.max(how.sees.first(queries.len(), keys) + queries.len());
            let base = match &how.keys {
                Keys::Packed(segments) => segments.range(i).start,
                Keys::Paged(pages) => {
                    pages_at += pages.table(i).len();
                    pages_at - pages.table(i).len()
                }
            };
            tables.words.extend([queries.start, queries.len(), keys, base].map(|n| n as u32));
        }
        if let Keys::Paged(pages) = &how.keys {
            (0..tables.sequences).for_each(|i| tables.words.extend(pages.table(i)));
        }
        tables.add_bias(how, heads, places);
        tables.launches = launches(how, way, heads / shared, shared);
        tables
    }

    fn add_bias(&mut self, how: &Attention, heads: usize, places: usize) {
        let keys = how.keys.longest();
        self.bias = self.words.len();
        match &how.bias {
            Bias::None => {}
            Bias::Alibi(slopes) => self.words.extend(slopes.iter().map(|slope| slope.to_bits())),
            bias @ Bias::Buckets { far, .. } => {
                // Keys farther away share the last bucket.
                self.reach = (*far).min(places.max(keys));
                let by_distance = bias.by_distance(heads, self.reach + 1, self.reach + 1).unwrap_or_default();
                self.words.extend(by_distance.iter().map(|x| x.to_bits()));
            }
            Bias::Disentangled(d) => {
                self.distances = self.words.len();
                self.origin = keys - 1;
                self.words.extend((1 - keys as i64..places as i64).map(|distance| d.row(distance) as u32));
                self.distance_count = self.words.len() - self.distances;
            }
        }
    }

    /// Blocks of a launch.
    pub(super) fn grid(&self, launch: &Launch, shared: usize) -> usize {
        self.sequences * launch.blocks * launch.splits * shared
    }

    /// Floats that the parts of a launch take: of each row a result, its largest score and its sum.
    pub(super) fn parts(&self, launch: &Launch, shared: usize, size: usize) -> usize {
        if launch.splits > 1 { self.grid(launch, shared) * launch.rows * (size + 2) } else { 0 }
    }

    /// Bytes that the kernels take beside the result.
    pub(super) fn bytes(&self, shared: usize, size: usize) -> usize {
        let parts = self.launches.iter().map(|launch| self.parts(launch, shared, size));
        4 * (self.words.len() + parts.sum::<usize>())
    }
}

fn launches(how: &Attention, way: Way, group: usize, shared: usize) -> Vec<Launch> {
    let rows: Vec<usize> = how.queries.iter().map(|queries| queries.len() * group).collect();
    let launch = |kind, (block, warps): (usize, usize), (least, most): (usize, usize), busy: usize| {
        let longest = rows.iter().copied().filter(|rows| (least..=most).contains(rows)).max()?;
        let blocks = longest.div_ceil(block);
        let seen = match how.sees {
            Sees::All | Sees::Causal => usize::MAX,
            Sees::Window(reach) => reach.saturating_mul(2).saturating_add(block),
            Sees::Recent(most) => most.saturating_add(block),
        };
        let useful = how.keys.longest().min(seen).div_ceil(PART).max(1);
        let splits = (busy / (rows.len() * blocks * shared).max(1)).clamp(1, useful);
        Some(Launch { kind, rows: block, warps, blocks, splits, least, most })
    };
    let all = (0, u32::MAX as usize);
    let large = match way {
        Way::Tiles { large } => large,
        Way::Placed => return launch("placed", (64, 4), all, BUSY).into_iter().collect(),
        Way::Plain => return launch("plain", (32, 4), all, BUSY).into_iter().collect(),
    };
    // Eight warps where most have rows, and blocks are enough.
    let many = rows.iter().filter(|rows| **rows > FEW);
    let (count, all) = (many.clone().count(), many.sum::<usize>());
    let is_wide = !large && all >= WIDE * count && all * shared >= BUSY * 128;
    let (kind, block) = if is_wide { ("wide", (128, 8)) } else { ("many", (64, 4)) };
    let few = launch("few", (FEW, 4), (0, FEW), BUSY_WITH_FEW);
    let many = launch(kind, block, (FEW + 1, u32::MAX as usize), BUSY);
    few.into_iter().chain(many).collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::Segments;
    use crate::attention::Pages;

    #[test]
    fn every_sequence_has_a_launch_and_its_pages() {
        let lengths = [(1, 5000), (40, 90), (3, 18)];
        let tables = |keys: usize| (0..keys.div_ceil(16) as u32).collect::<Vec<u32>>();
        let sequences = lengths.iter().map(|(_, keys)| (tables(*keys).into(), *keys)).collect();
        let how = Attention {
            queries: Segments::new(&lengths.map(|(queries, _)| queries)).unwrap(),
            keys: Keys::Paged(Pages::new(sequences, 16).unwrap()),
            scale: 1.0,
            cap: None,
            sees: Sees::Causal,
            bias: Bias::Buckets { table: vec![1.0; 32 * 8].into(), far: 128, both: false },
        };
        let t = Tables::of(&how, Way::Tiles { large: false }, 8, 2);
        assert_eq!(t.words[..12], [0, 1, 5000, 12, 1, 40, 90, 12 + 313, 41, 3, 18, 12 + 313 + 6]);
        assert_eq!((t.bias, t.reach), (12 + 313 + 6 + 2, 128));
        assert_eq!(t.words.len(), t.bias + 8 * 257);
        let kinds: Vec<_> = t.launches.iter().map(|l| (l.kind, l.blocks, l.splits)).collect();
        assert_eq!(kinds, [("few", 1, 40), ("many", 3, 7)]);
        let few = t.launches[0];
        assert_eq!(t.parts(&few, 2, 64), 3 * 40 * 2 * 16 * 66);
        let plain = Tables::of(&how, Way::Plain, 8, 2);
        assert_eq!(plain.launches.len(), 1);
    }
}
