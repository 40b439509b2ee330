//! `sconce doctor`: its results, its verdict file, and the effect on other commands.

use sconce_testkit::{golden, json};
use serde_json::Value;
use std::path::Path;
use std::process::{Command, Output};

/// Runs the command with this cache directory, which holds the verdict.
fn run(cache: &Path, args: &[&str]) -> Output {
    Command::new(env!("CARGO_BIN_EXE_sconce")).args(args).env("SCONCE_CACHE", cache).output().unwrap()
}

fn parse(printed: &[u8]) -> Value {
    serde_json::from_slice(printed).unwrap_or_else(|e| panic!("{e}: {}", String::from_utf8_lossy(printed)))
}

/// A tiny model.
fn model() -> String {
    golden("st-cls-dense").to_str().unwrap().into()
}

#[test]
fn doctor_passes_and_its_verdict_withdraws_kernels() {
    let home = tempfile::tempdir().unwrap();
    let run = |args: &[&str]| run(home.path(), args);
    let o = run(&["doctor", "--json"]);
    let report = parse(&o.stdout);
    let rows = report["rows"].as_array().unwrap();
    let failed: Vec<&Value> = rows.iter().filter(|r| r["holds"] != true).collect();
    assert_eq!((report["holds"].as_bool(), o.status.code()), (Some(true), Some(0)), "{failed:?}");
    // The report says on what machine it ran, and how every case went.
    assert!(report["machine"]["os"].is_string() && report["machine"]["memory_bytes"].as_u64() > Some(0), "{report}");
    assert_eq!(report["sconce"]["version"], env!("CARGO_PKG_VERSION"));
    assert!(report["devices"].as_array().unwrap().iter().any(|d| d["device"] == "cpu" && d["closed"].is_null()));
    let checks = |r: &Value| r["checks"].as_array().unwrap().clone();
    assert!(rows.iter().all(|r| r["cases"] == checks(r).len()));
    assert!(
        rows.iter().flat_map(checks).all(|c| c["worst"].as_f64() <= c["allowed"].as_f64() && c["mean"].is_number())
    );
    assert!(
        rows.iter().filter(|r| r["rung"] == "composed").flat_map(checks).all(|c| c["seconds"].as_f64() > Some(0.0))
    );
    assert!(rows.iter().filter(|r| r["rung"] == "fused").all(|r| r["speed"].as_f64() > Some(0.0)));
    let verdict = home.path().join("doctor.json");
    let mut saved: Value = json(&verdict);
    assert_eq!(saved["devices"][0]["withdrawn"], serde_json::json!([]));

    // A kernel withdrawn by a verdict is not used, and a warning says so.
    let failed = serde_json::json!([{"op": "attention", "dtype": "f32", "rung": "fused"}]);
    saved["devices"][0]["withdrawn"] = failed;
    std::fs::write(&verdict, saved.to_string()).unwrap();
    let dir = model();
    let o = run(&["embed", "-m", &dir, "-d", "cpu", "--json", "x"]);
    let all = parse(&o.stdout);
    let rung = |op: &str| all["ops"].as_array().unwrap().iter().find(|o| o["op"] == op).unwrap()["rung"].clone();
    assert_eq!((rung("attention"), rung("linear")), ("composed".into(), "fused".into()));
    assert!(String::from_utf8_lossy(&o.stderr).contains("withdrawn"));
    assert!(!run(&["doctor", "--op", "nothing"]).status.success());
    // An unreadable verdict might withdraw something, so it is an error.
    std::fs::write(&verdict, "{").unwrap();
    let o = run(&["embed", "-m", &dir, "x"]);
    assert!(!o.status.success() && String::from_utf8_lossy(&o.stderr).contains("doctor.json"));
}

/// The rung that ran `op` in a run of the model, and standard error.
fn rung_and_stderr(cache: &Path, op: &str) -> (Value, String) {
    let o = run(cache, &["embed", "-m", &model(), "-d", "cpu", "--json", "x"]);
    let stderr = String::from_utf8(o.stderr).unwrap();
    assert!(o.status.success(), "{stderr}");
    let all = parse(&o.stdout);
    let rung = all["ops"].as_array().unwrap().iter().find(|o| o["op"] == op).unwrap()["rung"].clone();
    (rung, stderr)
}

#[test]
fn faulty_kernels_are_withdrawn_and_the_model_still_runs() {
    let op = "l2_norm";
    for (fault, timeout, why) in [
        ("wrong", "600", "an injected fault"),
        ("panic", "600", "panicked: an injected fault"),
        ("abort", "600", "the process died"),
        ("hang", "5", "no answer within 5 s"),
    ] {
        let home = tempfile::tempdir().unwrap();
        let doctor = ["doctor", "-d", "cpu", "--op", op, "--timeout", timeout, "--json"];
        let o = run(home.path(), &[&doctor[..], &["--drill", &format!("{op}={fault}")]].concat());
        let (report, stderr) = (parse(&o.stdout), String::from_utf8(o.stderr).unwrap());
        assert_eq!((o.status.code(), &report["holds"]), (Some(1), &false.into()), "{fault}: {stderr}");
        for dtype in ["f32", "bf16", "f16"] {
            assert!(
                stderr.contains(&format!("warning: {op} in {dtype} on cpu (fused) is withdrawn")),
                "{fault}: {stderr}"
            );
        }
        assert_eq!(report["withdrawn"].as_array().unwrap().len(), 3, "{fault}: {report}");
        let rows = report["rows"].as_array().unwrap();
        let (failed, passed): (Vec<&Value>, Vec<&Value>) = rows.iter().partition(|r| r["holds"] == false);
        assert_eq!(failed.len(), 3);
        assert!(failed.iter().all(|r| r["failures"][0]["why"].as_str().unwrap().contains(why)), "{fault}: {failed:?}");
        // The other checks ran, whatever the fault was.
        assert!(passed.iter().any(|r| r["rung"] == "composed"));
        assert!(passed.iter().all(|r| r["not_run"] == 0 && r["cases"].as_u64() > Some(0)));
        let process_ended = fault == "abort" || fault == "hang";
        assert!(
            failed.iter().all(|r| (r["not_run"].as_u64() > Some(0)) == process_ended && r["speed"].is_null()),
            "{fault}"
        );

        let (rung, stderr) = rung_and_stderr(home.path(), op);
        assert!(
            rung == "composed" && stderr.contains("l2_norm in f32 on cpu (fused) failed its cases"),
            "{fault}: {stderr}"
        );
        // Checking another op changes nothing; checking this one, now that it passes, reinstates
        // it.
        assert!(run(home.path(), &["doctor", "-d", "cpu", "--op", "softmax", "-q"]).status.success());
        assert_eq!(rung_and_stderr(home.path(), op).0, "composed");
        assert!(run(home.path(), &doctor).status.success());
        assert_eq!(rung_and_stderr(home.path(), op).0, "fused");
    }
}

#[test]
fn doctor_table_names_version_and_failed_checks() {
    let home = tempfile::tempdir().unwrap();
    let o = run(home.path(), &["doctor", "-d", "cpu", "--op", "l2_norm", "--drill", "l2_norm=wrong"]);
    let stdout = String::from_utf8(o.stdout).unwrap();
    assert!(stdout.starts_with(&format!("sconce {}", env!("CARGO_PKG_VERSION"))), "{stdout}");
    assert!(stdout.contains("FAILED cpu l2_norm f32 fused") && stdout.contains("checks in"), "{stdout}");
}
