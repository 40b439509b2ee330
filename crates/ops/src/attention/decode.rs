//! A few queries of a sequence, as in decoding: keys and values are read once, where they are, for all heads that share them.
//! Nothing is packed, since every key would be packed for each token that looks at it.
#![allow(unsafe_code, reason = "tasks write disjoint parts of one output; SIMD lanes")]

use super::Attention;
use super::cpu::{Scratch, weigh};
use super::kv_view::{Heads, Line, Lines, Run, with_runs};
use crate::Result;
use crate::cpu::elem::{Elem, get, put, vectors};
use crate::cpu::rows::Output;
use crate::cpu::{Isa, Kernel, Lanes};
use std::ops::Range;

/// Queries of a sequence that are few.
pub(super) const FEW: usize = 4;

/// Rows of queries that go through the keys together: as many sums as registers hold beside a key.
const ROWS: usize = 4;

/// Vectors of a value that are added up together, for as many rows as are: sixteen sums.
const AT_ONCE: usize = 4;

/// Numbers of scratch that a task holds, at most.
pub(super) fn scratch(keys: usize, heads: usize, size: usize) -> usize {
    FEW * heads * (keys + 2 * size)
}

/// All queries of some heads that share their keys.
pub(super) struct Few<'a, T> {
    pub(super) q: Heads<'a, T>,
    pub(super) queries: Range<usize>,
    pub(super) heads: Range<usize>,
    /// Keys and values.
    pub(super) lines: [Lines<'a>; 2],
    pub(super) how: &'a Attention,
    /// What each head adds by distance, `[heads][distances]`; distance 0 stands at `origin`.
    pub(super) bias: Option<&'a [f32]>,
    pub(super) distances: usize,
    pub(super) origin: usize,
    /// Of the first query, among `keys` keys.
    pub(super) place: usize,
    pub(super) keys: usize,
    /// Elements of y from token to token.
    pub(super) stride: usize,
    pub(super) out: &'a Output<T>,
}

pub(super) fn run<T: Elem>(isa: Isa, few: &Few<'_, T>, scratch: &mut Scratch) -> Result<()> {
    let size = few.lines[0].size;
    // Rows of queries in f32: a head's queries one after another. Their sums come to stand in `values`.
    let rows = few.heads.len() * few.queries.len();
    scratch.row.clear();
    for head in few.heads.clone() {
        let q = few.q.rows(head, few.queries.clone());
        scratch.row.extend(q.iter().flatten().map(|v| v.wide()));
    }
    scratch.scores.resize(rows * few.keys, 0.0);
    scratch.values.clear();
    scratch.values.resize(rows * size, 0.0);
    with_runs!([k, v] = &few.lines => isa.run(Task { few, k, v, scratch }))?;
    for (r, y) in scratch.values.chunks_exact(size).enumerate() {
        let (head, query) = (few.heads.start + r / few.queries.len(), few.queries.start + r % few.queries.len());
        // SAFETY: a row of y that belongs to this task's heads and queries alone.
        let out = unsafe { few.out.part(query * few.stride + head * size, size) };
        out.iter_mut().zip(y).for_each(|(out, y)| *out = T::narrow(*y));
    }
    Ok(())
}

struct Task<'a, 'b, T, R> {
    few: &'a Few<'b, T>,
    k: &'a [R],
    v: &'a [R],
    scratch: &'a mut Scratch,
}

impl<T: Elem, R: Run> Kernel for Task<'_, '_, T, R> {
    type Output = ();

    #[inline(always)]
    fn run<S: Lanes>(self) {
        let Few { how, keys, place, origin, .. } = *self.few;
        let Scratch { row: queries, scores, values, .. } = self.scratch;
        let size = self.few.lines[0].size;
        let rows = queries.len() / size;
        // [rows, keys]
        for (j, k) in self.k.iter().flat_map(|run| (0..run.len()).map(|i| run.line(i))).enumerate() {
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
        let count = self.few.queries.len();
        for (r, scores) in scores[..rows * keys].chunks_exact_mut(keys).enumerate() {
            let place = place + r % count;
            let own = how.sees.range(place, keys);
            let head = self.few.heads.start + r / count;
            let at = head * self.few.distances + origin + own.start - place;
            let bias = self.few.bias.map(|b| &b[at..][..own.len()]);
            scores[..own.start].fill(0.0);
            scores[own.end..].fill(0.0);
            let sum = weigh::<S>(&mut scores[own.clone()], how, bias);
            // A query that sees no key takes nothing from any.
            let scale = if sum == 0.0 { 0.0 } else { 1.0 / sum };
            scores[own].iter_mut().for_each(|s| *s *= scale);
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

/// `R` rows of `q` times `k`, to `out` at every `stride`. Returns `R`.
#[inline(always)]
fn dots<S: Lanes, const R: usize>(q: &[f32], k: impl Line, out: &mut [f32], stride: usize) -> usize {
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

/// `R` rows of `y` are the values, each by its share in a row of `p`. Returns `R`.
#[inline(always)]
fn mix<S: Lanes, const R: usize>(p: &[f32], keys: usize, values: &[impl Run], y: &mut [f32]) -> usize {
    let size = values.first().map_or(0, |run| run.size());
    let mut i = 0;
    while i < size {
        let whole = size - i >= AT_ONCE * S::WIDTH;
        if whole {
            columns::<S, R, AT_ONCE>(p, keys, values, y, i);
        } else {
            columns::<S, R, 1>(p, keys, values, y, i);
        }
        i += if whole { AT_ONCE * S::WIDTH } else { S::WIDTH };
    }
    R
}

/// The columns of `N` vectors from `i` on: their sums stay in registers while the values go by.
#[inline(always)]
fn columns<S: Lanes, const R: usize, const N: usize>(
    p: &[f32],
    keys: usize,
    values: &[impl Run],
    y: &mut [f32],
    i: usize,
) {
    // SAFETY: the contract of Lanes, kept by Isa::run.
    unsafe {
        let mut sums = [[S::splat(0.0); N]; R];
        let (mut j, mut size) = (0, 0);
        for run in values {
            size = run.size();
            for v in (0..run.len()).map(|i| run.line(i)) {
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
