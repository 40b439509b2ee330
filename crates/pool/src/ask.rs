//! What must be known of devices and models, asked of the command that will run them: this crate links no engine.

use crate::config::Config;
use crate::core::{Device, Planned, Spec};
use sconce_api::pool::{Code, Failure};
use serde::Deserialize;
use std::collections::BTreeSet;
use std::path::Path;
use std::process::Stdio;
use std::time::Duration;
use tokio::process::Command;

/// For `sconce devices`: a driver may take seconds to wake.
const DEVICES: Duration = Duration::from_secs(60);
/// For `sconce plan`, which may fetch the model first.
const PLAN: Duration = Duration::from_secs(3600);

#[derive(Deserialize)]
struct Listed {
    devices: Vec<Device>,
}

/// The devices of this host: of each kind, what the command for that kind says. A command that does not work costs its own kind,
/// not the others.
pub(crate) async fn devices(config: &Config) -> Result<Vec<Device>, Box<Failure>> {
    let mut all: Vec<Device> = Vec::new();
    let mut complaints: Vec<String> = Vec::new();
    let binaries: BTreeSet<&Path> =
        config.binaries.values().map(AsRef::as_ref).chain([config.binary.as_path()]).collect();
    for binary in binaries {
        match listed(binary).await {
            Ok(listed) => all.extend(listed.into_iter().filter(|d| config.binary(d.kind()) == binary)),
            Err(why) => complaints.push(why),
        }
    }
    if all.is_empty() && !complaints.is_empty() {
        return Err(Box::new(Failure::new(Code::GpuUnavailable, complaints.join("; "))));
    }
    complaints.iter().for_each(|why| tracing::warn!("{why}; its devices are left out"));
    // What each command thinks best, it thinks of those that it was built for. Any GPU is better than none.
    if all.iter().any(|d| d.kind() != "cpu" && d.best) {
        all.iter_mut().filter(|d| d.kind() == "cpu").for_each(|d| d.best = false);
    }
    Ok(all)
}

async fn listed(binary: &Path) -> Result<Vec<Device>, String> {
    let (text, why) = run(binary, &["devices".into(), "--json".into()], DEVICES, false).await?;
    let listed: Listed = serde_json::from_str(&text)
        .map_err(|e| format!("`{} devices --json` said no devices: {e}; {why}", binary.display()))?;
    Ok(listed.devices)
}

#[derive(Deserialize)]
struct Told {
    task: String,
    weights_bytes: u64,
    cache_bytes: u64,
    workspace_bytes: u64,
    runs: bool,
    verdict: String,
}

/// What a model takes on a device.
pub(crate) async fn plan(config: &Config, spec: &Spec, device: &Device) -> Result<Planned, Box<Failure>> {
    let mut arguments = vec!["plan".to_string(), "--json".into(), format!("--device={}", device.device)];
    arguments.extend(spec.tuning.arguments());
    arguments.extend(["--".to_string(), spec.model.clone()]);
    let binary = config.binary(device.kind());
    let fail = |code, why: String| Box::new(Failure::new(code, why));
    let offline = spec.tuning.offline;
    let (text, why) = run(binary, &arguments, PLAN, offline).await.map_err(|e| fail(Code::WorkerStartFailed, e))?;
    let Ok(told) = serde_json::from_str::<Told>(&text) else {
        // A plan that failed does not say at what. Whether the model's files are to be had, `sconce pull` tells by itself.
        let pull = ["pull".to_string(), "--json".into(), "--".into(), spec.model.clone()];
        let pulled = run(binary, &pull, PLAN, offline).await.map(|(text, _)| text).unwrap_or_default();
        let is_there = serde_json::from_str::<serde_json::Value>(&pulled).is_ok();
        return Err(fail(if is_there { Code::WorkerStartFailed } else { Code::ModelNotFound }, why));
    };
    let bytes = told.weights_bytes.saturating_add(told.cache_bytes).saturating_add(told.workspace_bytes);
    match told.runs {
        true => Ok(Planned { bytes, task: told.task }),
        // Whether it fits beside the other workers, whose memory is not all taken yet, is not for the command to say.
        false if bytes > device.free_bytes => Err(fail(Code::InsufficientVram, told.verdict)),
        false => Err(fail(Code::WorkerStartFailed, told.verdict)),
    }
}

/// What a command prints, and what it complains of.
async fn run(binary: &Path, arguments: &[String], within: Duration, offline: bool) -> Result<(String, String), String> {
    let mut command = Command::new(binary);
    if offline {
        command.env("HF_HUB_OFFLINE", "1");
    }
    command.args(arguments).stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::piped()).kill_on_drop(true);
    let shown = binary.display();
    let output = tokio::time::timeout(within, command.output())
        .await
        .map_err(|_| format!("`{shown} {}` took longer than {} s", arguments[0], within.as_secs()))?
        .map_err(|e| format!("`{shown}` could not be run: {e}"))?;
    let complaint = String::from_utf8_lossy(&output.stderr).trim().chars().take(2_000).collect();
    Ok((String::from_utf8_lossy(&output.stdout).into_owned(), complaint))
}
