//! Launches `kernel.metal`: one dispatch for all blocks of many rows, one for those of few, and one that joins what was split.

use super::plan::{ITEM, JOIN, Plan};
use super::{AttentionOp, Bias, format_number};
use crate::kv_write::{KvCacheFormat, KvTensor};
use crate::launch::metal::{Call, Grid, Kernel, View, kernels};
use crate::launch::params;
use crate::{DType, Error, Result, Tensor};

const SOURCE: &str = kernels!("items.metal", "staging.metal");

/// Threads of a threadgroup.
const THREADS: usize = 128;

/// Vectors `[tokens, heads, size]` as the kernel reads them.
struct Read {
    view: View,
    scales: Option<View>,
    /// Elements from one token to the next, and from one head to the next.
    steps: [u32; 2],
    /// Whether each vector begins at a multiple of four elements, and has such a number of them.
    in_fours: bool,
}

impl Read {
    fn of(t: &Tensor) -> Result<Read> {
        let view = View::of(t)?;
        let lines = view.vectors()?;
        let in_fours = [view.start, lines.token, lines.head, lines.size].iter().all(|n| n.is_multiple_of(4));
        let steps = params![lines.token, lines.head];
        Ok(Read { view, scales: None, steps, in_fours })
    }

    fn cached(t: &KvTensor) -> Result<Read> {
        match t {
            KvTensor::Float(floats) => Read::of(floats),
            // The kernel finds a scale by the number of its code.
            KvTensor::Q8 { codes, scales } => {
                View::whole(codes)?;
                Ok(Read { scales: Some(View::whole(scales)?), ..Read::of(codes)? })
            }
        }
    }
}

pub(super) fn run(op: &AttentionOp) -> Result<candle_core::Tensor> {
    let [_, heads, size] = *op.q.dims() else { return Err(Error::call("attention", "q has three axes")) };
    let shared = op.k.dims()[1];
    let how = &op.how;
    let plan = Plan::of(how, op.scope, shared, heads / shared);
    let (q, k, v) = (Read::of(&op.q)?, Read::cached(&op.k)?, Read::cached(&op.v)?);
    let [met_by_queries, met_by_keys] = op.positions().map(|t| t.as_ref().map(Read::of).transpose());
    let (met_by_queries, met_by_keys) = (met_by_queries?, met_by_keys?);
    let steps = |table: &Option<Read>| table.as_ref().map_or([0; 2], |t| t.steps);

    let (places, keys) = (plan.places, plan.keys);
    let (kind, by_distance, rows, origin) = match &how.bias {
        Bias::None => (0, Vec::new(), Vec::new(), 0),
        Bias::Alibi(slopes) => (1, slopes.to_vec(), Vec::new(), 0),
        bias @ Bias::Buckets { .. } => {
            (2, bias.by_distance(heads, places, keys).unwrap_or_default(), Vec::new(), places - 1)
        }
        Bias::Disentangled(d) => {
            let rows = (1 - keys as i64..places as i64).map(|distance| d.row(distance) as u32).collect();
            (0, Vec::new(), rows, keys - 1)
        }
    };
    let ([back, ahead], cap) = (op.reach(), how.cap.unwrap_or(1.0));
    // As `Shape` in the kernel.
    let told = [
        &params![size, heads, shared, heads / shared][..],
        [q.steps, k.steps, v.steps, steps(&met_by_queries), steps(&met_by_keys)].as_flattened(),
        &params![back, ahead, how.scale, cap, places + keys - 1, origin],
    ]
    .concat();

    // Keys that are not in q's format are staged in f32, in which all of them are exact.
    let staged = if op.k.format() == KvCacheFormat::Float(op.q.dtype()) { op.q.dtype() } else { DType::F32 };
    let padded = op.padded()?;
    let all = [Some(&q), Some(&k), Some(&v), met_by_queries.as_ref(), met_by_keys.as_ref()];
    let in_fours = all.into_iter().flatten().all(|t| t.in_fours);
    let kernel = |name: String, together: bool| {
        Kernel::new(SOURCE, name)
            .flag(together)
            .number(format_number(op.q.dtype().into()))
            .number(format_number(op.k.format()))
            .flag(in_fours)
            .number(op.page() as u16)
            .flag(how.cap.is_some())
            .number(kind)
            .flag(met_by_queries.is_some())
            .flag(met_by_keys.is_some())
    };
    let y = Call::room(&q.view, op.q.dims().iter().product(), op.q.dtype())?;
    let parts = Call::room(&q.view, plan.parts(size).max(1), DType::F32)?;
    for (items, together) in [(&plan.many, true), (&plan.few, false)] {
        if items.is_empty() {
            continue;
        }
        let instead = &q.view;
        Call::new(&q.view, &kernel(format!("attention_{staged}_{padded}"), together))?
            .input(&q.view)
            .input(&k.view)
            .input(&v.view)
            .input_or(k.scales.as_ref(), instead)
            .input_or(v.scales.as_ref(), instead)
            .result(&y)
            .result(&parts)
            .numbers(&told)
            .array(items)?
            .array(&plan.pages)?
            .floats(&by_distance)?
            .array(&rows)?
            .input_or(met_by_queries.as_ref().map(|t| &t.view), instead)
            .input_or(met_by_keys.as_ref().map(|t| &t.view), instead)
            .run(Grid { groups: [items.len() / ITEM, shared, 1], threads: THREADS })?;
    }
    if !plan.joins.is_empty() {
        Call::new(&q.view, &kernel("attention_join".into(), true))?
            .made(&parts)
            .result(&y)
            .numbers(&told)
            .array(&plan.joins)?
            .run(Grid { groups: [plan.joins.len() / JOIN, shared, 1], threads: THREADS })?;
    }
    y.tensor(op.q.dims())
}
