//! A task is one head of one sequence. Its keys and values are packed into panels once (a few tens of KiB), then blocks of
//! queries go through two products with the softmax between; only a block's scores exist at any time, and of those only the
//! panels of keys that the block sees.
#![allow(unsafe_code, reason = "tasks write disjoint parts of one output; SIMD lanes")]

use super::{Attention, AttentionOp, Bias, Sees};
use crate::cpu::elem::{Elem, get, put, vectors, with_elem};
use crate::cpu::gemm::{PANEL, Panels, Sink, copy_widened, multiply, packed_len};
use crate::cpu::rows::{Output, Reading, Rows};
use crate::cpu::{Isa, Kernel, Lanes};
use crate::softmax::exp_row;
use crate::tensor::host;
use crate::{Error, Result};
use rayon::prelude::*;
use std::cell::RefCell;
use std::ops::Range;

/// Queries whose scores are held at once: 24 rows of 512 keys are 48 KiB, and a multiple of every register tile.
const QUERIES: usize = 24;

/// Bytes of scratch that all workers hold, at most.
pub(super) fn scratch(how: &Attention, heads: usize, size: usize) -> usize {
    let (tq, tk) = (how.queries.longest(), how.keys.longest());
    let padded = tk.next_multiple_of(PANEL);
    let values = tk * size.next_multiple_of(PANEL);
    let scores = match how.sees {
        Sees::Window(reach) => padded.min(reach.saturating_mul(2).saturating_add(QUERIES + 2 * PANEL)),
        Sees::All | Sees::Causal => padded,
    };
    // Of each head or task: what is added by distance; the rows of positions, what meets them, and which they are.
    let (shared, positions) = match &how.bias {
        Bias::None => (0, 0),
        Bias::Alibi(_) | Bias::Buckets { .. } => (4 * heads * (tq + tk), 0),
        Bias::Disentangled(d) => {
            let rows = d.rows().min(tq + tk).next_multiple_of(PANEL);
            (0, 2 * rows * size + (QUERIES + tk) * rows + tk * size + 2 * (tq + tk))
        }
    };
    shared + rayon::current_num_threads() * 4 * (padded * size + values + QUERIES * (scores + size) + positions)
}

/// What a worker keeps from task to task.
#[derive(Default)]
struct Scratch {
    keys: Vec<f32>,
    values: Vec<f32>,
    scores: Vec<f32>,
    wide: Vec<f32>,
    row: Vec<f32>,
    position_keys: Vec<f32>,
    position_queries: Vec<f32>,
    met_by_queries: Vec<f32>,
    met_by_keys: Vec<f32>,
}

thread_local! {
    static SCRATCH: RefCell<Scratch> = RefCell::default();
}

pub(super) fn run(op: &AttentionOp, isa: Isa) -> Result<candle_core::Tensor> {
    let [_, heads, size] = *op.q.dims() else { return Err(Error::call("attention", "q has three axes")) };
    let how = &op.how;
    let (tq, tk) = (how.queries.longest(), how.keys.longest());
    let distances = tq + tk - 1;
    let by_distance = how.bias.by_distance(heads, tq, tk);
    with_elem!("attention", op.q.dtype(), T => {
        let (q, k, v) = (Reading::of(&op.q)?, Reading::of(&op.k)?, Reading::of(&op.v)?);
        let (q, k, v) = (Heads::<T>::of(&q, size)?, Heads::<T>::of(&k, size)?, Heads::<T>::of(&v, size)?);
        let tables = match &how.bias {
            Bias::Disentangled(d) => [&d.keys, &d.queries],
            _ => [&None, &None],
        };
        let [pk, pq] = tables.map(|t| t.as_ref().map(Reading::of).transpose());
        let (pk, pq) = (pk?, pq?);
        let pk = pk.as_ref().map(|t| Heads::<T>::of(t, size)).transpose()?;
        let pq = pq.as_ref().map(|t| Heads::<T>::of(t, size)).transpose()?;
        let mut y = vec![T::default(); op.q.dims().iter().product()];
        let out = Output::over(&mut y);
        (0..how.queries.count() * heads).into_par_iter().for_each(|task| {
            let (sequence, head) = (task / heads, task % heads);
            let (queries, keys) = (how.queries.range(sequence), how.keys.range(sequence));
            // The rows of the tables that distances in this sequence reach, and the one for each distance i − j.
            let index: Vec<usize> = match &how.bias {
                Bias::Disentangled(d) => (1 - keys.len() as i64..queries.len() as i64).map(|distance| d.row(distance)).collect(),
                _ => Vec::new(),
            };
            let rows = index.first().map_or(0..0, |first| *first..index[index.len() - 1] + 1);
            SCRATCH.with_borrow_mut(|scratch| {
                isa.run(Task {
                    q: q.rows(head, queries.clone()),
                    k: k.rows(head, keys.clone()),
                    v: v.rows(head, keys.clone()),
                    how,
                    // Distance 0 stands at `tq − 1` in the head's row.
                    bias: by_distance.as_ref().map(|b| &b[head * distances..][..distances]),
                    origin: tq - 1,
                    position_keys: pk.map(|t| t.rows(head, rows.clone())),
                    position_queries: pq.map(|t| t.rows(head, rows.clone())),
                    index: &index,
                    first: (queries.start * heads + head) * size,
                    stride: heads * size,
                    out: &out,
                    scratch,
                });
            });
        });
        host(y, op.q.dims())
    })
}

