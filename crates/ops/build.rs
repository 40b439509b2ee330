//! Names the devices this build serves as plain cfgs (`cuda`, `metal`), and compiles every `kernel.cu` to PTX for the former.
//!
//! On macOS Metal is always on, so a feature alone cannot say it; elsewhere the feature turns it on (the simulated device of
//! `tools/metal-sim` runs it on Linux).

use std::env;
use std::path::{Path, PathBuf};
use std::process::Command;

/// The oldest GPU we serve is Ampere: bf16 arithmetic starts there, and the driver compiles this PTX for anything newer.
const VIRTUAL_ARCH: &str = "compute_80";

fn main() {
    println!("cargo::rustc-check-cfg=cfg(cuda)");
    println!("cargo::rustc-check-cfg=cfg(metal)");
    println!("cargo::rerun-if-changed=build.rs");
    if env::var_os("CARGO_FEATURE_METAL").is_some() || env::var("CARGO_CFG_TARGET_OS").as_deref() == Ok("macos") {
        println!("cargo::rustc-cfg=metal");
    }
    if env::var_os("CARGO_FEATURE_CUDA").is_some() {
        println!("cargo::rustc-cfg=cuda");
        compile_cuda_kernels();
    }
}

/// `src/<op>/kernel.cu` becomes `$OUT_DIR/<op>.ptx`.
fn compile_cuda_kernels() {
    for var in ["NVCC", "CUDA_HOME", "CUDA_PATH"] {
        println!("cargo::rerun-if-env-changed={var}");
    }
    let out = PathBuf::from(env::var("OUT_DIR").expect("cargo sets OUT_DIR"));
    for entry in std::fs::read_dir("src").expect("src is readable").flatten() {
        let kernel = entry.path().join("kernel.cu");
        if !kernel.is_file() {
            continue;
        }
        println!("cargo::rerun-if-changed={}", kernel.display());
        let ptx = out.join(entry.file_name()).with_extension("ptx");
        let status = Command::new(nvcc())
            .args(["--ptx", "-O3", "-std=c++17", "-arch", VIRTUAL_ARCH, "-o"])
            .arg(&ptx)
            .arg(&kernel)
            .status();
        match status {
            Ok(status) if status.success() => {}
            Ok(status) => panic!("nvcc failed on {} ({status})", kernel.display()),
            Err(e) => panic!("cannot run nvcc ({e}); the `cuda` feature needs the CUDA toolkit: set CUDA_HOME or NVCC"),
        }
    }
}

fn nvcc() -> PathBuf {
    if let Some(path) = env::var_os("NVCC") {
        return path.into();
    }
    ["CUDA_HOME", "CUDA_PATH"]
        .iter()
        .filter_map(env::var_os)
        .map(|home| Path::new(&home).join("bin/nvcc"))
        .find(|p| p.is_file())
        .unwrap_or_else(|| "nvcc".into())
}
