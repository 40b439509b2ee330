//! A worker under the name that existing managers start, driven by a fake manager that is written
//! from the worker contract alone: callbacks, heartbeats, jobs, shutdown; over http and https.
#![cfg(unix)]

use rustls::{ServerConfig, ServerConnection, StreamOwned};
use sconce_testkit::{materialize_llama, wait_for};
use serde_json::{Value, json};
use std::io::{Read, Write};
use std::net::{TcpListener, TcpStream};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, ExitStatus, Stdio};
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

const KEY: &str = "a-token-of-the-manager";

/// What the manager received: path, head in lower case, body.
type Received = Arc<Mutex<Vec<(String, String, Value)>>>;

/// A manager that accepts every callback and heartbeat.
struct FakeManager {
    url: String,
    received: Received,
}

impl FakeManager {
    fn new(tls: Option<Arc<ServerConfig>>) -> FakeManager {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let scheme = if tls.is_some() { "https" } else { "http" };
        let url = format!("{scheme}://localhost:{}/v2/internal/workers/ready", listener.local_addr().unwrap().port());
        let received = Received::default();
        let all = received.clone();
        std::thread::spawn(move || {
            for socket in listener.incoming() {
                let (socket, all, tls) = (socket.unwrap(), all.clone(), tls.clone());
                std::thread::spawn(move || match tls {
                    None => answer(socket, &all),
                    Some(tls) => answer(StreamOwned::new(ServerConnection::new(tls).unwrap(), socket), &all),
                });
            }
        });
        FakeManager { url, received }
    }

    /// The first request to a path, when it has arrived.
    fn wait_for(&self, path: &str) -> (String, Value) {
        wait_for(path, || {
            let all = self.received.lock().unwrap();
            let found = all.iter().find(|(at, ..)| at == path);
            found.map(|(_, head, body)| (head.clone(), body.clone())).ok_or_else(|| format!("{all:?}"))
        })
    }
}

/// Answers the requests of one connection.
fn answer(mut stream: impl Read + Write, all: &Received) {
    let (mut seen, mut buffer) = (Vec::new(), [0; 4096]);
    loop {
        let Ok(n @ 1..) = stream.read(&mut buffer) else { return };
        seen.extend_from_slice(&buffer[..n]);
        let text = String::from_utf8_lossy(&seen).into_owned();
        let Some((head, body)) = text.split_once("\r\n\r\n") else { continue };
        let Ok(body) = serde_json::from_str(body) else { continue };
        let path = head.split(' ').nth(1).unwrap_or_default().to_string();
        all.lock().unwrap().push((path, head.to_lowercase(), body));
        seen.clear();
        if stream.write_all(b"HTTP/1.1 200 OK\r\ncontent-length: 2\r\n\r\n{}").is_err() {
            return;
        }
    }
}

/// A worker that is killed when it is dropped.
struct Worker {
    child: Child,
    port: u16,
    log: PathBuf,
    _home: tempfile::TempDir,
}

/// A command under a name that existing managers start.
fn named(home: &Path, name: &str) -> Command {
    let link = home.join(name);
    std::os::unix::fs::symlink(env!("CARGO_BIN_EXE_sconce"), &link).unwrap();
    let mut command = Command::new(link);
    command.env_clear().env("PATH", std::env::var_os("PATH").unwrap_or_default()).env("HOME", home);
    command.env("HF_HUB_OFFLINE", "1").env("RUST_LOG", "info");
    command
}

impl Worker {
    fn start(model: &Path, callback_url: &str, environment: &[(&str, &str)]) -> Worker {
        let home = tempfile::tempdir().unwrap();
        let log = home.path().join("worker.log");
        let mut command = named(home.path(), "llorch-cpu-candled");
        command.args(["--worker-id", "w-7", "--port", "0", "--callback-url", callback_url, "--model"]).arg(model);
        command.envs(environment.iter().copied()).stdin(Stdio::null()).stdout(Stdio::null());
        let mut child = command.stderr(std::fs::File::create(&log).unwrap()).spawn().unwrap();
        let port = wait_for("the worker listens", || {
            let text = std::fs::read_to_string(&log).unwrap_or_default();
            assert!(child.try_wait().unwrap().is_none(), "{text}");
            let rest = text.split_once("listening at http://127.0.0.1:").map(|(_, rest)| rest.to_string());
            let line = rest.filter(|rest| rest.contains('\n'));
            let digits = line.map(|rest| rest.chars().take_while(char::is_ascii_digit).collect::<String>());
            digits.and_then(|digits| digits.parse().ok()).ok_or(text)
        });
        Worker { child, port, log, _home: home }
    }

