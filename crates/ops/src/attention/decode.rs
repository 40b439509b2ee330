//! Decode kernel: attention of a few queries of a sequence. Keys and values are read once, in
//! place, for all query heads that share a KV head (grouped-query attention, GQA). Packing would
//! not pay: each key would be packed again for every token.
#![allow(unsafe_code, reason = "tasks write disjoint parts of one output; SIMD lanes")]

use super::Attention;
use super::cpu::{Scratch, softmax_numerators};
use super::kv_view::{HeadView, Heads, KvRow, RowRun, with_runs};
use crate::Result;
use crate::cpu::elem::{Elem, get, put, vectors};
use crate::cpu::rows::Output;
use crate::cpu::{Isa, Kernel, Lanes};
use std::ops::Range;

/// Sequences with at most this many queries take the decode kernel.
pub(super) const MAX_QUERIES: usize = 4;

/// Query rows per pass over the keys: as many sums as registers hold beside a key.
const ROWS: usize = 4;

/// SIMD vectors of a value summed at once, for `ROWS` rows: sixteen sums.
const VECTORS_AT_ONCE: usize = 4;

/// Floats of scratch per task, at most.
pub(super) fn scratch(keys: usize, heads: usize, size: usize) -> usize {
    MAX_QUERIES * heads * (keys + 2 * size)
}

/// All queries of some heads that share a KV head. Not generic in the dtype of q and y: the kernel
/// works on their rows in f32 and is compiled only once per format of the KV cache.
pub(super) struct DecodeTask<'a> {
    pub(super) queries: Range<usize>,
    pub(super) heads: Range<usize>,
    /// Keys and values.
    pub(super) views: [HeadView<'a>; 2],
    pub(super) options: &'a Attention,
    /// What each head adds by distance, `[heads][distances]`; distance 0 is at `origin`.
    pub(super) bias: Option<&'a [f32]>,
    pub(super) distances: usize,
    pub(super) origin: usize,
    /// Position of the first query among `keys` keys.
    pub(super) offset: usize,
    pub(super) keys: usize,
    /// Elements of y from token to token.
    pub(super) stride: usize,
}

/// Runs a task: reads its queries from `q` and writes its part of y to `y`.
pub(super) fn run<T: Elem>(
    isa: Isa,
    task: &DecodeTask<'_>,
    q: Heads<'_, T>,
    y: &Output<T>,
    scratch: &mut Scratch,
) -> Result<()> {
    let size = task.views[0].size;
    // Query rows in f32, head by head. `values` receives their results.
    let rows = task.heads.len() * task.queries.len();
    scratch.row.clear();
    for head in task.heads.clone() {
        let queries = q.rows(head, task.queries.clone());
        scratch.row.extend(queries.iter().flatten().map(|v| v.wide()));
    }
    scratch.scores.resize(rows * task.keys, 0.0);
    scratch.values.clear();
    scratch.values.resize(rows * size, 0.0);
    with_runs!([k, v] = &task.views => isa.run(DecodeKernel { task, k, v, scratch }))?;
    for (r, values) in scratch.values.chunks_exact(size).enumerate() {
        let (head, query) = (task.heads.start + r / task.queries.len(), task.queries.start + r % task.queries.len());
        // SAFETY: this task alone writes this row of y: no other task has its heads and queries.
        let out = unsafe { y.part(query * task.stride + head * size, size) };
        out.iter_mut().zip(values).for_each(|(out, value)| *out = T::narrow(*value));
    }
    Ok(())
}

struct DecodeKernel<'a, 'b, R> {
    task: &'a DecodeTask<'b>,
    k: &'a [R],
    v: &'a [R],
    scratch: &'a mut Scratch,
}

impl<R: RowRun> Kernel for DecodeKernel<'_, '_, R> {
    type Output = ();
    const BF16: bool = false;

