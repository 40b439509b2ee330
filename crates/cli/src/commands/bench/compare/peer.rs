//! Another engine in its own Python process, which times itself on request.

use super::rows::Row;
use crate::Failure;
use sconce_ops::threads;
use serde::Deserialize;
use serde_json::Value;
use std::collections::HashMap;
use std::io::{BufRead, BufReader, Write};
use std::path::{Path, PathBuf};
use std::process::{Child, ChildStdin, ChildStdout, Command, Stdio};
use std::time::Instant;

/// The script of every peer.
const SCRIPT: &str = include_str!("peers.py");

/// A Python interpreter, the script, and its job file.
pub(super) struct Python {
    python: PathBuf,
    script: PathBuf,
    job: PathBuf,
}

/// A line printed by the script.
#[derive(Default, Deserialize)]
#[serde(default, deny_unknown_fields)]
struct PeerMessage {
    peer: String,
    missing: Vec<String>,
    exported: bool,
    ready: bool,
    vectors: Vec<Vec<f32>>,
    seconds: HashMap<String, f64>,
    first: Option<usize>,
    failed: Option<String>,
}

/// A loaded engine. Its process ends when this is dropped.
pub(super) struct Peer {
    child: Child,
    requests: Option<ChildStdin>,
    answers: BufReader<ChildStdout>,
}

impl Python {
    pub(super) fn new(python: &Path, script: Option<&Path>, scratch: &Path) -> Result<Python, Failure> {
        let built_in = scratch.join("peers.py");
        let script = match script {
            Some(script) => script.to_path_buf(),
            None => {
                std::fs::write(&built_in, SCRIPT)?;
                built_in
            }
        };
        Ok(Python { python: python.into(), script, job: scratch.join("job.json") })
    }

    /// Writes the job file.
    pub(super) fn write_job(&self, job: &Value) -> Result<(), Failure> {
        Ok(std::fs::write(&self.job, job.to_string())?)
    }

    /// All peers, each with the packages that it lacks.
    pub(super) fn peers(&self) -> Result<Vec<(String, Vec<String>)>, Failure> {
        let mut peer = self.start(&["list"])?;
        let mut all = Vec::new();
        while let Some(message) = peer.next()? {
            all.push((message.peer, message.missing));
        }
        match all.is_empty() {
            true => Err(format!(
                "{} lists no engines; check that it runs, or name another with --python",
                self.python.display()
            )
            .into()),
            false => Ok(all),
        }
    }

    pub(super) fn export(&self) -> Result<(), Failure> {
        let message = self.start(&["export"])?.answer()?;
        if message.exported { Ok(()) } else { Err("unexpected answer of the script".into()) }
    }

    /// Loads a peer and returns its vectors of the check texts.
    pub(super) fn serve(&self, name: &str) -> Result<(Peer, Vec<Vec<f32>>), Failure> {
        let mut peer = self.start(&["serve", name])?;
        let message = peer.answer()?;
        if message.ready {
            Ok((peer, message.vectors))
        } else {
            Err("unexpected answer of the script while loading".into())
        }
    }

    /// Seconds from the start of a process to its first vector.
    pub(super) fn first(&self, name: &str) -> Result<f64, Failure> {
        let started = Instant::now();
        let mut peer = self.start(&["first", name])?;
        let message = peer.answer().map_err(|e| format!("{name}: {e}"))?;
        let seconds = started.elapsed().as_secs_f64();
        message.first.map(|_| seconds).ok_or_else(|| format!("{name} returned no vector").into())
    }

    fn start(&self, task: &[&str]) -> Result<Peer, Failure> {
        let mut command = Command::new(&self.python);
        command.arg(&self.script).args(task).arg(&self.job);
        for name in ["OMP_NUM_THREADS", "MKL_NUM_THREADS", "OPENBLAS_NUM_THREADS", "RAYON_NUM_THREADS"] {
            command.env(name, threads::count().to_string());
        }
        // Nothing is downloaded, and only answers go to standard output.
        command.env("HF_HUB_OFFLINE", "1").env("TOKENIZERS_PARALLELISM", "false");
        let spawned = command.stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::null()).spawn();
        let mut child =
            spawned.map_err(|e| format!("cannot run {}: {e}; name another with --python", self.python.display()))?;
        let (requests, answers) = (child.stdin.take(), child.stdout.take().ok_or("no pipe")?);
        Ok(Peer { child, requests, answers: BufReader::new(answers) })
    }
}

impl Peer {
    /// Median seconds of every row.
    pub(super) fn round(&mut self, rows: &[Row]) -> Result<Vec<f64>, Failure> {
        let requests = self.requests.as_mut().ok_or("its standard input is closed")?;
        requests.write_all(b"round\n")?;
        requests.flush()?;
        let message = self.answer()?;
        let of = |row: &Row| {
            message.seconds.get(&row.name).copied().ok_or_else(|| format!("no time for {}", row.name).into())
        };
        rows.iter().map(of).collect()
    }

    fn answer(&mut self) -> Result<PeerMessage, Failure> {
        self.next()?.ok_or_else(|| "it exited without an answer".into())
    }

    fn next(&mut self) -> Result<Option<PeerMessage>, Failure> {
        let mut line = String::new();
        if self.answers.read_line(&mut line)? == 0 {
            return Ok(None);
        }
        let message: PeerMessage =
            serde_json::from_str(&line).map_err(|e| format!("invalid answer {:?}: {e}", line.trim()))?;
        match message.failed {
            Some(why) => Err(why.into()),
            None => Ok(Some(message)),
        }
    }
}

impl Drop for Peer {
    fn drop(&mut self) {
        // Its results have been read.
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}
