//! The log of what serves: lines on standard error, for a person or as JSON.

use crate::Failure;
use std::io::IsTerminal;
use tracing_subscriber::EnvFilter;

/// Begins it. `RUST_LOG` says what is told; without it, everything from `info` on, or, quietly, errors alone.
pub(crate) fn start(json: bool, quiet: bool) -> Result<(), Failure> {
    let filter = match std::env::var("RUST_LOG") {
        Ok(said) if !said.trim().is_empty() => EnvFilter::try_new(&said)
            .map_err(|e| format!("RUST_LOG={said}: {e}; write, say, `info` or `sconce=debug`"))?,
        _ => EnvFilter::new(if quiet { "error" } else { "info" }),
    };
    let colours = std::io::stderr().is_terminal() && std::env::var_os("NO_COLOR").is_none_or(|v| v.is_empty());
    let log = tracing_subscriber::fmt().with_env_filter(filter).with_writer(std::io::stderr).with_ansi(colours);
    // A line that cannot be written, on a full disk say, is lost: complaining of it in the same place would be a panic.
    let log = log.log_internal_errors(false);
    let begun = if json { log.json().flatten_event(true).try_init() } else { log.try_init() };
    begun.map_err(|e| format!("the log cannot be begun: {e}").into())
}
