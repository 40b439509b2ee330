//! Decisions about workers. Pure: events and the time come in, actions come out. The core touches
//! no process, socket, file or clock.
//!
//! ```text
//!            plan          spawn            callback
//! declared ───────▶ planning ──▶ starting ──────────▶ ready ⇄ busy ──drain──▶ draining ──▶ stopping ──▶ gone
//!                      ▲             │ late, exit        │ exit, 3 misses                       │ late: killed
//!                      └── backoff ──┴──── failed ◀──────┘
//! ```
//!
//! Each process of a worker is an *attempt*; events of an earlier attempt are ignored.
//!
//! Workers on other hosts are `ready` or `absent` as the probes of their host say ([`HostProbe`]).

mod backoff;
mod events;
mod host;
mod placement;
mod probe;
mod route;
mod status;
mod worker;

#[cfg(test)]
mod tests;

pub use backoff::Backoff;
pub use events::{Action, Event, Found, HostTimings, ProbeResult, Timings};
pub use host::{HostProbe, HostSpec, ServedModel};

pub use placement::{Device, kind};
pub use route::{Endpoint, NoRoute, RouteQuery, Target};
pub use status::{Counts, Outcome, STOPS, Serving};
pub use worker::{Leaving, Origin, Planned, Process, Record, Spec, StartTime};

use host::Host;
use route::Affinity;
use sconce_api::pool::{Code, Ended, Failure};
use sconce_api::worker::PORT_TAKEN;
use std::collections::{BTreeMap, VecDeque};
use std::time::Duration;
use worker::{Phase, ProbeState, Worker};

/// Time since the manager started.
pub type Time = Duration;

/// Ended workers that are remembered.
const MAX_ENDED: usize = 64;
/// Attempts in a row with another port.
const MAX_PORT_TRIES: u32 = 5;

/// State and decisions of the manager.
pub struct Core {
    timings: Timings,
    devices: Vec<Device>,
    workers: BTreeMap<String, Worker>,
    /// Other hosts by name.
    hosts: BTreeMap<String, Host>,
    ended: VecDeque<(Ended, Option<Failure>)>,
    affinity: Affinity,
    /// Number of requests routed.
    turn: u64,
    counts: Counts,
}

impl Core {
    /// A core without workers.
    pub fn new(timings: Timings, devices: Vec<Device>) -> Core {
        let (workers, hosts, ended) = (BTreeMap::new(), BTreeMap::new(), VecDeque::new());
        let (affinity, counts) = (Affinity::default(), Counts::default());
        Core { timings, devices, workers, hosts, ended, affinity, turn: 0, counts }
    }

    /// Adds a worker. `id` must be unused.
    pub fn start(&mut self, id: String, spec: Spec) -> Vec<Action> {
        let record = Record {
            id: id.clone(),
            spec: spec.clone(),
            device: None,
            planned: None,
            process: None,
            port: 0,
            been_ready: false,
            leaving: Leaving::No,
            restarts: 0,
        };
        let worker = Worker::new(record, Phase::Planning);
        let attempt = worker.attempt;
        self.workers.insert(id.clone(), worker);
        vec![Action::Save, Action::Plan { id, attempt, spec }]
    }

    /// Adds a worker that an earlier manager started.
    pub fn adopt(&mut self, record: Record, found: Found, now: Time) -> Vec<Action> {
        let (id, leaving) = (record.id.clone(), record.leaving);
        let phase = match found {
            Found::Serving => Phase::Ready { since: now },
            Found::Silent => Phase::Starting { until: now + self.timings.start },
            Found::Gone => Phase::Failed { again: now, is_open: false },
        };
        let mut worker = Worker::new(record, phase);
        match found {
            Found::Serving => {
                worker.record.been_ready = true;
                worker.probes = ProbeState { next: now + self.timings.probe, ..ProbeState::default() };
            }
            Found::Silent => {}
            Found::Gone => {
                worker.record.process = None;
                let why = "its process was gone when the manager restarted";
                worker.why = Some(Failure::new(Code::WorkerStartFailed, why));
            }
        }
        self.workers.insert(id.clone(), worker);
        let mut actions = match leaving {
            Leaving::Stop => self.stop(&id, now).unwrap_or_default(),
            Leaving::Drain if found != Found::Gone => self.drain(&id).unwrap_or_default(),
            // A drained worker that is gone is not started again.
            Leaving::Drain => self.stop(&id, now).unwrap_or_default(),
            Leaving::No => Vec::new(),
        };
        actions.push(Action::Save);
        actions.extend(self.tick(now));
        actions
    }

