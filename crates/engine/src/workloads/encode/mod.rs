//! Encoders: requests of any number of texts wait in one queue and run in packed micro-batches.
//!
//! When the device becomes idle, its thread takes the next micro-batch, which may mix texts of
//! several requests. It never waits for a batch to fill.

mod graph;
mod pipeline;
mod session;
#[cfg(test)]
mod tests;

pub(crate) use graph::{GraphTowers, Rows};
pub(crate) use pipeline::{GraphUse, Parts, Pipeline, dummy_sequences, sanity_tokens, varied_ids};
pub use session::Outputs;
pub(crate) use session::{Session, Texts, plan};

use crate::error::{Error, Result};
use crate::graph::GraphPlan;
use crate::options::LoadOptions;
use crate::plan::Planned;
use crate::runtime::{LoadContext, QueueStats, Reply, RequestId, Workload};
use crate::schedule::{Budget, EncodeQueue};
use sconce_formats::Model;
use sconce_models::{Batch, Sequence};
use sconce_ops::replay::{self, BatchLayout, Fill, GraphCache, Pass};
use sconce_ops::{DType, Device, Place, Pooling, Segments, Tensor};
use sconce_text::Encoded;
use std::collections::BTreeMap;
use std::ops::Range;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering::Relaxed};

/// Most unread parts of a result. The queue skips a request whose caller has this many: one to read
/// now and one to read next. More would take much memory, because rows can be wide.
const MOST_UNREAD: usize = 2;

/// One sequence to encode.
#[derive(Clone, Debug, Default)]
pub(crate) struct EncodeItem {
    pub(crate) sequence: Sequence,
    /// Prompt tokens at its beginning that are not pooled.
    pub(crate) skip: usize,
}

impl From<Encoded> for EncodeItem {
    fn from(text: Encoded) -> EncodeItem {
        EncodeItem { sequence: Sequence { ids: text.ids, types: text.type_ids, ..Sequence::default() }, skip: 0 }
    }
}

/// The kind of output that a request asks for.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) enum OutputKind {
    /// The output of the task's pipeline.
    #[default]
    Task,
    /// The encoder's last hidden state of every token.
    HiddenStates,
    /// The output of the task's pipeline with this pooling instead of its own.
    Pooled(Pooling),
}

impl OutputKind {
    fn code(self) -> u32 {
        match self {
            OutputKind::Task => 0,
            OutputKind::HiddenStates => 1,
            OutputKind::Pooled(pooling) => 2 + pooling as u32,
        }
    }
}

/// What a request asks of a pass. Sequences run together only if all of this is equal.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct PassKind {
    pub(crate) output: OutputKind,
    /// The task whose low-rank update (LoRA) applies: see [`Batch::task`].
    pub(crate) task: Option<usize>,
}

impl PassKind {
    /// Distinguishes the CUDA graphs of the kinds.
    fn code(self) -> u32 {
        self.output.code() | self.task.map_or(0, |task| task as u32 + 1) << 8
    }
}

impl From<OutputKind> for PassKind {
    fn from(output: OutputKind) -> PassKind {
        PassKind { output, task: None }
    }
}

/// Sequences of one caller. None is empty.
pub(crate) struct EncodeRequest {
    pub(crate) items: Vec<EncodeItem>,
    pub(crate) kind: PassKind,
    /// Parts of the result that the caller has not read yet.
    pub(crate) unread: Arc<AtomicUsize>,
}

/// A request with waiting or running items.
struct Pending {
    items: Vec<EncodeItem>,
    kind: PassKind,
    unread: Arc<AtomicUsize>,
    /// Items without a result.
    left: usize,
    reply: Arc<Reply<Part>>,
}

/// Sequences that run together, in a pass of one kind.
pub(crate) struct MicroBatch {
    kind: PassKind,
    /// Requests and indices of their items.
    items: Vec<(RequestId, usize)>,
    sequences: Vec<Sequence>,
    skips: Vec<usize>,
}

/// The outputs of a micro-batch.
pub(crate) struct Results {
    segments: Segments,
    /// The rows of each sequence, if the pipeline names them.
    rows: Option<Vec<Range<usize>>>,
    /// Row count and values of each output.
    values: Vec<(usize, Vec<f32>)>,
}

impl Results {
    /// The outputs of the sequence at `place`: one row, one row per token, or those that the pipeline
    /// names.
    pub(crate) fn of(&self, place: usize) -> Vec<&[f32]> {
        let value_range = |(rows, values): &'_ (usize, Vec<f32>)| {
            let range = match &self.rows {
                Some(rows) => rows[place].clone(),
                None if *rows == self.segments.count() => place..place + 1,
                None => self.segments.observe().range(place),
            };
            let width = values.len() / (*rows).max(1);
            range.start * width..range.end * width
        };
        self.values.iter().map(|result| &result.1[value_range(result)]).collect()
    }
}

