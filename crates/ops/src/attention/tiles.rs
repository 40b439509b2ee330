//! AMX kernel: one head of many queries in bf16. Scores are in f32; the softmax's numerators are
//! rounded to bf16 for the second product, their sum and the division are in f32. Disentangled
//! positions stay with [`super::cpu`].
#![allow(unsafe_code, reason = "SIMD lanes")]

use super::Attention;
use super::cpu::{Scratch, cap_and_add};
use super::kv_view::HeadView;
use crate::Result;
use crate::cpu::amx::{self, Operand, Tiles, bytes_of};
use crate::cpu::elem::{get, put};
use crate::cpu::gemm::{LINE, PANEL, TILE_DEPTH, aligned, padded_rows};
use crate::cpu::rows::{Output, Rows};
use crate::cpu::{Isa, Kernel, Lanes, math};
use half::bf16;
use std::arch::x86_64::*;
use std::ops::Range;

/// Queries per block: the rows of a block of tiles.
const QUERIES: usize = 32;

/// The dot product of a pair with this is its sum.
const ONES: [bf16; 2] = [bf16::ONE; 2];

/// Operands packed for the tiles, and results.
#[derive(Default)]
pub(super) struct TileBuffers {
    queries: Vec<bf16>,
    keys: Vec<bf16>,
    values: Vec<bf16>,
    weights: Vec<bf16>,
    sums: Vec<f32>,
}

/// One head of a sequence; the fields are those of the task in [`super::cpu`].
pub(super) struct HeadTask<'a> {
    pub(super) q: Rows<'a, bf16>,
    pub(super) keys: usize,
    pub(super) options: &'a Attention,
    pub(super) offset: usize,
    pub(super) bias: Option<&'a [f32]>,
    pub(super) origin: usize,
    pub(super) first: usize,
    pub(super) stride: usize,
    pub(super) out: &'a Output<bf16>,
}

pub(super) fn run(isa: Isa, views: &[HeadView<'_>; 2], head: HeadTask<'_>, scratch: &mut Scratch) -> Result<()> {
    let (k, v) = (views[0].floats::<bf16>()?, views[1].floats::<bf16>()?);
    isa.run(Task { k: &k, v: &v, head, scratch });
    Ok(())
}

struct Task<'a> {
    k: &'a [Rows<'a, bf16>],
    v: &'a [Rows<'a, bf16>],
    head: HeadTask<'a>,
    scratch: &'a mut Scratch,
}

