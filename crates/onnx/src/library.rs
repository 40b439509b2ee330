//! Finds ONNX Runtime on this machine and loads it, once per process.
//!
//! The library is the user's: it is neither linked nor shipped. An error says where it was looked
//! for and how to install it; nothing here panics when it is missing or too old.

use ort::environment::Environment;
use std::env;
use std::path::{Path, PathBuf};
use std::sync::{Mutex, OnceLock, PoisonError};

/// The variable that names the library.
const VARIABLE: &str = "ORT_DYLIB_PATH";
/// Variables that name an active virtual environment of Python or conda.
const ENVIRONMENTS: [&str; 2] = ["VIRTUAL_ENV", "CONDA_PREFIX"];
/// Folders of system packages, Homebrew and manual installations.
const FOLDERS: [&str; 8] = [
    "/usr/local/lib",
    "/usr/local/lib64",
    "/opt/homebrew/lib",
    "/opt/onnxruntime/lib",
    "/usr/lib",
    "/usr/lib64",
    "/usr/lib/x86_64-linux-gnu",
    "/usr/lib/aarch64-linux-gnu",
];

/// ONNX Runtime, loaded.
pub(crate) struct Library {
    pub(crate) environment: Environment,
    pub(crate) path: PathBuf,
    pub(crate) version: String,
}

static LOADED: OnceLock<Library> = OnceLock::new();
/// Held while the library is loaded, because two environments in one process are an error.
static LOADING: Mutex<()> = Mutex::new(());

/// The library of this process; loads it at the first call, from `path` if there is one.
pub(crate) fn library(path: Option<&Path>) -> Result<&'static Library, String> {
    let _loading = LOADING.lock().unwrap_or_else(PoisonError::into_inner);
    if let Some(library) = LOADED.get() {
        return Ok(library);
    }
    let library = load(&path.map_or_else(find, |path| Ok(path.into()))?)?;
    Ok(LOADED.get_or_init(|| library))
}

fn load(path: &Path) -> Result<Library, String> {
    let why =
        |e: &dyn std::fmt::Display| format!("ONNX Runtime at {} cannot be used: {e}. {}", path.display(), advice());
    // `ort` looks for a relative path beside the program.
    let path = &std::path::absolute(path).map_err(|e| why(&e))?;
    let builder = ort::init_from(path).map_err(|e| why(&e))?;
    let environment = builder.with_name("sconce").with_telemetry(false).build().map_err(|e| why(&e))?;
    let version = version_of(path).unwrap_or_else(|| format!("1.{} or later", ort::MINOR_VERSION));
    Ok(Library { environment, path: path.into(), version })
}

/// The version in a library's name, as in `libonnxruntime.so.1.31.0`.
fn version_of(path: &Path) -> Option<String> {
    let path = path.canonicalize().ok()?;
    let name = path.file_name()?.to_str()?;
    let digits = name.split_once(|c: char| c.is_ascii_digit()).map(|(before, _)| &name[before.len()..])?;
    Some(digits.trim_end_matches(".dylib").to_owned())
}

/// How to install it.
fn advice() -> String {
    format!(
        "Install version 1.{} or later with `pip install onnxruntime` (for an NVIDIA GPU `onnxruntime-gpu`) into a virtual \
         environment and activate it, or set {VARIABLE} to the library",
        ort::MINOR_VERSION
    )
}

/// The path of the library: the one that the user names, else the first found.
fn find() -> Result<PathBuf, String> {
    if let Some(path) = env::var_os(VARIABLE).filter(|path| !path.is_empty()) {
        let path = PathBuf::from(path);
        return match path.is_file() {
            true => Ok(path),
            false => Err(format!("{VARIABLE} is {}, which is not a file. {}", path.display(), advice())),
        };
    }
    let folders = folders(|name| env::var_os(name).map(PathBuf::from));
    let found = folders.iter().find_map(|folder| newest(folder));
    found.ok_or_else(|| {
        let looked: Vec<_> = folders.iter().map(|folder| folder.display().to_string()).collect();
        format!("ONNX Runtime is not installed (looked in {}). {}", looked.join(", "), advice())
    })
}

