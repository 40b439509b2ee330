//! `sconce generate`, `chat`, `bench` and `plan` with a tiny language model.

mod common;

use common::{err, numbers, out, parse, sconce};
use sconce_testkit::{json, materialize};
use serde_json::{Value, json};
use std::io::Read;
use std::path::Path;
use std::process::{Command, Stdio};
use tempfile::TempDir;

const TEMPLATE: &str = "{% for m in messages %}{{ m.role }}: {{ m.content }}\n{% endfor %}assistant:";

/// A Llama that has words and a chat template, without what makes it an embedder.
fn model() -> TempDir {
    let dir = materialize("task-embed-llama");
    for name in ["modules.json", "config_sentence_transformers.json", "sentence_bert_config.json"] {
        std::fs::remove_file(dir.path().join(name)).unwrap();
    }
    edit(dir.path(), "tokenizer_config.json", |config| config["chat_template"] = TEMPLATE.into());
    dir
}

fn edit(dir: &Path, name: &str, change: impl FnOnce(&mut Value)) {
    let path = dir.join(name);
    let mut all = json(&path);
    change(&mut all);
    std::fs::write(&path, all.to_string()).unwrap();
}

fn args<'a>(dir: &'a TempDir, rest: &[&'a str]) -> Vec<&'a str> {
    let mut all = vec![rest[0], "-m", dir.path().to_str().unwrap(), "-d", "cpu"];
    all.extend(&rest[1..]);
    all
}

/// Answers of a call with --json.
fn results(dir: &TempDir, rest: &[&str]) -> Vec<Value> {
    let mut all = args(dir, rest);
    all.push("--json");
    parse(&out(&all, b""))["results"].as_array().unwrap().clone()
}

#[test]
fn prompts_run_together_give_what_each_gives_alone() {
    let dir = model();
    let prompts = ["the cat sat", "a", "on the mat, where it was warm and the day was long"];
    let together = results(&dir, &[&["generate", "--max-tokens", "9"][..], &prompts].concat());
    assert_eq!(together.len(), 3);
    for (i, prompt) in prompts.iter().enumerate() {
        assert_eq!(together[i]["index"], i);
        let answer = &together[i]["answers"][0];
        assert_eq!(answer["tokens"].as_array().unwrap().len(), 9, "{answer}");
        assert_eq!(
            (&answer["finish_reason"], &together[i]["usage"]["completion_tokens"]),
            (&json!("length"), &json!(9))
        );
        let alone = results(&dir, &["generate", "--max-tokens", "9", prompt]);
        assert_eq!(alone[0]["answers"], together[i]["answers"]);
        // As it comes, from standard input, and from a file, it is the same text.
        let text = answer["text"].as_str().unwrap().to_string() + "\n";
        let generate = args(&dir, &["generate", "--max-tokens", "9"]);
        assert_eq!(out(&generate, format!("{prompt}\n").as_bytes()), text);
        let lines = out(&[&generate[..], &["-f", "-"]].concat(), format!("{prompt}\n{prompt}\n").as_bytes());
        assert_eq!(lines, text.repeat(2));
        let echoed = out(&[&generate[..], &["--echo", prompt]].concat(), b"");
        assert!(echoed.contains(prompt) && echoed.ends_with(&text), "{echoed}");
    }
}

#[test]
fn a_bad_line_fails_alone_and_the_exit_code_says_so() {
    let dir = model();
    let lines = [
        r#"{"prompt": "the cat", "max_tokens": 3, "id": "first"}"#,
        r#"{"prompt": "the cat", "warmth": 3}"#,
        "",
        r#"{"messages": [{"role": "user", "content": "hi"}], "max_tokens": 5, "n": 2, "temperature": 1, "seed": 3}"#,
        "{",
        r#"{"prompt": "the cat", "max_tokens": 100000}"#,
        r#"{"prompt": "the cat", "logit_bias": {"9999": 1}}"#,
    ];
    let o = sconce(&args(&dir, &["generate", "--jsonl", "--format", "jsonl"]), lines.join("\n").as_bytes());
    assert_eq!(o.status.code(), Some(1));
    let (said, shown) = (String::from_utf8(o.stderr).unwrap(), String::from_utf8(o.stdout).unwrap());
    let all: Vec<Value> = shown.lines().map(parse).collect();
    assert_eq!(all.len(), 6, "{shown}");
    assert_eq!((&all[0]["id"], all[0]["answers"][0]["tokens"].as_array().unwrap().len()), (&json!("first"), 3));
    assert_eq!((all[2]["answers"].as_array().unwrap().len(), &all[2]["seed"]), (2, &json!(3)));
    assert_ne!(all[2]["answers"][0]["tokens"], all[2]["answers"][1]["tokens"]);
    for (i, why) in [
        (1, "stdin:2: unknown field `warmth`"),
        (3, "stdin:5: not a JSON object"),
        (4, "stdin:6: 100000 new tokens"),
        (5, "stdin:7: logit_bias names token 9999"),
    ] {
        let error = all[i]["error"].as_str().unwrap();
        assert!(error.starts_with(why) && said.contains(error), "{error}\n{said}");
        assert!(all[i].get("answers").is_none());
    }
    assert!(said.contains("4 of 6 prompts failed"), "{said}");
    // What no model could do is said before one is loaded.
    assert!(err(&["generate", "-m", "./absent", "--top-p", "2", "x"], b"").contains("top_p is 2"));
    assert!(err(&["generate", "-m", "./absent", "-f", "absent.txt"], b"").contains("absent.txt"));
}

#[test]
fn options_do_what_they_say() {
    let dir = model();
    let first = |rest: &[&str]| results(&dir, &[&["generate", "the cat"][..], rest].concat())[0]["answers"][0].clone();
    let forced = first(&["--logit-bias", "300=100", "--max-tokens", "4"]);
    assert_eq!(forced["tokens"], json!([300, 300, 300, 300]));
    // The stop text is what the second token adds.
    let word = first(&["--logit-bias", "300=100", "--max-tokens", "1"])["text"].as_str().unwrap().to_string();
    let stopped = first(&["--logit-bias", "300=100", "--stop", "never", "--stop", word.trim()]);
    assert_eq!((&stopped["finish_reason"], &stopped["stop"]), (&json!("stop"), &json!(word.trim())));
    assert!(!stopped["text"].as_str().unwrap().contains(word.trim()));
    // The model's own end, and beyond it.
    let ended = first(&["--logit-bias", "2=100", "--max-tokens", "4"]);
    assert_eq!((&ended["finish_reason"], &ended["tokens"], &ended["text"]), (&json!("stop"), &json!([]), &json!("")));
    let beyond = first(&["--logit-bias", "2=100", "--max-tokens", "4", "--ignore-eos"]);
    assert_eq!((&beyond["finish_reason"], &beyond["tokens"]), (&json!("length"), &json!([2, 2, 2, 2])));
    // The same seed, the same answer; no seed, another.
    let warm = ["--temperature", "1.5", "--max-tokens", "12"];
    let seeded = |seed: &str| first(&[&warm[..], &["--seed", seed]].concat())["tokens"].clone();
    assert_eq!(seeded("7"), seeded("7"));
    assert_ne!(seeded("7"), seeded("8"));
    assert_ne!(first(&warm)["tokens"], first(&warm)["tokens"]);
    let told = first(&["--max-tokens", "2", "--logprobs", "3"]);
    let logprobs = told["logprobs"].as_array().unwrap();
    assert_eq!(logprobs.len(), 2);
    for (pick, id) in logprobs.iter().zip(told["tokens"].as_array().unwrap()) {
        // The most likely token was taken.
        assert_eq!((&pick["id"], &pick["top"][0]["id"]), (id, id));
        assert_eq!((&pick["logprob"], pick["top"].as_array().unwrap().len()), (&pick["top"][0]["logprob"], 3));
        assert!(pick["logprob"].as_f64() < Some(0.0) && pick["token"].is_string());
    }
    assert!(told.get("logprobs").is_some() && forced.get("logprobs").is_none());
    let beyond = err(&args(&dir, &["generate", "--context", "8", "one two three four five six seven"]), b"");
    assert!(beyond.contains("the context is 8") && beyond.contains("--context"), "{beyond}");
}

#[test]
fn answers_have_the_form_they_must_have() {
    let dir = model();
    let schema = dir.path().join("schema.json");
    let wanted = json!({"type": "object", "properties": {"age": {"type": "integer", "minimum": 1, "maximum": 99}},
        "required": ["age"], "additionalProperties": false});
    std::fs::write(&schema, wanted.to_string()).unwrap();
    let form = format!("schema:{}", schema.display());
    let warm = ["--temperature", "1", "--seed", "5", "the cat"];
    for command in ["generate", "chat"] {
        let shown = out(&args(&dir, &[&[command, "--constrain", &form][..], &warm].concat()), b"");
        assert!((1..=99).contains(&parse(&shown)["age"].as_i64().unwrap()), "{shown}");
        let shown = out(&args(&dir, &[&[command, "--constrain", "regex:[ab]{3}"][..], &warm].concat()), b"");
        assert!(shown.len() == 4 && shown.trim_end().bytes().all(|b| b"ab".contains(&b)), "{shown}");
    }
    // A line goes before the flag, and one that cannot be followed fails alone.
    let lines = [
        json!({"prompt": "the cat", "n": 2}),
        json!({"prompt": "the cat", "constrain": {"regex": "[cd]{3}"}}),
        json!({"prompt": "the cat", "constrain": {"regex": "("}}),
        json!({"prompt": "the cat", "constrain": {"schema": {"type": "integer", "minimum": 3, "maximum": 2}}}),
        json!({"prompt": "the cat", "constrain": form}),
    ];
    let input = lines.map(|line| line.to_string()).join("\n");
    let generate = ["generate", "--jsonl", "--format", "jsonl", "--temperature", "1", "--constrain", "regex:[ab]{3}"];
    let o = sconce(&args(&dir, &generate), input.as_bytes());
    assert_eq!(o.status.code(), Some(1));
    let all: Vec<Value> = String::from_utf8(o.stdout).unwrap().lines().map(parse).collect();
    for (i, answer, letters) in [(0, 0, b"ab"), (0, 1, b"ab"), (1, 0, b"cd")] {
        let answer = &all[i]["answers"][answer];
        let text = answer["text"].as_str().unwrap();
        assert!(text.len() == 3 && text.bytes().all(|b| letters.contains(&b)), "{text}");
        assert_eq!(answer["finish_reason"], "stop");
    }
    for (i, why) in [(2, "stdin:3: the regular expression"), (3, "stdin:4: the JSON schema"), (4, "stdin:5: ")] {
        assert!(all[i]["error"].as_str().unwrap().starts_with(why), "{}", all[i]);
    }
    // Said before a model is loaded.
    for (form, why) in [("yaml", "schema:FILE"), ("schema:absent.json", "absent.json: ")] {
        let o = sconce(&["generate", "-m", "./absent", "--constrain", form, "x"], b"");
        assert!(o.status.code() == Some(2) && String::from_utf8_lossy(&o.stderr).contains(why), "{o:?}");
    }
}

#[test]
fn a_chat_answers_once_and_tells_what_it_cost() {
    let dir = model();
    let chat = args(&dir, &["chat", "--max-tokens", "6", "--system", "be brief"]);
    let all = parse(&out(&[&chat[..], &["--json", "hi"]].concat(), b""));
    assert_eq!((&all["message"]["role"], &all["usage"]["completion_tokens"]), (&json!("assistant"), &json!(6)));
    assert_eq!(all["tokens"].as_array().unwrap().len(), 6);
    let text = all["message"]["content"].as_str().unwrap().to_string() + "\n";
    assert_eq!(out(&[&chat[..], &["hi"]].concat(), b""), text);
    assert_eq!(out(&chat, b"hi\n"), text, "standard input is one message");
    // The template's text, as `generate` makes it of the same messages.
    let line = json!({"messages": [{"role": "system", "content": "be brief"}, {"role": "user", "content": "hi"}], "max_tokens": 6});
    let same = parse(&out(&args(&dir, &["generate", "--jsonl", "--format", "jsonl"]), line.to_string().as_bytes()));
    assert_eq!((&same["answers"][0]["text"], &same["usage"]), (&all["message"]["content"], &all["usage"]));
    let o = sconce(&[&chat[..], &["hi"]].concat(), b"");
    let said = String::from_utf8(o.stderr).unwrap();
    assert!(said.contains("answer of 6 at ") && said.contains("cut at its longest"), "{said}");
    assert!(sconce(&[&chat[..], &["-q", "hi"]].concat(), b"").stderr.is_empty());
    // More than there is room for is as much as there is.
    let full =
        parse(&out(&args(&dir, &["chat", "--json", "--max-tokens", "99999", "hi", "--logit-bias", "300=100"]), b""));
    assert_eq!(full["usage"]["total_tokens"], 128);
    let o = sconce(&args(&dir, &["chat", "--logit-bias", "300=100", "hi"]), b"");
    assert!(String::from_utf8_lossy(&o.stderr).contains("the context of 128 tokens is full"));
    let long = "cat ".repeat(200);
    let e = err(&args(&dir, &["chat", &long]), b"");
    assert!(e.contains("the context holds 128") && e.contains("/clear"), "{e}");
    assert!(err(&args(&dir, &["chat"]), b" \n").contains("no message"));
    edit(dir.path(), "tokenizer_config.json", |config| drop(config.as_object_mut().unwrap().remove("chat_template")));
    assert!(err(&args(&dir, &["chat", "hi"]), b"").contains("no chat template"));
}

#[test]
fn bench_reads_and_writes() {
    let dir = model();
    let bench = ["bench", "--prompt-tokens", "16", "--gen-tokens", "4", "--reps", "2"];
    let all = parse(&out(&args(&dir, &[&bench[..], &["--json"]].concat()), b""));
    let lines = all["lines"].as_array().unwrap();
    assert_eq!(lines.iter().map(|l| &l["test"]).collect::<Vec<_>>(), ["pp16", "tg4"]);
    for line in lines {
        let rates = numbers(&line["samples"]);
        assert!(rates.len() == 2 && rates.iter().all(|rate| *rate > 0.0), "{line}");
    }
    assert!(lines[0]["gigaflops"].as_f64() > Some(0.0) && lines[0]["gigabytes_per_second"].is_null());
    assert!(lines[1]["gigaflops"].is_null() && lines[1]["gigabytes_per_second"].as_f64() > Some(0.0));
    let (parameters, active) = (all["parameters"].as_u64().unwrap(), all["active_parameters"].as_u64().unwrap());
    assert_eq!(parameters - active, 559 * 32, "the table of words is only looked up");
    let few = ["bench", "--prompt-tokens", "0", "--gen-tokens", "4", "--reps", "2", "--parallel", "3"];
    let table = out(&args(&dir, &few), b"");
    let rows: Vec<&str> = table.lines().collect();
    assert!(rows.len() == 3 && rows[0].starts_with("| model ") && rows[1].starts_with("| ---"), "{table}");
    assert!(rows[2].contains("tg4 × 3") && rows[2].contains(" ± "), "{table}");
    assert!(err(&args(&dir, &["bench", "--prompt-tokens", "0", "--gen-tokens", "0"]), b"").contains("nothing to time"));
}

#[test]
fn a_plan_tells_what_the_cache_takes() {
    let dir = model();
    let path = dir.path().to_str().unwrap();
    let plan = |rest: &[&str]| parse(&out(&[&["plan", path, "-d", "cpu", "--json"][..], rest].concat(), b""));
    let whole = plan(&[]);
    assert_eq!((&whole["task"], &whole["max_tokens"], &whole["runs"]), (&json!("generate"), &json!(128), &json!(true)));
    // Two layers, keys and values, two heads of eight numbers in four bytes.
    assert_eq!(whole["cache_bytes_per_token"], 2 * 2 * 2 * 8 * 4);
    assert_eq!(whole["cache_bytes"], 128 * 256);
    assert_eq!(plan(&["--context", "64"])["cache_bytes"], 64 * 256);
    assert_eq!(plan(&["--kv-dtype", "f16"])["cache_bytes"], 128 * 128);
    assert_eq!(plan(&["--task", "embed"])["cache_bytes"], 0);
    let shown = out(&["plan", path, "-d", "cpu"], b"");
    assert!(shown.contains("cache       32.00 KiB (128 tokens at 256 B)"), "{shown}");
}

#[test]
fn weights_in_blocks_are_for_language_models() {
    let dir = model();
    let path = dir.path().to_str().unwrap();
    let weights = |dtype: &str| {
        parse(&out(&["plan", path, "-d", "cpu", "--json", "--dtype", dtype], b""))["weights_bytes"].as_u64()
    };
    assert!(weights("q8_0") < weights("bf16") && weights("bf16") < weights("f32"));
    let answer = &results(&dir, &["generate", "--dtype", "q8_0", "--max-tokens", "2", "the cat"])[0]["answers"][0];
    assert_eq!(answer["finish_reason"], "length");
    let e = err(&["embed", "-m", path, "--dtype", "q4_0", "x"], b"");
    assert!(e.contains("--dtype q4_0 is for language models"), "{e}");
    assert!(err(&["plan", path, "--task", "embed", "--dtype", "q4_0"], b"").contains("is for language models"));
    for name in ["q9_9", "iq1_s"] {
        let o = sconce(&["generate", "-m", path, "--dtype", name, "x"], b"");
        assert_eq!(o.status.code(), Some(2));
        assert!(String::from_utf8_lossy(&o.stderr).contains("for language models q4_0, "), "{o:?}");
    }
}

#[test]
fn ctrl_c_ends_the_answer_not_the_output() {
    let dir = model();
    edit(dir.path(), "config.json", |config| config["max_position_embeddings"] = json!(8192));
    let cache = tempfile::tempdir().unwrap();
    let mut child = Command::new(env!("CARGO_BIN_EXE_sconce"))
        .args(args(&dir, &["generate", "--ignore-eos", "--logit-bias", "300=100", "the cat"]))
        .env("SCONCE_CACHE", cache.path())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .unwrap();
    let mut shown = child.stdout.take().unwrap();
    // The first of it is here, so the answer is under way.
    let mut first = [0; 1];
    shown.read_exact(&mut first).unwrap();
    assert!(Command::new("kill").args(["-INT", &child.id().to_string()]).status().unwrap().success());
    let mut rest = String::new();
    shown.read_to_string(&mut rest).unwrap();
    let o = child.wait_with_output().unwrap();
    let said = String::from_utf8_lossy(&o.stderr);
    assert!(o.status.success() && said.contains(", interrupted"), "{said}");
    assert!(rest.ends_with('\n'));
}
