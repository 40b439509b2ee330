//! Attention of many queries: a task is one head of a sequence. It packs the keys and values into
//! panels once (a few tens of KiB), then takes blocks of queries through two products with the
//! softmax between. Only a block's scores exist at any time, and of those only the panels of keys
//! that the block attends to. Keys and values are packed from tensors or from the KV cache. A few
//! queries, as in decoding, take [`super::decode`] instead.
#![allow(unsafe_code, reason = "tasks write disjoint parts of one output; SIMD lanes")]

use super::decode::{self, MAX_QUERIES};
use super::kv_view::{HeadView, Heads, Source};
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

/// Queries per block: 24 rows of 512 keys are 48 KiB, and a multiple of every register tile.
const QUERIES: usize = 24;

/// Scratch bytes of all workers, at most, for `tq` queries and `tk` keys of a sequence.
pub(super) fn scratch(options: &Attention, [tq, tk]: [usize; 2], heads: usize, size: usize) -> usize {
    let padded = tk.next_multiple_of(PANEL);
    let values = tk * size.next_multiple_of(PANEL);
    let scores = match options.mask {
        Mask::Window(reach) => padded.min(reach.saturating_mul(2).saturating_add(QUERIES + 2 * PANEL)),
        Mask::CausalWindow(most) => padded.min(most.saturating_add(QUERIES + 2 * PANEL)),
        Mask::All | Mask::Causal => padded,
    };
    // The bias by distance is shared by all tasks; each task has its own rows of positions, their
    // products and the row indices.
    let (bias, positions) = match &options.bias {
        Bias::None => (0, 0),
        Bias::Alibi(_) | Bias::Buckets { .. } => (4 * heads * (tq + 2 * tk), 0),
        Bias::Disentangled(d) => {
            let rows = d.rows().min(tq + tk).next_multiple_of(PANEL);
            (0, 2 * rows * size + (QUERIES + tk) * rows + tk * size + 2 * (tq + tk))
        }
    };
    let per_head = padded * size + values + QUERIES * (scores + size) + positions;
    bias + crate::threads::count() * 4 * per_head.max(decode::scratch(tk, heads, size))
}

/// Buffers that a worker thread reuses from task to task.
#[derive(Default)]
pub(super) struct Scratch {
    pub(super) keys: Vec<f32>,
    pub(super) values: Vec<f32>,
    pub(super) scores: Vec<f32>,
    #[cfg_attr(not(target_arch = "x86_64"), allow(dead_code, reason = "only the AMX kernel uses it"))]
    pub(super) tile_buffers: tiles::TileBuffers,
    pub(super) room: GemmScratch,
    pub(super) row: Vec<f32>,
    position_keys: Vec<f32>,
    position_queries: Vec<f32>,
    c2p_scores: Vec<f32>,
    p2c_scores: Vec<f32>,
}

thread_local! {
    static SCRATCH: RefCell<Scratch> = RefCell::default();
}

/// The part of a sequence that one task computes.
enum Assignment {
    /// One head of all queries.
    Head { sequence: usize, head: usize },
    /// All queries of some heads that share a KV head, by the decode kernel.
    Decode { sequence: usize, heads: Range<usize> },
}

