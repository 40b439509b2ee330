//! `sconce pool`: manages the workers of a host.

mod status;

use super::print;
use crate::program::program;
use crate::report::Report;
use crate::{Failure, logs, runtime};
use clap::{Args, Subcommand};
use sconce_api::pool::{PORT, Start as StartRequest};
use sconce_api::worker::Tuning;
use sconce_pool::Method;
use sconce_pool::{Config, ManagerClient, Pool as Manager, PoolFile};
use serde_json::{Value, json};
use std::path::PathBuf;
use std::process::ExitCode;

/// Start workers on this host's devices, supervise them and route requests to them: one address for
/// all models.
#[derive(Args)]
#[command(arg_required_else_help = true)]
pub(crate) struct Pool {
    #[command(subcommand)]
    command: PoolCommand,
}

#[derive(Subcommand)]
enum PoolCommand {
    Serve(Serve),
    Status(status::Status),
    Start(Box<Start>),
    Stop(Stop),
    Drain(Drain),
}

impl Pool {
    pub(crate) fn run(self, report: &Report) -> Result<ExitCode, Failure> {
        match self.command {
            PoolCommand::Serve(c) => c.run(report),
            PoolCommand::Status(c) => c.run(),
            PoolCommand::Start(c) => c.run(),
            PoolCommand::Stop(c) => c.run(),
            PoolCommand::Drain(c) => c.run(),
        }
    }
}

/// Run the manager of this host's workers.
///
/// It starts the models of pool.toml and those that `sconce pool start` requests, restarts workers
/// that fail, and routes each request to the least loaded worker of its model, on this host or on
/// those that pool.toml names. Its state is on disk, so that a restarted manager finds its workers.
/// SIGTERM or Ctrl-C stops the workers and exits; a second one exits at once and leaves the workers
/// to the next manager.
#[derive(Args)]
#[command(
    after_help = "A pool.toml:\n  port = 9200\n  start_timeout = 120\n\n  [binaries]\n  cuda = \"/opt/sconce-cuda/bin/sconce\"\n\n  \
    [[model]]\n  model = \"smollm\"\n  name = \"chat\"\n  device = \"cuda\"\n  replicas = 2\n  flags = { context = 4096, dtype = \"q8_0\" }\n\n  \
    [[host]]\n  url = \"https://gpu-1.example:8080\"\n  models = [\"chat\"]\n  key_env = \"GPU_1_KEY\"\n\n\
    Examples:\n  sconce pool serve -c pool.toml\n  sconce pool start minilm --device cpu\n  sconce pool status"
)]
struct Serve {
    /// Configuration file: models, ports and time-outs.
    #[arg(short, long, value_name = "FILE")]
    config: Option<PathBuf>,
    /// Address to listen on: 127.0.0.1 for this machine only.
    #[arg(long, value_name = "HOST")]
    hostname: Option<String>,
    /// Port to listen on. Default: 9200, or the port of the configuration file.
    #[arg(short, long, value_name = "PORT")]
    port: Option<u16>,
    /// Host name that requests may use, besides localhost. May be repeated. Default: any, if the
    /// manager has a key or listens for other machines; otherwise only localhost.
    #[arg(long, value_name = "HOST", value_delimiter = ',')]
    allowed_hosts: Vec<String>,
    /// Directory of the manager's state. Default: sconce/pool-PORT in $XDG_STATE_HOME or
    /// ~/.local/state.
    #[arg(long, value_name = "DIR", env = "SCONCE_POOL_STATE")]
    state: Option<PathBuf>,
    /// API key that requests must send. Prefer the environment variable: process lists show
    /// arguments.
    #[arg(long, value_name = "KEY", env = "SCONCE_POOL_KEY", hide_env_values = true)]
    api_key: Option<String>,
    /// Leave the workers running on exit; the next manager adopts them.
    #[arg(long)]
    keep_workers: bool,
    /// Write the log as JSON.
    #[arg(long, env = "JSON_OUTPUT")]
    json_output: bool,
}

impl Serve {
    fn run(self, report: &Report) -> Result<ExitCode, Failure> {
        logs::start(self.json_output, report.is_quiet())?;
        let mut file = self.config.as_deref().map(PoolFile::read).transpose()?.unwrap_or_default();
        file.hostname = self.hostname.or(file.hostname);
        file.port = self.port.or(file.port);
        file.allowed_hosts.extend(self.allowed_hosts);
        file.state = self.state.or(file.state);
        let mut config = Config::new(file, program()?, default_state_dir)?;
        if self.api_key.as_deref().is_some_and(|key| key.trim().is_empty()) {
            return Err("--api-key is empty; give a key, or leave the option out".into());
        }
        (config.api_key, config.keep_workers) = (self.api_key, self.keep_workers);
        runtime::serve(64, async {
            let pool = Manager::bind(config).await?;
            let stop = sconce_server::Stop::on_signals();
            pool.run(stop.drained(), stop.forced()).await
        })??;
        Ok(ExitCode::SUCCESS)
    }
}

