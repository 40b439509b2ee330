//! ONNX models on the command line. The numbers are compared in `crates/onnx/tests`.

#[allow(dead_code, reason = "other tests use the rest")]
mod common;

use common::{out, parse};
use sconce_testkit::{materialize, materialize_onnx, onnxruntime, wait_for};
use serde_json::{Value, json};
use std::io::{Read, Write};
use std::net::{TcpListener, TcpStream};
use std::path::Path;
use std::process::{Child, Command, Output, Stdio};
use tempfile::TempDir;

/// The command with this library of ONNX Runtime.
fn command(home: &TempDir, library: &Path, args: &[&str]) -> Command {
    let mut command = Command::new(env!("CARGO_BIN_EXE_sconce"));
    command.args(args).env_clear().env("PATH", std::env::var_os("PATH").unwrap_or_default());
    command.env("HOME", home.path()).env("ORT_DYLIB_PATH", library);
    command
}

/// Runs the command with this library of ONNX Runtime.
fn with_library(library: &Path, args: &[&str]) -> Output {
    let home = tempfile::tempdir().expect("a folder");
    command(&home, library, args).output().expect("the command")
}

/// A running server or worker.
struct Server {
    child: Child,
    port: u16,
    _home: TempDir,
}

impl Server {
    fn start(args: &[&str]) -> Server {
        let home = tempfile::tempdir().expect("a folder");
        let port = TcpListener::bind("127.0.0.1:0").and_then(|l| l.local_addr()).expect("a port").port();
        let text = port.to_string();
        let mut command = command(&home, &onnxruntime(), &[args, &["--port", &text]].concat());
        let child = command.stdin(Stdio::null()).stderr(Stdio::null()).spawn().expect("the command");
        Server { child, port, _home: home }
    }

    fn try_send(&self, method: &str, path: &str, body: &Value) -> std::io::Result<String> {
        let mut stream = TcpStream::connect(("127.0.0.1", self.port))?;
        let body = if body.is_null() { String::new() } else { body.to_string() };
        let head = "host: localhost\r\nconnection: close\r\ncontent-type: application/json";
        write!(stream, "{method} {path} HTTP/1.1\r\n{head}\r\ncontent-length: {}\r\n\r\n{body}", body.len())?;
        let mut answer = String::new();
        stream.read_to_string(&mut answer)?;
        Ok(answer)
    }

    /// Waits until the model is loaded and answers.
    fn wait_for_answer(&mut self, path: &str, body: &Value) {
        wait_for("the model answers", || {
            assert!(self.child.try_wait().expect("a child").is_none(), "the server exited");
            match self.try_send("POST", path, body) {
                Ok(answer) if answer.starts_with("HTTP/1.1 200") => Ok(()),
                other => Err(format!("{other:?}")),
            }
        });
    }

