//! A manager as people run it, and the clients of its tests.

use sconce_testkit::{materialize, wait_for};
use serde_json::{Value, json};
use std::io::{Read, Write};
use std::net::TcpStream;
use std::path::Path;
use std::process::{Child, Command, ExitStatus, Stdio};
use std::time::Duration;

/// A Llama without the files that make it an embedder.
pub(crate) fn model() -> tempfile::TempDir {
    let dir = materialize("task-embed-llama");
    for name in ["modules.json", "config_sentence_transformers.json", "sentence_bert_config.json"] {
        std::fs::remove_file(dir.path().join(name)).unwrap();
    }
    dir
}

pub(crate) struct Manager {
    pub(crate) child: Child,
    pub(crate) home: tempfile::TempDir,
    pub(crate) port: u16,
    pub(crate) models: Models,
}

pub(crate) fn command(home: &Path, args: &[&str]) -> Command {
    let mut command = Command::new(env!("CARGO_BIN_EXE_sconce"));
    command.args(args).env_clear().env("PATH", std::env::var_os("PATH").unwrap_or_default()).env("HOME", home);
    command.env("HF_HUB_OFFLINE", "1");
    command
}

/// Where models come from.
#[derive(Clone, Copy)]
pub(crate) enum Models {
    /// A directory of the test, isolated from this machine's settings.
    Own,
    /// By a short name, from the user's cache or its usual source.
    Known,
}

/// Starts a manager and returns its port. Port 0 takes any free one; a former port is waited for.
pub(crate) fn serve(home: &Path, port: u16, models: Models) -> (Child, u16) {
    let (toml, state, log) = (home.join("pool.toml"), home.join("state"), home.join("manager.log"));
    let text = port.to_string();
    let args =
        ["pool", "serve", "--config", toml.to_str().unwrap(), "--port", &text, "--state", state.to_str().unwrap()];
    wait_for("the manager listens", || {
        let mut command = match models {
            Models::Own => command(home, &args),
            Models::Known => {
                let mut command = Command::new(env!("CARGO_BIN_EXE_sconce"));
                command.args(args);
                command
            }
        };
        command.env("RUST_LOG", "info").env_remove("SCONCE_POOL_KEY");
        let file = std::fs::File::create(&log).unwrap();
        let mut child = command.stdin(Stdio::null()).stdout(Stdio::null()).stderr(file).spawn().unwrap();
        let port = wait_for("its first line", || {
            let has_ended = child.try_wait().unwrap().is_some();
            let log_text = std::fs::read_to_string(&log).unwrap_or_default();
            let at = log_text.split_once("listening at http://127.0.0.1:").map(|(_, rest)| rest);
            let digits = at.map(|rest| rest.chars().take_while(char::is_ascii_digit).collect::<String>());
            // The line may be incomplete.
            if let Some(port) = digits.filter(|d| at.is_some_and(|rest| rest.len() > d.len())) {
                return Ok(Some(port.parse().unwrap()));
            }
            assert!(!has_ended || log_text.contains("cannot listen"), "{log_text}");
            if has_ended { Ok(None) } else { Err(log_text) }
        });
        // Without a port, another program uses it for now.
        port.map(|port| (child, port)).ok_or("")
    })
}

impl Manager {
    pub(crate) fn new(model: &Path) -> Manager {
        Manager::with(&format!("model = '{}'\nreplicas = 2\n", model.display()), Models::Own)
    }

    /// A manager whose file declares one model, `chat`.
    pub(crate) fn with(model: &str, models: Models) -> Manager {
        let home = tempfile::tempdir().unwrap();
        std::fs::write(home.path().join("pool.toml"), format!("[[model]]\nname = 'chat'\ndevice = 'cpu'\n{model}"))
            .unwrap();
        let (child, port) = serve(home.path(), 0, models);
        Manager { child, home, port, models }
    }

    /// Kills the manager and starts another in its place.
    pub(crate) fn replace(&mut self) {
        self.child.kill().unwrap();
        self.child.wait().unwrap();
        (self.child, self.port) = serve(self.home.path(), self.port, self.models);
    }

    /// Sends SIGTERM and waits for the exit.
    pub(crate) fn end(&mut self) -> ExitStatus {
        self.signal(u64::from(self.child.id()), "-TERM");
        wait_for("the manager exits", || self.child.try_wait().unwrap().ok_or(""))
    }

    /// Waits until a condition holds for a worker.
    #[track_caller]
    pub(crate) fn wait_for_worker(&self, id: &str, condition: impl Fn(&Value) -> bool) -> Value {
        wait_for("the state of a worker", || {
            let all = self.workers();
            all.iter().find(|w| w["id"] == id).filter(|w| condition(w)).cloned().ok_or_else(|| format!("{all:?}"))
        })
    }

