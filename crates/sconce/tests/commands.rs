//! The `sconce` command as a person or a script uses it, on tiny models.

mod common;

use common::{err, numbers, out, parse, sconce};
use sconce_ops::Isa;
use sconce_testkit::{Arrays, golden, json, worst};
use serde_json::Value;
use std::path::Path;
use std::process::Command;

/// A tiny model, three of its texts, and their vectors.
fn model() -> (String, Vec<String>, Vec<Vec<f32>>) {
    let dir = golden("st-cls-dense");
    let cases = json(&dir.join("golden.json"));
    let texts = cases.as_array().unwrap().iter().map(|c| c["text"].as_str().unwrap().to_string());
    let want = Arrays::open(&dir.join("golden.safetensors")).f32("embeddings");
    let plain = |(t, _): &(String, Vec<f32>)| !t.is_empty() && !t.contains('\n');
    let pairs: Vec<_> =
        texts.zip(want.values.chunks(want.dims[1]).map(<[f32]>::to_vec)).filter(plain).take(3).collect();
    let (texts, vectors) = pairs.into_iter().unzip();
    (dir.to_str().unwrap().into(), texts, vectors)
}

fn assert_rows(got: &[Vec<f32>], want: &[Vec<f32>]) {
    assert_eq!(got.len(), want.len());
    got.iter().zip(want).for_each(|(g, w)| assert!(worst(g, w) < 4e-6));
}

#[test]
fn embed_reads_arguments_stdin_files_and_jsonl() {
    let (dir, texts, want) = model();
    let text_rows =
        |s: &str| -> Vec<Vec<f32>> { s.lines().map(|l| l.split(' ').map(|v| v.parse().unwrap()).collect()).collect() };
    let mut args = vec!["embed", "-m", &dir];
    let from_stdin = out(&args, (texts.join("\r\n") + "\n").as_bytes());
    assert_rows(&text_rows(&from_stdin), &want);

    let tmp = tempfile::tempdir().unwrap();
    let file = tmp.path().join("texts.txt");
    std::fs::write(&file, texts.join("\n")).unwrap();
    args.extend(["-f", file.to_str().unwrap()]);
    assert_eq!(out(&args, b""), from_stdin);

    let lines: String =
        texts.iter().map(|t| serde_json::json!({"id": t.len(), "body": t}).to_string() + "\n").collect();
    let jsonl = out(&["embed", "-m", &dir, "--field", "body", "--format", "jsonl"], lines.as_bytes());
    let objects: Vec<Value> = jsonl.lines().map(parse).collect();
    assert_rows(&objects.iter().map(|o| numbers(&o["embedding"])).collect::<Vec<_>>(), &want);
    assert!(objects.iter().zip(&texts).all(|(o, t)| o["id"] == t.len() && o["body"] == **t && o["truncated"] == false));

    let mut args = vec!["embed", "-m", &dir, "--json"];
    args.extend(texts.iter().map(String::as_str));
    let all = parse(&out(&args, b""));
    assert_rows(&all["embeddings"].as_array().unwrap().iter().map(numbers).collect::<Vec<_>>(), &want);
    assert_eq!((all["device"].as_str(), all["dtype"].as_str()), (Some("cpu"), Some("f32")));
    assert!(all["ops"].as_array().unwrap().iter().all(|o| o["rung"] == "fused" && o["calls"].as_u64() > Some(0)));
}

#[test]
fn embed_pools_as_asked() {
    let dir = golden("st-max");
    let dir = dir.to_str().unwrap();
    let embed = |options: &[&str]| {
        let args = [&["embed", "-m", dir, "--json", "A man is eating food."], options].concat();
        parse(&out(&args, b""))["embeddings"][0].clone()
    };
    let tokens: Vec<Vec<f32>> = embed(&["--pooling", "none"]).as_array().unwrap().iter().map(numbers).collect();
    let largest: Vec<f32> =
        (0..tokens[0].len()).map(|k| tokens.iter().map(|t| t[k]).fold(f32::NEG_INFINITY, f32::max)).collect();
    assert_rows(&[numbers(&embed(&[]))], &[largest]);
    assert_rows(&[numbers(&embed(&["--pooling", "cls"]))], &[tokens[0].clone()]);
    assert_rows(&[numbers(&embed(&["--pooling", "last"]))], &[tokens[tokens.len() - 1].clone()]);
    let message = err(&["embed", "-m", dir, "--pooling", "none", "--dimensions", "4", "a"], b"");
    assert!(message.contains("--pooling none"), "{message}");
}

