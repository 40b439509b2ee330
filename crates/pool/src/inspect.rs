//! Inspects devices and plans models by running the `sconce` command: this crate does not link the
//! engine.

use crate::config::Config;
use crate::core::{Device, Planned, Spec};
use sconce_api::pool::{Code, Failure};
use serde::Deserialize;
use std::collections::BTreeSet;
use std::path::Path;
use std::process::Stdio;
use std::time::Duration;
use tokio::process::Command;

/// Time-out of `sconce devices`: a driver may take seconds to wake.
const DEVICES_TIMEOUT: Duration = Duration::from_secs(60);
/// Time-out of `sconce plan`, which may download the model first.
const PLAN_TIMEOUT: Duration = Duration::from_secs(3600);

#[derive(Deserialize)]
struct DevicesOutput {
    devices: Vec<Device>,
}

/// The devices of this host: for each kind, those that the binary for that kind lists. If a binary
/// fails, only the devices of its kind are missing.
pub(crate) async fn devices(config: &Config) -> Result<Vec<Device>, Box<Failure>> {
    let mut all: Vec<Device> = Vec::new();
    let mut errors: Vec<String> = Vec::new();
    let binaries: BTreeSet<&Path> =
        config.binaries.values().map(AsRef::as_ref).chain([config.binary.as_path()]).collect();
    for binary in binaries {
        match list_devices(binary).await {
            Ok(list_devices) => all.extend(list_devices.into_iter().filter(|d| config.binary(d.kind()) == binary)),
            Err(why) => errors.push(why),
        }
    }
    if all.is_empty() && !errors.is_empty() {
        return Err(Box::new(Failure::new(Code::GpuUnavailable, errors.join("; "))));
    }
    errors.iter().for_each(|why| tracing::warn!("{why}; its devices are ignored"));
    // Each binary marks the best of the devices that it was built for. A GPU is better than the
    // CPU.
    if all.iter().any(|d| d.kind() != "cpu" && d.best) {
        all.iter_mut().filter(|d| d.kind() == "cpu").for_each(|d| d.best = false);
    }
    Ok(all)
}

async fn list_devices(binary: &Path) -> Result<Vec<Device>, String> {
    let (text, why) = run(binary, &["devices".into(), "--json".into()], DEVICES_TIMEOUT, false).await?;
    let list_devices: DevicesOutput = serde_json::from_str(&text)
        .map_err(|e| format!("invalid output of `{} devices --json`: {e}; {why}", binary.display()))?;
    Ok(list_devices.devices)
}

#[derive(Deserialize)]
struct PlanOutput {
    task: String,
    weights_bytes: u64,
    cache_bytes: u64,
    workspace_bytes: u64,
    runs: bool,
    verdict: String,
}

/// Memory that a model needs on a device.
pub(crate) async fn plan(config: &Config, spec: &Spec, device: &Device) -> Result<Planned, Box<Failure>> {
    let mut arguments = vec!["plan".to_string(), "--json".into(), format!("--device={}", device.device)];
    arguments.extend(spec.tuning.arguments());
    arguments.extend(["--".to_string(), spec.model.clone()]);
    let binary = config.binary(device.kind());
    let fail = |code, why: String| Box::new(Failure::new(code, why));
    let offline = spec.tuning.offline;
    let (text, why) =
        run(binary, &arguments, PLAN_TIMEOUT, offline).await.map_err(|e| fail(Code::WorkerStartFailed, e))?;
    let Ok(output) = serde_json::from_str::<PlanOutput>(&text) else {
        // The failed plan does not say why; `sconce pull` tells whether the model's files are
        // available.
        let pull = ["pull".to_string(), "--json".into(), "--".into(), spec.model.clone()];
        let pulled = run(binary, &pull, PLAN_TIMEOUT, offline).await.map(|(text, _)| text).unwrap_or_default();
        let is_there = serde_json::from_str::<serde_json::Value>(&pulled).is_ok();
        return Err(fail(if is_there { Code::WorkerStartFailed } else { Code::ModelNotFound }, why));
    };
    let bytes = output.weights_bytes.saturating_add(output.cache_bytes).saturating_add(output.workspace_bytes);
    match output.runs {
        true => Ok(Planned { bytes, task: output.task }),
        // Whether it fits beside the other workers, some of which have not taken their memory yet,
        // is the core's decision.
        false if bytes > device.free_bytes => Err(fail(Code::InsufficientVram, output.verdict)),
        false => Err(fail(Code::WorkerStartFailed, output.verdict)),
    }
}

/// Standard output and standard error of a command.
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
        .map_err(|e| format!("cannot run `{shown}`: {e}"))?;
    let error = String::from_utf8_lossy(&output.stderr).trim().chars().take(2_000).collect();
    Ok((String::from_utf8_lossy(&output.stdout).into_owned(), error))
}
