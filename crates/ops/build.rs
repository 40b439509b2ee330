//! Sets the cfgs `cuda` and `metal` for the devices of this build, and compiles every `.cu` file if
//! CUDA is one of them.
//!
//! Metal is always on under macOS, which a feature cannot express. Elsewhere the feature `metal`
//! turns it on: `tools/metal-sim` simulates a Metal device on Linux.

use std::collections::BTreeSet;
use std::env;
use std::ffi::OsStr;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::Mutex;
use std::time::SystemTime;

/// Ampere is the oldest supported GPU, because bf16 arithmetic starts with it. The driver compiles
/// this PTX for architectures that the build has no machine code for.
const VIRTUAL_ARCH: &str = "arch=compute_80,code=compute_80";

/// The only target of a file named `…_90a.cu`. A build for another architecture leaves that file
/// out.
const HOPPER: &str = "arch=compute_90a,code=sm_90a";

fn main() {
    println!("cargo::rustc-check-cfg=cfg(cuda)");
    println!("cargo::rustc-check-cfg=cfg(metal)");
    println!("cargo::rerun-if-changed=build.rs");
    println!("cargo::rerun-if-changed=src");
    if env::var_os("CARGO_FEATURE_METAL").is_some() || env::var("CARGO_CFG_TARGET_OS").as_deref() == Ok("macos") {
        println!("cargo::rustc-cfg=metal");
    }
    if env::var_os("CARGO_FEATURE_CUDA").is_some() {
        println!("cargo::rustc-cfg=cuda");
        compile_cuda_kernels();
    }
}

/// Compiles `src/<op>/kernel.cu` to `$OUT_DIR/<op>.fatbin`, and `src/<op>/<other>.cu` to
/// `$OUT_DIR/<op>_<other>.fatbin`.
fn compile_cuda_kernels() {
    for var in ["NVCC", "CUDA_HOME", "CUDA_PATH", "CUDA_COMPUTE_CAP", "SCONCE_CUDA_ARCHS"] {
        println!("cargo::rerun-if-env-changed={var}");
    }
    let archs = archs(arch());
    println!("cargo::rustc-env=SCONCE_CUDA_ARCHS={}", archs.join(" "));
    let out = PathBuf::from(env::var("OUT_DIR").expect("cargo sets OUT_DIR"));
    let mut sources = Vec::new();
    find(Path::new("src"), &mut sources);
    sources.iter().for_each(|source| println!("cargo::rerun-if-changed={}", source.display()));
    let kernels = sources.iter().filter(|source| source.extension() == Some(OsStr::new("cu")));
    // Kernels compiled with other settings are stale, and so are those of a build that was
    // interrupted.
    let (settings, stamp) = (format!("{} {}", archs.join(" "), nvcc().display()), out.join("settings"));
    let is_new =
        fs::read_to_string(&stamp).ok().as_ref() != Some(&settings) || age(&stamp) < age(Path::new("build.rs"));
    let _ = fs::remove_file(&stamp);
    let stale = kernels.map(|source| (source, out.join(name(source)))).filter(|(source, output)| {
        let (output, read) = (age(output), with_includes(source).iter().map(|source| age(source)).max().flatten());
        is_new || output.is_none() || output < read
    });
    let queue = Mutex::new(stale.collect::<Vec<_>>());
    let workers = std::thread::available_parallelism().map_or(1, usize::from);
    std::thread::scope(|scope| {
        for _ in 0..workers {
            scope.spawn(|| {
                loop {
                    let next = queue.lock().expect("no worker panics while it holds the list").pop();
                    let Some((source, output)) = next else { break };
                    compile(source, &output, &archs);
                }
            });
        }
    });
    fs::write(stamp, settings).expect("OUT_DIR is writable");
}