    fn open(&self, method: &str, path: &str, key: &str, body: &str) -> TcpStream {
        let mut socket = TcpStream::connect(("127.0.0.1", self.port)).unwrap();
        socket.set_read_timeout(Some(Duration::from_secs(120))).unwrap();
        write!(
            socket,
            "{method} {path} HTTP/1.1\r\nhost: localhost\r\nconnection: close\r\nauthorization: Bearer {key}\r\n\
             content-type: application/json\r\ncontent-length: {}\r\n\r\n{body}",
            body.len()
        )
        .unwrap();
        socket
    }

    /// The status and the body of a response.
    fn send(&self, method: &str, path: &str, body: &str) -> (u16, String) {
        let mut text = Vec::new();
        self.open(method, path, KEY, body).read_to_end(&mut text).unwrap();
        let text = String::from_utf8_lossy(&text).into_owned();
        let (head, body) = text.split_once("\r\n\r\n").unwrap_or_else(|| panic!("no response: {text:?}"));
        (head.split(' ').nth(1).unwrap().parse().unwrap(), body.to_string())
    }

    fn get(&self, path: &str) -> (u16, Value) {
        let (status, body) = self.send("GET", path, "");
        (status, serde_json::from_str(&body).unwrap_or(Value::String(body)))
    }

    /// Waits for the exit.
    fn ended(&mut self) -> ExitStatus {
        wait_for("the worker exits", || {
            let log = std::fs::read_to_string(&self.log).unwrap_or_default();
            self.child.try_wait().unwrap().ok_or(log)
        })
    }
}

