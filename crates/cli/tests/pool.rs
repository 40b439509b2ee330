//! The pool as people run it: the real command, real workers with a tiny model, real signals.
#![cfg(unix)]

use sconce_testkit::materialize;
use serde_json::{Value, json};
use std::io::{Read, Write};
use std::net::{TcpListener, TcpStream};
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

/// A Llama without what makes it an embedder.
fn model() -> tempfile::TempDir {
    let dir = materialize("task-embed-llama");
    for name in ["modules.json", "config_sentence_transformers.json", "sentence_bert_config.json"] {
        std::fs::remove_file(dir.path().join(name)).unwrap();
    }
    dir
}

struct Manager {
    child: Child,
    home: tempfile::TempDir,
    port: u16,
}

fn command(home: &Path, args: &[&str]) -> Command {
    let mut command = Command::new(env!("CARGO_BIN_EXE_sconce"));
    command.args(args).env_clear().env("PATH", std::env::var_os("PATH").unwrap_or_default()).env("HOME", home);
    command.env("HF_HUB_OFFLINE", "1");
    command
}

fn serve(home: &Path, port: u16) -> Child {
    let (toml, port) = (home.join("pool.toml"), port.to_string());
    let log = std::fs::OpenOptions::new().create(true).append(true).open(home.join("manager.log")).unwrap();
    let mut command = command(home, &["pool", "serve", "--config", toml.to_str().unwrap(), "--port", &port]);
    command.stdin(Stdio::null()).stdout(Stdio::null()).stderr(log).spawn().unwrap()
}

impl Manager {
    fn new(model: &Path) -> Manager {
        let home = tempfile::tempdir().unwrap();
        let toml = format!("[[model]]\nmodel = '{}'\nname = 'chat'\ndevice = 'cpu'\nreplicas = 2\n", model.display());
        std::fs::write(home.path().join("pool.toml"), toml).unwrap();
        let port = TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap().port();
        Manager { child: serve(home.path(), port), home, port }
    }

    fn sconce(&self, args: &[&str]) -> (bool, String, String) {
        let url = format!("http://127.0.0.1:{}", self.port);
        let out = command(self.home.path(), &[&["pool"], args, &["--url", &url]].concat()).output().unwrap();
        (out.status.success(), String::from_utf8(out.stdout).unwrap(), String::from_utf8(out.stderr).unwrap())
    }

    fn workers(&self) -> Vec<Value> {
        let (well, out, _) = self.sconce(&["status", "--json"]);
        let state: Value = if well { serde_json::from_str(&out).unwrap() } else { json!({"workers": []}) };
        state["workers"].as_array().unwrap().clone()
    }

    #[track_caller]
    fn ready(&self, n: usize) -> Vec<Value> {
        let until = Instant::now() + Duration::from_secs(90);
        loop {
            let all = self.workers();
            if all.iter().filter(|w| w["state"] == "ready").count() >= n {
                return all;
            }
            let log = || std::fs::read_to_string(self.home.path().join("manager.log")).unwrap_or_default();
            assert!(Instant::now() < until, "{all:?}\n{}", log());
            std::thread::sleep(Duration::from_millis(100));
        }
    }

    fn execute(&self, body: &Value) -> String {
        execute(TcpStream::connect(("127.0.0.1", self.port)).unwrap(), body)
    }

    fn signal(&self, pid: u64, signal: &str) {
        assert!(Command::new("kill").args([signal, &pid.to_string()]).status().unwrap().success());
    }
}

impl Drop for Manager {
    fn drop(&mut self) {
        // Whatever a failed test leaves is ended by its number.
        let pids: Vec<u64> = self.workers().iter().filter_map(|w| w["pid"].as_u64()).collect();
        let _ = self.child.kill();
        let _ = self.child.wait();
        for pid in pids.into_iter().filter(|pid| lives(*pid)) {
            let _ = Command::new("kill").args(["-9", &pid.to_string()]).status();
        }
    }
}

fn execute(mut socket: TcpStream, body: &Value) -> String {
    let body = body.to_string();
    let head = "POST /execute HTTP/1.1\r\nhost: x\r\nconnection: close\r\ncontent-type: application/json\r\n";
    write!(socket, "{head}content-length: {}\r\n\r\n{body}", body.len()).unwrap();
    let mut answer = String::new();
    socket.read_to_string(&mut answer).unwrap();
    answer
}

fn lives(pid: u64) -> bool {
    let stat = std::fs::read_to_string(format!("/proc/{pid}/stat")).unwrap_or_default();
    stat.rsplit(')').next().is_some_and(|rest| !rest.trim().is_empty() && !rest.trim().starts_with('Z'))
}

