//! The ladder's context: under which ladder the ops of this thread run, in which mode, and for
//! which part of the model.
//!
//! Ops take tensors only, so this is ambient. These are the only thread-locals that decide
//! anything.

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
    /// As they are called.
    #[default]
    Run,
    /// Kernels are compiled and not run: how a device is made ready. Launchers that compile ask for
    /// it, and so does the ladder, because only our own kernels can be made ready without running.
    Dry,
    /// For a CUDA graph.
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

/// Whether kernels are compiled and not run.
pub(crate) fn is_dry() -> bool {
    matches!(mode(), Mode::Dry)
}

/// The capture that this thread is in.
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
    /// Makes this the thread's ladder until the guard is dropped. The mode stays as it is: a ladder
    /// within a capture does not hide it.
    pub fn enter(self: Arc<Self>) -> Entered {
        self.enter_in(mode())
    }

    /// The same in another mode.
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

/// That part, in words.
pub(super) fn part() -> Option<String> {
    AT.get().map(|(what, i)| format!("{what} {i}"))
}
