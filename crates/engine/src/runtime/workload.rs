//! The interface between the executor and a kind of model.

use super::{LayerProgress, QueueStats, Reply};
use crate::error::Result;
use crate::options::LoadOptions;
use crate::plan::Planned;
use sconce_ops::{Device, Place};
use std::sync::Arc;

/// A request in the executor. Later requests have larger ids.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub(crate) struct RequestId(pub(crate) u64);

/// The place that a workload is loaded into, and the progress report of its layers.
pub(crate) struct LoadContext {
    pub(crate) place: Place,
    pub(crate) layers: LayerProgress,
}

#[cfg(test)]
impl LoadContext {
    /// A place, with a progress report that nobody receives.
    pub(crate) fn unobserved(place: Place) -> LoadContext {
        LoadContext { place, layers: LayerProgress::new(std::sync::mpsc::channel().0) }
    }
}

/// A kind of model: encoders, decoders and sequence-to-sequence models implement it. The executor
/// does everything else: planning, loading, warm-up, the queue, cancellation, deadlines, retries,
/// errors.
///
/// A workload belongs to the device thread. It holds a model on its device and a pure scheduler.
pub(crate) trait Workload: Sized + 'static {
    /// What the model's files and the caller's options say: enough to plan and load the model.
    type Spec: Clone + Send + Sync + 'static;
    /// The memory layout, beyond what every [`crate::plan::Plan`] has.
    type Layout: Clone + Send + Sync + 'static;
    /// A tokenized request.
    type Request: Send + 'static;
    /// One output of a request; a request may get several.
    type Output: Send + 'static;
    /// What runs on the device at once.
    type Step;
    /// The result of a step.
    type Outcome;
    /// Statistics besides [`QueueStats`].
    type Stats: Clone + Default + Send + 'static;

    /// Plans the model on a device that need not be in this machine, by running its own load and
    /// forward on phantoms.
    fn plan(spec: &Self::Spec, device: Device, options: &LoadOptions) -> Result<Planned<Self::Layout>>;

    /// Loads the model as planned.
    fn load(spec: &Self::Spec, planned: &Planned<Self::Layout>, context: &LoadContext) -> Result<Self>;

    /// Runs a short input through the model; its output must be finite.
    fn sanity_check(&self) -> Result<()>;

    /// Runs steps of `tokens` tokens to compile every kernel that they use. The results are
    /// dropped.
    fn dry_run(&self, tokens: usize) -> Result<()>;

    /// The most tokens in a step.
    fn step_tokens(&self) -> usize;

    /// Tokens of a request.
    fn tokens(request: &Self::Request) -> usize;

    /// Puts a request into the scheduler's queue, or fails it.
    fn submit(&mut self, id: RequestId, request: Self::Request, reply: &Arc<Reply<Self::Output>>);

    /// The scheduler's next step; `None` if there is nothing to run before the next message.
    fn schedule(&mut self) -> Option<Self::Step>;

    /// The step split into one step per request.
    fn members(&self, step: &Self::Step) -> Vec<(RequestId, Self::Step)>;

    /// Runs the model.
    fn forward(&mut self, step: &Self::Step) -> Result<Self::Outcome>;

    /// Delivers outputs to requests and commits to the scheduler: a whole step, or those members of
    /// it that did not fail.
    fn finish(&mut self, ran: Vec<(Self::Step, Self::Outcome)>);

    /// Removes a request wherever it is: it ended, was cancelled, or failed in the current step.
    fn release(&mut self, id: RequestId);

    /// Drops all requests and starts over, after a bug of ours left the scheduler in an unknown
    /// state.
    fn reset(&mut self);

    /// The queue, and the last batch.
    fn queue(&self) -> QueueStats;

    /// See [`Workload::Stats`].
    fn stats(&self) -> Self::Stats;
}
