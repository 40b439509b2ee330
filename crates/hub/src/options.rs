//! Options for finding files. Only [`Options::from_env`] reads the environment; the variables are
//! those of Python's huggingface_hub, so that one setting serves both.

use std::fmt;
use std::path::{Path, PathBuf};
use std::time::Duration;

use super::HubError;

const ENDPOINT: &str = "https://huggingface.co";

/// Caches, hub, credentials and time-outs.
#[derive(Clone, Debug)]
#[non_exhaustive]
pub struct Options {
    /// Use only local and cached files.
    pub offline: bool,
    /// The Hugging Face cache: `models--org--name` folders.
    pub hub_cache: PathBuf,
    /// Our own cache: unpacked wheels, repository listings, stamps of verified files, doctor's
    /// verdict.
    pub cache: PathBuf,
    /// The hub, without a slash at the end.
    pub endpoint: String,
    /// Sent only to the endpoint's own host.
    pub token: Option<Token>,
    /// Time-outs of requests to the hub.
    pub timeouts: Timeouts,
    /// Commands that may be pip, tried in this order.
    pub pip: Vec<Vec<String>>,
    /// Which models in ONNX are fetched.
    pub onnx: OnnxFiles,
}

/// Which models in ONNX are fetched.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub enum OnnxFiles {
    /// Those of repositories without other weights.
    #[default]
    WithoutWeights,
    /// That of every repository, in place of other weights: the file that the user names, in the
    /// repository's folder or its folder `onnx`, or the usual one.
    InPlaceOfWeights(Option<String>),
}

/// Time-outs of requests to the hub.
#[derive(Clone, Copy, Debug)]
pub struct Timeouts {
    /// Time-out of the DNS lookup, and of the connection.
    pub connect: Duration,
    /// Idle time-out: longest wait for the next bytes, once connected.
    pub idle: Duration,
}

/// An access token. `Debug` does not print it.
#[derive(Clone)]
pub struct Token(String);

impl Token {
    /// `None` if it is empty.
    pub fn new(text: &str) -> Option<Self> {
        let text = text.trim();
        (!text.is_empty()).then(|| Self(text.to_owned()))
    }

    pub(super) fn bearer(&self) -> String {
        format!("Bearer {}", self.0)
    }
}

impl fmt::Debug for Token {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Token(..)")
    }
}

impl Options {
    /// The public hub, no token, and these two caches.
    pub fn new(hub_cache: impl Into<PathBuf>, cache: impl Into<PathBuf>) -> Self {
        let pip = [&["python3", "-m", "pip"][..], &["python", "-m", "pip"], &["pip3"], &["pip"]];
        Self {
            offline: false,
            hub_cache: hub_cache.into(),
            cache: cache.into(),
            endpoint: ENDPOINT.to_owned(),
            token: None,
            timeouts: Timeouts { connect: Duration::from_secs(5), idle: Duration::from_secs(20) },
            pip: pip.iter().map(|command| command.iter().map(|word| (*word).to_owned()).collect()).collect(),
            onnx: OnnxFiles::default(),
        }
    }

    /// Options from the environment: `HF_HOME`, `HF_HUB_CACHE`, `HF_ENDPOINT`, `HF_TOKEN`,
    /// `HF_TOKEN_PATH`, `HF_HUB_OFFLINE`, `SCONCE_CACHE`, `XDG_CACHE_HOME`.
    pub fn from_env() -> Result<Self, HubError> {
        Self::from_vars(&|name| std::env::var(name).ok(), std::env::home_dir().as_deref())
    }

    /// [`Options::from_env`] with the environment as an argument.
    pub(super) fn from_vars(var: &dyn Fn(&str) -> Option<String>, home: Option<&Path>) -> Result<Self, HubError> {
        let text = |name: &str| var(name).filter(|value| !value.trim().is_empty());
        let path = |name: &str| {
            text(name).map(|value| match (value.strip_prefix("~/"), home) {
                (Some(rest), Some(home)) => home.join(rest),
                _ => PathBuf::from(value),
            })
        };
        let homeless = || HubError::Option("there is no home directory: set HF_HUB_CACHE and SCONCE_CACHE".to_owned());

        let caches = path("XDG_CACHE_HOME").or(home.map(|home| home.join(".cache")));
        let hf_home = path("HF_HOME").or(caches.as_ref().map(|caches| caches.join("huggingface")));
        let hub_cache = path("HF_HUB_CACHE").or(hf_home.as_ref().map(|home| home.join("hub"))).ok_or_else(homeless)?;
        let mac = home.filter(|_| cfg!(target_os = "macos") && text("XDG_CACHE_HOME").is_none());
        let cache = path("SCONCE_CACHE")
            .or(mac.map(|home| home.join("Library/Caches/sconce")))
            .or(caches.map(|caches| caches.join("sconce")))
            .ok_or_else(homeless)?;

        let token_file = path("HF_TOKEN_PATH").or(hf_home.map(|home| home.join("token")));
        let token = text("HF_TOKEN").or_else(|| std::fs::read_to_string(token_file?).ok());
        let mut options = Self::new(hub_cache, cache);
        options.token = token.as_deref().and_then(Token::new);
        options.offline = text("HF_HUB_OFFLINE")
            .is_some_and(|value| ["1", "true", "yes", "on"].contains(&value.trim().to_lowercase().as_str()));
        if let Some(endpoint) = text("HF_ENDPOINT") {
            options.endpoint = endpoint.trim().trim_end_matches('/').to_owned();
        }
        Ok(options)
    }
}
