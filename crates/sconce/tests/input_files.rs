//! The extension of an input file decides how it is read: the same rows as JSONL, JSON, CSV, TSV or
//! Parquet give the same results.

#[allow(dead_code, reason = "other tests use the rest")]
mod common;
#[path = "common/golden.rs"]
#[allow(dead_code, reason = "other tests use the rest")]
mod golden;

use common::{err, out, parse, sconce};
use golden::{Model, list, text};
use serde_json::{Value, json};
use std::path::{Path, PathBuf};

/// Files that `tools/goldens/tables.py` writes with pyarrow and polars.
const TABLES: [&str; 6] = ["types", "none", "gzip", "lz4", "v2", "polars"];

fn table(name: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/tables").join(name)
}

/// The rows of the tables.
fn rows() -> Vec<Value> {
    list(&parse(&std::fs::read_to_string(table("rows.json")).unwrap())).clone()
}

fn write(dir: &Path, name: &str, content: impl AsRef<[u8]>) -> String {
    let path = dir.join(name);
    std::fs::write(&path, content).unwrap();
    path.to_str().unwrap().into()
}

/// Rows with an `id` and a text, written by hand in the form of RFC 4180.
fn as_csv(rows: &[Value], field: &str, delimiter: &str) -> String {
    let quote = |text: &str| format!("\"{}\"", text.replace('"', "\"\""));
    let line = |row: &Value| format!("{}{delimiter}{}\r\n", row["id"], quote(text(&row["text"])));
    format!("id{delimiter}{field}\r\n") + &rows.iter().map(line).collect::<String>()
}

/// The rows in a file of each format, with the text in this field.
fn files(dir: &Path, field: &str) -> Vec<String> {
    let rows = rows();
    let objects: Vec<Value> = rows.iter().map(|r| json!({"id": r["id"], field: r["text"]})).collect();
    let jsonl: String = objects.iter().map(|o| o.to_string() + "\n").collect();
    vec![
        write(dir, "rows.jsonl", &jsonl),
        write(dir, "rows.ndjson", jsonl + "\n"),
        write(dir, "rows.json", serde_json::to_string_pretty(&objects).unwrap()),
        write(dir, "rows.csv", as_csv(&rows, field, ",")),
        // As Excel writes it.
        write(dir, "ROWS.CSV", format!("\u{feff}{}", as_csv(&rows, field, ","))),
        write(dir, "rows.tsv", as_csv(&rows, field, "\t")),
    ]
}

fn jsonl(args: &[&str]) -> Vec<Value> {
    out(&[args, &["--format", "jsonl"]].concat(), b"").lines().map(parse).collect()
}

#[test]
fn same_rows_in_every_format_give_the_same_vectors() {
    let (model, dir) = (Model::new("st-cls-dense"), tempfile::tempdir().unwrap());
    let embed = ["embed", "-q", "-m", model.path()];
    let rows = rows();
    let texts: Vec<&str> = rows.iter().map(|r| text(&r["text"])).collect();
    let want = jsonl(&[&embed[..], &texts].concat());
    assert_eq!(want.len(), texts.len());
    assert_ne!(want[0]["embedding"], want[1]["embedding"]);
    let assert_same = |file: &str, more: &[&str], has_id: bool| {
        let got = jsonl(&[&embed[..], &["-f", file], more].concat());
        assert_eq!(got.len(), want.len(), "{file}");
        for (i, (got, want)) in got.iter().zip(&want).enumerate() {
            assert_eq!(got["embedding"], want["embedding"], "{file}, row {i}");
            let id = got["id"].as_str().map_or(got["id"].clone(), parse);
            assert_eq!(id, if has_id { json!(i) } else { Value::Null }, "{file}");
        }
    };
    files(dir.path(), "text").iter().for_each(|file| assert_same(file, &[], true));
    for name in TABLES {
        assert_same(table(&format!("{name}.parquet")).to_str().unwrap(), &[], true);
    }
    let strings = write(dir.path(), "strings.json", json!(texts).to_string());
    assert_same(&strings, &[], false);
    // Another field, and all files at once.
    let files = files(dir.path(), "body");
    files.iter().for_each(|file| assert_same(file, &["--field", "body"], true));
    let mut all = embed.to_vec();
    files.iter().for_each(|file| all.extend(["-f", file]));
    let got = jsonl(&[&all[..], &["--field", "body"]].concat());
    assert_eq!(got.len(), files.len() * want.len());
    assert!(got.iter().enumerate().all(|(i, row)| row["embedding"] == want[i % want.len()]["embedding"]));
    // Columns that the output does not keep make no difference.
    let types = table("types.parquet");
    let npy = |file: &str| sconce(&[&embed[..], &["--format", "npy", "-f", file]].concat(), b"").stdout;
    assert_eq!(npy(types.to_str().unwrap()), npy(table("none.parquet").to_str().unwrap()));
}

