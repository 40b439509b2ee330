//! What becomes of workers. Pure: what happened and the time come in, what is to be done comes out. No process, socket, file
//! or clock is touched here.
//!
//! ```text
//!            plan          spawn            callback
//! declared ───────▶ planning ──▶ starting ──────────▶ ready ⇄ busy ──drain──▶ draining ──▶ stopping ──▶ gone
//!                      ▲             │ late, exit        │ exit, 3 misses                       │ late: killed
//!                      └── backoff ──┴──── failed ◀──────┘
//! ```
//!
//! Whatever runs is told apart by its *attempt*: news of an earlier process of the same worker changes nothing.

mod backoff;
mod news;
mod place;
mod route;
mod status;
mod watch;
mod worker;

#[cfg(test)]
mod tests;

pub use backoff::Patience;
pub use news::{Action, Answer, Event, Found, Timings};

pub use place::{Device, kind};
pub use route::{Ask, NoRoute, Target};
pub use status::{Counts, Outcome, STOPS};
pub use worker::{Birth, Leaving, Origin, Planned, Process, Record, Spec};

use place::Held;
use route::Affinity;
use sconce_api::pool::{Code, Ended, Failure};
use sconce_api::worker::PORT_TAKEN;
use std::collections::{BTreeMap, VecDeque};
use std::time::Duration;
use worker::{Phase, Watched, Worker};

/// Since the manager began.
pub type Time = Duration;

/// Endings that are remembered.
const REMEMBERED: usize = 64;
/// How often in a row another port is tried.
const PORTS: u32 = 5;

/// The manager's mind.
pub struct Core {
    timings: Timings,
    devices: Vec<Device>,
    workers: BTreeMap<String, Worker>,
    ended: VecDeque<(Ended, Option<Failure>)>,
    affinity: Affinity,
    /// Requests that were routed.
    turn: u64,
    counts: Counts,
}

impl Core {
    /// Nothing runs.
    pub fn new(timings: Timings, devices: Vec<Device>) -> Core {
        let (workers, ended) = (BTreeMap::new(), VecDeque::new());
        Core { timings, devices, workers, ended, affinity: Affinity::default(), turn: 0, counts: Counts::default() }
    }

    /// A worker that is to be. `id` is new.
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

