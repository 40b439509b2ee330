//! `sconce worker` by itself: exit codes, and a full disk.

use crate::harness::{command, execute, model};
use sconce_testkit::wait_for;
use serde_json::json;
use std::net::{TcpListener, TcpStream};
use std::process::Stdio;

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
    let args = ["worker", "--worker-id", "w", "--model", path, "--port", "0", "--callback-url", "ftp://elsewhere/"];
    let out = command(home.path(), &args).output().unwrap();
    assert!(!out.status.success() && String::from_utf8_lossy(&out.stderr).contains("http:// or https://"));
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
