//! Launches `kernel.metal`: one dispatch for all large blocks, one for all small ones, and one that
//! joins split blocks. In grouped-query attention (GQA), the query heads that share a KV head are
//! rows of one block. Keys and values may be views of the KV cache.

use super::plan::{ITEM, JOIN, Plan};
use super::{AttentionOp, Bias, format_number};
use crate::kv_write::{KvCacheFormat, KvTensor};
use crate::launch::metal::{Call, Grid, Kernel, View, kernels};
use crate::launch::params;
use crate::{DType, Error, Result, Tensor};

const SOURCE: &str = kernels!("items.metal", "staging.metal");

/// Threads of a threadgroup.
const THREADS: usize = 128;

/// A tensor `[tokens, heads, size]` as a kernel argument.
struct TensorArg {
    view: View,
    scales: Option<View>,
    /// Elements from one token to the next, and from one head to the next.
    steps: [u32; 2],
    /// Whether each vector starts at a multiple of four elements, and has a multiple of four.
    aligned_to_4: bool,
}

impl TensorArg {
    fn of(t: &Tensor) -> Result<TensorArg> {
        let view = View::of(t)?;
        let layout = view.vectors()?;
        let aligned_to_4 = [view.start, layout.token, layout.head, layout.size].iter().all(|n| n.is_multiple_of(4));
        let steps = params![layout.token, layout.head];
        Ok(TensorArg { view, scales: None, steps, aligned_to_4 })
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
}

pub(super) fn run(op: &AttentionOp) -> Result<candle_core::Tensor> {
    let [_, heads, size] = *op.q.dims() else { return Err(Error::call("attention", "q must have three axes")) };
    let kv_heads = op.k.dims()[1];
    let options = &op.options;
    let plan = Plan::of(options, op.scope, kv_heads, heads / kv_heads);
    let (q, k, v) = (TensorArg::of(&op.q)?, TensorArg::kv(&op.k)?, TensorArg::kv(&op.v)?);
    let [c2p, p2c] = op.positions().map(|t| t.as_ref().map(TensorArg::of).transpose());
    let (c2p, p2c) = (c2p?, p2c?);
    let steps = |table: &Option<TensorArg>| table.as_ref().map_or([0; 2], |t| t.steps);

    let (positions, keys) = (plan.positions, plan.keys);
    let (kind, by_distance, rows, origin) = match &options.bias {
        Bias::None => (0, Vec::new(), Vec::new(), 0),
        Bias::Alibi(slopes) => (1, slopes.to_vec(), Vec::new(), 0),
        bias @ Bias::Buckets { .. } => {
            (2, bias.by_distance(heads, positions, keys).unwrap_or_default(), Vec::new(), positions - 1)
        }
        Bias::Disentangled(d) => {
            let rows = (1 - keys as i64..positions as i64).map(|distance| d.row(distance) as u32).collect();
            (0, Vec::new(), rows, keys - 1)
        }
    };
    let ([back, ahead], cap) = (op.reach(), options.cap.unwrap_or(1.0));
    // As `Shape` in the kernel.
    let shape = [
        &params![size, heads, kv_heads, heads / kv_heads][..],
        [q.steps, k.steps, v.steps, steps(&c2p), steps(&p2c)].as_flattened(),
        &params![back, ahead, options.scale, cap, positions + keys - 1, origin],
    ]
    .concat();

    // Keys in another format than q's are staged in f32, which represents all of them exactly.
    let staged = if op.k.format() == KvCacheFormat::Float(op.q.dtype()) { op.q.dtype() } else { DType::F32 };
    let padded = op.padded()?;
    let all = [Some(&q), Some(&k), Some(&v), c2p.as_ref(), p2c.as_ref()];
    let aligned_to_4 = all.into_iter().flatten().all(|t| t.aligned_to_4);
    let kernel = |name: String, together: bool| {
        Kernel::new(SOURCE, name)
            .flag(together)
            .number(format_number(op.q.dtype().into()))
            .number(format_number(op.k.format()))
            .flag(aligned_to_4)
            .number(op.page() as u16)
            .flag(options.cap.is_some())
            .number(kind)
            .flag(c2p.is_some())
            .flag(p2c.is_some())
    };
    let y = Call::alloc(&q.view, op.q.dims().iter().product(), op.q.dtype())?;
    let parts = Call::alloc(&q.view, plan.parts(size).max(1), DType::F32)?;
    for (items, together) in [(&plan.large, true), (&plan.small, false)] {
        if items.is_empty() {
            continue;
        }
        let placeholder = &q.view;
        Call::new(&q.view, &kernel(format!("attention_{staged}_{padded}"), together))?
            .input(&q.view)
            .input(&k.view)
            .input(&v.view)
            .input_or(k.scales.as_ref(), placeholder)
            .input_or(v.scales.as_ref(), placeholder)
            .result(&y)
            .result(&parts)
            .numbers(&shape)
            .array(items)?
            .array(&plan.pages)?
            .floats(&by_distance)?
            .array(&rows)?
            .input_or(c2p.as_ref().map(|t| &t.view), placeholder)
            .input_or(p2c.as_ref().map(|t| &t.view), placeholder)
            .run(Grid { groups: [items.len() / ITEM, kv_heads, 1], threads: THREADS })?;
    }
    if !plan.joins.is_empty() {
        Call::new(&q.view, &kernel("attention_join".into(), true))?
            .made(&parts)
            .result(&y)
            .numbers(&shape)
            .array(&plan.joins)?
            .run(Grid { groups: [plan.joins.len() / JOIN, kv_heads, 1], threads: THREADS })?;
    }
    y.tensor(op.q.dims())
}
