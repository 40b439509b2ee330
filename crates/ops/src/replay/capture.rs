//! CUDA graph capture: its state, and which code may read values that differ between batches of one
//! shape.
//!
//! A CUDA graph captured for one batch is replayed for others, so nothing in a pass may depend on
//! the lengths, ids or pages of the batch except through parameters that a replay recomputes.
//! [`PerBatch`] holds such values. An op reads them with its [`OpScope`] and passes them to its
//! kernels as [`DynamicParam`]s. Other callers read them by [`PerBatch::observe`], which marks a
//! running capture as untracked: the pass then runs launch by launch.

use super::BatchLayout;
use crate::ladder::{Ladder, Mode, capture};
use crate::launch::cuda::graph::GraphParams;
use crate::{Error, Result};
use std::cell::RefCell;
use std::fmt;
use std::rc::Rc;
use std::sync::Arc;

/// Arrays in the graph's parameters begin at multiples of this many words.
const ALIGNMENT: usize = 64;

/// The right to read [`PerBatch`] values without ending a capture. Only ops can make one.
///
/// ```compile_fail
/// let scope = sconce_ops::replay::OpScope(());
/// ```
#[derive(Clone, Copy, Debug)]
pub struct OpScope(());

/// The scope of an op, made when it begins.
pub(crate) fn op_scope() -> OpScope {
    OpScope(())
}

/// A value that differs between batches of one shape.
///
/// ```compile_fail
/// let ids = sconce_ops::replay::PerBatch::new(vec![7u32]);
/// let first = ids.0[0];
/// ```
#[derive(Clone, Default)]
pub struct PerBatch<T>(T);

impl<T> PerBatch<T> {
    /// Wraps a value of a batch.
    pub fn new(value: T) -> PerBatch<T> {
        PerBatch(value)
    }

    /// The value, for an op.
    pub fn get(&self, _: OpScope) -> &T {
        &self.0
    }

    /// The value, for other callers. A running capture becomes untracked.
    pub fn observe(&self) -> &T {
        observe_shape();
        &self.0
    }
}

/// Does not reveal the value.
impl<T> fmt::Debug for PerBatch<T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("PerBatch(..)")
    }
}

/// An array of words that kernels read from the graph's parameters. A replay recomputes it for its
/// batch.
pub(super) struct DynamicParam {
    key: String,
    pub(super) at: usize,
    pub(super) len: usize,
    pub(super) recompute: Recompute,
}

/// The words for another batch; None if that batch needs a different launch.
pub(crate) type Recompute = Box<dyn Fn(&BatchLayout) -> Option<Vec<u32>>>;

/// What the thread does for a CUDA graph. Part of the ladder's context: see [`Mode::Capture`].
#[derive(Default)]
pub(crate) enum CaptureState {
    /// The thread makes a batch, whose arrays are uploaded into the graph's parameters.
    Upload(Upload),
    /// The thread warms up a pass for its capture, or captures it.
    Pass(PassCapture),
    /// What happened so far cannot be captured.
    #[default]
    Untracked,
}

pub(crate) struct Upload {
    pub(super) params: Rc<GraphParams>,
    /// The length of each array.
    pub(super) lengths: Vec<usize>,
    pub(super) words: usize,
}

pub(crate) struct PassCapture {
    pub(super) graph_params: Rc<GraphParams>,
    pub(super) layout: BatchLayout,
    pub(super) dynamic: Vec<DynamicParam>,
    pub(super) words: usize,
    /// Whether the stream is capturing. From then on there may be no new parameter and no
    /// allocation.
    pub(super) is_capturing: bool,
    pub(super) has_allocated: bool,
    /// Whether the pass depends on the batch in a way that a replay would miss.
    pub(super) is_untracked: bool,
}

impl PassCapture {
    /// For a batch whose uploaded arrays take `words` words.
    pub(super) fn new(graph_params: Rc<GraphParams>, layout: BatchLayout, words: usize) -> PassCapture {
        let dynamic = Vec::new();
        PassCapture {
            graph_params,
            layout,
            dynamic,
            words,
            is_capturing: false,
            has_allocated: true,
            is_untracked: false,
        }
    }
}

