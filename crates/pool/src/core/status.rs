//! What can be read off the manager's mind: for `/v2/state`, for `/metrics`, for the disk.

use super::{Core, Record, Time, place};
use crate::core::worker::Phase;
use sconce_api::pool::{self as api, Code, Failure, State};
use std::collections::BTreeMap;

/// What was counted since the manager began.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Counts {
    /// Workers that became ready.
    pub started: u64,
    /// Starts that failed, by code.
    pub not_started: BTreeMap<&'static str, u64>,
    /// Workers that ended, by reason.
    pub stopped: BTreeMap<&'static str, u64>,
}

/// Why workers end.
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

/// What came of a start.
#[derive(Clone, Debug, PartialEq)]
pub enum Outcome {
    /// Nothing yet.
    Pending,
    /// It serves.
    Ready(Box<api::Started>),
    /// It does not.
    Failed(Box<Failure>),
}

impl Core {
    /// Everything, but for what the core does not know: the time since the beginning and the disk.
    pub fn everything(&self, now: Time) -> api::Everything {
        api::Everything {
            version: env!("CARGO_PKG_VERSION").into(),
            uptime_seconds: now.as_secs(),
            devices: self.devices(),
            workers: self.workers.keys().filter_map(|id| self.worker(id, now)).collect(),
            ended: self.ended.iter().map(|(ended, _)| ended.clone()).collect(),
            disk_error: None,
        }
    }

    fn devices(&self) -> Vec<api::Device> {
        let one = |d: &place::Device| {
            let held = self.held(&d.device);
            api::Device {
                id: d.device.clone(),
                name: d.description.clone(),
                total_bytes: d.total_bytes,
                allocated_bytes: held.all,
                room_bytes: place::room(d, held),
            }
        };
        self.devices.iter().map(one).collect()
    }

    /// One worker.
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
            uri: r.process.map(|_| format!("http://127.0.0.1:{}", r.port)),
            pid: r.process.map(|p| p.pid),
            vram_bytes: w.holds(),
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

    /// What came of the start of a worker.
    pub fn outcome(&self, id: &str) -> Outcome {
        let Some(w) = self.workers.get(id) else {
            let ended = self.ended.iter().rev().find(|(e, _)| e.id == id);
            let why = match ended {
                Some((_, Some(failure))) => failure.clone(),
                Some((ended, None)) => Failure::new(Code::WorkerStartFailed, ended.why.clone()),
                None => Failure::new(Code::WorkerNotFound, format!("there is no worker {id}")),
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
            vram_bytes: w.holds(),
            state: w.state(),
        }))
    }

    /// What is to be kept on disk.
    pub fn records(&self) -> Vec<Record> {
        self.workers.values().map(|w| w.record.clone()).collect()
    }

    /// The devices, as they were found last.
    pub fn found(&self) -> &[place::Device] {
        &self.devices
    }

    /// The key to whom the port belongs: whether a worker of this name was given this port.
    pub fn listens(&self, id: &str, port: u16) -> bool {
        self.workers.get(id).is_some_and(|w| w.record.port == port)
    }

    /// Workers, their models and where they listen, of those that answer.
    pub fn serving(&self) -> Vec<(String, String, u16)> {
        let answers = |p: &Phase| matches!(p, Phase::Ready { .. } | Phase::Draining { .. } | Phase::Stopping { .. });
        let all = self.workers.iter().filter(|(_, w)| answers(&w.phase));
        all.map(|(id, w)| (id.clone(), w.record.spec.name.clone(), w.record.port)).collect()
    }

    /// Whether no worker is left.
    pub fn is_empty(&self) -> bool {
        self.workers.is_empty()
    }

    /// The names of all workers.
    pub fn ids(&self) -> Vec<String> {
        self.workers.keys().cloned().collect()
    }

    /// How many workers are in each state.
    pub fn states(&self) -> BTreeMap<State, u64> {
        let mut all: BTreeMap<State, u64> = State::ALL.into_iter().map(|s| (s, 0)).collect();
        self.workers.values().for_each(|w| *all.entry(w.state()).or_default() += 1);
        all
    }

    /// What was counted.
    pub fn counts(&self) -> &Counts {
        &self.counts
    }
}
