//! `sconce mcp`: an index for programs that speak the Model Context Protocol.

use super::serve::api_keys;
use crate::args::RunArgs;
use crate::index::DatabaseArgs;
use crate::mcp::{HttpOptions, IndexServer, Library, serve_http, serve_stdio};
use crate::report::Report;
use crate::{Failure, logs, runtime};
use clap::Args;
use std::io::IsTerminal;
use std::process::ExitCode;

/// Serve an index to assistants and editors (Model Context Protocol).
///
/// The tools search in the index, read around a passage, and list documents. Without --port the
/// protocol runs over standard input and output: the client starts this command. With --port it
/// runs over HTTP on 127.0.0.1. Nothing outside of the index can be read.
#[derive(Args)]
#[command(after_help = "Examples:\n  \
    sconce mcp --db ~/notes/.sconce/index.db\n  \
    SCONCE_API_KEY=SECRET sconce mcp --port 8090\n\n\
    In the configuration of a client:\n  \
    {\"mcpServers\": {\"notes\": {\"command\": \"sconce\", \"args\": [\"mcp\", \"--db\", \"/home/me/notes/.sconce/index.db\"]}}}")]
pub(crate) struct Mcp {
    #[command(flatten)]
    database: DatabaseArgs,
    /// Serve over HTTP at http://127.0.0.1:PORT/mcp; 0 takes any free port.
    #[arg(short, long, value_name = "PORT")]
    port: Option<u16>,
    /// API key that HTTP requests must send (`Authorization: Bearer KEY`); several separated by
    /// commas. Prefer the environment variable: process lists show arguments.
    #[arg(long, value_name = "KEY", env = "SCONCE_API_KEY", hide_env_values = true, value_delimiter = ',')]
    api_key: Vec<String>,
    /// Host name that HTTP requests and the pages they come from may have, besides localhost. May
    /// be repeated.
    #[arg(long, value_name = "HOST", env = "ALLOWED_HOSTS", value_delimiter = ',')]
    allowed_hosts: Vec<String>,
    #[command(flatten)]
    run_args: RunArgs,
}

impl Mcp {
    pub(crate) fn run(self, report: &Report) -> Result<ExitCode, Failure> {
        logs::start(false, report.is_quiet())?;
        let path = self.database.existing()?;
        let library = Library::open(&path, self.run_args, Report::new(report.is_quiet()))?;
        let server = IndexServer::new(library);
        let threads = IndexServer::blocking_threads();
        match self.port {
            Some(port) => {
                let api_keys = api_keys(&self.api_key)?;
                let options = HttpOptions { port, api_keys, allowed_hosts: self.allowed_hosts };
                runtime::serve(threads, serve_http(server, options, report))??;
            }
            None => {
                if std::io::stdin().is_terminal() {
                    report.info(
                        "waiting for a client on standard input; name this command in the client's configuration, or \
                         serve over HTTP with --port",
                    );
                }
                runtime::serve(threads, serve_stdio(server))??;
            }
        }
        Ok(ExitCode::SUCCESS)
    }
}