    /// The body of an answer.
    fn send(&self, method: &str, path: &str, body: &Value) -> String {
        let answer = self.try_send(method, path, body).expect("an answer");
        assert!(answer.starts_with("HTTP/1.1 200"), "{answer}");
        answer.split_once("\r\n\r\n").expect("a body").1.into()
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

#[test]
fn servers_and_workers_report_the_engine_and_its_nodes() {
    // The folder has weights too, so that only the flags choose the graph.
    let dir = materialize_onnx("task-classify");
    let weights = materialize("task-classify");
    std::fs::copy(weights.path().join("model.safetensors"), dir.path().join("model.safetensors")).expect("a copy");
    let model = dir.path().to_str().expect("UTF-8");
    let onnx = ["-m", model, "-d", "cpu", "--engine", "onnx", "--onnx-file", "model.onnx"];
    let worker = ["worker", "--worker-id", "w", "--callback-url", "http://localhost:9999/"];
    for command in [&["serve"][..], &worker] {
        let mut server = Server::start(&[command, &onnx].concat());
        server.wait_for_answer("/predict", &json!({"inputs": "hello world"}));
        let info = parse(&server.send("GET", "/info", &Value::Null));
        let model = &info["models"][0];
        assert!(model["engine"].as_str().is_some_and(|engine| engine.starts_with("ONNX Runtime 1.")), "{model}");
        assert_eq!(model["device"], "cpu", "{model}");
        let ran = model["ran"].as_array().expect("ops");
        assert!(ran.iter().any(|op| op["rung"] == "onnx" && op["op"] == "MatMul"), "{ran:?}");
        let metrics = server.send("GET", "/metrics", &Value::Null);
        assert!(metrics.contains("rung=\"onnx\""), "{metrics}");
    }
}

#[test]
fn the_command_reports_the_engine_the_provider_and_the_nodes() {
    let dir = materialize_onnx("task-classify");
    let model = dir.path().to_str().expect("UTF-8");
    let ran = with_library(&onnxruntime(), &["classify", "-m", model, "-d", "cpu", "--json", "hello world"]);
    assert!(ran.status.success(), "{}", String::from_utf8_lossy(&ran.stderr));
    let result = parse(&String::from_utf8(ran.stdout).expect("UTF-8"));
    assert!(result["engine"].as_str().is_some_and(|engine| engine.starts_with("ONNX Runtime 1.")), "{result}");
    let ops = result["ops"].as_array().expect("ops");
    let products = ops.iter().find(|op| op["op"] == "MatMul").expect("products");
    assert_eq!((&products["rung"], &products["device"]), (&"onnx".into(), &"cpu".into()), "{products}");
    assert_eq!(products["calls"].as_u64().map(|n| n >= 8), Some(true), "{products}");
    let said = String::from_utf8_lossy(&ran.stderr).into_owned();
    assert!(said.contains("ONNX Runtime") && said.contains("model.onnx"), "{said}");

    // The golden's score.
    let golden = sconce_testkit::json(&dir.path().join("golden.json"));
    let case = golden["cases"].as_array().and_then(|c| c.iter().find(|c| c["text"] == "hello world")).expect("a case");
    let (got, want) = (&result["results"][0][0], &case["scores"][0]);
    let difference = got["score"].as_f64().unwrap_or(0.0) - want["score"].as_f64().unwrap_or(9.0);
    assert!(got["label"] == want["label"] && difference.abs() < 1e-5, "{got} is not {want}");
}

#[test]
fn a_plan_shows_the_graph_without_a_library() {
    let dir = materialize_onnx("task-rerank");
    let model = dir.path().to_str().expect("UTF-8");
    let absent = Path::new("/nowhere/libonnxruntime.so");
    let plan = |library: &Path, args: &[&str]| {
        let ran = with_library(library, &[&["plan", model], args].concat());
        (ran.status.code(), String::from_utf8(ran.stdout).expect("UTF-8"))
    };
    let (code, text) = plan(absent, &["-d", "cpu"]);
    assert!(text.contains("engine      ONNX Runtime: ") && text.contains("model.onnx on cpu"), "{text}");
    assert!(text.contains("nodes: ") && text.contains("16 MatMul"), "{text}");
    // But it says that the model cannot run here.
    assert!(code == Some(1) && text.contains("not here") && text.contains("pip install onnxruntime"), "{text}");
    let (code, text) = plan(&onnxruntime(), &["-d", "cpu"]);
    assert!(code == Some(0) && text.contains("it will run, and fits"), "{text}");
    let (code, text) = plan(&onnxruntime(), &["-d", "coreml", "--json"]);
    let json = parse(&text);
    assert_eq!((&json["engine"], &json["graph"]["provider"]), (&"ONNX Runtime".into(), &"coreml".into()));
    let verdict = json["verdict"].as_str().expect("a verdict");
    assert!(code == Some(1) && verdict.contains("no CoreMLExecutionProvider"), "{verdict}");
    let (code, text) = plan(&onnxruntime(), &["-d", "coreml", "--fallback"]);
    assert!(code == Some(0) && text.contains("device      cpu"), "{text}");
    let (code, text) = plan(&onnxruntime(), &["--all-devices", "--json"]);
    let devices = parse(&text)["devices"].as_array().expect("devices").clone();
    assert!(code == Some(0) && devices.len() == 1 && devices[0]["device"] == "cpu", "{text}");
    let show = parse(&out(&["show", model, "--json"], b""));
    assert_eq!((&show["format"], &show["engine"]), (&"ONNX".into(), &"ONNX Runtime".into()), "{show}");
    assert!(show["weights_bytes"].as_u64() > Some(10_000), "{show}");
}

#[test]
fn clip_runs_on_one_graph_or_two() {
    let image = sconce_testkit::golden("task-images").join("odd.png");
    let image = image.to_str().expect("UTF-8");
    let clip = |dir: &Path, args: &[&str]| {
        let model = dir.to_str().expect("UTF-8");
        let ran = with_library(&onnxruntime(), &[&["clip", "-m", model, "-d", "cpu", "--json", image], args].concat());
        (ran.status.success(), String::from_utf8([ran.stdout, ran.stderr].concat()).expect("UTF-8"))
    };
    let texts = ["--text", "a photo of a cat", "--text", "A Photo of a DOG!"];
    let both = materialize_onnx("task-clip");
    let (succeeded, text) = clip(both.path(), &texts);
    assert!(succeeded && text.contains("\"score\""), "{text}");
    // Their own weights give the same scores.
    let native = sconce_testkit::materialize("task-clip");
    let scores = |text: &str| -> Vec<f64> {
        let mut values = serde_json::Deserializer::from_str(text).into_iter::<serde_json::Value>();
        let all = values.next().expect("JSON before the report").expect("JSON");
        let labels = all["results"][0].as_array().expect("labels").clone();
        labels.iter().map(|label| label["score"].as_f64().expect("a score")).collect()
    };
    let (_, wanted) = clip(native.path(), &texts);
    let (got, wanted) = (scores(&text), scores(&wanted));
    assert!(got.iter().zip(&wanted).all(|(a, b)| (a - b).abs() < 1e-4) && got.len() == 2, "{got:?} {wanted:?}");

    let pair = sconce_testkit::materialize_towers("task-clip");
    let (succeeded, text) = clip(pair.path(), &texts);
    assert!(!succeeded && text.contains("--cosine") && !text.contains("panicked"), "{text}");
    let (succeeded, text) = clip(pair.path(), &[&texts[..], &["--cosine"]].concat());
    assert!(succeeded && text.contains("ONNX Runtime"), "{text}");
    std::fs::remove_file(pair.path().join("onnx/vision_model.onnx")).expect("a file");
    let (succeeded, text) = clip(pair.path(), &["--cosine", "--text", "a cat"]);
    assert!(!succeeded && text.contains("no vision_model.onnx"), "{text}");
}

#[test]
fn a_library_that_is_missing_or_damaged_is_an_error_that_says_what_to_install() {
    let dir = materialize_onnx("task-classify");
    let model = dir.path().to_str().expect("UTF-8");
    let damaged = dir.path().join("libonnxruntime.so");
    std::fs::write(&damaged, "not a library").expect("a file");
    // A library of something else.
    let other =
        ["/lib/x86_64-linux-gnu/libm.so.6", "/lib64/libm.so.6"].map(Path::new).into_iter().find(|p| p.is_file());
    for library in [Path::new("/nowhere/libonnxruntime.so"), &damaged].into_iter().chain(other) {
        let ran = with_library(library, &["classify", "-m", model, "-d", "cpu", "x"]);
        let said = String::from_utf8_lossy(&ran.stderr).into_owned();
        assert_eq!(ran.status.code(), Some(1), "{said}");
        assert!(said.contains("pip install onnxruntime") && !said.contains("panicked"), "{said}");
    }
    // Models that need no ONNX Runtime are not affected.
    let native = sconce_testkit::materialize("task-classify");
    let model = native.path().to_str().expect("UTF-8");
    let ran = with_library(Path::new("/nowhere"), &["classify", "-m", model, "-d", "cpu", "x"]);
    assert!(ran.status.success(), "{}", String::from_utf8_lossy(&ran.stderr));
}
