//! Parquet output: the columns of the input with their types, and the results.

#[allow(dead_code, reason = "other tests use the rest")]
mod common;
#[path = "common/golden.rs"]
#[allow(dead_code, reason = "other tests use the rest")]
mod golden;

use common::{err, out, parse, sconce};
use golden::{Model, list, text};
use parquet::file::reader::{FileReader, SerializedFileReader};
use parquet::record::{Field, Row};
use parquet::schema::types::TypePtr;
use serde_json::{Value, json};
use std::path::{Path, PathBuf};

fn table(name: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/tables").join(name)
}

fn reader(path: &Path) -> SerializedFileReader<std::fs::File> {
    SerializedFileReader::new(std::fs::File::open(path).unwrap()).unwrap()
}

fn columns(path: &Path) -> Vec<TypePtr> {
    reader(path).metadata().file_metadata().schema_descr().root_schema().get_fields().to_vec()
}

/// The rows as the crate's record reader prints them, which is independent of our code.
fn rows(path: &Path) -> Vec<Row> {
    reader(path).get_row_iter(None).unwrap().map(Result::unwrap).collect()
}

fn column<'a>(row: &'a Row, name: &str) -> &'a Field {
    row.get_column_iter().find(|(n, _)| *n == name).unwrap_or_else(|| panic!("no {name} in {row}")).1
}

/// The texts of the tables.
fn texts() -> Vec<String> {
    let all = parse(&std::fs::read_to_string(table("rows.json")).unwrap());
    list(&all).iter().map(|r| text(&r["text"]).to_string()).collect()
}

/// Results for the texts of the tables, as JSONL.
fn results(args: &[&str]) -> Vec<Value> {
    let texts = texts();
    let texts: Vec<&str> = texts.iter().map(String::as_str).collect();
    out(&[args, &["--format", "jsonl"], &texts[..]].concat(), b"").lines().map(parse).collect()
}

fn floats(field: &Field) -> Vec<f32> {
    let Field::ListInternal(list) = field else { panic!("a list, not {field}") };
    let number = |f: &Field| if let Field::Float(n) = f { *n } else { panic!("a float, not {f}") };
    list.elements().iter().map(number).collect()
}

#[test]
fn embeddings_follow_the_columns_of_a_parquet_input() {
    let (model, dir) = (Model::new("st-cls-dense"), tempfile::tempdir().unwrap());
    let to = dir.path().join("out.parquet");
    let embed = ["embed", "-q", "-m", model.path()];
    let from = table("types.parquet");
    out(&[&embed[..], &["-f", from.to_str().unwrap(), "-o", to.to_str().unwrap()]].concat(), b"");
    assert_eq!(std::fs::read_dir(dir.path()).unwrap().count(), 1, "no temporary file is left");
    // The same types in the same order, and the same values.
    let (old, new) = (columns(&from), columns(&to));
    assert_eq!(new[..old.len()], old[..]);
    assert_eq!(new[old.len()..].iter().map(|c| c.name()).collect::<Vec<_>>(), ["embedding", "tokens", "truncated"]);
    let (old, new, want) = (rows(&from), rows(&to), results(&embed));
    assert_eq!((new.len(), want.len()), (old.len(), old.len()));
    for ((old, new), want) in old.iter().zip(&new).zip(&want) {
        for (name, value) in old.get_column_iter() {
            assert_eq!(column(new, name), value, "{name}");
        }
        let got = floats(column(new, "embedding"));
        assert_eq!(got, common::numbers(&want["embedding"]));
        assert_eq!(column(new, "tokens"), &Field::Long(want["tokens"].as_i64().unwrap()));
        assert_eq!(column(new, "truncated"), &Field::Bool(want["truncated"].as_bool().unwrap()));
    }
    // The columns as JSON.
    let json = out(&[&embed[..], &["-f", from.to_str().unwrap(), "--format", "jsonl"]].concat(), b"");
    let golden = parse(&std::fs::read_to_string(table("rows.json")).unwrap());
    for (got, want) in json.lines().map(parse).zip(list(&golden)) {
        for (name, value) in want.as_object().unwrap() {
            assert_eq!(&got[name], value, "{name}");
        }
    }
    // Nothing is overwritten.
    let again = [&embed[..], &["-f", to.to_str().unwrap(), "--format"]].concat();
    let e = err(&[&again[..], &["jsonl"]].concat(), b"");
    assert!(e.contains("out.parquet: row 1: the row already has a field `embedding`"), "{e}");
    let e = err(&[&again[..], &["parquet"]].concat(), b"");
    assert!(e.contains("the input already has a column `embedding`; rename it first"), "{e}");
}

