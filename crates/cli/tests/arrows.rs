//! The house plan's arrows, kept by asking cargo.

use serde_json::Value;
use std::collections::BTreeMap;
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

/// Which rooms of ours each room may use. A room that is not here has no place in the house yet.
fn plan() -> BTreeMap<&'static str, Vec<&'static str>> {
    BTreeMap::from([
        ("sconce-ops", vec![]),
        ("sconce-models", vec!["sconce-ops"]),
        ("sconce-jinja", vec![]),
        ("sconce-hub", vec![]),
        ("sconce-formats", vec!["sconce-ops"]),
        ("sconce-text", vec!["sconce-formats", "sconce-jinja", "sconce-ops"]),
        ("sconce-engine", vec!["sconce-formats", "sconce-hub", "sconce-models", "sconce-ops", "sconce-text"]),
        ("sconce-api", vec![]),
        ("sconce-server", vec!["sconce-api", "sconce-engine"]),
        ("sconce-pool", vec!["sconce-api"]),
        ("sconce-cli", vec!["sconce-api", "sconce-engine", "sconce-ops", "sconce-pool", "sconce-server"]),
        ("sconce-testkit", vec![]),
    ])
}

#[test]
fn rooms_use_only_the_rooms_that_the_plan_allows() {
    let plan = plan();
    for package in packages() {
        let allowed = plan.get(name(&package)).unwrap_or_else(|| panic!("{} is not in the plan", name(&package)));
        for used in dependencies(&package).into_iter().filter(|d| d.starts_with("sconce-")) {
            assert!(allowed.contains(&used), "{} must not use {used}", name(&package));
        }
    }
}

/// A manager must outlive whatever a driver or a kernel does to a process, so nothing of the engine is in it, by whatever way.
#[test]
fn nothing_of_the_engine_is_in_the_pool() {
    let root = concat!(env!("CARGO_MANIFEST_DIR"), "/../..");
    for (package, features) in [("sconce-pool", ""), ("sconce-api", "clap,client")] {
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
            assert!(!tree.lines().any(|l| l.starts_with(beneath)), "{package} has {beneath} in it");
        }
    }
}

#[test]
fn candle_is_named_in_ops_alone_and_pinned() {
    for package in packages() {
        for d in package["dependencies"].as_array().expect("dependencies") {
            let candle = name(d).starts_with("candle") || name(d).starts_with("objc2");
            assert!(!candle || name(&package) == "sconce-ops", "{} names {}", name(&package), name(d));
            assert!(name(d) != "candle-transformers", "architectures are ours");
            if name(d).starts_with("candle") {
                assert_eq!(d["req"], "=0.11.1", "{}", name(d));
            }
        }
    }
}

/// A device's feature must reach every crate beneath the one it is set on, or half a build comes out.
#[test]
fn a_devices_feature_turns_on_everything_beneath() {
    let chain = [
        ("sconce-cli", "sconce-engine/"),
        ("sconce-cli", "sconce-server/"),
        ("sconce-server", "sconce-engine/"),
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
    // Whatever optional crate of Candle's is there belongs to a device's feature.
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
