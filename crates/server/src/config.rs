//! What can be set about a server. Every flag of `sconce serve` ends here; nothing in this crate reads the environment.

use crate::dialect::worker::Membership;
use crate::traces::Traces;
use sconce_engine::Prompt;
use std::fmt;
use std::path::PathBuf;
use std::time::Duration;
use subtle::ConstantTimeEq;

/// Where to listen.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Listen {
    /// At a name or address, and a port; port 0 is any that is free.
    Tcp {
        /// Who may come: 127.0.0.1 is this machine alone.
        host: String,
        /// The port.
        port: u16,
    },
    /// At a socket in the file system, whose permissions say who may come.
    Unix(PathBuf),
}

/// A key that clients must show. `Debug` does not print it.
#[derive(Clone)]
pub struct Secret(String);

impl Secret {
    /// None where there is nothing in it.
    pub fn new(text: &str) -> Option<Secret> {
        let text = text.trim();
        (!text.is_empty()).then(|| Secret(text.to_owned()))
    }

    /// Whether it is the same, in a time that does not tell how much of it was.
    pub fn is(&self, shown: &str) -> bool {
        self.0.as_bytes().ct_eq(shown.as_bytes()).into()
    }
}

impl fmt::Debug for Secret {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Secret(..)")
    }
}

/// What can be set.
#[derive(Clone, Debug)]
pub struct Config {
    /// Where to listen.
    pub listen: Listen,
    /// Any of these keys opens; none: no key is asked for.
    pub api_keys: Vec<Secret>,
    /// The most bytes of a request's body.
    pub payload_limit: usize,
    /// The most inputs of a request.
    pub max_client_batch: usize,
    /// The most requests that are with the models at once; more are told to come again.
    pub max_concurrent: usize,
    /// The most connections at once; more wait to be accepted.
    pub max_connections: usize,
    /// How long a request may take, its body's arrival included.
    pub request_timeout: Option<Duration>,
    /// How long a connection may be silent before a request, in the middle of its head, or while an answer waits to be read.
    pub silence: Duration,
    /// Origins whose pages may read answers; `*` is all.
    pub cors_origins: Vec<String>,
    /// Cut texts that are too long where a request does not say.
    pub auto_truncate: bool,
    /// What stands before texts to be embedded where a request does not say.
    pub default_prompt: Prompt,
    /// Unload a model that nobody asked for so long.
    pub idle_timeout: Option<Duration>,
    /// The most bytes of all models, as planned; those unused the longest go first.
    pub memory_budget: Option<u64>,
    /// How long requests that are running may go on after a drain began.
    pub drain_timeout: Duration,
    /// Where spans of requests go.
    pub traces: Option<Traces>,
    /// Makes it a pool's member.
    pub worker: Option<Membership>,
}

impl Default for Config {
    fn default() -> Config {
        Config {
            listen: Listen::Tcp { host: "127.0.0.1".into(), port: 8080 },
            api_keys: Vec::new(),
            payload_limit: 2_000_000,
            max_client_batch: 128,
            max_concurrent: 512,
            max_connections: 4_096,
            request_timeout: Some(Duration::from_secs(600)),
            silence: Duration::from_secs(60),
            cors_origins: Vec::new(),
            auto_truncate: false,
            default_prompt: Prompt::Default,
            idle_timeout: None,
            memory_budget: None,
            drain_timeout: Duration::from_secs(600),
            traces: None,
            worker: None,
        }
    }
}
