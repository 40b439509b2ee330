//! What the executor needs to know about a kind of model.

use super::{QueueStats, Reply};
use crate::error::Result;
use crate::options::LoadOptions;
use crate::plan::Planned;
use sconce_ops::{Device, Place};
use std::sync::Arc;

/// A request in the executor. Requests that came later have larger ids.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub(crate) struct RequestId(pub(crate) u64);

/// A kind of model: encoders, decoders and sequence-to-sequence models implement it, and differ in nothing else. What is the
/// same for all of them is the executor's: planning, loading, warm-up, the queue, cancellation, deadlines, retries, errors.
///
/// A workload belongs to the device thread. It holds a model on its device and a pure scheduler.
pub(crate) trait Workload: Sized + 'static {
    /// What the model's files and the caller's options say: enough to plan it and to load it.
    type Spec: Clone + Send + Sync + 'static;
    /// How it is laid out in memory, beyond what every [`crate::plan::Plan`] says.
    type Layout: Clone + Send + Sync + 'static;
    /// What is asked of it, tokenized.
    type Request: Send + 'static;
    /// What its requests get, piece by piece.
    type Output: Send + 'static;
    /// What runs together on the device.
    type Step;
    /// What comes of a step.
    type Outcome;
    /// What it can tell of itself besides [`QueueStats`].
    type Stats: Clone + Default + Send + 'static;

    /// Plans the model on a device that need not be in this machine, by running its own load and forward on phantoms.
    fn plan(spec: &Self::Spec, device: Device, options: &LoadOptions) -> Result<Planned<Self::Layout>>;

    /// Loads the model as planned.
    fn load(spec: &Self::Spec, planned: &Planned<Self::Layout>, options: &LoadOptions, place: &Place) -> Result<Self>;

    /// Runs a short input through the model: what comes out must be numbers.
    fn sanity_check(&self) -> Result<()>;

    /// Runs steps of so many tokens, to compile every kernel that they call for. Nobody sees the outcome.
    fn dry_run(&self, tokens: usize) -> Result<()>;

    /// The most tokens of a step.
    fn step_tokens(&self) -> usize;

    /// Tokens of a request.
    fn tokens(request: &Self::Request) -> usize;

    /// Puts a request into the scheduler's queue, or fails it.
    fn submit(&mut self, id: RequestId, request: Self::Request, reply: &Arc<Reply<Self::Output>>);

    /// The next step, from the scheduler; `None` where there is nothing to run until another message comes.
    fn schedule(&mut self) -> Option<Self::Step>;

    /// The step cut into one for each of its requests.
    fn members(&self, step: &Self::Step) -> Vec<(RequestId, Self::Step)>;

    /// Runs the model.
    fn forward(&mut self, step: &Self::Step) -> Result<Self::Outcome>;

    /// Hands outputs to requests and commits what ran to the scheduler: a whole step, or those of its members that did not fail.
    fn finish(&mut self, ran: Vec<(Self::Step, Self::Outcome)>);

    /// Forgets a request, wherever it is: it ended, was cancelled, or failed in the step under way.
    fn release(&mut self, id: RequestId);

    /// Forgets all requests and begins anew: a bug of ours has left the scheduler in a state that nobody knows.
    fn reset(&mut self);

    /// What waits, and what ran last.
    fn queue(&self) -> QueueStats;

    /// See [`Workload::Stats`].
    fn stats(&self) -> Self::Stats;
}
