//! Routing: a request goes to the least loaded worker of its model, by tokens. A prompt that shares
//! a prefix with an earlier one goes to the same worker, whose prefix cache holds that part, unless
//! so many tokens wait there that computing the prefix again is quicker. Pure.

use super::worker::{Phase, Worker};
use super::{Action, Core, Time};
use std::collections::{BTreeMap, BTreeSet, HashMap};

/// Tokens by which a worker's load may exceed the least loaded worker's before a cached prefix is
/// not worth the wait.
const AFFINITY_SLACK: u64 = 4_096;
/// Prompt prefixes that are remembered, of all models together.
const MAX_PREFIXES: usize = 32_768;

/// Names that stand for any model, unless a model has that name: huggingface_hub sends the first
/// when no model is given.
const ANY_MODEL: [&str; 3] = ["dummy", "tgi", ""];

/// The part of a request that decides its route.
#[derive(Clone, Copy, Debug, Default)]
pub struct RouteQuery<'a> {
    /// The model it names.
    pub model: Option<&'a str>,
    /// Tasks of which the model must have one, if the request names no model; empty means any.
    pub tasks: &'a [&'a str],
    /// Hashes of the prompt's prefixes, in order of length.
    pub prefixes: &'a [u64],
    /// Estimated tokens.
    pub tokens: u64,
    /// Workers that were tried already.
    pub tried: &'a [String],
    /// Whether the request is a job, which only workers of this host run.
    pub is_job: bool,
}

/// Where a worker listens.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Endpoint {
    /// A port of this host.
    Port(u16),
    /// Another host, by its name.
    Host(String),
}

/// The worker that gets a request.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Target {
    /// Its id.
    pub id: String,
    /// Where it listens.
    pub endpoint: Endpoint,
    /// Model name that requests use.
    pub model: String,
}

/// Why no worker gets a request.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum NoRoute {
    /// No worker has the model.
    Unknown {
        /// The requested model.
        model: String,
        /// The models of the pool.
        names: Vec<String>,
    },
    /// The request names no model and several would do.
    Unnamed {
        /// The models of the pool.
        names: Vec<String>,
    },
    /// No worker of the model takes requests now.
    NotReady {
        /// The requested model.
        model: String,
        /// The states of its workers.
        why: String,
    },
    /// The request is a job, and all workers of the model are on other hosts.
    NoJobs {
        /// The requested model.
        model: String,
    },
}

/// Which worker has computed which prompt prefix; an LRU cache.
#[derive(Debug, Default)]
pub(super) struct Affinity {
    known: HashMap<u64, (String, u64)>,
    order: BTreeMap<u64, u64>,
    clock: u64,
}

impl Affinity {
    fn get(&self, prefix: u64) -> Option<&str> {
        self.known.get(&prefix).map(|(id, _)| id.as_str())
    }

    pub(super) fn set(&mut self, prefix: u64, id: &str) {
        self.clock += 1;
        if let Some((_, stamp)) = self.known.insert(prefix, (id.to_string(), self.clock)) {
            self.order.remove(&stamp);
        }
        self.order.insert(self.clock, prefix);
        if self.known.len() > MAX_PREFIXES
            && let Some((_, oldest)) = self.order.pop_first()
        {
            self.known.remove(&oldest);
        }
    }

    #[cfg(test)]
    pub(super) fn len(&self) -> (usize, usize) {
        (self.known.len(), self.order.len())
    }

    pub(super) fn forget(&mut self, id: &str) {
        self.known.retain(|_, (worker, _)| worker != id);
        self.order.retain(|_, prefix| self.known.contains_key(prefix));
    }
}

impl Worker {
    /// Whether it may get a request now.
    fn serves(&self, name: &str, query: &RouteQuery) -> bool {
        let is_ready = self.record.spec.name == name && matches!(self.phase, Phase::Ready { .. });
        is_ready && (self.host.is_none() || !query.is_job)
    }

    pub(super) fn endpoint(&self) -> Endpoint {
        self.host.clone().map_or(Endpoint::Port(self.record.port), Endpoint::Host)
    }
}