#[test]
fn real_workers_serve_outlive_their_manager_and_end_with_the_next() {
    let model = model();
    let mut manager = Manager::new(model.path());
    let before = manager.ready(2);
    assert!(
        before.iter().all(|w| w["model"] == "chat" && w["task"] == "generate" && w["vram_bytes"].as_u64() > Some(0))
    );
    let job = json!({"model": "chat", "job_id": "j", "prompt": "the cat sat", "max_tokens": 8, "temperature": 0});
    let answer = manager.execute(&job);
    assert!(
        answer.contains("\"type\":\"started\"") && answer.contains("MAX_TOKENS") && answer.contains("[DONE]"),
        "{answer}"
    );
    let pids = |all: &[Value]| all.iter().map(|w| w["pid"].as_u64().unwrap()).collect::<Vec<u64>>();
    // The manager is killed; its workers do not notice, and the next one has them.
    manager.child.kill().unwrap();
    manager.child.wait().unwrap();
    assert!(pids(&before).into_iter().all(lives));
    manager.child = serve(manager.home.path(), manager.port);
    let after = manager.ready(2);
    assert_eq!(pids(&after), pids(&before));
    assert!(manager.execute(&job).contains("MAX_TOKENS"));
    // One is killed, and comes back.
    manager.signal(pids(&after)[0], "-9");
    let until = Instant::now() + Duration::from_secs(60);
    while manager.workers().first().is_none_or(|w| w["state"] != "ready" || w["pid"] == after[0]["pid"]) {
        assert!(Instant::now() < until, "{:?}", manager.workers());
        std::thread::sleep(Duration::from_millis(100));
    }
    // A table for people; a third worker by hand, stopped by hand; what cannot be is said so.
    let (well, table, _) = manager.sconce(&["status"]);
    assert!(well && table.contains("chat-") && table.contains("ready") && table.contains("cpu"), "{table}");
    let (well, out, err) =
        manager.sconce(&["start", model.path().to_str().unwrap(), "--device", "cpu", "--name", "more"]);
    assert!(well && out.contains("is ready on cpu"), "{out}{err}");
    let third = out.split(' ').next().unwrap().to_string();
    let (well, out, err) = manager.sconce(&["stop", &third]);
    assert!(well && out.contains("draining"), "{out}{err}");
    let (well, _, err) = manager.sconce(&["start", "/no/such/model"]);
    assert!(!well && err.contains("MODEL_NOT_FOUND"), "{err}");
    let (well, _, err) = manager.sconce(&["start", model.path().to_str().unwrap(), "--device", "cuda:7"]);
    assert!(!well && err.contains("GPU_UNAVAILABLE"), "{err}");
    // Told to end, it ends its workers first.
    let last = pids(&manager.ready(2));
    manager.signal(u64::from(manager.child.id()), "-TERM");
    assert!(manager.child.wait().unwrap().success());
    assert!(!last.into_iter().any(lives));
}

#[test]
fn a_worker_whose_port_is_taken_says_so_by_its_exit_code() {
    let (model, home) = (model(), tempfile::tempdir().unwrap());
    let taken = TcpListener::bind("127.0.0.1:0").unwrap();
    let port = taken.local_addr().unwrap().port().to_string();
    let path = model.path().to_str().unwrap();
    let args =
        ["worker", "--worker-id", "w", "--model", path, "--port", &port, "--callback-url", "http://localhost:9999/"];
    let out = command(home.path(), &args).output().unwrap();
    assert_eq!(out.status.code(), Some(98), "{}", String::from_utf8_lossy(&out.stderr));
    let args = ["worker", "--worker-id", "w", "--model", path, "--port", "0", "--callback-url", "https://elsewhere/"];
    let out = command(home.path(), &args).output().unwrap();
    assert!(!out.status.success() && String::from_utf8_lossy(&out.stderr).contains("http://"));
}

#[test]
fn a_full_disk_under_its_log_is_nothing_to_a_worker() {
    let (model, home) = (model(), tempfile::tempdir().unwrap());
    let port = TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap().port();
    let (path, text) = (model.path().to_str().unwrap(), port.to_string());
    let args = [
        "worker",
        "--worker-id",
        "w",
        "--model",
        path,
        "-d",
        "cpu",
        "--port",
        &text,
        "--callback-url",
        "http://localhost:9999/",
    ];
    let full = std::fs::OpenOptions::new().write(true).open("/dev/full").unwrap();
    let mut child = command(home.path(), &args).stdin(Stdio::null()).stderr(full).spawn().unwrap();
    let until = Instant::now() + Duration::from_secs(60);
    let job = json!({"job_id": "j", "prompt": "the cat", "max_tokens": 4});
    let answer = loop {
        let said = TcpStream::connect(("127.0.0.1", port)).map(|socket| execute(socket, &job)).unwrap_or_default();
        if said.contains("[DONE]") {
            break said;
        }
        assert!(Instant::now() < until && child.try_wait().unwrap().is_none(), "{said}");
        std::thread::sleep(Duration::from_millis(50));
    };
    assert!(answer.contains("MAX_TOKENS"), "{answer}");
    child.kill().unwrap();
    child.wait().unwrap();
}
