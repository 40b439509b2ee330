//! Description and memory of the CPU.

use crate::cpu::Isa;
use crate::{Device, DeviceInfo, Error, Result, threads};
use sysinfo::{CpuRefreshKind, MemoryRefreshKind, RefreshKind, System};

pub(crate) fn info() -> Result<DeviceInfo> {
    let wanted =
        RefreshKind::nothing().with_memory(MemoryRefreshKind::nothing().with_ram()).with_cpu(CpuRefreshKind::nothing());
    let system = System::new_with_specifics(wanted).map_err(|e| Error::Device {
        device: Device::Cpu,
        why: format!("the system does not report its memory: {e}"),
    })?;
    let brand = system.cpus().first().map_or("", |c| c.brand().trim());
    let threads = threads::count();
    let s = if threads == 1 { "" } else { "s" };
    // A container's memory limit applies before the machine's.
    let limit = system.cgroup_limits();
    let free = limit.as_ref().map_or(u64::MAX, |c| c.free_memory).min(system.available_memory());
    let total = limit.as_ref().map_or(u64::MAX, |c| c.total_memory).min(system.total_memory());
    Ok(DeviceInfo {
        device: Device::Cpu,
        description: format!("{brand}, {}, {threads} thread{s}", Isa::best()),
        free_bytes: free,
        total_bytes: total,
    })
}
