//! Hosts of a `pool.toml`: servers on other hosts that answer requests beside this host's workers.

use crate::core::HostSpec;
use crate::ids::slug;
use axum::http::{HeaderValue, Uri};
use sconce_api::client::RemoteClients;
use sconce_api::time::Seconds;
use sconce_api::trust::{Fingerprint, Trust};
use serde::Deserialize;
use std::collections::BTreeSet;
use std::fmt;
use std::io::Read;
use std::net::IpAddr;
use std::path::{Path, PathBuf};
use std::time::Duration;

/// Largest key file in bytes.
const MAX_KEY: u64 = 4 << 10;
/// Time-out of a request to a host, unless the file says otherwise: that of `sconce serve`.
const REQUEST_TIMEOUT: Duration = Duration::from_secs(600);

/// A server on another host, as a `pool.toml` declares it.
#[derive(Clone, Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct DeclaredHost {
    /// Where it listens: `https://gpu-1.example:8080`.
    pub url: String,
    /// Its name in ids of workers and in the log; by default the host and port of the URL.
    pub name: Option<String>,
    /// The models that it serves, by the names that its `/v1/models` lists.
    pub models: Vec<String>,
    /// Its API key.
    pub key: Option<Key>,
    /// Environment variable with its API key.
    pub key_env: Option<String>,
    /// File with its API key.
    pub key_file: Option<PathBuf>,
    /// PEM file with the certificate authorities that may sign its certificate.
    pub ca: Option<PathBuf>,
    /// SHA-256 of its certificate.
    pub pin: Option<String>,
    /// Whether plain http may leave this machine and its private networks.
    #[serde(default)]
    pub insecure: bool,
    /// Seconds until an unfinished response is cut off; 0 for no limit.
    pub request_timeout: Option<Seconds>,
}

/// An API key. `Debug` does not print it.
#[derive(Clone, PartialEq, Eq, Deserialize)]
#[serde(transparent)]
pub struct Key(String);

impl fmt::Debug for Key {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Key(..)")
    }
}

impl Key {
    /// The value of `Authorization`.
    fn bearer(&self) -> Result<HeaderValue, String> {
        let key = self.0.trim();
        if key.is_empty() {
            return Err("the API key is empty; give a key, or leave it out".into());
        }
        // The error of an invalid value could show the key.
        let mut value = HeaderValue::from_str(&format!("Bearer {key}"))
            .map_err(|_| "the API key has characters that a header cannot have".to_string())?;
        value.set_sensitive(true);
        Ok(value)
    }
}

/// A host, checked, with its key and its certificates.
#[derive(Clone, Debug)]
pub struct HostConfig {
    /// What the core knows of it.
    pub(crate) spec: HostSpec,
    /// `Authorization` of requests to it. `Debug` does not print it.
    pub(crate) authorization: Option<HeaderValue>,
    /// Clients that trust its certificate.
    pub(crate) clients: RemoteClients,
    /// Time-out of a request.
    pub(crate) request_timeout: Option<Duration>,
}

impl DeclaredHost {
    /// Makes the paths relative to the directory of the file.
    pub(crate) fn relative_to(&mut self, dir: &Path) {
        for path in [&mut self.key_file, &mut self.ca].into_iter().flatten() {
            *path = dir.join(&*path);
        }
    }

    /// Checks everything that needs no other file.
    pub(crate) fn check(&self) -> Result<(), String> {
        let uri = self.uri()?;
        self.check_scheme(&uri)?;
        if self.models.is_empty() {
            return Err("`models` is empty; list the models that requests may use, as its /v1/models names them".into());
        }
        let mut seen = BTreeSet::new();
        if let Some(twice) = self.models.iter().find(|model| !seen.insert(model.as_str())) {
            return Err(format!("`models` has `{twice}` twice"));
        }
        if let Some(wrong) = self.models.iter().find(|model| model.trim().is_empty() || model.len() > 256) {
            return Err(format!("`models`: `{wrong}` is not the name of a model"));
        }
        if let Some(pin) = &self.pin {
            pin.parse::<Fingerprint>().map_err(|e| format!("`pin`: {e}"))?;
        }
        if self.pin.is_some() && self.ca.is_some() {
            return Err("`pin` and `ca` exclude each other: a pinned certificate needs no authority".into());
        }
        let keys = [self.key.is_some(), self.key_env.is_some(), self.key_file.is_some()];
        if keys.into_iter().filter(|given| *given).count() > 1 {
            return Err("give one of `key`, `key_env` and `key_file`".into());
        }
        let name = self.name()?;
        let is_plain = |c: char| c.is_ascii_alphanumeric() || "._-".contains(c);
        if name.is_empty() || name.len() > 64 || !name.chars().all(is_plain) {
            return Err(format!("`name`: `{name}` must have 1 to 64 letters, digits, dots, dashes or underscores"));
        }
        Ok(())
    }

