//! One worker: its specification, its record on disk and its phase.

use super::Time;
use super::backoff::FailureHistory;
use sconce_api::pool::{Failure, State};
use sconce_api::worker::Tuning;
use serde::{Deserialize, Serialize};

/// Specification of a worker.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Spec {
    /// Model name that requests use.
    pub name: String,
    /// Where the model comes from.
    pub model: String,
    /// The requested device: `auto`, `cuda`, `cpu`, `cuda:0`.
    pub device: String,
    /// Flags for loading and running the model.
    pub tuning: Tuning,
    /// Where the specification comes from.
    pub origin: Origin,
}

/// Where a worker's specification comes from.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Origin {
    /// `pool.toml`. The worker is retried whenever it fails.
    Declared,
    /// A request to start a worker. If the start fails, the request gets the error and there is no
    /// retry.
    #[serde(alias = "asked")]
    Requested,
}

/// A process: its pid, and its start time, because pids are reused.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Process {
    /// Its pid.
    pub pid: u32,
    /// Start time. A process without one cannot be recognized by a later manager.
    pub born: Option<StartTime>,
}

/// Exact start time of a process: two processes of the same pid never share it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct StartTime {
    /// Id of the boot since which `ticks` counts; zeros if the system reports absolute time.
    pub boot: (u64, u64),
    /// In the system's unit.
    pub ticks: u64,
}

/// Memory and task of a model, as `sconce plan --json` prints them.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Planned {
    /// Total bytes.
    pub bytes: u64,
    /// The model's task: `embed`, `generate`, ….
    pub task: String,
}

/// A worker as it is written to disk.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Record {
    /// Its id.
    pub id: String,
    /// Its specification.
    pub spec: Spec,
    /// The device it was placed on.
    #[serde(default)]
    pub device: Option<String>,
    /// The memory it needs.
    #[serde(default)]
    pub planned: Option<Planned>,
    /// Its process.
    #[serde(default)]
    pub process: Option<Process>,
    /// The port it listens on.
    #[serde(default)]
    pub port: u16,
    /// Whether it has ever been ready.
    #[serde(default)]
    pub been_ready: bool,
    /// Whether it is being drained or stopped.
    #[serde(default)]
    pub leaving: Leaving,
    /// Number of restarts.
    #[serde(default)]
    pub restarts: u64,
}

/// Whether a worker is to be drained or stopped.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Leaving {
    /// Neither.
    #[default]
    No,
    /// It gets no more requests.
    Drain,
    /// It is drained, then its process ends.
    Stop,
}

/// Phase of a worker's life.
#[derive(Clone, Debug, PartialEq)]
pub(super) enum Phase {
    /// Its memory is being planned.
    Planning,
    /// Its process was requested and must call back before `until`.
    Starting { until: Time },
    /// It serves requests.
    Ready { since: Time },
    /// It gets no more requests. With `end`, it is terminated when it has none left, at `end` at
    /// the latest.
    Draining { end: Option<Time> },
    /// It was sent SIGTERM and is sent SIGKILL at `kill`.
    Stopping { kill: Time },
    /// It was sent SIGKILL; `then` is handled when its process is gone.
    Killing { then: Box<Failure> },
    /// It has no process; `again` is the time of the next attempt.
    Failed { again: Time, is_open: bool },
    /// Its host, which is another one, does not answer or does not serve the model now.
    Absent,
}

/// Health of a worker from its probes.
#[derive(Clone, Debug, Default)]
pub(super) struct ProbeState {
    /// Time of the next probe.
    pub(super) next: Time,
    /// Whether a probe is running.
    pub(super) running: bool,
    /// Missed probes in a row.
    pub(super) misses: u32,
    /// Time of the last missed probe that counted.
    pub(super) last_miss: Option<Time>,
}

/// A worker.
#[derive(Clone, Debug)]
pub(super) struct Worker {
    pub(super) record: Record,
    /// The other host that it is on. The manager neither starts nor ends it.
    pub(super) host: Option<String>,
    pub(super) phase: Phase,
    /// Numbers its processes. Events of an earlier process are ignored.
    pub(super) attempt: u64,
    /// Attempts in a row whose port was taken.
    pub(super) ports: u32,
    pub(super) failures: FailureHistory,
    /// Results of its probes.
    pub(super) probes: ProbeState,
    /// Running requests.
    pub(super) active: u64,
    /// Their tokens.
    pub(super) tokens: u64,
    /// Turn of its last request; among equally loaded workers the one with the smallest is next.
    pub(super) last: u64,
    pub(super) why: Option<Failure>,
    pub(super) exit_code: Option<i32>,
}

impl Worker {
    pub(super) fn new(record: Record, phase: Phase) -> Worker {
        Worker {
            record,
            host: None,
            phase,
            attempt: 1,
            ports: 0,
            failures: FailureHistory::default(),
            probes: ProbeState::default(),
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
            // Its host has not been probed yet.
            Phase::Absent if self.why.is_none() => State::Starting,
            Phase::Absent => State::Failed,
        }
    }

    /// Bytes reserved for it. A worker that has been ready keeps its memory while it restarts, so
    /// that no other worker takes it. A worker that was never ready, or whose circuit breaker is
    /// open, keeps none and is planned anew on its next attempt.
    pub(super) fn reserved_bytes(&self) -> u64 {
        let keeps = match self.phase {
            Phase::Planning => false,
            Phase::Failed { is_open, .. } => self.record.been_ready && !is_open,
            _ => true,
        };
        if keeps { self.record.planned.as_ref().map_or(0, |p| p.bytes) } else { 0 }
    }

    /// Whether its process runs.
    pub(super) fn has_process(&self) -> bool {
        self.record.process.is_some()
    }
}
