//! Macs that cannot run the Metal code: `auto` takes the CPU and says why, and the device itself is
//! refused for the same reason.

use sconce_ops::{Device, Place};
use std::process::Command;

const METAL: Device = Device::Metal(0);

/// What [`print_devices`] prints in a process with this setting of the simulated device.
fn devices_with(name: &str, value: &str) -> String {
    let program = std::env::current_exe().expect("this test");
    let mut command = Command::new(program);
    let output = command.args(["--exact", "print_devices", "--ignored", "--nocapture"]).env(name, value).output();
    let output = output.expect("a process");
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    String::from_utf8(output.stdout).expect("text")
}

#[test]
#[ignore = "the other tests run it in processes of their own"]
fn print_devices() {
    let (best, why) = Device::best();
    println!("best {best}: {why}");
    println!("info {:?}", METAL.info().map(|info| info.description).map_err(|e| e.to_string()));
    println!("open {:?}", Place::open(METAL).map(|_| ()).map_err(|e| e.to_string()));
    println!("fast bf16 {}", METAL.has_fast_bf16());
}

#[test]
fn macos_14_takes_the_cpu() {
    let seen = devices_with("METAL_SIM_MACOS_14", "1");
    assert!(seen.contains("best cpu: ") && seen.matches("macOS 15 or newer is needed").count() == 3, "{seen}");
}

#[test]
fn gpu_of_another_vendor_takes_the_cpu() {
    let seen = devices_with("METAL_SIM_APPLE_FAMILY", "0");
    assert!(seen.contains("best cpu: ") && seen.matches("not a GPU of Apple silicon").count() == 3, "{seen}");
}

#[test]
fn bf16_is_fast_from_the_m3_on() {
    let seen = |family| devices_with("METAL_SIM_APPLE_FAMILY", family);
    assert!(seen("7").contains("best metal:0") && seen("7").contains("fast bf16 false"));
    assert!(seen("9").contains("open Ok") && seen("9").contains("fast bf16 true"));
}
