//! `sconce pool status`: a table that updates itself.

use super::super::{bytes, print, table};
use super::Address;
use crate::Failure;
use clap::Args;
use sconce_api::pool::{PoolState, Worker};
use sconce_pool::Method;
use std::io::{IsTerminal, Write};
use std::process::ExitCode;
use std::time::Duration;

/// Show the devices and workers of a pool.
///
/// On a terminal the table is updated until Ctrl-C; otherwise it is printed once.
#[derive(Args)]
pub(super) struct Status {
    #[command(flatten)]
    address: Address,
    /// Print the table once, also on a terminal.
    #[arg(long)]
    once: bool,
    /// Seconds between updates.
    #[arg(long, value_name = "SECONDS", default_value_t = 1.0)]
    every: f64,
    /// Print JSON once.
    #[arg(long)]
    json: bool,
}

impl Status {
    pub(super) fn run(self) -> Result<ExitCode, Failure> {
        if self.json {
            print(&self.address.request(Method::GET, "/v2/state", None)?.to_string())?;
            return Ok(ExitCode::SUCCESS);
        }
        if self.once || !std::io::stdout().is_terminal() {
            print(&self.render()?)?;
            return Ok(ExitCode::SUCCESS);
        }
        let every = Duration::try_from_secs_f64(self.every).map_err(|e| format!("--every {}: {e}", self.every))?;
        loop {
            let render = self.render().unwrap_or_else(|why| why.to_string());
            // Cursor home, clear each line to its end, then everything below: without clearing the
            // screen, so that it does not flicker.
            let lines = render.replace('\n', "\x1b[K\n");
            let mut out = std::io::stdout();
            write!(out, "\x1b[H{lines}\x1b[K\n\x1b[J")?;
            out.flush()?;
            std::thread::sleep(every.max(Duration::from_millis(100)));
        }
    }

    fn render(&self) -> Result<String, Failure> {
        let state: PoolState = serde_json::from_value(self.address.request(Method::GET, "/v2/state", None)?)?;
        Ok(format_state(&state))
    }
}

fn format_state(state: &PoolState) -> String {
    let mut devices = vec![["device", "reserved", "available", "total", "description"].map(String::from).to_vec()];
    devices.extend(state.devices.iter().map(|d| {
        let [reserved, available, total] = [d.allocated_bytes, d.room_bytes, d.total_bytes].map(bytes);
        vec![d.id.clone(), reserved, available, total, d.name.clone()]
    }));
    let heads = ["worker", "model", "device", "state", "requests", "tokens", "memory", "restarts", "pid", "last event"];
    let mut workers = vec![heads.map(String::from).to_vec()];
    workers.extend(state.workers.iter().map(row));
    let mut text = format!("{}\n\n{}", table(&devices), table(&workers));
    if let Some(error) = &state.disk_error {
        text += &format!("\n\n{error}");
    }
    text
}

fn row(w: &Worker) -> Vec<String> {
    let again = w.again_in_seconds.map(|s| format!("; next attempt in {s} s")).unwrap_or_default();
    let why = w.why.as_deref().map(|why| format!("{why}{again}")).unwrap_or_default();
    vec![
        w.id.clone(),
        w.model.clone(),
        w.device.clone(),
        w.state.name().into(),
        w.active.to_string(),
        w.outstanding_tokens.to_string(),
        bytes(w.vram_bytes),
        w.restarts.to_string(),
        w.pid.map(|p| p.to_string()).unwrap_or_default(),
        why,
    ]
}

#[cfg(test)]
mod tests {
    use super::*;
    use sconce_api::pool::{Device, State};

    #[test]
    fn status_table_shows_devices_workers_and_failures() {
        let worker = |id: &str, state, why: Option<&str>| Worker {
            id: id.into(),
            model: "chat".into(),
            model_ref: "smollm".into(),
            task: None,
            device: "cuda:0".into(),
            state,
            uri: None,
            pid: Some(77),
            vram_bytes: 1 << 30,
            active: 2,
            outstanding_tokens: 900,
            restarts: 1,
            why: why.map(String::from),
            exit_code: None,
            again_in_seconds: why.map(|_| 4),
        };
        let device = Device {
            id: "cuda:0".into(),
            name: "a GPU".into(),
            total_bytes: 4 << 30,
            allocated_bytes: 1 << 30,
            room_bytes: 2 << 30,
        };
        let text = format_state(&PoolState {
            version: "0".into(),
            uptime_seconds: 1,
            devices: vec![device],
            workers: vec![worker("chat-1", State::Busy, None), worker("chat-2", State::Failed, Some("it ended"))],
            ended: Vec::new(),
            disk_error: Some("no room on disk".into()),
        });
        for part in [
            "cuda:0  1.00 GiB  2.00 GiB   4.00 GiB  a GPU",
            "chat-1  chat   cuda:0  busy",
            "it ended; next attempt in 4 s",
            "no room on disk",
        ] {
            assert!(text.contains(part), "{part:?} is missing in\n{text}");
        }
    }
}
