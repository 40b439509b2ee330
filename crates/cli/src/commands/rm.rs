//! `sconce rm`: removes a model from the caches.

use super::bytes;
use crate::Failure;
use crate::report::Report;
use clap::Args;
use sconce_engine::hub::{Options, Removal};
use std::io::{IsTerminal, Write};
use std::process::ExitCode;

/// Remove a model from the caches, after asking.
///
/// With a revision, only the files of that revision are removed; those that other revisions share
/// stay.
#[derive(Args)]
pub(crate) struct Rm {
    /// A hub id (org/name[@revision][:QUANTIZATION] or org/name/FILE.gguf), pip:NAME[==VERSION], or
    /// a short name, as `sconce list` prints it.
    model: String,
    /// Do not ask.
    #[arg(short, long)]
    yes: bool,
}

impl Rm {
    pub(crate) fn run(self, report: &Report) -> Result<ExitCode, Failure> {
        let removal = Removal::plan(&self.model.parse()?, &Options::from_env()?)?;
        let kept = match removal.kept_bytes {
            0 => String::new(),
            n => format!("; {} stay, which other revisions share", bytes(n)),
        };
        let what = format!("{} ({}{kept})", removal.what, bytes(removal.bytes));
        if !self.yes && !confirm(&what)? {
            report.info("nothing was removed");
            return Ok(ExitCode::FAILURE);
        }
        removal.run()?;
        report.info(&format!("removed {what}"));
        Ok(ExitCode::SUCCESS)
    }
}

/// Asks on the terminal. Without one, it refuses.
fn confirm(what: &str) -> Result<bool, Failure> {
    if !std::io::stdin().is_terminal() {
        return Err(format!("this would remove {what}; add --yes to do it without asking").into());
    }
    eprint!("remove {what}? [y/N] ");
    std::io::stderr().flush()?;
    let mut answer = String::new();
    std::io::stdin().read_line(&mut answer)?;
    Ok(matches!(answer.trim(), "y" | "Y" | "yes"))
}