    /// A worker that an earlier manager started.
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
                worker.watched = Watched { next: now + self.timings.probe, ..Watched::default() };
            }
            Found::Silent => {}
            Found::Gone => {
                worker.record.process = None;
                let why = "it was not there when the manager came back";
                worker.why = Some(Failure::new(Code::WorkerStartFailed, why));
            }
        }
        self.workers.insert(id.clone(), worker);
        let mut actions = match leaving {
            Leaving::Stop => self.stop(&id, now).unwrap_or_default(),
            Leaving::Drain if found != Found::Gone => self.drain(&id).unwrap_or_default(),
            // Nobody wants what was drained and is gone.
            Leaving::Drain => self.stop(&id, now).unwrap_or_default(),
            Leaving::No => Vec::new(),
        };
        actions.push(Action::Save);
        actions.extend(self.tick(now));
        actions
    }

    /// Takes no more requests; those under way end as they will.
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

    /// Drains it and ends it.
    pub fn stop(&mut self, id: &str, now: Time) -> Result<Vec<Action>, Box<Failure>> {
        let worker = self.workers.get_mut(id).ok_or_else(|| unknown(id))?;
        worker.record.leaving = Leaving::Stop;
        let mut actions = vec![Action::Save];
        match worker.phase {
            Phase::Ready { .. } | Phase::Draining { end: None } => {
                worker.phase = Phase::Draining { end: Some(now + self.timings.drain) };
                actions.extend(self.settle(id, now));
            }
            Phase::Starting { .. } if worker.has_process() => actions.extend(self.terminate(id, now)),
            // `Spawned` will find that it is to leave.
            Phase::Starting { .. } => {}
            Phase::Planning | Phase::Failed { .. } => self.remove(id, "it was stopped", None),
            Phase::Draining { .. } | Phase::Stopping { .. } | Phase::Killing { .. } => {}
        }
        Ok(actions)
    }

    /// Something happened to a worker.
    pub fn handle(&mut self, id: &str, attempt: u64, event: Event, now: Time) -> Vec<Action> {
        if self.workers.get(id).is_none_or(|w| w.attempt != attempt) {
            // A process that came to be after its worker was given up.
            let Event::Spawned { process, .. } = event else { return Vec::new() };
            return vec![Action::Kill(process)];
        }
        match event {
            Event::Planned { outcome } => self.planned(id, outcome, now),
            Event::Spawned { process, port } => self.spawned(id, process, port, now),
            Event::NotSpawned(why) => {
                let why = format!("its process could not be started: {why}");
                self.fail(id, Failure::new(Code::WorkerStartFailed, why), now)
            }
            Event::Exited { code, how } => self.exited(id, code, &how, now),
            Event::Probed(answer) => self.probed(id, answer, now),
        }
    }

    /// A worker says that it is ready. Whether it is the one it says, and allowed to say so, is known.
    pub fn called(&mut self, id: &str, now: Time) -> Result<Vec<Action>, Box<Failure>> {
        let worker = self.workers.get_mut(id).ok_or_else(|| unknown(id))?;
        let Phase::Starting { .. } = worker.phase else { return Ok(Vec::new()) };
        worker.phase = Phase::Ready { since: now };
        worker.watched = Watched { next: now + self.timings.probe, ..Watched::default() };
        worker.record.been_ready = true;
        worker.ports = 0;
        self.counts.started += 1;
        if worker.record.leaving == Leaving::Drain {
            worker.phase = Phase::Draining { end: None };
        }
        Ok(vec![Action::Save])
    }

    /// Time went by.
    pub fn tick(&mut self, now: Time) -> Vec<Action> {
        let ids: Vec<String> = self.workers.keys().cloned().collect();
        ids.iter().flat_map(|id| self.due(id, now)).collect()
    }

    /// What is due of one worker.
    fn due(&mut self, id: &str, now: Time) -> Vec<Action> {
        let Some(worker) = self.workers.get(id) else { return Vec::new() };
        match &worker.phase {
            Phase::Starting { until } if *until <= now => {
                let seconds = self.timings.start.as_secs();
                let why = format!("it was not ready within {seconds} s; give it longer with start_timeout");
                self.kill(id, Failure::new(Code::WorkerStartTimeout, why), now)
            }
            Phase::Ready { .. } | Phase::Draining { .. } => {
                let mut actions = self.probe(id, now);
                actions.extend(self.settle(id, now));
                actions
            }
            Phase::Stopping { kill } if *kill <= now => {
                let seconds = self.timings.term.as_secs();
                let why = format!("it did not end within {seconds} s of being asked to");
                self.kill(id, Failure::new(Code::WorkerFailed, why), now)
            }
            Phase::Failed { again, .. } if *again <= now => self.again(id, now),
            _ => Vec::new(),
        }
    }

    fn planned(&mut self, id: &str, outcome: Result<(Planned, Vec<Device>), Box<Failure>>, now: Time) -> Vec<Action> {
        let placed = outcome.and_then(|(planned, devices)| {
            self.devices = devices;
            let wanted = self.workers[id].record.spec.device.clone();
            let device = place::choose(&self.devices, &wanted, |d| self.held(d))?;
            place::admit(&device, self.held(&device.device), planned.bytes)?;
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

    /// The devices were looked at.
    pub fn saw(&mut self, devices: Vec<Device>) {
        self.devices = devices;
    }

    /// The device that a worker would be put on now.
    pub fn place(&self, wanted: &str, devices: &[Device]) -> Result<Device, Box<Failure>> {
        place::choose(devices, wanted, |d| self.held(d))
    }

    /// The bytes that a device's workers have been promised.
    fn held(&self, device: &str) -> Held {
        let on = |w: &&Worker| w.record.device.as_deref() == Some(device);
        let is_coming = |w: &&Worker| matches!(w.phase, Phase::Starting { .. } | Phase::Failed { .. });
        let here = || self.workers.values().filter(on);
        Held { all: here().map(Worker::holds).sum(), coming: here().filter(is_coming).map(Worker::holds).sum() }
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
            // The time for it to start was over before there was a process.
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
            Phase::Starting { .. } if code == Some(PORT_TAKEN) && worker.ports < PORTS => {
                worker.ports += 1;
                worker.attempt += 1;
                self.spawn(id, now)
            }
            Phase::Starting { .. } => {
                let why = format!("it ended before it was ready: {how}");
                self.fail(id, Failure::new(Code::WorkerStartFailed, why), now)
            }
            Phase::Ready { since, .. } => {
                worker.backoff.ran(since, now, &timings.patience);
                self.fail(id, Failure::new(Code::WorkerFailed, format!("it ended: {how}")), now)
            }
            Phase::Draining { .. } => {
                self.counts.stopped("failed");
                self.remove(id, &format!("it ended before it was asked to: {how}"), code);
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
            Phase::Planning | Phase::Failed { .. } => Vec::new(),
        }
    }

    /// Asks a drained worker to end, if nothing keeps it.
    fn settle(&mut self, id: &str, now: Time) -> Vec<Action> {
        match self.workers.get(id) {
            Some(Worker { phase: Phase::Draining { end: Some(end) }, active, .. }) if *active == 0 || *end <= now => {
                self.terminate(id, now)
            }
            _ => Vec::new(),
        }
    }

    fn terminate(&mut self, id: &str, now: Time) -> Vec<Action> {
        let Some(worker) = self.workers.get_mut(id) else { return Vec::new() };
        worker.phase = Phase::Stopping { kill: now + self.timings.term };
        worker.record.process.map(Action::Terminate).into_iter().collect()
    }

    /// Ends a process that does not end, or does not answer, by itself. What follows, follows when it is gone.
    fn kill(&mut self, id: &str, then: Failure, now: Time) -> Vec<Action> {
        let Some(worker) = self.workers.get_mut(id) else { return Vec::new() };
        worker.why = Some(then.clone());
        if let Phase::Ready { since, .. } = worker.phase {
            worker.backoff.ran(since, now, &self.timings.patience);
        }
        worker.phase = Phase::Killing { then: Box::new(then) };
        worker.record.process.map(Action::Kill).into_iter().collect()
    }

    /// It does not run. It is tried again, unless it was asked for and never came to be.
    fn fail(&mut self, id: &str, why: Failure, now: Time) -> Vec<Action> {
        let Some(worker) = self.workers.get_mut(id) else { return Vec::new() };
        let never = !worker.record.been_ready;
        if never {
            self.counts.failed(why.error_code);
        } else {
            self.counts.stopped("failed");
        }
        if never && worker.record.spec.origin == Origin::Asked || worker.record.leaving != Leaving::No {
            let code = worker.exit_code;
            let message = why.message.clone();
            self.remove(id, &message, code);
            if let Some((_, failure)) = self.ended.back_mut() {
                *failure = Some(why);
            }
            return vec![Action::Save];
        }
        let again = worker.backoff.failed(now, &self.timings.patience);
        worker.phase = Phase::Failed { again: again.at, is_open: again.is_open };
        worker.why = Some(why);
        // What is still heard of this process is no news.
        worker.attempt += 1;
        vec![Action::Save]
    }

    /// Another try.
    fn again(&mut self, id: &str, now: Time) -> Vec<Action> {
        let Some(worker) = self.workers.get_mut(id) else { return Vec::new() };
        worker.record.restarts += 1;
        if worker.holds() > 0 {
            return self.spawn(id, now);
        }
        worker.phase = Phase::Planning;
        vec![Action::Plan { id: id.into(), attempt: worker.attempt, spec: worker.record.spec.clone() }]
    }

    fn remove(&mut self, id: &str, why: &str, exit_code: Option<i32>) {
        let Some(worker) = self.workers.remove(id) else { return };
        self.affinity.forget(id);
        if self.ended.len() == REMEMBERED {
            self.ended.pop_front();
        }
        let model_ref = worker.record.spec.model;
        self.ended.push_back((Ended { id: id.into(), model_ref, why: why.into(), exit_code }, None));
    }
}

fn unknown(id: &str) -> Box<Failure> {
    let message = format!("there is no worker {id}; GET /v2/state lists those there are");
    Box::new(Failure::new(Code::WorkerNotFound, message))
}
