//! Spawns the processes of workers, signals them and reports their exit to the core.

use crate::core::{Event, Process, Spec, kind};
use crate::manager::Manager;
use crate::process::{self, EndSignal};
use sconce_api::worker::Launch;
use std::net::{Ipv4Addr, TcpListener};
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;
use tokio::process::Child;
use tokio::sync::mpsc;

/// Between two checks of a process that is not a child.
const POLL_INTERVAL: Duration = Duration::from_millis(500);

impl Manager {
    /// Spawns a process and waits until it exits.
    pub(crate) async fn spawn(self: Arc<Self>, id: String, attempt: u64, spec: Spec, device: String) {
        let port = match self.free_port() {
            Ok(port) => port,
            Err(why) => return self.handle_event(&id, attempt, Event::NotSpawned(why)),
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
                self.handle_event(&id, attempt, Event::NotSpawned(why));
            }
            Ok((mut child, process)) => {
                tracing::info!(worker = id, pid = process.pid, port, device, model = spec.model, "started");
                let (sender, signals) = mpsc::unbounded_channel();
                self.children().insert(process.pid, sender);
                // If this task panics, nobody would wait for the process, so it is killed.
                let guard = ChildGuard { pool: &self, process };
                self.handle_event(&id, attempt, Event::Spawned { process, port });
                let ended = until_ended(&mut child, signals).await;
                drop(guard);
                let (code, how) = match ended {
                    Ok(status) => (status.code(), process::describe_exit(status, &log)),
                    Err(e) => (None, format!("exit status unknown: {e}")),
                };
                tracing::info!(worker = id, pid = process.pid, "ended: {how}");
                self.handle_event(&id, attempt, Event::Exited { code, how });
            }
        }
    }

    /// Reports the exit of a process that is not a child.
    pub(crate) fn watch(self: &Arc<Self>, id: String, attempt: u64, process: Process) {
        let pool = self.clone();
        tokio::spawn(async move {
            while process::is_running(process) {
                tokio::time::sleep(POLL_INTERVAL).await;
            }
            tracing::info!(worker = id, pid = process.pid, "ended");
            let how = "exit status unknown, because an earlier manager started it".to_string();
            pool.handle_event(&id, attempt, Event::Exited { code: None, how });
        });
    }

    /// Signals a process. A child goes through its own task, which knows that the pid is still the
    /// child's; any other process must match its start time.
    pub(crate) fn signal(&self, process: Process, signal: EndSignal) {
        let signals = self.children().get(&process.pid).is_some_and(|child| child.send(signal).is_ok());
        if !signals {
            process::signal(process, signal);
        }
    }

    /// A port that is free now. Another program may take it before the worker does; the worker then
    /// exits with [`sconce_api::worker::PORT_TAKEN`] and gets another.
    pub(crate) fn free_port(&self) -> Result<u16, String> {
        let is_free = |port: u16| TcpListener::bind((Ipv4Addr::LOCALHOST, port));
        let Some(range) = &self.config.ports else {
            let bound = is_free(0).and_then(|l| l.local_addr());
            return bound.map(|a| a.port()).map_err(|e| format!("no free port: {e}"));
        };
        // In order, so that a port that was taken is not tried again next.
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
        Err(format!("all ports from {first} to {last} are taken; extend worker_ports"))
    }
}

/// Waits until a child exits and sends it the signals of `signals`. One task does both, because the
/// pid is certain only until the child was waited for.
async fn until_ended(
    child: &mut Child,
    mut signals: mpsc::UnboundedReceiver<EndSignal>,
) -> std::io::Result<std::process::ExitStatus> {
    loop {
        tokio::select! {
            ended = child.wait() => return ended,
            Some(signal) = signals.recv() => {
                if let Some(pid) = child.id() {
                    process::send_signal(pid, signal);
                }
            }
        }
    }
}

/// Removes a child from the table; on a panic, kills it too.
struct ChildGuard<'a> {
    pool: &'a Manager,
    process: Process,
}

impl Drop for ChildGuard<'_> {
    fn drop(&mut self) {
        self.pool.children().remove(&self.process.pid);
        if std::thread::panicking() {
            process::signal(self.process, EndSignal::Kill);
        }
    }
}