#[test]
fn lines_stay_lines_without_a_known_extension() {
    let (model, dir) = (Model::new("st-cls-dense"), tempfile::tempdir().unwrap());
    let line = r#"{"text": "a"}"#;
    let embed = ["embed", "-q", "-m", model.path()];
    let want = out(&[&embed[..], &[line]].concat(), b"");
    assert_eq!(out(&embed, line.as_bytes()), want);
    for name in ["x.txt", "x.data", "x"] {
        let file = write(dir.path(), name, line);
        assert_eq!(out(&[&embed[..], &["-f", &file]].concat(), b""), want, "{name}");
        let field = out(&[&embed[..], &["-f", &file, "--field", "text"]].concat(), b"");
        assert_eq!(field, out(&[&embed[..], &["a"]].concat(), b""), "{name}");
    }
}

#[test]
fn missing_field_is_an_error_that_lists_the_fields() {
    let (model, dir) = (Model::new("st-cls-dense"), tempfile::tempdir().unwrap());
    let parquet = table("none.parquet").to_str().unwrap().to_string();
    let mut all = files(dir.path(), "body");
    all.push(write(dir.path(), "header.csv", "id,body\n"));
    for file in &all {
        let e = err(&["embed", "-m", model.path(), "-f", file], b"");
        let name = Path::new(file).file_name().unwrap().to_str().unwrap();
        for part in [name, "no field `text`", "`id`, `body`", "--field NAME"] {
            assert!(e.contains(part), "{part}: {e}");
        }
    }
    let e = err(&["embed", "-m", model.path(), "-f", &parquet, "--field", "title"], b"");
    assert!(e.contains("none.parquet: no field `title`; the fields are `id`, `text`"), "{e}");
    // Before the model is loaded, also if only the last file lacks the field.
    let good = write(dir.path(), "good.jsonl", "{\"text\": \"a\"}\n");
    let e = err(&["embed", "-m", "./absent", "-f", &good, "-f", &all[0]], b"");
    assert!(e.contains("rows.jsonl:1: no field `text`"), "{e}");
    let e = err(&["embed", "-m", model.path(), "-f", &parquet, "--field", "id"], b"");
    assert!(e.contains("column `id` is INT64, not text"), "{e}");
    let null = write(dir.path(), "null.jsonl", "{\"text\": \"a\"}\n{\"text\": null}\n");
    assert!(err(&["embed", "-m", model.path(), "-f", &null], b"").contains("null.jsonl:2: field `text` is null"));
}

