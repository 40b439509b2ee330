//! Whether a worker is well: it is asked from time to time, and when a request to it failed. Pure.

use super::worker::{Phase, Worker};
use super::{Action, Answer, Core, Time};
use sconce_api::pool::{Code, Failure};

impl Core {
    /// A request to it failed: how it is, is asked at once.
    pub fn doubt(&mut self, id: &str, now: Time) -> Vec<Action> {
        if let Some(Worker { phase: Phase::Ready { .. } | Phase::Draining { .. }, watched, .. }) =
            self.workers.get_mut(id)
        {
            watched.next = now;
        }
        self.due(id, now)
    }

    /// Asks a worker how it is, if that is due and no answer is waited for.
    pub(super) fn probe(&mut self, id: &str, now: Time) -> Vec<Action> {
        let Some(Worker { watched, record, attempt, .. }) = self.workers.get_mut(id) else { return Vec::new() };
        if watched.next > now || watched.asked {
            return Vec::new();
        }
        (watched.next, watched.asked) = (now + self.timings.probe, true);
        vec![Action::Probe { id: id.into(), attempt: *attempt, port: record.port }]
    }

    /// What came of it.
    pub(super) fn probed(&mut self, id: &str, answer: Answer, now: Time) -> Vec<Action> {
        let Some(worker) = self.workers.get_mut(id) else { return Vec::new() };
        let (Phase::Ready { .. } | Phase::Draining { .. }) = worker.phase else { return Vec::new() };
        let watched = &mut worker.watched;
        watched.asked = false;
        match answer {
            Answer::Well => (watched.misses, watched.missed) = (0, None),
            // Every request that fails has it asked again. Misses closer together than an answer may take are one.
            Answer::Missed(why)
                if watched.missed.is_none_or(|last| now.saturating_sub(last) >= self.timings.answer) =>
            {
                watched.misses += 1;
                watched.missed = Some(now);
                if watched.misses >= self.timings.misses {
                    let why = format!("it missed {} probes in a row: {why}", watched.misses);
                    return self.kill(id, Failure::new(Code::WorkerFailed, why), now);
                }
            }
            Answer::Missed(_) | Answer::Unasked => {}
        }
        Vec::new()
    }
}
