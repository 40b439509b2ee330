//! `sconce worker`: one model, for a pool.

use super::serve::Spans;
use crate::args::{KvCacheArgs, OnnxArgs, RunArgs, Threads};
use crate::report::Report;
use crate::{Failure, logs, runtime};
use clap::Args;
use sconce_api::worker::{Launch, PORT_TAKEN};
use sconce_engine::LlmOptions;
use sconce_server::{Config, Error, Listen, Membership, ModelSpec, Secret, Server, Stop};
use std::io::ErrorKind;
use std::process::ExitCode;

/// Serve one model as a worker of a pool, which starts it, probes it and sends it requests.
///
/// A worker has the paths /execute, /v1/jobs and /cancel besides those of `sconce serve`. Once its
/// port is bound and the model has passed its sanity check, it calls --callback-url, and then sends
/// heartbeats to the same host every 30 seconds. If the port is taken it exits with code 98.
#[derive(Args)]
#[command(after_help = "Examples:\n  \
    sconce worker --worker-id w-1 --model smollm --port 9301 --callback-url http://localhost:9999/dry-run\n  \
    curl -N localhost:9301/execute -H 'content-type: application/json' \\\n    \
    -d '{\"job_id\": \"j-1\", \"prompt\": \"The capital of France is\", \"max_tokens\": 16}'")]
pub(crate) struct Worker {
    #[command(flatten)]
    launch: Launch,
    /// API key that requests must send, and that callbacks carry. Prefer the environment variable:
    /// process lists show arguments. Without it, LLORCH_API_TOKEN is read, which existing managers
    /// set.
    #[arg(long, value_name = "KEY", env = Launch::KEY, hide_env_values = true)]
    api_key: Option<String>,
    #[command(flatten)]
    threads: Threads,
    #[command(flatten)]
    spans: Spans,
    /// Write the log as JSON.
    #[arg(long, env = "JSON_OUTPUT")]
    json_output: bool,
}

impl Worker {
    /// A worker under a name that existing managers start, whose key is in
    /// [`Launch::MANAGER_KEY`].
    pub(crate) fn started_by_manager(launch: Launch) -> Worker {
        let manager_key = std::env::var_os(Launch::MANAGER_KEY);
        let own_key = || std::env::var(Launch::KEY).ok();
        Worker {
            launch,
            api_key: if manager_key.is_some() { None } else { own_key() },
            threads: Threads::default(),
            spans: Spans::default(),
            json_output: false,
        }
    }

    /// The API key: the flag's or its variable's, else that of an existing manager.
    fn key(&self) -> Result<Option<String>, Failure> {
        let (key, source) = match (&self.api_key, std::env::var_os(Launch::MANAGER_KEY)) {
            (Some(key), _) => (key.clone(), "--api-key"),
            (None, Some(key)) => match key.into_string() {
                Ok(key) => (key, Launch::MANAGER_KEY),
                Err(_) => return Err(format!("{} is not UTF-8; set another key", Launch::MANAGER_KEY).into()),
            },
            (None, None) => return Ok(None),
        };
        match key.trim().is_empty() {
            true => Err(format!("{source} is empty; give a key, or leave it out").into()),
            false => Ok(Some(key)),
        }
    }

    pub(crate) fn run(self, report: &Report) -> Result<ExitCode, Failure> {
        logs::start(self.json_output, report.is_quiet())?;
        let url = &self.launch.callback_url;
        let scheme = url.split("://").next().unwrap_or_default();
        if !["http", "https"].iter().any(|known| known.eq_ignore_ascii_case(scheme)) || !url.contains("://") {
            return Err(format!("--callback-url {url}: it must begin with http:// or https://").into());
        }
        let (mut config, spec) = (self.config()?, self.spec()?);
        let threads = config.max_concurrent.clamp(1, 4_096) + 16;
        let spans = &self.spans;
        let served = runtime::serve(threads, async move {
            config.traces = spans.traces().map_err(|e| Error::Config(e.to_string()))?;
            Server::bind(config, vec![spec], Stop::on_signals()).await?.run().await
        })?;
        match served {
            Ok(()) => Ok(ExitCode::SUCCESS),
            Err(e @ Error::Listen { .. }) if is_taken(&e) => {
                report.error(&e.to_string());
                Ok(ExitCode::from(PORT_TAKEN as u8))
            }
            Err(e) => Err(e.into()),
        }
    }

    fn config(&self) -> Result<Config, Failure> {
        let key = self.key()?;
        let mut config = Config {
            listen: Listen::Tcp { host: self.launch.hostname.clone(), port: self.launch.port },
            api_keys: key.as_deref().and_then(Secret::new).into_iter().collect(),
            worker: Some(Membership::new(self.launch.clone(), key)),
            // A worker's clients are its pool.
            page: false,
            ..Config::default()
        };
        if let Some(most) = self.launch.tuning.max_concurrent_requests {
            config.max_concurrent = usize::try_from(most)?.max(1);
        }
        if let Some(seconds) = self.launch.tuning.request_timeout {
            config.request_timeout = seconds.timeout();
        }
        if let Some(bytes) = self.launch.payload_limit {
            config.payload_limit = usize::try_from(bytes)?;
        }
        Ok(config)
    }

    fn spec(&self) -> Result<ModelSpec, Failure> {
        let (launch, tuning) = (&self.launch, &self.launch.tuning);
        let run_args = RunArgs {
            device: launch.device().parse()?,
            fallback: false,
            dtype: tuning.dtype.as_deref().map(str::parse).transpose()?,
            batch_tokens: tuning.batch_tokens.map(usize::try_from).transpose()?,
            allow_host: tuning.allow_host,
            rung: None,
            isa: None,
            offline: tuning.offline,
            onnx: OnnxArgs {
                engine: tuning.engine.as_deref().map(str::parse).transpose()?.unwrap_or_default(),
                onnx_file: tuning.onnx_file.clone(),
                batch_dependent: tuning.batch_dependent,
            },
            threads: self.threads.clone(),
        };
        let kv_cache = KvCacheArgs {
            context: tuning.context.map(usize::try_from).transpose()?,
            kv_dtype: tuning.kv_dtype.as_deref().map(str::parse).transpose()?,
            kv_cache_tokens: tuning.kv_cache_tokens.map(usize::try_from).transpose()?,
        };
        let mut spec =
            ModelSpec::new(&launch.model, kv_cache.apply_to(run_args.options()?, LlmOptions::default().sequences));
        spec.task = tuning.task.as_deref().map(str::parse).transpose()?;
        // `model` is always a reference, even if it looks like NAME=MODEL: names come from
        // --served-model-name.
        spec.reference.clone_from(&launch.model);
        if let Some((first, more)) = launch.names.split_first() {
            spec.aliases.push(std::mem::replace(&mut spec.id, first.clone()));
            spec.aliases.extend_from_slice(more);
        }
        Ok(spec)
    }
}

fn is_taken(e: &Error) -> bool {
    matches!(e, Error::Listen { why, .. } if why.kind() == ErrorKind::AddrInUse)
}
