//! Runtime of the serving commands.

use std::io;
use std::time::Duration;
use tokio::runtime::{Builder, Runtime};

/// How long blocked threads may delay the exit of the process.
const SHUTDOWN_TIMEOUT: Duration = Duration::from_secs(1);

/// Runs a server on async threads for clients and up to `blocking` threads for models. It does not
/// wait for blocked threads at the end: a model that hangs must not keep the process alive after it
/// was told to stop.
pub(crate) fn serve<T>(blocking: usize, what: impl Future<Output = T>) -> io::Result<T> {
    let runtime: Runtime = Builder::new_multi_thread().max_blocking_threads(blocking).enable_all().build()?;
    let served = runtime.block_on(what);
    runtime.shutdown_timeout(SHUTDOWN_TIMEOUT);
    Ok(served)
}
