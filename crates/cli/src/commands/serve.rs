//! `sconce serve`: models over HTTP.

use super::embed::PoolingArg;
use crate::args::{KvCacheArgs, PromptCacheArgs, RunArgs};
use crate::byte_size::Bytes;
use crate::report::Report;
use crate::{Failure, logs, runtime};
use clap::Args;
use sconce_api::time::Seconds;
use sconce_engine::{LlmOptions, Prompt, Task};
use sconce_server::{Config, DEFAULT_BATCH_LINES, Listen, ModelSpec, Secret, Server, Stop, Tls, Traces};
use std::io::Read;
use std::path::{Path, PathBuf};
use std::process::ExitCode;

/// The most bytes of a chat template.
const MAX_TEMPLATE_BYTES: u64 = 1 << 20;

/// Serve models over HTTP on one port, with the APIs of OpenAI, Anthropic, Ollama, llama.cpp,
/// text-embeddings-inference, Cohere and Jina, and a page for people at /.
///
/// The server listens at once; until a model is loaded, requests for it get status 503 and the
/// loading progress. SIGTERM or Ctrl-C finishes running requests and exits; a second one exits at
/// once.
#[derive(Args)]
#[command(after_help = "Examples:\n  sconce serve\n  \
    sconce serve -m BAAI/bge-m3 -m cross-encoder/ms-marco-MiniLM-L6-v2 -p 8080\n  \
    sconce serve -m chat=smollm --api-key SECRET --hostname 0.0.0.0\n\n  \
    curl localhost:8080/v1/embeddings -H 'content-type: application/json' \\\n    \
    -d '{\"model\": \"minilm\", \"input\": \"A text.\"}'")]
pub(crate) struct Serve {
    /// A model, as for other commands, or NAME=MODEL to name it in requests. May be repeated, or
    /// list several separated by commas.
    #[arg(
        short,
        long = "model",
        alias = "model-id",
        value_name = "MODEL",
        env = "MODEL_ID",
        value_delimiter = ',',
        default_value = "minilm"
    )]
    models: Vec<String>,
    /// Task: embed, classify, rerank, tag, sparse, multi, m3, clip, generate or seq2seq. Default:
    /// detected from the model's files.
    #[arg(long, value_name = "TASK")]
    task: Option<Task>,
    /// Branch, tag or commit of a model from a hub.
    #[arg(long, value_name = "REVISION", env = "REVISION")]
    revision: Option<String>,
    /// Further name of the model in requests. May be repeated.
    #[arg(long, value_name = "NAME", env = "SERVED_MODEL_NAME", value_delimiter = ',')]
    served_model_name: Vec<String>,
    #[command(flatten)]
    run_args: RunArgs,
    #[command(flatten)]
    kv_cache: KvCacheArgs,
    /// Most answers of a language model that are generated at once; further ones wait.
    #[arg(long, alias = "max-num-seqs", value_name = "N", value_parser = clap::value_parser!(u16).range(1..=4096))]
    parallel: Option<u16>,
    /// Chat template of the model, a Jinja file, instead of its own.
    #[arg(long, value_name = "FILE", alias = "chat-template-file", env = "CHAT_TEMPLATE")]
    chat_template: Option<PathBuf>,
    #[command(flatten)]
    prompt_cache: PromptCacheArgs,
    #[command(flatten)]
    http: Http,
}

