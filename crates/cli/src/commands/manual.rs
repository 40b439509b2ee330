//! `sconce completions` and `sconce man`, generated from the definitions that parse the command
//! line.

use crate::Failure;
use clap::{Args, Command};
use clap_complete::Shell;
use std::io::Write;
use std::path::PathBuf;
use std::process::ExitCode;

/// Print completions for a shell.
#[derive(Args)]
#[command(after_help = "Example:\n  sconce completions bash > ~/.local/share/bash-completion/completions/sconce")]
pub(crate) struct Completions {
    /// The shell.
    shell: Shell,
}

impl Completions {
    pub(crate) fn run(self, mut command: Command) -> Result<ExitCode, Failure> {
        let mut script = Vec::new();
        clap_complete::generate(self.shell, &mut command, "sconce", &mut script);
        std::io::stdout().write_all(&script)?;
        Ok(ExitCode::SUCCESS)
    }
}

/// Print the manual page, or write it and one per command into a directory.
#[derive(Args)]
pub(crate) struct Man {
    /// Write sconce.1, sconce-embed.1, … to this directory.
    #[arg(long, value_name = "DIR")]
    dir: Option<PathBuf>,
}

impl Man {
    pub(crate) fn run(self, command: Command) -> Result<ExitCode, Failure> {
        match self.dir {
            Some(dir) => {
                std::fs::create_dir_all(&dir).map_err(|e| format!("{}: {e}", dir.display()))?;
                clap_mangen::generate_to(command, &dir).map_err(|e| format!("{}: {e}", dir.display()))?;
            }
            None => clap_mangen::Man::new(command).render(&mut std::io::stdout())?,
        }
        Ok(ExitCode::SUCCESS)
    }
}
