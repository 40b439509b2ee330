//! `bench --compare` with a script of canned answers in place of other engines.
#![cfg(unix)]

mod common;

use common::{err, out, parse};
use sconce_testkit::materialize;

const SCRIPT: &str = r#"
case "$1" in
list)
    echo '{"peer": "slow f32", "missing": []}'
    echo '{"peer": "slow bf16", "missing": []}'
    echo '{"peer": "broken f32", "missing": []}'
    echo '{"peer": "absent f32", "missing": ["absent", "onnx"]}' ;;
export) echo '{"exported": true}' ;;
serve)
    if [ "$2" = "broken f32" ]; then
        echo '{"failed": "RuntimeError: it does not load"}'
        exit 1
    fi
    echo '{"ready": true, "vectors": [[1.0, 2.0]]}'
    if [ "$2" = "slow f32" ]; then seconds=200.0; else seconds=100.0; fi
    rows=$(grep -o '"name":"[^"]*"' "$3" | sed "s/\"name\":\(.*\)/\1: $seconds/" | tr '\n' ',' | sed 's/,$//')
    while read -r _; do echo "{\"seconds\": {$rows}}"; done ;;
first) echo '{"first": 2}' ;;
esac
"#;

#[test]
fn peers_stand_beside_us_with_ratios_and_those_that_are_not_here_are_named() {
    let (model, scratch) = (materialize("st-max"), tempfile::tempdir().unwrap());
    let script = scratch.path().join("peers.sh");
    std::fs::write(&script, SCRIPT).unwrap();
    let (model, script) = (model.path().to_str().unwrap(), script.to_str().unwrap());
    let flags = ["bench", "--compare", "-q", "-m", model, "--seconds", "0.01", "--reps", "2"];
    let args = [&flags[..], &["--dtype", "f32", "--threads", "2", "--python", "sh", "--peer-script", script]].concat();

    let found = parse(&out(&[&args[..], &["--json"]].concat(), b""));
    let names: Vec<&str> = found["engines"].as_array().unwrap().iter().map(|e| e["engine"].as_str().unwrap()).collect();
    assert_eq!(names, ["sconce f32", "slow f32", "slow bf16"], "{found}");
    assert_eq!(found["threads"], 2);
    let rows = found["engines"][1]["rows"].as_array().unwrap();
    assert_eq!(
        (rows.len(), rows[0]["median_seconds"].as_f64(), rows[4]["texts"].as_u64()),
        (5, Some(200.0), Some(256))
    );
    assert_eq!(rows[0]["rounds"].as_array().unwrap().len(), 2);
    assert!(found["engines"][1]["cosine"].is_null(), "its vectors are not ours: {found}");
    assert!(found["engines"][0]["cosine"].as_f64() > Some(0.9999));
    let ratio = &found["ratios"][3];
    assert_eq!((ratio["f32"]["peer"].as_str(), ratio["any"]["peer"].as_str()), (Some("slow f32"), Some("slow bf16")));
    assert!(ratio["f32"]["ratio"].as_f64() > Some(10.0), "{ratio}");
    assert_eq!(found["missing"][0]["install"], "pip install absent onnx");
    assert_eq!(found["failed"][0]["why"], "RuntimeError: it does not load");

    let text = out(&[&args[..], &["--peers", "slow b"]].concat(), b"");
    assert!(text.contains("slow bf16") && !text.contains("slow f32"), "{text}");
    assert!(text.contains("100000.0 ms") && text.contains("first vector"), "{text}");
    let strange = err(&[&args[..], &["--peers", "fast"]].concat(), b"");
    assert!(strange.contains("there are slow f32, slow bf16"), "{strange}");
    let nowhere = err(&["bench", "--compare", "-m", model, "--python", "/nowhere/python"], b"");
    assert!(nowhere.contains("--python"), "{nowhere}");
}
