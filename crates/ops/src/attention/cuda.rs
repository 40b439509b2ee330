//! Launches `kernel.cu` and `q8_disentangled.cu` (tensor cores) or `simt.cu` (f32): the decode
//! kernel for sequences with few rows, and another for those with many. In grouped-query attention
//! (GQA), the rows of a sequence are those of all query heads that share a KV head. Keys and values
//! may be views of the KV cache.

use super::tables::{KernelKind, Launch, Tables};
use super::{Attention, AttentionOp, Bias, Mask, format_number};
use crate::kv_write::KvTensor;
use crate::launch::cuda::{Binary, Call, Grid, Kernel, View, binary};
use crate::launch::params;
use crate::replay::BatchLayout;
use crate::{DType, Error, Result, Tensor};
use std::sync::Arc;

const TILES: Binary = binary!("attention");
const Q8_DISENTANGLED: Binary = binary!("attention_q8_disentangled");
const SIMT: Binary = binary!("attention_simt");

/// A tensor `[tokens, heads, size]` as a kernel argument.
struct TensorArg {
    view: View,
    scales: Option<View>,
    token: usize,
    head: usize,
}

impl TensorArg {
    fn of(t: &Tensor) -> Result<TensorArg> {
        let view = View::of(t)?;
        let layout = view.vectors()?;
        Ok(TensorArg { view, scales: None, token: layout.token, head: layout.head })
    }

    fn kv(t: &KvTensor) -> Result<TensorArg> {
        match t {
            KvTensor::Float(floats) => TensorArg::of(floats),
            // The kernel computes a scale's index from that of its code.
            KvTensor::Q8 { codes, scales } => {
                View::whole(codes)?;
                Ok(TensorArg { scales: Some(View::whole(scales)?), ..TensorArg::of(codes)? })
            }
        }
    }

    /// Whether every vector starts at a multiple of `n` elements.
    fn is_aligned(&self, n: usize) -> bool {
        [self.view.start, self.token, self.head].iter().all(|at| at.is_multiple_of(n))
    }
}

/// The sequence table as a dynamic array: a CUDA graph replay recomputes it for other sequences.
struct DynamicTables<'a> {
    op: &'a AttentionOp,
    tables: &'a Arc<Tables>,
    kernel_kind: KernelKind,
    heads: [usize; 2],
}

impl DynamicTables<'_> {
    fn add_to(&self, call: Call) -> Result<Call> {
        let DynamicTables { op: AttentionOp { options, scope, .. }, tables, kernel_kind, heads } = *self;
        // A pass may have several sets of keys (self- and cross-attention): find this op's.
        let keys_index = |given: &BatchLayout| given.keys.iter().position(|keys| options.keys.are(keys));
        let is_current = |given: &BatchLayout| options.queries.is(&given.segments) && keys_index(given).is_some();
        let bias = || match &options.bias {
            Bias::None => String::new(),
            Bias::Alibi(slopes) => format!("{slopes:?}"),
            Bias::Buckets { table, far, both } => format!("{table:?} {far} {both}"),
            Bias::Disentangled(d) => format!("{} {:?}", d.span, d.far),
        };
        let key = |given: &BatchLayout| {
            format!("attention {kernel_kind:?} {heads:?} {:?} {:?} {}", keys_index(given), options.mask, bias())
        };
        call.dynamic_array(&tables.words, is_current, key, |given| {
            let (options, scope, tables, keys_index) = (options.clone(), *scope, tables.clone(), keys_index(given));
            Box::new(move |given| {
                let keys = given.keys.get(keys_index?)?.clone();
                let options = Attention { queries: given.segments.clone(), keys, ..options.clone() };
                let updated = Tables::of(&options, scope, kernel_kind, heads);
                updated.same_layout(&tables).then_some(updated.words)
            })
        })
    }
}

/// Shared memory of a block, for heads of `padded` elements. As in the kernels.
fn shared_bytes(launch: &Launch, padded: usize, has_positions: bool) -> usize {
    match launch.kind {
        "simt" => 4 * 32 * (padded + 4) * (2 + usize::from(has_positions)),
        "disentangled" => 2 * (padded + 8) * (launch.rows + 2 * 64 + 2 * 128) + 4 * 4 * 16 * 84,
        "decode_q8" | "tile64_q8" => 2 * (padded + 8) * (launch.rows + 4 * 64),
        kind => {
            let keys = if kind != "decode" && padded * launch.warps >= 1024 { 32 } else { 64 };
            let stages = if padded > 128 { 1 } else { 2 };
            let queries = if loops_over_heads(launch, padded) { stages } else { 1 };
            2 * (padded + 8) * (queries * launch.rows + stages * 2 * keys)
        }
    }
}

/// Blocks that keep a GPU busy, and the most KV heads per block: with more, other blocks wait
/// longer for the longest sequence.
const ENOUGH_BLOCKS: usize = 1024;
const MAX_HEADS_PER_BLOCK: usize = 4;

/// Whether a block may loop over several KV heads. As in the kernels.
fn loops_over_heads(launch: &Launch, padded: usize) -> bool {
    launch.kind == "tile64" && padded <= 64
}

