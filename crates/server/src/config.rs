//! Server configuration. Every flag of `sconce serve` ends here; nothing in this crate reads the
//! environment.

use crate::dialect::worker::Membership;
use crate::tls::Tls;
use crate::traces::Traces;
use sconce_engine::{Pooling, Prompt};
use std::fmt;
use std::path::PathBuf;
use std::time::Duration;
use subtle::ConstantTimeEq;

/// The default of [`Config::batch_lines`]: half of the sequences that a language model runs at once.
pub const DEFAULT_BATCH_LINES: usize = 32;

/// Where to listen.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Listen {
    /// A TCP host and port; port 0 takes any free one.
    Tcp {
        /// Host name or address; 127.0.0.1 accepts only this machine.
        host: String,
        /// The port.
        port: u16,
    },
    /// A Unix socket; its file permissions control access.
    Unix(PathBuf),
}

/// An API key. `Debug` does not print it.
#[derive(Clone)]
pub struct Secret(String);

impl Secret {
    /// `None` if `text` is blank.
    pub fn new(text: &str) -> Option<Secret> {
        let text = text.trim();
        (!text.is_empty()).then(|| Secret(text.to_owned()))
    }

    /// The key itself.
    pub(crate) fn expose(&self) -> &str {
        &self.0
    }

    /// Constant-time comparison.
    pub fn is(&self, presented: &str) -> bool {
        self.0.as_bytes().ct_eq(presented.as_bytes()).into()
    }
}

impl fmt::Debug for Secret {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Secret(..)")
    }
}

/// Server configuration.
#[derive(Clone, Debug)]
pub struct Config {
    /// Where to listen.
    pub listen: Listen,
    /// Further host names or addresses to listen at, on the same port.
    pub more_hosts: Vec<String>,
    /// The certificate for https; without one the server speaks http.
    pub tls: Option<Tls>,
    /// Accepted API keys; empty: no key is required.
    pub api_keys: Vec<Secret>,
    /// Largest request body, in bytes.
    pub payload_limit: usize,
    /// Most inputs per request.
    pub max_client_batch: usize,
    /// Most concurrent requests; further ones get status 429.
    pub max_concurrent: usize,
    /// Most open connections; further ones wait in the listen queue.
    pub max_connections: usize,
    /// Request time-out, including reading the body.
    pub request_timeout: Option<Duration>,
    /// Connection time-out: before a request, within its head, or while the client does not read
    /// the response.
    pub silence: Duration,
    /// Host names that requests may have besides those of loopback; see
    /// [`sconce_api::hosts::AllowedHosts`].
    pub allowed_hosts: Vec<String>,
    /// CORS origins; `*` is all, and `localhost` every origin of loopback, on any port.
    pub cors_origins: Vec<String>,
    /// Serve the page for people at `/`.
    pub page: bool,
    /// Default of a request's `truncate`.
    pub auto_truncate: bool,
    /// Prompt of embedding requests without `prompt_name`.
    pub default_prompt: Prompt,
    /// Pooling of embedding requests without `pooling`; `None`: as the model's files say.
    pub pooling: Option<Pooling>,
    /// Unload a model after this time without requests.
    pub idle_timeout: Option<Duration>,
    /// Most planned bytes of all models; the least recently used are evicted first.
    pub memory_budget: Option<u64>,
    /// How long running requests may continue after a drain began.
    pub drain_timeout: Duration,
    /// OpenTelemetry traces.
    pub traces: Option<Traces>,
    /// Makes the server a worker of a pool.
    pub worker: Option<Membership>,
    /// The folder of uploaded files, batches, vector stores and stored responses; `None`: the server
    /// has no files and no batches, and keeps responses in memory.
    pub data_dir: Option<PathBuf>,
    /// The most lines of batches that are answered at once, while there are no other requests.
    pub batch_lines: usize,
    /// The program that parses files of untrusted formats for vector stores; `None`: this program,
    /// with its command `parse-files`.
    #[cfg(feature = "index")]
    pub parser: Option<sconce_index::read::ParserCommand>,
}

impl Default for Config {
    fn default() -> Config {
        Config {
            listen: Listen::Tcp { host: "127.0.0.1".into(), port: 8080 },
            more_hosts: Vec::new(),
            tls: None,
            api_keys: Vec::new(),
            payload_limit: 2_000_000,
            max_client_batch: 128,
            max_concurrent: 512,
            max_connections: 4_096,
            request_timeout: Some(Duration::from_secs(600)),
            silence: Duration::from_secs(60),
            allowed_hosts: Vec::new(),
            cors_origins: Vec::new(),
            page: true,
            auto_truncate: false,
            default_prompt: Prompt::Default,
            pooling: None,
            idle_timeout: None,
            memory_budget: None,
            drain_timeout: Duration::from_secs(600),
            traces: None,
            worker: None,
            data_dir: None,
            batch_lines: DEFAULT_BATCH_LINES,
            #[cfg(feature = "index")]
            parser: None,
        }
    }
}
