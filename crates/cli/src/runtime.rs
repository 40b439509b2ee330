//! The threads of what serves.

use std::io;
use std::time::Duration;
use tokio::runtime::{Builder, Runtime};

/// How long work that cannot be stopped may hold up the end of the process.
const LAST_WORDS: Duration = Duration::from_secs(1);

/// Runs what serves on threads that wait for clients, and up to `blocking` that wait for models. When it has ended nothing is
/// waited for any more: a model that hangs must not keep alive a process that was told to end.
pub(crate) fn serve<T>(blocking: usize, what: impl Future<Output = T>) -> io::Result<T> {
    let runtime: Runtime = Builder::new_multi_thread().max_blocking_threads(blocking).enable_all().build()?;
    let served = runtime.block_on(what);
    runtime.shutdown_timeout(LAST_WORDS);
    Ok(served)
}