/// KV heads that a block takes one after another, so that it waits for memory only before the
/// first: as many as leave enough blocks.
fn heads_per_block(launch: &Launch, padded: usize, kv_heads: usize) -> usize {
    let enough = |n: &usize| kv_heads.is_multiple_of(*n) && launch.blocks * kv_heads >= ENOUGH_BLOCKS * n;
    let limit =
        if loops_over_heads(launch, padded) && launch.splits == 1 { kv_heads.min(MAX_HEADS_PER_BLOCK) } else { 1 };
    (1..=limit).rev().find(enough).unwrap_or(1)
}

pub(super) fn run(op: &AttentionOp) -> Result<candle_core::Tensor> {
    let [_, heads, size] = *op.q.dims() else { return Err(Error::call("attention", "q must have three axes")) };
    let (options, kv_heads, dtype) = (&op.options, op.k.dims()[1], op.q.dtype());
    let kernel_kind = KernelKind::of(op);
    let tables = op.tables();
    let dynamic_tables = DynamicTables { op, tables, kernel_kind, heads: [heads, kv_heads] };
    let (q, k, v) = (TensorArg::of(&op.q)?, TensorArg::kv(&op.k)?, TensorArg::kv(&op.v)?);
    let [c2p, p2c] = op.positions().map(|t| t.as_ref().map(TensorArg::of).transpose());
    let (c2p, p2c) = (c2p?, p2c?);
    let padded = op.padded()?;
    // Tiles are copied 16 bytes at a time, and Q8 codes are always aligned to that; everything else
    // is read four elements at a time.
    let run = if kernel_kind == KernelKind::F32 { 4 } else { 8 };
    let args = [Some(&q), Some(&k), Some(&v), c2p.as_ref(), p2c.as_ref()];
    let is_aligned = size.is_multiple_of(run) && args.into_iter().flatten().all(|t| t.is_aligned(run));
    if kernel_kind == KernelKind::Quantized && ![&k, &v].iter().all(|t| t.is_aligned(16)) {
        return Err(Error::call("attention", "Q8 codes of k and v must start at multiples of 16 elements"));
    }
    let (page, [back, ahead]) = (op.page(), op.reach());
    let bias_kind = match options.bias {
        Bias::None | Bias::Disentangled(_) => 0,
        Bias::Alibi(_) => 1,
        Bias::Buckets { .. } => 2,
    };
    let add_params = |call: Call, launch: &Launch| {
        let steps = |call: Call, t: Option<&TensorArg>| call.u32(t.map_or(0, |t| t.token)).u32(t.map_or(0, |t| t.head));
        let call = call.numbers(&params![size, heads, kv_heads]);
        let call = args.into_iter().fold(call, steps);
        call.numbers(&params![is_aligned, usize::from(format_number(op.k.format())), page])
            .numbers(&params![back, ahead, matches!(options.mask, Mask::Causal | Mask::CausalWindow(_))])
            .numbers(&params![options.scale, options.cap.unwrap_or(0.0), bias_kind])
            .numbers(&params![tables.bias, tables.reach as i32, tables.distances])
            .numbers(&params![tables.distance_count, tables.origin as i32])
            .numbers(&params![launch.entries, launch.splits, launch.tickets, heads_per_block(launch, padded, kv_heads)])
    };
    // The conditions of `encoder_shape` in `task.cuh`, besides those of the launch.
    let fits_encoder = is_aligned
        && heads == kv_heads
        && page == 0
        && options.mask == Mask::All
        && bias_kind == 0
        && options.cap.is_none();
    let y = Call::alloc(&q.view, op.q.dims().iter().product(), dtype)?;
    for launch in &tables.launches {
        let parts = Call::alloc(&q.view, launch.parts(kv_heads, size), DType::F32)?;
        let bytes = shared_bytes(launch, padded, c2p.is_some() || p2c.is_some());
        let binary = match kernel_kind {
            KernelKind::TensorCores { .. } => TILES,
            KernelKind::Quantized | KernelKind::Disentangled => Q8_DISENTANGLED,
            KernelKind::F32 => SIMT,
        };
        let is_encoder =
            launch.kind == "tile64" && launch.splits == 1 && fits_encoder && padded == size && padded <= 64;
        let kind = if is_encoder { "encoder" } else { launch.kind };
        let kernel = Kernel::new(binary, format!("attention_{kind}_{dtype}_{padded}")).shared(bytes);
        let call = Call::new(&q.view, &kernel)?.input(&q.view).input(&k.view).input(&v.view);
        let call = call.optional_input(k.scales.as_ref()).optional_input(v.scales.as_ref());
        let positions = [&c2p, &p2c].map(|t| t.as_ref().map(|t| &t.view));
        let call = positions.into_iter().fold(call, Call::optional_input);
        let grid = Grid::of(launch.grid(kv_heads) / heads_per_block(launch, padded, kv_heads), 32 * launch.warps);
        let call = add_params(dynamic_tables.add_to(call.made(&y).made(&parts))?, launch);
        let call = if is_encoder { call.alternate_row_order() } else { call.u32(0) };
        call.run(grid)?;
    }
    y.tensor(op.q.dims())
}
