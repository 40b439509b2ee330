//! What CUDA's kernels read of the sequences: one table of numbers, from which every block finds its own work by its number.
//!
//! A captured launch serves others whose tables differ in nothing but the words. So what is laid out depends on lengths as little as
//! it can: of sequences in pages that decode, on how many there are and on the power of two above the longest, from `ALONE` on; of
//! such that are filled up, on how many there are and on all their tokens.
#![cfg_attr(not(cuda), allow(dead_code, reason = "elsewhere only the memory is counted"))]

use super::{Attention, AttentionOp, Bias, Keys, Mask};
use crate::DType;
use crate::keys::ALONE;
use crate::kv_write::KvCacheFormat;
use crate::replay::OpScope;
use std::ops::Range;

/// Blocks that keep a GPU busy: where there are fewer, the keys of a block are split. Blocks of few rows wait for memory, and
/// several of them share a processor.
const BUSY: usize = 128;
const BUSY_WITH_FEW: usize = 384;

/// Keys of which parts are multiples. As in `task.cuh`.
const PART: usize = 64;

/// The numbers of a block.
const ENTRY: usize = 5;

/// Rows that four warps take over other keys each.
const FEW: usize = 16;

/// Rows of a sequence from which on a block has eight warps.
const WIDE: usize = 96;

/// Which kernel.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Way {
    /// Both products by tensor cores, by four warps however many rows there are, or not: for heads above 128 eight warps are too
    /// many, and for those up to 64 they are no faster.
    Tiles { four: bool },
    /// The same with keys and values in blocks.
    Coded,
    /// The same with disentangled positions.
    Placed,
    /// In f32.
    Plain,
}

impl Way {
    pub(super) fn of(op: &AttentionOp) -> Way {
        let (dtype, size) = (op.q.dtype(), op.q.dims()[2]);
        match op.how.bias {
            _ if dtype != DType::F32 && op.k.format() == KvCacheFormat::Q8 && size <= 128 => Way::Coded,
            _ if dtype == DType::F32 || op.k.format() != KvCacheFormat::Float(dtype) => Way::Plain,
            // Larger ones find no room beside the positions of a block.
            Bias::Disentangled(_) if size > 64 => Way::Plain,
            Bias::Disentangled(_) => Way::Placed,
            _ => Way::Tiles { four: size <= 64 || size > 128 },
        }
    }
}

/// One launch.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Launch {
    /// The kernel's name, the rows of its blocks, and their warps.
    pub(super) kind: &'static str,
    pub(super) rows: usize,
    pub(super) warps: usize,
    /// Where its blocks are in the table, and how many.
    pub(super) entries: usize,
    pub(super) blocks: usize,
    /// Parts of a block's keys, at most, and where in the table they count themselves: a word for each head of each block.
    pub(super) splits: usize,
    pub(super) tickets: usize,
}

impl Launch {
    /// Blocks of threads.
    pub(super) fn grid(&self, shared: usize) -> usize {
        self.blocks * self.splits * shared
    }

    /// Floats that its parts take: of each row a result, its largest score and its sum.
    pub(super) fn parts(&self, shared: usize, size: usize) -> usize {
        if self.splits > 1 { self.grid(shared) * self.rows * (size + 2) } else { 0 }
    }
}

/// The rows of a sequence's queries, how many keys it has, and its first row of them or its page table.
struct Sequence {
    queries: Range<usize>,
    keys: usize,
    base: usize,
}

#[derive(Debug, Default)]
pub(super) struct Tables {
    /// Page tables, then five numbers of each block of rows and its tickets, then what the bias needs.
    pub(super) words: Vec<u32>,
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
    pub(super) fn of(how: &Attention, scope: OpScope, way: Way, [heads, shared]: [usize; 2]) -> Tables {
        let mut tables = Tables::default();
        let mut base = |i: usize| match &how.keys {
            Keys::Packed(segments) => segments.lengths(scope).range(i).start,
            Keys::Paged(pages) => {
                let (base, pages) = (tables.words.len(), pages.tables(scope));
                tables.words.extend(pages.table(i));
                tables.words.resize(base + pages.room(), 0);
                base
            }
        };
        let queries = how.queries.lengths(scope).iter().enumerate();
        let sequences: Vec<Sequence> =
            queries.map(|(i, queries)| Sequence { queries, keys: how.keys.len(scope, i), base: base(i) }).collect();
        tables.add_launches(how, way, &sequences, (heads / shared, shared));
        let place = |s: &Sequence| how.sees.first(s.queries.len(), s.keys) + s.queries.len();
        let places = sequences.iter().map(place).max().unwrap_or(0);
        tables.add_bias(how, heads, places, how.keys.bound(scope));
        tables
    }

