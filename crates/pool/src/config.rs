//! Configuration of a manager: its flags and `pool.toml`.

use crate::core::{Origin, Spec, Timings};
use crate::host_config::{self, DeclaredHost, HostConfig};
use sconce_api::hosts::AllowedHosts;
use sconce_api::pool::PORT;
use sconce_api::worker::{JOB_LIFETIME, Tuning};
use serde::Deserialize;
use std::collections::BTreeMap;
use std::ops::RangeInclusive;
use std::path::{Path, PathBuf};
use std::time::Duration;

/// A `pool.toml`, or an empty one.
#[derive(Clone, Debug, Default, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct PoolFile {
    /// Host name or address to listen on; 127.0.0.1 by default.
    pub hostname: Option<String>,
    /// Port to listen on; 9200 by default.
    pub port: Option<u16>,
    /// Host names that requests may use besides localhost.
    #[serde(default)]
    pub allowed_hosts: Vec<String>,
    /// Directory of the manager's own files.
    pub state: Option<PathBuf>,
    /// Ports of workers, `9300-9399`; any free ports by default.
    pub worker_ports: Option<String>,
    /// Seconds from the start of a worker until it must be ready.
    pub start_timeout: Option<u64>,
    /// Largest request body in bytes.
    pub payload_limit: Option<usize>,
    /// The `sconce` binary for a kind of device (`cpu`, `cuda`, `metal`); by default the manager's
    /// own.
    #[serde(default)]
    pub binaries: BTreeMap<String, PathBuf>,
    /// The models to run.
    #[serde(default, rename = "model")]
    pub models: Vec<Declared>,
    /// Servers on other hosts.
    #[serde(default, rename = "host")]
    pub hosts: Vec<DeclaredHost>,
}

/// A model to run.
#[derive(Clone, Debug, PartialEq, Eq, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Declared {
    /// Where it comes from.
    pub model: String,
    /// Model name that requests use; its reference by default.
    pub name: Option<String>,
    /// `auto`, a kind (`cuda`), a device (`cuda:0`), or a GPU of either kind (`gpu:0`).
    #[serde(default = "auto")]
    pub device: String,
    /// Number of workers.
    #[serde(default = "one")]
    pub replicas: usize,
    /// Flags for loading and running it.
    #[serde(default)]
    pub flags: Tuning,
}

fn auto() -> String {
    "auto".into()
}

fn one() -> usize {
    1
}

/// An invalid configuration.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum ConfigError {
    /// The file cannot be read.
    #[error("{}: {why}", path.display())]
    Read {
        /// The file.
        path: PathBuf,
        /// The error.
        why: std::io::Error,
    },
    /// The file is not a valid `pool.toml`.
    #[error("{}: {what}", path.display())]
    Wrong {
        /// The file.
        path: PathBuf,
        /// What is wrong with it.
        what: String,
    },
}

impl PoolFile {
    /// Reads a file. The paths of models, of the state directory and of commands with a slash are
    /// relative to the file.
    pub fn read(path: &Path) -> Result<PoolFile, ConfigError> {
        let text = std::fs::read_to_string(path).map_err(|why| ConfigError::Read { path: path.to_path_buf(), why })?;
        let wrong = |what: String| ConfigError::Wrong { path: path.to_path_buf(), what };
        let mut file: PoolFile = toml::from_str(&text).map_err(|e| wrong(without_source_line(&e, &text)))?;
        let here = path.parent().unwrap_or(Path::new("."));
        for binary in file.binaries.values_mut().filter(|b| b.components().count() > 1) {
            *binary = here.join(&*binary);
        }
        file.state = file.state.map(|state| here.join(state));
        file.hosts.iter_mut().for_each(|host| host.relative_to(here));
        for m in &mut file.models {
            // As in the engine: an existing path is meant, even where it looks like a hub id.
            let beside = here.join(&m.model);
            if m.model.starts_with('.') || beside.exists() {
                let beside = std::path::absolute(&beside).unwrap_or(beside);
                // The path becomes absolute, because the manager may be restarted in another
                // directory; requests still use the name in the file.
                let written = std::mem::replace(&mut m.model, beside.to_string_lossy().into_owned());
                m.name.get_or_insert(written);
            }
        }
        if let Some(kind) = file.binaries.keys().find(|k| !["cpu", "cuda", "metal"].contains(&k.as_str())) {
            return Err(wrong(format!("[binaries]: unknown kind of device `{kind}`; kinds: cpu, cuda, metal")));
        }
        let mut seen: BTreeMap<&str, &str> = BTreeMap::new();
        for m in &file.models {
            let name = m.name.as_deref().unwrap_or(&m.model);
            match seen.insert(name, &m.model) {
                Some(other) if other != m.model => {
                    return Err(wrong(format!("two models are called `{name}`: {other} and {}", m.model)));
                }
                _ => {}
            }
        }
        file.ports().map_err(wrong)?;
        host_config::check(&file.hosts).map_err(wrong)?;
        Ok(file)
    }

