//! `sconce parse-files`: the process in which `sconce index` parses files of untrusted formats.

use crate::Failure;
use clap::Args;
use std::process::ExitCode;

/// Parse the files named on standard input, for `sconce index`, which starts this process.
#[derive(Args)]
#[command(hide = true)]
pub(crate) struct ParseFiles {}

impl ParseFiles {
    pub(crate) fn run(self) -> Result<ExitCode, Failure> {
        sconce_index::read::worker::run(std::io::stdin(), std::io::stdout())?;
        Ok(ExitCode::SUCCESS)
    }
}
