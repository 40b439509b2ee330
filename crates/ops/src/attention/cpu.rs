//! Many queries of a sequence: a task is one head of it. Its keys and values are packed into panels once (a few tens of KiB),
//! then blocks of queries go through two products with the softmax between; only a block's scores exist at any time, and of
//! those only the panels of keys that the block sees. A few queries, as in decoding, take the way of [`super::decode`] instead.
#![allow(unsafe_code, reason = "tasks write disjoint parts of one output; SIMD lanes")]

use super::decode::{self, FEW};
use super::kv_view::{Heads, Lines, Source};
use super::pack::{pack, pack_keys};
use super::tiles;
use super::{Attention, AttentionOp, Bias, Mask};
use crate::cpu::elem::{Elem, get, put, vectors, with_elem};
use crate::cpu::gemm::{GemmScratch, PANEL, Panels, Sink, multiply};
use crate::cpu::rows::{Output, Reading, Rows};
use crate::cpu::{Isa, Kernel, Lanes, math, team};
use crate::kv_write::KvCacheFormat;
use crate::segments::Lengths;
use crate::softmax::exp_row;
use crate::tensor::{host, room};
use crate::{DType, Error, Result};
use half::bf16;
use std::cell::RefCell;
use std::ops::Range;

/// Queries whose scores are held at once: 24 rows of 512 keys are 48 KiB, and a multiple of every register tile.
const QUERIES: usize = 24;

/// Bytes of scratch that all workers hold, at most, for so many queries and keys of a sequence.
pub(super) fn scratch(how: &Attention, [tq, tk]: [usize; 2], heads: usize, size: usize) -> usize {
    let padded = tk.next_multiple_of(PANEL);
    let values = tk * size.next_multiple_of(PANEL);
    let scores = match how.sees {
        Mask::Window(reach) => padded.min(reach.saturating_mul(2).saturating_add(QUERIES + 2 * PANEL)),
        Mask::Recent(most) => padded.min(most.saturating_add(QUERIES + 2 * PANEL)),
        Mask::All | Mask::Causal => padded,
    };
    // Of each head or task: what is added by distance; the rows of positions, what meets them, and which they are.
    let (shared, positions) = match &how.bias {
        Bias::None => (0, 0),
        Bias::Alibi(_) | Bias::Buckets { .. } => (4 * heads * (tq + 2 * tk), 0),
        Bias::Disentangled(d) => {
            let rows = d.rows().min(tq + tk).next_multiple_of(PANEL);
            (0, 2 * rows * size + (QUERIES + tk) * rows + tk * size + 2 * (tq + tk))
        }
    };
    let many = padded * size + values + QUERIES * (scores + size) + positions;
    shared + crate::threads::count() * 4 * many.max(decode::scratch(tk, heads, size))
}

/// What a worker keeps from task to task.
#[derive(Default)]
pub(super) struct Scratch {
    pub(super) keys: Vec<f32>,
    pub(super) values: Vec<f32>,
    pub(super) scores: Vec<f32>,
    #[cfg_attr(not(target_arch = "x86_64"), allow(dead_code, reason = "only tiles have use for it"))]
    pub(super) pairs: tiles::Pairs,
    pub(super) room: GemmScratch,
    pub(super) row: Vec<f32>,
    position_keys: Vec<f32>,
    position_queries: Vec<f32>,
    met_by_queries: Vec<f32>,
    met_by_keys: Vec<f32>,
}

thread_local! {
    static SCRATCH: RefCell<Scratch> = RefCell::default();
}

/// What one task takes of one sequence.
enum Share {
    /// A head of all queries.
    Head { sequence: usize, head: usize },
    /// All queries of some of the heads that share keys.
    Few { sequence: usize, heads: Range<usize> },
}

