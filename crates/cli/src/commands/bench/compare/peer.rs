//! Another engine, in a Python process of its own that times itself when it is told to.

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

/// What every peer runs.
const SCRIPT: &str = include_str!("peers.py");

/// A Python, the script, and the job that it is given.
pub(super) struct Python {
    python: PathBuf,
    script: PathBuf,
    job: PathBuf,
}

/// A line of the script's.
#[derive(Default, Deserialize)]
#[serde(default, deny_unknown_fields)]
struct Said {
    peer: String,
    missing: Vec<String>,
    exported: bool,
    ready: bool,
    vectors: Vec<Vec<f32>>,
    seconds: HashMap<String, f64>,
    first: Option<usize>,
    failed: Option<String>,
}

/// An engine that is loaded and waits. It ends when this is dropped.
pub(super) struct Peer {
    child: Child,
    orders: Option<ChildStdin>,
    answers: BufReader<ChildStdout>,
}

impl Python {
    pub(super) fn new(python: &Path, script: Option<&Path>, scratch: &Path) -> Result<Python, Failure> {
        let own = scratch.join("peers.py");
        let script = match script {
            Some(script) => script.to_path_buf(),
            None => {
                std::fs::write(&own, SCRIPT)?;
                own
            }
        };
        Ok(Python { python: python.into(), script, job: scratch.join("job.json") })
    }

    /// What peers are to do.
    pub(super) fn give(&self, job: &Value) -> Result<(), Failure> {
        Ok(std::fs::write(&self.job, job.to_string())?)
    }

    /// Every peer there is, and what it lacks here.
    pub(super) fn peers(&self) -> Result<Vec<(String, Vec<String>)>, Failure> {
        let mut peer = self.start(&["list"])?;
        let mut all = Vec::new();
        while let Some(said) = peer.next()? {
            all.push((said.peer, said.missing));
        }
        match all.is_empty() {
            true => {
                Err(format!("{} lists no engine; does it run? name another with --python", self.python.display())
                    .into())
            }
            false => Ok(all),
        }
    }

    pub(super) fn export(&self) -> Result<(), Failure> {
        let said = self.start(&["export"])?.answer()?;
        if said.exported { Ok(()) } else { Err("the script said something else".into()) }
    }

    /// Loads a peer; with its vectors of the texts to check.
    pub(super) fn serve(&self, name: &str) -> Result<(Peer, Vec<Vec<f32>>), Failure> {
        let mut peer = self.start(&["serve", name])?;
        let said = peer.answer()?;
        if said.ready { Ok((peer, said.vectors)) } else { Err("it did not get ready".into()) }
    }

    /// Seconds from the start of a process to its first vector.
    pub(super) fn first(&self, name: &str) -> Result<f64, Failure> {
        let begun = Instant::now();
        let mut peer = self.start(&["first", name])?;
        let said = peer.answer().map_err(|e| format!("{name}: {e}"))?;
        let seconds = begun.elapsed().as_secs_f64();
        said.first.map(|_| seconds).ok_or_else(|| format!("{name} gave no vector").into())
    }

    fn start(&self, task: &[&str]) -> Result<Peer, Failure> {
        let mut command = Command::new(&self.python);
        command.arg(&self.script).args(task).arg(&self.job);
        for name in ["OMP_NUM_THREADS", "MKL_NUM_THREADS", "OPENBLAS_NUM_THREADS", "RAYON_NUM_THREADS"] {
            command.env(name, threads::count().to_string());
        }
        // Nothing is fetched, and nothing but answers is printed where answers are read.
        command.env("HF_HUB_OFFLINE", "1").env("TOKENIZERS_PARALLELISM", "false");
        let spawned = command.stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::null()).spawn();
        let mut child =
            spawned.map_err(|e| format!("cannot run {}: {e}; name another with --python", self.python.display()))?;
        let (orders, answers) = (child.stdin.take(), child.stdout.take().ok_or("no pipe")?);
        Ok(Peer { child, orders, answers: BufReader::new(answers) })
    }
}

impl Peer {
    /// Median seconds of every row.
    pub(super) fn round(&mut self, rows: &[Row]) -> Result<Vec<f64>, Failure> {
        let orders = self.orders.as_mut().ok_or("it takes no orders")?;
        orders.write_all(b"round\n")?;
        orders.flush()?;
        let said = self.answer()?;
        let of =
            |row: &Row| said.seconds.get(&row.name).copied().ok_or_else(|| format!("no time of {}", row.name).into());
        rows.iter().map(of).collect()
    }

    fn answer(&mut self) -> Result<Said, Failure> {
        self.next()?.ok_or_else(|| "it ended without a word".into())
    }

    fn next(&mut self) -> Result<Option<Said>, Failure> {
        let mut line = String::new();
        if self.answers.read_line(&mut line)? == 0 {
            return Ok(None);
        }
        let said: Said = serde_json::from_str(&line).map_err(|e| format!("it said {:?}: {e}", line.trim()))?;
        match said.failed {
            Some(why) => Err(why.into()),
            None => Ok(Some(said)),
        }
    }
}

impl Drop for Peer {
    fn drop(&mut self) {
        // It has said all that is wanted of it.
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}
