//! `sconce pool`: a host's workers.

mod status;

use super::print;
use crate::report::Report;
use crate::{Failure, logs, runtime};
use clap::{Args, Subcommand};
use sconce_api::pool::{PORT, Start as Wanted};
use sconce_api::worker::Tuning;
use sconce_pool::Method;
use sconce_pool::{Asker, Config, Pool as Manager, PoolFile};
use serde_json::{Value, json};
use std::path::PathBuf;
use std::process::ExitCode;

/// Start workers on this host's devices, watch them, and send them requests: one address for all models.
#[derive(Args)]
#[command(arg_required_else_help = true)]
pub(crate) struct Pool {
    #[command(subcommand)]
    what: What,
}

#[derive(Subcommand)]
enum What {
    Serve(Serve),
    Status(status::Status),
    Start(Start),
    Stop(Stop),
    Drain(Drain),
}

impl Pool {
    pub(crate) fn run(self, report: &Report) -> Result<ExitCode, Failure> {
        match self.what {
            What::Serve(c) => c.run(report),
            What::Status(c) => c.run(),
            What::Start(c) => c.run(),
            What::Stop(c) => c.run(),
            What::Drain(c) => c.run(),
        }
    }
}

/// Manage the workers of this host.
///
/// It starts what pool.toml declares and what `sconce pool start` asks for, restarts what fails, and passes requests on to the
/// worker of their model that has least to do. It keeps what it knows on disk: a manager that comes back finds its workers.
/// SIGTERM or Ctrl-C stops the workers and ends; a second one ends at once and leaves them to the next manager.
#[derive(Args)]
#[command(
    after_help = "A pool.toml:\n  port = 9200\n  start_timeout = 120\n\n  [binaries]\n  cuda = \"/opt/sconce-cuda/bin/sconce\"\n\n  \
    [[model]]\n  model = \"smollm\"\n  name = \"chat\"\n  device = \"cuda\"\n  replicas = 2\n  flags = { context = 4096, dtype = \"q8_0\" }\n\n\
    Examples:\n  sconce pool serve -c pool.toml\n  sconce pool start minilm --device cpu\n  sconce pool status"
)]
struct Serve {
    /// What is to run, and how.
    #[arg(short, long, value_name = "FILE")]
    config: Option<PathBuf>,
    /// Who may come: 127.0.0.1 is this machine alone.
    #[arg(long, value_name = "HOST")]
    hostname: Option<String>,
    /// The port; 9200 unless the file says otherwise.
    #[arg(short, long, value_name = "PORT")]
    port: Option<u16>,
    /// The directory of what the manager keeps; by default one for each port in the home's own place for such.
    #[arg(long, value_name = "DIR", env = "SCONCE_POOL_STATE")]
    state: Option<PathBuf>,
    /// A key that requests must show. Better given by the environment, where a list of processes does not show it.
    #[arg(long, value_name = "KEY", env = "SCONCE_POOL_KEY", hide_env_values = true)]
    api_key: Option<String>,
    /// Leave the workers running when told to end: the next manager finds them.
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
        file.state = self.state.or(file.state);
        let mut config = Config::new(file, std::env::current_exe()?, home)?;
        if self.api_key.as_deref().is_some_and(|key| key.trim().is_empty()) {
            return Err("an empty --api-key would let everybody in; give one, or none".into());
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

/// Where a manager keeps what it knows.
fn home(port: u16) -> PathBuf {
    let set = |name: &str| std::env::var_os(name).filter(|v| !v.is_empty()).map(PathBuf::from);
    let base = set("XDG_STATE_HOME").or_else(|| set("HOME").map(|home| home.join(".local/state")));
    base.unwrap_or_else(std::env::temp_dir).join(format!("sconce/pool-{port}"))
}

/// Which manager is asked.
#[derive(Args, Clone)]
struct Address {
    /// Where the manager listens.
    #[arg(long, value_name = "URL", env = "SCONCE_POOL_URL", default_value_t = format!("http://127.0.0.1:{PORT}"))]
    url: String,
    /// Its key, if it has one.
    #[arg(long, value_name = "KEY", env = "SCONCE_POOL_KEY", hide_env_values = true)]
    api_key: Option<String>,
}

impl Address {
    fn ask(&self, method: Method, path: &str, body: Option<Value>) -> Result<Value, Failure> {
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
        let asker = Asker { url: self.url.clone(), key: self.api_key.clone() };
        let (status, body) = runtime.block_on(asker.ask(method, path, body))?;
        if status.is_success() {
            return Ok(body);
        }
        let code = body["error_code"].as_str().unwrap_or_default();
        let message = body["message"].as_str().map_or_else(|| body.to_string(), String::from);
        Err(if code.is_empty() { format!("{status}: {message}") } else { format!("{code}: {message}") }.into())
    }
}

/// Start a worker, and wait until it is ready.
#[derive(Args)]
struct Start {
    /// A directory or .gguf file, a hub id, pip:NAME, or a short name; on the manager's host.
    model: String,
    /// auto, cpu, cuda[:N] or metal[:N]; a kind without a number is its device with most room.
    #[arg(short, long, value_name = "DEVICE", default_value = "auto")]
    device: String,
    /// The name that requests know the model by.
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
        let start = Wanted { model_ref: self.model, device: self.device, name: self.name, flags: self.flags };
        let started = self.address.ask(Method::POST, "/v2/workers/start", Some(json!(start)))?;
        let text = |key: &str| started[key].as_str().unwrap_or_default().to_string();
        print(&match self.json {
            true => started.to_string(),
            false => format!("{} is {} on {}, at {}", text("worker_id"), text("state"), text("device"), text("uri")),
        })?;
        Ok(ExitCode::SUCCESS)
    }
}

/// Stop a worker: it takes no more requests, finishes those it has, and ends.
#[derive(Args)]
struct Stop {
    /// Its name, from `sconce pool status`.
    worker: String,
    #[command(flatten)]
    address: Address,
}

impl Stop {
    fn run(self) -> Result<ExitCode, Failure> {
        let body = json!({"worker_id": self.worker});
        let standing = self.address.ask(Method::POST, "/v2/workers/stop", Some(body))?;
        told(&standing)
    }
}

/// Have a worker take no more requests; it stays until it is stopped.
#[derive(Args)]
struct Drain {
    /// Its name, from `sconce pool status`.
    worker: String,
    #[command(flatten)]
    address: Address,
}

impl Drain {
    fn run(self) -> Result<ExitCode, Failure> {
        let path = format!("/v2/workers/{}/drain", self.worker);
        let standing = self.address.ask(Method::POST, &path, Some(json!({})))?;
        told(&standing)
    }
}

fn told(standing: &Value) -> Result<ExitCode, Failure> {
    let (id, state) =
        (standing["worker_id"].as_str().unwrap_or_default(), standing["state"].as_str().unwrap_or_default());
    print(&format!("{id} is {state}, with {} requests under way", standing["active"]))?;
    Ok(ExitCode::SUCCESS)
}
