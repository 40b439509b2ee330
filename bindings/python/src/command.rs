//! The command `sconce`.

use pyo3::prelude::*;
use std::ffi::OsString;
use std::process::ExitCode;

/// Runs the command and returns its exit code. A request for help ends the process.
#[pyfunction]
pub(crate) fn run_command(py: Python<'_>, arguments: Vec<OsString>) -> u8 {
    let code = py.detach(|| sconce_cli::run(arguments));
    (0..=u8::MAX).find(|n| ExitCode::from(*n) == code).unwrap_or(1)
}
