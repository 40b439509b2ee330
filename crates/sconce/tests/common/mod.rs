//! Runs the command for the tests.

use serde_json::Value;
use std::io::Write;
use std::process::{Command, Output, Stdio};

/// Runs the command with its own cache directory, isolated from this machine's verdicts and
/// settings.
pub(crate) fn sconce(args: &[&str], stdin: &[u8]) -> Output {
    let cache = tempfile::tempdir().unwrap();
    let mut child = Command::new(env!("CARGO_BIN_EXE_sconce"))
        .args(args)
        .env_clear()
        .env("PATH", std::env::var_os("PATH").unwrap_or_default())
        .env("HOME", cache.path())
        .env("HF_HUB_OFFLINE", "1")
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .unwrap();
    // A command that fails early does not read its input.
    let _ = child.stdin.take().unwrap().write_all(stdin);
    child.wait_with_output().unwrap()
}

/// Standard output of a command that succeeds.
pub(crate) fn out(args: &[&str], stdin: &[u8]) -> String {
    let o = sconce(args, stdin);
    assert!(o.status.success(), "{args:?}: {}", String::from_utf8_lossy(&o.stderr));
    String::from_utf8(o.stdout).unwrap()
}

/// Standard error of a command that fails.
pub(crate) fn err(args: &[&str], stdin: &[u8]) -> String {
    let o = sconce(args, stdin);
    assert_eq!(o.status.code(), Some(1), "{args:?}");
    String::from_utf8(o.stderr).unwrap()
}

/// JSON.
pub(crate) fn parse(text: &str) -> Value {
    serde_json::from_str(text).unwrap_or_else(|e| panic!("{e}: {text}"))
}

/// A list of numbers.
#[allow(dead_code, reason = "not every test reads numbers")]
pub(crate) fn numbers(v: &Value) -> Vec<f32> {
    v.as_array().unwrap().iter().map(|x| x.as_f64().unwrap() as f32).collect()
}
