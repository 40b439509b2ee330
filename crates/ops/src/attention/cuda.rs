//! Launches `kernel.cu` and `other.cu` (tensor cores) or `plain.cu` (f32): once for sequences of few rows and once for those of many.

use super::tables::{Launch, Tables, Way};
use super::{Attention, AttentionOp, Bias, Mask, format_number};
use crate::kv_write::KvTensor;
use crate::launch::cuda::{Binary, Call, Grid, Kernel, View, binary};
use crate::launch::params;
use crate::replay::Given;
use crate::{DType, Error, Result, Tensor};
use std::sync::Arc;

const TILES: Binary = binary!("attention");
const OTHER: Binary = binary!("attention_other");
const PLAIN: Binary = binary!("attention_plain");

/// Vectors `[tokens, heads, size]` as the kernels read them.
struct Read {
    view: View,
    scales: Option<View>,
    token: usize,
    head: usize,
}

impl Read {
    fn of(t: &Tensor) -> Result<Read> {
        let view = View::of(t)?;
        let lines = view.vectors()?;
        Ok(Read { view, scales: None, token: lines.token, head: lines.head })
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

    /// Whether every vector begins at a multiple of `n` elements.
    fn in_runs(&self, n: usize) -> bool {
        [self.view.start, self.token, self.head].iter().all(|at| at.is_multiple_of(n))
    }
}

/// The words of the table, and how a replay computes them for others.
struct Words<'a> {
    op: &'a AttentionOp,
    tables: &'a Arc<Tables>,
    way: Way,
    heads: [usize; 2],
}

impl Words<'_> {
    fn add_to(&self, call: Call) -> Result<Call> {
        let Words { op: AttentionOp { how, scope, .. }, tables, way, heads } = *self;
        // Which of the keys that a pass has: they are others' in another attention of it.
        let which = |given: &Given| given.keys.iter().position(|keys| how.keys.are(keys));
        let is_given = |given: &Given| how.queries.is(&given.segments) && which(given).is_some();
        let bias = || match &how.bias {
            Bias::None => String::new(),
            Bias::Alibi(slopes) => format!("{slopes:?}"),
            Bias::Buckets { table, far, both } => format!("{table:?} {far} {both}"),
            Bias::Disentangled(d) => format!("{} {:?}", d.span, d.far),
        };
        let key = |given: &Given| format!("attention {way:?} {heads:?} {:?} {:?} {}", which(given), how.sees, bias());
        call.dynamic_array(&tables.words, is_given, key, |given| {
            let (how, scope, tables, which) = (how.clone(), *scope, tables.clone(), which(given));
            Box::new(move |given| {
                let keys = given.keys.get(which?)?.clone();
                let how = Attention { queries: given.segments.clone(), keys, ..how.clone() };
                let others = Tables::of(&how, scope, way, heads);
                others.are_alike(&tables).then_some(others.words)
            })
        })
    }
}

/// Shared memory of a block, for heads that are `padded` there. As in the kernels.
fn shared_bytes(launch: &Launch, padded: usize, has_positions: bool) -> usize {
    match launch.kind {
        "plain" => 4 * 32 * (padded + 4) * (2 + usize::from(has_positions)),
        "placed" => 2 * (padded + 8) * (launch.rows + 2 * 64 + 2 * 128) + 4 * 4 * 16 * 84,
        "few_coded" | "many_coded" => 2 * (padded + 8) * (launch.rows + 4 * 64),
        kind => {
            let keys = if kind != "few" && padded * launch.warps >= 1024 { 32 } else { 64 };
            let stages = if padded > 128 { 1 } else { 2 };
            let queries = if takes_turns(launch, padded) { stages } else { 1 };
            2 * (padded + 8) * (queries * launch.rows + stages * 2 * keys)
        }
    }
}

/// Blocks that are enough for a GPU, and the most heads of one: the more, the longer others wait for the longest sequence.
const PLENTY: usize = 1024;
const TURNS: usize = 4;

/// Whether a block may have several heads in turn. As in the kernels.
fn takes_turns(launch: &Launch, padded: usize) -> bool {
    launch.kind == "many" && padded <= 64
}

/// Heads of keys that a block takes one after another, so that it waits for the first of them alone: as many as leave blocks enough.
fn turns(launch: &Launch, padded: usize, shared: usize) -> usize {
    let enough = |n: &usize| shared.is_multiple_of(*n) && launch.blocks * shared >= PLENTY * n;
    let most = if takes_turns(launch, padded) && launch.splits == 1 { shared.min(TURNS) } else { 1 };
    (1..=most).rev().find(enough).unwrap_or(1)
}

