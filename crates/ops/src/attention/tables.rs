//! Sequence tables of the CUDA kernels: one array of u32 words, in which every block of threads
//! finds its work by its index.
//!
//! A launch captured in a CUDA graph can be replayed for any tables that differ in nothing but the
//! words. So the layout depends on lengths as little as possible: in decoding over a paged KV
//! cache, on the number of sequences and on the power of two above the longest, from
//! `MAX_UNSPLIT_KEYS` on; in batches padded with fillers, on the number of sequences and of tokens.
#![cfg_attr(not(cuda), allow(dead_code, reason = "other devices use only the memory estimate"))]

use super::{Attention, AttentionOp, Bias, Keys, Mask};
use crate::DType;
use crate::keys::MAX_UNSPLIT_KEYS;
use crate::kv_write::KvCacheFormat;
use crate::replay::OpScope;
use std::ops::Range;

/// Blocks that keep a GPU busy: with fewer, the keys of a block are split. More blocks are needed
/// if they have few rows, because these wait for memory and several share a multiprocessor.
const BUSY_BLOCKS: usize = 128;
const BUSY_SMALL_BLOCKS: usize = 384;

/// Parts of split keys are multiples of this. As in `task.cuh`.
const PART: usize = 64;

/// Words per block.
const ENTRY_WORDS: usize = 5;

/// Sequences with at most this many rows take a kernel whose four warps split the keys.
const SMALL_ROWS: usize = 16;

/// Rows per sequence from which on a block has eight warps.
const WIDE_ROWS: usize = 96;

/// Which kernel runs.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum KernelKind {
    /// Both products on tensor cores. `four_warps`: always blocks of four warps, because eight are
    /// too many for heads above 128 and no faster for those up to 64.
    TensorCores { four_warps: bool },
    /// Tensor cores, with keys and values in Q8 blocks.
    Quantized,
    /// Tensor cores, with disentangled positions.
    Disentangled,
    /// In f32, without tensor cores.
    F32,
}

impl KernelKind {
    pub(super) fn of(op: &AttentionOp) -> KernelKind {
        let (dtype, size) = (op.q.dtype(), op.q.dims()[2]);
        match op.options.bias {
            _ if dtype != DType::F32 && op.k.format() == KvCacheFormat::Q8 && size <= 128 => KernelKind::Quantized,
            _ if dtype == DType::F32 || op.k.format() != KvCacheFormat::Float(dtype) => KernelKind::F32,
            // Larger heads leave no shared memory for the positions of a block.
            Bias::Disentangled(_) if size > 64 => KernelKind::F32,
            Bias::Disentangled(_) => KernelKind::Disentangled,
            _ => KernelKind::TensorCores { four_warps: size <= 64 || size > 128 },
        }
    }
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Launch {
    /// The kernel's name, the rows of its blocks, and their warps.
    pub(super) kind: &'static str,
    pub(super) rows: usize,
    pub(super) warps: usize,
    /// Where its blocks are in the table, and how many.
    pub(super) entries: usize,
    pub(super) blocks: usize,
    /// Parts of a block's keys, at most, and where in the table their counters are: a word for each
    /// KV head of each block.
    pub(super) splits: usize,
    pub(super) tickets: usize,
}

impl Launch {
    /// Blocks of threads.
    pub(super) fn grid(&self, kv_heads: usize) -> usize {
        self.blocks * self.splits * kv_heads
    }

