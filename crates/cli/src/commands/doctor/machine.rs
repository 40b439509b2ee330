//! Description of the machine for the report, without anything that identifies its owner.

use serde_json::{Value, json};
use std::env::consts::{ARCH, OS};
use sysinfo::{CpuRefreshKind, MemoryRefreshKind, Product, RefreshKind, System};

/// Model, system and processor. On Apple's chips the processor's name is also the GPU's.
pub(super) fn machine() -> Value {
    let wanted =
        RefreshKind::nothing().with_memory(MemoryRefreshKind::nothing().with_ram()).with_cpu(CpuRefreshKind::nothing());
    let system = System::new_with_specifics(wanted).ok();
    let processor = system.as_ref().and_then(|s| s.cpus().first().map(|c| c.brand().trim().to_string()));
    json!({
        "model": Product::name().ok(),
        "os": System::long_os_version().ok(),
        "kernel": System::kernel_long_version().ok(),
        "processor": processor,
        "cores": system.as_ref().map(|s| s.cpus().len()),
        "memory_bytes": system.as_ref().map(System::total_memory),
    })
}

/// The build that ran.
pub(super) fn build() -> Value {
    let metal = cfg!(any(feature = "metal", target_os = "macos"));
    json!({
        "version": env!("CARGO_PKG_VERSION"),
        "target": format!("{ARCH}-{OS}"),
        "profile": if cfg!(debug_assertions) { "debug" } else { "release" },
        "cuda": cfg!(feature = "cuda"),
        "metal": metal,
    })
}

/// Both on one line, above the table.
pub(super) fn line(machine: &Value, build: &Value) -> String {
    let word = |v: &Value| v.as_str().unwrap_or("unknown").to_string();
    let (version, target, profile) = (word(&build["version"]), word(&build["target"]), word(&build["profile"]));
    let known = ["os", "model", "processor"].map(|what| word(&machine[what])).join(", ");
    format!("sconce {version} ({target}, {profile}) on {known}")
}
