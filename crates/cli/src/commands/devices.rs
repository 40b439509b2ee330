//! `sconce devices`: the devices of this build and machine.

use super::{bytes, print, table};
use crate::Failure;
use crate::args::Threads;
use clap::Args;
use sconce_ops::{Device, DeviceInfo};
use serde_json::json;
use std::process::ExitCode;

/// List the devices that models can run on here.
#[derive(Args)]
pub(crate) struct Devices {
    /// Print JSON.
    #[arg(long)]
    json: bool,
    #[command(flatten)]
    threads: Threads,
}

impl Devices {
    pub(crate) fn run(self) -> Result<ExitCode, Failure> {
        self.threads.apply()?;
        let all = Device::all();
        let (best, why) = Device::best();
        if self.json {
            let entry = |d: &DeviceInfo| {
                json!({"device": d.device.to_string(), "description": d.description, "free_bytes": d.free_bytes,
                    "total_bytes": d.total_bytes, "best": d.device == best})
            };
            let all: Vec<_> = all.iter().map(entry).collect();
            print(&json!({"devices": all, "auto": best.to_string()}).to_string())?;
            return Ok(ExitCode::SUCCESS);
        }
        let mut rows = vec![["", "device", "free", "total", "description"].map(String::from).to_vec()];
        rows.extend(all.iter().map(|d| {
            let mark = if d.device == best { "best" } else { "" };
            let (free, total) = (bytes(d.free_bytes), bytes(d.total_bytes));
            vec![mark.to_string(), d.device.to_string(), free, total, d.description.clone()]
        }));
        print(&format!("{}\n\nauto chooses {best} ({why})", table(&rows)))?;
        Ok(ExitCode::SUCCESS)
    }
}
