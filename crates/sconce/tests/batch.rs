//! `sconce batch`: killed in the middle and started again, it answers every line exactly once.
#![cfg(unix)]

#[allow(dead_code, reason = "other tests use the rest")]
mod common;

use common::{err, parse, sconce};
use sconce_testkit::{materialize_llama, wait_until};
use serde_json::{Value, json};
use std::collections::BTreeSet;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use tempfile::TempDir;

const LINES: usize = 1_000;

/// A small model, requests, and a place for results.
struct World {
    model: TempDir,
    dir: TempDir,
}

impl World {
    fn new() -> World {
        World { model: materialize_llama(2048), dir: tempfile::tempdir().unwrap() }
    }

    fn path(&self, name: &str) -> PathBuf {
        self.dir.path().join(name)
    }

    fn write(&self, name: &str, text: &str) -> String {
        let path = self.path(name);
        std::fs::write(&path, text).unwrap();
        path.to_str().unwrap().into()
    }

    /// Arguments that answer `input` with the model `m`.
    fn args(&self, input: &str) -> Vec<String> {
        let (out, model) = (self.path("out.jsonl"), format!("m={}", self.model.path().display()));
        ["batch", input, "-o", out.to_str().unwrap(), "-m", &model, "-d", "cpu", "--threads", "1", "--parallel", "8"]
            .map(Into::into)
            .into()
    }

    fn recorded(&self) -> String {
        std::fs::read_to_string(self.path("out.jsonl")).unwrap_or_default()
    }
}

fn requests(count: usize, tokens: usize) -> String {
    let line = |i: usize| {
        let body = json!({"model": "m", "prompt": [5 + i % 500, 7], "max_tokens": tokens, "ignore_eos": true});
        json!({"custom_id": format!("r-{i}"), "method": "POST", "url": "/v1/completions", "body": body}).to_string()
    };
    (0..count).map(|i| line(i) + "\n").collect()
}

/// A process that is killed with its test.
struct Process(Child);

impl Drop for Process {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

fn spawn(args: &[String], home: &Path) -> Process {
    let child = Command::new(env!("CARGO_BIN_EXE_sconce"))
        .args(args)
        .env_clear()
        .env("PATH", std::env::var_os("PATH").unwrap_or_default())
        .env("HOME", home)
        .env("HF_HUB_OFFLINE", "1")
        .stdin(Stdio::null())
        .stdout(Stdio::null())
        .stderr(Stdio::piped())
        .spawn()
        .unwrap();
    Process(child)
}

fn run(args: &[String]) -> std::process::Output {
    sconce(&args.iter().map(String::as_str).collect::<Vec<_>>(), b"")
}

/// Whole lines.
fn count(text: &str) -> usize {
    text.bytes().filter(|byte| *byte == b'\n').count()
}

#[test]
fn killed_runs_answer_every_line_exactly_once() {
    let world = World::new();
    let args = world.args(&world.write("in.jsonl", &requests(LINES, 64)));
    let mut done = 0;
    for round in 0..3 {
        let mut process = spawn(&args, world.dir.path());
        wait_until("more lines are answered", || count(&world.recorded()) > done + 50);
        if round == 1 {
            // Ctrl-C keeps what is done too.
            let interrupted = Command::new("kill").args(["-INT", &process.0.id().to_string()]).status().unwrap();
            assert!(interrupted.success());
            assert_eq!(process.0.wait().unwrap().code(), Some(1));
        } else {
            // SIGKILL.
            process.0.kill().unwrap();
            process.0.wait().unwrap();
        }
        let now = count(&world.recorded());
        assert!(now > done && now < LINES, "{now} after {done}");
        done = now;
    }
    // A kill in the middle of a write leaves a part of a line.
    let torn = world.recorded() + "{\"id\":\"batch_req_0\",\"custom_id\":\"r-9";
    world.write("out.jsonl", &torn);
    let last = run(&args);
    let stderr = String::from_utf8_lossy(&last.stderr).into_owned();
    assert!(last.status.success(), "{stderr}");
    assert!(stderr.contains(&format!("{LINES} of {LINES} requests are answered, {done} of them before")), "{stderr}");
    let text = world.recorded();
    let results: Vec<Value> = text.lines().map(parse).collect();
    let ids: BTreeSet<&str> = results.iter().map(|line| line["custom_id"].as_str().unwrap()).collect();
    assert_eq!((results.len(), ids.len()), (LINES, LINES));
    for line in &results {
        let response = &line["response"];
        assert_eq!((&response["status_code"], &line["error"]), (&json!(200), &json!(null)), "{line}");
        assert_eq!(response["body"]["usage"]["completion_tokens"], 64, "{line}");
    }
    // Once more: there is nothing to do, and no model is loaded.
    assert!(run(&args).status.success());
    assert_eq!(world.recorded(), text);
}

#[test]
fn wrong_lines_and_outputs_are_refused_before_a_model_is_loaded() {
    let world = World::new();
    let fail = |text: &str| {
        let args = world.args(&world.write("in.jsonl", text));
        err(&args.iter().map(String::as_str).collect::<Vec<_>>(), b"")
    };
    let one = requests(1, 1);
    let message = fail(&(one.clone() + &one + "{}\n"));
    assert!(message.contains("line 2: ") && message.contains("r-0") && message.contains("line 3: "), "{message}");
    assert!(fail(&one.replace("\"m\"", "\"n\"")).contains("there is no model `n`"));
    assert!(fail("").contains("no requests"));
    assert!(!world.path("out.jsonl").exists(), "nothing was begun");
    world.write("out.jsonl", "my notes\n");
    assert!(fail(&one).contains("line 1 is not the result of a request"));
    assert_eq!(world.recorded(), "my notes\n");
}

#[test]
fn failed_requests_have_results_and_set_the_exit_code() {
    let world = World::new();
    let bad = json!({"custom_id": "bad", "method": "POST", "url": "/v1/completions",
                     "body": {"model": "m", "prompt": "x", "max_tokens": 99_999}});
    let absent = json!({"custom_id": "absent", "method": "POST", "url": "/v1/embeddings",
                        "body": {"model": "m", "input": "x"}});
    let args = world.args(&world.write("in.jsonl", &format!("{}{bad}\n{absent}\n", requests(2, 1))));
    let run = run(&args);
    let stderr = String::from_utf8_lossy(&run.stderr);
    assert_eq!(run.status.code(), Some(1), "{stderr}");
    assert!(stderr.contains("2 of 4 requests failed"), "{stderr}");
    let recorded = world.recorded();
    let status = |id: &str| {
        let line = recorded.lines().map(parse).find(|line| line["custom_id"] == id).unwrap();
        line["response"]["status_code"].as_u64().unwrap()
    };
    assert_eq!([status("r-0"), status("r-1"), status("bad"), status("absent")], [200, 200, 400, 400]);
}