impl Core {
    /// Chooses a worker and counts the request as its load until [`Core::end`].
    pub fn begin(&mut self, query: &RouteQuery) -> Result<Target, NoRoute> {
        let name = self.name(query)?;
        let serves = |w: &Worker| w.serves(&name, query);
        let able = |(id, w): &(&String, &Worker)| serves(w) && !query.tried.contains(id);
        let idlest = self.workers.iter().filter(able).min_by_key(|(_, w)| (w.tokens, w.active, w.last));
        let Some((id, idlest)) = idlest else {
            let of: Vec<&Worker> = self.workers.values().filter(|w| w.record.spec.name == name).collect();
            if query.is_job && of.iter().all(|w| w.host.is_some()) {
                return Err(NoRoute::NoJobs { model: name });
            }
            let states: BTreeSet<&str> = of.iter().map(|w| w.state().name()).collect();
            let why = states.into_iter().collect::<Vec<_>>().join(", ");
            return Err(NoRoute::NotReady { model: name, why });
        };
        // The longest cached prefix saves most.
        let known = query.prefixes.iter().rev().filter_map(|p| self.affinity.get(*p)).find(|known| {
            let worker = self.workers.get(*known);
            let able = worker.is_some_and(serves) && !query.tried.iter().any(|t| t == known);
            able && worker.is_some_and(|w| w.tokens <= idlest.tokens + AFFINITY_SLACK)
        });
        let id = known.unwrap_or(id).to_string();
        query.prefixes.iter().for_each(|prefix| self.affinity.set(*prefix, &id));
        self.turn += 1;
        let Some(worker) = self.workers.get_mut(&id) else { unreachable!("its id was found above") };
        worker.active += 1;
        worker.tokens += query.tokens;
        worker.last = self.turn;
        Ok(Target { id, endpoint: worker.endpoint(), model: name })
    }

    /// Whether a worker would get a request now.
    pub fn has_route(&self, query: &RouteQuery) -> bool {
        let Ok(name) = self.name(query) else { return false };
        self.workers.iter().any(|(id, w)| w.serves(&name, query) && !query.tried.contains(id))
    }

    /// Handles the end of a request, whatever its outcome.
    pub fn end(&mut self, id: &str, tokens: u64, now: Time) -> Vec<Action> {
        let Some(worker) = self.workers.get_mut(id) else { return Vec::new() };
        worker.active = worker.active.saturating_sub(1);
        worker.tokens = worker.tokens.saturating_sub(tokens);
        self.terminate_if_drained(id, now)
    }

    /// The name of the model that a request means.
    fn name(&self, query: &RouteQuery) -> Result<String, NoRoute> {
        let all: BTreeSet<&str> = self.workers.values().map(|w| w.record.spec.name.as_str()).collect();
        let names = || all.iter().map(ToString::to_string).collect::<Vec<String>>();
        let Some(model) = query.model.filter(|name| all.contains(name) || !ANY_MODEL.contains(name)) else {
            let suits = |w: &&Worker| {
                let task = w.record.planned.as_ref().map(|p| p.task.as_str());
                query.tasks.is_empty() || task.is_some_and(|t| query.tasks.contains(&t))
            };
            let suit: BTreeSet<&str> =
                self.workers.values().filter(suits).map(|w| w.record.spec.name.as_str()).collect();
            return match suit.len() {
                1 => Ok(suit.into_iter().next().unwrap_or_default().to_string()),
                0 if all.len() == 1 => Ok(names().remove(0)),
                0 if all.is_empty() => {
                    Err(NoRoute::NotReady { model: "any model".into(), why: "there are no workers".into() })
                }
                _ => Err(NoRoute::Unnamed { names: names() }),
            };
        };
        if all.contains(model) {
            return Ok(model.to_string());
        }
        let by_reference = self.workers.values().find(|w| w.record.spec.model == model);
        match by_reference {
            Some(worker) => Ok(worker.record.spec.name.clone()),
            None => Err(NoRoute::Unknown { model: model.into(), names: names() }),
        }
    }
}