pub(super) fn run(op: &AttentionOp, isa: Isa) -> Result<candle_core::Tensor> {
    let [_, heads, size] = *op.q.dims() else { return Err(Error::call("attention", "q must have three axes")) };
    let options = &op.options;
    let group = heads / op.k.dims()[1];
    let sequences = options.queries.count();
    let (all, tk) = (options.queries.lengths(op.scope), options.keys.longest(op.scope));
    let offset = |i: usize| options.mask.query_offset(all.range(i).len(), options.keys.len(op.scope, i));
    let query_positions = (0..sequences).map(|i| offset(i) + all.range(i).len()).max().unwrap_or(1);
    let distances = query_positions + tk - 1;
    let by_distance = options.bias.by_distance(heads, query_positions, tk);
    let reachable: Vec<Range<usize>> = (0..sequences)
        .map(|i| options.mask.reachable_keys(all.range(i).len(), options.keys.len(op.scope, i)))
        .collect();
    let runs: Vec<Vec<Range<usize>>> =
        reachable.iter().enumerate().map(|(i, keys)| options.keys.runs(op.scope, i, keys.clone())).collect();
    let (k, v) = (Source::of(&op.k)?, Source::of(&op.v)?);
    let views = |task: &Assignment| -> [HeadView<'_>; 2] {
        let (sequence, head) = match task {
            Assignment::Head { sequence, head } => (*sequence, *head),
            Assignment::Decode { sequence, heads } => (*sequence, heads.start),
        };
        [&k, &v].map(|source| HeadView { source, head: head / group, size, runs: &runs[sequence] })
    };
    with_elem!("attention", op.q.dtype(), T => {
        let reading = Reading::of(&op.q)?;
        let q = Heads::<T>::of(&reading, size)?;
        let tables = match &options.bias {
            Bias::Disentangled(d) => [&d.keys, &d.queries],
            _ => [&None, &None],
        };
        let [pk, pq] = tables.map(|t| t.as_ref().map(Reading::of).transpose());
        let (pk, pq) = (pk?, pq?);
        let pk = pk.as_ref().map(|t| Heads::<T>::of(t, size)).transpose()?;
        let pq = pq.as_ref().map(|t| Heads::<T>::of(t, size)).transpose()?;
        // Only position-to-content terms read the keys again.
        let k_floats = if pq.is_some() { Some(Heads::<T>::of(k.floats()?, size)?) } else { None };
        let mut y = room::<T>(op.q.dims().iter().product());
        let out = Output::over(&mut y);
        // The AMX kernel reads bf16 keys and values as they are; disentangled positions need f32.
        let use_amx = isa == Isa::Amx
            && T::TYPE == DType::BF16
            && op.k.format() == KvCacheFormat::Float(DType::BF16)
            && !matches!(options.bias, Bias::Disentangled(_));
        let assignments = assignments(options, all, heads, group);
        team::try_each(assignments.len(), |task| {
            let assignment = &assignments[task];
            let views = views(assignment);
            SCRATCH.with_borrow_mut(|scratch| match assignment {
                Assignment::Decode { sequence, heads: group_heads } => {
                    let (sequence, group_heads) = (*sequence, group_heads.clone());
                    let queries = all.range(sequence);
                    let task = decode::DecodeTask {
                        queries: queries.clone(),
                        heads: group_heads,
                        views,
                        options,
                        bias: by_distance.as_deref(),
                        distances,
                        origin: query_positions - 1,
                        offset: offset(sequence) - reachable[sequence].start,
                        keys: reachable[sequence].len(),
                        stride: heads * size,
                    };
                    decode::run(isa, &task, q, &out, scratch)
                }
                Assignment::Head { sequence, head } => {
                    let (sequence, head) = (*sequence, *head);
                    let (queries, keys) = (all.range(sequence), reachable[sequence].len());
                    scratch.room.isa = isa;
                    let (offset, first) = (offset(sequence) - reachable[sequence].start, (queries.start * heads + head) * size);
                    // Distance 0 is at `query_positions − 1` in the head's row.
                    let bias = by_distance.as_ref().map(|b| &b[head * distances..][..distances]);
                    let origin = query_positions - 1;
                    if let Some(out) = use_amx.then(|| out.as_bf16()).flatten() {
                        let q = Heads::<bf16>::of(&reading, size)?.rows(head, queries);
                        let stride = heads * size;
                        return tiles::run(isa, &views, tiles::HeadTask { q, keys, options, offset, bias, origin, first, stride, out }, scratch);
                    }
                    pack(isa, &views, scratch)?;
                    // The table rows that distances in this sequence select, and the row of each
                    // distance i − j.
                    let index: Vec<usize> = match &options.bias {
                        Bias::Disentangled(d) => {
                            (1 - keys as i64..queries.len() as i64).map(|distance| d.row(distance)).collect()
                        }
                        _ => Vec::new(),
                    };
                    let rows = index.first().map_or(0..0, |first| *first..index[index.len() - 1] + 1);
                    isa.run(Task {
                        q: q.rows(head, queries.clone()),
                        k: k_floats.map(|k| k.rows(head, runs[sequence][0].clone())),
                        keys,
                        options,
                        offset,
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

/// Splits sequences into tasks: one per head for many queries; for a few queries, one per group of
/// heads that share a KV head (grouped-query attention, GQA), or part of a group where threads
/// would idle otherwise.
fn assignments(options: &Attention, queries: &Lengths, heads: usize, group: usize) -> Vec<Assignment> {
    let use_decode = !matches!(options.bias, Bias::Disentangled(_));
    let sequences = options.queries.count();
    let threads = crate::threads::count();
    let parts = threads.div_ceil((sequences * heads / group).max(1)).min(group);
    let step = group.div_ceil(parts);
    let of = |sequence: usize| -> Vec<Assignment> {
        if use_decode && queries.range(sequence).len() <= MAX_QUERIES {
            let starts = (0..heads).step_by(group).flat_map(|g| (g..g + group).step_by(step).map(move |h| (g, h)));
            return starts.map(|(g, h)| Assignment::Decode { sequence, heads: h..(h + step).min(g + group) }).collect();
        }
        (0..heads).map(|head| Assignment::Head { sequence, head }).collect()
    };
    (0..sequences).flat_map(of).collect()
}

struct Task<'a, T> {
    q: Rows<'a, T>,
    /// For disentangled positions only.
    k: Option<Rows<'a, T>>,
    /// Number of keys, which are packed in the scratch.
    keys: usize,
    options: &'a Attention,
    /// Position of the first query among the keys.
    offset: usize,
    /// What this head adds by distance; distance 0 is at `origin`.
    bias: Option<&'a [f32]>,
    origin: usize,
    /// The rows of disentangled positions that this sequence uses, and the row of each distance i −
    /// j, from −(keys − 1) on.
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
    const BF16: bool = T::IS_BF16;

    #[inline(always)]
    fn run<S: Lanes>(self) {
        let (length, size) = (self.keys, self.q.cols);
        let Scratch {
            keys, values, scores, room, row, position_keys, position_queries, c2p_scores, p2c_scores, ..
        } = self.scratch;
        let keys = Panels::of(&*keys, size, length);
        let values = Panels::of(&*values, length, size);
        let positions = self.position_keys.or(self.position_queries).map_or(0, |rows| rows.rows);
        let across = positions.next_multiple_of(PANEL);
        if let (Some(rows), Some(k)) = (self.position_queries, self.k) {
            pack_keys::<S, _>(&[rows], position_queries, row);
            p2c_scores.resize(length * across, 0.0);
            let table = Panels::of(&*position_queries, size, positions);
            let mut sink = Scores { scores: p2c_scores, first: 0, column: 0, stride: across };
            multiply::<S, T, f32>(k, table, 0..length, 0..across / PANEL, room, &mut sink);
        }
        if let Some(rows) = self.position_keys {
            pack_keys::<S, _>(&[rows], position_keys, row);
            c2p_scores.resize(QUERIES * across, 0.0);
        }
        let mut sums = [0f32; QUERIES];

        for first in (0..self.q.rows).step_by(QUERIES) {
            let block = first..(first + QUERIES).min(self.q.rows);
            // The panels of keys that some query of the block attends to. The tile writes whole
            // panels.
            let visible_keys = |query: usize| self.options.mask.range(self.offset + query, length);
            let block_keys = visible_keys(block.start).start..visible_keys(block.end - 1).end;
            let panels = block_keys.start / PANEL..block_keys.end.div_ceil(PANEL);
            let (base, stride) = (panels.start * PANEL, panels.len() * PANEL);
            scores.resize(QUERIES * stride, 0.0);
            // [queries, keys]
            let mut sink = Scores { scores, first, column: base, stride };
            multiply::<S, T, f32>(self.q, keys, block.clone(), panels, room, &mut sink);
            if self.position_keys.is_some() {
                let table = Panels::of(&*position_keys, size, positions);
                let mut sink = Scores { scores: c2p_scores, first, column: 0, stride: across };
                multiply::<S, T, f32>(self.q, table, block.clone(), 0..across / PANEL, room, &mut sink);
            }
            for (r, sum) in sums[..block.len()].iter_mut().enumerate() {
                let query = first + r;
                let visible = visible_keys(query);
                let scores = &mut scores[r * stride..][..block_keys.end - base];
                if positions > 0 {
                    let row = self.index[0];
                    for key in visible.clone() {
                        let at = self.index[query + length - 1 - key] - row;
                        if self.position_keys.is_some() {
                            scores[key - base] += c2p_scores[r * across + at];
                        }
                        if self.position_queries.is_some() {
                            scores[key - base] += p2c_scores[key * across + at];
                        }
                    }
                }
                let (before, after) = (visible.start - base, visible.end - base);
                scores[..before].fill(0.0);
                scores[after..].fill(0.0);
                let bias = self.bias.map(|b| &b[self.origin + visible.start - self.offset - query..][..visible.len()]);
                *sum = softmax_numerators::<S>(&mut scores[before..after], self.options, bias);
            }
            // [queries, size]
            let depth = base..block_keys.end;
            let p = Rows { data: &*scores, rows: block.len(), cols: depth.len(), stride };
            let first = self.first + first * self.stride;
            let mut sink = Values { sums: &sums, first, stride: self.stride, size, out: self.out };
            multiply::<S, f32, f32>(p, values.part(depth), 0..block.len(), 0..size.div_ceil(PANEL), room, &mut sink);
        }
    }
}

/// Replaces scores by the softmax's numerators; returns their sum.
#[inline(always)]
pub(super) fn softmax_numerators<S: Lanes>(scores: &mut [f32], options: &Attention, bias: Option<&[f32]>) -> f32 {
    if options.cap.is_none() {
        return exp_row::<S>(scores, options.scale, bias);
    }
    cap_and_add::<S>(scores, options, bias);
    exp_row::<S>(scores, 1.0, None)
}

/// Scales scores, applies the soft cap if there is one, and adds `bias`.
#[inline(always)]
pub(super) fn cap_and_add<S: Lanes>(scores: &mut [f32], options: &Attention, bias: Option<&[f32]>) {
    // SAFETY: the contract of Lanes, kept by Isa::run.
    unsafe {
        let (within, cap) =
            (S::splat(options.scale / options.cap.unwrap_or(1.0)), options.cap.map(|cap| S::splat(cap)));
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

/// Receives the scores of a block of queries.
pub(super) struct Scores<'a> {
    pub(super) scores: &'a mut [f32],
    /// The block's first query.
    pub(super) first: usize,
    /// The first column stored.
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

/// Receives the weighted values and divides by the softmax's sum: once per element instead of once
/// per score.
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
        // A query that attends to no key (a window beyond the last key) yields zeros, not 0 / 0.
        let sum = if self.sums[row] == 0.0 { 1.0 } else { self.sums[row] };
        let at = self.first + row * self.stride + column;
        // SAFETY: the row is a token of this task's segment and column + columns ≤ size; only this
        // task writes there.
        let y = unsafe { self.out.part(at, columns) };
        vectors!(S, columns, |i, lanes| {
            let v = get::<S, f32>(sums, i, lanes, 0.0);
            // SAFETY: the contract of Lanes, kept by Isa::run.
            put::<S, T>(y, i, lanes, unsafe { S::div(v, S::splat(sum)) });
        });
    }
}
