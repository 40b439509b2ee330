//! Sparse, multi-vector and quantized embeddings of `sconce embed`, compared with reference
//! results.

#[allow(dead_code, reason = "other tests use the rest")]
mod common;
#[path = "common/golden.rs"]
mod golden;

use common::{err, numbers, out, parse, sconce};
use golden::{Model, TOLERANCE, assert_close, assert_ran, list, text};
use sconce_testkit::worst;
use serde_json::json;

#[test]
fn sparse_embeddings_match_reference() {
    let model = Model::new("task-sparse");
    let cases = list(&model.golden["cases"]);
    let mut args = vec!["embed", "-m", model.path(), "--sparse", "--json"];
    args.extend(cases.iter().map(|c| text(&c["text"])));
    let all = parse(&out(&args, b""));
    assert_eq!(all["vocabulary"], 209);
    assert_ran(&all);
    for (got, case) in list(&all["embeddings"]).iter().zip(cases) {
        let want = case["weights"].as_object().unwrap();
        assert!(list(&got["ids"]).is_sorted_by_key(|id| id.as_u64()));
        let both = list(&got["ids"]).iter().zip(list(&got["weights"]));
        let near = both.filter(|(_, w)| w.as_f64().unwrap() > TOLERANCE).map(|(id, w)| {
            assert_close(w, want[&id.to_string()].as_f64().unwrap());
        });
        assert!(near.count() >= want.len() - 1, "{case}");
        assert_eq!(list(&got["tokens"]).len(), list(&got["ids"]).len());
    }
    let hello = out(&["embed", "-m", model.path(), "--sparse", "hello"], b"");
    assert!(hello.starts_with("t:1.9370 query:1.6186 ") && hello.lines().count() == 1, "{hello}");
}

#[test]
fn multi_vector_embeddings_match_reference() {
    for name in ["task-colbert", "task-colbert-pylate"] {
        let model = Model::new(name);
        for (side, extra) in [("queries", &["--query"][..]), ("documents", &[])] {
            let cases = list(&model.golden[side]);
            let want = model.arrays().f32(side);
            let mut args = vec!["embed", "-m", model.path(), "--multi", "--json"];
            args.extend(extra);
            args.extend(cases.iter().map(|c| text(&c["text"])));
            let all = parse(&out(&args, b""));
            let counts: Vec<usize> = list(&all["embeddings"]).iter().map(|v| list(v).len()).collect();
            let wanted: Vec<usize> = cases.iter().map(|c| c["vectors"].as_u64().unwrap() as usize).collect();
            assert_eq!(counts, wanted, "{name}, {side}");
            let got: Vec<f32> = list(&all["embeddings"]).iter().flat_map(list).flat_map(numbers).collect();
            assert!(worst(&got, &want.values) < 2e-5, "{name}, {side}");
            assert_eq!(all["dimension"], want.dims[1]);
            assert_ran(&all);
        }
    }
}

#[test]
fn embed_truncates_and_quantizes_vectors() {
    let model = Model::new("task-outputs-truncate");
    let arrays = model.arrays();
    let mut args = vec!["embed", "-m", model.path(), "--json"];
    args.extend(list(&model.golden["texts"]).iter().map(text));
    let run = |extra: &[&str]| {
        let all = parse(&out(&[&args[..], extra].concat(), b""));
        let rows: Vec<f32> = list(&all["embeddings"]).iter().flat_map(numbers).collect();
        (all, rows)
    };
    for n in ["1", "7", "8", "20", "32"] {
        let (all, got) = run(&["--dimensions", n]);
        assert!(worst(&got, &arrays.f32(&format!("normalized.{n}")).values) < 2e-5, "{n}");
        assert_eq!(all["dimension"].to_string(), n);
    }
    let normalized = arrays.f32("normalized.20").values;
    for (precision, offset) in [("ubinary", 0.0), ("binary", 128.0)] {
        let (all, got) = run(&["--dimensions", "20", "--precision", precision]);
        // By definition: the sign of each number, the first one in the highest bit.
        let bit = |(i, v): (usize, &f32)| if *v > 0.0 { f32::from(0x80u8 >> i) } else { 0.0 };
        let byte = |bits: &[f32]| bits.iter().enumerate().map(bit).sum::<f32>() - offset;
        let want: Vec<f32> = normalized.chunks(20).flat_map(|row| row.chunks(8).map(byte)).collect();
        assert_eq!(got, want, "{precision}");
        assert_eq!((&all["dimension"], &all["precision"]), (&json!(3), &json!(precision)));
    }
    // Ranges of the vectors themselves: the ends of each dimension become the ends of the byte
    // range.
    let (_, own) = run(&["--precision", "int8"]);
    for d in 0..32 {
        let column: Vec<f32> = own.iter().skip(d).step_by(32).copied().collect();
        let (low, high) = (column.iter().fold(0f32, |a, b| a.min(*b)), column.iter().fold(0f32, |a, b| a.max(*b)));
        assert!(low == -128.0 && high >= 126.0, "{d}: {column:?}");
    }
    // Given ranges: each text by itself.
    let ranges = model.dir.path().join("ranges.json");
    std::fs::write(&ranges, json!({"low": vec![-2.0; 32], "high": vec![2.0; 32]}).to_string()).unwrap();
    let (_, got) = run(&["--precision", "uint8", "--ranges", ranges.to_str().unwrap()]);
    let plain = arrays.f32("plain.32").values;
    let steps = plain.iter().map(|v| ((v + 2.0) / (4.0 / 255.0)).clamp(0.0, 255.0).trunc());
    assert!(got.iter().zip(steps).all(|(g, w)| (g - w).abs() <= 1.0), "{got:?}");
}

