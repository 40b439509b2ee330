//! Parsers in a child process, with friendly and hostile files. The child is this program, started
//! with the argument `parse-files`.

mod html;
mod pdf;

use std::fs;
use std::io::Write;
use std::path::PathBuf;
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

use sconce_index::read::{FileRef, Format, Limits, Parser, ParserCommand, ReadError, Reading, worker};
use sconce_index::{Document, Kind, Value};
use sconce_testkit::{Suite, wait_until};
use tempfile::TempDir;

fn main() {
    if std::env::args().nth(1).as_deref() == Some("parse-files") {
        worker::main().expect("the parser answers");
        return;
    }
    Suite::new(vec![("cpu", true)])
        .test("html_becomes_text", html::html_becomes_text)
        .test("html_of_other_encodings", html::html_of_other_encodings)
        .test("deep_html_keeps_its_text", html::deep_html_keeps_its_text)
        .test("left_out_end_tags_are_supplied", html::left_out_end_tags_are_supplied)
        .test("html_that_breaks_rules_keeps_its_text", html::html_that_breaks_rules_keeps_its_text)
        .test("pdf_has_pages", pdf::pdf_has_pages)
        .test("csv_has_typed_columns", csv_has_typed_columns)
        .test("json_lines_have_texts_and_metadata", json_lines_have_texts_and_metadata)
        .test("parquet_has_rows", parquet_has_rows)
        .test("plain_text_needs_no_child", plain_text_needs_no_child)
        .test("rows_are_limited", rows_are_limited)
        .test("a_row_of_a_gigabyte_is_refused", a_row_of_a_gigabyte_is_refused)
        .test("a_looping_pdf_reaches_the_time_limit", pdf::a_looping_pdf_reaches_the_time_limit)
        .test("a_pdf_that_contains_itself_is_an_error", pdf::a_pdf_that_contains_itself_is_an_error)
        .test("a_decompression_bomb_reaches_the_memory_limit", pdf::a_decompression_bomb_reaches_the_memory_limit)
        .test("damaged_pdfs_are_errors", pdf::damaged_pdfs_are_errors)
        .test("a_child_dies_with_its_parent", a_child_dies_with_its_parent)
        .test("a_program_that_is_no_parser_is_an_error", a_program_that_is_no_parser_is_an_error)
        .test("files_are_parsed_side_by_side", files_are_parsed_side_by_side)
        .test("a_name_need_not_be_unicode", a_name_need_not_be_unicode)
        .run()
}

fn parser() -> Parser {
    Parser::new(ParserCommand::this_program().unwrap())
}

fn file(name: &str, content: impl AsRef<[u8]>) -> (TempDir, PathBuf) {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join(name);
    fs::write(&path, content).unwrap();
    (dir, path)
}

fn parse_with(name: &str, content: impl AsRef<[u8]>, limits: &Limits) -> Result<Reading, ReadError> {
    let (_dir, path) = file(name, content);
    parser().read_all(FileRef::of(&path), Format::by_name(&path).unwrap(), limits)
}

fn parse(name: &str, content: impl AsRef<[u8]>) -> Result<Reading, ReadError> {
    parse_with(name, content, &Limits::default())
}

fn one(name: &str, content: impl AsRef<[u8]>) -> Document {
    let reading = parse(name, content).unwrap();
    assert_eq!((reading.documents.len(), &reading.notes), (1, &Vec::new()));
    reading.documents.into_iter().next().unwrap()
}

fn text(value: &str) -> Value {
    Value::Text(value.into())
}

fn csv_has_typed_columns() {
    let table = "name;age;zip;member;score\nAnna;34;01234;true;1.5\n\"Li; Wei\";28;99999;false;2\n;;;;\n";
    let reading = parse("a.csv", table).unwrap();
    let [anna, wei] = &reading.documents[..] else { panic!("{reading:?}") };
    assert_eq!(anna.text, "name: Anna\nage: 34\nzip: 01234\nmember: true\nscore: 1.5");
    assert_eq!((anna.row, anna.kind), (Some(1), Kind::Table));
    assert_eq!(anna.metadata["age"], Value::Integer(34));
    assert_eq!(anna.metadata["zip"], text("01234"));
    assert_eq!(anna.metadata["member"], Value::Bool(true));
    assert_eq!(wei.metadata["name"], text("Li; Wei"));
    // The column has 1.5, so 2 is no whole number here.
    assert_eq!(wei.metadata["score"], Value::Float(2.0));
    let tabs = parse("a.tsv", "a\ta\t\n1\t2\t3\n").unwrap();
    assert_eq!(tabs.documents[0].text, "a: 1\na (2): 2\ncolumn 3: 3");
}

