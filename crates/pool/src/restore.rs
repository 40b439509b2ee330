//! Adoption: a restarted manager finds the workers of its predecessor and continues with them.

use crate::core::{Found, Leaving, Record};
use crate::manager::Manager;
use crate::process::{self, EndSignal};
use crate::reconcile::reconcile;
use futures_util::future::join_all;
use std::collections::HashMap;
use std::sync::Arc;
use std::time::Duration;

/// How long the first probes of other hosts may delay the start.
const FIRST_PROBES: Duration = Duration::from_secs(3);

impl Manager {
    /// Adopts the workers of an earlier manager, starts the declared ones that are missing, and
    /// probes the other hosts. `drained` are the workers of other hosts that get no requests.
    pub(crate) async fn restore(self: &Arc<Self>, left: Vec<Record>, drained: &[String]) {
        for host in &self.config.hosts {
            self.decide(|core, now| (core.join(&host.spec, drained, now), Vec::new()));
        }
        // Concurrently: an unresponsive worker must not delay the others.
        let found = join_all(left.iter().map(|record| self.find_earlier(record))).await;
        let found: HashMap<String, Found> = left.iter().map(|record| record.id.clone()).zip(found).collect();
        let is_gone = |record: &Record| found.get(&record.id) == Some(&Found::Gone);
        let left = left.into_iter().map(|record| match record.leaving {
            // A drained worker whose process is gone is removed; if its model is declared, a new
            // worker is started for it.
            Leaving::Drain if is_gone(&record) => Record { leaving: Leaving::Stop, ..record },
            _ => record,
        });
        let plan = reconcile(&self.config.specs, left.collect());
        let unwanted = plan.stop.into_iter().map(|record| Record { leaving: Leaving::Stop, ..record });
        for record in plan.keep.into_iter().chain(unwanted) {
            let found = found.get(&record.id).copied().unwrap_or(Found::Gone);
            tracing::info!(
                worker = record.id,
                pid = record.process.map(|p| p.pid),
                "worker of an earlier manager: {found:?}"
            );
            let (id, process) = (record.id.clone(), record.process);
            self.decide(|core, now| ((), core.adopt(record, found, now)));
            if let Some(process) = process.filter(|_| found != Found::Gone) {
                // The first attempt that this manager knows of.
                self.watch(id, 1, process);
            }
        }
        for spec in plan.start {
            let id = self.start(spec.clone());
            tracing::info!(worker = id, model = spec.model, device = spec.device, "starting");
        }
        self.hosts_probed().await;
    }

    /// Waits until each host was probed: the first requests would find no models there.
    async fn hosts_probed(&self) {
        let mut changes = self.changes();
        let wait = async { while self.core().is_joining() && changes.changed().await.is_ok() {} };
        // A probe that cannot be sent must not delay the start.
        let _ = tokio::time::timeout(FIRST_PROBES, wait).await;
    }

    /// Whether a worker of an earlier manager still runs, and is the same process.
    async fn find_earlier(&self, record: &Record) -> Found {
        let Some(process) = record.process.filter(|p| process::is_running(*p)) else { return Found::Gone };
        match self.health(record.port, Duration::from_secs(2)).await {
            Ok(health) if health.worker_id == record.id && health.resident => Found::Serving,
            Ok(health) if health.worker_id != record.id => {
                // The pid and start time are our worker's, but another worker answers at its port.
                // It can serve nobody and holds memory, so it is killed. Only its exit is reported.
                let (id, pid, other) = (&record.id, process.pid, health.worker_id);
                tracing::warn!(worker = id, pid, "killed, because {other} answers at its port {}", record.port);
                process::signal(process, EndSignal::Kill);
                Found::Silent
            }
            Ok(_) | Err(_) => Found::Silent,
        }
    }
}