#[test]
fn embed_writes_npy_and_binary() {
    let (dir, texts, want) = model();
    let tmp = tempfile::tempdir().unwrap();
    let stdin = texts.join("\n");
    let npy = tmp.path().join("v.npy");
    out(&["embed", "-m", &dir, "-o", npy.to_str().unwrap()], stdin.as_bytes());
    let bytes = std::fs::read(&npy).unwrap();
    assert_eq!(&bytes[..10], b"\x93NUMPY\x01\x00\x76\x00");
    let header = std::str::from_utf8(&bytes[10..128]).unwrap();
    let shape = format!("({}, {})", want.len(), want[0].len());
    assert!(header.contains("'descr': '<f4'") && header.contains(&shape) && header.ends_with('\n'), "{header}");
    let flat: Vec<f32> = bytes[128..].chunks(4).map(|b| f32::from_le_bytes(b.try_into().unwrap())).collect();
    assert_rows(&flat.chunks(want[0].len()).map(<[f32]>::to_vec).collect::<Vec<_>>(), &want);
    assert_eq!(std::fs::read_dir(tmp.path()).unwrap().count(), 1, "no temporary file is left");

    let binary = sconce(&["embed", "-m", &dir, "--format", "bin"], stdin.as_bytes()).stdout;
    assert_eq!(binary, bytes[128..]);
    assert_eq!(sconce(&["embed", "-m", &dir, "--format", "npy"], stdin.as_bytes()).stdout, bytes);
}

#[test]
fn embed_without_texts_prints_empty_result() {
    let (dir, ..) = model();
    assert_eq!(parse(&out(&["embed", "-m", &dir, "--json"], b""))["embeddings"], serde_json::json!([]));
    assert_eq!(out(&["embed", "-m", &dir], b""), "");
}

#[test]
fn bad_input_is_named_and_keeps_old_output_file() {
    let (dir, ..) = model();
    let tmp = tempfile::tempdir().unwrap();
    let old = tmp.path().join("old.npy");
    std::fs::write(&old, "precious").unwrap();
    let to_old = ["embed", "-m", &dir, "-o", old.to_str().unwrap()];
    let e = err(&to_old, b"fine\nbad \xff byte\n");
    assert!(e.contains("stdin:2") && e.contains("not UTF-8 at byte 5"), "{e}");
    assert_eq!(std::fs::read_to_string(&old).unwrap(), "precious");
    assert_eq!(std::fs::read_dir(tmp.path()).unwrap().count(), 1);

    let e = err(&["embed", "-m", &dir, "--field", "body"], b"{\"body\": \"x\"}\n{\"text\": \"x\"}\n");
    assert!(e.contains("stdin:2") && e.contains("no field `body`"), "{e}");
    assert!(err(&["embed", "-m", &dir, "--field", "body"], b"[1]\n").contains("not a JSON object"));
    let e = err(&["embed", "-m", &dir, "--field", "b", "--format", "jsonl"], b"{\"b\": \"x\", \"tokens\": 3}\n");
    assert!(e.contains("stdin:1") && e.contains("`tokens`"), "{e}");
    assert!(err(&["embed", "-m", &dir, "-f", "absent.txt"], b"").contains("absent.txt"));
    assert!(err(&["embed", "-m", &dir, "-o", "/proc/none/x.npy"], b"x").contains("/proc/none"));
    assert!(err(&["similarity", "-m", &dir, "alone"], b"").contains("two texts"));
    assert!(err(&["embed", "-m", "./absent", "x"], b"").contains("absent"));
}

#[test]
fn truncated_and_blank_texts_are_reported() {
    let (dir, ..) = model();
    let long = "a ".repeat(50_000);
    let o = sconce(&["embed", "-m", &dir, "--json", &long, "", "b"], b"");
    let e = String::from_utf8(o.stderr).unwrap();
    assert!(e.contains("1 of 3 texts are longer than 24 tokens") && e.contains("argument 1"), "{e}");
    assert!(e.contains("1 of 3 texts are blank"), "{e}");
    let all = parse(&String::from_utf8(o.stdout).unwrap());
    assert_eq!(all["truncated"], serde_json::json!([0]));
    assert_eq!(all["tokens"][0], 24);
}

#[test]
fn unavailable_device_is_an_error_without_cpu_fallback() {
    let (dir, ..) = model();
    for device in ["cuda:63", "metal:63"] {
        let e = err(&["embed", "-m", &dir, "-d", device, "x"], b"");
        assert!(e.contains(device), "{e}");
        // A plan does not need the device, but reports that it is missing.
        let o = sconce(&["plan", &dir, "-d", device, "--json"], b"");
        let plan = parse(&String::from_utf8(o.stdout).unwrap());
        assert_eq!((plan["runs"].as_bool(), o.status.code()), (Some(false), Some(1)));
        assert!(plan["verdict"].as_str().unwrap().contains("not here"), "{plan}");
    }
    let o = sconce(&["embed", "-d", "gpu", "x"], b"");
    assert_eq!(o.status.code(), Some(2));
    assert!(String::from_utf8_lossy(&o.stderr).contains("one of auto, cpu, cuda"));
}

