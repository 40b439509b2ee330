//! Inputs of shards: bad rows, inputs and settings that change, Parquet files.

use super::*;

#[test]
fn bad_rows_are_listed_and_stop_nothing() {
    let world = World::new();
    let lines = [
        r#"{"id": 1, "text": "a man"}"#,
        r#"{"id": 2, "text": "#,
        "",
        r#"{"id": 3}"#,
        r#"{"id": 4, "text": null}"#,
        r#"{"id": 5, "text": "food"}"#,
    ];
    let mut content = lines.join("\n").into_bytes();
    content.extend_from_slice(b"\n{\"text\": \"\xff\"}\n");
    let (input, to) = (world.write("in.jsonl", content), world.path("out"));
    let o = sconce(&world.embed(&to, &["--keep", "id", &input]), b"");
    let messages = String::from_utf8(o.stderr).unwrap();
    assert!(o.status.success() && messages.contains("4 rows have no result"), "{messages}");
    let got: Vec<(i64, i64)> = rows(&to).iter().map(|row| (long(row, "id"), long(row, "row"))).collect();
    assert_eq!(got, [(1, 1), (5, 6)]);
    let side = &files(&format!("{to}/bad"))["00000-in.jsonl"];
    let side: Vec<Value> = std::str::from_utf8(side).unwrap().lines().map(parse).collect();
    let numbers: Vec<u64> = side.iter().map(|row| row["row"].as_u64().unwrap()).collect();
    assert_eq!(numbers, [2, 4, 5, 7]);
    for (row, why) in
        side.iter().zip(["not a JSON object", "no field `text`", "null, not a string", "not a JSON object"])
    {
        assert!(text(&row["reason"]).contains(why), "{row}");
    }
    let status = status(&to);
    assert_eq!((&status["done"], &status["rows"], &status["bad_rows"]), (&json!(1), &json!(6), &json!(4)));
}

#[test]
fn other_settings_and_inputs_are_refused_by_name() {
    let world = World::new();
    let inputs = world.inputs(1, 10);
    let (input, to) = (inputs[0].as_str(), world.path("out"));
    out(&world.embed(&to, &[input]), b"");
    let manifest = std::fs::read(format!("{to}/manifest.json")).unwrap();
    for (rest, difference) in [
        (&["--dimensions", "4", input][..], "--dimensions: there the default, here 4"),
        (&["--prompt", "query: ", input], "--prompt: there the default, here \"query: \""),
        (&["--dtype", "bf16", input], "dtype: there \"f32\", here \"bf16\""),
        (&["--keep", "id", input], "--keep: there [], here [\"id\"]"),
        (&["--shard-rows", "3", input], "--shard-rows: there 50000, here 3"),
        (&["--lease", "30", input], "--lease: there 60.0, here 30.0"),
        (&[input, input], "input files: there 1, here 2"),
    ] {
        let e = err(&world.embed(&to, rest), b"");
        assert!(e.contains("was begun with other settings") && e.contains(difference), "{difference}: {e}");
    }
    // Another model of the same name, and another command.
    let other = Model::new("st-max");
    let e = err(&["embed", "-m", other.path(), "-d", "cpu", "--shards", &to, input], b"");
    assert!(e.contains("model: there"), "{e}");
    let classifier = Model::new("task-classify");
    let e = err(&["classify", "-m", classifier.path(), "-d", "cpu", "--shards", &to, input], b"");
    assert!(e.contains("command: there \"embed\", here \"classify\""), "{e}");
    // An input that changes: its size is seen at the start, its content when it is read.
    let old = std::fs::read(input).unwrap();
    std::fs::write(input, [&old[..], b"{\"text\": \"more\"}\n"].concat()).unwrap();
    let e = err(&world.embed(&to, &[input]), b"");
    assert!(e.contains("bytes, here"), "{e}");
    let changed = String::from_utf8(old).unwrap().replace("\"id\":3", "\"id\":7");
    std::fs::write(input, changed).unwrap();
    std::fs::remove_file(format!("{to}/done/00000.json")).unwrap();
    let e = err(&world.embed(&to, &[input]), b"");
    assert!(e.contains("has changed since the run began"), "{e}");
    assert_eq!(std::fs::read(format!("{to}/manifest.json")).unwrap(), manifest);
    // What cannot work is an error before a model is loaded.
    for (rest, why) in [
        (&["--shards", "o"][..], "needs input files"),
        (&["--shards", "o", "--out", "x.npy", input], "leave out --out"),
        (&["--shards", "o", "--keep", "absent", input], "--keep absent: no row"),
        (&["--shards", "o", "absent.jsonl"], "absent.jsonl"),
        (&["--shards", "o", "--lease", "0", input], "--lease 0"),
        (&["--shards", "o", "--precision", "int8", input], "give --ranges"),
        (&["--shards", "gs://b/o", input], "s3://"),
    ] {
        let e = err(&[&["embed", "-m", "./absent"], rest].concat(), b"");
        assert!(e.contains(why), "{why}: {e}");
    }
    assert!(err(&["shards", "status", world.dir.path().to_str().unwrap()], b"").contains("no manifest.json"));
}