#[test]
fn every_task_reads_rows() {
    let dir = tempfile::tempdir().unwrap();
    let rows = rows();
    let texts: Vec<&str> = rows.iter().map(|r| text(&r["text"])).collect();
    let mut all = files(dir.path(), "text");
    all.push(table("types.parquet").to_str().unwrap().into());

    let model = Model::new("task-rerank");
    let rerank = ["rerank", "-q", "-m", model.path(), "--query", "cat", "--json", "--texts"];
    let want = parse(&out(&[&rerank[..], &texts].concat(), b""));
    for file in &all {
        let got = parse(&out(&[&rerank[..], &["-f", file]].concat(), b""));
        assert_eq!(got["results"], want["results"], "{file}");
    }
    for (golden, command, result) in [("task-classify", "classify", "labels"), ("task-tag", "tag", "entities")] {
        let model = Model::new(golden);
        let base = [command, "-q", "-m", model.path()];
        let want = jsonl(&[&base[..], &texts].concat());
        for file in &all {
            let got = jsonl(&[&base[..], &["-f", file]].concat());
            assert_eq!(got.len(), want.len(), "{file}");
            assert!(got.iter().zip(&want).all(|(g, w)| g[result] == w[result] && g.get("id").is_some()), "{file}");
        }
    }
    // The second text of a pair is another column.
    let model = Model::new("task-classify");
    let pairs = write(dir.path(), "pairs.csv", "one,two\nhello,world\n\"a,b\",c\n");
    let base = ["classify", "-q", "-m", model.path()];
    let got = jsonl(&[&base[..], &["-f", &pairs, "--field", "one", "--pair-field", "two"]].concat());
    assert_eq!(got[1]["labels"], jsonl(&[&base[..], &["a,b", "--pair", "c"]].concat())[0]["labels"]);
    let types = table("types.parquet");
    let pair = ["-f", types.to_str().unwrap(), "--pair-field", "text", "--json"];
    let got = parse(&out(&[&base[..], &pair].concat(), b""));
    assert_eq!(
        got["results"][0],
        parse(&out(&[&base[..], &[texts[0], "--pair", texts[0], "--json"]].concat(), b""))["results"][0]
    );
    let e = err(&[&base[..], &["-f", &pairs, "--field", "one", "--pair-field", "three"]].concat(), b"");
    assert!(e.contains("no field `three`") && e.contains("`one`, `two`") && e.contains("--pair-field NAME"), "{e}");
}

#[test]
fn generate_reads_prompts_of_rows() {
    let (model, dir) = (sconce_testkit::materialize("task-embed-llama"), tempfile::tempdir().unwrap());
    for name in ["modules.json", "config_sentence_transformers.json", "sentence_bert_config.json"] {
        std::fs::remove_file(model.path().join(name)).unwrap();
    }
    let base = ["generate", "-q", "-m", model.path().to_str().unwrap(), "-d", "cpu", "--max-tokens", "4"];
    let want = jsonl(&[&base[..], &["the cat", "a, b"]].concat());
    let assert_same = |got: &[Value]| {
        assert_eq!(got.len(), 2);
        assert!(got.iter().zip(&want).all(|(g, w)| g["answers"] == w["answers"]), "{got:?}");
    };
    let csv = write(dir.path(), "p.csv", "id,text\n7,the cat\n8,\"a, b\"\n");
    let got = jsonl(&[&base[..], &["-f", &csv]].concat());
    assert_same(&got);
    assert_eq!((&got[1]["id"], &got[1]["text"], &got[1]["index"]), (&json!("8"), &json!("a, b"), &json!(1)));
    let named = write(dir.path(), "p.jsonl", "{\"body\": \"the cat\"}\n{\"body\": \"a, b\"}\n");
    assert_same(&jsonl(&[&base[..], &["-f", &named, "--field", "body"]].concat()));
    let e = err(&[&base[..], &["-f", &named]].concat(), b"");
    assert!(e.contains("p.jsonl:1: no field `text`; the fields are `body`; choose one with --field NAME"), "{e}");
    // Objects with options are as for --jsonl.
    let options =
        write(dir.path(), "o.jsonl", "{\"prompt\": \"the cat\", \"id\": 1}\n{\"prompt\": \"a, b\", \"n\": 1}\n");
    let got = jsonl(&[&base[..], &["-f", &options]].concat());
    assert_same(&got);
    assert_eq!(got[0]["id"], 1);
    let strings = write(dir.path(), "p.json", "[\"the cat\", \"a, b\"]");
    assert_same(&jsonl(&[&base[..], &["-f", &strings]].concat()));
    let taken = write(dir.path(), "taken.csv", "index,text\n7,the cat\n");
    let e = err(&[&base[..], &["-f", &taken, "--format", "jsonl"]].concat(), b"");
    assert!(e.contains("taken.csv:2: the row already has a field `index`"), "{e}");
}