impl Kernel for Task<'_> {
    type Output = ();
    const BF16: bool = true;

    #[inline(always)]
    fn run<S: Lanes>(self) {
        let HeadTask { q, keys: length, options, bias, .. } = self.head;
        let (head, size) = (&self.head, q.cols);
        let Scratch { tile_buffers, scores, .. } = self.scratch;
        let (depth, width) = (length.next_multiple_of(TILE_DEPTH), size.next_multiple_of(PANEL));
        let keys = aligned(&mut tile_buffers.keys, depth * width);
        let values = aligned(&mut tile_buffers.values, depth * width);
        // SAFETY: AMX implies AVX-512F and AVX-512BW.
        unsafe {
            pack_keys(self.k, size, keys);
            pack_values(self.v, size, values);
        }
        q.iter().for_each(fetch_next);
        let q = padded_rows(q, &(0..q.rows), TILE_DEPTH, &mut tile_buffers.queries);
        // One cache line more per row spreads rows over more cache sets.
        let (across, apart) = (depth + LINE / size_of::<f32>(), depth + TILE_DEPTH);
        let scores = aligned(scores, QUERIES * across);
        let weights = aligned(&mut tile_buffers.weights, QUERIES * apart);
        let results = aligned(&mut tile_buffers.sums, QUERIES * width);

        let mut tiles = Tiles::default();
        for first in (0..q.rows).step_by(QUERIES) {
            let block = first..(first + QUERIES).min(q.rows);
            // The panels of keys that some query of the block attends to.
            let visible_keys = |query: usize| options.mask.range(head.offset + query, length);
            let block_keys = visible_keys(block.start).start..visible_keys(block.end - 1).end;
            let panels = block_keys.start / PANEL..block_keys.end.div_ceil(PANEL);
            let (base, columns) = (panels.start * PANEL, panels.len() * PANEL);
            // [queries, keys]
            let rows = 0..block.len();
            let a = Operand { data: bytes_of(&q.data[first * q.stride..]), stride: 2 * q.stride };
            let b = Operand { data: bytes_of(keys), stride: 2 * PANEL * width };
            let product = amx::Task { a, b, steps: width / TILE_DEPTH, rows: rows.clone(), panels };
            amx::into(&mut tiles, product, (scores, across), base);
            let mut sums = [0f32; QUERIES];
            for (r, sum) in sums[..block.len()].iter_mut().enumerate() {
                let visible = visible_keys(first + r);
                let bias = bias.map(|b| &b[head.origin + visible.start - head.offset - first - r..][..visible.len()]);
                let row = Row {
                    scores: &mut scores[r * across..][..columns],
                    visible: visible.start - base..visible.end - base,
                    bias,
                };
                *sum = row.softmax_numerators::<S>(options, &mut weights[r * apart..][..columns]);
            }
            // [queries, size]
            let a = Operand { data: bytes_of(weights), stride: 2 * apart };
            let b = Operand { data: bytes_of(&values[base * PANEL..]), stride: 2 * PANEL * depth };
            let product = amx::Task { a, b, steps: columns / TILE_DEPTH, rows, panels: 0..width / PANEL };
            amx::into(&mut tiles, product, (results, width), 0);
            for (r, sum) in sums[..block.len()].iter().enumerate() {
                // A query that attends to no key yields zeros.
                let part = if *sum == 0.0 { 0.0 } else { 1.0 / sum };
                // SAFETY: the row is a token of this task's segment, and this task alone writes
                // there.
                let y = unsafe { head.out.part(head.first + (first + r) * head.stride, size) };
                let results = &results[r * width..][..width];
                let mut i = 0;
                while i < size {
                    let v = get::<S, f32>(results, i, S::WIDTH, 0.0);
                    // SAFETY: the contract of Lanes, kept by Isa::run.
                    put::<S, bf16>(y, i, S::WIDTH.min(size - i), unsafe { S::mul(v, S::splat(part)) });
                    i += S::WIDTH;
                }
            }
        }
    }
}

/// One query's scores in whole panels, and the range that it attends to.
struct Row<'a> {
    scores: &'a mut [f32],
    visible: Range<usize>,
    /// Added to the scores in the range.
    bias: Option<&'a [f32]>,
}