impl CaptureState {
    /// Runs `f` under `ladder` in this state, and returns the state it ends in.
    pub(super) fn during<T>(self, ladder: &Arc<Ladder>, f: impl FnOnce() -> T) -> (T, CaptureState) {
        let state = Rc::new(RefCell::new(self));
        let out = {
            let _here = ladder.clone().enter_in(Mode::Capture(state.clone()));
            f()
        };
        (out, state.take())
    }
}

/// Applies `f` to the pass that this thread captures, if there is one.
fn with_pass<T>(f: impl FnOnce(&mut PassCapture) -> T) -> Option<T> {
    match &mut *capture()?.borrow_mut() {
        CaptureState::Pass(pass) => Some(f(pass)),
        _ => None,
    }
}

/// Called when code other than an op reads a value that differs between batches of one shape.
pub(crate) fn observe_shape() {
    with_pass(|pass| pass.is_untracked = true);
}

/// Called when an array is uploaded outside the graph's parameters.
pub(crate) fn mark_untracked() {
    observe_shape();
    if let Some(state) = capture() {
        let mut state = state.borrow_mut();
        if let CaptureState::Upload(_) = *state {
            *state = CaptureState::Untracked;
        }
    }
}

/// Called before an operation that no graph can contain. During a capture it is an error: the
/// operation would keep or free buffers that graphs write to.
pub(crate) fn refuse_capture() -> Result<()> {
    let refused = with_pass(|pass| pass.is_untracked = true);
    refused.map_or(Ok(()), |()| Err(Error::call("cuda", "this cannot be captured in a CUDA graph")))
}

/// Called when a result allocates device memory. An error while the stream captures, because each
/// replay would allocate again.
#[cfg_attr(not(cuda), allow(dead_code, reason = "only CUDA captures graphs"))]
pub(crate) fn note_allocation() -> Result<()> {
    let noted = with_pass(|pass| {
        pass.has_allocated = true;
        pass.is_untracked |= pass.is_capturing;
        match pass.is_capturing {
            true => Err(Error::call("cuda", "a pass allocates memory during CUDA graph capture")),
            false => Ok(()),
        }
    });
    noted.unwrap_or(Ok(()))
}

/// Uploads an array into the graph's parameters, if this thread makes a batch for them.
pub(crate) fn upload(values: &[u32]) -> Option<Result<candle_core::Tensor>> {
    observe_shape();
    match &mut *capture()?.borrow_mut() {
        CaptureState::Upload(upload) => {
            let at = upload.words;
            upload.lengths.push(values.len());
            upload.words = (at + values.len()).next_multiple_of(ALIGNMENT);
            Some(upload.params.write(at, values).and_then(|()| upload.params.view(at, values.len())))
        }
        _ => None,
    }
}

/// The address of a dynamic parameter. `None` if this thread captures no pass, or if the parameter
/// is not computed from that pass's batch (`is_given`). `key` identifies `recompute`: calls with
/// the same key get the same words for every batch.
#[cfg_attr(not(cuda), allow(dead_code, reason = "only CUDA captures graphs"))]
pub(crate) fn dynamic_param(
    is_given: impl FnOnce(&BatchLayout) -> bool,
    key: impl FnOnce(&BatchLayout) -> String,
    recompute: impl FnOnce(&BatchLayout) -> Recompute,
) -> Option<Result<u64>> {
    let add = |pass: &mut PassCapture| {
        if !is_given(&pass.layout) {
            return None;
        }
        let key = key(&pass.layout);
        if let Some(param) = pass.dynamic.iter().find(|param| param.key == key) {
            return Some(Ok(pass.graph_params.address(param.at)));
        }
        let recompute = recompute(&pass.layout);
        let Some(words) = recompute(&pass.layout).filter(|_| !pass.is_capturing) else {
            pass.is_untracked = true;
            return None;
        };
        let (at, len) = (pass.words, words.len());
        pass.words = (at + len).next_multiple_of(ALIGNMENT);
        let copied = pass.graph_params.write(at, &words).and_then(|()| pass.graph_params.copy_to_device(at, len));
        pass.dynamic.push(DynamicParam { key, at, len, recompute });
        Some(copied.map(|()| pass.graph_params.address(at)))
    };
    with_pass(add).flatten()
}