#[test]
fn broken_files_are_named_with_their_row() {
    let (model, dir) = (Model::new("st-cls-dense"), tempfile::tempdir().unwrap());
    let deep = format!("[{}", "[".repeat(1_000_000));
    let deep_line = format!("{{\"text\": {}", "[".repeat(1_000_000));
    let cases: [(&str, &[u8], &str); 20] = [
        ("a.csv", b"", "a.csv: empty"),
        ("b.csv", b"id,text\n1,a\n2,b,c\n", "b.csv:3: 3 values, but the first line names 2 fields"),
        ("c.csv", b"id,text\n1,a\n2,\"b\n3,c\n", "c.csv:3: a quote is opened and never closed"),
        ("d.csv", b"id,text\n1,a\n2,b\xff\n", "d.csv:3: value 2 is not UTF-8"),
        ("e.csv", b"text,text\n", "e.csv: two fields are named `text`"),
        ("f.tsv", b"id\ttext\n1\ta\n2\n", "f.tsv:3: 1 values, but the first line names 2 fields"),
        ("g.json", b"{\"text\": \"a\"}\n", "g.json: item 1: not an array of objects or strings"),
        ("h.json", b"[{\"text\": \"a\"}, {\"text\": \"b\"}", "h.json: item 3: the file ends within the array"),
        ("i.json", b"[{\"text\": \"a\"} {\"text\": \"b\"}]", "a comma is missing"),
        ("j.json", b"[{\"text\": \"a\"}, 3]", "j.json: item 2: not an object or a string"),
        ("k.json", b"[{\"text\": \"a\"}, {\"text\": b}]", "k.json: item 2: not JSON"),
        ("l.json", b"[{\"text\": \"a\"}] x", "more follows after the end of the array"),
        ("m.json", b"[{\"text\": \"a\xff\"}]", "m.json: item 1: not JSON"),
        ("n.json", b"", "n.json: item 1: not an array"),
        ("o.json", deep.as_bytes(), "o.json: item 1: the file ends within the array"),
        ("p.jsonl", b"{\"text\": \"a\"}\n{\"text\": \"b\n", "p.jsonl:2: not a JSON object"),
        ("q.jsonl", deep_line.as_bytes(), "q.jsonl:1: not a JSON object: recursion limit exceeded"),
        ("r.parquet", b"PAR1", "r.parquet: not a Parquet file"),
        ("s.parquet", b"id,text\n1,a\n2,b\n", "s.parquet: not a Parquet file"),
        ("t.parquet", b"PAR1\x00\x00\xff\xff\xff\x7fPAR1", "t.parquet: damaged: its footer claims"),
    ];
    for (name, content, why) in cases {
        let file = write(dir.path(), name, content);
        let e = err(&["embed", "-q", "-m", model.path(), "-f", &file], b"");
        assert!(e.contains(why) && !e.contains("panicked") && e.len() < 600, "{name}: {e}");
    }
    // A negative offset, at which the crate panics.
    let mut bytes = std::fs::read(table("none.parquet")).unwrap();
    bytes[500] = 179;
    let file = write(dir.path(), "offset.parquet", bytes);
    let e = err(&["embed", "-q", "-m", model.path(), "-f", &file], b"");
    assert!(e.contains("offset.parquet: ") && !e.contains("panicked"), "{e}");
    // A length beyond its page, in a file that is otherwise whole: the old output stays.
    let mut bytes = std::fs::read(table("none.parquet")).unwrap();
    let at = bytes.windows(5).position(|w| w == b"A man").unwrap();
    bytes[at - 4..at].copy_from_slice(&u32::MAX.to_le_bytes());
    let (file, old) = (write(dir.path(), "cut.parquet", bytes), write(dir.path(), "old.parquet", "precious"));
    let e = err(&["embed", "-q", "-m", model.path(), "-f", &file, "-o", &old], b"");
    assert!(e.contains("cut.parquet: in the rows from 1 on: ") && !e.contains("panicked"), "{e}");
    assert_eq!(std::fs::read_to_string(&old).unwrap(), "precious");
}