impl Row<'_> {
    /// Computes the softmax's numerators, rounded, and returns the sum of the rounded ones, so that
    /// the weights add up to one. Masked keys get weight zero.
    #[inline(always)]
    fn softmax_numerators<S: Lanes>(self, options: &Attention, weights: &mut [bf16]) -> f32 {
        let Row { scores, visible, bias } = self;
        assert!(scores.len() == weights.len() && scores.len().is_multiple_of(2 * S::WIDTH));
        if visible.is_empty() {
            weights.fill(bf16::ZERO);
            return 0.0;
        }
        let mut scale = options.scale;
        if bias.is_some() || options.cap.is_some() || scale <= 0.0 {
            cap_and_add::<S>(&mut scores[visible.clone()], options, bias);
            scale = 1.0;
        }
        if visible.start > 0 {
            scores[..visible.start].fill(f32::NEG_INFINITY);
        }
        if visible.end < scores.len() {
            scores[visible.end..].fill(f32::NEG_INFINITY);
        }
        // SAFETY: the contract of Lanes, kept by Isa::run; all offsets are below the length of
        // both.
        unsafe {
            let (from, to) = (scores.as_ptr(), weights.as_mut_ptr());
            let mut most = [S::load(from), S::load(from.add(S::WIDTH))];
            let mut i = 2 * S::WIDTH;
            while i < scores.len() {
                most[0] = S::max(most[0], S::load(from.add(i)));
                most[1] = S::max(most[1], S::load(from.add(i + S::WIDTH)));
                i += 2 * S::WIDTH;
            }
            let scale = scale * std::f32::consts::LOG2_E;
            let below = S::splat(-scale * S::largest(S::max(most[0], most[1])));
            let scale = S::splat(scale);
            let mut sums = [S::splat(0.0); 2];
            let mut i = 0;
            while i < scores.len() {
                let at = |v: usize| i + v * S::WIDTH;
                if at(4) <= scores.len() {
                    let mut four = [scale; 4];
                    for (v, x) in four.iter_mut().enumerate() {
                        *x = S::fma(S::load(from.add(at(v))), scale, below);
                    }
                    let four = math::short_exp2::<S, 4>(four);
                    S::store_two_bf16(to.add(at(0)), [four[0], four[1]]);
                    S::store_two_bf16(to.add(at(2)), [four[2], four[3]]);
                    sums[0] = S::dot(sums[0], ONES.as_ptr(), to.add(at(0)));
                    sums[1] = S::dot(sums[1], ONES.as_ptr(), to.add(at(2)));
                    i += 4 * S::WIDTH;
                } else {
                    let two = [S::load(from.add(at(0))), S::load(from.add(at(1)))];
                    let two = [S::fma(two[0], scale, below), S::fma(two[1], scale, below)];
                    S::store_two_bf16(to.add(at(0)), math::short_exp2::<S, 2>(two));
                    sums[0] = S::dot(sums[0], ONES.as_ptr(), to.add(at(0)));
                    i += 2 * S::WIDTH;
                }
            }
            S::sum(S::add(sums[0], sums[1]))
        }
    }
}

/// Prefetches what follows a head's row: the row of the next head, which is most likely this
/// thread's next task. The stride between rows is too large for the hardware prefetcher.
#[inline(always)]
fn fetch_next(row: &[bf16]) {
    // SAFETY: a prefetch is a hint and reads nothing.
    unsafe { _mm_prefetch::<_MM_HINT_T1>(row.as_ptr().wrapping_add(row.len()).cast()) }
}