/// How a server listens, and its limits.
#[derive(Args, Clone)]
pub(crate) struct Http {
    /// Address to listen on: 127.0.0.1 for this machine only, 0.0.0.0 for all networks. May be
    /// repeated, or have several separated by commas.
    #[arg(
        long,
        value_name = "HOST",
        default_value = "127.0.0.1",
        env = "SCONCE_HOSTNAME",
        value_delimiter = ',',
        value_parser = clap::builder::NonEmptyStringValueParser::new()
    )]
    pub(crate) hostname: Vec<String>,
    /// Port to listen on; 0 takes any free one.
    #[arg(short, long, value_name = "PORT", default_value_t = 8080, env = "PORT")]
    pub(crate) port: u16,
    /// Listen on this Unix socket instead of a port.
    #[arg(long, value_name = "PATH", env = "SCONCE_UNIX_SOCKET")]
    unix_socket: Option<PathBuf>,
    /// Serve https with this certificate: a PEM file, with the intermediate certificates after it.
    #[arg(
        long,
        value_name = "FILE",
        env = "SCONCE_SSL_CERTFILE",
        alias = "ssl-cert-file",
        requires = "ssl_keyfile",
        conflicts_with = "unix_socket"
    )]
    ssl_certfile: Option<PathBuf>,
    /// Private key of the certificate: a PEM file.
    #[arg(long, value_name = "FILE", env = "SCONCE_SSL_KEYFILE", alias = "ssl-key-file", requires = "ssl_certfile")]
    ssl_keyfile: Option<PathBuf>,
    /// API key that requests must send (`Authorization: Bearer KEY`); several separated by commas.
    /// Prefer the environment variable: process lists show arguments.
    #[arg(long, value_name = "KEY", env = "SCONCE_API_KEY", hide_env_values = true, value_delimiter = ',')]
    api_key: Vec<String>,
    /// Largest request body.
    #[arg(long, value_name = "BYTES", default_value = "2MB", env = "PAYLOAD_LIMIT")]
    payload_limit: Bytes,
    /// Most inputs of one request.
    #[arg(long, value_name = "N", default_value_t = 128, env = "MAX_CLIENT_BATCH_SIZE")]
    max_client_batch_size: usize,
    /// Most requests processed at once; further ones get status 429.
    #[arg(long, value_name = "N", default_value_t = 512, env = "MAX_CONCURRENT_REQUESTS")]
    max_concurrent_requests: usize,
    /// Time-out of a request in seconds; 0 for none.
    #[arg(long, value_name = "SECONDS", default_value = "600", env = "REQUEST_TIMEOUT")]
    request_timeout: Seconds,
    /// Host name that requests may use, besides localhost. May be repeated. Default: any, if the
    /// server has a key or listens for other machines; otherwise only localhost, so that a web page
    /// cannot reach the server under a name of its own.
    #[arg(long, value_name = "HOST", env = "ALLOWED_HOSTS", value_delimiter = ',')]
    allowed_hosts: Vec<String>,
    /// Origin whose web pages may read responses (CORS); `*` for any, `localhost` for pages of this
    /// machine on any port. May be repeated.
    #[arg(long, value_name = "ORIGIN", env = "CORS_ALLOW_ORIGIN", value_delimiter = ',')]
    cors_allow_origin: Vec<String>,
    /// Do not serve the page for people at `/`.
    #[arg(long, env = "SCONCE_NO_PAGE")]
    no_page: bool,
    /// Truncate texts longer than the model's limit, unless the request says otherwise. By default
    /// they are refused.
    #[arg(long, env = "AUTO_TRUNCATE")]
    auto_truncate: bool,
    /// Prompt before every text to embed, if the request names none.
    #[arg(long, value_name = "TEXT", env = "DEFAULT_PROMPT", conflicts_with = "default_prompt_name")]
    default_prompt: Option<String>,
    /// Like --default-prompt, with one of the model's own prompts by name.
    #[arg(long, value_name = "NAME", env = "DEFAULT_PROMPT_NAME")]
    default_prompt_name: Option<String>,
    /// How the hidden states of a text become one embedding, if the request does not say; by
    /// default as the model's files say.
    #[arg(long, value_enum, value_name = "POOLING", env = "POOLING")]
    pooling: Option<PoolingArg>,
    /// Unload a model after this many seconds without requests; the next request loads it again. 0:
    /// never.
    #[arg(long, value_name = "SECONDS", default_value = "0", env = "SCONCE_IDLE_TIMEOUT")]
    idle_timeout: Seconds,
    /// Most memory of all models together, as planned: 8GB, 512MB. When another model needs memory,
    /// the least recently used one that is idle is unloaded.
    #[arg(long, value_name = "BYTES", env = "SCONCE_MEMORY_BUDGET")]
    memory_budget: Option<Bytes>,
    /// Folder of uploaded files, batches, vector stores and stored responses (/v1/files, /v1/batches,
    /// /v1/vector_stores, /v1/responses), which is made if it is missing. Without it the server keeps
    /// no files, and responses in memory.
    #[arg(long, value_name = "DIR", env = "SCONCE_DATA_DIR")]
    data_dir: Option<PathBuf>,
    #[command(flatten)]
    spans: Spans,
    /// Write the log as JSON.
    #[arg(long, env = "JSON_OUTPUT")]
    pub(crate) json_output: bool,
}

