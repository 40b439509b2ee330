//! What comes into the core and what goes out.

use super::backoff::Patience;
use super::place::Device;
use super::worker::{Planned, Process, Spec};
use sconce_api::pool::Failure;
use std::time::Duration;

/// How long things may take.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Timings {
    /// From the start of a process until it calls back.
    pub start: Duration,
    /// Between two probes.
    pub probe: Duration,
    /// For the answer to one.
    pub answer: Duration,
    /// So many missed in a row mean failed.
    pub misses: u32,
    /// For requests to end before a worker is asked to.
    pub drain: Duration,
    /// From SIGTERM to SIGKILL.
    pub term: Duration,
    /// Between failures.
    pub patience: Patience,
}

impl Default for Timings {
    fn default() -> Timings {
        Timings {
            start: Duration::from_secs(60),
            probe: Duration::from_secs(10),
            answer: Duration::from_secs(5),
            misses: 3,
            drain: Duration::from_secs(30),
            term: Duration::from_secs(30),
            patience: Patience::default(),
        }
    }
}

/// What happened.
#[derive(Clone, Debug)]
pub enum Event {
    /// What a worker takes was worked out, and the devices were looked at.
    Planned {
        /// What it takes; or why it cannot be.
        outcome: Result<(Planned, Vec<Device>), Box<Failure>>,
    },
    /// Its process runs.
    Spawned {
        /// The process.
        process: Process,
        /// The port it was given.
        port: u16,
    },
    /// There is no process.
    NotSpawned(String),
    /// The process has ended.
    Exited {
        /// What it said; `None` where a signal ended it, or nobody heard.
        code: Option<i32>,
        /// In words.
        how: String,
    },
    /// It answered a probe, or did not.
    Probed(Answer),
}

/// What came of a probe.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Answer {
    /// It is well.
    Well,
    /// It did not answer, or not as itself.
    Missed(String),
    /// It could not be asked, for want of something of ours: that says nothing of it.
    Unasked,
}

/// What is to be done. `attempt` comes back with the news.
#[derive(Clone, Debug, PartialEq)]
pub enum Action {
    /// Look at the devices, and work out what the model takes on one of them; `Planned` tells.
    Plan {
        /// Of which worker.
        id: String,
        /// Its attempt.
        attempt: u64,
        /// What it is to be.
        spec: Spec,
    },
    /// Start a process; `Spawned` or `NotSpawned` tells, and `Exited` in the end.
    Spawn {
        /// Of which worker.
        id: String,
        /// Its attempt.
        attempt: u64,
        /// What it is to be.
        spec: Spec,
        /// Where it is to run.
        device: String,
    },
    /// Ask it how it is; `Probed` tells.
    Probe {
        /// Of which worker.
        id: String,
        /// Its attempt.
        attempt: u64,
        /// Where it listens.
        port: u16,
    },
    /// Ask the process to end.
    Terminate(Process),
    /// End it.
    Kill(Process),
    /// Keep the records.
    Save,
}

/// What was found of a worker that an earlier manager started.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Found {
    /// It runs, and says over HTTP who it is.
    Serving,
    /// Its process runs, and nothing is heard of it.
    Silent,
    /// It does not run.
    Gone,
}