    /// Floats of the partial results: each row has a result, its largest score and its sum.
    pub(super) fn parts(&self, kv_heads: usize, size: usize) -> usize {
        if self.splits > 1 { self.grid(kv_heads) * self.rows * (size + 2) } else { 0 }
    }
}

/// The rows of a sequence's queries, the number of its keys, and its first key row or the offset of
/// its page table.
struct Sequence {
    queries: Range<usize>,
    keys: usize,
    base: usize,
}

#[derive(Debug, Default)]
pub(super) struct Tables {
    /// Page tables, then five words for each block of rows and the counters (tickets), then the
    /// bias.
    pub(super) words: Vec<u32>,
    /// Where the bias is, and the largest distance that it distinguishes.
    pub(super) bias: usize,
    pub(super) reach: usize,
    /// Where position rows by distance are, how many, and the index of distance 0.
    pub(super) distances: usize,
    pub(super) distance_count: usize,
    pub(super) origin: usize,
    pub(super) launches: Vec<Launch>,
}

impl Tables {
    /// For `heads` query heads over `kv_heads` KV heads, fewer in grouped-query attention (GQA).
    pub(super) fn of(
        options: &Attention,
        scope: OpScope,
        kernel_kind: KernelKind,
        [heads, kv_heads]: [usize; 2],
    ) -> Tables {
        let mut tables = Tables::default();
        let mut base = |i: usize| match &options.keys {
            Keys::Packed(segments) => segments.lengths(scope).range(i).start,
            Keys::Paged(pages) => {
                let (base, pages) = (tables.words.len(), pages.tables(scope));
                tables.words.extend(pages.table(i));
                tables.words.resize(base + pages.room(), 0);
                base
            }
        };
        let queries = options.queries.lengths(scope).iter().enumerate();
        let sequences: Vec<Sequence> =
            queries.map(|(i, queries)| Sequence { queries, keys: options.keys.len(scope, i), base: base(i) }).collect();
        tables.add_launches(options, kernel_kind, &sequences, (heads / kv_heads, kv_heads));
        let end_position = |s: &Sequence| options.mask.query_offset(s.queries.len(), s.keys) + s.queries.len();
        let positions = sequences.iter().map(end_position).max().unwrap_or(0);
        tables.add_bias(options, heads, positions, options.keys.bound(scope));
        tables
    }

    /// Whether a launch with these tables equals one with the others in everything but the words.
    pub(super) fn same_layout(&self, others: &Tables) -> bool {
        let layout =
            |t: &Tables| (t.words.len(), [t.bias, t.reach, t.distances, t.distance_count, t.origin].map(|n| n as u64));
        layout(self) == layout(others) && self.launches == others.launches
    }

    fn add_launches(
        &mut self,
        options: &Attention,
        kernel_kind: KernelKind,
        sequences: &[Sequence],
        (group, kv_heads): (usize, usize),
    ) {
        let rows: Vec<usize> = sequences.iter().map(|s| s.queries.len() * group).collect();
        let mut launch = |kind, (block, warps): (usize, usize), selects: &dyn Fn(usize) -> bool, busy: usize| {
            let (entries, mut longest) = (self.words.len(), 0);
            for (i, s) in sequences.iter().enumerate().filter(|(i, _)| selects(rows[*i])) {
                longest = longest.max(s.keys);
                let sequence = [s.queries.start, s.queries.len(), s.keys, s.base].map(|n| n as u32);
                // The last block of a sequence may have the most keys: it starts first, so that
                // nothing waits for it.
                for row in (0..rows[i]).step_by(block).rev() {
                    self.words.extend(sequence);
                    self.words.push(row as u32);
                }
            }
            if options.queries.fillers() > 0 {
                // As many entries as any batch of this shape needs; those without queries are
                // unused.
                let blocks = options.queries.tokens() * group / block + options.queries.count();
                self.words.resize(entries + blocks * ENTRY_WORDS, 0);
            }
            let blocks = (self.words.len() - entries) / ENTRY_WORDS;
            if blocks == 0 {
                return;
            }
            let longest = options.keys.allowed(longest);
            let visible = match options.mask {
                Mask::All | Mask::Causal => longest,
                Mask::Window(reach) => longest.min(reach.saturating_mul(2).saturating_add(block)),
                Mask::CausalWindow(most) => longest.min(most.saturating_add(block)),
            };
            let max_splits = if visible <= MAX_UNSPLIT_KEYS { 1 } else { visible.div_ceil(PART) };
            let splits = (busy / (blocks * kv_heads).max(1)).clamp(1, max_splits);
            let tickets = self.words.len();
            if splits > 1 {
                self.words.resize(tickets + blocks * kv_heads, 0);
            }
            self.launches.push(Launch { kind, rows: block, warps, entries, blocks, splits, tickets });
        };
        let four_warps = match kernel_kind {
            KernelKind::TensorCores { four_warps } => four_warps,
            KernelKind::Quantized => {
                launch("decode_q8", (SMALL_ROWS, 4), &|rows| rows <= SMALL_ROWS, BUSY_SMALL_BLOCKS);
                return launch("tile64_q8", (64, 4), &|rows| rows > SMALL_ROWS, BUSY_BLOCKS);
            }
            KernelKind::Disentangled => return launch("disentangled", (64, 4), &|_| true, BUSY_BLOCKS),
            KernelKind::F32 => return launch("simt", (32, 4), &|_| true, BUSY_BLOCKS),
        };
        if options.queries.fillers() > 0 {
            return launch("tile64", (64, 4), &|_| true, BUSY_BLOCKS);
        }
        launch("decode", (SMALL_ROWS, 4), &|rows| rows <= SMALL_ROWS, BUSY_SMALL_BLOCKS);
        // Blocks of eight warps if most sequences fill them and there are enough blocks.
        let many = rows.iter().filter(|rows| **rows > SMALL_ROWS);
        let (count, all) = (many.clone().count(), many.sum::<usize>());
        let is_wide = !four_warps && all >= WIDE_ROWS * count && all * kv_heads >= BUSY_BLOCKS * 128;
        let (kind, block) = if is_wide { ("tile128", (128, 8)) } else { ("tile64", (64, 4)) };
        launch(kind, block, &|rows| rows > SMALL_ROWS, BUSY_BLOCKS);
    }

