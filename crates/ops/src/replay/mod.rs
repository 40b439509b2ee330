//! Passes that are captured once as CUDA graphs and replayed: a GPU that is given a whole pass at
//! once waits for nobody between its kernels.
//!
//! A pass is uploading a batch and running a model on it. Its graph can be replayed for another
//! batch if that would make the very same launches: of the same kernels, over the same buffers,
//! with the same numbers. So everything that differs from batch to batch is in one array of words,
//! the graph's parameters: ids and positions, which are uploaded as the batch is made, and what
//! kernels read of the sequences, which a replay computes from [`Given`]. A replay writes the
//! parameters, and the device copies them and runs the rest.
//!
//! What a graph cannot hold ends its capture, and the pass runs launch by launch: a model that
//! observes ids or lengths itself (only ops can read them otherwise: see [`PerBatch`]), an upload
//! that is not in the parameters, a download, an op that is not by a kernel of ours. Results are in
//! buffers of the graph, and good until the next pass.

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

/// Graphs that are kept; of more, the least recently used one goes.
const MOST: usize = 64;

/// Graphs of one shape, where dynamic parameters call for different launches: texts that grow to
/// half a million tokens do so at every power of two.
const MOST_ALIKE: usize = 16;

/// Shapes that are remembered.
const MOST_SEEN: usize = 256;

/// How often a pass is run before it is captured, at most; and how often that is tried.
const WARM_UPS: usize = 4;
const TRIES: usize = 3;

/// Buffers of graphs are used by all of them in turn, but not freed to make room for larger ones,
/// which lie beside them. This many times what the largest pass holds at once is allowed for.
const BESIDE: u64 = 2;

/// Tokens and sequences of encoders that are worth a graph: larger batches keep a device busy as
/// they are.
const TOKENS: usize = 512;
const SEQUENCES: usize = 32;

/// What dynamic parameters are computed from, besides the numbers that are uploaded with the batch.
#[derive(Clone, Debug)]
pub struct Given {
    /// Where the sequences lie.
    pub segments: Segments,
    /// Where their keys do, for each kind of attention: a decoder looks at its own and at those of
    /// what was read.
    pub keys: Vec<Keys>,
    /// Tokens at the head of each that are not pooled.
    pub skips: Vec<usize>,
}

/// What a batch is filled up to, so that others are of the same shape.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Fill {
    /// Tokens in all.
    pub tokens: usize,
    /// Sequences in all: at least one more than there are, which has what is missing in tokens.
    pub sequences: usize,
}

impl Fill {
    /// For so many, or none where it would not pay.
    fn of(tokens: usize, sequences: usize) -> Option<Fill> {
        let step = match tokens {
            ..=128 => 16,
            129..=256 => 32,
            _ => 64,
        };
        let pays = (1..=TOKENS).contains(&tokens) && sequences <= SEQUENCES;
        pays.then(|| Fill { tokens: tokens.next_multiple_of(step), sequences: sequences.next_power_of_two() + 1 })
    }
}

/// Tokens of the largest pass of an encoder that may be captured on a device: graphs have buffers
/// of their own, which a plan counts. None where nothing is captured.
pub fn most_tokens(device: Device) -> Option<usize> {
    matches!(device, Device::Cuda(_)).then_some(TOKENS)
}

/// Bytes to be planned for graphs, of which the largest holds so many at once.
pub fn planned(largest: u64) -> u64 {
    largest.saturating_mul(BESIDE)
}

/// A batch, and what is run on it.
pub trait Pass {
    /// The batch on its device.
    type Batch;
    /// What goes wrong.
    type Error: From<Error>;
    /// Uploads the batch.
    fn batch(&self, fill: Option<Fill>) -> Result<Self::Batch, Self::Error>;
    /// What its dynamic parameters are computed from.
    fn given(&self, batch: &Self::Batch) -> Given;
    /// Runs the model.
    fn forward(&self, batch: &Self::Batch) -> Result<Vec<Tensor>, Self::Error>;
}

/// A batch, and what came of it.
pub type Ran<P> = (<P as Pass>::Batch, Vec<Tensor>);