pub(super) fn run(op: &AttentionOp, isa: Isa) -> Result<candle_core::Tensor> {
    let [_, heads, size] = *op.q.dims() else { return Err(Error::call("attention", "q has three axes")) };
    let how = &op.how;
    let group = heads / op.k.dims()[1];
    let sequences = how.queries.count();
    let (all, tk) = (how.queries.lengths(op.scope), how.keys.longest(op.scope));
    let first = |i: usize| how.sees.first(all.range(i).len(), how.keys.len(op.scope, i));
    let places = (0..sequences).map(|i| first(i) + all.range(i).len()).max().unwrap_or(1);
    let distances = places + tk - 1;
    let by_distance = how.bias.by_distance(heads, places, tk);
    let reached: Vec<Range<usize>> =
        (0..sequences).map(|i| how.sees.reached(all.range(i).len(), how.keys.len(op.scope, i))).collect();
    let runs: Vec<Vec<Range<usize>>> =
        reached.iter().enumerate().map(|(i, keys)| how.keys.runs(op.scope, i, keys.clone())).collect();
    let (k, v) = (Source::of(&op.k)?, Source::of(&op.v)?);
    let lines = |task: &Share| -> [Lines<'_>; 2] {
        let (sequence, head) = match task {
            Share::Head { sequence, head } => (*sequence, *head),
            Share::Few { sequence, heads } => (*sequence, heads.start),
        };
        [&k, &v].map(|from| Lines { from, head: head / group, size, runs: &runs[sequence] })
    };
    with_elem!("attention", op.q.dtype(), T => {
        let reading = Reading::of(&op.q)?;
        let q = Heads::<T>::of(&reading, size)?;
        let tables = match &how.bias {
            Bias::Disentangled(d) => [&d.keys, &d.queries],
            _ => [&None, &None],
        };
        let [pk, pq] = tables.map(|t| t.as_ref().map(Reading::of).transpose());
        let (pk, pq) = (pk?, pq?);
        let pk = pk.as_ref().map(|t| Heads::<T>::of(t, size)).transpose()?;
        let pq = pq.as_ref().map(|t| Heads::<T>::of(t, size)).transpose()?;
        // Only disentangled positions meet the keys once more.
        let meeting = if pq.is_some() { Some(Heads::<T>::of(k.floats()?, size)?) } else { None };
        let mut y = room::<T>(op.q.dims().iter().product());
        let out = Output::over(&mut y);
        // Keys and values as they are; disentangled positions meet them in f32.
        let in_tiles = isa == Isa::Amx
            && T::TYPE == DType::BF16
            && op.k.format() == KvCacheFormat::Float(DType::BF16)
            && !matches!(how.bias, Bias::Disentangled(_));
        let shares = shares(how, all, heads, group);
        team::try_each(shares.len(), |task| {
            let share = &shares[task];
            let lines = lines(share);
            SCRATCH.with_borrow_mut(|scratch| match share {
                Share::Few { sequence, heads: own } => {
                    let (sequence, own) = (*sequence, own.clone());
                    let queries = all.range(sequence);
                    decode::run(isa, &decode::Few {
                        q,
                        queries: queries.clone(),
                        heads: own,
                        lines,
                        how,
                        bias: by_distance.as_deref(),
                        distances,
                        origin: places - 1,
                        place: first(sequence) - reached[sequence].start,
                        keys: reached[sequence].len(),
                        stride: heads * size,
                        out: &out,
                    }, scratch)
                }
                Share::Head { sequence, head } => {
                    let (sequence, head) = (*sequence, *head);
                    let (queries, keys) = (all.range(sequence), reached[sequence].len());
                    scratch.room.isa = isa;
                    let (place, first) = (first(sequence) - reached[sequence].start, (queries.start * heads + head) * size);
                    // Distance 0 stands at `places − 1` in the head's row.
                    let bias = by_distance.as_ref().map(|b| &b[head * distances..][..distances]);
                    let origin = places - 1;
                    if let Some(out) = in_tiles.then(|| out.as_bf16()).flatten() {
                        let q = Heads::<bf16>::of(&reading, size)?.rows(head, queries);
                        let stride = heads * size;
                        return tiles::run(isa, &lines, tiles::Head { q, keys, how, place, bias, origin, first, stride, out }, scratch);
                    }
                    pack(isa, &lines, scratch)?;
                    // The rows of the tables that distances in this sequence reach, and the one for each distance i − j.
                    let index: Vec<usize> = match &how.bias {
                        Bias::Disentangled(d) => {
                            (1 - keys as i64..queries.len() as i64).map(|distance| d.row(distance)).collect()
                        }
                        _ => Vec::new(),
                    };
                    let rows = index.first().map_or(0..0, |first| *first..index[index.len() - 1] + 1);
                    isa.run(Task {
                        q: q.rows(head, queries.clone()),
                        k: meeting.map(|k| k.rows(head, runs[sequence][0].clone())),
                        keys,
                        how,
                        place,
                        bias,
                        origin,
                        position_keys: pk.map(|t| t.rows(head, rows.clone())),
                        position_queries: pq.map(|t| t.rows(head, rows.clone())),
                        index: &index,
                        first,
                        stride: heads * size,
                        out: &out,
                        scratch,
                    });
                    Ok(())
                }
            })
        })?;
        host(y, op.q.dims())
    })
}

