//! Chooses the device of a worker and checks that its model fits there. Pure.

use super::Core;
use super::worker::{Phase, Worker};
use sconce_api::pool::{Code, Failure};
use serde::{Deserialize, Serialize};
use serde_json::json;

/// A device, as `sconce devices --json` prints it.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Device {
    /// `cpu`, `cuda:0`, `metal:0`.
    pub device: String,
    /// The vendor's name for it.
    pub description: String,
    /// Free bytes at the last inspection.
    pub free_bytes: u64,
    /// Total bytes.
    pub total_bytes: u64,
    /// Whether `auto` chooses it.
    pub best: bool,
}

impl Device {
    /// `cpu`, `cuda` or `metal`.
    pub fn kind(&self) -> &str {
        kind(&self.device)
    }
}

/// The kind of a device: the part of its id before the colon.
pub fn kind(device: &str) -> &str {
    device.split(':').next().unwrap_or(device)
}

impl Core {
    /// Updates the devices and their free memory.
    pub fn set_devices(&mut self, devices: Vec<Device>) {
        self.devices = devices;
    }

    /// The device on which a worker would be placed now.
    pub fn place(&self, wanted: &str, devices: &[Device]) -> Result<Device, Box<Failure>> {
        choose(devices, wanted, |d| self.reserved(d))
    }

    /// Memory reserved for the workers of a device.
    pub(super) fn reserved(&self, device: &str) -> Reserved {
        let on = |w: &&Worker| w.record.device.as_deref() == Some(device);
        let is_loading = |w: &&Worker| matches!(w.phase, Phase::Starting { .. } | Phase::Failed { .. });
        let here = || self.workers.values().filter(on);
        Reserved {
            total: here().map(Worker::reserved_bytes).sum(),
            loading: here().filter(is_loading).map(Worker::reserved_bytes).sum(),
        }
    }
}

/// Memory reserved for the workers of a device.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Reserved {
    /// Bytes of all its workers.
    pub(super) total: u64,
    /// Bytes of the workers that have not loaded their model yet, so that the device still counts
    /// them as free.
    pub(super) loading: u64,
}

/// Bytes available to one more worker: at most what is free now, and at most what is not reserved
/// for others.
pub(super) fn available(device: &Device, reserved: Reserved) -> u64 {
    let unpromised = device.total_bytes.saturating_sub(reserved.total);
    let free = device.free_bytes.saturating_sub(reserved.loading);
    unpromised.min(free)
}

/// The device that `wanted` names: a device id, the number of a GPU of any kind (`gpu:0`), or a
/// kind, which means the device of that kind with the most available memory. `auto` means the best
/// kind.
pub(super) fn choose(
    devices: &[Device],
    wanted: &str,
    reserved: impl Fn(&str) -> Reserved,
) -> Result<Device, Box<Failure>> {
    if let Some(named) = devices.iter().find(|d| d.device == wanted) {
        return Ok(named.clone());
    }
    if let Some(number) = wanted.strip_prefix("gpu:") {
        let is_meant = |d: &&Device| d.kind() != "cpu" && d.device.split_once(':').is_some_and(|(_, n)| n == number);
        return devices.iter().find(is_meant).cloned().ok_or_else(|| unavailable(wanted, devices));
    }
    let best = devices.iter().find(|d| d.best).map(Device::kind);
    let kind = if wanted == "auto" { best } else { Some(wanted) };
    let alike = devices.iter().filter(|d| Some(d.kind()) == kind);
    // The first among equals: `max_by_key` would take the last.
    let most_free =
        alike.reduce(|a, b| if available(b, reserved(&b.device)) > available(a, reserved(&a.device)) { b } else { a });
    most_free.cloned().ok_or_else(|| unavailable(wanted, devices))
}

fn unavailable(wanted: &str, devices: &[Device]) -> Box<Failure> {
    let names: Vec<&str> = devices.iter().map(|d| d.device.as_str()).collect();
    let have = if names.is_empty() { "none".to_string() } else { names.join(", ") };
    let message = format!("no device {wanted} on this host; choose one of its devices: {have}");
    let details = json!({"device": wanted, "devices": names});
    Box::new(Failure { details, ..Failure::new(Code::GpuUnavailable, message) })
}