    /// The range of ports for workers.
    pub fn ports(&self) -> Result<Option<RangeInclusive<u16>>, String> {
        let Some(text) = &self.worker_ports else { return Ok(None) };
        let parsed = text.split_once('-').and_then(|(a, b)| Some((a.trim().parse().ok()?, b.trim().parse().ok()?)));
        match parsed {
            Some((first, last)) if first > 0 && first <= last => Ok(Some(first..=last)),
            _ => Err(format!("worker_ports = `{text}`: expected two ports, such as `9300-9399`")),
        }
    }

    /// The specifications of all declared workers.
    pub fn specs(&self) -> Vec<Spec> {
        let one = |m: &Declared| Spec {
            name: m.name.clone().unwrap_or_else(|| m.model.clone()),
            model: m.model.clone(),
            device: m.device.clone(),
            tuning: m.flags.clone(),
            origin: Origin::Declared,
        };
        self.models.iter().flat_map(|m| std::iter::repeat_n(one(m), m.replicas)).collect()
    }
}

/// An error of the parser with the number of its line. The line itself may have a key.
fn without_source_line(e: &toml::de::Error, text: &str) -> String {
    let line = e.span().map(|span| text.as_bytes()[..span.start.min(text.len())].split(|b| *b == b'\n').count());
    line.map_or_else(|| e.message().to_string(), |line| format!("line {line}: {}", e.message()))
}

/// Configuration of a manager.
#[derive(Clone, Debug)]
pub struct Config {
    /// Host name or address to listen on.
    pub hostname: String,
    /// Port to listen on; 0 takes any free one.
    pub port: u16,
    /// Host names that requests may have besides those of loopback.
    pub allowed_hosts: Vec<String>,
    /// Directory of the manager's own files.
    pub state: PathBuf,
    /// Key that clients must send, if any.
    pub api_key: Option<String>,
    /// Range of ports for workers.
    pub ports: Option<RangeInclusive<u16>>,
    /// The command for a kind of device.
    pub binaries: BTreeMap<String, PathBuf>,
    /// The command for the other kinds.
    pub binary: PathBuf,
    /// Largest request body in bytes.
    pub payload_limit: usize,
    /// The workers to run.
    pub specs: Vec<Spec>,
    /// The servers on other hosts.
    pub hosts: Vec<HostConfig>,
    /// Time-outs and intervals.
    pub timings: Timings,
    /// Most connections at once; further ones wait to be accepted.
    pub max_connections: usize,
    /// How long a client may send nothing, or leave a response unread, before its connection is
    /// closed.
    pub client_timeout: Duration,
    /// How long the events of a job of `/v1/jobs` wait for a client.
    pub job_lifetime: Duration,
    /// Whether workers keep running when the manager ends.
    pub keep_workers: bool,
}

impl Config {
    /// The host names that requests may have.
    pub(crate) fn allowed_hosts(&self) -> AllowedHosts {
        AllowedHosts::new(Some(&self.hostname), self.api_key.is_some(), &self.allowed_hosts)
    }

    /// The configuration of a file, with `binary` as the command and `state` as the state directory
    /// if the file names none.
    pub fn new(file: PoolFile, binary: PathBuf, state: impl FnOnce(u16) -> PathBuf) -> Result<Config, String> {
        let port = file.port.unwrap_or(PORT);
        let mut timings = Timings::default();
        if let Some(seconds) = file.start_timeout {
            timings.start = Duration::from_secs(seconds);
        }
        Ok(Config {
            hostname: file.hostname.clone().unwrap_or_else(|| "127.0.0.1".into()),
            port,
            allowed_hosts: file.allowed_hosts.clone(),
            state: file.state.clone().unwrap_or_else(|| state(port)),
            api_key: None,
            ports: file.ports()?,
            binaries: file.binaries.clone(),
            binary,
            payload_limit: file.payload_limit.unwrap_or(2_000_000),
            specs: file.specs(),
            hosts: host_config::configs(&file.hosts)?,
            timings,
            max_connections: 4_096,
            client_timeout: Duration::from_secs(60),
            job_lifetime: JOB_LIFETIME,
            keep_workers: false,
        })
    }