/// Heads of sequences, one by one where there are many queries; where there are few, as many together as share their keys,
/// unless that leaves threads without work.
fn shares(how: &Attention, queries: &Lengths, heads: usize, group: usize) -> Vec<Share> {
    let few = !matches!(how.bias, Bias::Disentangled(_));
    let sequences = how.queries.count();
    let threads = crate::threads::count();
    let parts = threads.div_ceil((sequences * heads / group).max(1)).min(group);
    let step = group.div_ceil(parts);
    let of = |sequence: usize| -> Vec<Share> {
        if few && queries.range(sequence).len() <= FEW {
            let starts = (0..heads).step_by(group).flat_map(|g| (g..g + group).step_by(step).map(move |h| (g, h)));
            return starts.map(|(g, h)| Share::Few { sequence, heads: h..(h + step).min(g + group) }).collect();
        }
        (0..heads).map(|head| Share::Head { sequence, head }).collect()
    };
    (0..sequences).flat_map(of).collect()
}

struct Task<'a, T> {
    q: Rows<'a, T>,
    /// For disentangled positions only.
    k: Option<Rows<'a, T>>,
    /// How many, packed in the scratch.
    keys: usize,
    how: &'a Attention,
    /// Of the first query, among the keys.
    place: usize,
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
        let (length, size) = (self.keys, self.q.cols);
        let Scratch {
            keys,
            values,
            scores,
            room,
            row,
            position_keys,
            position_queries,
            met_by_queries,
            met_by_keys,
            ..
        } = self.scratch;
        let keys = Panels::of(&*keys, size, length);
        let values = Panels::of(&*values, length, size);
        let positions = self.position_keys.or(self.position_queries).map_or(0, |rows| rows.rows);
        let across = positions.next_multiple_of(PANEL);
        if let (Some(rows), Some(k)) = (self.position_queries, self.k) {
            pack_keys::<S, _>(&[rows], position_queries, row);
            met_by_keys.resize(length * across, 0.0);
            let table = Panels::of(&*position_queries, size, positions);
            let mut sink = Scores { scores: met_by_keys, first: 0, column: 0, stride: across };
            multiply::<S, T, f32>(k, table, 0..length, 0..across / PANEL, room, &mut sink);
        }
        if let Some(rows) = self.position_keys {
            pack_keys::<S, _>(&[rows], position_keys, row);
            met_by_queries.resize(QUERIES * across, 0.0);
        }
        let mut sums = [0f32; QUERIES];

        for first in (0..self.q.rows).step_by(QUERIES) {
            let block = first..(first + QUERIES).min(self.q.rows);
            // The panels of keys that some query of the block sees. The tile writes whole panels.
            let sees = |query: usize| self.how.sees.range(self.place + query, length);
            let seen = sees(block.start).start..sees(block.end - 1).end;
            let panels = seen.start / PANEL..seen.end.div_ceil(PANEL);
            let (base, stride) = (panels.start * PANEL, panels.len() * PANEL);
            scores.resize(QUERIES * stride, 0.0);
            // [queries, keys]
            let mut sink = Scores { scores, first, column: base, stride };
            multiply::<S, T, f32>(self.q, keys, block.clone(), panels, room, &mut sink);
            if self.position_keys.is_some() {
                let table = Panels::of(&*position_keys, size, positions);
                let mut sink = Scores { scores: met_by_queries, first, column: 0, stride: across };
                multiply::<S, T, f32>(self.q, table, block.clone(), 0..across / PANEL, room, &mut sink);
            }
            for (r, sum) in sums[..block.len()].iter_mut().enumerate() {
                let query = first + r;
                let own = sees(query);
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
                let bias = self.bias.map(|b| &b[self.origin + own.start - self.place - query..][..own.len()]);
                *sum = weigh::<S>(&mut scores[before..after], self.how, bias);
            }
            // [queries, size]
            let depth = base..seen.end;
            let p = Rows { data: &*scores, rows: block.len(), cols: depth.len(), stride };
            let first = self.first + first * self.stride;
            let mut sink = Values { sums: &sums, first, stride: self.stride, size, out: self.out };
            multiply::<S, f32, f32>(p, values.part(depth), 0..block.len(), 0..size.div_ceil(PANEL), room, &mut sink);
        }
    }
}

