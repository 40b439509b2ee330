//! Dependencies between crates, checked with `cargo metadata`, and between the folders of a crate,
//! checked by reading imports.

use serde_json::Value;
use std::collections::{BTreeMap, BTreeSet};
use std::path::{Path, PathBuf};
use std::process::Command;

fn packages() -> Vec<Value> {
    let root = concat!(env!("CARGO_MANIFEST_DIR"), "/../..");
    let out = Command::new(env!("CARGO"))
        .args(["metadata", "--format-version", "1", "--no-deps", "--offline"])
        .current_dir(root)
        .output()
        .expect("cargo runs");
    assert!(out.status.success(), "{}", String::from_utf8_lossy(&out.stderr));
    let metadata: Value = serde_json::from_slice(&out.stdout).expect("cargo prints JSON");
    metadata["packages"].as_array().expect("packages").clone()
}

fn name(v: &Value) -> &str {
    v["name"].as_str().expect("a name")
}

/// Normal and build dependencies, by name.
fn dependencies(package: &Value) -> Vec<&str> {
    let all = package["dependencies"].as_array().expect("dependencies");
    all.iter().filter(|d| d["kind"] != "dev").map(name).collect()
}

/// The crates of ours that each crate may use. A crate that is missing here fails the test.
fn allowed_dependencies() -> BTreeMap<&'static str, Vec<&'static str>> {
    BTreeMap::from([
        ("sconce-ops", vec![]),
        ("sconce-models", vec!["sconce-ops"]),
        ("sconce-jinja", vec![]),
        ("sconce-hub", vec![]),
        ("sconce-formats", vec!["sconce-ops"]),
        ("sconce-text", vec!["sconce-formats", "sconce-jinja", "sconce-ops"]),
        ("sconce-engine", vec!["sconce-formats", "sconce-hub", "sconce-models", "sconce-ops", "sconce-text"]),
        ("sconce-onnx", vec!["sconce-engine"]),
        ("sconce-index", vec!["sconce-engine"]),
        ("sconce-api", vec![]),
        ("sconce-server", vec!["sconce-api", "sconce-engine", "sconce-index"]),
        ("sconce-pool", vec!["sconce-api"]),
        ("sconce-shards", vec!["sconce-api"]),
        (
            "sconce-cli",
            vec![
                "sconce-api",
                "sconce-engine",
                "sconce-index",
                "sconce-onnx",
                "sconce-ops",
                "sconce-pool",
                "sconce-server",
                "sconce-shards",
            ],
        ),
        ("sconce", vec!["sconce-cli", "sconce-engine", "sconce-index", "sconce-onnx"]),
        ("sconce-python", vec!["sconce-cli", "sconce-engine", "sconce-index", "sconce-onnx"]),
        ("sconce-testkit", vec![]),
        // `ops` for the arrays behind Ruby's tensors.
        ("sconce-ruby", vec!["sconce-engine", "sconce-index", "sconce-ops"]),
    ])
}

#[test]
fn crates_depend_only_on_allowed_crates() {
    let all_allowed = allowed_dependencies();
    for package in packages() {
        let allowed = all_allowed
            .get(name(&package))
            .unwrap_or_else(|| panic!("{} is not in allowed_dependencies()", name(&package)));
        for used in dependencies(&package).into_iter().filter(|d| d.starts_with("sconce-")) {
            assert!(allowed.contains(&used), "{} must not use {used}", name(&package));
        }
    }
}

/// A manager must survive whatever a driver or kernel does to a process, so it must not link the
/// engine, directly or indirectly.
#[test]
fn pool_does_not_link_the_engine() {
    let root = concat!(env!("CARGO_MANIFEST_DIR"), "/../..");
    for (package, features) in [("sconce-pool", ""), ("sconce-api", "clap,client"), ("sconce-shards", "object-store")] {
        let out = Command::new(env!("CARGO"))
            .args([
                "tree",
                "--offline",
                "-p",
                package,
                "--features",
                features,
                "-e",
                "normal,build",
                "--prefix",
                "none",
            ])
            .current_dir(root)
            .output()
            .expect("cargo runs");
        assert!(out.status.success(), "{}", String::from_utf8_lossy(&out.stderr));
        let tree = String::from_utf8(out.stdout).expect("text");
        assert!(tree.contains("serde"), "{tree}");
        for beneath in ["sconce-engine", "sconce-models", "sconce-ops", "sconce-server", "candle-core", "tokenizers"] {
            assert!(!tree.lines().any(|l| l.starts_with(beneath)), "{package} depends on {beneath}");
        }
    }
}