pub(super) fn run(op: &AttentionOp) -> Result<candle_core::Tensor> {
    let [_, heads, size] = *op.q.dims() else { return Err(Error::call("attention", "q has three axes")) };
    let (how, shared, dtype) = (&op.how, op.k.dims()[1], op.q.dtype());
    let way = Way::of(op);
    let tables = op.tables();
    let words = Words { op, tables, way, heads: [heads, shared] };
    let (q, k, v) = (Read::of(&op.q)?, Read::cached(&op.k)?, Read::cached(&op.v)?);
    let [met_by_queries, met_by_keys] = op.positions().map(|t| t.as_ref().map(Read::of).transpose());
    let (met_by_queries, met_by_keys) = (met_by_queries?, met_by_keys?);
    let padded = op.padded()?;
    // Tiles are copied in runs of 16 bytes, and codes always lie so; all else is read in runs of four elements.
    let run = if way == Way::Plain { 4 } else { 8 };
    let read = [Some(&q), Some(&k), Some(&v), met_by_queries.as_ref(), met_by_keys.as_ref()];
    let in_runs = size.is_multiple_of(run) && read.into_iter().flatten().all(|t| t.in_runs(run));
    if way == Way::Coded && ![&k, &v].iter().all(|t| t.in_runs(16)) {
        return Err(Error::call("attention", "codes that begin between two runs of 16"));
    }
    let (page, [back, ahead]) = (op.page(), op.reach());
    let added = match how.bias {
        Bias::None | Bias::Disentangled(_) => 0,
        Bias::Alibi(_) => 1,
        Bias::Buckets { .. } => 2,
    };
    let told = |call: Call, launch: &Launch| {
        let steps = |call: Call, t: Option<&Read>| call.u32(t.map_or(0, |t| t.token)).u32(t.map_or(0, |t| t.head));
        let call = call.numbers(&params![size, heads, shared]);
        let call = read.into_iter().fold(call, steps);
        call.numbers(&params![in_runs, usize::from(format_number(op.k.format())), page])
            .numbers(&params![back, ahead, matches!(how.sees, Mask::Causal | Mask::Recent(_))])
            .numbers(&params![how.scale, how.cap.unwrap_or(0.0), added])
            .numbers(&params![tables.bias, tables.reach as i32, tables.distances])
            .numbers(&params![tables.distance_count, tables.origin as i32])
            .numbers(&params![launch.entries, launch.splits, launch.tickets, turns(launch, padded, shared)])
    };
    // What `straight` in `task.cuh` takes for granted, beside what a launch says.
    let is_plain = in_runs && heads == shared && page == 0 && how.sees == Mask::All && added == 0 && how.cap.is_none();
    let y = Call::room(&q.view, op.q.dims().iter().product(), dtype)?;
    for launch in &tables.launches {
        let parts = Call::room(&q.view, launch.parts(shared, size), DType::F32)?;
        let bytes = shared_bytes(launch, padded, met_by_queries.is_some() || met_by_keys.is_some());
        let binary = match way {
            Way::Tiles { .. } => TILES,
            Way::Coded | Way::Placed => OTHER,
            Way::Plain => PLAIN,
        };
        let is_straight = launch.kind == "many" && launch.splits == 1 && is_plain && padded == size && padded <= 64;
        let kind = if is_straight { "straight" } else { launch.kind };
        let kernel = Kernel::new(binary, format!("attention_{kind}_{dtype}_{padded}")).shared(bytes);
        let call = Call::new(&q.view, &kernel)?.input(&q.view).input(&k.view).input(&v.view);
        let call = call.maybe(k.scales.as_ref()).maybe(v.scales.as_ref());
        let positions = [&met_by_queries, &met_by_keys].map(|t| t.as_ref().map(|t| &t.view));
        let call = positions.into_iter().fold(call, Call::maybe);
        let grid = Grid::of(launch.grid(shared) / turns(launch, padded, shared), 32 * launch.warps);
        let call = told(words.add_to(call.made(&y).made(&parts))?, launch);
        let call = if is_straight { call.back_and_forth() } else { call.u32(0) };
        call.run(grid)?;
    }
    y.tensor(op.q.dims())
}
