//! The `sconce` command, one file per command. This file parses arguments, dispatches, and turns
//! errors into exit codes.
//!
//! A library, because two programs call it: the binary of the crate `sconce`, and the script of the
//! Python package, which calls its extension module.

mod allocator;
mod args;
mod byte_size;
mod commands;
#[cfg(feature = "index")]
mod index;
mod input;
mod logs;
#[cfg(feature = "index")]
mod mcp;
mod output;
mod output_constraint;
mod output_file;
mod parquet_file;
mod program;
mod report;
mod row;
mod runtime;
mod sampling;
mod shards;
mod source;
mod stream_printer;
mod summary;
mod vector_output;
mod window_runner;

use clap::{CommandFactory, Parser, Subcommand};
use std::process::ExitCode;

/// Run transformer models on CPU, CUDA and Metal: embeddings, reranking, classification, tagging,
/// image–text embeddings, text generation, search in documents, and serving.
#[derive(Parser)]
#[command(name = "sconce", version, max_term_width = 100, arg_required_else_help = true)]
struct Cli {
    #[command(subcommand)]
    command: Command,
    /// Print only errors to standard error.
    #[arg(short, long, global = true)]
    quiet: bool,
}

#[derive(Subcommand)]
enum Command {
    Embed(commands::embed::Embed),
    Similarity(commands::similarity::Similarity),
    Rerank(commands::rerank::Rerank),
    Classify(commands::classify::Classify),
    Tag(commands::tag::Tag),
    Clip(commands::clip::Clip),
    Generate(commands::generate::Generate),
    Chat(commands::chat::Chat),
    Batch(commands::batch::Batch),
    #[cfg(feature = "index")]
    Index(commands::index::Index),
    #[cfg(feature = "index")]
    Search(commands::search::Search),
    #[cfg(feature = "index")]
    Ask(commands::ask::Ask),
    #[cfg(feature = "index")]
    Mcp(commands::mcp::Mcp),
    #[cfg(feature = "index")]
    ParseFiles(commands::parse_files::ParseFiles),
    Serve(commands::serve::Serve),
    Worker(commands::worker::Worker),
    Pool(commands::pool::Pool),
    Shards(commands::shards::Shards),
    Devices(commands::devices::Devices),
    Plan(commands::plan::Plan),
    Doctor(commands::doctor::Doctor),
    Pull(commands::pull::Pull),
    List(commands::list::List),
    Show(commands::show::Show),
    Rm(commands::rm::Rm),
    Bench(commands::bench::Bench),
    Completions(commands::manual::Completions),
    Man(commands::manual::Man),
}

/// An error that ends a command, worded for the user.
type Failure = Box<dyn std::error::Error + Send + Sync>;

/// Runs the command of this process's arguments.
pub fn main() -> ExitCode {
    run(std::env::args_os().collect())
}

/// Runs the command of `arguments`, the first of which is the name of the program. A request for
/// help and arguments that cannot be parsed end the process.
pub fn run(arguments: Vec<std::ffi::OsString>) -> ExitCode {
    allocator::keep_freed();
    if let Some(worker) = commands::worker_names::worker(&arguments) {
        let report = report::Report::new(false);
        return exit_code(worker.unwrap_or_else(|e| e.exit()).run(&report), &report);
    }
    let cli = Cli::parse_from(arguments);
    let report = report::Report::new(cli.quiet);
    let result = match cli.command {
        Command::Embed(c) => c.run(&report),
        Command::Similarity(c) => c.run(&report),
        Command::Rerank(c) => c.run(&report),
        Command::Classify(c) => c.run(&report),
        Command::Tag(c) => c.run(&report),
        Command::Clip(c) => c.run(&report),
        Command::Generate(c) => c.run(&report),
        Command::Chat(c) => c.run(&report),
        Command::Batch(c) => c.run(&report),
        #[cfg(feature = "index")]
        Command::Index(c) => c.run(&report),
        #[cfg(feature = "index")]
        Command::Search(c) => c.run(&report),
        #[cfg(feature = "index")]
        Command::Ask(c) => c.run(&report),
        #[cfg(feature = "index")]
        Command::Mcp(c) => c.run(&report),
        #[cfg(feature = "index")]
        Command::ParseFiles(c) => c.run(),
        Command::Serve(c) => c.run(&report),
        Command::Worker(c) => c.run(&report),
        Command::Pool(c) => c.run(&report),
        Command::Shards(c) => c.run(),
        Command::Devices(c) => c.run(),
        Command::Plan(c) => c.run(&report),
        Command::Doctor(c) => c.run(&report),
        Command::Pull(c) => c.run(&report),
        Command::List(c) => c.run(&report),
        Command::Show(c) => c.run(&report),
        Command::Rm(c) => c.run(&report),
        Command::Bench(c) => c.run(&report),
        Command::Completions(c) => c.run(Cli::command()),
        Command::Man(c) => c.run(Cli::command()),
    };
    exit_code(result, &report)
}

fn exit_code(result: Result<ExitCode, Failure>, report: &report::Report) -> ExitCode {
    match result {
        Ok(code) => code,
        Err(e) if is_broken_pipe(&*e) => ExitCode::SUCCESS,
        Err(e) => {
            report.error(&e.to_string());
            ExitCode::FAILURE
        }
    }
}

/// The reader of the output has gone (`| head`), which is not a failure.
fn is_broken_pipe(e: &(dyn std::error::Error + 'static)) -> bool {
    e.downcast_ref::<std::io::Error>().is_some_and(|e| e.kind() == std::io::ErrorKind::BrokenPipe)
}
