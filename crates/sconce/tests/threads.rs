//! Thread options, and texts that arrive slowly.
#![cfg(target_os = "linux")]

mod common;

use common::{err, out, parse};
use sconce_testkit::{materialize, wait_for};
use std::collections::HashSet;
use std::fs::DirEntry;
use std::io::{BufRead, BufReader, Write};
use std::path::Path;
use std::process::{Child, ChildStdin, Command, Stdio};
use std::sync::mpsc::{Receiver, channel};
use std::time::Duration;

/// Texts per window of `embed`.
const WINDOW: usize = 512;

/// Longest wait for a vector, also on a busy machine.
const TIMEOUT: Duration = Duration::from_secs(60);

/// `sconce embed` reading from a pipe.
struct Embed {
    child: Child,
    texts: Option<ChildStdin>,
    vectors: Receiver<String>,
}

impl Embed {
    fn start(model: &Path, flags: &[&str]) -> Embed {
        let mut child = Command::new(env!("CARGO_BIN_EXE_sconce"))
            .args(["embed", "--quiet", "-m"])
            .arg(model)
            .args(flags)
            .env_clear()
            .env("PATH", std::env::var_os("PATH").unwrap_or_default())
            // A home without a doctor's verdict.
            .env("HOME", model)
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .spawn()
            .unwrap();
        let lines = BufReader::new(child.stdout.take().unwrap()).lines();
        let (sender, vectors) = channel();
        std::thread::spawn(move || lines.map_while(Result::ok).try_for_each(|line| sender.send(line)));
        Embed { texts: child.stdin.take(), child, vectors }
    }

    fn write_texts(&mut self, texts: usize) {
        let mut to = self.texts.as_ref().unwrap();
        (0..texts).for_each(|i| writeln!(to, "text {i}").unwrap());
        to.flush().unwrap();
    }

    /// Waits for this many vectors.
    fn expect_vectors(&self, vectors: usize) {
        for i in 0..vectors {
            assert!(self.vectors.recv_timeout(TIMEOUT).is_ok(), "vector {i} of {vectors} did not arrive");
        }
    }

    /// Names of its threads and the cores that each may use.
    fn threads(&self) -> Vec<(String, String)> {
        let read = |task: DirEntry| {
            let name = std::fs::read_to_string(task.path().join("comm")).ok()?;
            let status = std::fs::read_to_string(task.path().join("status")).ok()?;
            let cores = status.lines().find_map(|line| line.strip_prefix("Cpus_allowed_list:"))?;
            Some((name.trim().to_string(), cores.trim().to_string()))
        };
        let tasks = std::fs::read_dir(format!("/proc/{}/task", self.child.id())).unwrap();
        tasks.flatten().filter_map(read).collect()
    }

    /// Waits until the threads match; a thread takes its name and its core when it first runs.
    fn wait_for_threads(&self, matches: impl Fn(&[(String, String)]) -> bool) {
        wait_for("the threads match", || {
            let threads = self.threads();
            if matches(&threads) { Ok(()) } else { Err(format!("{threads:?}")) }
        });
    }

    /// Closes the input.
    fn end(mut self) {
        drop(self.texts.take());
        assert!(self.vectors.recv_timeout(TIMEOUT).is_err(), "one line per text");
        assert!(self.child.wait().unwrap().success());
    }
}

fn cores() -> usize {
    std::thread::available_parallelism().map_or(1, usize::from)
}

/// Number of threads whose names begin with `name`.
fn count_named(threads: &[(String, String)], name: &str) -> usize {
    threads.iter().filter(|(n, _)| n.starts_with(name)).count()
}

#[test]
fn full_window_is_embedded_at_once_by_requested_threads() {
    // Different from the default.
    let (model, thread_count) = (materialize("st-max"), cores() + 1);
    let mut embed = Embed::start(model.path(), &["--threads", &thread_count.to_string()]);
    embed.write_texts(WINDOW);
    // The pipe stays open: texts that were read must not wait for further ones.
    embed.expect_vectors(WINDOW);
    // The device thread belongs to the team, under another name.
    embed.wait_for_threads(|all| {
        (count_named(all, "sconce-cpu-"), count_named(all, "sconce cpu")) == (thread_count - 1, 1)
    });
    // The last window is short.
    embed.write_texts(1);
    drop(embed.texts.take());
    embed.expect_vectors(1);
    embed.end();
}

#[test]
fn pin_binds_only_compute_threads() {
    let cores = cores();
    let model = materialize("st-max");
    let mut embed = Embed::start(model.path(), &["--pin", "--threads", &cores.to_string()]);
    embed.write_texts(WINDOW);
    embed.expect_vectors(WINDOW);
    // The team, which includes the device thread.
    embed.wait_for_threads(|all| {
        let bound: Vec<_> = all.iter().filter(|(_, cores)| cores.parse::<usize>().is_ok()).cloned().collect();
        let distinct: HashSet<&String> = bound.iter().map(|(_, core)| core).collect();
        let counts =
            (count_named(&bound, "sconce-cpu-"), count_named(&bound, "sconce cpu"), bound.len(), distinct.len());
        // With a single core every thread is allowed on it.
        cores == 1 || counts == (cores - 1, 1, cores, cores)
    });
    embed.end();
}

#[test]
fn devices_reports_and_validates_thread_count() {
    let devices = parse(&out(&["devices", "--json", "--threads", "7"], b""));
    assert!(devices["devices"][0]["description"].as_str().unwrap().ends_with("7 threads"), "{devices}");
    assert!(out(&["devices", "--threads", "1"], b"").contains("1 thread"));
    assert!(err(&["devices", "--threads", "0"], b"").contains("from 1 to"));
    assert!(err(&["devices", "--threads", "4000", "--pin"], b"").contains("cannot be bound"));
}