    /// Whether a launch by these would be a launch by the others, were it not for the words.
    pub(super) fn are_alike(&self, others: &Tables) -> bool {
        let laid_out =
            |t: &Tables| (t.words.len(), [t.bias, t.reach, t.distances, t.distance_count, t.origin].map(|n| n as u64));
        laid_out(self) == laid_out(others) && self.launches == others.launches
    }

    fn add_launches(&mut self, how: &Attention, way: Way, sequences: &[Sequence], (group, shared): (usize, usize)) {
        let rows: Vec<usize> = sequences.iter().map(|s| s.queries.len() * group).collect();
        let mut launch = |kind, (block, warps): (usize, usize), takes: &dyn Fn(usize) -> bool, busy: usize| {
            let (entries, mut longest) = (self.words.len(), 0);
            for (i, s) in sequences.iter().enumerate().filter(|(i, _)| takes(rows[*i])) {
                longest = longest.max(s.keys);
                let sequence = [s.queries.start, s.queries.len(), s.keys, s.base].map(|n| n as u32);
                // The last block of a sequence may have the most keys to look at, and is not what the others wait for.
                for row in (0..rows[i]).step_by(block).rev() {
                    self.words.extend(sequence);
                    self.words.push(row as u32);
                }
            }
            if how.queries.fillers() > 0 {
                // As many as there may be: those without queries are nobody's.
                let blocks = how.queries.tokens() * group / block + how.queries.count();
                self.words.resize(entries + blocks * ENTRY, 0);
            }
            let blocks = (self.words.len() - entries) / ENTRY;
            if blocks == 0 {
                return;
            }
            let longest = how.keys.allowed(longest);
            let seen = match how.sees {
                Mask::All | Mask::Causal => longest,
                Mask::Window(reach) => longest.min(reach.saturating_mul(2).saturating_add(block)),
                Mask::Recent(most) => longest.min(most.saturating_add(block)),
            };
            let most = if seen <= ALONE { 1 } else { seen.div_ceil(PART) };
            let splits = (busy / (blocks * shared).max(1)).clamp(1, most);
            let tickets = self.words.len();
            if splits > 1 {
                self.words.resize(tickets + blocks * shared, 0);
            }
            self.launches.push(Launch { kind, rows: block, warps, entries, blocks, splits, tickets });
        };
        let four = match way {
            Way::Tiles { four } => four,
            Way::Coded => {
                launch("few_coded", (FEW, 4), &|rows| rows <= FEW, BUSY_WITH_FEW);
                return launch("many_coded", (64, 4), &|rows| rows > FEW, BUSY);
            }
            Way::Placed => return launch("placed", (64, 4), &|_| true, BUSY),
            Way::Plain => return launch("plain", (32, 4), &|_| true, BUSY),
        };
        if how.queries.fillers() > 0 {
            return launch("many", (64, 4), &|_| true, BUSY);
        }
        launch("few", (FEW, 4), &|rows| rows <= FEW, BUSY_WITH_FEW);
        // Eight warps where most have rows, and blocks are enough.
        let many = rows.iter().filter(|rows| **rows > FEW);
        let (count, all) = (many.clone().count(), many.sum::<usize>());
        let is_wide = !four && all >= WIDE * count && all * shared >= BUSY * 128;
        let (kind, block) = if is_wide { ("wide", (128, 8)) } else { ("many", (64, 4)) };
        launch(kind, block, &|rows| rows > FEW, BUSY);
    }