/// Fails if `need` bytes are not available.
pub(super) fn admit(device: &Device, reserved: Reserved, need: u64) -> Result<(), Box<Failure>> {
    let available = available(device, reserved);
    if need <= available {
        return Ok(());
    }
    let message = format!(
        "model needs {}, but {} has {} available ({} are reserved by other workers); stop one of them, or try a smaller --dtype \
         or --context",
        gib(need),
        device.device,
        gib(available),
        gib(reserved.total)
    );
    let details = json!({"device": device.device, "need_bytes": need, "room_bytes": available, "allocated_bytes": reserved.total});
    Err(Box::new(Failure { details, ..Failure::new(Code::InsufficientVram, message) }))
}

/// Bytes for a person.
pub(crate) fn gib(bytes: u64) -> String {
    match bytes {
        0..0x4000_0000 => format!("{:.1} MiB", bytes as f64 / 1_048_576.0),
        _ => format!("{:.1} GiB", bytes as f64 / 1_073_741_824.0),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn device(name: &str, free: u64, total: u64, best: bool) -> Device {
        Device { device: name.into(), description: String::new(), free_bytes: free, total_bytes: total, best }
    }

    fn nothing_reserved(_: &str) -> Reserved {
        Reserved { total: 0, loading: 0 }
    }

    #[test]
    fn available_memory_excludes_used_and_reserved_memory() {
        let d = device("cuda:0", 70, 100, true);
        assert_eq!(available(&d, Reserved { total: 0, loading: 0 }), 70);
        assert_eq!(available(&d, Reserved { total: 50, loading: 50 }), 20, "reserved and not loaded yet");
        assert_eq!(
            available(&d, Reserved { total: 50, loading: 0 }),
            50,
            "reserved, and the loaded models take less than that"
        );
        assert_eq!(available(&d, Reserved { total: 200, loading: 200 }), 0);
        assert!(admit(&d, Reserved { total: 50, loading: 50 }, 20).is_ok());
        let e = admit(&d, Reserved { total: 50, loading: 50 }, 21).unwrap_err();
        assert_eq!((e.error_code, &e.details["need_bytes"]), (Code::InsufficientVram, &json!(21)));
    }

    #[test]
    fn kind_selects_the_device_with_most_memory_and_auto_the_best_kind() {
        let all = [device("cpu", 500, 500, false), device("cuda:0", 40, 80, true), device("cuda:1", 70, 80, false)];
        let chosen = |w: &str| choose(&all, w, nothing_reserved).map(|d| d.device).map_err(|e| e.error_code);
        assert_eq!(chosen("cuda:0").unwrap(), "cuda:0");
        assert_eq!(chosen("cuda").unwrap(), "cuda:1");
        assert_eq!(chosen("auto").unwrap(), "cuda:1");
        assert_eq!(chosen("cpu").unwrap(), "cpu");
        assert_eq!(chosen("metal"), Err(Code::GpuUnavailable));
        assert_eq!(chosen("cuda:7"), Err(Code::GpuUnavailable));
        assert_eq!(chosen("gpu:1").unwrap(), "cuda:1");
        for out_of_range in ["gpu:2", "gpu:", "gpu:01", "gpu"] {
            assert_eq!(chosen(out_of_range), Err(Code::GpuUnavailable), "{out_of_range}");
        }
        let apple = [device("cpu", 9, 9, false), device("metal:0", 9, 9, true)];
        assert_eq!(choose(&apple, "gpu:0", nothing_reserved).unwrap().device, "metal:0");
        let reserved = |d: &str| if d == "cuda:1" { Reserved { total: 60, loading: 60 } } else { nothing_reserved(d) };
        assert_eq!(choose(&all, "cuda", reserved).unwrap().device, "cuda:0");
    }
}