/// Export of trace spans.
#[derive(Args, Clone, Default)]
pub(crate) struct Spans {
    /// Send a span of every request to this OpenTelemetry collector (OTLP over gRPC), such as
    /// http://localhost:4317. Needs a build with `--features otlp`, as released ones are.
    #[arg(long, value_name = "URL", env = "OTLP_ENDPOINT")]
    otlp_endpoint: Option<String>,
    /// Service name of the spans.
    #[arg(long, value_name = "NAME", env = "OTLP_SERVICE_NAME", default_value = "sconce.serve")]
    otlp_service_name: String,
}

impl Spans {
    /// Must be called within a runtime.
    pub(crate) fn traces(&self) -> Result<Option<Traces>, Failure> {
        let to = |endpoint: &String| Traces::to(endpoint, &self.otlp_service_name);
        self.otlp_endpoint.as_ref().map(to).transpose().map_err(|e| format!("--otlp-endpoint {e}").into())
    }
}

impl Http {
    /// The server's configuration.
    pub(crate) fn config(&self) -> Result<Config, Failure> {
        let api_keys = api_keys(&self.api_key)?;
        let default_prompt = match (&self.default_prompt, &self.default_prompt_name) {
            (Some(words), _) => Prompt::Text(words.clone()),
            (None, Some(name)) => Prompt::Named(name.clone()),
            (None, None) => Prompt::Default,
        };
        let one_vector = |arg: PoolingArg| {
            arg.pooling().ok_or("--pooling none cannot be a server's default; /embed_all returns one vector per token")
        };
        let pooling = self.pooling.map(one_vector).transpose()?;
        let tls = match (&self.ssl_certfile, &self.ssl_keyfile) {
            (Some(certificate), Some(key)) => {
                Some(Tls::read(certificate, key).map_err(|why| format!("--ssl-certfile, --ssl-keyfile: {why}"))?)
            }
            _ => None,
        };
        let (host, more_hosts) = self.hostname.split_first().ok_or("--hostname is empty; name an address")?;
        let (listen, more_hosts) = match &self.unix_socket {
            Some(path) => (Listen::Unix(path.clone()), Vec::new()),
            None => (Listen::Tcp { host: host.clone(), port: self.port }, more_hosts.to_vec()),
        };
        Ok(Config {
            listen,
            more_hosts,
            tls,
            api_keys,
            payload_limit: usize::try_from(self.payload_limit.0).unwrap_or(usize::MAX),
            max_client_batch: self.max_client_batch_size,
            max_concurrent: self.max_concurrent_requests,
            request_timeout: self.request_timeout.timeout(),
            allowed_hosts: self.allowed_hosts.clone(),
            cors_origins: self.cors_allow_origin.clone(),
            page: !self.no_page,
            auto_truncate: self.auto_truncate,
            default_prompt,
            pooling,
            idle_timeout: self.idle_timeout.timeout(),
            memory_budget: self.memory_budget.map(|b| b.0),
            data_dir: self.data_dir.clone(),
            #[cfg(feature = "index")]
            parser: Some(crate::index::parser_command()?),
            ..Config::default()
        })
    }