    fn add_bias(&mut self, options: &Attention, heads: usize, positions: usize, keys: usize) {
        let is_fixed = options.queries.fillers() > 0 || matches!(options.keys, Keys::Paged(_));
        let positions = if is_fixed { keys.max(positions) } else { positions };
        self.bias = self.words.len();
        match &options.bias {
            Bias::None => {}
            Bias::Alibi(slopes) => self.words.extend(slopes.iter().map(|slope| slope.to_bits())),
            bias @ Bias::Buckets { far, .. } => {
                // Keys farther away share the last bucket.
                self.reach = (*far).min(positions.max(keys));
                let by_distance = bias.by_distance(heads, self.reach + 1, self.reach + 1).unwrap_or_default();
                self.words.extend(by_distance.iter().map(|x| x.to_bits()));
            }
            Bias::Disentangled(d) => {
                self.distances = self.words.len();
                self.origin = keys - 1;
                self.words.extend((1 - keys as i64..positions as i64).map(|distance| d.row(distance) as u32));
                self.distance_count = self.words.len() - self.distances;
            }
        }
    }

    /// Bytes that the kernels take besides the result.
    pub(super) fn bytes(&self, kv_heads: usize, size: usize) -> usize {
        let parts = self.launches.iter().map(|launch| launch.parts(kv_heads, size));
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
        let options = Attention {
            queries: Segments::new(&lengths.map(|(queries, _)| queries)).unwrap(),
            keys: Keys::Paged(Pages::new(sequences, 16).unwrap()),
            scale: 1.0,
            cap: None,
            mask: Mask::Causal,
            bias: Bias::Buckets { table: vec![1.0; 32 * 8].into(), far: 128, both: false },
        };
        let t = Tables::of(&options, op_scope(), KernelKind::TensorCores { four_warps: false }, [8, 2]);
        let pages = 3 * 512;
        let few = [0, 1, 5000, 0, 0, 41, 3, 18, 1024, 0];
        let many = [1, 40, 90, 512, 128, 1, 40, 90, 512, 64, 1, 40, 90, 512, 0];
        let tickets = [0; 2 * 2];
        assert_eq!(t.words[pages..][..29], [&few[..], &tickets, &many].concat());
        assert_eq!((t.bias, t.reach), (pages + 29, 128));
        assert_eq!(t.words.len(), t.bias + 8 * 257);
        let launches: Vec<_> = t.launches.iter().map(|l| (l.kind, l.entries - pages, l.blocks, l.splits)).collect();
        assert_eq!(launches, [("decode", 0, 2, 96), ("tile64", 14, 3, 1)]);
        assert_eq!((t.launches[0].tickets, t.launches[0].parts(2, 64)), (pages + 10, 2 * 96 * 2 * 16 * 66));
        assert_eq!(Tables::of(&options, op_scope(), KernelKind::F32, [8, 2]).launches.len(), 1);
    }