    #[inline(always)]
    fn run<S: Lanes>(self) {
        let DecodeTask { options, keys, offset, origin, .. } = *self.task;
        let Scratch { row: queries, scores, values, .. } = self.scratch;
        let size = self.task.views[0].size;
        let rows = queries.len() / size;
        // [rows, keys]
        for (j, k) in self.k.iter().flat_map(|run| (0..run.len()).map(|i| run.kv_row(i))).enumerate() {
            let mut r = 0;
            while r < rows {
                let (q, out) = (&queries[r * size..], &mut scores[r * keys + j..]);
                r += match rows - r {
                    ROWS.. => dots::<S, ROWS>(q, k, out, keys),
                    3 => dots::<S, 3>(q, k, out, keys),
                    2 => dots::<S, 2>(q, k, out, keys),
                    _ => dots::<S, 1>(q, k, out, keys),
                };
            }
        }
        let count = self.task.queries.len();
        for (r, scores) in scores[..rows * keys].chunks_exact_mut(keys).enumerate() {
            let offset = offset + r % count;
            let visible = options.mask.range(offset, keys);
            let head = self.task.heads.start + r / count;
            let at = head * self.task.distances + origin + visible.start - offset;
            let bias = self.task.bias.map(|b| &b[at..][..visible.len()]);
            scores[..visible.start].fill(0.0);
            scores[visible.end..].fill(0.0);
            let sum = softmax_numerators::<S>(&mut scores[visible.clone()], options, bias);
            // A query that attends to no key yields zeros.
            let scale = if sum == 0.0 { 0.0 } else { 1.0 / sum };
            scores[visible].iter_mut().for_each(|s| *s *= scale);
        }
        // [rows, size]
        let mut r = 0;
        while r < rows {
            let (p, y) = (&scores[r * keys..], &mut values[r * size..]);
            r += match rows - r {
                ROWS.. => mix::<S, ROWS>(p, keys, self.v, y),
                3 => mix::<S, 3>(p, keys, self.v, y),
                2 => mix::<S, 2>(p, keys, self.v, y),
                _ => mix::<S, 1>(p, keys, self.v, y),
            };
        }
    }
}

/// Dot products of `R` rows of `q` with `k`, written to `out` every `stride` elements. Returns `R`.
#[inline(always)]
fn dots<S: Lanes, const R: usize>(q: &[f32], k: impl KvRow, out: &mut [f32], stride: usize) -> usize {
    let size = k.size();
    // SAFETY: the contract of Lanes, kept by Isa::run.
    unsafe {
        let mut sums = [S::splat(0.0); R];
        vectors!(S, size, |i, lanes| {
            let k = k.at::<S>(i, lanes);
            for (r, sum) in sums.iter_mut().enumerate() {
                *sum = S::fma(get::<S, f32>(&q[r * size..], i, lanes, 0.0), k, *sum);
            }
        });
        for (r, sum) in sums.iter().enumerate() {
            out[r * stride] = S::sum(*sum);
        }
    }
    R
}

/// `R` rows of `y` are sums of the values, weighted by rows of `p`. Returns `R`.
#[inline(always)]
fn mix<S: Lanes, const R: usize>(p: &[f32], keys: usize, values: &[impl RowRun], y: &mut [f32]) -> usize {
    let size = values.first().map_or(0, |run| run.size());
    let mut i = 0;
    while i < size {
        let full = size - i >= VECTORS_AT_ONCE * S::WIDTH;
        if full {
            columns::<S, R, VECTORS_AT_ONCE>(p, keys, values, y, i);
        } else {
            columns::<S, R, 1>(p, keys, values, y, i);
        }
        i += if full { VECTORS_AT_ONCE * S::WIDTH } else { S::WIDTH };
    }
    R
}

/// `N` SIMD vectors of columns from `i` on: the sums stay in registers over all values.
#[inline(always)]
fn columns<S: Lanes, const R: usize, const N: usize>(
    p: &[f32],
    keys: usize,
    values: &[impl RowRun],
    y: &mut [f32],
    i: usize,
) {
    // SAFETY: the contract of Lanes, kept by Isa::run.
    unsafe {
        let mut sums = [[S::splat(0.0); N]; R];
        let (mut j, mut size) = (0, 0);
        for run in values {
            size = run.size();
            for v in (0..run.len()).map(|i| run.kv_row(i)) {
                let mut at = [S::splat(0.0); N];
                for (n, at) in at.iter_mut().enumerate() {
                    *at = v.at::<S>(i + n * S::WIDTH, S::WIDTH.min(size - i));
                }
                for (r, sums) in sums.iter_mut().enumerate() {
                    let p = S::splat(p[r * keys + j]);
                    for (sum, v) in sums.iter_mut().zip(at) {
                        *sum = S::fma(p, v, *sum);
                    }
                }
                j += 1;
            }
        }
        for (r, sums) in sums.into_iter().enumerate() {
            for (n, sum) in sums.into_iter().enumerate() {
                put::<S, f32>(y, r * size + i + n * S::WIDTH, S::WIDTH.min(size - i), sum);
            }
        }
    }
}
