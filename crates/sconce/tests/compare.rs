//! `bench --compare` with a script of canned answers in place of other engines.
#![cfg(unix)]

mod common;

use common::{err, out, parse};
use sconce_testkit::materialize;
use serde_json::{Value, json};

/// A peer script that logs its arguments and keeps the job file.
const SCRIPT: &str = r#"
for threads in "$OMP_NUM_THREADS" "$MKL_NUM_THREADS" "$OPENBLAS_NUM_THREADS" "$RAYON_NUM_THREADS"; do
    if [ "$threads" != 2 ]; then
        echo "{\"failed\": \"$threads threads\"}"
        exit 1
    fi
done
case "$1" in
list)
    echo '{"peer": "slow f32", "missing": []}'
    echo '{"peer": "slow bf16", "missing": []}'
    echo '{"peer": "broken f32", "missing": []}'
    echo '{"peer": "absent f32", "missing": ["absent", "onnx"]}' ;;
export)
    cp "$2" "$0.job"
    echo export >> "$0.log"
    echo '{"exported": true}' ;;
serve)
    if [ "$2" = "broken f32" ]; then
        echo '{"failed": "RuntimeError: it does not load"}'
        exit 1
    fi
    if [ "$2" = "slow f32" ]; then
        seconds=200.0
        vectors='[1.0, 2.0]'
    else
        seconds=100.0
        vector="[1$(printf ',1%.0s' $(seq 31))]"
        vectors="$vector$(printf ",$vector%.0s" $(seq 7))"
    fi
    echo "{\"ready\": true, \"vectors\": [$vectors]}"
    rows=$(grep -o '"name":"[^"]*"' "$3" | sed "s/\"name\":\(.*\)/\1: $seconds/" | tr '\n' ',' | sed 's/,$//')
    while read -r _; do
        echo "round $2" >> "$0.log"
        echo "{\"seconds\": {$rows}}"
    done ;;
first)
    echo "first $2" >> "$0.log"
    echo '{"first": 2}' ;;
esac
"#;

/// The median of three.
fn median_of_three(seconds: &Value) -> f64 {
    let mut all: Vec<f64> = seconds.as_array().unwrap().iter().map(|s| s.as_f64().unwrap()).collect();
    all.sort_by(f64::total_cmp);
    assert_eq!(all.len(), 3, "{seconds}");
    all[1]
}

#[test]
fn compare_reports_ratios_and_names_missing_peers() {
    let (model, scratch) = (materialize("st-max"), tempfile::tempdir().unwrap());
    let script = scratch.path().join("peers.sh");
    std::fs::write(&script, SCRIPT).unwrap();
    let (model, script) = (model.path().to_str().unwrap(), script.to_str().unwrap());
    let flags = ["bench", "--compare", "-q", "-m", model, "--seconds", "0.01", "--reps", "3", "--isa", "scalar"];
    let args = [&flags[..], &["--dtype", "f32", "--threads", "2", "--python", "sh", "--peer-script", script]].concat();

    let found = parse(&out(&[&args[..], &["--json"]].concat(), b""));
    let names: Vec<&str> = found["engines"].as_array().unwrap().iter().map(|e| e["engine"].as_str().unwrap()).collect();
    assert_eq!(names, ["sconce f32", "slow f32", "slow bf16"], "{found}");
    assert_eq!(found["threads"], 2);
    let rows = |engine: usize| found["engines"][engine]["rows"].as_array().unwrap();
    assert_eq!((rows(1).len(), rows(1)[4]["texts"].as_u64()), (5, Some(256)));
    assert!(rows(1).iter().all(|row| median_of_three(&row["rounds"]) == 200.0 && row["median_seconds"] == 200.0));
    assert!(rows(0).iter().all(|row| row["median_seconds"] == median_of_three(&row["rounds"])));
    // In turns, each round beginning with another engine: the third round begins with the last
    // peer.
    let log = std::fs::read_to_string(format!("{script}.log")).unwrap();
    let (f32s, bf16s) = ("slow f32", "slow bf16");
    let rounds: Vec<&str> = log.lines().filter_map(|line| line.strip_prefix("round ")).collect();
    assert_eq!(rounds, [f32s, bf16s, f32s, bf16s, bf16s, f32s]);
    // All engines get the same tokens.
    let job = parse(&std::fs::read_to_string(format!("{script}.job")).unwrap());
    assert_eq!(job["threads"], 2);
    for (row, job_row) in rows(0).iter().zip(job["rows"].as_array().unwrap()) {
        let texts = || job_row["batches"].as_array().unwrap().iter().flat_map(|batch| batch.as_array().unwrap());
        let tokens: usize = texts().map(|ids| ids.as_array().unwrap().len()).sum();
        assert_eq!(
            (&row["row"], &row["texts"], &row["tokens"]),
            (&job_row["name"], &texts().count().into(), &tokens.into())
        );
    }

    assert!(found["engines"][1]["cosine"].is_null(), "its vectors must differ from ours: {found}");
    assert!(
        found["engines"][2]["cosine"].as_f64().unwrap().abs() < 0.9,
        "these vectors must differ from ours: {found}"
    );
    assert!(found["engines"][0]["cosine"].as_f64() > Some(0.9999));
    let (ours, ratio) = (median_of_three(&rows(0)[3]["rounds"]), &found["ratios"][3]);
    for (kind, peer, seconds) in [("f32", f32s, 200.0), ("any", bf16s, 100.0)] {
        assert_eq!((&ratio[kind]["ours"], &ratio[kind]["peer"]), (&"sconce f32".into(), &peer.into()));
        // JSON numbers lose their last digit.
        let off = ratio[kind]["ratio"].as_f64().unwrap() * ours / seconds - 1.0;
        assert!(off.abs() < 1e-9, "{ratio}");
    }
    // Processes are started four times, and the first start does not count.
    for engine in found["engines"].as_array().unwrap() {
        assert!(
            engine["first_vector_seconds"] == median_of_three(&engine["starts"])
                && engine["starts"][0].as_f64() > Some(0.0)
        );
    }
    assert_eq!([f32s, bf16s].map(|name| log.matches(&format!("first {name}")).count()), [4, 4]);
    assert_eq!(log.matches("export").count(), 1);
    assert_eq!(found["missing"], json!([{"peer": "absent f32", "install": "pip install absent onnx"}]));
    assert_eq!(found["failed"], json!([{"peer": "broken f32", "why": "RuntimeError: it does not load"}]));

    let text = out(&[&args[..], &["--peers", "slow b"]].concat(), b"");
    assert!(text.contains("slow bf16") && !text.contains("slow f32"), "{text}");
    assert!(text.contains("100000.0 ms") && text.contains("first vector"), "{text}");
    let unknown = err(&[&args[..], &["--peers", "fast"]].concat(), b"");
    assert!(unknown.contains("engines: slow f32, slow bf16"), "{unknown}");
    let nowhere = err(&["bench", "--compare", "-m", model, "--python", "/nowhere/python"], b"");
    assert!(nowhere.contains("--python"), "{nowhere}");
}