    pub(crate) fn socket(&self) -> TcpStream {
        let socket = TcpStream::connect(("127.0.0.1", self.port)).unwrap();
        socket.set_read_timeout(Some(Duration::from_secs(120))).unwrap();
        socket
    }

    pub(crate) fn sconce(&self, args: &[&str]) -> (bool, String, String) {
        let url = format!("http://127.0.0.1:{}", self.port);
        let out = command(self.home.path(), &[&["pool"], args, &["--url", &url]].concat()).output().unwrap();
        (out.status.success(), String::from_utf8(out.stdout).unwrap(), String::from_utf8(out.stderr).unwrap())
    }

    pub(crate) fn workers(&self) -> Vec<Value> {
        let (ok, out, _) = self.sconce(&["status", "--json"]);
        let state: Value = if ok { serde_json::from_str(&out).unwrap() } else { json!({"workers": []}) };
        state["workers"].as_array().unwrap().clone()
    }

    #[track_caller]
    pub(crate) fn wait_for_ready(&self, n: usize) -> Vec<Value> {
        wait_for("workers are ready", || {
            let all = self.workers();
            if all.iter().filter(|w| w["state"] == "ready").count() >= n {
                return Ok(all);
            }
            let log = std::fs::read_to_string(self.home.path().join("manager.log")).unwrap_or_default();
            Err(format!("{all:?}\n{log}"))
        })
    }

    pub(crate) fn execute(&self, body: &Value) -> String {
        execute(self.socket(), body)
    }

    pub(crate) fn signal(&self, pid: u64, signal: &str) {
        assert!(Command::new("kill").args([signal, &pid.to_string()]).status().unwrap().success());
    }
}

impl Drop for Manager {
    fn drop(&mut self) {
        // Workers that a failed test leaves are killed by pid.
        let pids: Vec<u64> = self.workers().iter().filter_map(|w| w["pid"].as_u64()).collect();
        let _ = self.child.kill();
        let _ = self.child.wait();
        for pid in pids.into_iter().filter(|pid| is_running(*pid)) {
            let _ = Command::new("kill").args(["-9", &pid.to_string()]).status();
        }
    }
}

pub(crate) fn execute(mut socket: TcpStream, body: &Value) -> String {
    post(&mut socket, "/execute", body);
    let mut answer = String::new();
    socket.read_to_string(&mut answer).unwrap();
    answer
}

pub(crate) fn post(socket: &mut TcpStream, path: &str, body: &Value) {
    let body = body.to_string();
    let head =
        format!("POST {path} HTTP/1.1\r\nhost: localhost\r\nconnection: close\r\ncontent-type: application/json\r\n");
    write!(socket, "{head}content-length: {}\r\n\r\n{body}", body.len()).unwrap();
}

/// A chat stream that is read step by step.
pub(crate) struct Chat {
    pub(crate) socket: TcpStream,
    pub(crate) seen: String,
}

impl Chat {
    pub(crate) fn begin(manager: &Manager, text: &str, tokens: u64) -> Chat {
        let mut socket = manager.socket();
        let messages = json!([{"role": "user", "content": text}]);
        // Generates exactly this many tokens, even past the end-of-sequence token.
        let body = json!({"model": "chat", "messages": messages, "max_tokens": tokens, "temperature": 0, "stream": true,
            "ignore_eos": true});
        post(&mut socket, "/v1/chat/completions", &body);
        Chat { socket, seen: String::new() }
    }

    /// Reads until `n` events have arrived.
    #[track_caller]
    pub(crate) fn events(&mut self, n: usize) {
        let mut buffer = [0; 4096];
        while self.seen.matches("data: ").count() < n {
            let read = self.socket.read(&mut buffer).unwrap();
            assert!(read > 0, "the stream ended: {}", self.seen);
            self.seen.push_str(&String::from_utf8_lossy(&buffer[..read]));
        }
    }

    pub(crate) fn worker(&self) -> String {
        let line = self.seen.lines().find_map(|l| l.strip_prefix("x-sconce-worker: ")).expect("a worker's name");
        line.trim().to_string()
    }

    /// The rest of the stream, to its end.
    pub(crate) fn rest(mut self) -> String {
        let mut rest = Vec::new();
        let _ = self.socket.read_to_end(&mut rest);
        self.seen + &String::from_utf8_lossy(&rest)
    }
}

pub(crate) fn is_running(pid: u64) -> bool {
    let stat = std::fs::read_to_string(format!("/proc/{pid}/stat")).unwrap_or_default();
    stat.rsplit(')').next().is_some_and(|rest| !rest.trim().is_empty() && !rest.trim().starts_with('Z'))
}
