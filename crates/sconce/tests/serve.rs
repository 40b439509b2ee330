//! `sconce serve` as people run it: the real command, real signals.
#![cfg(unix)]

use sconce_testkit::{materialize_llama, wait_for_within, wait_until};
use serde_json::json;
use std::io::{BufRead, BufReader, Read, Write};
use std::net::{TcpListener, TcpStream};
use std::process::{Child, Command, ExitStatus, Stdio};
use std::time::Duration;
use tempfile::TempDir;

fn command(home: &TempDir, args: &[&str]) -> Command {
    let mut command = Command::new(env!("CARGO_BIN_EXE_sconce"));
    command.args(args).env_clear().env("PATH", std::env::var_os("PATH").unwrap_or_default()).env("HOME", home.path());
    command.env("HF_HUB_OFFLINE", "1").stdin(Stdio::null());
    command
}

struct Server {
    child: Child,
    address: String,
    _home: TempDir,
    _model: TempDir,
}

impl Server {
    fn start() -> Server {
        let (home, model) = (tempfile::tempdir().unwrap(), materialize_llama(8192));
        let named = format!("m={}", model.path().display());
        let mut command = command(&home, &["serve", "-m", &named, "--port", "0"]);
        let mut child = command.stderr(Stdio::piped()).spawn().unwrap();
        let mut log = BufReader::new(child.stderr.take().unwrap());
        let mut line = String::new();
        let address = loop {
            line.clear();
            assert!(log.read_line(&mut line).unwrap() > 0, "the server exited before it listened");
            if let Some((_, rest)) = line.split_once("http://") {
                break rest.trim().to_owned();
            }
        };
        std::thread::spawn(move || std::io::copy(&mut log, &mut std::io::sink()));
        let server = Server { child, address, _home: home, _model: model };
        wait_until("the server is healthy", || server.send("GET", "/health", "").starts_with("HTTP/1.1 200"));
        server
    }

    fn open(&self, method: &str, path: &str, body: &str) -> TcpStream {
        let mut stream = TcpStream::connect(&self.address).unwrap();
        stream.set_read_timeout(Some(Duration::from_secs(60))).unwrap();
        let head = "host: localhost\r\nconnection: close\r\ncontent-type: application/json";
        write!(stream, "{method} {path} HTTP/1.1\r\n{head}\r\ncontent-length: {}\r\n\r\n{body}", body.len()).unwrap();
        stream
    }

    fn send(&self, method: &str, path: &str, body: &str) -> String {
        let mut answer = String::new();
        self.open(method, path, body).read_to_string(&mut answer).unwrap();
        answer
    }

    /// A stream of this many tokens, some of which have arrived.
    fn stream(&self, tokens: usize) -> TcpStream {
        let body = json!({"prompt": "the cat", "max_tokens": tokens, "ignore_eos": true, "stream": true});
        let mut stream = self.open("POST", "/v1/completions", &body.to_string());
        let mut some = [0; 2048];
        let mut read = 0;
        while read < some.len() {
            let n = stream.read(&mut some[read..]).unwrap();
            assert!(n > 0, "{}", String::from_utf8_lossy(&some[..read]));
            read += n;
        }
        stream
    }

    fn signal(&self) {
        let status = Command::new("kill").args(["-TERM", &self.child.id().to_string()]).status().unwrap();
        assert!(status.success());
    }