#[test]
fn only_ops_depends_on_candle_at_a_pinned_version() {
    for package in packages() {
        for d in package["dependencies"].as_array().expect("dependencies") {
            let candle = name(d).starts_with("candle") || name(d).starts_with("objc2");
            assert!(!candle || name(&package) == "sconce-ops", "{} depends on {}", name(&package), name(d));
            assert!(name(d) != "candle-transformers", "our architectures do not use candle-transformers");
            if name(d).starts_with("candle") {
                assert_eq!(d["req"], "=0.11.1", "{}", name(d));
            }
        }
    }
}

/// ONNX Runtime is reached through one crate, at one version, and never linked.
#[test]
fn only_onnx_depends_on_ort_and_loads_it_at_run_time() {
    for package in packages() {
        for d in package["dependencies"].as_array().expect("dependencies").iter().filter(|d| name(d).starts_with("ort"))
        {
            assert_eq!((name(&package), name(d)), ("sconce-onnx", "ort"));
            assert_eq!((&d["req"], &d["uses_default_features"]), (&"=2.0.0-rc.15".into(), &false.into()));
            let features = d["features"].as_array().expect("features");
            assert!(features.iter().any(|f| f == "load-dynamic"), "{features:?}");
            assert!(!features.iter().any(|f| f == "download-binaries" || f == "copy-dylibs"), "{features:?}");
        }
    }
    let packages = packages();
    for (optional_in, beneath) in [("sconce", "sconce-cli?/onnx"), ("sconce-cli", "dep:sconce-onnx")] {
        let package = packages.iter().find(|p| name(p) == optional_in).expect(optional_in);
        let turns_on = package["features"]["onnx"].as_array().expect("a feature `onnx`");
        assert!(turns_on.iter().any(|f| f == beneath), "{optional_in}: {turns_on:?}");
    }
}

/// Programs that leave the index out do not compile SQLite and the readers of documents.
#[test]
fn index_is_a_feature() {
    let packages = packages();
    for (optional_in, features) in [
        ("sconce", &["dep:sconce-index", "sconce-cli?/index"][..]),
        ("sconce-cli", &["dep:sconce-index", "sconce-server/index"][..]),
        ("sconce-server", &["dep:sconce-index"][..]),
    ] {
        let package = packages.iter().find(|p| name(p) == optional_in).expect(optional_in);
        let turns_on = package["features"]["index"].as_array().expect("a feature `index`");
        for feature in features {
            assert!(turns_on.iter().any(|f| f == feature), "{optional_in}: {turns_on:?}");
        }
    }
    for package in &packages {
        for used in dependencies(package).into_iter().filter(|d| ["rusqlite", "libsqlite3-sys"].contains(d)) {
            assert_eq!(name(package), "sconce-index", "{} depends on {used}", name(package));
        }
    }
}

/// The workspace must build on machines without Ruby and libclang.
#[test]
fn ruby_is_needed_for_the_extension_only() {
    let packages = packages();
    let gem = packages.iter().find(|p| name(p) == "sconce-ruby").expect("sconce-ruby");
    for d in gem["dependencies"].as_array().expect("dependencies") {
        let links_ruby = matches!(name(d), "magnus" | "rb-sys");
        assert_eq!(links_ruby, d["optional"] == true, "{}", name(d));
    }
    assert!(gem["features"].get("default").is_none(), "the extension must not be a default feature");
    for package in packages.iter().filter(|p| name(p) != "sconce-ruby") {
        let used = dependencies(package);
        assert!(!used.iter().any(|d| ["magnus", "rb-sys", "sconce-ruby"].contains(d)), "{}", name(package));
    }
}