/// Runs a pass by itself.
pub fn run<P: Pass>(pass: &P) -> Result<Ran<P>, P::Error> {
    let batch = pass.batch(None)?;
    let results = pass.forward(&batch)?;
    Ok((batch, results))
}

/// The graphs of one model on one device. They belong to the thread that owns it.
pub struct GraphCache(Option<RefCell<Graphs>>);

impl GraphCache {
    /// For passes on `place`, under the policy of this thread's ladder, in buffers of `most` bytes,
    /// which are booked there. Where a device has no graphs, or our kernels are not to be used,
    /// every pass runs by itself.
    pub fn new(place: &Place, most: u64) -> Result<GraphCache> {
        let here = ladder::current();
        let Ladder { policy, ledger, .. } = &*here;
        let ours = policy.force.is_none_or(|rung| rung == Rung::Fused);
        let params = if ours { GraphParams::open(place)? } else { None };
        Ok(GraphCache(
            params.map(|params| RefCell::new(Graphs::new(params, policy.clone(), ledger.lease(most as usize)))),
        ))
    }

    /// What a batch of an encoder is to be filled up to.
    pub fn fill(&self, tokens: usize, sequences: usize) -> Option<Fill> {
        self.0.as_ref().and_then(|_| Fill::of(tokens, sequences))
    }

    /// How many graphs there are.
    pub fn count(&self) -> usize {
        self.0.as_ref().map_or(0, |graphs| graphs.borrow().captured.len())
    }

    /// Runs a pass: by a graph where one fits, which is captured when a shape comes for the second
    /// time. `kind` tells passes apart that do different things with batches of the same shape.
    /// Results are good until the next pass.
    pub fn replay<P: Pass>(&self, pass: &P, kind: u32, fill: Option<Fill>) -> Result<Ran<P>, P::Error> {
        let replayed = self.0.as_ref().map(|graphs| graphs.borrow_mut().replay(pass, kind, fill)).transpose()?;
        replayed.flatten().map_or_else(|| run(pass), Ok)
    }
}

/// Which passes may fit the same graph, as far as that is known before dynamic parameters are
/// computed.
#[derive(Clone, Debug, PartialEq, Eq)]
struct Shape {
    kind: u32,
    /// The length of each array that is uploaded.
    uploads: Vec<usize>,
    sequences: usize,
    /// Whether every token of a sequence is a key of it.
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
    /// The words of its dynamic parameters for this batch, if the graph fits.
    fn recompute(&self, shape: &Shape, given: &Given) -> Option<Vec<Vec<u32>>> {
        let one = |param: &DynamicParam| (param.recompute)(given).filter(|words| words.len() == param.len);
        (self.shape == *shape).then(|| self.dynamic.iter().map(one).collect()).flatten()
    }
}

struct Graphs {
    params: Rc<GraphParams>,
    /// Under which passes are captured: their buffers are no others', and used by all graphs in
    /// turn.
    ladder: Arc<Ladder>,
    /// The bytes of those buffers, at most.
    booked: Arc<Lease>,
    /// The most recently used one is the last.
    captured: Vec<CapturedPass>,
    /// Shapes that came, and how often it was tried in vain to capture them.
    seen: Vec<(Shape, usize)>,
}

impl Graphs {
    fn new(params: GraphParams, policy: Policy, booked: Arc<Lease>) -> Graphs {
        let (params, ladder) = (Rc::new(params), Ladder::new(policy));
        Graphs { params, ladder, booked, captured: Vec::new(), seen: Vec::new() }
    }

