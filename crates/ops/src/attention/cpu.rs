//! A task is one head of one sequence. Its keys and values are packed into panels once (a few tens of KiB), then blocks of
//! queries go through two products with the softmax between; only a block's scores exist at any time.
#![allow(unsafe_code, reason = "tasks write disjoint parts of one output; SIMD lanes")]

use super::AttentionOp;
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

/// Bytes of scratch that all workers hold for a sequence of this length.
pub(super) fn scratch(length: usize, size: usize) -> usize {
    let padded = length.next_multiple_of(PANEL);
    let values = length * size.next_multiple_of(PANEL);
    rayon::current_num_threads() * 4 * (padded * size + values + QUERIES * (padded + size))
}

/// What a worker keeps from task to task.
#[derive(Default)]
struct Scratch {
    keys: Vec<f32>,
    values: Vec<f32>,
    scores: Vec<f32>,
    wide: Vec<f32>,
    row: Vec<f32>,
}

thread_local! {
    static SCRATCH: RefCell<Scratch> = RefCell::default();
}

pub(super) fn run(op: &AttentionOp, isa: Isa) -> Result<candle_core::Tensor> {
    let [tokens, heads, size] = *op.q.dims() else { return Err(Error::call("attention", "q has three axes")) };
    with_elem!("attention", op.q.dtype(), T => {
        let (q, k, v) = (Reading::of(&op.q)?, Reading::of(&op.k)?, Reading::of(&op.v)?);
        let (q, k, v) = (Heads::<T>::of(&q, size)?, Heads::<T>::of(&k, size)?, Heads::<T>::of(&v, size)?);
        let mut y = vec![T::default(); tokens * heads * size];
        let out = Output::over(&mut y);
        (0..op.segments.count() * heads).into_par_iter().for_each(|task| {
            let (segment, head) = (op.segments.range(task / heads), task % heads);
            SCRATCH.with_borrow_mut(|scratch| {
                isa.run(Task {
                    q: q.rows(head, segment.clone()),
                    k: k.rows(head, segment.clone()),
                    v: v.rows(head, segment.clone()),
                    scale: op.scale,
                    first: (segment.start * heads + head) * size,
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
    scale: f32,
    /// Element of y where this head of the segment's first token begins.
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
        let Scratch { keys, values, scores, wide, row } = self.scratch;
        pack_keys::<S, T>(self.k, keys, row);
        pack_values::<S, T>(self.v, values, row);
        let keys = Panels { data: &*keys, k: size, n: length };
        let values = Panels { data: &*values, k: length, n: size };
        // The tile writes whole panels, so a row of scores has room for them.
        let padded = length.div_ceil(PANEL) * PANEL;
        scores.resize(QUERIES * padded, 0.0);
        let mut sums = [0f32; QUERIES];

        for first in (0..length).step_by(QUERIES) {
            let block = first..(first + QUERIES).min(length);
            // [queries, keys]
            let mut sink = Scores { scores, first, stride: padded };
            multiply::<S, T, f32>(self.q, keys, block.clone(), 0..padded / PANEL, wide, &mut sink);
            for (r, sum) in sums[..block.len()].iter_mut().enumerate() {
                *sum = exp_row::<S>(&mut scores[r * padded..][..length], self.scale);
            }
            // [queries, size]
            let p = Rows { data: &*scores, rows: block.len(), cols: length, stride: padded };
            let first = self.first + first * self.stride;
            let mut sink = Values { sums: &sums, first, stride: self.stride, size, out: self.out };
            multiply::<S, f32, f32>(p, values, 0..block.len(), 0..size.div_ceil(PANEL), row, &mut sink);
        }
    }
}

/// Scores of a block of queries, kept for the softmax.
struct Scores<'a> {
    scores: &'a mut [f32],
    /// The block's first query.
    first: usize,
    stride: usize,
}

impl Sink for Scores<'_> {
    #[inline(always)]
    fn take<S: Lanes>(&mut self, query: usize, column: usize, sums: &[f32; PANEL]) {
        self.scores[(query - self.first) * self.stride + column..][..PANEL].copy_from_slice(sums);
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
        let at = self.first + row * self.stride + column;
        // SAFETY: the row is a token of this task's segment and column + columns ≤ size; this task alone writes there.
        let y = unsafe { self.out.part(at, columns) };
        vectors!(S, columns, |i, lanes| {
            let v = get::<S, f32>(sums, i, lanes, 0.0);
            // SAFETY: the contract of Lanes, kept by Isa::run.
            put::<S, T>(y, i, lanes, unsafe { S::div(v, S::splat(self.sums[row])) });
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