#[test]
fn parquet_inputs_are_divided_by_row_groups() {
    let world = World::new();
    let (input, to) = (world.path("table.parquet"), world.path("out"));
    write_parquet(&input, 5, 8);
    out(&world.embed(&to, &["--shard-rows", "16", "--keep", "id,title", "--field", "body", &input]), b"");
    let records = records(&to);
    let counts: Vec<u64> = records.iter().map(|record| record["rows"].as_u64().unwrap()).collect();
    assert_eq!(counts, [16, 15, 8], "two groups of eight, of which one row is null, and the rest");
    let rows = rows(&to);
    assert_eq!(rows.len(), 39);
    for row in &rows {
        let id = long(row, "id");
        assert_eq!(long(row, "row"), id + 1);
        assert_eq!(column(row, "title"), &Field::Str(format!("title {id}")));
        assert!(!row.get_column_iter().any(|(name, _)| name == "body"));
    }
    assert_eq!(files(&format!("{to}/bad")).len(), 1);
    let e = err(&world.embed(&world.path("o"), &["--field", "id", &input]), b"");
    assert!(e.contains("table.parquet: column `id` is INT64, not text"), "{e}");
    let e = err(&world.embed(&world.path("o"), &["--keep", "absent", "--field", "body", &input]), b"");
    assert!(e.contains("no field `absent`; the fields are `id`, `title`, `body`"), "{e}");
}

/// A file of `groups` row groups; the body of row 20 is null.
fn write_parquet(path: &str, groups: i64, group_rows: i64) {
    use parquet::data_type::{ByteArray, ByteArrayType, Int64Type};
    let schema = "message schema { required int64 id; required binary title (STRING); optional binary body (STRING); }";
    let schema = parquet::schema::parser::parse_message_type(schema).unwrap();
    let file = std::fs::File::create(path).unwrap();
    let mut writer = parquet::file::writer::SerializedFileWriter::new(file, schema.into(), Default::default()).unwrap();
    for group in 0..groups {
        let ids: Vec<i64> = (group * group_rows..(group + 1) * group_rows).collect();
        let bytes = |name: &str, ids: &[i64]| -> Vec<ByteArray> {
            ids.iter().map(|id| ByteArray::from(format!("{name} {id}").into_bytes())).collect()
        };
        let present: Vec<i64> = ids.iter().copied().filter(|id| *id != 20).collect();
        let levels: Vec<i16> = ids.iter().map(|id| i16::from(*id != 20)).collect();
        let mut to = writer.next_row_group().unwrap();
        let mut column = to.next_column().unwrap().unwrap();
        column.typed::<Int64Type>().write_batch(&ids, None, None).unwrap();
        column.close().unwrap();
        let mut column = to.next_column().unwrap().unwrap();
        column.typed::<ByteArrayType>().write_batch(&bytes("title", &ids), None, None).unwrap();
        column.close().unwrap();
        let mut column = to.next_column().unwrap().unwrap();
        column.typed::<ByteArrayType>().write_batch(&bytes("body", &present), Some(&levels), None).unwrap();
        column.close().unwrap();
        to.close().unwrap();
    }
    writer.close().unwrap();
}