    /// Decode steps have tables of the same size, and the same launches.
    #[test]
    fn table_layout_is_shared_by_other_lengths() {
        let decoding = |lengths: &[usize], mask: Mask, bias: &Bias| {
            let tables = |keys: usize| (0..keys.div_ceil(16) as u32).collect::<Vec<u32>>();
            let sequences = lengths.iter().map(|keys| (tables(*keys).into(), *keys)).collect();
            let options = Attention {
                queries: Segments::new(&vec![1; lengths.len()]).unwrap(),
                keys: Keys::Paged(Pages::new(sequences, 16).unwrap()),
                mask,
                bias: bias.clone(),
                ..Attention::full(&Segments::new(&[1]).unwrap(), 1.0)
            };
            Tables::of(&options, op_scope(), KernelKind::TensorCores { four_warps: true }, [8, 2])
        };
        let buckets = Bias::Buckets { table: vec![1.0; 32 * 8].into(), far: 128, both: false };
        for (mask, bias) in [
            (Mask::Causal, Bias::None),
            (Mask::CausalWindow(300), Bias::None),
            (Mask::Causal, buckets),
            (Mask::All, Bias::None),
        ] {
            let of = |lengths: &[usize]| decoding(lengths, mask, &bias);
            let t = of(&[600, 20, 1]);
            assert!(t.same_layout(&of(&[1, 1000, 30])), "{mask:?} {bias:?}");
            assert!(!t.same_layout(&of(&[1, 1100, 30])) && !t.same_layout(&of(&[600, 20])), "{mask:?} {bias:?}");
            assert!(of(&[1, 1]).same_layout(&of(&[128, 17])), "{mask:?} {bias:?}");
            assert!(!of(&[1, 1]).same_layout(&of(&[129, 17])), "{mask:?} {bias:?}");
        }
        let encoding = |lengths: &[usize], bias: &Bias, kernel_kind: KernelKind| {
            let queries = Segments::filled(lengths, Fill { tokens: 160, sequences: 5 }).unwrap();
            let options = Attention { bias: bias.clone(), ..Attention::full(&queries, 1.0) };
            let t = Tables::of(&options, op_scope(), kernel_kind, [2, 2]);
            let rows = t.launches[0].rows;
            let entries = t.words[t.launches[0].entries..][..ENTRY_WORDS * t.launches[0].blocks].chunks(ENTRY_WORDS);
            let covered: usize = entries.map(|e| (e[1] as usize).saturating_sub(e[4] as usize).min(rows)).sum();
            assert_eq!(covered, 160, "every row belongs to a block");
            t
        };
        let far = Disentangled { keys: None, queries: None, span: 64, far: None };
        let buckets = Bias::Buckets { table: vec![1.0; 32 * 2].into(), far: 128, both: true };
        for bias in [Bias::None, Bias::Alibi(vec![1.0; 2].into()), buckets, Bias::Disentangled(far)] {
            for kernel_kind in [KernelKind::TensorCores { four_warps: true }, KernelKind::Disentangled, KernelKind::F32]
            {
                let t = encoding(&[150], &bias, kernel_kind);
                assert!(t.same_layout(&encoding(&[1, 2, 30, 127], &bias, kernel_kind)), "{bias:?} {kernel_kind:?}");
            }
        }
    }
}