    fn uri(&self) -> Result<Uri, String> {
        // A URL with a password must not be shown.
        if self.url.contains('@') {
            return Err("`url` must not have a user or password; give the key as `key_env` or `key_file`".into());
        }
        let wrong = |why: &str| format!("`url`: `{}` {why}; write it as https://HOST:PORT", self.url);
        let uri: Uri = self.url.trim_end_matches('/').parse().map_err(|_| wrong("is not a URL"))?;
        if !matches!(uri.scheme_str(), Some("http" | "https")) || uri.host().is_none_or(str::is_empty) {
            return Err(wrong("is not an http or https URL"));
        }
        if !uri.path().trim_matches('/').is_empty() || uri.query().is_some() {
            return Err(wrong("has a path or query"));
        }
        Ok(uri)
    }

    /// Plain http shows requests and the key to every machine on the way.
    fn check_scheme(&self, uri: &Uri) -> Result<(), String> {
        let host = uri.host().unwrap_or_default();
        if uri.scheme_str() == Some("https") {
            return match self.insecure {
                true => Err(
                    "`insecure` is for http URLs; with https leave it out, and set `ca` or `pin` for a certificate \
                             that the system does not trust"
                        .into(),
                ),
                false => Ok(()),
            };
        }
        if self.ca.is_some() || self.pin.is_some() {
            return Err(format!("`ca` and `pin` are for https URLs, but `url` is `{}`", self.url));
        }
        if self.insecure || is_private(host) {
            return Ok(());
        }
        Err(format!(
            "`url`: plain http to `{host}` shows requests and the key to every machine on the way. Use https; or \
             `insecure = true` if the network is yours (a name needs it even if its address is private, because names \
             can change)"
        ))
    }

    /// The host's name.
    pub(crate) fn name(&self) -> Result<String, String> {
        if let Some(name) = &self.name {
            return Ok(name.clone());
        }
        let uri = self.uri()?;
        let host = uri.host().unwrap_or_default().trim_matches(['[', ']']);
        let port = uri.port_u16().map(|port| format!("-{port}")).unwrap_or_default();
        let name: String =
            host.chars().map(|c| if c.is_ascii_alphanumeric() || c == '.' { c } else { '-' }).take(50).collect();
        Ok(name + &port)
    }

    fn authorization(&self) -> Result<Option<HeaderValue>, String> {
        let key = match (&self.key, &self.key_env, &self.key_file) {
            (Some(key), ..) => key.clone(),
            (None, Some(variable), _) => Key(std::env::var(variable)
                .map_err(|_| format!("`key_env`: the environment variable {variable} is not set, or not UTF-8"))?),
            (None, None, Some(file)) => {
                Key(read_key(file).map_err(|e| format!("`key_file`: {}: {e}", file.display()))?)
            }
            (None, None, None) => return Ok(None),
        };
        key.bearer().map(Some)
    }

