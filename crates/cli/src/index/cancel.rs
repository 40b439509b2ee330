//! Ctrl-C during indexing.

use crate::Failure;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

/// The exit code of a process that Ctrl-C ended, as shells report it.
pub(crate) const INTERRUPTED: u8 = 130;

/// From now on the first Ctrl-C sets the flag, so that what was computed is committed. The second
/// ends the process; nothing committed is lost by that either.
pub(crate) fn cancel_on_ctrl_c() -> Result<Arc<AtomicBool>, Failure> {
    let cancel = Arc::new(AtomicBool::new(false));
    let flag = cancel.clone();
    ctrlc::set_handler(move || {
        if flag.swap(true, Ordering::SeqCst) {
            std::process::exit(INTERRUPTED.into());
        }
    })?;
    Ok(cancel)
}