/// Eager arrays are for users' own arithmetic: a model that used them could not be planned.
#[test]
fn only_the_gem_uses_eager_arrays() {
    let crates = Path::new(env!("CARGO_MANIFEST_DIR")).join("..");
    for package in std::fs::read_dir(&crates).expect("crates").map(|entry| entry.expect("an entry").path()) {
        let mut files = Vec::new();
        rust_files(&package.join("src"), &mut files);
        for file in files.iter().filter(|file| !file.components().any(|part| part.as_os_str() == "eager")) {
            let code = code(file);
            let uses = code.contains("eager::") || code.contains("eager;") && !file.ends_with("ops/src/lib.rs");
            assert!(!uses, "{} uses eager arrays", file.display());
        }
    }
}

/// A device's feature must reach every crate beneath the one it is set on; otherwise only half of
/// the build supports the device.
#[test]
fn device_features_enable_all_lower_crates() {
    let chain = [
        ("sconce", "sconce-engine/"),
        ("sconce", "sconce-cli?/"),
        ("sconce", "sconce-index?/"),
        ("sconce-python", "sconce-engine/"),
        ("sconce-python", "sconce-cli/"),
        ("sconce-python", "sconce-index/"),
        ("sconce-cli", "sconce-engine/"),
        ("sconce-cli", "sconce-index?/"),
        ("sconce-cli", "sconce-server/"),
        ("sconce-index", "sconce-engine/"),
        ("sconce-server", "sconce-engine/"),
        ("sconce-server", "sconce-index?/"),
        ("sconce-ruby", "sconce-engine/"),
        ("sconce-ruby", "sconce-index/"),
        ("sconce-engine", "sconce-models/"),
        ("sconce-models", "sconce-ops/"),
        ("sconce-ops", "candle-core/"),
    ];
    let packages = packages();
    for device in ["cuda", "metal"] {
        for (crate_name, beneath) in chain {
            let package = packages.iter().find(|p| name(p) == crate_name).expect(crate_name);
            let turns_on =
                package["features"][device].as_array().unwrap_or_else(|| panic!("{crate_name}: no {device}"));
            let wanted = format!("{beneath}{device}");
            assert!(turns_on.iter().any(|f| f == &wanted), "{crate_name}: {device} does not turn on {wanted}");
        }
    }
    // Every optional Candle crate belongs to a device's feature.
    let ops = packages.iter().find(|p| name(p) == "sconce-ops").expect("ops");
    for d in ops["dependencies"].as_array().expect("dependencies").iter().filter(|d| d["optional"] == true) {
        let wanted = format!("dep:{}", name(d));
        let features = ops["features"].as_object().expect("features");
        assert!(features.values().flat_map(|f| f.as_array().into_iter().flatten()).any(|f| f == &wanted), "{wanted}");
    }
    // On macOS Metal needs no flag.
    let on_mac = |d: &&Value| d["target"] == "cfg(target_os = \"macos\")" && name(d) == "candle-core";
    let mac = ops["dependencies"].as_array().expect("dependencies").iter().find(on_mac).expect("Candle on macOS");
    assert!(mac["features"].as_array().expect("features").iter().any(|f| f == "metal"));
}

/// Folders that form one layer and may use each other. In `ops` all ops build on them.
const MACHINERY: [&str; 6] = ["case", "cpu", "ladder", "launch", "quant", "replay"];

/// Cycles that are allowed: products of quantized weights on a GPU end in linear's kernels, and an
/// embedding table tied to the output layer is linear's weight.
const EXCEPTIONS: [(&str, &str, &str); 2] = [("ops", "machinery", "linear"), ("ops", "linear", "embed")];

fn rust_files(dir: &Path, all: &mut Vec<PathBuf>) {
    for entry in std::fs::read_dir(dir).expect("a folder") {
        let path = entry.expect("an entry").path();
        match path.is_dir() {
            true => rust_files(&path, all),
            false if path.extension().is_some_and(|e| e == "rs") => all.push(path),
            false => {}
        }
    }
}

/// Source without comments and without the first inline test module and what follows it.
fn code(path: &Path) -> String {
    let text = std::fs::read_to_string(path).expect("a source file");
    let text = text.split("#[cfg(test)]\nmod tests {").next().unwrap_or_default();
    text.lines().map(|line| line.split("//").next().unwrap_or_default()).collect::<Vec<_>>().join("\n")
}