#[test]
fn objects_and_records_become_typed_columns() {
    let (model, dir) = (Model::new("st-cls-dense"), tempfile::tempdir().unwrap());
    let lines = [
        json!({"text": "a", "n": 1, "x": 1, "ok": true, "mix": "s", "list": [1, {"a": null}]}),
        json!({"n": 9_007_199_254_740_993_i64, "x": 2.5, "text": "b", "ok": null, "mix": 3}),
        json!({"text": "c", "late": "z", "mix": null, "empty": null}),
    ];
    let from = dir.path().join("rows.jsonl");
    std::fs::write(&from, lines.map(|l| l.to_string()).join("\n")).unwrap();
    let to = dir.path().join("out.parquet");
    let run =
        |args: &[&str]| [&["embed", "-q", "-m", model.path(), "-o", to.to_str().unwrap()], args].concat().join("\0");
    let args = run(&["-f", from.to_str().unwrap()]);
    out(&args.split('\0').collect::<Vec<_>>(), b"");
    let types: Vec<String> =
        columns(&to).iter().take(8).map(|c| format!("{} {}", c.name(), c.get_physical_type())).collect();
    assert_eq!(
        types,
        [
            "text BYTE_ARRAY",
            "n INT64",
            "x DOUBLE",
            "ok BOOLEAN",
            "mix BYTE_ARRAY",
            "list BYTE_ARRAY",
            "late BYTE_ARRAY",
            "empty BYTE_ARRAY"
        ]
    );
    let rows = rows(&to);
    let string = |text: &str| Field::Str(text.into());
    let null = Field::Null;
    let want = [
        [
            string("a"),
            Field::Long(1),
            Field::Double(1.0),
            Field::Bool(true),
            string("\"s\""),
            string("[1,{\"a\":null}]"),
        ],
        [string("b"), Field::Long(9_007_199_254_740_993), Field::Double(2.5), null.clone(), string("3"), null.clone()],
        [string("c"), null.clone(), null.clone(), null.clone(), null.clone(), null.clone()],
    ];
    for (row, want) in rows.iter().zip(want) {
        for (name, want) in ["text", "n", "x", "ok", "mix", "list"].into_iter().zip(want) {
            assert_eq!(column(row, name), &want, "{name}");
        }
    }
    assert_eq!((column(&rows[2], "late"), column(&rows[2], "empty")), (&string("z"), &null));
    // Values of CSV stay strings. Arguments have no columns.
    let csv = dir.path().join("rows.csv");
    std::fs::write(&csv, "id,text\n07,\"a,\nb\"\n").unwrap();
    let args = run(&["-f", csv.to_str().unwrap()]);
    out(&args.split('\0').collect::<Vec<_>>(), b"");
    let row = &self::rows(&to)[0];
    assert_eq!((column(row, "id"), column(row, "text")), (&string("07"), &string("a,\nb")));
    let args = run(&["a", "b"]);
    out(&args.split('\0').collect::<Vec<_>>(), b"");
    assert_eq!((self::rows(&to).len(), columns(&to).len()), (2, 3));
    // The same bytes on standard output.
    let piped = sconce(&["embed", "-q", "-m", model.path(), "--format", "parquet", "a", "b"], b"");
    assert_eq!(piped.stdout, std::fs::read(&to).unwrap());
    let e = err(&["embed", "-m", model.path(), "--field", "text", "--format", "parquet"], b"{\"text\": \"a\"}\n");
    assert!(e.contains("standard input") && e.contains(".jsonl"), "{e}");
    let types = table("types.parquet");
    let mixed = ["-f", from.to_str().unwrap(), "-f", types.to_str().unwrap(), "--format", "parquet"];
    assert!(
        err(&[&["embed", "-m", model.path()], &mixed[..]].concat(), b"")
            .contains("types.parquet: Parquet output cannot")
    );
    let other = ["-f", table("none.parquet").to_str().unwrap(), "-f", types.to_str().unwrap(), "--format", "parquet"]
        .map(String::from);
    let other: Vec<&str> = other.iter().map(String::as_str).collect();
    assert!(
        err(&[&["embed", "-m", model.path()], &other[..]].concat(), b"").contains("types.parquet: other columns than")
    );
}

