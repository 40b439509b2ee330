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
    /// Probes of other hosts.
    pub hosts: HostTimings,
}

/// Intervals of the probes of other hosts. They are shorter than those of workers: a worker that
/// dies closes its connections, while a host that vanishes leaves them open.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct HostTimings {
    /// Between the starts of two probes.
    pub probe: Duration,
    /// Time-out of a probe.
    pub answer: Duration,
    /// Missed probes in a row after which requests are routed around the host.
    pub misses: u32,
    /// Missed probes in a row after which responses that have begun are ended.
    pub end_misses: u32,
    /// Between two readings of the models that a healthy host serves.
    pub models: Duration,
    /// How long a request waits for another worker, or for its host to come back, when its host is
    /// lost.
    pub wait: Duration,
}

impl Default for HostTimings {
    /// A silent host is found within three seconds: up to one until the next probe, and two probes.
    /// Its responses that have begun cannot be repeated, so they wait for one probe more.
    fn default() -> HostTimings {
        HostTimings {
            probe: Duration::from_secs(1),
            answer: Duration::from_secs(1),
            misses: 2,
            end_misses: 3,
            models: Duration::from_secs(30),
            wait: Duration::from_secs(45),
        }
    }
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
            hosts: HostTimings::default(),
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
    /// Probe another host; answered by [`super::Core::host_probed`].
    ProbeHost {
        /// Its name.
        host: String,
        /// Whether the models that it serves must be read too.
        models: bool,
    },
    /// Requests to this host whose response has not begun must go elsewhere.
    LoseHost(String),
    /// Responses of this host that have begun cannot be completed.
    EndResponses(String),
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