    /// The command for a kind of device.
    pub fn binary(&self, kind: &str) -> &Path {
        self.binaries.get(kind).unwrap_or(&self.binary)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn file(text: &str) -> Result<PoolFile, String> {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("pool.toml");
        std::fs::write(&path, text).unwrap();
        PoolFile::read(&path).map_err(|e| e.to_string())
    }

    #[test]
    fn pool_file_declares_models_and_replicas() {
        let text = r#"
            port = 9300
            start_timeout = 120
            worker_ports = "9301-9310"
            [binaries]
            cuda = "sconce-cuda"
            [[model]]
            model = "smollm"
            name = "chat"
            device = "cuda"
            replicas = 2
            flags = { context = 4096, dtype = "q8_0" }
            [[model]]
            model = "minilm"
        "#;
        let config = Config::new(file(text).unwrap(), "sconce".into(), |_| "state".into()).unwrap();
        assert_eq!((config.port, config.timings.start.as_secs(), config.ports.clone()), (9300, 120, Some(9301..=9310)));
        assert_eq!(config.binary("cuda"), Path::new("sconce-cuda"));
        assert_eq!(config.binary("cpu"), Path::new("sconce"));
        let names: Vec<&str> = config.specs.iter().map(|s| s.name.as_str()).collect();
        assert_eq!(names, ["chat", "chat", "minilm"]);
        assert_eq!(config.specs[0].tuning.context, Some(4096));
        assert_eq!((config.specs[2].device.as_str(), config.specs[2].origin), ("auto", Origin::Declared));
    }

    #[test]
    fn relative_model_paths_resolve_against_the_pool_file() {
        let dir = tempfile::tempdir().unwrap();
        std::fs::create_dir_all(dir.path().join("org/here")).unwrap();
        let path = dir.path().join("pool.toml");
        let models =
            ["org/here", "./not/yet", "org/elsewhere", "smollm"].map(|m| format!("[[model]]\nmodel = '{m}'\n"));
        std::fs::write(&path, models.concat()).unwrap();
        let specs = PoolFile::read(&path).unwrap().specs();
        let at = |name: &str| dir.path().join(name).to_string_lossy().into_owned();
        let want = [at("org/here"), at("./not/yet"), "org/elsewhere".into(), "smollm".into()];
        assert_eq!(
            specs.iter().map(|s| Path::new(&s.model)).collect::<Vec<_>>(),
            want.iter().map(Path::new).collect::<Vec<_>>()
        );
        assert!(specs.iter().all(|s| Path::new(&s.model).is_absolute() || !s.model.contains("./")));
        let names: Vec<&str> = specs.iter().map(|s| s.name.as_str()).collect();
        assert_eq!(names, ["org/here", "./not/yet", "org/elsewhere", "smollm"], "requests use the names in the file");
    }

    #[test]
    fn unknown_and_invalid_fields_are_refused_by_name() {
        assert!(file("prot = 1").unwrap_err().contains("prot"));
        assert!(file("[[model]]\nmodel = 'a'\nreplica = 2").unwrap_err().contains("replica"));
        assert!(file("[[model]]\nmodel = 'a'\nflags = { contxt = 2 }").unwrap_err().contains("contxt"));
        assert!(file("[binaries]\nrocm = 'x'").unwrap_err().contains("rocm"));
        assert!(file("worker_ports = '10-9'").unwrap_err().contains("10-9"));
        let twice = "[[model]]\nmodel = 'a'\nname = 'x'\n[[model]]\nmodel = 'b'\nname = 'x'";
        assert!(file(twice).unwrap_err().contains("called `x`"));
    }

    #[test]
    fn pool_file_declares_hosts() {
        let text = r#"
            [[host]]
            name = "gpu-1"
            url = "http://10.0.0.7:8080"
            models = ["chat", "minilm"]
            key = "a-secret"
            [[host]]
            url = "https://gpu-2.example:8443/"
            models = ["chat"]
            pin = "sha256:0123456789abcdef0123456789abcdef0123456789abcdef0123456789abcdef"
            request_timeout = 30
        "#;
        let config = Config::new(file(text).unwrap(), "sconce".into(), |_| "state".into()).unwrap();
        let [one, two] = &config.hosts[..] else { panic!("{:?}", config.hosts) };
        assert_eq!((one.spec.name.as_str(), one.spec.models.len()), ("gpu-1", 2));
        assert_eq!(
            (two.spec.name.as_str(), two.spec.url.as_str()),
            ("gpu-2.example-8443", "https://gpu-2.example:8443")
        );
        assert_eq!(two.request_timeout, Some(Duration::from_secs(30)));
        // Nothing that goes into a log or to a terminal has the key.
        assert!(!format!("{config:?}").contains("a-secret"), "{config:?}");
        let broken = file(&text.replace("models = [\"chat\", \"minilm\"]", "model = 1")).unwrap_err();
        assert!(broken.contains("line ") && broken.contains("model") && !broken.contains("a-secret"), "{broken}");
        let twice = file(&text.replace("key = \"a-secret\"", "key = \"a-secret\"\nkey = \"a-secret\"")).unwrap_err();
        assert!(!twice.contains("a-secret"), "{twice}");
        // Whatever a field with a secret is called.
        for wrong in ["token = \"a-secret\"", "Authorization = \"Bearer a-secret\""] {
            let error = file(&format!("[[host]]\nurl = \"http://10.0.0.7\"\n{wrong}\n")).unwrap_err();
            assert!(error.contains("line 3") && !error.contains("a-secret"), "{error}");
        }
        let public = file(&text.replace("10.0.0.7", "example.com")).unwrap_err();
        assert!(public.contains("gpu-1") && public.contains("insecure = true"), "{public}");
    }
}