fn json_lines_have_texts_and_metadata() {
    let lines = "{\"text\": \"Some text\", \"title\": \"T\", \"year\": 2020, \"tags\": [\"a\"]}\n\nnot json\n\
        {\"a\": 1.0, \"b\": null, \"c\": {\"d\": 2}, \"e\": 18446744073709551615}\n\"only text\"\n17\n";
    let reading = parse("a.jsonl", lines).unwrap();
    let [first, second, third] = &reading.documents[..] else { panic!("{reading:?}") };
    assert_eq!((first.text.as_str(), first.title.as_deref(), first.row), ("Some text", Some("T"), Some(1)));
    assert_eq!(first.metadata["year"], Value::Integer(2020));
    assert!(!first.metadata.contains_key("text") && !first.metadata.contains_key("tags"));
    assert!(second.text.starts_with("a: 1\nc: {\"d\":2}\ne: 1844674407370955"), "{}", second.text);
    assert_eq!((second.row, &second.metadata["a"]), (Some(4), &Value::Float(1.0)));
    assert_eq!(third.text, "only text");
    assert!(
        matches!(&reading.notes[..], [note] if note.starts_with("2 rows") && note.contains("line 3")),
        "{reading:?}"
    );
    let nested = format!("{}{}", "[".repeat(100_000), "]".repeat(100_000));
    assert!(matches!(parse("a.jsonl", nested), Err(ReadError::Malformed(_))));
}

fn parquet_has_rows() {
    use parquet::data_type::{ByteArray, ByteArrayType, Int64Type};
    use parquet::file::writer::SerializedFileWriter;
    use parquet::schema::parser::parse_message_type;
    let schema = "message rows { REQUIRED BYTE_ARRAY body (UTF8); OPTIONAL INT64 year; }";
    let mut content = Vec::new();
    let schema = std::sync::Arc::new(parse_message_type(schema).unwrap());
    let mut writer = SerializedFileWriter::new(&mut content, schema, Default::default()).unwrap();
    let mut group = writer.next_row_group().unwrap();
    let mut column = group.next_column().unwrap().unwrap();
    let texts = [ByteArray::from("first"), ByteArray::from("second")];
    column.typed::<ByteArrayType>().write_batch(&texts, None, None).unwrap();
    column.close().unwrap();
    let mut column = group.next_column().unwrap().unwrap();
    column.typed::<Int64Type>().write_batch(&[1999], Some(&[0, 1]), None).unwrap();
    column.close().unwrap();
    group.close().unwrap();
    writer.close().unwrap();
    let reading = parse("a.parquet", &content).unwrap();
    let [first, second] = &reading.documents[..] else { panic!("{reading:?}") };
    assert_eq!((first.text.as_str(), &first.metadata["year"]), ("first", &Value::Null));
    assert_eq!(
        (second.text.as_str(), &second.metadata["year"], second.row),
        ("second", &Value::Integer(1999), Some(2))
    );
    for length in [4, 20, content.len() / 2, content.len() - 5] {
        assert!(parse("a.parquet", &content[..length]).is_err(), "{length}");
    }
}

fn plain_text_needs_no_child() {
    let (_dir, path) = file("a.md", "# A");
    let none = Parser::new(ParserCommand { program: "/nonexistent".into(), arguments: Vec::new() });
    let reading = none.read_all(FileRef::of(&path), Format::Markdown, &Limits::default()).unwrap();
    assert_eq!(reading.documents[0].title.as_deref(), Some("A"));
}

fn rows_are_limited() {
    let table: String = std::iter::once("a\n".to_string()).chain((0..5000).map(|i| format!("value {i}\n"))).collect();
    let all = parse("a.csv", &table).unwrap();
    assert_eq!((all.documents.len(), all.notes.len()), (5000, 0));
    let some = parse_with("a.csv", &table, &Limits { rows: 1200, ..Limits::default() }).unwrap();
    assert_eq!(some.documents.len(), 1200);
    assert_eq!(some.notes, ["only the first 1200 rows were read"]);
    let some = parse_with("a.csv", &table, &Limits { text_bytes: 1000, ..Limits::default() }).unwrap();
    let bytes: usize = some.documents.iter().map(|d| d.text.len()).sum();
    assert!((900..=1000).contains(&bytes) && some.notes.len() == 1, "{bytes}");
}