#[test]
fn plan_reports_chosen_dtype_reason_and_cosine_bound() {
    let (dir, ..) = model();
    let plan = |rest: &[&str]| out(&[&["plan", &dir, "-d", "cpu"][..], rest].concat(), b"");
    let plan_json = |rest: &[&str]| parse(&plan(&[rest, &["--json"]].concat()));
    let auto = plan_json(&["--dtype", "auto", "--isa", "scalar"]);
    assert_eq!((&auto["dtype"], &auto["least_cosine"]), (&"f32".into(), &Value::Null));
    assert!(auto["dtype_reason"].as_str().unwrap().contains("0.999"), "{auto}");
    let (int8, bf16) = (plan_json(&["--dtype", "int8"]), plan_json(&["--dtype", "bf16"]));
    assert_eq!((&int8["dtype"], &int8["least_cosine"]), (&"int8".into(), &0.995.into()));
    assert_eq!(int8["dtype_reason"], "as --dtype int8 asks");
    assert_eq!((&bf16["dtype"], &bf16["least_cosine"]), (&"bf16".into(), &0.9998.into()));
    let text = plan(&["--dtype", "auto", "--isa", "scalar"]);
    assert!(text.contains("f32 (scalar has nothing faster within a cosine of 0.999 to f32)"), "{text}");
    assert!(plan(&["--dtype", "int8"]).contains("cosine to f32 at least 0.995"));
}

#[test]
fn plan_lists_ops_rungs_and_memory() {
    let (dir, ..) = model();
    let plan = parse(&out(&["plan", "-m", &dir, "-d", "cpu", "--json"], b""));
    let steps = plan["steps"].as_array().unwrap();
    assert!(steps.iter().all(|s| s["rung"] == "fused"));
    for op in ["embed", "layer_norm", "linear", "attention", "pool", "l2_norm"] {
        assert!(steps.iter().any(|s| s["op"] == op), "{op}");
    }
    assert!(plan["weights_bytes"].as_u64() > Some(10_000) && plan["workspace_bytes"].as_u64() > Some(0));
    // A plan can be made for a missing device. A step on a lower rung gives the reasons of the
    // better ones.
    let o = sconce(&["plan", &dir, "-d", "cuda", "--json"], b"");
    let plan = parse(&String::from_utf8(o.stdout).unwrap());
    assert!(plan["steps"].as_array().unwrap().iter().all(|s| s["rung"] == "fused"));
    let o = sconce(&["plan", &dir, "-d", "cuda", "--rung", "composed", "--json"], b"");
    let plan = parse(&String::from_utf8(o.stdout).unwrap());
    let step = &plan["steps"][0];
    assert!(step["rung"] == "composed" && step["why_not"][0].as_str().unwrap().starts_with("fused: "), "{step}");
    let e = err(&["embed", "-m", &dir, "--batch-tokens", "9000000000", "x"], b"");
    assert!(e.contains("9000000000") && e.contains("1048576"), "{e}");
}

#[test]
fn forced_rungs_and_instruction_sets_agree() {
    let (dir, texts, _) = model();
    let similarities = |extra: &[&str]| -> Vec<f32> {
        let mut args = vec!["similarity", "-m", &dir, "--json", &texts[0], &texts[1]];
        args.extend(extra);
        numbers(&parse(&out(&args, b""))["similarities"][0])
    };
    let default = similarities(&[]);
    for extra in [&["--rung", "composed"][..], &["--isa", "scalar"], &["--rung", "fused"]] {
        assert!(worst(&similarities(extra), &default) < 1e-5, "{extra:?}");
    }
    assert!(err(&["embed", "-m", &dir, "--rung", "host", "x"], b"").contains("this is the host"));
}

