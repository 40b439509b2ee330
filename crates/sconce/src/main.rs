//! The `sconce` command.

fn main() -> std::process::ExitCode {
    sconce_cli::main()
}