    /// Reads the key and the certificates.
    fn config(&self) -> Result<HostConfig, String> {
        self.check()?;
        let trust = match (&self.pin, &self.ca) {
            (Some(pin), _) => Trust::Pinned(pin.parse().map_err(|e| format!("`pin`: {e}"))?),
            (None, Some(file)) => Trust::authorities(file).map_err(|e| format!("`ca`: {e}"))?,
            // An http URL needs no certificates of the system, which a container may not have.
            (None, None) if self.uri()?.scheme_str() == Some("http") => Trust::Authorities(Vec::new()),
            (None, None) => Trust::System,
        };
        let name = self.name()?;
        let mut ids = BTreeSet::new();
        let with_id = |model: &String| {
            let plain = format!("{}@{name}", slug(model));
            let id = (1..).map(|n| if n == 1 { plain.clone() } else { format!("{plain}-{n}") });
            let id = id.into_iter().find(|id| ids.insert(id.clone())).unwrap_or_default();
            (id, model.clone())
        };
        let models = self.models.iter().map(with_id).collect();
        Ok(HostConfig {
            spec: HostSpec { name, url: self.url.trim_end_matches('/').into(), models },
            authorization: self.authorization()?,
            clients: RemoteClients::new(&trust)?,
            request_timeout: self.request_timeout.map_or(Some(REQUEST_TIMEOUT), Seconds::timeout),
        })
    }
}

fn read_key(file: &Path) -> Result<String, String> {
    let mut text = String::new();
    let file = std::fs::File::open(file).map_err(|e| e.to_string())?;
    file.take(MAX_KEY + 1).read_to_string(&mut text).map_err(|e| e.to_string())?;
    match text.len() as u64 > MAX_KEY {
        true => Err(format!("it has more than {MAX_KEY} bytes")),
        false => Ok(text),
    }
}

/// The configurations of all declared hosts.
pub(crate) fn configs(declared: &[DeclaredHost]) -> Result<Vec<HostConfig>, String> {
    declared.iter().map(|host| host.config().map_err(|why| format!("[[host]] {}: {why}", label(host)))).collect()
}

/// Checks the declared hosts without reading keys and certificates.
pub(crate) fn check(declared: &[DeclaredHost]) -> Result<(), String> {
    let mut names = BTreeSet::new();
    for host in declared {
        host.check().map_err(|why| format!("[[host]] {}: {why}", label(host)))?;
        let name = host.name()?;
        if !names.insert(name.clone()) {
            return Err(format!("two hosts are called `{name}`; give one of them another `name`"));
        }
    }
    Ok(())
}

/// A host in error messages. A URL that may have a password is not shown.
fn label(host: &DeclaredHost) -> &str {
    host.name.as_deref().unwrap_or(if host.url.contains('@') { "" } else { &host.url })
}