#[test]
fn every_kind_of_result_is_a_column() {
    let dir = tempfile::tempdir().unwrap();
    let (from, to) = (table("none.parquet"), dir.path().join("out.parquet"));
    for (golden, args, result) in [
        ("task-classify", &["classify"][..], "labels"),
        ("task-tag", &["tag"], "entities"),
        ("task-sparse", &["embed", "--sparse"], "embedding"),
        ("task-colbert", &["embed", "--multi"], "embedding"),
        ("task-m3", &["embed", "--sparse", "--multi"], "embedding"),
        ("st-cls-dense", &["embed", "--precision", "int8"], "embedding"),
        ("st-cls-dense", &["embed", "--precision", "ubinary"], "embedding"),
    ] {
        let model = Model::new(golden);
        let args = [args, &["-q", "-m", model.path()]].concat();
        let want = results(&args);
        out(&[&args[..], &["-f", from.to_str().unwrap(), "-o", to.to_str().unwrap()]].concat(), b"");
        let got = rows(&to);
        assert_eq!(got.len(), want.len());
        for (got, want) in got.iter().zip(&want) {
            assert_eq!(
                without_nulls(&as_json(column(got, result))),
                without_nulls(&want[result]),
                "{golden}: {args:?}"
            );
            assert_eq!(as_json(column(got, "tokens")), want["tokens"]);
        }
    }
    let e = err(&["embed", "-m", Model::new("st-cls-dense").path(), "--base64", "-o", to.to_str().unwrap(), "a"], b"");
    assert!(e.contains("--base64 is for"), "{e}");
}

fn as_json(field: &Field) -> Value {
    match field {
        Field::Null => Value::Null,
        Field::Byte(n) => json!(n),
        Field::UByte(n) => json!(n),
        Field::UInt(n) => json!(n),
        Field::Long(n) => json!(n),
        // As JSON spells it.
        Field::Float(n) => parse(&n.to_string()),
        Field::Str(text) => json!(text),
        Field::Group(row) => row.get_column_iter().map(|(name, field)| (name.clone(), as_json(field))).collect(),
        Field::ListInternal(list) => list.elements().iter().map(as_json).collect(),
        other => panic!("not expected: {other}"),
    }
}

/// A field that JSON leaves out is a null column.
fn without_nulls(value: &Value) -> Value {
    match value {
        Value::Object(all) => {
            all.iter().filter(|(_, v)| !v.is_null()).map(|(k, v)| (k.clone(), without_nulls(v))).collect()
        }
        Value::Array(all) => all.iter().map(without_nulls).collect(),
        other => other.clone(),
    }
}

#[test]
fn answers_follow_the_columns_of_the_input() {
    let (model, dir) = (sconce_testkit::materialize_llama(128), tempfile::tempdir().unwrap());
    let to = dir.path().join("out.parquet");
    let generate = ["generate", "-q", "-m", model.path().to_str().unwrap(), "--max-tokens", "4", "--temperature", "0"];
    let write = |args: &[&str]| {
        out(&[&generate[..], args, &["-o", to.to_str().unwrap()]].concat(), b"");
        rows(&to)
    };
    let answer = |row: &Row| {
        let Field::ListInternal(answers) = column(row, "answers") else { panic!("{row}") };
        let Field::Group(first) = &answers.elements()[0] else { panic!("{row}") };
        let Field::Str(text) = column(first, "text") else { panic!("{row}") };
        text.clone()
    };
    let from = table("types.parquet");
    let (old, new, want) = (rows(&from), write(&["-f", from.to_str().unwrap()]), results(&generate));
    assert_eq!((new.len(), want.len()), (old.len(), old.len()));
    for ((old, new), want) in old.iter().zip(&new).zip(&want) {
        for (name, value) in old.get_column_iter() {
            assert_eq!(column(new, name), value, "{name}");
        }
        assert_eq!(answer(new), text(&want["answers"][0]["text"]));
    }
    // Prompts with options have an id instead of columns.
    let prompts = dir.path().join("prompts.jsonl");
    std::fs::write(&prompts, "{\"prompt\": \"the cat\", \"id\": 7}\n{\"prompt\": \"the dog\", \"logprobs\": 1}\n")
        .unwrap();
    let new = write(&["-f", prompts.to_str().unwrap()]);
    assert_eq!((column(&new[0], "id"), column(&new[1], "id")), (&Field::Str("7".into()), &Field::Null));
    assert!(answer(&new[0]).len() > 1 && answer(&new[1]).len() > 1);
}
