//! The command `sconce`.

use crate::call::detached;
use pyo3::prelude::*;
use std::ffi::OsString;
use std::process::ExitCode;

/// Runs the command and returns its exit code. A request for help ends the process.
#[pyfunction]
pub(crate) fn run_command(py: Python<'_>, arguments: Vec<OsString>) -> PyResult<u8> {
    let code = detached(py, || Ok(sconce_cli::run(arguments)))?;
    Ok((0..=u8::MAX).find(|n| ExitCode::from(*n) == code).unwrap_or(1))
}