    fn replay<P: Pass>(&mut self, pass: &P, kind: u32, fill: Option<Fill>) -> Result<Option<Ran<P>>, P::Error> {
        // What was written last must have been copied before it is written over.
        self.params.wait()?;
        let upload = Upload { params: self.params.clone(), lengths: Vec::new(), words: 0 };
        let (batch, state) = CaptureState::Upload(upload).during(&self.ladder, || pass.batch(fill));
        let batch = batch?;
        let (CaptureState::Upload(upload), given) = (state, pass.given(&batch)) else { return Ok(None) };
        let is_plain = given.keys.iter().all(|keys| keys.is(&given.segments));
        let sequences = given.segments.count();
        let shape = Shape { kind, uploads: upload.lengths, sequences, is_plain };
        let fits = |captured: &[CapturedPass]| {
            captured.iter().enumerate().rev().find_map(|(i, pass)| Some((i, pass.recompute(&shape, &given)?)))
        };
        let found = fits(&self.captured).or_else(|| {
            self.add(|| pass.forward(&batch), &shape, &given, upload.words).then(|| fits(&self.captured)).flatten()
        });
        let Some((index, words)) = found else { return Ok(None) };
        self.captured[index..].rotate_left(1);
        let captured = &self.captured[self.captured.len() - 1];
        for (param, words) in captured.dynamic.iter().zip(words) {
            self.params.write(param.at, &words)?;
        }
        captured.graph.launch()?;
        ladder::current().add(&captured.counts);
        Ok(Some((batch, captured.results.clone())))
    }

    /// Captures what `forward` does, unless its shape is new or that was tried too often; whether
    /// there is a graph now.
    fn add<E>(
        &mut self,
        forward: impl Fn() -> Result<Vec<Tensor>, E>,
        shape: &Shape,
        given: &Given,
        words: usize,
    ) -> bool {
        let Some(seen) = self.seen.iter().position(|(seen, _)| seen == shape) else {
            if self.seen.len() >= MOST_SEEN {
                self.seen.remove(0);
            }
            self.seen.push((shape.clone(), 0));
            return false;
        };
        let alike = self.captured.iter().filter(|pass| pass.shape == *shape).count();
        if self.seen[seen].1 >= TRIES || alike >= MOST_ALIKE {
            return false;
        }
        self.seen[seen].1 += 1;
        let captured = self.capture(forward, shape, given, words);
        if self.ladder.ledger.cuda.bytes() > self.booked.bytes() {
            // Begins anew: what came now is likely the largest, and the buffers that it takes next
            // time do for the others.
            self.captured.clear();
            self.ladder = Ladder::new(self.ladder.policy.clone());
            return false;
        }
        let Some(captured) = captured else { return false };
        self.seen[seen].1 = 0;
        if self.captured.len() >= MOST {
            self.captured.remove(0);
        }
        self.captured.push(captured);
        true
    }

    /// A graph of what `forward` does. Whatever goes wrong here goes wrong again by itself, or does
    /// not matter.
    fn capture<E>(
        &self,
        forward: impl Fn() -> Result<Vec<Tensor>, E>,
        shape: &Shape,
        given: &Given,
        words: usize,
    ) -> Option<CapturedPass> {
        let _here = self.ladder.clone().enter();
        self.params.send(0, words).ok()?;
        let mut pass = PassCapture::new(self.params.clone(), given.clone(), words);
        let mut counts = Vec::new();
        // By itself, until it finds all buffers and all that is kept of each shape; as there are
        // more to choose from, it may choose others the next time.
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
        // Then the same once more, of which nothing runs and all is captured.
        pass.is_capturing = true;
        let words = pass.words;
        let again = || {
            self.params.send(0, words).ok()?;
            let (results, state) = CaptureState::Pass(pass).during(&self.ladder, &forward);
            results.ok().zip(Some(state))
        };
        let Ok((Some((results, CaptureState::Pass(pass))), graph)) = self.params.capture(again) else { return None };
        // Their buffers are the next graph's too.
        let results = results.iter().map(Tensor::unleased).collect::<Result<_>>().ok()?;
        let (shape, dynamic) = (shape.clone(), pass.dynamic);
        (!pass.is_untracked).then(|| CapturedPass { shape, graph, results, dynamic, counts })
    }
}

/// What was counted between two looks.
fn difference(before: &[(Counted, u64)], after: &[(Counted, u64)]) -> Vec<(Counted, u64)> {
    let of = |what: &Counted| before.iter().find(|(counted, _)| counted == what).map_or(0, |(_, n)| *n);
    after.iter().map(|(what, n)| (*what, n - of(what))).filter(|(_, n)| *n > 0).collect()
}

#[cfg(test)]
mod tests;