impl Drop for Worker {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// The JSON events of a stream; the last line is `[DONE]`.
fn events(body: &str) -> Vec<Value> {
    let lines: Vec<&str> = body.lines().filter_map(|l| l.strip_prefix("data: ")).collect();
    assert_eq!(lines.last(), Some(&"[DONE]"), "{body}");
    lines[..lines.len() - 1].iter().map(|l| serde_json::from_str(l).unwrap()).collect()
}

fn text(events: &[Value]) -> String {
    events.iter().filter_map(|e| e["t"].as_str()).collect()
}

fn keys(value: &Value) -> Vec<&str> {
    let mut keys: Vec<&str> = value.as_object().unwrap().keys().map(String::as_str).collect();
    keys.sort_unstable();
    keys
}

#[test]
fn worker_fulfils_the_contract_of_existing_managers() {
    let (model, manager) = (materialize_llama(4096), FakeManager::new(None));
    let mut worker = Worker::start(model.path(), &manager.url, &[("LLORCH_API_TOKEN", KEY)]);
    // Its model loads; the manager watches.
    let (status, progress) = worker.send("GET", "/v1/loading/progress", "");
    let stages = events(&progress);
    let last = stages.last().unwrap();
    assert_eq!((status, &last["stage"]), (200, &json!("ready")), "{progress}");
    assert!(last["layers_total"].as_u64() >= Some(1) && last["vram_mb"].is_u64(), "{last}");
    assert_eq!(last["layers_loaded"], last["layers_total"]);
    // The callback.
    let (head, callback) = manager.wait_for("/v2/internal/workers/ready");
    assert!(head.contains(&format!("authorization: bearer {KEY}")), "{head}");
    assert_eq!(keys(&callback), ["capabilities", "model_ref", "uri", "vram_bytes", "worker_id"]);
    assert_eq!((&callback["worker_id"], &callback["capabilities"]), (&json!("w-7"), &json!(["cpu"])));
    assert_eq!(callback["uri"], format!("http://127.0.0.1:{}", worker.port));
    assert_eq!(callback["model_ref"], model.path().to_str().unwrap());
    assert!(callback["vram_bytes"].as_u64() > Some(0));
    let called_at = Instant::now();
    // Health, readiness, capabilities.
    let (status, health) = worker.get("/health");
    assert_eq!((status, &health["status"], &health["resident"]), (200, &json!("healthy"), &json!(true)), "{health}");
    for field in ["model", "quant_kind", "tokenizer_kind", "device", "backend"] {
        assert!(health[field].is_string(), "{field}: {health}");
    }
    for field in ["vram_bytes_used", "vocab_size", "context_length", "uptime_seconds"] {
        assert!(health[field].is_u64(), "{field}: {health}");
    }
    assert_eq!(worker.get("/v1/ready").1, json!({"ready": true, "state": "ready", "model_loaded": true}));
    assert_eq!(worker.get("/v1/capabilities").1["backend"], "cpu");
    // A job, in both forms.
    let job = json!({"job_id": "j-1", "prompt": "the cat sat", "max_tokens": 8, "temperature": 0}).to_string();
    let mut refused = String::new();
    worker.open("POST", "/execute", "wrong", &job).read_to_string(&mut refused).unwrap();
    assert!(refused.starts_with("HTTP/1.1 401") && refused.contains("INVALID_API_KEY"), "{refused}");
    let (status, body) = worker.send("POST", "/execute", &job);
    let all = events(&body);
    assert_eq!((status, &all[0]["type"], &all[0]["job_id"]), (200, &json!("started"), &json!("j-1")), "{body}");
    let end = all.last().unwrap();
    assert_eq!((&end["type"], &end["stop_reason"]), (&json!("end"), &json!("MAX_TOKENS")));
    let (status, body) = worker.send("POST", "/v1/jobs", &job);
    assert_eq!((status, body), (200, json!({"job_id": "j-1", "sse_url": "/v1/jobs/j-1/stream"}).to_string()));
    let (status, body) = worker.send("GET", "/v1/jobs/j-1/stream", "");
    assert_eq!((status, text(&events(&body))), (200, text(&all)));
    assert_eq!(worker.send("GET", "/v1/jobs/j-1/stream", "").0, 404);
    // Cancellations of both forms.
    let long = json!({"job_id": "long", "prompt": "the cat", "max_tokens": 2048, "temperature": 0}).to_string();
    for (method, path, cancel) in
        [("DELETE", "/v1/jobs/long", String::new()), ("POST", "/cancel", json!({"job_id": "long"}).to_string())]
    {
        assert_eq!(worker.send("POST", "/v1/jobs", &long).0, 200);
        let (status, body) = worker.send(method, path, &cancel);
        assert_eq!((status, body.contains("cancelling")), (202, true), "{body}");
        let (_, body) = worker.send("GET", "/v1/jobs/long/stream", "");
        assert_eq!(events(&body).last().unwrap()["stop_reason"], "CANCELLED", "{body}");
    }
    assert!(worker.send("GET", "/metrics", "").1.contains("worker_requests_total{outcome=\"cancelled\"} 2"));
    // Heartbeats, on the path of their own.
    let (head, heartbeat) = manager.wait_for("/v1/worker-heartbeat");
    assert!(called_at.elapsed() > Duration::from_secs(20), "{:?}", called_at.elapsed());
    assert!(head.contains(&format!("authorization: bearer {KEY}")), "{head}");
    assert_eq!(keys(&heartbeat), ["timestamp", "worker"]);
    let fields = ["device", "id", "implementation", "model_id", "port", "status", "version"];
    assert_eq!(keys(&heartbeat["worker"]), fields);
    let about = &heartbeat["worker"];
    assert_eq!((&about["id"], &about["port"], &about["device"]), (&json!("w-7"), &json!(worker.port), &json!("cpu")));
    assert_eq!((&about["status"], &about["implementation"]), (&json!("ready"), &json!("sconce")));
    // The end.
    assert_eq!(worker.send("POST", "/shutdown", "").0, 202);
    assert!(worker.ended().success());
}

/// A certificate authority and a server with a certificate of it for localhost.
#[cfg(target_os = "linux")]
fn certificates() -> (String, Arc<ServerConfig>) {
    use rcgen::{BasicConstraints, CertificateParams, CertifiedIssuer, IsCa, KeyPair};
    use rustls::pki_types::{PrivateKeyDer, PrivatePkcs8KeyDer};
    let mut authority = CertificateParams::new(Vec::<String>::new()).unwrap();
    authority.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
    let authority = CertifiedIssuer::self_signed(authority, KeyPair::generate().unwrap()).unwrap();
    let key = KeyPair::generate().unwrap();
    let server = CertificateParams::new(vec!["localhost".to_string()]).unwrap().signed_by(&key, &authority).unwrap();
    let key = PrivateKeyDer::from(PrivatePkcs8KeyDer::from(key.serialize_der()));
    let builder = ServerConfig::builder_with_provider(Arc::new(rustls::crypto::ring::default_provider()));
    let builder = builder.with_safe_default_protocol_versions().unwrap().with_no_client_auth();
    (authority.pem(), Arc::new(builder.with_single_cert(vec![server.der().clone()], key).unwrap()))
}

/// The system's store of certificates on other systems cannot be replaced for a test.
#[cfg(target_os = "linux")]
#[test]
fn callback_over_https_needs_a_trusted_certificate() {
    let (model, dir) = (materialize_llama(4096), tempfile::tempdir().unwrap());
    let (authority, tls) = certificates();
    let (other, _) = certificates();
    let (trusted, untrusted) = (dir.path().join("trusted.pem"), dir.path().join("untrusted.pem"));
    std::fs::write(&trusted, authority).unwrap();
    std::fs::write(&untrusted, other).unwrap();
    let manager = FakeManager::new(Some(tls));
    let worker = Worker::start(model.path(), &manager.url, &[("SSL_CERT_FILE", untrusted.to_str().unwrap())]);
    let log = wait_for("the callback fails", || {
        let log = std::fs::read_to_string(&worker.log).unwrap_or_default();
        if log.contains("cannot send the callback") { Ok(log) } else { Err(log) }
    });
    assert!(log.contains("invalid peer certificate") && log.contains("SSL_CERT_FILE"), "{log}");
    assert!(manager.received.lock().unwrap().is_empty());
    drop(worker);
    let worker = Worker::start(model.path(), &manager.url, &[("SSL_CERT_FILE", trusted.to_str().unwrap())]);
    let (_, callback) = manager.wait_for("/v2/internal/workers/ready");
    assert_eq!(callback["uri"], format!("http://127.0.0.1:{}", worker.port));
}

#[test]
fn program_under_a_managers_name_has_the_flags_of_the_contract() {
    let home = tempfile::tempdir().unwrap();
    let out = named(home.path(), "llorch-metal-candled").arg("--help").output().unwrap();
    let help = String::from_utf8(out.stdout).unwrap();
    for there in [
        "llorch-metal-candled",
        "--worker-id",
        "--model",
        "--port",
        "--callback-url",
        "--metal-device",
        "[default: 0]",
        "LLORCH_API_TOKEN",
    ] {
        assert!(out.status.success() && help.contains(there), "{there}: {help}");
    }
    assert!(!help.contains("--cuda-device") && !help.contains("embed"), "{help}");
    let out = named(home.path(), "llorch-cuda-candled").args(["--port", "1"]).output().unwrap();
    let error = String::from_utf8(out.stderr).unwrap();
    assert!(
        out.status.code() == Some(2) && error.contains("--worker-id") && error.contains("--callback-url"),
        "{error}"
    );
    // A key that is set but empty must not open the worker to everybody.
    let mut empty = named(home.path(), "llorch-cpu-candled");
    empty.args(["--worker-id", "w", "--model", "m", "--port", "0", "--callback-url", "http://localhost:9999"]);
    let out = empty.env("LLORCH_API_TOKEN", " ").output().unwrap();
    let error = String::from_utf8(out.stderr).unwrap();
    assert!(out.status.code() == Some(1) && error.contains("LLORCH_API_TOKEN is empty"), "{error}");
}
