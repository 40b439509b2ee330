//! A few queries of a sequence, as in decoding: keys and values are read once, where they are, for all heads that share them.
//! Nothing is packed, since every key would be packed for each token that looks at it.
#![allow(unsafe_code, reason = "tasks write disjoint parts of one output; SIMD lanes")]

use super::Attention;
use super::cpu::{Heads, Lines, Scratch, weigh};
use crate::Result;
use crate::cpu::elem::{Elem, get, put, vectors, with_elem};
use crate::cpu::gemm::copy_widened;
use crate::cpu::rows::{Output, Rows};
use crate::cpu::{Isa, Kernel, Lanes};
use std::ops::Range;

/// Queries of a sequence that are few.
pub(super) const FEW: usize = 4;

/// Rows of queries that go through the keys together: as many sums as registers hold beside a key.
const ROWS: usize = 4;

/// Numbers of scratch that a task holds, at most.
pub(super) fn scratch(keys: usize, heads: usize, size: usize) -> usize {
    FEW * heads * (keys + 2 * size) + size
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
    with_elem!("attention", few.lines[0].from.dtype()?, C => {
        let (k, v) = (few.lines[0].of::<C>()?, few.lines[1].of::<C>()?);
        isa.run(Task { few, k: &k, v: &v, scratch });
        Ok(())
    })?;
    for (r, y) in scratch.values.chunks_exact(size).enumerate() {
        let (head, query) = (few.heads.start + r / few.queries.len(), few.queries.start + r % few.queries.len());
        // SAFETY: a row of y that belongs to this task's heads and queries alone.
        let out = unsafe { few.out.part(query * few.stride + head * size, size) };
        out.iter_mut().zip(y).for_each(|(out, y)| *out = T::narrow(*y));
    }
    Ok(())
}

struct Task<'a, 'b, T, C> {
    few: &'a Few<'b, T>,
    k: &'a [Rows<'a, C>],
    v: &'a [Rows<'a, C>],
    scratch: &'a mut Scratch,
}

impl<T: Elem, C: Elem> Kernel for Task<'_, '_, T, C> {
    type Output = ();

    #[inline(always)]
    fn run<S: Lanes>(self) {
        let Few { how, keys, place, origin, .. } = *self.few;
        let Scratch { row: queries, scores, values, keys: wide, .. } = self.scratch;
        let size = self.few.lines[0].size;
        let rows = queries.len() / size;
        wide.resize(size, 0.0);
        // [rows, keys]
        for (j, k) in self.k.iter().flat_map(Rows::iter).enumerate() {
            let k = widened::<S, C>(k, wide);
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
        let mut j = 0;
        for run in self.v {
            for v in run.iter() {
                let v = widened::<S, C>(v, wide);
                for (r, y) in values.chunks_exact_mut(size).enumerate() {
                    add::<S>(scores[r * keys + j], v, y);
                }
                j += 1;
            }
        }
    }
}

/// The row in f32, itself where it is.
#[inline(always)]
fn widened<'a, S: Lanes, C: Elem>(row: &'a [C], wide: &'a mut [f32]) -> &'a [f32] {
    copy_widened::<S, C>(row, wide);
    wide
}

/// `R` rows of `q` times `k`, to `out` at every `stride`. Returns `R`.
#[inline(always)]
fn dots<S: Lanes, const R: usize>(q: &[f32], k: &[f32], out: &mut [f32], stride: usize) -> usize {
    let size = k.len();
    // SAFETY: the contract of Lanes, kept by Isa::run.
    unsafe {
        let mut sums = [S::splat(0.0); R];
        vectors!(S, size, |i, lanes| {
            let k = get::<S, f32>(k, i, lanes, 0.0);
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

/// y += p · v.
#[inline(always)]
fn add<S: Lanes>(p: f32, v: &[f32], y: &mut [f32]) {
    // SAFETY: the contract of Lanes, kept by Isa::run.
    unsafe {
        let p = S::splat(p);
        vectors!(S, v.len(), |i, lanes| {
            let sum = S::fma(p, get::<S, f32>(v, i, lanes, 0.0), get::<S, f32>(y, i, lanes, 0.0));
            put::<S, f32>(y, i, lanes, sum);
        });
    }
}