#[test]
fn quantized_and_base64_output_agrees_across_formats() {
    let model = Model::new("task-outputs-truncate");
    let base = ["embed", "-m", model.path(), "hello", "Hello, World!", "A man is eating food."];
    let run = |extra: &[&str]| {
        let o = sconce(&[&base[..], extra].concat(), b"");
        assert!(o.status.success(), "{extra:?}: {}", String::from_utf8_lossy(&o.stderr));
        o.stdout
    };
    for (precision, descr, shape) in [
        ("int8", "|i1", "(3, 32)"),
        ("uint8", "|u1", "(3, 32)"),
        ("binary", "|i1", "(3, 4)"),
        ("ubinary", "|u1", "(3, 4)"),
    ] {
        let npy = run(&["--precision", precision, "--format", "npy"]);
        let header = std::str::from_utf8(&npy[10..128]).unwrap();
        assert!(header.contains(&format!("'descr': '{descr}'")) && header.contains(shape), "{header}");
        assert_eq!(npy[128..], run(&["--precision", precision, "--format", "bin"]));
        let text = String::from_utf8(run(&["--precision", precision])).unwrap();
        let bytes = text.split_whitespace().map(|n| n.parse::<i16>().unwrap() as u8);
        assert_eq!(bytes.collect::<Vec<_>>(), npy[128..], "{precision}");
    }
    let plain = parse(&String::from_utf8(run(&["--json"])).unwrap());
    let coded = parse(&String::from_utf8(run(&["--json", "--base64"])).unwrap());
    for (numbers_of, code) in list(&plain["embeddings"]).iter().zip(list(&coded["embeddings"])) {
        let bytes: Vec<u8> = numbers(numbers_of).iter().flat_map(|v| v.to_le_bytes()).collect();
        assert_eq!(decode_base64(text(code)), bytes);
    }
    let lines = String::from_utf8(run(&["--format", "jsonl", "--base64"])).unwrap();
    assert_eq!(parse(lines.lines().next().unwrap())["embedding"], coded["embeddings"][0]);
}

/// A base64 decoder of our own, independent of the crate under test.
fn decode_base64(code: &str) -> Vec<u8> {
    let digit = |c: u8| match c {
        b'A'..=b'Z' => c - b'A',
        b'a'..=b'z' => c - b'a' + 26,
        b'0'..=b'9' => c - b'0' + 52,
        b'+' => 62,
        _ => 63,
    };
    let digits: Vec<u8> = code.bytes().filter(|c| *c != b'=').map(digit).collect();
    let bits: Vec<u8> = digits.iter().flat_map(|d| (0..6).rev().map(move |i| d >> i & 1)).collect();
    bits.chunks_exact(8).map(|b| b.iter().fold(0, |n, bit| n << 1 | bit)).collect()
}

#[test]
fn bge_m3_gives_dense_sparse_and_multi_vector_embeddings() {
    let model = Model::new("task-m3");
    let cases = list(&model.golden["cases"]);
    let texts: Vec<&str> = cases.iter().map(|c| text(&c["text"])).collect();
    let run = |flags: &[&str]| {
        parse(&out(&[&["embed", "-m", model.path(), "--json"], flags, &texts[..]].concat(), b""))["embeddings"].clone()
    };
    let (all, sparse, multi) = (run(&["--sparse", "--multi"]), run(&["--sparse"]), run(&["--multi"]));
    let dense: Vec<f32> = list(&all).iter().flat_map(|e| numbers(&e["dense"])).collect();
    assert!(worst(&dense, &model.arrays().f32("dense").values) < 2e-5);
    for (i, case) in cases.iter().enumerate() {
        assert_eq!((&all[i]["sparse"], &all[i]["multi"]), (&sparse[i], &multi[i]));
        assert_eq!(list(&multi[i]).len() as u64, case["vectors"].as_u64().unwrap());
        let want = case["sparse"].as_object().unwrap();
        for (id, weight) in list(&sparse[i]["ids"]).iter().zip(list(&sparse[i]["weights"])) {
            assert_close(weight, want[&id.to_string()].as_f64().unwrap());
        }
        assert_eq!(list(&sparse[i]["ids"]).len(), want.len());
    }
    let e = err(&["embed", "-m", Model::new("task-colbert").path(), "--sparse", "--multi", "x"], b"");
    assert!(e.contains("this is a model for multi; run `sconce embed --multi`"), "{e}");
}