/// Default directory of a manager's state.
fn default_state_dir(port: u16) -> PathBuf {
    let set = |name: &str| std::env::var_os(name).filter(|v| !v.is_empty()).map(PathBuf::from);
    let base =
        set("XDG_STATE_HOME").or_else(|| set("HOME").map(|default_state_dir| default_state_dir.join(".local/state")));
    base.unwrap_or_else(std::env::temp_dir).join(format!("sconce/pool-{port}"))
}

/// The manager to contact.
#[derive(Args, Clone)]
struct Address {
    /// URL of the manager.
    #[arg(long, value_name = "URL", env = "SCONCE_POOL_URL", default_value_t = format!("http://127.0.0.1:{PORT}"))]
    url: String,
    /// API key of the manager, if it has one.
    #[arg(long, value_name = "KEY", env = "SCONCE_POOL_KEY", hide_env_values = true)]
    api_key: Option<String>,
}

impl Address {
    fn request(&self, method: Method, path: &str, body: Option<Value>) -> Result<Value, Failure> {
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
        let manager = ManagerClient { url: self.url.clone(), key: self.api_key.clone() };
        let (status, body) = runtime.block_on(manager.request(method, path, body))?;
        if status.is_success() {
            return Ok(body);
        }
        let code = body["error_code"].as_str().unwrap_or_default();
        let message = body["message"].as_str().map_or_else(|| body.to_string(), String::from);
        Err(if code.is_empty() { format!("{status}: {message}") } else { format!("{code}: {message}") }.into())
    }
}

/// Start a worker and wait until it is ready.
#[derive(Args)]
struct Start {
    /// A directory or .gguf file, a hub id, pip:NAME, or a short name; on the manager's host.
    model: String,
    /// auto, cpu, cuda[:N] or metal[:N]; cuda or metal alone means the one with the most available
    /// memory. Default: auto.
    #[arg(short, long, value_name = "DEVICE")]
    device: Option<String>,
    /// Number of the GPU, CUDA or Metal, instead of --device.
    #[arg(long, value_name = "N", conflicts_with = "device")]
    gpu_id: Option<u32>,
    /// Name of the model in requests.
    #[arg(long, value_name = "NAME")]
    name: Option<String>,
    #[command(flatten)]
    flags: Tuning,
    #[command(flatten)]
    address: Address,
    /// Print JSON.
    #[arg(long)]
    json: bool,
}

impl Start {
    fn run(self) -> Result<ExitCode, Failure> {
        let (gpu_id, device) = (self.gpu_id, self.device);
        let start = StartRequest { model_ref: self.model, gpu_id, device, name: self.name, flags: self.flags };
        let started = self.address.request(Method::POST, "/v2/workers/start", Some(json!(start)))?;
        let text = |key: &str| started[key].as_str().unwrap_or_default().to_string();
        print(&match self.json {
            true => started.to_string(),
            false => format!("{} is {} on {}, at {}", text("worker_id"), text("state"), text("device"), text("uri")),
        })?;
        Ok(ExitCode::SUCCESS)
    }
}

/// Stop a worker: it gets no more requests, finishes its running ones and exits.
#[derive(Args)]
struct Stop {
    /// Id of the worker, from `sconce pool status`.
    worker: String,
    #[command(flatten)]
    address: Address,
}

impl Stop {
    fn run(self) -> Result<ExitCode, Failure> {
        let body = json!({"worker_id": self.worker});
        let state = self.address.request(Method::POST, "/v2/workers/stop", Some(body))?;
        print_state(&state)
    }
}

/// Drain a worker: it gets no more requests, and stays until it is stopped.
#[derive(Args)]
struct Drain {
    /// Id of the worker, from `sconce pool status`.
    worker: String,
    #[command(flatten)]
    address: Address,
}

impl Drain {
    fn run(self) -> Result<ExitCode, Failure> {
        let path = format!("/v2/workers/{}/drain", self.worker);
        let state = self.address.request(Method::POST, &path, Some(json!({})))?;
        print_state(&state)
    }
}

fn print_state(state: &Value) -> Result<ExitCode, Failure> {
    let text = |key: &str| state[key].as_str().unwrap_or_default();
    print(&format!("{} is {}, with {} running requests", text("worker_id"), text("state"), state["active"]))?;
    Ok(ExitCode::SUCCESS)
}
