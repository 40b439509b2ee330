//! Launches `kernel.metal`: one dispatch for all blocks of many rows, one for those of few, and one that joins what was split.

use super::plan::{ITEM, JOIN, Plan, SIZES};
use super::{AttentionOp, Bias, Keys, Sees};
use crate::launch::metal::{Call, Grid, Kernel, Told, View, kernels};
use crate::store::{CacheFormat, Vectors};
use crate::{DType, Error, Result, Tensor};

const SOURCE: &str = kernels!("items.metal", "staging.metal");

/// Threads of a threadgroup.
const THREADS: usize = 128;

/// A distance that no query and key have.
const FAR: usize = 1 << 30;

/// As `Shape` in the kernel.
#[derive(Clone, Copy)]
#[repr(C)]
struct Shape {
    size: u32,
    heads: u32,
    shared: u32,
    group: u32,
    q: Steps,
    k: Steps,
    v: Steps,
    position_keys: Steps,
    position_queries: Steps,
    back: i32,
    ahead: i32,
    scale: f32,
    cap: f32,
    distances: u32,
    origin: u32,
}

/// Elements from one token to the next, and from one head to the next.
#[derive(Clone, Copy)]
#[repr(C)]
struct Steps {
    token: u32,
    head: u32,
}

// SAFETY: numbers of four bytes.
#[allow(unsafe_code, reason = "a promise about a layout")]
unsafe impl Told for Shape {}

/// Vectors `[tokens, heads, size]` as the kernel reads them.
struct Read {
    view: View,
    scales: Option<View>,
    steps: Steps,
    /// Whether each vector begins at a multiple of four elements, and has such a number of them.
    in_fours: bool,
}

impl Read {
    fn of(t: &Tensor) -> Result<Read> {
        let view = View::of(t)?;
        let lines = view.vectors()?;
        let in_fours = [view.start, lines.token, lines.head, lines.size].iter().all(|n| n.is_multiple_of(4));
        let steps = Steps { token: lines.token as u32, head: lines.head as u32 };
        Ok(Read { view, scales: None, steps, in_fours })
    }

    fn cached(t: &Vectors) -> Result<Read> {
        match t {
            Vectors::Float(floats) => Read::of(floats),
            // The kernel finds a scale by the number of its code.
            Vectors::Q8 { codes, scales } => {
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
    let tables = match &how.bias {
        Bias::Disentangled(d) => [&d.keys, &d.queries],
        _ => [&None, &None],
    };
    let [met_by_queries, met_by_keys] = tables.map(|t| t.as_ref().map(Read::of).transpose());
    let (met_by_queries, met_by_keys) = (met_by_queries?, met_by_keys?);
    let steps = |table: &Option<Read>| table.as_ref().map_or(Steps { token: 0, head: 0 }, |t| t.steps);

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
    let (back, ahead) = match how.sees {
        Sees::All => (FAR, FAR),
        Sees::Window(reach) => (reach, reach),
        Sees::Causal => (FAR, 0),
        Sees::Recent(most) => (most, 0),
    };
    let told = Shape {
        size: size as u32,
        heads: heads as u32,
        shared: shared as u32,
        group: (heads / shared) as u32,
        q: q.steps,
        k: k.steps,
        v: v.steps,
        position_keys: steps(&met_by_queries),
        position_queries: steps(&met_by_keys),
        // Of so many in all the query itself is one.
        back: back.min(FAR) as i32 - i32::from(matches!(how.sees, Sees::Recent(_))),
        ahead: ahead.min(FAR) as i32,
        scale: how.scale,
        cap: how.cap.unwrap_or(1.0),
        distances: (places + keys - 1) as u32,
        origin: origin as u32,
    };

    // Keys that are not in q's format are staged in f32, in which all of them are exact.
    let staged = if op.k.format() == CacheFormat::Float(op.q.dtype()) { op.q.dtype() } else { DType::F32 };
    let padded = SIZES.into_iter().find(|padded| size <= *padded);
    let padded = padded.ok_or_else(|| Error::call("attention", format!("heads of {size}")))?;
    let page = match &how.keys {
        Keys::Packed(_) => 0,
        Keys::Paged(pages) => pages.size() as u16,
    };
    let all = [Some(&q), Some(&k), Some(&v), met_by_queries.as_ref(), met_by_keys.as_ref()];
    let in_fours = all.into_iter().flatten().all(|t| t.in_fours);
    let kernel = |name: String, together: bool| {
        Kernel::new(SOURCE, name)
            .flag(together)
            .number(format_of(op.q.dtype().into()))
            .number(format_of(op.k.format()))
            .flag(in_fours)
            .number(page)
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
            .told(&told)
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
            .told(&told)
            .array(&plan.joins)?
            .run(Grid { groups: [plan.joins.len() / JOIN, shared, 1], threads: THREADS })?;
    }
    y.tensor(op.q.dims())
}

/// As the kernel numbers them.
fn format_of(format: CacheFormat) -> u16 {
    match format {
        CacheFormat::Float(DType::F32) => 0,
        CacheFormat::Float(DType::F16) => 1,
        CacheFormat::Float(_) => 2,
        CacheFormat::Q8 => 3,
    }
}
