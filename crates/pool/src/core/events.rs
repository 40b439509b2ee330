//! Events that the core handles and actions that it requests.

use super::backoff::Backoff;
use super::placement::Device;
use super::worker::{Planned, Process, Spec};
use sconce_api::pool::Failure;
use std::time::Duration;

/// Time-outs and intervals.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Timings {
    /// From the start of a process until its ready callback.
    pub start: Duration,
    /// Between two probes.
    pub probe: Duration,
    /// Time-out of a probe.
    pub answer: Duration,
    /// Missed probes in a row after which a worker has failed.
    pub misses: u32,
    /// For running requests to finish before a worker is terminated.
    pub drain: Duration,
    /// From SIGTERM to SIGKILL.
    pub term: Duration,
    /// Delays between restarts.
    pub backoff: Backoff,
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
            backoff: Backoff::default(),
        }
    }
}

/// What happened to a worker.
#[derive(Clone, Debug)]
pub enum Event {
    /// Its memory was planned and the devices were inspected.
    Planned {
        /// The plan and the devices, or why planning failed.
        outcome: Result<(Planned, Vec<Device>), Box<Failure>>,
    },
    /// Its process was spawned.
    Spawned {
        /// The process.
        process: Process,
        /// The port it was given.
        port: u16,
    },
    /// Its process could not be spawned.
    NotSpawned(String),
    /// The process has exited.
    Exited {
        /// Exit code; `None` if a signal ended the process or the code is unknown.
        code: Option<i32>,
        /// Description for people.
        how: String,
    },
    /// A probe has ended.
    Probed(ProbeResult),
}

/// Result of a probe.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum ProbeResult {
    /// The worker is healthy.
    Healthy,
    /// The worker did not answer, or another program did.
    Missed(String),
    /// The manager could not send the probe, which says nothing about the worker.
    NotSent,
}

/// What the manager must do. `attempt` comes back with the event.
#[derive(Clone, Debug, PartialEq)]
pub enum Action {
    /// Inspect the devices and plan the model's memory on one of them; answered by `Planned`.
    Plan {
        /// The worker.
        id: String,
        /// Its attempt.
        attempt: u64,
        /// Its specification.
        spec: Spec,
    },
    /// Spawn a process; answered by `Spawned` or `NotSpawned`, and later by `Exited`.
    Spawn {
        /// The worker.
        id: String,
        /// Its attempt.
        attempt: u64,
        /// Its specification.
        spec: Spec,
        /// The device to run on.
        device: String,
    },
    /// Probe the worker's health; answered by `Probed`.
    Probe {
        /// The worker.
        id: String,
        /// Its attempt.
        attempt: u64,
        /// Its port.
        port: u16,
    },
    /// Send SIGTERM.
    Terminate(Process),
    /// Send SIGKILL.
    Kill(Process),
    /// Write the records to disk.
    Save,
}

/// What a restarted manager finds of a worker of its predecessor.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Found {
    /// It runs and answers over HTTP under its own id.
    Serving,
    /// Its process runs but does not answer as ready.
    Silent,
    /// Its process is gone.
    Gone,
}