    /// Stops routing requests to a worker; its running requests finish.
    pub fn drain(&mut self, id: &str) -> Result<Vec<Action>, Box<Failure>> {
        let worker = self.workers.get_mut(id).ok_or_else(|| unknown(id))?;
        if matches!(worker.phase, Phase::Ready { .. }) {
            worker.phase = Phase::Draining { end: None };
        }
        if worker.record.leaving == Leaving::No {
            worker.record.leaving = Leaving::Drain;
        }
        Ok(vec![Action::Save])
    }

    /// Drains a worker and ends its process.
    pub fn stop(&mut self, id: &str, now: Time) -> Result<Vec<Action>, Box<Failure>> {
        let worker = self.workers.get_mut(id).ok_or_else(|| unknown(id))?;
        worker.record.leaving = Leaving::Stop;
        let mut actions = vec![Action::Save];
        match worker.phase {
            Phase::Ready { .. } | Phase::Draining { end: None } => {
                worker.phase = Phase::Draining { end: Some(now + self.timings.drain) };
                actions.extend(self.terminate_if_drained(id, now));
            }
            Phase::Starting { .. } if worker.has_process() => actions.extend(self.terminate(id, now)),
            // `spawned` terminates it.
            Phase::Starting { .. } => {}
            Phase::Planning | Phase::Failed { .. } | Phase::Absent => self.remove(id, "it was stopped", None),
            Phase::Draining { .. } | Phase::Stopping { .. } | Phase::Killing { .. } => {}
        }
        Ok(actions)
    }

    /// Handles an event of a worker.
    pub fn handle(&mut self, id: &str, attempt: u64, event: Event, now: Time) -> Vec<Action> {
        if self.workers.get(id).is_none_or(|w| w.attempt != attempt) {
            // The process was spawned after its worker was removed.
            let Event::Spawned { process, .. } = event else { return Vec::new() };
            return vec![Action::Kill(process)];
        }
        match event {
            Event::Planned { outcome } => self.planned(id, outcome, now),
            Event::Spawned { process, port } => self.spawned(id, process, port, now),
            Event::NotSpawned(why) => {
                let why = format!("cannot start its process: {why}");
                self.fail(id, Failure::new(Code::WorkerStartFailed, why), now)
            }
            Event::Exited { code, how } => self.exited(id, code, &how, now),
            Event::Probed(answer) => self.probed(id, answer, now),
        }
    }

    /// Handles the ready callback of a worker. The caller has checked the token and the port.
    pub fn ready_callback(&mut self, id: &str, now: Time) -> Result<Vec<Action>, Box<Failure>> {
        let worker = self.workers.get_mut(id).ok_or_else(|| unknown(id))?;
        let Phase::Starting { .. } = worker.phase else { return Ok(Vec::new()) };
        worker.phase = Phase::Ready { since: now };
        worker.probes = ProbeState { next: now + self.timings.probe, ..ProbeState::default() };
        worker.record.been_ready = true;
        worker.ports = 0;
        self.counts.started += 1;
        if worker.record.leaving == Leaving::Drain {
            worker.phase = Phase::Draining { end: None };
        }
        Ok(vec![Action::Save])
    }

    /// Handles the passing of time.
    pub fn tick(&mut self, now: Time) -> Vec<Action> {
        let ids: Vec<String> = self.workers.keys().cloned().collect();
        let mut actions: Vec<Action> = ids.iter().flat_map(|id| self.due(id, now)).collect();
        actions.extend(self.probe_hosts(now));
        actions
    }