#[test]
fn devices_pull_and_bench_print_json() {
    let (dir, ..) = model();
    let devices = parse(&out(&["devices", "--json"], b""));
    assert!(
        devices["devices"]
            .as_array()
            .unwrap()
            .iter()
            .any(|d| d["device"] == "cpu" && d["free_bytes"].as_u64() > Some(0))
    );
    let pulled = parse(&out(&["pull", &dir, "--json"], b""));
    assert_eq!((&pulled["directory"], &pulled["gguf"]), (&dir.clone().into(), &Value::Null));
    // For a GGUF it prints the file, because its directory may hold others.
    let tmp = tempfile::tempdir().unwrap();
    let parts = ["m-00001-of-00002.gguf", "m-00002-of-00002.gguf"].map(|name| tmp.path().join(name));
    parts.iter().for_each(|part| std::fs::write(part, [0; 1024]).unwrap());
    let first = parts[0].to_str().unwrap();
    assert_eq!(parse(&out(&["pull", first, "--json"], b""))["gguf"][1], parts[1].to_str().unwrap());
    let pulled = sconce(&["pull", tmp.path().to_str().unwrap()], b"");
    assert_eq!(String::from_utf8_lossy(&pulled.stdout).trim(), first);
    assert!(String::from_utf8_lossy(&pulled.stderr).contains("GGUF of 2.00 KiB in 2 parts"), "{pulled:?}");
    assert!(err(&["embed", "-m", first, "x"], b"").contains("is not a GGUF file"));
    let bench = parse(&out(&["bench", "-m", &dir, "--seconds", "0.05", "--json"], b""));
    assert_eq!(bench["lines"].as_array().unwrap().len(), 4);
    assert!(bench["lines"][0]["median_seconds"].as_f64() > Some(0.0));
}

#[test]
fn output_follows_symlinks_and_uses_default_permissions() {
    let (dir, ..) = model();
    let tmp = tempfile::tempdir().unwrap();
    let (link, target, plain) = (tmp.path().join("link.npy"), tmp.path().join("target"), tmp.path().join("plain.npy"));
    std::fs::write(&target, "").unwrap();
    std::os::unix::fs::symlink(&target, &link).unwrap();
    out(&["embed", "-m", &dir, "-o", link.to_str().unwrap(), "x"], b"");
    assert!(std::fs::symlink_metadata(&link).unwrap().is_symlink());
    out(&["embed", "-m", &dir, "-o", plain.to_str().unwrap(), "x"], b"");
    assert_eq!(std::fs::read(&target).unwrap(), std::fs::read(&plain).unwrap());
    out(&["embed", "-m", &dir, "-o", "/dev/null", "x"], b"");
    let usual = tmp.path().join("usual");
    std::fs::write(&usual, "").unwrap();
    let mode = |p: &Path| std::os::unix::fs::PermissionsExt::mode(&std::fs::metadata(p).unwrap().permissions());
    assert_eq!(mode(&plain), mode(&usual));
    assert!(err(&["embed", "-m", &dir, "-o", "/dev/full", "x"], b"").contains("cannot write /dev/full: No space"));
}

#[test]
fn closed_output_pipe_exits_with_success() {
    let (dir, ..) = model();
    let sconce = env!("CARGO_BIN_EXE_sconce");
    let cache = tempfile::tempdir().unwrap();
    let bash =
        |script: &str| Command::new("bash").args(["-c", script]).env("SCONCE_CACHE", cache.path()).output().unwrap();
    for format in ["text", "jsonl", "json"] {
        let command = format!("{sconce} embed -q -m {dir} --format {format}");
        let script = format!("yes word | head -20000 | {command} | head -1 | wc -l; echo ${{PIPESTATUS[2]}}");
        let o = bash(&script);
        assert_eq!(String::from_utf8_lossy(&o.stdout).split_whitespace().collect::<Vec<_>>(), ["1", "0"], "{format}");
    }
    let script = format!("{sconce} plan -q {dir} -d cpu | true; echo ${{PIPESTATUS[0]}}");
    assert_eq!(String::from_utf8_lossy(&bash(&script).stdout).trim(), "0");
}

/// Where bf16 is twice as fast, a user who named no format learns of it, once.
#[test]
fn faster_bf16_is_suggested_once() {
    let ((dir, ..), home) = (model(), tempfile::tempdir().unwrap());
    let embed = |rest: &[&str]| {
        let args = [&["embed", "-m", &dir, "-d", "cpu"][..], rest, &["x"]].concat();
        let mut command = std::process::Command::new(env!("CARGO_BIN_EXE_sconce"));
        let output = command.args(args).env_remove("SCONCE_CACHE").env("HOME", home.path()).output().unwrap();
        assert!(output.status.success());
        String::from_utf8(output.stderr).unwrap().contains("--dtype auto")
    };
    let here = Isa::best().is_twice_as_fast_in_bf16();
    assert!(!embed(&["--dtype", "f32"]) && !embed(&["--quiet"]) && !embed(&["--isa", "scalar"]));
    assert_eq!((embed(&[]), embed(&[])), (here, false));
}
