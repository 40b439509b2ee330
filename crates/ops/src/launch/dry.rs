//! Kernels that are made and not run: how a device is made ready before anyone waits. A launcher that compiles asks; so does the
//! ladder, since other rungs than ours cannot be made without running.

use std::cell::Cell;

thread_local! {
    static DRY: Cell<bool> = const { Cell::new(false) };
}

/// Whether this thread makes kernels and runs none.
pub(crate) fn is_dry() -> bool {
    DRY.get()
}

/// `f` with kernels made and not run.
pub(crate) fn dry<T>(f: impl FnOnce() -> T) -> T {
    struct Leave(bool);
    impl Drop for Leave {
        fn drop(&mut self) {
            DRY.set(self.0);
        }
    }
    let _leave = Leave(DRY.replace(true));
    f()
}
