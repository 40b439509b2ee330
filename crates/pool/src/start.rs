//! From a worker that is to be to a process, and from its end to the core.

use crate::core::{Event, Process, Spec, kind};
use crate::manager::Manager;
use crate::process::{self, Tell};
use sconce_api::worker::Launch;
use std::net::{Ipv4Addr, TcpListener};
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;
use tokio::process::Child;
use tokio::sync::mpsc;

/// Between two looks at a process that is not our child.
const WATCH: Duration = Duration::from_millis(500);

impl Manager {
    /// Starts a process, and stays until its end.
    pub(crate) async fn spawn(self: Arc<Self>, id: String, attempt: u64, spec: Spec, device: String) {
        let port = match self.free_port() {
            Ok(port) => port,
            Err(why) => return self.tell(&id, attempt, Event::NotSpawned(why)),
        };
        let launch = Launch {
            worker_id: id.clone(),
            model: spec.model.clone(),
            hostname: "127.0.0.1".into(),
            port,
            callback_url: self.callback.clone(),
            device: Some(device.clone()),
            names: vec![spec.name.clone()],
            payload_limit: u64::try_from(self.config.payload_limit).ok(),
            tuning: spec.tuning.clone(),
            ..Launch::default()
        };
        let mut arguments = vec!["worker".to_string()];
        arguments.extend(launch.arguments());
        let (binary, log) = (self.config.binary(kind(&device)), self.logs().join(format!("{id}.log")));
        match process::spawn(binary, &arguments, (Launch::KEY, &self.token), &log) {
            Err(e) => {
                let why = format!("{}: {e}", binary.display());
                tracing::error!(worker = id, "{why}");
                self.tell(&id, attempt, Event::NotSpawned(why));
            }
            Ok((mut child, process)) => {
                tracing::info!(worker = id, pid = process.pid, port, device, model = spec.model, "started");
                let (teller, told) = mpsc::unbounded_channel();
                self.children().insert(process.pid, teller);
                // What a panic leaves is ended: nobody would wait for it.
                let nobody = Nobody { pool: &self, process };
                self.tell(&id, attempt, Event::Spawned { process, port });
                let ended = until_ended(&mut child, told).await;
                drop(nobody);
                let (code, how) = match ended {
                    Ok(status) => (status.code(), process::how(status, &log)),
                    Err(e) => (None, format!("nobody knows how: {e}")),
                };
                tracing::info!(worker = id, pid = process.pid, "ended: {how}");
                self.tell(&id, attempt, Event::Exited { code, how });
            }
        }
    }

    /// Tells the end of a process that is not our child.
    pub(crate) fn watch(self: &Arc<Self>, id: String, attempt: u64, process: Process) {
        let pool = self.clone();
        tokio::spawn(async move {
            while process::runs(process) {
                tokio::time::sleep(WATCH).await;
            }
            tracing::info!(worker = id, pid = process.pid, "ended");
            let how = "nobody knows how: an earlier manager started it".to_string();
            pool.tell(&id, attempt, Event::Exited { code: None, how });
        });
    }

    /// A child that was not waited for has its number to itself. Of any other it is seen first whether the number is still its own.
    pub(crate) fn signal(&self, process: Process, what: Tell) {
        let told = self.children().get(&process.pid).is_some_and(|child| child.send(what).is_ok());
        if !told {
            process::tell(process, what);
        }
    }

    /// A port that nobody listens at now. Somebody may before our worker does; then it says so, and gets another.
    pub(crate) fn free_port(&self) -> Result<u16, String> {
        let is_free = |port: u16| TcpListener::bind((Ipv4Addr::LOCALHOST, port));
        let Some(range) = &self.config.ports else {
            let bound = is_free(0).and_then(|l| l.local_addr());
            return bound.map(|a| a.port()).map_err(|e| format!("there is no port for it: {e}"));
        };
        // One after the other, so that a port that was taken is not the next to be tried.
        let (start, end) = (u32::from(*range.start()), u32::from(*range.end()));
        let length = end - start + 1;
        let from = self.next_port.load(Ordering::Relaxed);
        for step in 0..length {
            let offset = (from % length + step) % length;
            let Ok(port) = u16::try_from(start + offset) else { continue };
            if is_free(port).is_ok() {
                self.next_port.store(offset + 1, Ordering::Relaxed);
                return Ok(port);
            }
        }
        let (first, last) = (range.start(), range.end());
        Err(format!("all ports from {first} to {last} are taken; give more with worker_ports"))
    }
}

/// Waits for the end of a child, and tells it to end when that is wanted. In one place, because its number is its own only until it was
/// waited for.
async fn until_ended(
    child: &mut Child,
    mut told: mpsc::UnboundedReceiver<Tell>,
) -> std::io::Result<std::process::ExitStatus> {
    loop {
        tokio::select! {
            ended = child.wait() => return ended,
            Some(what) = told.recv() => {
                if let Some(pid) = child.id() {
                    process::send(pid, what);
                }
            }
        }
    }
}

/// Forgets a child; before it is over, because of a panic, ends it too.
struct Nobody<'a> {
    pool: &'a Manager,
    process: Process,
}

impl Drop for Nobody<'_> {
    fn drop(&mut self) {
        self.pool.children().remove(&self.process.pid);
        if std::thread::panicking() {
            process::tell(self.process, Tell::Kill);
        }
    }
}
