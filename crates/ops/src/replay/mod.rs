//! CUDA graphs: a forward pass is captured once and replayed, so that the GPU gets a whole pass at
//! once and never waits for the host between kernels.
//!
//! A pass uploads a batch and runs a model on it. Its graph can be replayed for another batch that
//! would make exactly the same launches: the same kernels, over the same buffers, with the same
//! numbers. So everything that differs between batches is in one array of words, the graph's
//! parameters: ids and positions, which are uploaded with the batch, and arrays that describe the
//! sequences to kernels, which a replay recomputes from [`BatchLayout`]. A replay writes the
//! parameters on the host, then the device copies them and runs the graph.
//!
//! A capture ends, and the pass runs launch by launch, when something happens that a CUDA graph
//! cannot contain: a model observes ids or lengths itself (otherwise only ops can read them: see
//! [`PerBatch`]), an upload outside the parameters, a download, an op that does not run one of our
//! kernels. Results are in buffers of the graph, and valid until the next pass.

mod capture;

pub(crate) use capture::{CaptureState, mark_untracked, observe_shape, op_scope, refuse_capture, upload};
pub use capture::{OpScope, PerBatch};
#[cfg(cuda)]
pub(crate) use capture::{Recompute, dynamic_param, note_allocation};

use self::capture::{DynamicParam, PassCapture, Upload};
use crate::ladder::{self, Counted, Ladder};
use crate::launch::cuda::graph::{Graph, GraphParams};
use crate::ledger::Lease;
use crate::{Device, Error, Keys, Place, Policy, Result, Rung, Segments, Tensor};
use std::cell::RefCell;
use std::rc::Rc;
use std::sync::Arc;

/// Most graphs in the cache. The least recently used one is evicted.
const MAX_GRAPHS: usize = 64;

/// Most graphs of one shape. One shape needs several where dynamic parameters lead to different
/// launches: a text that grows to half a million tokens needs one for each power of two.
const MAX_GRAPHS_PER_SHAPE: usize = 16;

/// Most shapes that are remembered.
const MAX_SHAPES: usize = 256;

/// Most warm-up runs of a pass before its capture, and most attempts to capture a shape.
const WARM_UPS: usize = 4;
const MAX_TRIES: usize = 3;

/// All graphs use the same buffers in turn. When a graph needs a larger buffer, it is allocated,
/// but the smaller one is not freed. So the plan reserves this many times the bytes that the
/// largest pass holds at once.
const RESERVE_FACTOR: u64 = 2;

/// Most tokens and sequences of an encoder batch that is captured. Larger batches keep a GPU busy
/// without a graph.
const MAX_TOKENS: usize = 512;
const MAX_SEQUENCES: usize = 32;

/// The layout of a batch, from which a replay recomputes the dynamic parameters.
#[derive(Clone, Debug)]
pub struct BatchLayout {
    /// The segments of the sequences.
    pub segments: Segments,
    /// Their keys, for each kind of attention: a decoder attends to its own tokens and to those of
    /// the encoder.
    pub keys: Vec<Keys>,
    /// Tokens at the start of each sequence that are not pooled.
    pub skips: Vec<usize>,
}

/// The shape that a batch is filled up to, so that more batches share a shape.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Fill {
    /// Tokens in all.
    pub tokens: usize,
    /// Sequences in all: at least one more than the batch has. That one gets the missing tokens.
    pub sequences: usize,
}

impl Fill {
    /// The shape for a batch of this size; None if the batch is too large to gain from a graph.
    fn of(tokens: usize, sequences: usize) -> Option<Fill> {
        let step = match tokens {
            ..=128 => 16,
            129..=256 => 32,
            _ => 64,
        };
        let pays = (1..=MAX_TOKENS).contains(&tokens) && sequences <= MAX_SEQUENCES;
        pays.then(|| Fill { tokens: tokens.next_multiple_of(step), sequences: sequences.next_power_of_two() + 1 })
    }
}

/// Tokens of the largest encoder pass that may be captured on a device. A plan needs it, because
/// graphs have their own buffers. None if the device has no graphs.
pub fn most_tokens(device: Device) -> Option<usize> {
    matches!(device, Device::Cuda(_)).then_some(MAX_TOKENS)
}

/// Bytes that a plan reserves for graphs, if the largest pass holds `largest` bytes at once.
pub fn reserved_bytes(largest: u64) -> u64 {
    largest.saturating_mul(RESERVE_FACTOR)
}

/// A batch and the model to run on it.
pub trait Pass {
    /// The batch on its device.
    type Batch;
    /// The error of either step.
    type Error: From<Error>;
    /// Uploads the batch.
    fn batch(&self, fill: Option<Fill>) -> Result<Self::Batch, Self::Error>;
    /// The layout of the batch, from which dynamic parameters are computed.
    fn layout(&self, batch: &Self::Batch) -> BatchLayout;
    /// Runs the model.
    fn forward(&self, batch: &Self::Batch) -> Result<Vec<Tensor>, Self::Error>;
}