/// `[tokens, heads, size]` with elements of a head next to each other.
#[derive(Clone, Copy)]
struct Heads<'a, T> {
    data: &'a [T],
    token: usize,
    head: usize,
    size: usize,
}

impl<'a, T: Elem> Heads<'a, T> {
    fn of(reading: &'a Reading<'_>, size: usize) -> Result<Self> {
        match *reading.strides() {
            [token, head, 1] => Ok(Heads { data: reading.onwards()?, token, head, size }),
            // An axis of length one may carry any stride.
            [token, head, _] if size == 1 => Ok(Heads { data: reading.onwards()?, token, head, size }),
            ref other => Err(Error::call("attention", format!("heads with strides {other:?}"))),
        }
    }

    fn rows(&self, head: usize, segment: Range<usize>) -> Rows<'a, T> {
        let data = &self.data[segment.start * self.token + head * self.head..];
        Rows { data, rows: segment.len(), cols: self.size, stride: self.token }
    }
}

struct Task<'a, T> {
    q: Rows<'a, T>,
    k: Rows<'a, T>,
    v: Rows<'a, T>,
    how: &'a Attention,
    /// What this head adds by distance, and where in it distance 0 stands.
    bias: Option<&'a [f32]>,
    origin: usize,
    /// The rows of disentangled positions that are reached here, and for each distance i − j, from −(keys − 1) on, which.
    position_keys: Option<Rows<'a, T>>,
    position_queries: Option<Rows<'a, T>>,
    index: &'a [usize],
    /// Element of y where this head of the sequence's first query begins.
    first: usize,
    /// Elements of y from token to token.
    stride: usize,
    out: &'a Output<T>,
    scratch: &'a mut Scratch,
}

impl<T: Elem> Kernel for Task<'_, T> {
    type Output = ();

    #[inline(always)]
    fn run<S: Lanes>(self) {
        let (length, size) = (self.k.rows, self.k.cols);
        let Scratch { keys, values, scores, wide, row, position_keys, position_queries, met_by_queries, met_by_keys } =
            self.scratch;
        pack_keys::<S, T>(self.k, keys, row);
        pack_values::<S, T>(self.v, values, row);
        let keys = Panels::of(&*keys, size, length);
        let values = Panels::of(&*values, length, size);
        let positions = self.position_keys.or(self.position_queries).map_or(0, |rows| rows.rows);
        let across = positions.next_multiple_of(PANEL);
        if let Some(rows) = self.position_queries {
            pack_keys::<S, T>(rows, position_queries, row);
            met_by_keys.resize(length * across, 0.0);
            let table = Panels::of(&*position_queries, size, positions);
            let mut sink = Scores { scores: met_by_keys, first: 0, column: 0, stride: across };
            multiply::<S, T, f32>(self.k, table, 0..length, 0..across / PANEL, wide, &mut sink);
        }
        if let Some(rows) = self.position_keys {
            pack_keys::<S, T>(rows, position_keys, row);
            met_by_queries.resize(QUERIES * across, 0.0);
        }
        let mut sums = [0f32; QUERIES];

        for first in (0..self.q.rows).step_by(QUERIES) {
            let block = first..(first + QUERIES).min(self.q.rows);
            // The panels of keys that some query of the block sees. The tile writes whole panels.
            let seen = self.how.sees.range(block.start, length).start..self.how.sees.range(block.end - 1, length).end;
            let panels = seen.start / PANEL..seen.end.div_ceil(PANEL);
            let (base, stride) = (panels.start * PANEL, panels.len() * PANEL);
            scores.resize(QUERIES * stride, 0.0);
            // [queries, keys]
            let mut sink = Scores { scores, first, column: base, stride };
            multiply::<S, T, f32>(self.q, keys, block.clone(), panels, wide, &mut sink);
            if self.position_keys.is_some() {
                let table = Panels::of(&*position_keys, size, positions);
                let mut sink = Scores { scores: met_by_queries, first, column: 0, stride: across };
                multiply::<S, T, f32>(self.q, table, block.clone(), 0..across / PANEL, wide, &mut sink);
            }
            for (r, sum) in sums[..block.len()].iter_mut().enumerate() {
                let query = first + r;
                let own = self.how.sees.range(query, length);
                let scores = &mut scores[r * stride..][..seen.end - base];
                if positions > 0 {
                    let row = self.index[0];
                    for key in own.clone() {
                        let at = self.index[query + length - 1 - key] - row;
                        if self.position_keys.is_some() {
                            scores[key - base] += met_by_queries[r * across + at];
                        }
                        if self.position_queries.is_some() {
                            scores[key - base] += met_by_keys[key * across + at];
                        }
                    }
                }
                let (before, after) = (own.start - base, own.end - base);
                scores[..before].fill(0.0);
                scores[after..].fill(0.0);
                let bias = self.bias.map(|b| &b[self.origin + own.start - query..][..own.len()]);
                *sum = exp_row::<S>(&mut scores[before..after], self.how.scale, bias);
            }
            // [queries, size]
            let depth = base..seen.end;
            let p = Rows { data: &*scores, rows: block.len(), cols: depth.len(), stride };
            let first = self.first + first * self.stride;
            let mut sink = Values { sums: &sums, first, stride: self.stride, size, out: self.out };
            multiply::<S, f32, f32>(p, values.part(depth), 0..block.len(), 0..size.div_ceil(PANEL), row, &mut sink);
        }
    }
}