fn compile(source: &Path, output: &Path, archs: &[String]) {
    let is_hopper = source.file_stem().is_some_and(|stem| stem.to_string_lossy().ends_with("_90a"));
    if is_hopper && !archs.iter().any(|arch| arch == "90") {
        return fs::write(output, "").expect("OUT_DIR is writable");
    }
    let machine_code = archs.iter().map(|arch| format!("arch=compute_{arch},code=sm_{arch}"));
    let codes: Vec<String> =
        if is_hopper { vec![HOPPER.into()] } else { machine_code.chain([VIRTUAL_ARCH.into()]).collect() };
    let status = Command::new(nvcc())
        .args(["--fatbin", "-O3", "-std=c++17", "-I", "src"])
        .args(codes.iter().flat_map(|code| ["-gencode", code.as_str()]))
        .arg("-o")
        .arg(output)
        .arg(source)
        .status();
    match status {
        Ok(status) if status.success() => {}
        Ok(status) => panic!("nvcc failed on {} ({status})", source.display()),
        Err(e) => panic!("cannot run nvcc ({e}); the `cuda` feature needs the CUDA toolkit: set CUDA_HOME or NVCC"),
    }
}

/// Every `.cu` and `.cuh` file below `folder`.
fn find(folder: &Path, sources: &mut Vec<PathBuf>) {
    for entry in fs::read_dir(folder).expect("src is readable").flatten() {
        let path = entry.path();
        if path.is_dir() {
            find(&path, sources);
        } else if path.extension().is_some_and(|extension| extension == "cu" || extension == "cuh") {
            sources.push(path);
        }
    }
}

/// A source file and every file of ours that it includes. Includes are relative to `src`.
fn with_includes(source: &Path) -> BTreeSet<PathBuf> {
    let (mut all, mut queue) = (BTreeSet::new(), vec![source.to_owned()]);
    while let Some(source) = queue.pop() {
        let content = fs::read_to_string(&source).unwrap_or_default();
        if all.insert(source) {
            let included =
                |line: &str| Some(Path::new("src").join(line.strip_prefix("#include \"")?.strip_suffix('"')?));
            queue.extend(content.lines().filter_map(included));
        }
    }
    all
}

fn name(source: &Path) -> String {
    let parts: Vec<_> =
        source.with_extension("").iter().skip(1).map(|part| part.to_string_lossy().into_owned()).collect();
    let parts = if parts.last().is_some_and(|last| last == "kernel") { &parts[..parts.len() - 1] } else { &parts };
    parts.join("_") + ".fatbin"
}

fn age(path: &Path) -> Option<SystemTime> {
    fs::metadata(path).and_then(|meta| meta.modified()).ok()
}

/// The architectures that machine code is compiled for: `SCONCE_CUDA_ARCHS` (`80 86 89 90 100`),
/// for a build that runs on several kinds of GPU, or `arch` alone, which is the oldest of them.
fn archs(arch: String) -> Vec<String> {
    let requested = env::var("SCONCE_CUDA_ARCHS").unwrap_or_default();
    let all: Vec<_> = requested.split([' ', ',']).filter(|arch| !arch.is_empty()).map(String::from).collect();
    let is_arch = |arch: &String| arch.len() >= 2 && arch.chars().all(|c| c.is_ascii_digit());
    if let Some(other) = all.iter().find(|arch| !is_arch(arch)) {
        panic!("SCONCE_CUDA_ARCHS={requested}: `{other}` is not an architecture like 80 or 90");
    }
    if all.is_empty() {
        return vec![arch];
    }
    let oldest = all.iter().min_by_key(|arch| (arch.len(), (*arch).clone()));
    assert!(oldest == Some(&arch), "SCONCE_CUDA_ARCHS={requested}: CUDA_COMPUTE_CAP must be the oldest, it is {arch}");
    all
}

/// The architecture that Candle's build compiles its kernels to PTX for, so the oldest that the
/// build runs on: `CUDA_COMPUTE_CAP`, or that of the GPU in this machine.
fn arch() -> String {
    let requested = env::var("CUDA_COMPUTE_CAP").ok();
    let detected = || {
        let args = ["--query-gpu=compute_cap", "--format=csv,noheader"];
        let output = Command::new("nvidia-smi").args(args).output().ok()?;
        String::from_utf8(output.stdout).ok()?.lines().next().map(str::to_owned)
    };
    let digits = |s: String| s.chars().filter(char::is_ascii_digit).collect::<String>();
    requested.or_else(detected).map(digits).filter(|s| s.len() >= 2).unwrap_or_else(|| "80".into())
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