/// The batch and the results of a pass.
pub type PassOutput<P> = (<P as Pass>::Batch, Vec<Tensor>);

/// Runs a pass launch by launch, without a graph.
pub fn run<P: Pass>(pass: &P) -> Result<PassOutput<P>, P::Error> {
    let batch = pass.batch(None)?;
    let results = pass.forward(&batch)?;
    Ok((batch, results))
}

/// The CUDA graphs of one model on one device. They belong to the thread that owns the device.
pub struct GraphCache(Option<RefCell<Graphs>>);

impl GraphCache {
    /// A cache for passes on `place`, under the policy of this thread's ladder. Graphs use buffers
    /// of at most `most` bytes, which the ledger counts. If the device has no graphs, or the policy
    /// excludes our kernels, every pass runs launch by launch.
    pub fn new(place: &Place, most: u64) -> Result<GraphCache> {
        let here = ladder::current();
        let Ladder { policy, ledger, .. } = &*here;
        let uses_our_kernels = policy.force.is_none_or(|rung| rung == Rung::Fused);
        let params = if uses_our_kernels { GraphParams::open(place)? } else { None };
        Ok(GraphCache(
            params.map(|params| RefCell::new(Graphs::new(params, policy.clone(), ledger.lease(most as usize)))),
        ))
    }

    /// The shape that an encoder batch should be filled up to.
    pub fn fill(&self, tokens: usize, sequences: usize) -> Option<Fill> {
        self.0.as_ref().and_then(|_| Fill::of(tokens, sequences))
    }

    /// Number of graphs.
    pub fn count(&self) -> usize {
        self.0.as_ref().map_or(0, |graphs| graphs.borrow().captured.len())
    }

    /// Runs a pass: replays a graph if one fits; captures one when a shape occurs for the second
    /// time. `kind` distinguishes passes that do different work on batches of the same shape.
    /// Results are valid until the next pass.
    pub fn replay<P: Pass>(&self, pass: &P, kind: u32, fill: Option<Fill>) -> Result<PassOutput<P>, P::Error> {
        let replayed = self.0.as_ref().map(|graphs| graphs.borrow_mut().replay(pass, kind, fill)).transpose()?;
        replayed.flatten().map_or_else(|| run(pass), Ok)
    }
}

/// What a graph's passes must have in common, as far as it is known before the dynamic parameters
/// are computed.
#[derive(Clone, Debug, PartialEq, Eq)]
struct Shape {
    kind: u32,
    /// The length of each uploaded array.
    uploads: Vec<usize>,
    sequences: usize,
    /// Whether the keys of each sequence are its own tokens.
    is_plain: bool,
}

struct CapturedPass {
    shape: Shape,
    graph: Graph,
    results: Vec<Tensor>,
    dynamic: Vec<DynamicParam>,
    counts: Vec<(Counted, u64)>,
}

impl CapturedPass {
    /// The words of its dynamic parameters for this batch; None if the graph does not fit.
    fn recompute(&self, shape: &Shape, layout: &BatchLayout) -> Option<Vec<Vec<u32>>> {
        let one = |param: &DynamicParam| (param.recompute)(layout).filter(|words| words.len() == param.len);
        (self.shape == *shape).then(|| self.dynamic.iter().map(one).collect()).flatten()
    }
}

struct Graphs {
    params: Rc<GraphParams>,
    /// The ladder that passes are captured under. Its buffers belong to the graphs, which use them
    /// in turn.
    ladder: Arc<Ladder>,
    /// The ledger entry of those buffers, with their limit.
    reserved: Arc<Lease>,
    /// In order of use; the last is the most recently used.
    captured: Vec<CapturedPass>,
    /// Shapes seen so far, with the failed attempts to capture each.
    shapes: Vec<(Shape, usize)>,
}

impl Graphs {
    fn new(params: GraphParams, policy: Policy, reserved: Arc<Lease>) -> Graphs {
        let (params, ladder) = (Rc::new(params), Ladder::new(policy));
        Graphs { params, ladder, reserved, captured: Vec::new(), shapes: Vec::new() }
    }

