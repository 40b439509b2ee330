//! The program to start for a process that runs another command of `sconce`.

use std::io;
use std::path::PathBuf;

/// This program, or the one that `SCONCE_PROGRAM` names: in the Python package the running program
/// is the interpreter, and the script that started it sets the variable.
pub(crate) fn program() -> io::Result<PathBuf> {
    match std::env::var_os("SCONCE_PROGRAM").filter(|path| !path.is_empty()) {
        Some(path) => Ok(path.into()),
        None => std::env::current_exe(),
    }
}
