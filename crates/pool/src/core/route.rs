//! Which worker a request goes to: of those that serve its model, the one with the fewest tokens before it; but a prompt that
//! begins like an earlier one goes where that one went, because its beginning is computed there already, unless so much waits
//! there that computing it again is quicker. Pure.

use super::worker::{Phase, Worker};
use super::{Action, Core, Time};
use std::collections::{BTreeMap, BTreeSet, HashMap};

/// Tokens that may wait at a worker beyond those at the idlest before a known beginning is not worth it any more.
const SLACK: u64 = 4_096;
/// Beginnings that are remembered, of all models together.
const KNOWN: usize = 32_768;

/// Names that stand for any model where none is called so: huggingface_hub sends the first where it was given no name.
const ANY: [&str; 3] = ["dummy", "tgi", ""];

/// What a request is like.
#[derive(Clone, Copy, Debug, Default)]
pub struct Ask<'a> {
    /// The model that it names.
    pub model: Option<&'a str>,
    /// What the model must do, where it names none; empty means anything.
    pub tasks: &'a [&'a str],
    /// Digests of the beginnings of its prompt, each longer than the one before.
    pub prefixes: &'a [u64],
    /// Its tokens, as far as one can tell.
    pub tokens: u64,
    /// Workers that it came back from.
    pub tried: &'a [String],
}

/// Where it goes.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Target {
    /// The worker.
    pub id: String,
    /// Where it listens.
    pub port: u16,
    /// What requests call its model.
    pub model: String,
}

/// Why it goes nowhere.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum NoRoute {
    /// There is no such model.
    Unknown {
        /// What was asked for.
        model: String,
        /// What there is.
        names: Vec<String>,
    },
    /// It names no model, and there are several.
    Unnamed {
        /// What there is.
        names: Vec<String>,
    },
    /// No worker of the model takes requests now.
    NotReady {
        /// What was asked for.
        model: String,
        /// What its workers are doing.
        why: String,
    },
}

/// Who computed which beginning; the least recently used is forgotten first.
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
        if self.known.len() > KNOWN
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

impl Core {
    /// Chooses a worker and counts the request as its own, until [`Core::end`].
    pub fn begin(&mut self, ask: &Ask) -> Result<Target, NoRoute> {
        let name = self.name(ask)?;
        let serves = |w: &Worker| w.record.spec.name == name && matches!(w.phase, Phase::Ready { .. });
        let able = |(id, w): &(&String, &Worker)| serves(w) && !ask.tried.contains(id);
        let idlest = self.workers.iter().filter(able).min_by_key(|(_, w)| (w.tokens, w.active, w.last));
        let Some((id, idlest)) = idlest else {
            let of = self.workers.values().filter(|w| w.record.spec.name == name);
            let states: BTreeSet<&str> = of.map(|w| w.state().name()).collect();
            let why = states.into_iter().collect::<Vec<_>>().join(", ");
            return Err(NoRoute::NotReady { model: name, why });
        };
        // The longest that is known saves most.
        let known = ask.prefixes.iter().rev().filter_map(|p| self.affinity.get(*p)).find(|known| {
            let worker = self.workers.get(*known);
            let able = worker.is_some_and(serves) && !ask.tried.iter().any(|t| t == known);
            able && worker.is_some_and(|w| w.tokens <= idlest.tokens + SLACK)
        });
        let id = known.unwrap_or(id).to_string();
        ask.prefixes.iter().for_each(|prefix| self.affinity.set(*prefix, &id));
        self.turn += 1;
        let Some(worker) = self.workers.get_mut(&id) else { unreachable!("it was found above") };
        worker.active += 1;
        worker.tokens += ask.tokens;
        worker.last = self.turn;
        Ok(Target { id, port: worker.record.port, model: name })
    }

    /// A request has ended, however it did.
    pub fn end(&mut self, id: &str, tokens: u64, now: Time) -> Vec<Action> {
        let Some(worker) = self.workers.get_mut(id) else { return Vec::new() };
        worker.active = worker.active.saturating_sub(1);
        worker.tokens = worker.tokens.saturating_sub(tokens);
        self.settle(id, now)
    }

    /// What the model is called that a request means.
    fn name(&self, ask: &Ask) -> Result<String, NoRoute> {
        let all: BTreeSet<&str> = self.workers.values().map(|w| w.record.spec.name.as_str()).collect();
        let names = || all.iter().map(ToString::to_string).collect::<Vec<String>>();
        let Some(model) = ask.model.filter(|name| all.contains(name) || !ANY.contains(name)) else {
            let suits = |w: &&Worker| {
                let task = w.record.planned.as_ref().map(|p| p.task.as_str());
                ask.tasks.is_empty() || task.is_some_and(|t| ask.tasks.contains(&t))
            };
            let suit: BTreeSet<&str> =
                self.workers.values().filter(suits).map(|w| w.record.spec.name.as_str()).collect();
            return match suit.len() {
                1 => Ok(suit.into_iter().next().unwrap_or_default().to_string()),
                0 if all.len() == 1 => Ok(names().remove(0)),
                0 if all.is_empty() => {
                    Err(NoRoute::NotReady { model: "any model".into(), why: "there are none".into() })
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