/// The files have a hole of a gigabyte, and take no space on the disk.
fn a_row_of_a_gigabyte_is_refused() {
    for (name, start) in [("a.csv", "a,b\n1,2\n\""), ("a.jsonl", "{\"text\": \"x\"}\n\""), ("a.html", "<p>")] {
        let (_dir, path) = file(name, format!("{start}{}", "x".repeat(10_000)));
        fs::OpenOptions::new().write(true).open(&path).unwrap().set_len(1 << 30).unwrap();
        let began = Instant::now();
        let error =
            parser().read_all(FileRef::of(&path), Format::by_name(&path).unwrap(), &Limits::default()).unwrap_err();
        match &error {
            ReadError::Malformed(why) => assert!(why.contains("longer than 16777216 bytes"), "{name}: {why}"),
            ReadError::TooLarge { size, .. } => assert_eq!((name, *size), ("a.html", 1 << 30)),
            other => panic!("{name}: {other}"),
        }
        assert!(began.elapsed() < Duration::from_secs(10), "{name}");
    }
}

fn a_child_dies_with_its_parent() {
    let (dir, _) = file("a.pdf", pdf::looping_pdf());
    let request =
        serde_json::json!({ "root": dir.path(), "relative": "a.pdf", "format": "pdf", "limits": Limits::default() })
            .to_string();
    let mut child = Command::new(std::env::current_exe().unwrap())
        .arg("parse-files")
        .stdin(Stdio::piped())
        .stdout(Stdio::null())
        .spawn()
        .unwrap();
    let mut stdin = child.stdin.take().unwrap();
    stdin.write_all(&u32::try_from(request.len()).unwrap().to_le_bytes()).unwrap();
    stdin.write_all(request.as_bytes()).unwrap();
    std::thread::sleep(Duration::from_millis(300));
    assert!(child.try_wait().unwrap().is_none(), "the child ended before its parent");
    drop(stdin);
    wait_until("the child ends", || child.try_wait().unwrap().is_some());
}

fn a_program_that_is_no_parser_is_an_error() {
    let (_dir, path) = file("a.html", "<p>");
    let read = |program: &str, arguments: &[&str]| {
        let arguments = arguments.iter().map(Into::into).collect();
        let parser = Parser::new(ParserCommand { program: program.into(), arguments });
        parser.read_all(FileRef::of(&path), Format::Html, &Limits { seconds: 2, ..Limits::default() }).unwrap_err()
    };
    assert!(
        matches!(read("/nonexistent/program", &[]), ReadError::Process(why) if why.contains("/nonexistent/program"))
    );
    if cfg!(unix) {
        assert!(matches!(
            read("/bin/sh", &["-c", "echo 'out of luck' >&2; cat > /dev/null; exit 3"]),
            ReadError::Time(2)
        ));
        let error = read("/bin/sh", &["-c", "read -r line; echo 'out of luck' >&2; exit 3"]);
        let is_reported = matches!(&error, ReadError::Crashed(_) | ReadError::Process(_) | ReadError::Time(_));
        assert!(is_reported, "{error:?}");
        assert!(matches!(read("/bin/sh", &["-c", "yes"]), ReadError::Process(_)));
    }
}

fn files_are_parsed_side_by_side() {
    let parser = parser();
    std::thread::scope(|scope| {
        for thread in 0..4 {
            let parser = &parser;
            scope.spawn(move || {
                for i in 0..50 {
                    let (_dir, path) = file("a.html", format!("<p>{thread} {i}"));
                    let reading = parser.read_all(FileRef::of(&path), Format::Html, &Limits::default()).unwrap();
                    assert_eq!(reading.documents[0].text, format!("{thread} {i}"));
                }
            });
        }
    });
}

fn a_name_need_not_be_unicode() {
    #[cfg(target_os = "linux")]
    {
        use std::os::unix::ffi::OsStrExt;
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join(std::ffi::OsStr::from_bytes(b"a\xff.html"));
        fs::write(&path, "<p>x").unwrap();
        assert_eq!(
            parser().read_all(FileRef::of(&path), Format::Html, &Limits::default()).unwrap().documents[0].text,
            "x"
        );
    }
}