/// The folders to look in, the most specific first.
fn folders(variable: impl Fn(&str) -> Option<PathBuf>) -> Vec<PathBuf> {
    let mut all = Vec::new();
    for root in ENVIRONMENTS.iter().filter_map(|name| variable(name)) {
        // On Windows `Lib`, elsewhere a folder for each version of Python.
        let mut packages = vec![root.join("Lib/site-packages")];
        let pythons = std::fs::read_dir(root.join("lib")).into_iter().flatten().flatten();
        packages.extend(pythons.map(|python| python.path().join("site-packages")));
        all.extend(packages.into_iter().map(|folder| folder.join("onnxruntime/capi")).filter(|f| f.is_dir()));
        all.push(root.join("lib"));
    }
    all.extend(env::current_exe().ok().and_then(|exe| exe.parent().map(Path::to_path_buf)));
    all.extend(FOLDERS.map(PathBuf::from));
    all
}

/// The library in a folder; of several versions the newest.
fn newest(folder: &Path) -> Option<PathBuf> {
    let (prefix, suffix) = (env::consts::DLL_PREFIX, env::consts::DLL_SUFFIX);
    let is_library = |name: &str| {
        let rest = name.strip_prefix(prefix).and_then(|name| name.strip_prefix("onnxruntime"));
        // Linux appends the version, macOS puts it before the suffix. `onnxruntime_providers_…` are
        // other libraries.
        rest.is_some_and(|rest| rest == suffix || rest.starts_with('.') && rest.contains(suffix))
    };
    let entries = std::fs::read_dir(folder).ok()?.flatten();
    let names = entries.filter_map(|entry| entry.file_name().into_string().ok());
    names.filter(|name| is_library(name)).max_by_key(|name| numbers(name)).map(|name| folder.join(name))
}

/// The numbers in a name, to order versions: 1.9.0 is older than 1.31.0.
fn numbers(name: &str) -> Vec<u64> {
    name.split(|c: char| !c.is_ascii_digit()).filter_map(|digits| digits.parse().ok()).collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::fs;

    #[cfg(target_os = "linux")]
    #[test]
    fn the_library_of_an_active_environment_comes_first() {
        let dir = tempfile::tempdir().unwrap();
        let capi = dir.path().join("lib/python3.12/site-packages/onnxruntime/capi");
        fs::create_dir_all(&capi).unwrap();
        fs::write(capi.join("libonnxruntime_providers_shared.so"), "").unwrap();
        assert_eq!(newest(&capi), None);
        fs::write(capi.join("libonnxruntime.so.1.31.0"), "").unwrap();
        let all = folders(|name| (name == "VIRTUAL_ENV").then(|| dir.path().to_path_buf()));
        assert_eq!(newest(&all[0]).unwrap(), capi.join("libonnxruntime.so.1.31.0"));
        assert_eq!(version_of(&capi.join("libonnxruntime.so.1.31.0")).unwrap(), "1.31.0");
        fs::write(capi.join("libonnxruntime.so"), "").unwrap();
        fs::write(capi.join("libonnxruntime.so.1.9.2"), "").unwrap();
        assert_eq!(newest(&capi).unwrap(), capi.join("libonnxruntime.so.1.31.0"));
        assert!(folders(|_| None).contains(&PathBuf::from("/usr/lib")));
    }

    #[test]
    fn a_file_that_is_no_library_is_an_error_that_says_what_to_do() {
        let dir = tempfile::tempdir().unwrap();
        let file = dir.path().join("libonnxruntime.so");
        fs::write(&file, "not a library").unwrap();
        let error = load(&file).err().expect("an error");
        assert!(error.contains("cannot be used") && error.contains("pip install onnxruntime"), "{error}");
    }
}
