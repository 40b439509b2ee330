//! Names the devices this build serves as plain cfgs (`cuda`, `metal`), and compiles every `.cu` for the former.
//!
//! On macOS Metal is always on, so a feature alone cannot say it; elsewhere the feature turns it on (the simulated device of
//! `tools/metal-sim` runs it on Linux).

use std::collections::BTreeSet;
use std::env;
use std::ffi::OsStr;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::Mutex;
use std::time::SystemTime;

/// The oldest GPU we serve is Ampere: bf16 arithmetic starts there. The driver compiles this PTX for what we have no code for.
const VIRTUAL_ARCH: &str = "arch=compute_80,code=compute_80";

/// What a text named `…_90a.cu` is compiled for alone; a build for another card has nothing of it.
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

/// `src/<op>/kernel.cu` becomes `$OUT_DIR/<op>.fatbin`, `src/<op>/<other>.cu` `<op>_<other>.fatbin`.
fn compile_cuda_kernels() {
    for var in ["NVCC", "CUDA_HOME", "CUDA_PATH", "CUDA_COMPUTE_CAP"] {
        println!("cargo::rerun-if-env-changed={var}");
    }
    let arch = arch();
    println!("cargo::rustc-env=SCONCE_CUDA_ARCH={arch}");
    let out = PathBuf::from(env::var("OUT_DIR").expect("cargo sets OUT_DIR"));
    let mut texts = Vec::new();
    find(Path::new("src"), &mut texts);
    texts.iter().for_each(|text| println!("cargo::rerun-if-changed={}", text.display()));
    let kernels = texts.iter().filter(|text| text.extension() == Some(OsStr::new("cu")));
    // What was made by other means counts for nothing, and neither does what a build left behind that did not end.
    let (means, stamp) = (format!("{arch} {}", nvcc().display()), out.join("means"));
    let is_new = fs::read_to_string(&stamp).ok().as_ref() != Some(&means) || age(&stamp) < age(Path::new("build.rs"));
    let _ = fs::remove_file(&stamp);
    let stale = kernels.map(|text| (text, out.join(name(text)))).filter(|(text, made)| {
        let (made, read) = (age(made), read_by(text).iter().map(|text| age(text)).max().flatten());
        is_new || made.is_none() || made < read
    });
    let left = Mutex::new(stale.collect::<Vec<_>>());
    let workers = std::thread::available_parallelism().map_or(1, usize::from);
    std::thread::scope(|scope| {
        for _ in 0..workers {
            scope.spawn(|| {
                loop {
                    let next = left.lock().expect("no worker panics while it holds the list").pop();
                    let Some((text, made)) = next else { break };
                    compile(text, &made, &arch);
                }
            });
        }
    });
    fs::write(stamp, means).expect("OUT_DIR is writable");
}

fn compile(text: &Path, made: &Path, arch: &str) {
    let is_hopper = text.file_stem().is_some_and(|stem| stem.to_string_lossy().ends_with("_90a"));
    if is_hopper && arch != "90" {
        return fs::write(made, "").expect("OUT_DIR is writable");
    }
    let own = format!("arch=compute_{arch},code=sm_{arch}");
    let codes = if is_hopper { vec![HOPPER] } else { vec![VIRTUAL_ARCH, &own] };
    let status = Command::new(nvcc())
        .args(["--fatbin", "-O3", "-std=c++17", "-I", "src"])
        .args(codes.iter().flat_map(|code| ["-gencode", code]))
        .arg("-o")
        .arg(made)
        .arg(text)
        .status();
    match status {
        Ok(status) if status.success() => {}
        Ok(status) => panic!("nvcc failed on {} ({status})", text.display()),
        Err(e) => panic!("cannot run nvcc ({e}); the `cuda` feature needs the CUDA toolkit: set CUDA_HOME or NVCC"),
    }
}

/// Every text for CUDA below `folder`.
fn find(folder: &Path, texts: &mut Vec<PathBuf>) {
    for entry in fs::read_dir(folder).expect("src is readable").flatten() {
        let path = entry.path();
        if path.is_dir() {
            find(&path, texts);
        } else if path.extension().is_some_and(|extension| extension == "cu" || extension == "cuh") {
            texts.push(path);
        }
    }
}

/// A text and every text of ours that it includes, which are named from `src` on.
fn read_by(text: &Path) -> BTreeSet<PathBuf> {
    let (mut all, mut left) = (BTreeSet::new(), vec![text.to_owned()]);
    while let Some(text) = left.pop() {
        let words = fs::read_to_string(&text).unwrap_or_default();
        if all.insert(text) {
            let included =
                |line: &str| Some(Path::new("src").join(line.strip_prefix("#include \"")?.strip_suffix('"')?));
            left.extend(words.lines().filter_map(included));
        }
    }
    all
}

fn name(text: &Path) -> String {
    let parts: Vec<_> =
        text.with_extension("").iter().skip(1).map(|part| part.to_string_lossy().into_owned()).collect();
    let parts = if parts.last().is_some_and(|last| last == "kernel") { &parts[..parts.len() - 1] } else { &parts };
    parts.join("_") + ".fatbin"
}

fn age(path: &Path) -> Option<SystemTime> {
    fs::metadata(path).and_then(|meta| meta.modified()).ok()
}

/// The architecture that machine code is made for: as Candle's build has it, what is asked for or what is there.
fn arch() -> String {
    let asked = env::var("CUDA_COMPUTE_CAP").ok();
    let there = || {
        let args = ["--query-gpu=compute_cap", "--format=csv,noheader"];
        let said = Command::new("nvidia-smi").args(args).output().ok()?;
        String::from_utf8(said.stdout).ok()?.lines().next().map(str::to_owned)
    };
    let digits = |s: String| s.chars().filter(char::is_ascii_digit).collect::<String>();
    asked.or_else(there).map(digits).filter(|s| s.len() >= 2).unwrap_or_else(|| "80".into())
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