/// Whether a host is an address of this machine or of a private network. A name may have any
/// address tomorrow, so only `localhost` counts.
fn is_private(host: &str) -> bool {
    if host.eq_ignore_ascii_case("localhost") {
        return true;
    }
    match host.trim_start_matches('[').trim_end_matches(']').parse::<IpAddr>().map(|ip| ip.to_canonical()) {
        Ok(IpAddr::V4(ip)) => ip.is_loopback() || ip.is_private() || ip.is_link_local(),
        Ok(IpAddr::V6(ip)) => ip.is_loopback() || ip.is_unique_local() || ip.is_unicast_link_local(),
        Err(_) => false,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn host(text: &str) -> DeclaredHost {
        toml::from_str(&format!("models = ['m']\n{text}")).unwrap()
    }

    fn refusal(text: &str) -> String {
        host(text).check().unwrap_err()
    }

    #[test]
    fn plain_http_needs_a_private_address_or_consent() {
        for url in [
            "http://127.0.0.1:1",
            "http://localhost:1",
            "http://10.1.2.3",
            "http://192.168.1.1:8080/",
            "http://172.16.0.1",
            "http://[::1]:80",
            "http://[fd00::1]:80",
            "http://[::ffff:10.0.0.1]:80",
            "https://gpu-1.example",
        ] {
            assert_eq!(host(&format!("url = '{url}'")).check(), Ok(()), "{url}");
        }
        for url in [
            "http://gpu-1.example:8080",
            "http://8.8.8.8",
            "http://172.32.0.1",
            "http://[2001:db8::1]",
            "http://localhost.example",
            "http://10.0.0.1.example",
        ] {
            assert!(refusal(&format!("url = '{url}'")).contains("insecure"), "{url}");
            assert_eq!(host(&format!("url = '{url}'\ninsecure = true")).check(), Ok(()), "{url}");
        }
        assert!(refusal("url = 'https://a.example'\ninsecure = true").contains("http URLs"));
    }

    #[test]
    fn invalid_hosts_are_refused_with_the_field() {
        for (text, wanted) in [
            ("url = 'ftp://a'", "http or https"),
            ("url = 'gpu-1:8080'", "url"),
            ("url = 'https://a.example/v1'", "path"),
            ("url = 'https://a.example?x=1'", "path or query"),
            ("url = 'https://u:secret@a.example'", "user or password"),
            ("url = 'https://a'\npin = 'abc'", "pin"),
            ("url = 'http://10.0.0.1'\nca = 'ca.pem'", "https URLs"),
            ("url = 'https://a'\nkey = 'k'\nkey_env = 'K'", "key_file"),
            ("url = 'https://a'\nname = 'a/b'", "name"),
        ] {
            let why = refusal(text);
            assert!(why.contains(wanted) && !why.contains("secret"), "{text}: {why}");
        }
        let none: DeclaredHost = toml::from_str("url = 'https://a'\nmodels = []").unwrap();
        assert!(none.check().unwrap_err().contains("models"));
        let twice = [host("url = 'https://a:1'"), host("url = 'https://b'\nname = 'a-1'")];
        assert!(check(&twice).unwrap_err().contains("two hosts are called `a-1`"));
    }

    #[test]
    fn workers_of_a_host_have_ids_of_their_own() {
        let text = "url = 'http://[::1]:8080'\nmodels = ['org/Chat', 'chat', 'minilm']";
        let config = toml::from_str::<DeclaredHost>(text).unwrap().config().unwrap();
        let ids: Vec<&str> = config.spec.models.iter().map(|(id, _)| id.as_str()).collect();
        assert_eq!(ids, ["chat@--1-8080", "chat@--1-8080-2", "minilm@--1-8080"]);
        assert_eq!((config.spec.name.as_str(), config.request_timeout), ("--1-8080", Some(REQUEST_TIMEOUT)));
    }

    #[test]
    fn keys_come_from_the_file_or_the_environment_and_are_not_shown() {
        let dir = tempfile::tempdir().unwrap();
        std::fs::write(dir.path().join("key"), "from-a-file\n").unwrap();
        let mut declared =
            host("url = 'https://a'\npin = 'PIN'\nkey_file = 'key'".replace("PIN", &"0".repeat(64)).as_str());
        declared.relative_to(dir.path());
        let config = declared.config().unwrap();
        assert_eq!(config.authorization.as_ref().unwrap(), "Bearer from-a-file");
        assert!(!format!("{config:?}").contains("from-a-file"), "{config:?}");
        let shown = host("url = 'http://127.0.0.1'\nkey = 'a-secret'");
        assert!(!format!("{shown:?}").contains("a-secret"), "{shown:?}");
        assert_eq!(shown.config().unwrap().authorization.unwrap(), "Bearer a-secret");
        // An environment variable that exists wherever tests run.
        let from_environment = host("url = 'http://127.0.0.1'\nkey_env = 'CARGO_MANIFEST_DIR'").config();
        assert!(from_environment.unwrap().authorization.is_some());
        for (text, wanted) in [
            ("key_env = 'NO_SUCH_VARIABLE_HERE'", "NO_SUCH_VARIABLE_HERE"),
            ("key_file = '/nowhere/key'", "/nowhere/key"),
            ("key = ' '", "empty"),
            ("key = \"a\\nsecret\"", "characters"),
        ] {
            let why = configs(&[host(&format!("url = 'http://127.0.0.1'\n{text}"))]).unwrap_err();
            assert!(
                why.contains(wanted) && why.contains("[[host]] http://127.0.0.1") && !why.contains("secret"),
                "{why}"
            );
        }
        let too_long = dir.path().join("long");
        std::fs::write(&too_long, "x".repeat(5000)).unwrap();
        assert!(read_key(&too_long).unwrap_err().contains("4096"));
    }
}