    /// One thread for each request and each line of a batch that may wait for a model, which blocks it.
    fn threads(&self) -> usize {
        self.max_concurrent_requests.clamp(1, 4_096) + DEFAULT_BATCH_LINES + 16
    }
}

/// The keys of --api-key.
pub(crate) fn api_keys(given: &[String]) -> Result<Vec<Secret>, Failure> {
    let secret = |key: &String| Secret::new(key).ok_or("--api-key is empty; give a key, or leave the option out");
    Ok(given.iter().map(secret).collect::<Result<_, _>>()?)
}

impl Serve {
    pub(crate) fn run(self, report: &Report) -> Result<ExitCode, Failure> {
        logs::start(self.http.json_output, report.is_quiet())?;
        let mut config = self.http.config()?;
        let models = self.specs()?;
        runtime::serve(self.http.threads(), async {
            config.traces = self.http.spans.traces()?;
            Ok::<_, Failure>(Server::bind(config, models, Stop::on_signals()).await?.run().await?)
        })??;
        Ok(ExitCode::SUCCESS)
    }

    fn specs(&self) -> Result<Vec<ModelSpec>, Failure> {
        let one = self.models.len() == 1;
        for (given, flag) in [
            (self.task.is_some(), "--task"),
            (self.revision.is_some(), "--revision"),
            (!self.served_model_name.is_empty(), "--served-model-name"),
            (self.chat_template.is_some(), "--chat-template"),
        ] {
            if given && !one {
                return Err(format!("{flag} is for a single model, but {} were given", self.models.len()).into());
            }
        }
        let sequences = self.parallel.map_or(LlmOptions::default().sequences, usize::from);
        let options = self.kv_cache.apply_to(self.run_args.options()?, sequences);
        let mut options = self.prompt_cache.apply_to(options);
        if let Some(path) = &self.chat_template {
            options.chat_template = Some(read_template(path)?);
        }
        let spec = |given: &String| {
            let mut spec = ModelSpec::new(given, options.clone());
            if let Some(revision) = &self.revision {
                spec.reference = at_revision(&spec.reference, revision)?;
            }
            if let Some((first, more)) = self.served_model_name.split_first() {
                spec.aliases.push(std::mem::replace(&mut spec.id, first.clone()));
                spec.aliases.extend_from_slice(more);
            }
            spec.task = self.task;
            Ok(spec)
        };
        self.models.iter().map(spec).collect()
    }
}

/// The source of a chat template.
fn read_template(path: &Path) -> Result<String, Failure> {
    let failed = |e: std::io::Error| format!("--chat-template: {}: {e}", path.display());
    let mut source = String::new();
    let file = std::fs::File::open(path).map_err(failed)?;
    file.take(MAX_TEMPLATE_BYTES + 1).read_to_string(&mut source).map_err(failed)?;
    if source.len() as u64 > MAX_TEMPLATE_BYTES {
        return Err(format!("--chat-template: {} has more than {MAX_TEMPLATE_BYTES} bytes", path.display()).into());
    }
    Ok(source)
}

/// `org/name:Q4_K_M` at a revision is `org/name@revision:Q4_K_M`.
fn at_revision(reference: &str, revision: &str) -> Result<String, Failure> {
    let local = std::path::Path::new(reference).exists() || reference.starts_with("pip:") || !reference.contains('/');
    if local || reference.contains('@') {
        return Err(format!("--revision is for a hub id without a revision, not for `{reference}`").into());
    }
    Ok(match reference.split_once(':') {
        Some((repo, tag)) => format!("{repo}@{revision}:{tag}"),
        None => format!("{reference}@{revision}"),
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn revision_is_inserted_before_quantization() {
        assert_eq!(at_revision("org/name:Q4_0", "v1").unwrap(), "org/name@v1:Q4_0");
        assert_eq!(at_revision("org/name", "v1").unwrap(), "org/name@v1");
        assert!(at_revision("minilm", "v1").is_err() && at_revision("org/name@v0", "v1").is_err());
    }
}
