//! The pool as people run it: the real command, real workers with a tiny model, real signals.
#![cfg(unix)]

use sconce_testkit::{materialize, wait_for, wait_until};
use serde_json::{Value, json};
use std::io::{Read, Write};
use std::net::{TcpListener, TcpStream};
use std::path::Path;
use std::process::{Child, Command, ExitStatus, Stdio};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::time::{Duration, Instant};

/// A Llama without the files that make it an embedder.
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
    models: Models,
}

fn command(home: &Path, args: &[&str]) -> Command {
    let mut command = Command::new(env!("CARGO_BIN_EXE_sconce"));
    command.args(args).env_clear().env("PATH", std::env::var_os("PATH").unwrap_or_default()).env("HOME", home);
    command.env("HF_HUB_OFFLINE", "1");
    command
}

/// Where models come from.
#[derive(Clone, Copy)]
enum Models {
    /// A directory of the test, isolated from this machine's settings.
    Own,
    /// By a short name, from the user's cache or its usual source.
    Known,
}

/// Starts a manager and returns its port. Port 0 takes any free one; a former port is waited for.
fn serve(home: &Path, port: u16, models: Models) -> (Child, u16) {
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
    fn new(model: &Path) -> Manager {
        Manager::with(&format!("model = '{}'\nreplicas = 2\n", model.display()), Models::Own)
    }

    /// A manager whose file declares one model, `chat`.
    fn with(model: &str, models: Models) -> Manager {
        let home = tempfile::tempdir().unwrap();
        std::fs::write(home.path().join("pool.toml"), format!("[[model]]\nname = 'chat'\ndevice = 'cpu'\n{model}"))
            .unwrap();
        let (child, port) = serve(home.path(), 0, models);
        Manager { child, home, port, models }
    }

    /// Kills the manager and starts another in its place.
    fn replace(&mut self) {
        self.child.kill().unwrap();
        self.child.wait().unwrap();
        (self.child, self.port) = serve(self.home.path(), self.port, self.models);
    }

    /// Sends SIGTERM and waits for the exit.
    fn end(&mut self) -> ExitStatus {
        self.signal(u64::from(self.child.id()), "-TERM");
        wait_for("the manager exits", || self.child.try_wait().unwrap().ok_or(""))
    }

    /// Waits until a condition holds for a worker.
    #[track_caller]
    fn wait_for_worker(&self, id: &str, condition: impl Fn(&Value) -> bool) -> Value {
        wait_for("the state of a worker", || {
            let all = self.workers();
            all.iter().find(|w| w["id"] == id).filter(|w| condition(w)).cloned().ok_or_else(|| format!("{all:?}"))
        })
    }

    fn socket(&self) -> TcpStream {
        let socket = TcpStream::connect(("127.0.0.1", self.port)).unwrap();
        socket.set_read_timeout(Some(Duration::from_secs(120))).unwrap();
        socket
    }

    fn sconce(&self, args: &[&str]) -> (bool, String, String) {
        let url = format!("http://127.0.0.1:{}", self.port);
        let out = command(self.home.path(), &[&["pool"], args, &["--url", &url]].concat()).output().unwrap();
        (out.status.success(), String::from_utf8(out.stdout).unwrap(), String::from_utf8(out.stderr).unwrap())
    }

    fn workers(&self) -> Vec<Value> {
        let (ok, out, _) = self.sconce(&["status", "--json"]);
        let state: Value = if ok { serde_json::from_str(&out).unwrap() } else { json!({"workers": []}) };
        state["workers"].as_array().unwrap().clone()
    }

    #[track_caller]
    fn wait_for_ready(&self, n: usize) -> Vec<Value> {
        wait_for("workers are ready", || {
            let all = self.workers();
            if all.iter().filter(|w| w["state"] == "ready").count() >= n {
                return Ok(all);
            }
            let log = std::fs::read_to_string(self.home.path().join("manager.log")).unwrap_or_default();
            Err(format!("{all:?}\n{log}"))
        })
    }

    fn execute(&self, body: &Value) -> String {
        execute(self.socket(), body)
    }

    fn signal(&self, pid: u64, signal: &str) {
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

fn execute(mut socket: TcpStream, body: &Value) -> String {
    post(&mut socket, "/execute", body);
    let mut answer = String::new();
    socket.read_to_string(&mut answer).unwrap();
    answer
}

fn post(socket: &mut TcpStream, path: &str, body: &Value) {
    let body = body.to_string();
    let head =
        format!("POST {path} HTTP/1.1\r\nhost: localhost\r\nconnection: close\r\ncontent-type: application/json\r\n");
    write!(socket, "{head}content-length: {}\r\n\r\n{body}", body.len()).unwrap();
}

/// A chat stream that is read step by step.
struct Chat {
    socket: TcpStream,
    seen: String,
}

impl Chat {
    fn begin(manager: &Manager, text: &str, tokens: u64) -> Chat {
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
    fn events(&mut self, n: usize) {
        let mut buffer = [0; 4096];
        while self.seen.matches("data: ").count() < n {
            let read = self.socket.read(&mut buffer).unwrap();
            assert!(read > 0, "the stream ended: {}", self.seen);
            self.seen.push_str(&String::from_utf8_lossy(&buffer[..read]));
        }
    }

    fn worker(&self) -> String {
        let line = self.seen.lines().find_map(|l| l.strip_prefix("x-sconce-worker: ")).expect("a worker's name");
        line.trim().to_string()
    }

    /// The rest of the stream, to its end.
    fn rest(mut self) -> String {
        let mut rest = Vec::new();
        let _ = self.socket.read_to_end(&mut rest);
        self.seen + &String::from_utf8_lossy(&rest)
    }
}

fn is_running(pid: u64) -> bool {
    let stat = std::fs::read_to_string(format!("/proc/{pid}/stat")).unwrap_or_default();
    stat.rsplit(')').next().is_some_and(|rest| !rest.trim().is_empty() && !rest.trim().starts_with('Z'))
}

#[test]
fn workers_outlive_a_killed_manager_and_stop_with_the_next() {
    let model = model();
    let mut manager = Manager::new(model.path());
    let before = manager.wait_for_ready(2);
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
    // The manager is killed; its workers keep running, and the next manager adopts them.
    manager.replace();
    assert!(pids(&before).into_iter().all(is_running));
    let after = manager.wait_for_ready(2);
    assert_eq!(pids(&after), pids(&before));
    assert!(manager.execute(&job).contains("MAX_TOKENS"));
    // A worker is killed, and restarted.
    manager.signal(pids(&after)[0], "-9");
    wait_for("a new process is ready", || {
        let all = manager.workers();
        let is_restarted = all.first().is_some_and(|w| w["state"] == "ready" && w["pid"] != after[0]["pid"]);
        if is_restarted { Ok(()) } else { Err(format!("{all:?}")) }
    });
    // The status table; a third worker started and stopped by hand; errors for impossible requests.
    let (ok, table, _) = manager.sconce(&["status"]);
    assert!(ok && table.contains("chat-") && table.contains("ready") && table.contains("cpu"), "{table}");
    let (ok, out, err) =
        manager.sconce(&["start", model.path().to_str().unwrap(), "--device", "cpu", "--name", "more"]);
    assert!(ok && out.contains("is ready on cpu"), "{out}{err}");
    let third = out.split(' ').next().unwrap().to_string();
    let (ok, out, err) = manager.sconce(&["stop", &third]);
    assert!(ok && out.contains("draining"), "{out}{err}");
    let (ok, _, err) = manager.sconce(&["start", "/no/such/model"]);
    assert!(!ok && err.contains("MODEL_NOT_FOUND"), "{err}");
    let (ok, _, err) = manager.sconce(&["start", model.path().to_str().unwrap(), "--device", "cuda:7"]);
    assert!(!ok && err.contains("GPU_UNAVAILABLE"), "{err}");
    // On SIGTERM the manager stops its workers first.
    let last = pids(&manager.wait_for_ready(2));
    assert!(manager.end().success());
    assert!(!last.into_iter().any(is_running));
}

/// Two workers of SmolLM2: slow enough for something to happen in the middle of an answer.
fn smollm() -> Manager {
    Manager::with("model = 'smollm'\nreplicas = 2\nflags = { context = 512 }\n", Models::Known)
}

#[test]
fn killed_worker_ends_its_stream_with_an_error_and_restarts() {
    let manager = smollm();
    manager.wait_for_ready(2);
    let (mut first, mut second) =
        (Chat::begin(&manager, "Count to a thousand.", 300), Chat::begin(&manager, "Tell me a tale.", 60));
    first.events(4);
    second.events(4);
    let (victim, other) = (first.worker(), second.worker());
    assert_ne!(victim, other, "the second stream goes to the idle worker");
    let before = manager.wait_for_worker(&victim, |_| true);
    manager.signal(before["pid"].as_u64().unwrap(), "-9");
    // All events are complete, and the last one is the error.
    let text = first.rest();
    let events: Vec<&str> = text.lines().filter_map(|l| l.strip_prefix("data: ")).collect();
    let last: Value = serde_json::from_str(events.last().unwrap()).unwrap_or_else(|e| panic!("{e}: {text}"));
    assert!(last["error"]["message"].as_str().is_some_and(|m| m.contains(&victim)), "{last}");
    assert!(events.iter().all(|e| serde_json::from_str::<Value>(e).is_ok()), "an event is incomplete: {text}");
    // The other stream runs to its end.
    let text = second.rest();
    assert!(text.contains("\"finish_reason\":\"") && text.contains("data: [DONE]"), "{text}");
    let after = manager.wait_for_worker(&victim, |w| w["state"] == "ready" && w["pid"] != before["pid"]);
    assert_eq!(after["restarts"], 1);
    assert_eq!(manager.wait_for_worker(&other, |_| true)["restarts"], 0);
}

#[test]
fn frozen_worker_is_replaced_and_its_requests_are_retried() {
    let manager = smollm();
    let all = manager.wait_for_ready(2);
    let frozen = all[0].clone();
    manager.signal(frozen["pid"].as_u64().unwrap(), "-STOP");
    // Some requests go to the stopped worker. It has sent nothing of their answers, so the other
    // worker gets them once it fails its probes.
    let chats: Vec<_> = (0..4).map(|n| Chat::begin(&manager, &format!("Number {n}."), 4)).collect();
    for chat in chats {
        let text = chat.rest();
        assert!(text.starts_with("HTTP/1.1 200") && text.contains("data: [DONE]"), "{text}");
    }
    let id = frozen["id"].as_str().unwrap();
    let after = manager.wait_for_worker(id, |w| w["state"] == "ready" && w["pid"] != frozen["pid"]);
    assert!(after["why"].as_str().unwrap().contains("probes"), "{after}");
    assert!(!is_running(frozen["pid"].as_u64().unwrap()));
}

#[test]
fn manager_restart_under_load_fails_requests_only_while_down() {
    let model = model();
    let mut manager = Manager::new(model.path());
    let before = manager.wait_for_ready(2);
    let (port, over) = (manager.port, Arc::new(AtomicBool::new(false)));
    // Number of requests of each client.
    let request_counts: [Arc<AtomicUsize>; 4] = Default::default();
    let load: Vec<_> = (0..4)
        .map(|n| {
            let (over, request_counts) = (over.clone(), request_counts[n].clone());
            std::thread::spawn(move || {
                let mut all = Vec::new();
                while !over.load(Ordering::Relaxed) {
                    let job = json!({"model": "chat", "job_id": format!("j-{n}-{}", all.len()), "prompt": "the cat sat",
                        "max_tokens": 4, "temperature": 0});
                    let began = Instant::now();
                    let answer = TcpStream::connect(("127.0.0.1", port)).ok().map(|mut socket| {
                        let mut text = Vec::new();
                        post(&mut socket, "/execute", &job);
                        let _ = socket.read_to_end(&mut text);
                        String::from_utf8_lossy(&text).into_owned()
                    });
                    let ok = answer.as_ref().is_some_and(|text| text.contains("\"type\":\"end\""));
                    all.push((began, Instant::now(), ok, answer));
                    request_counts.fetch_add(1, Ordering::Relaxed);
                    std::thread::sleep(Duration::from_millis(10));
                }
                all
            })
        })
        .collect();
    // Waits until each client has made `more` further requests.
    let wait_for_requests = |more: usize| {
        let before: Vec<usize> = request_counts.iter().map(|n| n.load(Ordering::Relaxed)).collect();
        let has_more = |(n, before): (&Arc<AtomicUsize>, &usize)| n.load(Ordering::Relaxed) >= before + more;
        wait_until("each client has made more requests", || request_counts.iter().zip(&before).all(has_more));
    };
    wait_for_requests(2);
    let killed_at = Instant::now();
    manager.replace();
    let after = manager.wait_for_ready(2);
    let ready_at = Instant::now();
    let pids = |all: &[Value]| all.iter().map(|w| w["pid"].as_u64().unwrap()).collect::<Vec<u64>>();
    assert_eq!(pids(&after), pids(&before), "the same processes");
    wait_for_requests(2);
    over.store(true, Ordering::Relaxed);
    for thread in load {
        let all = thread.join().unwrap();
        let wrong: Vec<_> =
            all.iter().filter(|(began, ended, ok, _)| !ok && (*ended < killed_at || *began > ready_at)).collect();
        assert!(wrong.is_empty(), "requests failed while a manager ran: {wrong:?}");
        assert!(all.iter().any(|(began, ..)| *began > ready_at) && all.iter().any(|(_, ended, ..)| *ended < killed_at));
    }
}

#[test]
fn worker_with_a_taken_port_exits_with_code_98() {
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
fn worker_keeps_serving_when_its_log_disk_is_full() {
    let (model, home) = (model(), tempfile::tempdir().unwrap());
    let path = model.path().to_str().unwrap();
    let start = || {
        let port = TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap().port();
        let text = port.to_string();
        let args = ["worker", "--worker-id", "w", "--model", path, "-d", "cpu", "--port", &text];
        let full = std::fs::OpenOptions::new().write(true).open("/dev/full").unwrap();
        let mut command = command(home.path(), &[&args[..], &["--callback-url", "http://localhost:9999/"]].concat());
        (command.stdin(Stdio::null()).stderr(full).spawn().unwrap(), port)
    };
    let (mut child, mut port) = start();
    let job = json!({"job_id": "j", "prompt": "the cat", "max_tokens": 4});
    let answer = wait_for("the worker answers", || {
        // Another program may have taken the port first.
        if child.try_wait().unwrap().is_some_and(|status| status.code() == Some(98)) {
            (child, port) = start();
        }
        let reply = TcpStream::connect(("127.0.0.1", port)).map(|socket| execute(socket, &job)).unwrap_or_default();
        if reply.contains("[DONE]") {
            return Ok(reply);
        }
        assert!(child.try_wait().unwrap().is_none_or(|s| s.code() == Some(98)), "{reply}");
        Err(reply)
    });
    assert!(answer.contains("MAX_TOKENS"), "{answer}");
    child.kill().unwrap();
    child.wait().unwrap();
}
