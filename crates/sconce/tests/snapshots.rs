//! Snapshots of help, plans and errors. After a change, `cargo insta review`, or
//! `INSTA_UPDATE=always cargo test -p sconce --test snapshots` and a look at the diff.

#[allow(dead_code, reason = "other tests use the rest")]
mod common;

use common::{out, sconce};
use insta::assert_snapshot;
use sconce_testkit::{golden, materialize};

/// Replaces the command's home, a new temporary directory each time.
fn without_home(text: &str) -> String {
    let start = std::env::temp_dir().join(".tmp").display().to_string();
    let mut parts = text.split(&start);
    let first = parts.next().unwrap_or_default().to_owned();
    parts.fold(first, |all, part| all + "HOME" + part.trim_start_matches(|c: char| c.is_ascii_alphanumeric()))
}

/// What a command prints, with paths and free memory replaced.
fn command_output(args: &[&str], replaced: &[(&str, &str)]) -> String {
    let output = sconce(args, b"");
    let text = [output.stdout, output.stderr].map(|bytes| String::from_utf8(bytes).unwrap()).join("");
    let text = replaced.iter().fold(text, |text, (from, to)| text.replace(from, to));
    let text = without_home(&text);
    let lines = text.lines().map(|line| match line.split_once(" of ") {
        Some((fits, _)) if line.ends_with(" free") => format!("{fits} of FREE free\n"),
        _ => format!("{}\n", line.trim_end()),
    });
    lines.collect()
}

#[test]
fn help_matches_snapshots() {
    let all = out(&["--help"], b"");
    assert_snapshot!("help", all);
    let commands = all.lines().skip_while(|line| *line != "Commands:").skip(1).take_while(|line| !line.is_empty());
    let names = commands.filter(|line| !line.starts_with("   ")).filter_map(|line| line.split_whitespace().next());
    let names: Vec<&str> = names.filter(|name| *name != "help").collect();
    assert!(names.len() > 15, "{names:?}");
    for name in names {
        assert_snapshot!(format!("help_{name}"), command_output(&[name, "--help"], &[]));
    }
    for name in ["serve", "status", "start", "stop", "drain"] {
        assert_snapshot!(format!("help_pool_{name}"), out(&["pool", name, "--help"], b""));
    }
}

#[test]
fn plans_match_snapshots() {
    let embedder = golden("st-cls-dense");
    let (llama, t5) = (materialize("llama-2"), materialize("t5-whole"));
    let plan = |dir: &std::path::Path, rest: &[&str]| {
        let dir = dir.to_str().unwrap();
        command_output(&[&["plan", dir, "--isa", "scalar"], rest].concat(), &[(dir, "DIR")])
    };
    assert_snapshot!("plan_embedder", plan(&embedder, &["-d", "cpu"]));
    assert_snapshot!("plan_embedder_auto", plan(&embedder, &["-d", "cpu", "--dtype", "auto"]));
    assert_snapshot!("plan_embedder_composed", plan(&embedder, &["-d", "cpu", "--rung", "composed"]));
    assert_snapshot!("plan_llm", plan(llama.path(), &["-d", "cpu"]));
    assert_snapshot!("plan_seq2seq", plan(t5.path(), &["-d", "cpu"]));
}

#[test]
fn errors_match_snapshots() {
    let embedder = golden("st-cls-dense");
    let dir = embedder.to_str().unwrap();
    let output = |args: &[&str]| command_output(args, &[(dir, "DIR")]);
    assert_snapshot!("error_no_such_model", output(&["embed", "-m", "./absent", "x"]));
    assert_snapshot!("error_offline", output(&["embed", "-m", "org/absent", "x"]));
    assert_snapshot!("error_wrong_task", output(&["rerank", "-m", dir, "-d", "cpu", "--query", "a", "b"]));
    assert_snapshot!("error_device_syntax", output(&["embed", "-m", dir, "-d", "gpu", "x"]));
    assert_snapshot!("error_dtype", output(&["embed", "-m", dir, "--dtype", "q99", "x"]));
    assert_snapshot!("error_no_text", output(&["embed", "-m", dir, "-f", "absent.txt"]));
    assert_snapshot!("error_one_text", output(&["similarity", "-m", dir, "alone"]));
    assert_snapshot!(
        "error_batch_tokens",
        output(&["embed", "-m", dir, "-d", "cpu", "--batch-tokens", "9000000000", "x"])
    );
    assert_snapshot!("error_unknown_command", output(&["embedd", "x"]));
}