/// Keys as columns: pairs of features of the keys of a panel side by side, transposed in registers
/// by sixteen keys and sixteen pairs at a time, padded with zeros.
#[target_feature(enable = "avx512f,avx512bw")]
unsafe fn pack_keys(runs: &[Rows<'_, bf16>], size: usize, out: &mut [bf16]) {
    let width = size.next_multiple_of(PANEL);
    let mut keys = runs.iter().flat_map(Rows::iter);
    // The second half of a panel's keys begins sixteen pairs on in every line.
    for half in 0..out.len() / (PANEL / 2 * width) {
        let out = out[half / 2 * PANEL * width + half % 2 * PANEL..].as_mut_ptr();
        let sixteen: [Option<&[bf16]>; 16] = std::array::from_fn(|_| keys.next());
        sixteen.iter().flatten().copied().for_each(fetch_next);
        for first in (0..size).step_by(PANEL) {
            let features = (size - first).min(PANEL);
            let lane_mask = if features == PANEL { u32::MAX } else { (1 << features) - 1 };
            // SAFETY: reads only the elements that each key has from `first` on; line j of a panel
            // begins at 2·PANEL·j, and sixteen pairs of it are written.
            unsafe {
                let mut lines = [_mm512_setzero_si512(); 16];
                for (line, key) in lines.iter_mut().zip(&sixteen) {
                    if let Some(key) = key {
                        *line = _mm512_maskz_loadu_epi16(lane_mask, key[first..].as_ptr().cast());
                    }
                }
                for (j, line) in transpose(lines).into_iter().enumerate() {
                    _mm512_storeu_si512(out.add(2 * PANEL * (first / 2 + j)).cast(), line);
                }
            }
        }
    }
}

/// Transposes sixteen lines of sixteen words.
#[target_feature(enable = "avx512f")]
fn transpose(r: [__m512i; 16]) -> [__m512i; 16] {
    let (mut a, mut b, mut c) = (r, r, r);
    for i in (0..16).step_by(2) {
        a[i] = _mm512_unpacklo_epi32(r[i], r[i + 1]);
        a[i + 1] = _mm512_unpackhi_epi32(r[i], r[i + 1]);
    }
    // b[4i + j]: in each quarter, column j of that quarter's four, of lines 4i to 4i + 3.
    for i in (0..16).step_by(4) {
        b[i] = _mm512_unpacklo_epi64(a[i], a[i + 2]);
        b[i + 1] = _mm512_unpackhi_epi64(a[i], a[i + 2]);
        b[i + 2] = _mm512_unpacklo_epi64(a[i + 1], a[i + 3]);
        b[i + 3] = _mm512_unpackhi_epi64(a[i + 1], a[i + 3]);
    }
    for j in 0..4 {
        let (even, odd) = (_mm512_shuffle_i32x4::<0x88>(b[j], b[4 + j]), _mm512_shuffle_i32x4::<0xdd>(b[j], b[4 + j]));
        let (even2, odd2) =
            (_mm512_shuffle_i32x4::<0x88>(b[8 + j], b[12 + j]), _mm512_shuffle_i32x4::<0xdd>(b[8 + j], b[12 + j]));
        c[j] = _mm512_shuffle_i32x4::<0x88>(even, even2);
        c[8 + j] = _mm512_shuffle_i32x4::<0xdd>(even, even2);
        c[4 + j] = _mm512_shuffle_i32x4::<0x88>(odd, odd2);
        c[12 + j] = _mm512_shuffle_i32x4::<0xdd>(odd, odd2);
    }
    c
}

/// Values: each feature of two values side by side, padded with zeros.
#[target_feature(enable = "avx512f,avx512bw")]
unsafe fn pack_values(runs: &[Rows<'_, bf16>], size: usize, out: &mut [bf16]) {
    let depth = out.len() / size.next_multiple_of(PANEL);
    let order: [[i16; 32]; 2] = std::array::from_fn(|half| {
        std::array::from_fn(|i| (16 * half + i / 2 + if i % 2 == 1 { 32 } else { 0 }) as i16)
    });
    // SAFETY: 64 bytes each.
    let order = order.map(|o| unsafe { _mm512_loadu_si512(o.as_ptr().cast()) });
    let mut rows = runs.iter().flat_map(Rows::iter);
    for j in (0..depth).step_by(2) {
        let two = [rows.next(), rows.next()];
        two.iter().flatten().copied().for_each(fetch_next);
        for (p, first) in (0..size).step_by(PANEL).enumerate() {
            let features = (size - first).min(PANEL);
            let lane_mask = if features == PANEL { u32::MAX } else { (1 << features) - 1 };
            let line = &mut out[p * depth * PANEL + j * PANEL..][..2 * PANEL];
            // SAFETY: reads only the elements that each value has from `first` on; the line is two
            // vectors long.
            unsafe {
                let [a, b] = two.map(|row| match row {
                    Some(row) => _mm512_maskz_loadu_epi16(lane_mask, row[first..].as_ptr().cast()),
                    None => _mm512_setzero_si512(),
                });
                for (half, order) in order.iter().enumerate() {
                    let pairs = _mm512_permutex2var_epi16(a, *order, b);
                    _mm512_storeu_si512(line[half * PANEL..].as_mut_ptr().cast(), pairs);
                }
            }
        }
    }
}
