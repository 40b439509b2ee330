//! A manager with fake workers: the test program itself, run in place of the `sconce` command.
#![allow(dead_code, reason = "each test program uses its own part")]

pub(crate) mod fake;
pub(crate) mod remote;

use axum::http::{Method, StatusCode};
use sconce_pool::core::{Backoff, HostTimings, Timings};
use sconce_pool::{Config, ManagerClient, Pool, PoolFile};
use sconce_testkit::wait_for;
use serde_json::{Value, json};
use std::io::{Read, Write};
use std::net::{SocketAddr, TcpStream};
use std::path::{Path, PathBuf};
use std::time::Duration;
use tokio::runtime::Runtime;
use tokio::sync::oneshot;

pub(crate) const KEY: &str = "test-key";

fn ms(n: u64) -> Duration {
    Duration::from_millis(n)
}

/// Fast enough for a test, slow enough for a busy machine.
pub(crate) fn timings() -> Timings {
    let backoff = Backoff { first: ms(200), most: ms(1000), failures: 20, open: ms(2000), ..Backoff::default() };
    let (start, drain, term) = (ms(60_000), ms(3000), ms(3000));
    let (probe, answer, hosts) = (ms(300), ms(4000), HostTimings::default());
    Timings { start, probe, answer, misses: 3, drain, term, backoff, hosts }
}

/// A directory with the fake command.
pub(crate) struct TestHost {
    pub(crate) dir: tempfile::TempDir,
}

impl TestHost {
    pub(crate) fn new() -> TestHost {
        let dir = tempfile::tempdir().unwrap();
        let exe = std::env::current_exe().unwrap();
        let script = format!(
            "#!/bin/sh\nFAKE_DIR='{}' FAKE_ARGS=\"$(printf '%s\\n' \"$@\")\" exec '{}' fake --exact --nocapture --ignored -q 3>&1 1>/dev/null\n",
            dir.path().display(),
            exe.display()
        );
        let path = dir.path().join("sconce");
        std::fs::write(&path, script).unwrap();
        let mut permissions = std::fs::metadata(&path).unwrap().permissions();
        std::os::unix::fs::PermissionsExt::set_mode(&mut permissions, 0o755);
        std::fs::set_permissions(&path, permissions).unwrap();
        TestHost { dir }
    }

    pub(crate) fn path(&self, name: &str) -> PathBuf {
        self.dir.path().join(name)
    }

    pub(crate) fn config(&self, toml: &str) -> Config {
        let path = self.path("pool.toml");
        std::fs::write(&path, toml).unwrap();
        let file = PoolFile::read(&path).unwrap();
        let mut config = Config::new(file, self.path("sconce"), |_| self.path("state")).unwrap();
        config.timings = timings();
        config.port = 0;
        config.api_key = Some(KEY.into());
        config
    }

    pub(crate) fn run(&self, toml: &str) -> Running {
        Running::new(self.config(toml))
    }
}

/// A running manager on its own threads.
pub(crate) struct Running {
    runtime: Option<Runtime>,
    stop: Option<oneshot::Sender<()>>,
    done: std::sync::mpsc::Receiver<()>,
    pub(crate) address: SocketAddr,
    config: Config,
}

impl Running {
    pub(crate) fn new(config: Config) -> Running {
        let runtime = tokio::runtime::Builder::new_multi_thread().worker_threads(2).enable_all().build().unwrap();
        let pool = runtime.block_on(Pool::bind(config.clone())).unwrap();
        let address = pool.address();
        let (stop, stopped) = oneshot::channel::<()>();
        let (finished, done) = std::sync::mpsc::channel();
        runtime.spawn(async move {
            let stop = async move {
                if stopped.await.is_err() {
                    std::future::pending::<()>().await;
                }
            };
            pool.run(stop, std::future::pending()).await.unwrap();
            let _ = finished.send(());
        });
        Running { runtime: Some(runtime), stop: Some(stop), done, address, config }
    }

    /// Ends the manager as a crash does: nothing more is written or sent.
    pub(crate) fn crash(mut self) -> Config {
        let mut config = self.config.clone();
        config.port = self.address.port();
        self.runtime.take().unwrap().shutdown_timeout(Duration::from_secs(5));
        config
    }

    /// Shuts the manager down.
    pub(crate) fn end(mut self) -> Config {
        let mut config = self.config.clone();
        config.port = self.address.port();
        self.finish();
        config
    }

    fn finish(&mut self) {
        if let (Some(runtime), Some(stop)) = (self.runtime.take(), self.stop.take()) {
            let _ = stop.send(());
            let ended = self.done.recv_timeout(Duration::from_secs(120));
            runtime.shutdown_timeout(Duration::from_secs(5));
            if !std::thread::panicking() {
                assert!(ended.is_ok(), "the manager did not end");
            }
        }
    }

    /// A value of `/metrics`.
    pub(crate) fn metric(&self, name: &str) -> u64 {
        let text = self.get("/metrics");
        let line = text.as_str().unwrap().lines().find_map(|l| l.strip_prefix(name)?.trim().parse().ok());
        line.unwrap_or_else(|| panic!("no {name} in {text}"))
    }

    /// Content of the state file.
    pub(crate) fn saved_state(&self) -> Value {
        serde_json::from_slice(&std::fs::read(self.config.state.join("state.json")).unwrap()).unwrap()
    }

    pub(crate) fn request(&self, method: Method, path: &str, body: Option<Value>) -> (StatusCode, Value) {
        self.try_request(method, path, body).unwrap()
    }