/// Scores become the softmax's numerators; returns their sum.
#[inline(always)]
pub(super) fn weigh<S: Lanes>(scores: &mut [f32], how: &Attention, bias: Option<&[f32]>) -> f32 {
    if how.cap.is_none() {
        return exp_row::<S>(scores, how.scale, bias);
    }
    cap_and_add::<S>(scores, how, bias);
    exp_row::<S>(scores, 1.0, None)
}

/// Scores are scaled, held below the cap where there is one, and `bias` is added.
#[inline(always)]
pub(super) fn cap_and_add<S: Lanes>(scores: &mut [f32], how: &Attention, bias: Option<&[f32]>) {
    // SAFETY: the contract of Lanes, kept by Isa::run.
    unsafe {
        let (within, cap) = (S::splat(how.scale / how.cap.unwrap_or(1.0)), how.cap.map(|cap| S::splat(cap)));
        vectors!(S, scores.len(), |i, lanes| {
            let mut v = S::mul(get::<S, f32>(scores, i, lanes, 0.0), within);
            if let Some(cap) = cap {
                v = S::mul(math::tanh::<S, 1>([v])[0], cap);
            }
            if let Some(bias) = bias {
                v = S::add(v, get::<S, f32>(bias, i, lanes, 0.0));
            }
            put::<S, f32>(scores, i, lanes, v);
        });
    }
}

/// Products of a block of queries, kept for the softmax.
pub(super) struct Scores<'a> {
    pub(super) scores: &'a mut [f32],
    /// The block's first query.
    pub(super) first: usize,
    /// The first column that is kept.
    pub(super) column: usize,
    pub(super) stride: usize,
}

impl Sink for Scores<'_> {
    #[inline(always)]
    fn take<S: Lanes>(&mut self, query: usize, column: usize, sums: &[f32; PANEL]) {
        let at = (query - self.first) * self.stride + column - self.column;
        self.scores[at..][..PANEL].copy_from_slice(sums);
    }
}

/// Weighted values, divided by the softmax's sum only here: once an element instead of once a score.
pub(super) struct Values<'a, T> {
    pub(super) sums: &'a [f32],
    /// Element of y where this head of the block's first query begins.
    pub(super) first: usize,
    pub(super) stride: usize,
    pub(super) size: usize,
    pub(super) out: &'a Output<T>,
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
