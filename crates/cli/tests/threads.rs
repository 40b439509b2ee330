//! Threads that were asked for, and texts that come slowly.
#![cfg(target_os = "linux")]

mod common;

use common::{err, out, parse};
use sconce_testkit::materialize;
use std::io::{BufRead, BufReader, Write};
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

/// A window of texts, as `embed` takes them.
const WINDOW: usize = 512;

#[test]
fn a_window_is_answered_by_as_many_threads_as_were_asked_for_before_the_next_has_come() {
    let (home, model) = (tempfile::tempdir().unwrap(), materialize("st-max"));
    let mut child = Command::new(env!("CARGO_BIN_EXE_sconce"))
        .args(["embed", "--quiet", "--threads", "3", "-m"])
        .arg(model.path())
        .env_clear()
        .env("PATH", std::env::var_os("PATH").unwrap_or_default())
        .env("HOME", home.path())
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .spawn()
        .unwrap();
    let mut texts = child.stdin.take().unwrap();
    for i in 0..WINDOW {
        writeln!(texts, "text {i}").unwrap();
    }
    texts.flush().unwrap();
    // The pipe stays open: what was read must not wait for what may yet come.
    let mut vectors = BufReader::new(child.stdout.take().unwrap());
    let mut line = String::new();
    for _ in 0..WINDOW {
        line.clear();
        assert!(vectors.read_line(&mut line).unwrap() > 0);
    }
    let names = || -> Vec<String> {
        let tasks = std::fs::read_dir(format!("/proc/{}/task", child.id())).unwrap().flatten();
        tasks.filter_map(|task| std::fs::read_to_string(task.path().join("comm")).ok()).collect()
    };
    let begun = Instant::now();
    // The one that hands out work is the third.
    while names().iter().filter(|name| name.starts_with("sconce-cpu-")).count() != 2 {
        assert!(begun.elapsed() < Duration::from_secs(20), "{:?}", names());
        std::thread::sleep(Duration::from_millis(10));
    }
    writeln!(texts, "one more").unwrap();
    drop(texts);
    line.clear();
    assert!(vectors.read_line(&mut line).unwrap() > 0, "the last window is short");
    assert!(child.wait().unwrap().success());
}

#[test]
fn the_number_of_threads_is_told_and_checked() {
    let devices = parse(&out(&["devices", "--json", "--threads", "7"], b""));
    assert!(devices["devices"][0]["description"].as_str().unwrap().ends_with("7 threads"), "{devices}");
    assert!(out(&["devices", "--threads", "1"], b"").contains("1 thread"));
    assert!(err(&["devices", "--threads", "0"], b"").contains("from 1 to"));
    assert!(err(&["devices", "--threads", "4000", "--pin"], b"").contains("cannot be bound"));
}
