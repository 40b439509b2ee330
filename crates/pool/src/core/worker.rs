//! One worker: what it should be, and where it stands.

use super::Time;
use super::backoff::Backoff;
use sconce_api::pool::{Failure, State};
use sconce_api::worker::Tuning;
use serde::{Deserialize, Serialize};

/// What a worker is to be.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Spec {
    /// What requests call its model.
    pub name: String,
    /// Where the model comes from.
    pub model: String,
    /// What was asked for: `auto`, `cuda`, `cpu`, `cuda:0`.
    pub device: String,
    /// How the model is kept and run.
    pub tuning: Tuning,
    /// Who wants it.
    pub origin: Origin,
}

/// Who wants a worker.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Origin {
    /// The `pool.toml`. It is tried again and again, from the beginning.
    Declared,
    /// A request. If it does not start, whoever asked is told, and that is that.
    Asked,
}

/// A process: its number, and when it began, since numbers are given out again.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Process {
    /// Its number.
    pub pid: u32,
    /// When it began. Where that is not known, it is not known again either.
    pub born: Option<Birth>,
}

/// When a process began, exactly: two of the same number never have the same.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Birth {
    /// Which start of the machine `ticks` is counted from; zeros where the system tells the time itself.
    pub boot: (u64, u64),
    /// In whatever the system counts.
    pub ticks: u64,
}

/// What a model takes, as `sconce plan --json` tells it.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Planned {
    /// Bytes in all.
    pub bytes: u64,
    /// What the model does: `embed`, `generate`, ….
    pub task: String,
}

/// What is kept of a worker on disk.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Record {
    /// Its name.
    pub id: String,
    /// What it is to be.
    pub spec: Spec,
    /// Where it was put.
    #[serde(default)]
    pub device: Option<String>,
    /// What it takes.
    #[serde(default)]
    pub planned: Option<Planned>,
    /// What it runs as.
    #[serde(default)]
    pub process: Option<Process>,
    /// Where it listens.
    #[serde(default)]
    pub port: u16,
    /// Whether it has been ready.
    #[serde(default)]
    pub been_ready: bool,
    /// Whether it is to take no more requests; and whether it is to end.
    #[serde(default)]
    pub leaving: Leaving,
    /// How often it was started again.
    #[serde(default)]
    pub restarts: u64,
}

/// What was said of a worker's end.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Leaving {
    /// Nothing.
    #[default]
    No,
    /// It is to take no more requests.
    Drain,
    /// It is to end.
    Stop,
}

/// Where a worker stands.
#[derive(Clone, Debug, PartialEq)]
pub(super) enum Phase {
    /// What it takes is being worked out.
    Planning,
    /// It was told to run, and must call back in time.
    Starting { until: Time },
    /// It serves.
    Ready { since: Time },
    /// It takes no more requests. With a time, it is to end when it has none left, and then at the latest.
    Draining { end: Option<Time> },
    /// It was asked to end, and is killed at `kill`.
    Stopping { kill: Time },
    /// It was killed; `then` when its process is gone.
    Killing { then: Box<Failure> },
    /// It does not run.
    Failed { again: Time, is_open: bool },
}

/// What is known of a worker from its probes, while it listens.
#[derive(Clone, Debug, Default)]
pub(super) struct Watched {
    /// When it is asked next.
    pub(super) next: Time,
    /// Whether an answer is waited for.
    pub(super) asked: bool,
    /// Answers that did not come, in a row.
    pub(super) misses: u32,
    /// When the last of them did not.
    pub(super) missed: Option<Time>,
}

/// A worker.
#[derive(Clone, Debug)]
pub(super) struct Worker {
    pub(super) record: Record,
    pub(super) phase: Phase,
    /// Counts its processes. What is heard of an earlier one is no news.
    pub(super) attempt: u64,
    /// How often in a row its port was taken.
    pub(super) ports: u32,
    pub(super) backoff: Backoff,
    /// What its probes told.
    pub(super) watched: Watched,
    /// Requests under way.
    pub(super) active: u64,
    /// Tokens of theirs.
    pub(super) tokens: u64,
    /// When it was last chosen, by turns; among equals the one that waited longest is next.
    pub(super) last: u64,
    pub(super) why: Option<Failure>,
    pub(super) exit_code: Option<i32>,
}

impl Worker {
    pub(super) fn new(record: Record, phase: Phase) -> Worker {
        Worker {
            record,
            phase,
            attempt: 1,
            ports: 0,
            backoff: Backoff::default(),
            watched: Watched::default(),
            active: 0,
            tokens: 0,
            last: 0,
            why: None,
            exit_code: None,
        }
    }

    pub(super) fn state(&self) -> State {
        match self.phase {
            Phase::Planning | Phase::Starting { .. } => State::Starting,
            Phase::Ready { .. } if self.active > 0 => State::Busy,
            Phase::Ready { .. } => State::Ready,
            Phase::Draining { .. } | Phase::Stopping { .. } => State::Draining,
            Phase::Killing { .. } | Phase::Failed { .. } => State::Failed,
        }
    }

    /// Bytes that are promised to it. What has served keeps its place while it is started again, so that nobody takes it
    /// meanwhile; what never did, or fails so often that the breaker is open, is looked at anew when it is tried again.
    pub(super) fn holds(&self) -> u64 {
        let keeps = match self.phase {
            Phase::Planning => false,
            Phase::Failed { is_open, .. } => self.record.been_ready && !is_open,
            _ => true,
        };
        if keeps { self.record.planned.as_ref().map_or(0, |p| p.bytes) } else { 0 }
    }

    /// Whether it listens, or is about to.
    pub(super) fn has_process(&self) -> bool {
        self.record.process.is_some()
    }
}