    pub(crate) fn try_request(
        &self,
        method: Method,
        path: &str,
        body: Option<Value>,
    ) -> Result<(StatusCode, Value), String> {
        send_request(self.address, method, path, body)
    }

    pub(crate) fn get(&self, path: &str) -> Value {
        let (status, body) = self.request(Method::GET, path, None);
        assert!(status.is_success(), "{path}: {status} {body}");
        body
    }

    pub(crate) fn post(&self, path: &str, body: Value) -> (StatusCode, Value) {
        self.request(Method::POST, path, Some(body))
    }

    pub(crate) fn chat(&self, model: &str, text: &str) -> (StatusCode, Value) {
        self.post("/v1/chat/completions", json!({"model": model, "messages": [{"role": "user", "content": text}]}))
    }

    pub(crate) fn workers(&self) -> Vec<Value> {
        self.get("/v2/state")["workers"].as_array().unwrap().clone()
    }

    pub(crate) fn worker(&self, id: &str) -> Option<Value> {
        self.workers().into_iter().find(|w| w["id"] == id)
    }

    /// Waits until `n` workers are ready.
    #[track_caller]
    pub(crate) fn ready(&self, n: usize) -> Vec<Value> {
        self.wait("workers to be ready", |r| {
            let all = r.workers();
            (all.iter().filter(|w| w["state"] == "ready" || w["state"] == "busy").count() >= n).then_some(all)
        })
    }

    #[track_caller]
    pub(crate) fn wait<T>(&self, what: &str, f: impl Fn(&Running) -> Option<T>) -> T {
        wait_for(what, || f(self).ok_or_else(|| format!("{:#}", self.get("/v2/state"))))
    }

    /// A stream of `/execute`.
    pub(crate) fn execute(&self, model: &str, job: &str) -> Stream {
        let body =
            json!({"model": model, "job_id": job, "prompt": format!("A prompt of its own: {job}"), "max_tokens": 10});
        Stream::open(self.address, "/execute", &body)
    }
}

impl Drop for Running {
    fn drop(&mut self) {
        self.finish();
    }
}

/// Sends a raw request and returns the response.
pub(crate) fn raw(address: SocketAddr, request: &str) -> String {
    let mut socket = TcpStream::connect(address).unwrap();
    socket.set_read_timeout(Some(Duration::from_secs(120))).unwrap();
    socket.write_all(request.as_bytes()).unwrap();
    let mut answer = Vec::new();
    let _ = socket.read_to_end(&mut answer);
    String::from_utf8_lossy(&answer).into_owned()
}

pub(crate) fn send_request(
    address: SocketAddr,
    method: Method,
    path: &str,
    body: Option<Value>,
) -> Result<(StatusCode, Value), String> {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
    let manager = ManagerClient { url: format!("http://{address}"), key: Some(KEY.into()) };
    runtime.block_on(manager.request(method, path, body))
}

/// A response read from its own socket.
pub(crate) struct Stream {
    pub(crate) socket: TcpStream,
    pub(crate) seen: String,
}

impl Stream {
    pub(crate) fn open(address: SocketAddr, path: &str, body: &Value) -> Stream {
        let mut socket = TcpStream::connect(address).unwrap();
        socket.set_read_timeout(Some(Duration::from_secs(120))).unwrap();
        let body = body.to_string();
        let head = format!(
            "POST {path} HTTP/1.1\r\nhost: localhost\r\nauthorization: Bearer {KEY}\r\ncontent-type: application/json\r\n\
             content-length: {}\r\nconnection: close\r\n\r\n",
            body.len()
        );
        socket.write_all((head + &body).as_bytes()).unwrap();
        Stream { socket, seen: String::new() }
    }

    /// Reads until `text` was seen.
    #[track_caller]
    pub(crate) fn until(&mut self, text: &str) {
        let mut buffer = [0; 4096];
        while !self.seen.contains(text) {
            // Workers are children of this process: SIGCHLD interrupts a read with a time limit.
            let n = match self.socket.read(&mut buffer) {
                Err(e) if e.kind() == std::io::ErrorKind::Interrupted => continue,
                read => read.unwrap(),
            };
            assert!(n > 0, "the stream ended before {text:?}: {}", self.seen);
            self.seen.push_str(&String::from_utf8_lossy(&buffer[..n]));
        }
    }

    /// Reads to the end.
    pub(crate) fn rest(mut self) -> String {
        let mut rest = Vec::new();
        let _ = self.socket.read_to_end(&mut rest);
        self.seen + &String::from_utf8_lossy(&rest)
    }

    /// The worker that answers.
    pub(crate) fn worker(&self) -> String {
        let line = self.seen.lines().find_map(|l| l.strip_prefix("x-sconce-worker: ")).expect("a worker's name");
        line.trim().to_string()
    }
}

pub(crate) fn signal(worker: &Value, signal: &str) {
    let pid = worker["pid"].as_u64().expect("a process").to_string();
    let done = std::process::Command::new("kill").args([&format!("-{signal}"), &pid]).status().unwrap();
    assert!(done.success());
}

/// Whether a process runs and is no zombie.
pub(crate) fn is_alive(pid: u64) -> bool {
    let stat = std::fs::read_to_string(Path::new("/proc").join(pid.to_string()).join("stat")).unwrap_or_default();
    stat.rsplit(')').next().is_some_and(|rest| !rest.trim().is_empty() && !rest.trim().starts_with('Z'))
}
