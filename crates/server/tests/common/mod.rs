//! A real server on a free port, and a minimal HTTP client.
#![allow(dead_code, reason = "each test file uses a part of it")]

use sconce_engine::{Device, DeviceChoice, LoadOptions, hub};
use sconce_server::{App, Bound, Config, Listen, ModelSpec, Server, Stop};
use sconce_testkit::{materialize, wait_until};
use serde_json::Value;
use std::io::{Read, Write};
use std::net::{SocketAddr, TcpStream};
use std::sync::Arc;
use std::time::Duration;
use tempfile::TempDir;

/// A server that runs until dropped.
pub(crate) struct Running {
    pub(crate) app: Arc<App>,
    pub(crate) bound: Bound,
    thread: Option<std::thread::JoinHandle<()>>,
    _models: Vec<TempDir>,
}

/// A response.
#[derive(Debug)]
pub(crate) struct Reply {
    pub(crate) status: u16,
    pub(crate) head: Vec<(String, String)>,
    pub(crate) body: String,
}

impl Reply {
    pub(crate) fn json(&self) -> Value {
        serde_json::from_str(&self.body).unwrap_or_else(|e| panic!("{e}: {self:?}"))
    }

    pub(crate) fn header(&self, name: &str) -> Option<&str> {
        self.head.iter().find(|(n, _)| n.eq_ignore_ascii_case(name)).map(|(_, v)| v.as_str())
    }

    /// The JSON of a successful response.
    pub(crate) fn ok(&self) -> Value {
        assert_eq!(self.status, 200, "{self:?}");
        self.json()
    }
}

/// Load options with empty caches and without doctor's verdict of this machine.
pub(crate) fn options(dir: &std::path::Path) -> LoadOptions {
    let mut options = LoadOptions::new(hub::Options::new(dir.join("hub"), dir.join("cache")));
    options.hub.offline = true;
    options.device = DeviceChoice::Only(Device::Cpu);
    options
}

/// The golden `name` as a model of that name, and its directory, which must stay alive.
pub(crate) fn golden(name: &str) -> (ModelSpec, TempDir) {
    let dir = materialize(name);
    let mut spec = ModelSpec::new(dir.path().to_str().unwrap(), options(dir.path()));
    spec.id = name.into();
    (spec, dir)
}

/// Configuration with a free local port.
pub(crate) fn config() -> Config {
    Config { listen: Listen::Tcp { host: "127.0.0.1".into(), port: 0 }, ..Config::default() }
}

/// A server with these goldens, all loaded.
pub(crate) fn serve(names: &[&str], config: Config) -> Running {
    let (specs, dirs): (Vec<_>, Vec<_>) = names.iter().map(|name| golden(name)).unzip();
    let running = start(specs, dirs, config);
    running.wait_ready();
    running
}

/// A server with these models, loadable or not.
pub(crate) fn start(specs: Vec<ModelSpec>, dirs: Vec<TempDir>, config: Config) -> Running {
    let (sender, receiver) = std::sync::mpsc::channel();
    let thread = std::thread::spawn(move || {
        let runtime = tokio::runtime::Builder::new_multi_thread().worker_threads(2).enable_all().build().unwrap();
        runtime.block_on(async {
            let server = Server::bind(config, specs, Stop::default()).await.unwrap();
            sender.send((server.app.clone(), server.bound().clone())).unwrap();
            server.run().await.unwrap();
        });
        runtime.shutdown_timeout(Duration::from_secs(10));
    });
    let (app, bound) = receiver.recv().unwrap();
    Running { app, bound, thread: Some(thread), _models: dirs }
}

impl Running {
    pub(crate) fn address(&self) -> SocketAddr {
        match &self.bound {
            Bound::Tcp { address, .. } => *address,
            Bound::Unix(path) => panic!("a socket at {}", path.display()),
        }
    }

    pub(crate) fn wait_ready(&self) {
        wait_until("every model is loaded", || self.app.models.ready().is_ok());
    }

    pub(crate) fn get(&self, path: &str) -> Reply {
        self.send("GET", path, &[], "")
    }

    pub(crate) fn post(&self, path: &str, body: &Value) -> Reply {
        self.send("POST", path, &[("content-type", "application/json")], &body.to_string())
    }

    pub(crate) fn send(&self, method: &str, path: &str, head: &[(&str, &str)], body: &str) -> Reply {
        let mut stream = self.connect();
        stream.write_all(request(method, path, head, body).as_bytes()).unwrap();
        reply(&mut stream)
    }

    pub(crate) fn connect(&self) -> TcpStream {
        let stream = TcpStream::connect(self.address()).unwrap();
        stream.set_read_timeout(Some(Duration::from_secs(300))).unwrap();
        stream
    }

    /// Waits until the server has ended.
    pub(crate) fn join(&mut self) {
        self.thread.take().unwrap().join().unwrap();
    }

    pub(crate) fn has_ended(&self) -> bool {
        self.thread.as_ref().is_none_or(|t| t.is_finished())
    }
}

impl Drop for Running {
    fn drop(&mut self) {
        self.app.stop.now();
        if let Some(thread) = self.thread.take() {
            let _ = thread.join();
        }
    }
}

/// A request with `connection: close`, so that the response ends with the connection.
pub(crate) fn request(method: &str, path: &str, head: &[(&str, &str)], body: &str) -> String {
    let head: String = head.iter().map(|(n, v)| format!("{n}: {v}\r\n")).collect();
    let length = body.len();
    format!(
        "{method} {path} HTTP/1.1\r\nhost: localhost\r\nconnection: close\r\ncontent-length: {length}\r\n{head}\r\n{body}"
    )
}

/// Reads a response until the connection closes.
pub(crate) fn reply(stream: &mut impl Read) -> Reply {
    let mut bytes = Vec::new();
    // A server that closes while the client sends may reset the connection; keep what was read.
    let _ = stream.read_to_end(&mut bytes);
    parse(&bytes)
}

pub(crate) fn parse(bytes: &[u8]) -> Reply {
    let text = String::from_utf8_lossy(bytes);
    let (head, body) = text.split_once("\r\n\r\n").unwrap_or_else(|| panic!("not an HTTP response: {text:?}"));
    let mut lines = head.lines();
    let status = lines.next().and_then(|l| l.split(' ').nth(1)).and_then(|s| s.parse().ok()).expect("a status");
    let head: Vec<_> = lines.filter_map(|l| l.split_once(": ")).map(|(n, v)| (n.to_string(), v.to_string())).collect();
    let chunked = head.iter().any(|(n, v)| n == "transfer-encoding" && v == "chunked");
    let body = if chunked { decode_chunked(body) } else { body.to_string() };
    Reply { status, head, body }
}

fn decode_chunked(body: &str) -> String {
    let (mut all, mut rest) = (String::new(), body);
    while let Some((size, after)) = rest.split_once("\r\n") {
        let size = usize::from_str_radix(size, 16).expect("a chunk's size");
        if size == 0 {
            break;
        }
        all.push_str(&after[..size]);
        rest = &after[size + 2..];
    }
    all
}

pub(crate) fn numbers(v: &Value) -> Vec<f32> {
    v.as_array().unwrap_or_else(|| panic!("a list, not {v}")).iter().map(|x| x.as_f64().unwrap() as f32).collect()
}
