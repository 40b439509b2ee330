//! Servers on other hosts. The manager neither starts nor ends them: it probes each host, routes
//! requests to the models that it serves, routes around it while it does not answer, and takes it
//! back when it does. Pure.

use super::worker::{Leaving, Origin, Phase, Planned, ProbeState, Record, Spec, Worker};
use super::{Action, Core, Time};
use sconce_api::pool::{Code, Failure};
use sconce_api::worker::Tuning;

/// A server on another host.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct HostSpec {
    /// Its name.
    pub name: String,
    /// Its URL, for people.
    pub url: String,
    /// The models that it serves, each with the id of its worker.
    pub models: Vec<(String, String)>,
}

/// A model that a host serves.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct ServedModel {
    /// Its name in requests.
    pub name: String,
    /// Its task, if the host says.
    pub task: Option<String>,
    /// The device that it runs on, if the host says.
    pub device: Option<String>,
}

/// Result of a probe of a host.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum HostProbe {
    /// It answers.
    Healthy,
    /// It answers, and serves these of its models.
    Serves {
        /// The models of its [`HostSpec`] that it serves.
        models: Vec<ServedModel>,
        /// All models that it serves, for people.
        all: String,
    },
    /// It answers, but refuses the requests of this pool.
    Refused(String),
    /// It did not answer, or not as it should.
    Missed(String),
    /// The manager could not send the probe, which says nothing about the host.
    NotSent,
}

/// The state of a host.
#[derive(Clone, Debug)]
pub(super) struct Host {
    pub(super) url: String,
    probes: ProbeState,
    /// Whether requests may be sent to it.
    is_reachable: bool,
    /// Whether it was probed at least once.
    was_probed: bool,
    /// When its models are read again.
    models_due: Time,
}

impl Core {
    /// Adds a host and its workers. The models in `drained` get no requests, because an earlier
    /// manager drained them.
    pub fn join(&mut self, host: &HostSpec, drained: &[String], now: Time) {
        let probes = ProbeState { next: now, ..ProbeState::default() };
        let state = Host { url: host.url.clone(), probes, is_reachable: false, was_probed: false, models_due: now };
        self.hosts.insert(host.name.clone(), state);
        for (id, model) in &host.models {
            let record = Record {
                id: id.clone(),
                spec: Spec {
                    name: model.clone(),
                    model: model.clone(),
                    device: host.name.clone(),
                    tuning: Tuning::default(),
                    origin: Origin::Declared,
                },
                device: None,
                planned: None,
                process: None,
                port: 0,
                been_ready: false,
                leaving: if drained.contains(id) { Leaving::Drain } else { Leaving::No },
                restarts: 0,
            };
            let worker = Worker { host: Some(host.name.clone()), ..Worker::new(record, Phase::Absent) };
            self.workers.insert(id.clone(), worker);
        }
    }

    /// The workers of other hosts that are drained, for the next manager.
    pub fn drained(&self) -> Vec<String> {
        let is_drained = |w: &Worker| w.host.is_some() && w.record.leaving == Leaving::Drain;
        self.workers.iter().filter(|(_, w)| is_drained(w)).map(|(id, _)| id.clone()).collect()
    }

    /// Whether a host was not probed yet.
    pub fn is_joining(&self) -> bool {
        self.hosts.values().any(|host| !host.was_probed)
    }

    /// Whether a host answers; `None` before its first probe.
    pub fn is_reachable(&self, name: &str) -> Option<bool> {
        self.hosts.get(name).filter(|host| host.was_probed).map(|host| host.is_reachable)
    }

    /// Every host, and whether it answers.
    pub fn reachable_hosts(&self) -> Vec<(&str, bool)> {
        self.hosts.iter().map(|(name, host)| (name.as_str(), host.is_reachable)).collect()
    }

    /// Probes of hosts that are due. Hosts whose workers were all stopped are not probed.
    pub(super) fn probe_hosts(&mut self, now: Time) -> Vec<Action> {
        let Core { hosts, workers, timings, .. } = self;
        let mut actions = Vec::new();
        for (name, host) in hosts {
            let is_used = workers.values().any(|w| w.host.as_ref() == Some(name));
            if !is_used || host.probes.running || host.probes.next > now {
                continue;
            }
            (host.probes.next, host.probes.running) = (now + timings.hosts.probe, true);
            let models = !host.is_reachable || host.models_due <= now;
            actions.push(Action::ProbeHost { host: name.clone(), models });
        }
        actions
    }

