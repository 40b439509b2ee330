//! `msl-translate [--erase-address-spaces] LIBRARY KERNELS.clcpp TABLE.cpp < preprocessed.metal`

use std::io::Read;
use std::process::ExitCode;
use std::{env, fs, io};

use msl_translate::{AddressSpaces, translate};

const USAGE: &str =
    "usage: msl-translate [--erase-address-spaces] LIBRARY KERNELS.clcpp TABLE.cpp < preprocessed.metal";

fn main() -> ExitCode {
    match run() {
        Ok(()) => ExitCode::SUCCESS,
        Err(message) => {
            eprintln!("msl-translate: {message}");
            ExitCode::FAILURE
        }
    }
}

fn run() -> Result<(), String> {
    let mut arguments: Vec<String> = env::args().skip(1).collect();
    let mut spaces = AddressSpaces::Checked;
    if arguments.first().is_some_and(|first| first == "--erase-address-spaces") {
        spaces = AddressSpaces::Erased;
        arguments.remove(0);
    }
    let [library, kernels_path, table_path] = arguments.as_slice() else {
        return Err(USAGE.into());
    };
    let mut source = String::new();
    io::stdin().read_to_string(&mut source).map_err(|error| format!("standard input: {error}"))?;
    let translation = translate(&source, library, spaces).map_err(|error| format!("{library}: {error}"))?;
    let write = |path: &str, text: &str| fs::write(path, text).map_err(|error| format!("{path}: {error}"));
    write(kernels_path, &translation.kernels_source)?;
    write(table_path, &translation.table_source)?;
    println!("{library}: {} kernels", translation.kernel_names.len());
    Ok(())
}
