//! Read access to the core, for `/v2/state`, `/metrics` and the state file.

use super::{Core, Endpoint, Record, Time, placement};
use crate::core::worker::{Phase, Worker};
use sconce_api::pool::{self as api, Code, Failure, State};
use std::collections::BTreeMap;

/// Counters since the manager started.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Counts {
    /// Workers that became ready.
    pub started: u64,
    /// Failed starts by error code.
    pub not_started: BTreeMap<&'static str, u64>,
    /// Ended workers by reason.
    pub stopped: BTreeMap<&'static str, u64>,
}

/// Reasons for which workers end.
pub const STOPS: [&str; 3] = ["failed", "killed", "requested"];

impl Counts {
    pub(super) fn failed(&mut self, code: Code) {
        let outcome = match code {
            Code::InsufficientVram => "insufficient_vram",
            Code::GpuUnavailable => "gpu_unavailable",
            Code::ModelNotFound => "model_not_found",
            Code::WorkerStartTimeout => "timeout",
            _ => "failed",
        };
        *self.not_started.entry(outcome).or_default() += 1;
    }

    pub(super) fn stopped(&mut self, reason: &'static str) {
        *self.stopped.entry(reason).or_default() += 1;
    }
}

/// A worker that answers HTTP requests.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Serving {
    /// Its id.
    pub id: String,
    /// Model name that requests use.
    pub model: String,
    /// Where it listens.
    pub endpoint: Endpoint,
}

/// Outcome of a start.
#[derive(Clone, Debug, PartialEq)]
pub enum Outcome {
    /// Still starting.
    Pending,
    /// The worker became ready.
    Ready(Box<api::Started>),
    /// It failed.
    Failed(Box<Failure>),
}

impl Core {
    /// The whole state, except for `disk_error`, which the core does not know.
    pub fn snapshot(&self, now: Time) -> api::PoolState {
        api::PoolState {
            version: env!("CARGO_PKG_VERSION").into(),
            uptime_seconds: now.as_secs(),
            devices: self.device_states(),
            workers: self.workers.keys().filter_map(|id| self.worker(id, now)).collect(),
            ended: self.ended.iter().map(|(ended, _)| ended.clone()).collect(),
            disk_error: None,
        }
    }

    fn device_states(&self) -> Vec<api::Device> {
        let one = |d: &placement::Device| {
            let reserved = self.reserved(&d.device);
            api::Device {
                id: d.device.clone(),
                name: d.description.clone(),
                total_bytes: d.total_bytes,
                allocated_bytes: reserved.total,
                room_bytes: placement::available(d, reserved),
            }
        };
        self.devices.iter().map(one).collect()
    }

    /// The state of one worker.
    pub fn worker(&self, id: &str, now: Time) -> Option<api::Worker> {
        let w = self.workers.get(id)?;
        let r = &w.record;
        Some(api::Worker {
            id: id.into(),
            model: r.spec.name.clone(),
            model_ref: r.spec.model.clone(),
            task: r.planned.as_ref().map(|p| p.task.clone()),
            device: r.device.clone().unwrap_or_else(|| r.spec.device.clone()),
            state: w.state(),
            uri: match &w.host {
                Some(host) => self.hosts.get(host).map(|host| host.url.clone()),
                None => r.process.map(|_| format!("http://127.0.0.1:{}", r.port)),
            },
            pid: r.process.map(|p| p.pid),
            vram_bytes: w.reserved_bytes(),
            active: w.active,
            outstanding_tokens: w.tokens,
            restarts: r.restarts,
            why: w.why.as_ref().map(|f| f.message.clone()),
            exit_code: w.exit_code,
            again_in_seconds: match w.phase {
                Phase::Failed { again, .. } => Some(again.saturating_sub(now).as_secs()),
                _ => None,
            },
        })
    }

    /// Outcome of the start of a worker.
    pub fn outcome(&self, id: &str) -> Outcome {
        let Some(w) = self.workers.get(id) else {
            let ended = self.ended.iter().rev().find(|(e, _)| e.id == id);
            let why = match ended {
                Some((_, Some(failure))) => failure.clone(),
                Some((ended, None)) => Failure::new(Code::WorkerStartFailed, ended.why.clone()),
                None => Failure::new(Code::WorkerNotFound, format!("no worker {id}")),
            };
            return Outcome::Failed(Box::new(why));
        };
        if !w.record.been_ready {
            return Outcome::Pending;
        }
        Outcome::Ready(Box::new(api::Started {
            worker_id: id.into(),
            device: w.record.device.clone().unwrap_or_default(),
            uri: format!("http://127.0.0.1:{}", w.record.port),
            vram_bytes: w.reserved_bytes(),
            state: w.state(),
        }))
    }

    /// The records to write to disk: those of the workers of this host.
    pub fn records(&self) -> Vec<Record> {
        self.workers.values().filter(|w| w.host.is_none()).map(|w| w.record.clone()).collect()
    }

    /// The devices of the last inspection.
    pub fn devices(&self) -> &[placement::Device] {
        &self.devices
    }

    /// Whether the worker `id` was given this port.
    pub fn has_port(&self, id: &str, port: u16) -> bool {
        self.workers.get(id).is_some_and(|w| w.record.port == port)
    }

    /// Every worker that answers HTTP requests.
    pub fn serving(&self) -> Vec<Serving> {
        let answers = |p: &Phase| matches!(p, Phase::Ready { .. } | Phase::Draining { .. } | Phase::Stopping { .. });
        let all = self.workers.iter().filter(|(_, w)| answers(&w.phase));
        let one = |(id, w): (&String, &Worker)| Serving {
            id: id.clone(),
            model: w.record.spec.name.clone(),
            endpoint: w.endpoint(),
        };
        all.map(one).collect()
    }

    /// Whether no worker is left.
    pub fn is_empty(&self) -> bool {
        self.workers.is_empty()
    }

    /// The ids of all workers.
    pub fn ids(&self) -> Vec<String> {
        self.workers.keys().cloned().collect()
    }

    /// Number of workers by state.
    pub fn states(&self) -> BTreeMap<State, u64> {
        let mut all: BTreeMap<State, u64> = State::ALL.into_iter().map(|s| (s, 0)).collect();
        self.workers.values().for_each(|w| *all.entry(w.state()).or_default() += 1);
        all
    }

    /// The counters.
    pub fn counts(&self) -> &Counts {
        &self.counts
    }
}