    /// Probes a host at once, because a request to it failed.
    pub(super) fn probe_host_now(&mut self, name: &str, now: Time) -> Vec<Action> {
        if let Some(host) = self.hosts.get_mut(name) {
            host.probes.next = now;
        }
        self.probe_hosts(now)
    }

    /// Probes a worker at once, because its server has refused a request or does not know its model.
    /// The models of a host are read again.
    pub fn read_models_now(&mut self, id: &str, now: Time) -> Vec<Action> {
        let name = self.workers.get(id).and_then(|worker| worker.host.clone());
        if let Some(host) = name.and_then(|name| self.hosts.get_mut(&name)) {
            host.models_due = now;
        }
        self.probe_now(id, now)
    }

    /// Handles the result of a probe of a host.
    pub fn host_probed(&mut self, name: &str, result: HostProbe, now: Time) -> Vec<Action> {
        let timings = self.timings.hosts;
        let Some(host) = self.hosts.get_mut(name) else { return Vec::new() };
        host.probes.running = false;
        match result {
            HostProbe::NotSent => return Vec::new(),
            HostProbe::Healthy => {}
            HostProbe::Refused(why) => {
                (host.is_reachable, host.was_probed) = (false, true);
                self.mark_absent(name, why);
            }
            HostProbe::Missed(why) => return self.host_missed(name, &why, now),
            HostProbe::Serves { models, all } => {
                (host.is_reachable, host.was_probed, host.models_due) = (true, true, now + timings.models);
                self.set_served(name, &models, &all, now);
            }
        }
        if let Some(host) = self.hosts.get_mut(name) {
            (host.probes.misses, host.probes.last_miss) = (0, None);
        }
        Vec::new()
    }

    fn host_missed(&mut self, name: &str, why: &str, now: Time) -> Vec<Action> {
        let timings = self.timings.hosts;
        let Some(host) = self.hosts.get_mut(name) else { return Vec::new() };
        host.was_probed = true;
        let probes = &mut host.probes;
        // Every failed request triggers a probe. Misses that are close together count as one.
        let counts = probes.last_miss.is_none_or(|last| now.saturating_sub(last) >= timings.answer / 2);
        if counts {
            (probes.misses, probes.last_miss) = (probes.misses + 1, Some(now));
        }
        let misses = probes.misses;
        if host.is_reachable && misses < timings.misses {
            return Vec::new();
        }
        host.is_reachable = false;
        self.mark_absent(name, format!("{name} does not answer: {why}"));
        let mut actions = Vec::new();
        if counts && misses == timings.misses {
            actions.push(Action::LoseHost(name.into()));
        }
        if counts && misses == timings.end_misses {
            actions.push(Action::EndResponses(name.into()));
        }
        actions
    }

    /// Routes no requests to the workers of a host.
    fn mark_absent(&mut self, name: &str, why: String) {
        let why = Failure::new(Code::WorkerFailed, why);
        for worker in self.workers.values_mut().filter(|w| w.host.as_deref() == Some(name)) {
            worker.why = Some(why.clone());
            if matches!(worker.phase, Phase::Ready { .. }) {
                worker.phase = Phase::Absent;
            }
        }
    }

    /// Updates the workers of a host that answers.
    fn set_served(&mut self, name: &str, models: &[ServedModel], all: &str, now: Time) {
        for worker in self.workers.values_mut().filter(|w| w.host.as_deref() == Some(name)) {
            let served = models.iter().find(|model| model.name == worker.record.spec.name);
            match (served, &worker.phase) {
                (Some(served), phase) => {
                    if *phase == Phase::Absent {
                        worker.phase = match worker.record.leaving {
                            Leaving::No => Phase::Ready { since: now },
                            Leaving::Drain | Leaving::Stop => Phase::Draining { end: None },
                        };
                    }
                    worker.record.been_ready = true;
                    worker.record.device = served.device.as_ref().map(|device| format!("{device}@{name}"));
                    // Its memory is not this host's.
                    worker.record.planned = served.task.clone().map(|task| Planned { bytes: 0, task });
                }
                (None, phase) => {
                    let what = format!("{name} does not serve `{}` now; it serves: {all}", worker.record.spec.name);
                    worker.why = Some(Failure::new(Code::WorkerUnavailable, what));
                    if matches!(phase, Phase::Ready { .. }) {
                        worker.phase = Phase::Absent;
                    }
                }
            }
        }
    }
}
