//! Log of the serving commands: lines on standard error, as text or JSON.

use crate::Failure;
use std::io::IsTerminal;
use tracing_subscriber::EnvFilter;

/// Starts the log. `RUST_LOG` sets its filter; by default `info` and above, or only errors with
/// `--quiet`.
pub(crate) fn start(json: bool, quiet: bool) -> Result<(), Failure> {
    let filter = match std::env::var("RUST_LOG") {
        Ok(filter) if !filter.trim().is_empty() => EnvFilter::try_new(&filter)
            .map_err(|e| format!("RUST_LOG={filter}: {e}; use for example `info` or `sconce=debug`"))?,
        // The library of `sconce mcp` writes several lines per request.
        _ => EnvFilter::new(if quiet { "error" } else { "info,rmcp=warn" }),
    };
    let colours = std::io::stderr().is_terminal() && std::env::var_os("NO_COLOR").is_none_or(|v| v.is_empty());
    let log = tracing_subscriber::fmt().with_env_filter(filter).with_writer(std::io::stderr).with_ansi(colours);
    // A line that cannot be written, for example on a full disk, is dropped: reporting it on the
    // same stream would panic.
    let log = log.log_internal_errors(false);
    let started = if json { log.json().flatten_event(true).try_init() } else { log.try_init() };
    started.map_err(|e| format!("cannot start the log: {e}").into())
}