    /// Timed actions of one worker.
    fn due(&mut self, id: &str, now: Time) -> Vec<Action> {
        let Some(worker) = self.workers.get(id) else { return Vec::new() };
        match &worker.phase {
            Phase::Starting { until } if *until <= now => {
                let seconds = self.timings.start.as_secs();
                let why = format!("it was not ready within {seconds} s; raise start_timeout to allow more");
                self.kill(id, Failure::new(Code::WorkerStartTimeout, why), now)
            }
            Phase::Ready { .. } | Phase::Draining { .. } => {
                let mut actions = self.probe(id, now);
                actions.extend(self.terminate_if_drained(id, now));
                actions
            }
            Phase::Stopping { kill } if *kill <= now => {
                let seconds = self.timings.term.as_secs();
                let why = format!("it did not exit within {seconds} s of SIGTERM");
                self.kill(id, Failure::new(Code::WorkerFailed, why), now)
            }
            Phase::Failed { again, .. } if *again <= now => self.retry(id, now),
            _ => Vec::new(),
        }
    }

    fn planned(&mut self, id: &str, outcome: Result<(Planned, Vec<Device>), Box<Failure>>, now: Time) -> Vec<Action> {
        let placed = outcome.and_then(|(planned, devices)| {
            self.devices = devices;
            let wanted = self.workers[id].record.spec.device.clone();
            let device = placement::choose(&self.devices, &wanted, |d| self.reserved(d))?;
            placement::admit(&device, self.reserved(&device.device), planned.bytes)?;
            Ok((planned, device.device))
        });
        match placed {
            Ok((planned, device)) => {
                if let Some(worker) = self.workers.get_mut(id) {
                    worker.record.planned = Some(planned);
                    worker.record.device = Some(device);
                }
                self.spawn(id, now)
            }
            Err(why) => self.fail(id, *why, now),
        }
    }

    fn spawn(&mut self, id: &str, now: Time) -> Vec<Action> {
        let Some(worker) = self.workers.get_mut(id) else { return Vec::new() };
        worker.phase = Phase::Starting { until: now + self.timings.start };
        let (attempt, spec) = (worker.attempt, worker.record.spec.clone());
        let device = worker.record.device.clone().unwrap_or_else(|| spec.device.clone());
        vec![Action::Spawn { id: id.into(), attempt, spec, device }]
    }

    fn spawned(&mut self, id: &str, process: Process, port: u16, now: Time) -> Vec<Action> {
        let Some(worker) = self.workers.get_mut(id) else { return Vec::new() };
        (worker.record.process, worker.record.port) = (Some(process), port);
        let mut actions = vec![Action::Save];
        match &worker.phase {
            Phase::Starting { .. } if worker.record.leaving == Leaving::Stop => actions.extend(self.terminate(id, now)),
            // The start timed out before the process was spawned.
            Phase::Killing { .. } => actions.push(Action::Kill(process)),
            _ => {}
        }
        actions
    }

    fn exited(&mut self, id: &str, code: Option<i32>, how: &str, now: Time) -> Vec<Action> {
        let timings = self.timings;
        let Some(worker) = self.workers.get_mut(id) else { return Vec::new() };
        worker.record.process = None;
        worker.exit_code = code;
        match worker.phase.clone() {
            Phase::Starting { .. } if worker.record.leaving == Leaving::Stop => {
                self.remove(id, "it was stopped", code);
                vec![Action::Save]
            }
            Phase::Starting { .. } if code == Some(PORT_TAKEN) && worker.ports < MAX_PORT_TRIES => {
                worker.ports += 1;
                worker.attempt += 1;
                self.spawn(id, now)
            }
            Phase::Starting { .. } => {
                let why = format!("it exited before it was ready: {how}");
                self.fail(id, Failure::new(Code::WorkerStartFailed, why), now)
            }
            Phase::Ready { since, .. } => {
                worker.failures.ran(since, now, &timings.backoff);
                self.fail(id, Failure::new(Code::WorkerFailed, format!("it exited: {how}")), now)
            }
            Phase::Draining { .. } => {
                self.counts.stopped("failed");
                self.remove(id, &format!("it exited while it was being drained: {how}"), code);
                vec![Action::Save]
            }
            Phase::Stopping { .. } => {
                self.counts.stopped("requested");
                self.remove(id, &format!("it was stopped: {how}"), code);
                vec![Action::Save]
            }
            Phase::Killing { then } if worker.record.leaving == Leaving::No => self.fail(id, *then, now),
            Phase::Killing { then } => {
                self.counts.stopped("killed");
                self.remove(id, &then.message, code);
                vec![Action::Save]
            }
            Phase::Planning | Phase::Failed { .. } | Phase::Absent => Vec::new(),
        }
    }

