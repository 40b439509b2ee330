//! Which device a worker goes to, and whether it fits there. Pure.

use sconce_api::pool::{Code, Failure};
use serde::{Deserialize, Serialize};
use serde_json::json;

/// A device, as `sconce devices --json` tells it.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Device {
    /// `cpu`, `cuda:0`, `metal:0`.
    pub device: String,
    /// Its maker's name for it.
    pub description: String,
    /// Bytes that can still be taken, when it was asked last.
    pub free_bytes: u64,
    /// Bytes in all.
    pub total_bytes: u64,
    /// Whether `auto` takes it.
    pub best: bool,
}

impl Device {
    /// `cpu`, `cuda` or `metal`.
    pub fn kind(&self) -> &str {
        kind(&self.device)
    }
}

/// The kind of a device's name.
pub fn kind(device: &str) -> &str {
    device.split(':').next().unwrap_or(device)
}

/// What is to be had on a device.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Held {
    /// Bytes of all workers there.
    pub(super) all: u64,
    /// Bytes of those among them that have not loaded their model yet, so that the device does not know of them.
    pub(super) coming: u64,
}

/// Bytes that one more may take: neither more than is free now, nor more than was not promised to others.
pub(super) fn room(device: &Device, held: Held) -> u64 {
    let unpromised = device.total_bytes.saturating_sub(held.all);
    let free = device.free_bytes.saturating_sub(held.coming);
    unpromised.min(free)
}

/// The device that `wanted` means: itself, or of a kind (of the best kind, if `auto`) the one with most room.
pub(super) fn choose(devices: &[Device], wanted: &str, held: impl Fn(&str) -> Held) -> Result<Device, Box<Failure>> {
    if let Some(named) = devices.iter().find(|d| d.device == wanted) {
        return Ok(named.clone());
    }
    let best = devices.iter().find(|d| d.best).map(Device::kind);
    let kind = if wanted == "auto" { best } else { Some(wanted) };
    let alike = devices.iter().filter(|d| Some(d.kind()) == kind);
    // The first among equals: `max_by_key` would take the last.
    let roomiest = alike.reduce(|a, b| if room(b, held(&b.device)) > room(a, held(&a.device)) { b } else { a });
    roomiest.cloned().ok_or_else(|| {
        let names: Vec<&str> = devices.iter().map(|d| d.device.as_str()).collect();
        let have = if names.is_empty() { "none at all".to_string() } else { names.join(", ") };
        let message = format!("there is no device {wanted} on this host; there is {have}");
        let details = json!({"device": wanted, "devices": names});
        Box::new(Failure { details, ..Failure::new(Code::GpuUnavailable, message) })
    })
}

/// Whether `need` bytes fit.
pub(super) fn admit(device: &Device, held: Held, need: u64) -> Result<(), Box<Failure>> {
    let room = room(device, held);
    if need <= room {
        return Ok(());
    }
    let message = format!(
        "model needs {}, {} has room for {} ({} are promised to other workers); stop one of them, or try a smaller --dtype \
         or --context",
        gib(need),
        device.device,
        gib(room),
        gib(held.all)
    );
    let details = json!({"device": device.device, "need_bytes": need, "room_bytes": room, "allocated_bytes": held.all});
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

    fn none(_: &str) -> Held {
        Held { all: 0, coming: 0 }
    }

    #[test]
    fn room_is_what_is_neither_taken_nor_promised() {
        let d = device("cuda:0", 70, 100, true);
        assert_eq!(room(&d, Held { all: 0, coming: 0 }), 70);
        assert_eq!(room(&d, Held { all: 50, coming: 50 }), 20, "promised and not there yet");
        assert_eq!(room(&d, Held { all: 50, coming: 0 }), 50, "promised, and there less is taken than was promised");
        assert_eq!(room(&d, Held { all: 200, coming: 200 }), 0);
        assert!(admit(&d, Held { all: 50, coming: 50 }, 20).is_ok());
        let e = admit(&d, Held { all: 50, coming: 50 }, 21).unwrap_err();
        assert_eq!((e.error_code, &e.details["need_bytes"]), (Code::InsufficientVram, &json!(21)));
    }

    #[test]
    fn a_kind_is_its_roomiest_device_and_auto_the_best_kind() {
        let all = [device("cpu", 500, 500, false), device("cuda:0", 40, 80, true), device("cuda:1", 70, 80, false)];
        let named = |w: &str| choose(&all, w, none).map(|d| d.device).map_err(|e| e.error_code);
        assert_eq!(named("cuda:0").unwrap(), "cuda:0");
        assert_eq!(named("cuda").unwrap(), "cuda:1");
        assert_eq!(named("auto").unwrap(), "cuda:1");
        assert_eq!(named("cpu").unwrap(), "cpu");
        assert_eq!(named("metal"), Err(Code::GpuUnavailable));
        assert_eq!(named("cuda:7"), Err(Code::GpuUnavailable));
        let held = |d: &str| if d == "cuda:1" { Held { all: 60, coming: 60 } } else { none(d) };
        assert_eq!(choose(&all, "cuda", held).unwrap().device, "cuda:0");
    }
}