/// The first names of all paths that begin with `crate::`.
fn first_names(code: &str) -> BTreeSet<String> {
    let is_name = |c: char| c.is_alphanumeric() || c == '_';
    let name = |text: &str| text.chars().take_while(|c| is_name(*c)).collect::<String>();
    let mut names = BTreeSet::new();
    for rest in code.split("crate::").skip(1) {
        let Some(list) = rest.strip_prefix('{') else {
            names.insert(name(rest));
            continue;
        };
        let (mut depth, mut is_first) = (0, true);
        for (i, c) in list.char_indices() {
            match c {
                '{' => depth += 1,
                '}' if depth == 0 => break,
                '}' => depth -= 1,
                ',' if depth == 0 => is_first = true,
                c if is_first && is_name(c) => {
                    names.insert(name(&list[i..]));
                    is_first = false;
                }
                _ => {}
            }
        }
    }
    names.remove("");
    names
}

/// The module of each name that `lib.rs` re-exports.
fn re_exports(lib: &str) -> BTreeMap<String, String> {
    let mut all = BTreeMap::new();
    for statement in lib.split(';').filter_map(|s| s.split_once("pub use ").or(s.split_once("pub(crate) use "))) {
        let Some((module, names)) = statement.1.trim().split_once("::") else { continue };
        let names = names.split(|c: char| !c.is_alphanumeric() && c != '_').filter(|name| !name.is_empty());
        all.extend(names.map(|name| (name.to_string(), module.trim().to_string())));
    }
    all
}

#[test]
fn crate_folders_have_no_import_cycles() {
    let crates = Path::new(env!("CARGO_MANIFEST_DIR")).join("..");
    for package in std::fs::read_dir(&crates).expect("crates").map(|entry| entry.expect("an entry").path()) {
        let (name, src) = (package.file_name().unwrap().to_str().unwrap().to_string(), package.join("src"));
        let root = if src.join("lib.rs").exists() { src.join("lib.rs") } else { src.join("main.rs") };
        let exported = re_exports(&code(&root));
        let layer = |folder: &str| match name.as_str() {
            "ops" if MACHINERY.contains(&folder) => "machinery".to_string(),
            _ => folder.to_string(),
        };
        let mut edges: BTreeMap<String, BTreeSet<String>> = BTreeMap::new();
        let mut files = Vec::new();
        rust_files(&src, &mut files);
        for file in files {
            let inside = file.strip_prefix(&src).unwrap();
            let folder = inside.iter().next().unwrap().to_str().unwrap();
            if !src.join(folder).is_dir() || inside.to_str().unwrap().contains("test") {
                continue;
            }
            for used in first_names(&code(&file)) {
                let used = exported.get(&used).unwrap_or(&used);
                let (from, to) = (layer(folder), layer(used));
                let is_allowed = EXCEPTIONS.contains(&(name.as_str(), from.as_str(), to.as_str()));
                if src.join(used).is_dir() && from != to && !is_allowed {
                    edges.entry(from).or_default().insert(to);
                }
            }
        }
        for start in edges.keys() {
            let (mut seen, mut next) = (BTreeSet::new(), vec![start]);
            while let Some(folder) = next.pop() {
                for used in edges.get(folder).into_iter().flatten().filter(|used| seen.insert(*used)) {
                    next.push(used);
                }
            }
            assert!(!seen.contains(start), "{name}: `{start}` uses itself through others: {edges:#?}");
        }
        if name == "engine" {
            assert!(edges.len() > 5, "the imports of the engine were not understood: {edges:#?}");
        }
    }
}

/// The engine's `lib.rs` only re-exports, and no module imports through it.
#[test]
fn engine_lib_only_re_exports() {
    let src = Path::new(env!("CARGO_MANIFEST_DIR")).join("../engine/src");
    for line in code(&src.join("lib.rs")).lines().filter(|line| !line.starts_with("    ") && !line.trim().is_empty()) {
        assert!(line.starts_with("mod ") || line.starts_with("pub use ") || line == "};", "{line}");
    }
    let mut files = Vec::new();
    rust_files(&src, &mut files);
    for file in files.iter().filter(|file| !file.ends_with("lib.rs")) {
        for name in first_names(&code(file)) {
            let is_module = src.join(&name).is_dir() || src.join(format!("{name}.rs")).is_file();
            assert!(is_module, "{}: import {name} from the module that defines it", file.display());
        }
    }
}