/// A request's part of a micro-batch.
pub(crate) struct Part {
    pub(crate) results: Arc<Results>,
    /// Indices of its items, and their places in the micro-batch.
    pub(crate) items: Vec<(usize, usize)>,
}

/// The workload of an encoder and the task's layers after it.
pub(crate) struct Encode<P> {
    pub(crate) pipeline: P,
    pub(crate) place: Place,
    passes: GraphCache,
    dtype: DType,
    budget: Budget,
    /// The most tokens in a sequence.
    longest: usize,
    queue: EncodeQueue,
    pending: BTreeMap<RequestId, Pending>,
    /// Sequences and tokens of the last step.
    last: (usize, usize),
    /// The graph that another engine runs.
    graph: Option<GraphPlan>,
}

impl<P: Pipeline> Encode<P> {
    fn run(&self, batch: &MicroBatch) -> Result<Results> {
        let tokens = batch.sequences.iter().map(|s| s.ids.len()).sum();
        let pass = EncodePass { workload: self, batch };
        let (packed, results) = match self.passes.fill(tokens, batch.sequences.len()) {
            Some(fill) => self.passes.replay(&pass, batch.kind.code(), Some(fill))?,
            None => replay::run(&pass)?,
        };
        let mut values = results.iter().map(|t| Ok((t.dims()[0], t.to_f32()?))).collect::<Result<Vec<_>>>()?;
        let rows = self.pipeline.result_rows(&packed).filter(|_| batch.kind.output == OutputKind::Task);
        if rows.is_some() {
            let (counts, parts): (Vec<usize>, Vec<Vec<f32>>) = values.into_iter().unzip();
            values = vec![(counts.iter().sum(), parts.concat())];
        }
        Ok(Results { segments: packed.segments, rows, values })
    }
}

impl<P: Pipeline> Workload for Encode<P> {
    type Spec = P::Spec;
    type Layout = ();
    type Request = EncodeRequest;
    type Output = Part;
    /// One micro-batch per kind of pass.
    type Step = Vec<MicroBatch>;
    type Outcome = Vec<Results>;
    type Stats = ();

    fn plan(spec: &P::Spec, device: Device, options: &LoadOptions) -> Result<Planned<()>> {
        Ok(Planned { plan: pipeline::plan::<P>(spec, device, options)?, layout: () })
    }

    fn load(spec: &P::Spec, Planned { plan, .. }: &Planned<()>, context: &LoadContext) -> Result<Encode<P>> {
        let place = &context.place;
        let mut files = match &plan.graph {
            Some(_) => graph::model(&plan.root)?,
            None => Model::open(&plan.root)?,
        };
        files.store = context.layers.observe(files.store, &plan.unread);
        let parts = Parts::new(files, (plan.dtype, plan.weight_format), place.clone()).with_graph(plan.graph.clone());
        let pipeline = P::load(&parts, spec).map_err(|e| e.with_root(&plan.root))?;
        let budget = Budget { tokens: plan.batch_tokens, sequences: plan.most_sequences };
        Ok(Encode {
            pipeline,
            place: place.clone(),
            passes: GraphCache::new(place, plan.graph_bytes)?,
            dtype: plan.dtype,
            budget,
            longest: plan.max_tokens,
            queue: EncodeQueue::new(budget),
            pending: BTreeMap::new(),
            last: (0, 0),
            graph: plan.graph.clone(),
        })
    }

    fn sanity_check(&self) -> Result<()> {
        for result in self.pipeline.sanity_check(&self.place)? {
            if !result.to_f32()?.iter().all(|v| v.is_finite()) {
                return Err(Error::unsound("the sanity check's result", self.dtype));
            }
        }
        if let Some(graph) = &self.graph {
            graph.reset_calls();
        }
        Ok(())
    }

    fn dry_run(&self, tokens: usize) -> Result<()> {
        self.pipeline.dry_run(&self.place, tokens, self.longest)
    }

    fn step_tokens(&self) -> usize {
        self.budget.tokens
    }

    fn tokens(request: &EncodeRequest) -> usize {
        request.items.iter().map(|item| item.sequence.ids.len()).sum()
    }

    fn submit(&mut self, id: RequestId, request: EncodeRequest, reply: &Arc<Reply<Part>>) {
        let EncodeRequest { items, kind, unread } = request;
        let lengths: Vec<usize> = items.iter().map(|item| item.sequence.ids.len()).collect();
        self.queue.push(id.0, &lengths);
        self.pending.insert(id, Pending { left: items.len(), items, kind, unread, reply: reply.clone() });
    }

