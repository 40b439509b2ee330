//! Health probes: periodic, and at once when a request to a worker failed. Pure.

use super::worker::{Phase, Worker};
use super::{Action, Core, ProbeResult, Time};
use sconce_api::pool::{Code, Failure};

impl Core {
    /// Probes a worker at once, because a request to it failed.
    pub fn probe_now(&mut self, id: &str, now: Time) -> Vec<Action> {
        if let Some(host) = self.workers.get(id).and_then(|w| w.host.clone()) {
            return self.probe_host_now(&host, now);
        }
        if let Some(Worker { phase: Phase::Ready { .. } | Phase::Draining { .. }, probes, .. }) =
            self.workers.get_mut(id)
        {
            probes.next = now;
        }
        self.due(id, now)
    }

    /// Probes a worker if a probe is due and none is running.
    pub(super) fn probe(&mut self, id: &str, now: Time) -> Vec<Action> {
        // Workers of other hosts are probed by host.
        let Some(Worker { probes, record, attempt, host: None, .. }) = self.workers.get_mut(id) else {
            return Vec::new();
        };
        if probes.next > now || probes.running {
            return Vec::new();
        }
        (probes.next, probes.running) = (now + self.timings.probe, true);
        vec![Action::Probe { id: id.into(), attempt: *attempt, port: record.port }]
    }

    /// Handles the result of a probe.
    pub(super) fn probed(&mut self, id: &str, answer: ProbeResult, now: Time) -> Vec<Action> {
        let Some(worker) = self.workers.get_mut(id) else { return Vec::new() };
        let (Phase::Ready { .. } | Phase::Draining { .. }) = worker.phase else { return Vec::new() };
        let probes = &mut worker.probes;
        probes.running = false;
        match answer {
            ProbeResult::Healthy => (probes.misses, probes.last_miss) = (0, None),
            // Every failed request triggers a probe. Misses closer together than the probe's
            // time-out count as one.
            ProbeResult::Missed(why)
                if probes.last_miss.is_none_or(|last| now.saturating_sub(last) >= self.timings.answer) =>
            {
                probes.misses += 1;
                probes.last_miss = Some(now);
                if probes.misses >= self.timings.misses {
                    let why = format!("it missed {} probes in a row: {why}", probes.misses);
                    return self.kill(id, Failure::new(Code::WorkerFailed, why), now);
                }
            }
            ProbeResult::Missed(_) | ProbeResult::NotSent => {}
        }
        Vec::new()
    }
}