    /// Terminates a draining worker that has no requests left or has run out of time.
    fn terminate_if_drained(&mut self, id: &str, now: Time) -> Vec<Action> {
        match self.workers.get(id) {
            Some(Worker { phase: Phase::Draining { end: Some(end) }, active, .. }) if *active == 0 || *end <= now => {
                self.terminate(id, now)
            }
            _ => Vec::new(),
        }
    }

    fn terminate(&mut self, id: &str, now: Time) -> Vec<Action> {
        let Some(worker) = self.workers.get_mut(id) else { return Vec::new() };
        if let Some(host) = &worker.host {
            let why = format!("it was stopped: requests no longer go to {host}, whose server still runs");
            self.counts.stopped("requested");
            self.remove(id, &why, None);
            return vec![Action::Save];
        }
        worker.phase = Phase::Stopping { kill: now + self.timings.term };
        worker.record.process.map(Action::Terminate).into_iter().collect()
    }

    /// Kills a process that does not exit or answer. `then` is handled when the process is gone.
    fn kill(&mut self, id: &str, then: Failure, now: Time) -> Vec<Action> {
        let Some(worker) = self.workers.get_mut(id) else { return Vec::new() };
        worker.why = Some(then.clone());
        if let Phase::Ready { since, .. } = worker.phase {
            worker.failures.ran(since, now, &self.timings.backoff);
        }
        worker.phase = Phase::Killing { then: Box::new(then) };
        worker.record.process.map(Action::Kill).into_iter().collect()
    }

    /// Handles a worker without a process. It is retried, unless a request started it and it was
    /// never ready.
    fn fail(&mut self, id: &str, why: Failure, now: Time) -> Vec<Action> {
        let Some(worker) = self.workers.get_mut(id) else { return Vec::new() };
        let never = !worker.record.been_ready;
        if never {
            self.counts.failed(why.error_code);
        } else {
            self.counts.stopped("failed");
        }
        if never && worker.record.spec.origin == Origin::Requested || worker.record.leaving != Leaving::No {
            let code = worker.exit_code;
            let message = why.message.clone();
            self.remove(id, &message, code);
            if let Some((_, failure)) = self.ended.back_mut() {
                *failure = Some(why);
            }
            return vec![Action::Save];
        }
        let again = worker.failures.failed(now, &self.timings.backoff);
        worker.phase = Phase::Failed { again: again.at, is_open: again.is_open };
        worker.why = Some(why);
        // Ignore later events of this process.
        worker.attempt += 1;
        vec![Action::Save]
    }

    /// Starts the next attempt.
    fn retry(&mut self, id: &str, now: Time) -> Vec<Action> {
        let Some(worker) = self.workers.get_mut(id) else { return Vec::new() };
        worker.record.restarts += 1;
        if worker.reserved_bytes() > 0 {
            return self.spawn(id, now);
        }
        worker.phase = Phase::Planning;
        vec![Action::Plan { id: id.into(), attempt: worker.attempt, spec: worker.record.spec.clone() }]
    }

    fn remove(&mut self, id: &str, why: &str, exit_code: Option<i32>) {
        let Some(worker) = self.workers.remove(id) else { return };
        self.affinity.forget(id);
        if self.ended.len() == MAX_ENDED {
            self.ended.pop_front();
        }
        let model_ref = worker.record.spec.model;
        self.ended.push_back((Ended { id: id.into(), model_ref, why: why.into(), exit_code }, None));
    }
}

fn unknown(id: &str) -> Box<Failure> {
    let message = format!("no worker {id}; GET /v2/state lists the workers");
    Box::new(Failure::new(Code::WorkerNotFound, message))
}