    fn replay<P: Pass>(&mut self, pass: &P, kind: u32, fill: Option<Fill>) -> Result<Option<PassOutput<P>>, P::Error> {
        // The device must have copied the parameters of the last pass before they are overwritten.
        self.params.wait()?;
        let upload = Upload { params: self.params.clone(), lengths: Vec::new(), words: 0 };
        let (batch, state) = CaptureState::Upload(upload).during(&self.ladder, || pass.batch(fill));
        let batch = batch?;
        let (CaptureState::Upload(upload), layout) = (state, pass.layout(&batch)) else { return Ok(None) };
        let is_plain = layout.keys.iter().all(|keys| keys.is(&layout.segments));
        let sequences = layout.segments.count();
        let shape = Shape { kind, uploads: upload.lengths, sequences, is_plain };
        let fits = |captured: &[CapturedPass]| {
            captured.iter().enumerate().rev().find_map(|(i, pass)| Some((i, pass.recompute(&shape, &layout)?)))
        };
        let found = fits(&self.captured).or_else(|| {
            self.capture_if_repeated(|| pass.forward(&batch), &shape, &layout, upload.words)
                .then(|| fits(&self.captured))
                .flatten()
        });
        let Some((index, words)) = found else { return Ok(None) };
        self.captured[index..].rotate_left(1);
        let captured = &self.captured[self.captured.len() - 1];
        for (param, words) in captured.dynamic.iter().zip(words) {
            self.params.write(param.at, &words)?;
        }
        captured.graph.launch()?;
        ladder::current().add_counts(&captured.counts);
        Ok(Some((batch, captured.results.clone())))
    }

    /// Captures `forward`, unless its shape is new or capture has failed too often. Returns whether
    /// there is a new graph.
    fn capture_if_repeated<E>(
        &mut self,
        forward: impl Fn() -> Result<Vec<Tensor>, E>,
        shape: &Shape,
        layout: &BatchLayout,
        words: usize,
    ) -> bool {
        let Some(known) = self.shapes.iter().position(|(known, _)| known == shape) else {
            if self.shapes.len() >= MAX_SHAPES {
                self.shapes.remove(0);
            }
            self.shapes.push((shape.clone(), 0));
            return false;
        };
        let alike = self.captured.iter().filter(|pass| pass.shape == *shape).count();
        if self.shapes[known].1 >= MAX_TRIES || alike >= MAX_GRAPHS_PER_SHAPE {
            return false;
        }
        self.shapes[known].1 += 1;
        let captured = self.capture(forward, shape, layout, words);
        if self.ladder.ledger.cuda.bytes() > self.reserved.bytes() {
            // Over the limit: start again with an empty cache. The current shape is probably the
            // largest, and its buffers will suffice for the others.
            self.captured.clear();
            self.ladder = Ladder::new(self.ladder.policy.clone());
            return false;
        }
        let Some(captured) = captured else { return false };
        self.shapes[known].1 = 0;
        if self.captured.len() >= MAX_GRAPHS {
            self.captured.remove(0);
        }
        self.captured.push(captured);
        true
    }

    /// Captures `forward` as a CUDA graph. An error is dropped: the pass then runs launch by
    /// launch, where it occurs again if it matters.
    fn capture<E>(
        &self,
        forward: impl Fn() -> Result<Vec<Tensor>, E>,
        shape: &Shape,
        layout: &BatchLayout,
        words: usize,
    ) -> Option<CapturedPass> {
        let _here = self.ladder.clone().enter();
        self.params.copy_to_device(0, words).ok()?;
        let mut pass = PassCapture::new(self.params.clone(), layout.clone(), words);
        let mut counts = Vec::new();
        // Warm-up: runs normally until the pass finds all its buffers and cached arrays and
        // allocates nothing. A run may choose other buffers than the one before, because there are
        // more to choose from.
        for _ in 0..WARM_UPS {
            let before = self.ladder.counts();
            pass.has_allocated = false;
            let (Ok(_), CaptureState::Pass(ran)) = CaptureState::Pass(pass).during(&self.ladder, &forward) else {
                return None;
            };
            counts = difference(&before, &self.ladder.counts());
            pass = ran;
            if pass.is_untracked || !pass.has_allocated {
                break;
            }
        }
        if pass.is_untracked || pass.has_allocated {
            return None;
        }
        // Then the stream captures the same pass, and nothing runs.
        pass.is_capturing = true;
        let words = pass.words;
        let record = || {
            self.params.copy_to_device(0, words).ok()?;
            let (results, state) = CaptureState::Pass(pass).during(&self.ladder, &forward);
            results.ok().zip(Some(state))
        };
        let Ok((Some((results, CaptureState::Pass(pass))), graph)) = self.params.capture(record) else { return None };
        // The next graph uses their buffers too.
        let results = results.iter().map(Tensor::unleased).collect::<Result<_>>().ok()?;
        let (shape, dynamic) = (shape.clone(), pass.dynamic);
        (!pass.is_untracked).then(|| CapturedPass { shape, graph, results, dynamic, counts })
    }
}

/// The counts of `after` less those of `before`.
fn difference(before: &[(Counted, u64)], after: &[(Counted, u64)]) -> Vec<(Counted, u64)> {
    let of = |what: &Counted| before.iter().find(|(counted, _)| counted == what).map_or(0, |(_, n)| *n);
    after.iter().map(|(what, n)| (*what, n - of(what))).filter(|(_, n)| *n > 0).collect()
}

#[cfg(test)]
mod tests;
