//! One head of many queries in bf16, by products in tiles: scores in f32, the softmax's numerators rounded to bf16 for the second
//! product, its sum and the result's division in f32. Disentangled positions stay with [`super::cpu`].
#![allow(unsafe_code, reason = "SIMD lanes")]

use super::Attention;
use super::cpu::{Scores, Scratch, Values, weigh};
use super::lines::Lines;
use crate::Result;
use crate::cpu::elem::{get, put};
use crate::cpu::gemm::{PANEL, Panels, TILE_DEPTH, multiply, packed_len, panel_len, place};
use crate::cpu::rows::{Output, Rows};
use crate::cpu::{Isa, Kernel, Lanes};
use half::bf16;

/// Queries whose scores are held at once: a block of the tiles.
const QUERIES: usize = 32;

/// What is packed for the tiles, and the numerators.
#[derive(Default)]
pub(super) struct Pairs {
    keys: Vec<bf16>,
    values: Vec<bf16>,
    weights: Vec<bf16>,
}

/// One head of a sequence; the fields are those of the other kernel's task.
pub(super) struct Head<'a> {
    pub(super) q: Rows<'a, bf16>,
    pub(super) keys: usize,
    pub(super) how: &'a Attention,
    pub(super) place: usize,
    pub(super) bias: Option<&'a [f32]>,
    pub(super) origin: usize,
    pub(super) first: usize,
    pub(super) stride: usize,
    pub(super) out: &'a Output<bf16>,
}

pub(super) fn run(isa: Isa, lines: &[Lines<'_>; 2], head: Head<'_>, scratch: &mut Scratch) -> Result<()> {
    let (k, v) = (lines[0].floats::<bf16>()?, lines[1].floats::<bf16>()?);
    isa.run(Task { k: &k, v: &v, head, scratch });
    Ok(())
}

struct Task<'a> {
    k: &'a [Rows<'a, bf16>],
    v: &'a [Rows<'a, bf16>],
    head: Head<'a>,
    scratch: &'a mut Scratch,
}

impl Kernel for Task<'_> {
    type Output = ();

    #[inline(always)]
    fn run<S: Lanes>(self) {
        let Head { q, keys: length, how, bias, .. } = self.head;
        let (head, size) = (&self.head, q.cols);
        let Scratch { pairs: Pairs { keys, values, weights }, scores, room, .. } = self.scratch;
        pack_keys(self.k, (length, size), keys);
        pack_values(self.v, (length, size), values);
        let keys = Panels::of(&*keys, size, length);
        // The depth filled up with zeros, which the weights beyond the last key meet.
        let values = Panels::of(&*values, length.next_multiple_of(TILE_DEPTH), size);
        let mut sums = [0f32; QUERIES];

        for first in (0..q.rows).step_by(QUERIES) {
            let block = first..(first + QUERIES).min(q.rows);
            // The panels of keys that some query of the block sees.
            let sees = |query: usize| how.sees.range(head.place + query, length);
            let seen = sees(block.start).start..sees(block.end - 1).end;
            let panels = seen.start / PANEL..seen.end.div_ceil(PANEL);
            let (base, stride) = (panels.start * PANEL, panels.len() * PANEL);
            scores.resize(scores.len().max(QUERIES * stride), 0.0);
            weights.resize(weights.len().max(QUERIES * stride), bf16::ZERO);
            // [queries, keys]
            let mut sink = Scores { scores, first, column: base, stride };
            multiply::<S, bf16, bf16>(q, keys, block.clone(), panels, room, &mut sink);
            for (r, sum) in sums[..block.len()].iter_mut().enumerate() {
                let query = first + r;
                let own = sees(query);
                let scores = &mut scores[r * stride..][..stride];
                let (before, after) = (own.start - base, own.end - base);
                let bias = bias.map(|b| &b[head.origin + own.start - head.place - query..][..own.len()]);
                *sum = weigh::<S>(&mut scores[before..after], how, bias);
                scores[..before].fill(0.0);
                scores[after..].fill(0.0);
                // A panel's width is whole vectors of every instruction set.
                for i in (0..stride).step_by(S::WIDTH) {
                    let v = get::<S, f32>(scores, i, S::WIDTH, 0.0);
                    put::<S, bf16>(&mut weights[r * stride..][..stride], i, S::WIDTH, v);
                }
            }
            // [queries, size]
            let p = Rows { data: weights, rows: block.len(), cols: stride, stride };
            let at = head.first + first * head.stride;
            let mut sink = Values { sums: &sums, first: at, stride: head.stride, size, out: head.out };
            let values = values.part(base..base + stride);
            multiply::<S, bf16, bf16>(p, values, 0..block.len(), 0..size.div_ceil(PANEL), room, &mut sink);
        }
    }
}

/// Keys as columns: a pair of features of each key of a panel side by side.
#[inline(always)]
fn pack_keys(runs: &[Rows<'_, bf16>], (keys, size): (usize, usize), out: &mut Vec<bf16>) {
    out.clear();
    out.resize(packed_len::<bf16>(size, keys), bf16::ZERO);
    for (j, k) in runs.iter().flat_map(Rows::iter).enumerate() {
        let own = &mut out[j / PANEL * panel_len::<bf16>(size) + place::<bf16>(0, j % PANEL)..];
        // Whole pairs as such: a copy of unknown length would be a call for each.
        let (pairs, last) = k.as_chunks::<2>();
        for (slot, pair) in own.chunks_mut(2 * PANEL).zip(pairs) {
            (slot[0], slot[1]) = (pair[0], pair[1]);
        }
        if let [last] = last {
            own[pairs.len() * 2 * PANEL] = *last;
        }
    }
}

/// Values as they are: each feature of two of them side by side.
#[inline(always)]
fn pack_values(runs: &[Rows<'_, bf16>], (keys, size): (usize, usize), out: &mut Vec<bf16>) {
    out.clear();
    out.resize(packed_len::<bf16>(keys, size), bf16::ZERO);
    let mut rows = runs.iter().flat_map(Rows::iter);
    for j in (0..keys).step_by(2) {
        let Some(first) = rows.next() else { return };
        let second = rows.next();
        for (p, first) in first.chunks(PANEL).enumerate() {
            let (out, _) = out[p * panel_len::<bf16>(keys) + j * PANEL..][..2 * PANEL].as_chunks_mut::<2>();
            match second {
                Some(second) => {
                    let both = first.iter().zip(&second[p * PANEL..]);
                    out.iter_mut().zip(both).for_each(|(pair, (a, b))| *pair = [*a, *b]);
                }
                None => out.iter_mut().zip(first).for_each(|(pair, a)| pair[0] = *a),
            }
        }
    }
}