    fn wait_for_exit(&mut self, within: Duration) -> ExitStatus {
        wait_for_within(within, "the server exits", || self.child.try_wait().unwrap().ok_or(""))
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

#[test]
fn first_sigterm_finishes_running_streams_and_second_exits_at_once() {
    let mut server = Server::start();
    let mut running = server.stream(600);
    server.signal();
    let mut rest = String::new();
    running.read_to_string(&mut rest).unwrap();
    assert!(
        rest.trim_end().ends_with("0") && rest.contains("data: [DONE]"),
        "{}",
        &rest[rest.len().saturating_sub(200)..]
    );
    assert!(server.wait_for_exit(Duration::from_secs(20)).success());

    let mut server = Server::start();
    let running = server.stream(8_000);
    server.signal();
    wait_until("no connection is accepted", || TcpStream::connect(&server.address).is_err());
    assert!(server.child.try_wait().unwrap().is_none(), "the server waits for the stream");
    server.signal();
    server.wait_for_exit(Duration::from_secs(5));
    drop(running);
}

#[test]
fn taken_port_is_an_error() {
    let taken = TcpListener::bind("127.0.0.1:0").unwrap();
    let port = taken.local_addr().unwrap().port().to_string();
    let (home, model) = (tempfile::tempdir().unwrap(), materialize_llama(8192));
    let output = command(&home, &["serve", "-m", model.path().to_str().unwrap(), "--port", &port]).output().unwrap();
    let stderr = String::from_utf8_lossy(&output.stderr);
    assert!(!output.status.success() && stderr.contains(&format!("cannot listen at 127.0.0.1:{port}")), "{stderr}");
}

/// A field with a hundred thousand nested levels gets an error response and does not crash the
/// server, whatever the field.
#[test]
fn deeply_nested_requests_get_4xx() {
    let mut server = Server::start();
    let deep = [format!("{}{}", "[".repeat(100_000), "]".repeat(100_000)), {
        let (open, close) = ("{\"a\":".repeat(50_000), "}".repeat(50_000));
        format!("{open}1{close}")
    }];
    let chat =
        |more: &str| format!("{{\"messages\":[{{\"role\":\"user\",\"content\":\"a\"}}],\"max_tokens\":1,{more}}}");
    for deep in &deep {
        let function = format!("{{\"type\":\"function\",\"function\":{{\"name\":\"f\",\"parameters\":{deep}}}}}");
        let schema = format!("{{\"type\":\"json_schema\",\"json_schema\":{{\"name\":\"x\",\"schema\":{deep}}}}}");
        for (path, body) in [
            ("/v1/chat/completions", format!("{{\"messages\":{deep}}}")),
            ("/v1/chat/completions", format!("{{\"messages\":[{{\"role\":\"user\",\"content\":{deep}}}]}}")),
            ("/v1/chat/completions", chat(&format!("\"tools\":[{function}]"))),
            ("/v1/chat/completions", chat(&format!("\"response_format\":{schema}"))),
            ("/v1/chat/completions", chat(&format!("\"chat_template_kwargs\":{{\"x\":{deep}}}"))),
            ("/v1/completions", format!("{{\"prompt\":{deep}}}")),
            ("/v1/completions", format!("{{\"prompt\":\"a\",\"structured_outputs\":{{\"json\":{deep}}}}}")),
            ("/v1/embeddings", format!("{{\"input\":{deep}}}")),
            ("/v2/rerank", format!("{{\"query\":\"a\",\"documents\":{deep}}}")),
            ("/tokenize", format!("{{\"inputs\":{deep}}}")),
            ("/", format!("{{\"inputs\":{deep}}}")),
        ] {
            let answer = server.send("POST", path, &body);
            assert!(answer.starts_with("HTTP/1.1 4"), "{path}: {}", &answer[..answer.len().min(300)]);
        }
    }
    assert!(server.child.try_wait().unwrap().is_none(), "the server exited");
    assert!(server.send("GET", "/health", "").starts_with("HTTP/1.1 200"));
}

/// A client that sends many large requests and reads nothing: its responses must not pile up in
/// memory.
#[test]
fn unread_responses_do_not_accumulate_in_memory() {
    let server = Server::start();
    let body = json!({"prompt": "the cat", "max_tokens": 8_000, "n": 16, "logprobs": 20, "ignore_eos": true,
        "stream": true});
    let unread: Vec<TcpStream> = (0..2).map(|_| server.open("POST", "/v1/completions", &body.to_string())).collect();
    let metric = |name: &str| {
        let text = server.send("GET", "/metrics", "");
        let of = |line: &&str| line.starts_with(name);
        text.lines().filter(of).filter_map(|line| line.rsplit(' ').next()?.parse::<f64>().ok()).sum::<f64>()
    };
    wait_until("both requests end although the client does not read", || metric("te_request_failure") >= 2.0);
    let status = std::fs::read_to_string(format!("/proc/{}/status", server.child.id())).unwrap_or_default();
    let peak = status.lines().find_map(|l| l.strip_prefix("VmHWM:")?.split_whitespace().next()?.parse::<u64>().ok());
    assert!(peak.is_none_or(|kib| kib < 700 << 10), "{peak:?} KiB");
    drop(unread);
}
