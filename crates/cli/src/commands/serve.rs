//! `sconce serve`: models over HTTP.

use crate::Failure;
use crate::args::{How, Room};
use crate::report::Report;
use clap::Args;
use sconce_engine::LlmOptions;
use sconce_server::{Config, Listen, ModelSpec, Server, Stop};
use std::process::ExitCode;

/// Serve models over HTTP, in the dialects of OpenAI, text-embeddings-inference, Cohere and Jina, on one port.
///
/// It listens at once; until a model is loaded, requests for it are answered with 503 and how far it is. SIGTERM or Ctrl-C
/// finishes what runs and ends; a second one ends at once.
#[derive(Args)]
#[command(
    after_help = "Examples:\n  sconce serve\n  sconce serve -m BAAI/bge-m3 -m cross-encoder/ms-marco-MiniLM-L6-v2 -p 8080\n  \
    sconce serve -m chat=smollm --api-key SECRET --hostname 0.0.0.0\n\n  \
    curl localhost:8080/v1/embeddings -H 'content-type: application/json' -d '{\"model\":\"minilm\",\"input\":\"A text.\"}'"
)]
pub(crate) struct Serve {
    /// A model, as for other commands, or NAME=MODEL to give it a name in requests. May be given several times.
    #[arg(
        short,
        long = "model",
        visible_alias = "model-id",
        value_name = "MODEL",
        env = "MODEL_ID",
        value_delimiter = ',',
        default_value = "minilm"
    )]
    models: Vec<String>,
    #[command(flatten)]
    how: How,
    #[command(flatten)]
    room: Room,
    #[command(flatten)]
    http: Http,
}

/// How the server listens and what it allows.
#[derive(Args, Clone)]
pub(crate) struct Http {
    /// Who may come: 127.0.0.1 is this machine alone, 0.0.0.0 everybody.
    #[arg(long, value_name = "HOST", default_value = "127.0.0.1", env = "HOSTNAME")]
    hostname: String,
    /// The port; 0 takes any that is free.
    #[arg(short, long, value_name = "PORT", default_value_t = 8080, env = "PORT")]
    port: u16,
}

impl Serve {
    pub(crate) fn run(self, _report: &Report) -> Result<ExitCode, Failure> {
        let models = self.models.iter().map(|given| self.spec(given)).collect::<Result<Vec<_>, Failure>>()?;
        let config = Config {
            listen: Listen::Tcp { host: self.http.hostname.clone(), port: self.http.port },
            ..Config::default()
        };
        tracing_subscriber::fmt().with_writer(std::io::stderr).init();
        let runtime = tokio::runtime::Builder::new_multi_thread().enable_all().build()?;
        runtime.block_on(async {
            let server = Server::bind(config, models, Stop::on_signals()).await?;
            server.run().await
        })?;
        Ok(ExitCode::SUCCESS)
    }

    fn spec(&self, given: &str) -> Result<ModelSpec, Failure> {
        let mut spec = ModelSpec::new(given, self.how.language_options()?);
        spec.llm = self.room.options(LlmOptions::default().sequences);
        Ok(spec)
    }
}