/// Products of a block of queries, kept for the softmax.
struct Scores<'a> {
    scores: &'a mut [f32],
    /// The block's first query.
    first: usize,
    /// The first column that is kept.
    column: usize,
    stride: usize,
}

impl Sink for Scores<'_> {
    #[inline(always)]
    fn take<S: Lanes>(&mut self, query: usize, column: usize, sums: &[f32; PANEL]) {
        let at = (query - self.first) * self.stride + column - self.column;
        self.scores[at..][..PANEL].copy_from_slice(sums);
    }
}

/// Weighted values, divided by the softmax's sum only here: once an element instead of once a score.
struct Values<'a, T> {
    sums: &'a [f32],
    /// Element of y where this head of the block's first query begins.
    first: usize,
    stride: usize,
    size: usize,
    out: &'a Output<T>,
}

impl<T: Elem> Sink for Values<'_, T> {
    #[inline(always)]
    fn take<S: Lanes>(&mut self, row: usize, column: usize, sums: &[f32; PANEL]) {
        let columns = PANEL.min(self.size - column);
        // A query that sees no key (a window beyond the keys there are) takes nothing from any: zero, not zero by zero.
        let sum = if self.sums[row] == 0.0 { 1.0 } else { self.sums[row] };
        let at = self.first + row * self.stride + column;
        // SAFETY: the row is a token of this task's segment and column + columns ≤ size; this task alone writes there.
        let y = unsafe { self.out.part(at, columns) };
        vectors!(S, columns, |i, lanes| {
            let v = get::<S, f32>(sums, i, lanes, 0.0);
            // SAFETY: the contract of Lanes, kept by Isa::run.
            put::<S, T>(y, i, lanes, unsafe { S::div(v, S::splat(sum)) });
        });
    }
}

/// Keys as columns: `[ceil(keys / PANEL)][size][PANEL]`.
#[inline(always)]
fn pack_keys<S: Lanes, T: Elem>(k: Rows<'_, T>, out: &mut Vec<f32>, row: &mut Vec<f32>) {
    out.clear();
    out.resize(packed_len(k.cols, k.rows), 0.0);
    row.resize(k.cols, 0.0);
    for j in 0..k.rows {
        copy_widened::<S, T>(k.row(j), &mut row[..k.cols]);
        let panel = &mut out[j / PANEL * k.cols * PANEL..];
        row[..k.cols].iter().enumerate().for_each(|(i, v)| panel[i * PANEL + j % PANEL] = *v);
    }
}

/// Values as they are, cut into panels of columns: `[ceil(size / PANEL)][keys][PANEL]`.
#[inline(always)]
fn pack_values<S: Lanes, T: Elem>(v: Rows<'_, T>, out: &mut Vec<f32>, row: &mut Vec<f32>) {
    out.clear();
    out.resize(packed_len(v.rows, v.cols), 0.0);
    row.resize(v.cols, 0.0);
    for j in 0..v.rows {
        copy_widened::<S, T>(v.row(j), &mut row[..v.cols]);
        for (p, part) in row[..v.cols].chunks(PANEL).enumerate() {
            out[(p * v.rows + j) * PANEL..][..part.len()].copy_from_slice(part);
        }
    }
}
