//! The ladder's context: the ladder that the ops of this thread run under, its mode, and the
//! current part of the model.
//!
//! Ops take tensors only, so the context is ambient. These are the only thread-locals that affect
//! what runs.

use super::Ladder;
use crate::replay::CaptureState;
use std::cell::{Cell, RefCell};
use std::marker::PhantomData;
use std::rc::Rc;
use std::sync::Arc;

thread_local! {
    static ENTERED: RefCell<Vec<Context>> = const { RefCell::new(Vec::new()) };
    static AT: Cell<Option<(&'static str, usize)>> = const { Cell::new(None) };
}

struct Context {
    ladder: Arc<Ladder>,
    mode: Mode,
}

/// How ops run.
#[derive(Clone, Default)]
pub(crate) enum Mode {
    /// Normally.
    #[default]
    Run,
    /// A dry run: kernels are compiled and not run, to warm up a device. Launchers that compile
    /// check for this mode, and so does the ladder, because only our own kernels can be compiled
    /// without running.
    Dry,
    /// For a CUDA graph: see [`crate::replay`].
    Capture(Rc<RefCell<CaptureState>>),
}

/// The ladder of this thread: the one entered last, or a default one.
pub(crate) fn current() -> Arc<Ladder> {
    ENTERED.with_borrow_mut(|entered| {
        if entered.is_empty() {
            entered.push(Context { ladder: Arc::default(), mode: Mode::Run });
        }
        entered[entered.len() - 1].ladder.clone()
    })
}

/// The mode of this thread.
pub(crate) fn mode() -> Mode {
    ENTERED.with_borrow(|entered| entered.last().map(|context| context.mode.clone()).unwrap_or_default())
}

/// Whether this is a dry run, which compiles kernels and runs none.
pub(crate) fn is_dry() -> bool {
    matches!(mode(), Mode::Dry)
}

/// The CUDA graph capture that this thread is in.
pub(crate) fn capture() -> Option<Rc<RefCell<CaptureState>>> {
    match mode() {
        Mode::Capture(state) => Some(state),
        Mode::Run | Mode::Dry => None,
    }
}

/// Leaves the ladder when dropped.
///
/// Not `Send`: it belongs to the thread that entered.
#[must_use]
pub struct Entered(PhantomData<*const ()>);

impl Drop for Entered {
    fn drop(&mut self) {
        ENTERED.with_borrow_mut(|entered| entered.pop());
    }
}

impl Ladder {
    /// Makes this the thread's ladder until the guard is dropped. The mode is inherited, so a
    /// ladder entered within a capture does not hide the capture.
    pub fn enter(self: Arc<Self>) -> Entered {
        self.enter_in(mode())
    }

    /// Like [`Ladder::enter`], in another mode.
    pub(crate) fn enter_in(self: Arc<Self>, mode: Mode) -> Entered {
        ENTERED.with_borrow_mut(|entered| entered.push(Context { ladder: self, mode }));
        Entered(PhantomData)
    }
}

/// Names the part of the model that the following calls belong to, until dropped: `let _at =
/// at("layer", 3);`.
#[must_use]
pub fn at(what: &'static str, index: usize) -> impl Drop {
    struct Leave(Option<(&'static str, usize)>);
    impl Drop for Leave {
        fn drop(&mut self) {
            AT.set(self.0);
        }
    }
    Leave(AT.replace(Some((what, index))))
}

/// The current part of the model, as in `layer 3`.
pub(super) fn part() -> Option<String> {
    AT.get().map(|(what, i)| format!("{what} {i}"))
}