    fn schedule(&mut self) -> Option<Vec<MicroBatch>> {
        let Encode { queue, pending, .. } = self;
        let is_busy = |id| pending.get(&RequestId(id)).is_some_and(|p| p.unread.load(Relaxed) >= MOST_UNREAD);
        let next = queue.next(is_busy);
        let mut step: Vec<MicroBatch> = Vec::new();
        for (id, item) in next {
            let Some(request) = pending.get_mut(&RequestId(id)) else { continue };
            request.reply.start();
            let EncodeItem { sequence, skip } = std::mem::take(&mut request.items[item]);
            let kind = request.kind;
            let at = step.iter().position(|batch| batch.kind == kind).unwrap_or_else(|| {
                step.push(MicroBatch { kind, items: Vec::new(), sequences: Vec::new(), skips: Vec::new() });
                step.len() - 1
            });
            step[at].items.push((RequestId(id), item));
            // A text truncated inside its prompt keeps its last token.
            step[at].skips.push(skip.min(sequence.ids.len().saturating_sub(1)));
            step[at].sequences.push(sequence);
        }
        if step.is_empty() {
            return None;
        }
        let sequences = || step.iter().flat_map(|batch| &batch.sequences);
        self.last = (sequences().count(), sequences().map(|s| s.ids.len()).sum());
        Some(step)
    }

    fn members(&self, step: &Vec<MicroBatch>) -> Vec<(RequestId, Vec<MicroBatch>)> {
        step.iter().flat_map(MicroBatch::by_request).map(|(id, batch)| (id, vec![batch])).collect()
    }

    fn forward(&mut self, step: &Vec<MicroBatch>) -> Result<Vec<Results>> {
        step.iter().map(|batch| self.run(batch)).collect()
    }

    fn finish(&mut self, ran: Vec<(Vec<MicroBatch>, Vec<Results>)>) {
        for (batch, results) in ran.into_iter().flat_map(|(step, results)| step.into_iter().zip(results)) {
            let results = Arc::new(results);
            for (id, items) in batch.places() {
                let Some(request) = self.pending.get_mut(&id) else { continue };
                request.left -= items.len();
                request.unread.fetch_add(1, Relaxed);
                let part = Part { results: results.clone(), items };
                if request.left > 0 {
                    request.reply.send(part);
                } else if let Some(request) = self.pending.remove(&id) {
                    request.reply.finish(part);
                }
            }
        }
    }

    fn release(&mut self, id: RequestId) {
        self.queue.remove(id.0);
        self.pending.remove(&id);
    }

    fn reset(&mut self) {
        self.queue = EncodeQueue::new(self.budget);
        self.pending.clear();
    }

    fn queue(&self) -> QueueStats {
        let (batch_sequences, batch_tokens) = self.last;
        QueueStats { requests: self.queue.requests(), tokens: self.queue.tokens(), batch_sequences, batch_tokens }
    }

    fn stats(&self) {}
}

impl MicroBatch {
    /// The items of each request, with their places.
    fn places(&self) -> BTreeMap<RequestId, Vec<(usize, usize)>> {
        let mut all: BTreeMap<RequestId, Vec<(usize, usize)>> = BTreeMap::new();
        for (place, (id, item)) in self.items.iter().enumerate() {
            all.entry(*id).or_default().push((*item, place));
        }
        all
    }

    /// The micro-batch split by request.
    fn by_request(&self) -> Vec<(RequestId, MicroBatch)> {
        let of = |(id, items): (RequestId, Vec<(usize, usize)>)| {
            let batch = MicroBatch {
                kind: self.kind,
                items: items.iter().map(|(item, _)| (id, *item)).collect(),
                sequences: items.iter().map(|(_, place)| self.sequences[*place].clone()).collect(),
                skips: items.iter().map(|(_, place)| self.skips[*place]).collect(),
            };
            (id, batch)
        };
        self.places().into_iter().map(of).collect()
    }
}

/// A pass of one micro-batch.
struct EncodePass<'a, P> {
    workload: &'a Encode<P>,
    batch: &'a MicroBatch,
}

impl<P: Pipeline> EncodePass<'_, P> {
    /// The dummy sequences that fill a batch up have no prompt.
    fn skips(&self, batch: &Batch) -> Vec<usize> {
        let mut skips = self.batch.skips.clone();
        skips.resize(batch.segments.count(), 0);
        skips
    }
}

impl<P: Pipeline> Pass for EncodePass<'_, P> {
    type Batch = Batch;
    type Error = Error;

    fn batch(&self, fill: Option<Fill>) -> Result<Batch> {
        let Encode { pipeline, place, .. } = self.workload;
        let batch = Batch::filled(&self.batch.sequences, fill, pipeline.limits(), place)?;
        Ok(batch.for_task(self.batch.kind.task))
    }

    fn layout(&self, batch: &Batch) -> BatchLayout {
        batch.layout(&self.skips(batch))
    }

    fn forward(&self, batch: &Batch) -> Result<Vec<Tensor>> {
        match self.batch.kind.output {
            OutputKind::Task => self.workload.pipeline.forward(batch, &self.skips(batch)),
            OutputKind::HiddenStates => Ok(vec![self.workload.pipeline.hidden(batch)?]),
            OutputKind::Pooled(pooling) => self.workload.pipeline.forward_pooled(batch, &self.skips(batch), pooling),
        }
    }
}