    fn add_bias(&mut self, how: &Attention, heads: usize, places: usize, keys: usize) {
        let is_fixed = how.queries.fillers() > 0 || matches!(how.keys, Keys::Paged(_));
        let places = if is_fixed { keys.max(places) } else { places };
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

    /// Bytes that the kernels take beside the result.
    pub(super) fn bytes(&self, shared: usize, size: usize) -> usize {
        let parts = self.launches.iter().map(|launch| launch.parts(shared, size));
        4 * (self.words.len() + parts.sum::<usize>())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::Pages;
    use crate::Segments;
    use crate::attention::Disentangled;
    use crate::replay::{Fill, op_scope};

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
            sees: Mask::Causal,
            bias: Bias::Buckets { table: vec![1.0; 32 * 8].into(), far: 128, both: false },
        };
        let t = Tables::of(&how, op_scope(), Way::Tiles { four: false }, [8, 2]);
        let pages = 3 * 512;
        let few = [0, 1, 5000, 0, 0, 41, 3, 18, 1024, 0];
        let many = [1, 40, 90, 512, 128, 1, 40, 90, 512, 64, 1, 40, 90, 512, 0];
        let tickets = [0; 2 * 2];
        assert_eq!(t.words[pages..][..29], [&few[..], &tickets, &many].concat());
        assert_eq!((t.bias, t.reach), (pages + 29, 128));
        assert_eq!(t.words.len(), t.bias + 8 * 257);
        let launches: Vec<_> = t.launches.iter().map(|l| (l.kind, l.entries - pages, l.blocks, l.splits)).collect();
        assert_eq!(launches, [("few", 0, 2, 96), ("many", 14, 3, 1)]);
        assert_eq!((t.launches[0].tickets, t.launches[0].parts(2, 64)), (pages + 10, 2 * 96 * 2 * 16 * 66));
        assert_eq!(Tables::of(&how, op_scope(), Way::Plain, [8, 2]).launches.len(), 1);
    }

    /// Steps of decoding are told in as many words, and their launches are the same.
    #[test]
    fn launches_serve_other_lengths() {
        let decoding = |lengths: &[usize], sees: Mask, bias: &Bias| {
            let tables = |keys: usize| (0..keys.div_ceil(16) as u32).collect::<Vec<u32>>();
            let sequences = lengths.iter().map(|keys| (tables(*keys).into(), *keys)).collect();
            let how = Attention {
                queries: Segments::new(&vec![1; lengths.len()]).unwrap(),
                keys: Keys::Paged(Pages::new(sequences, 16).unwrap()),
                sees,
                bias: bias.clone(),
                ..Attention::over(&Segments::new(&[1]).unwrap(), 1.0)
            };
            Tables::of(&how, op_scope(), Way::Tiles { four: true }, [8, 2])
        };
        let buckets = Bias::Buckets { table: vec![1.0; 32 * 8].into(), far: 128, both: false };
        for (sees, bias) in [
            (Mask::Causal, Bias::None),
            (Mask::Recent(300), Bias::None),
            (Mask::Causal, buckets),
            (Mask::All, Bias::None),
        ] {
            let of = |lengths: &[usize]| decoding(lengths, sees, &bias);
            let t = of(&[600, 20, 1]);
            assert!(t.are_alike(&of(&[1, 1000, 30])), "{sees:?} {bias:?}");
            assert!(!t.are_alike(&of(&[1, 1100, 30])) && !t.are_alike(&of(&[600, 20])), "{sees:?} {bias:?}");
            assert!(of(&[1, 1]).are_alike(&of(&[128, 17])), "{sees:?} {bias:?}");
            assert!(!of(&[1, 1]).are_alike(&of(&[129, 17])), "{sees:?} {bias:?}");
        }
        let encoding = |lengths: &[usize], bias: &Bias, way: Way| {
            let queries = Segments::filled(lengths, Fill { tokens: 160, sequences: 5 }).unwrap();
            let how = Attention { bias: bias.clone(), ..Attention::over(&queries, 1.0) };
            let t = Tables::of(&how, op_scope(), way, [2, 2]);
            let rows = t.launches[0].rows;
            let entries = t.words[t.launches[0].entries..][..ENTRY * t.launches[0].blocks].chunks(ENTRY);
            let own: usize = entries.map(|e| (e[1] as usize).saturating_sub(e[4] as usize).min(rows)).sum();
            assert_eq!(own, 160, "every row is somebody's");
            t
        };
        let far = Disentangled { keys: None, queries: None, span: 64, far: None };
        let buckets = Bias::Buckets { table: vec![1.0; 32 * 2].into(), far: 128, both: true };
        for bias in [Bias::None, Bias::Alibi(vec![1.0; 2].into()), buckets, Bias::Disentangled(far)] {
            for way in [Way::Tiles { four: true }, Way::Placed, Way::Plain] {
                let t = encoding(&[150], &bias, way);
                assert!(t.are_alike(&encoding(&[1, 2, 30, 127], &bias, way)), "{bias:?} {way:?}");
            }
        }
    }
}
