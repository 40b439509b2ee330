//! `sconce generate`, `chat`, `bench` and `plan` with a tiny language model and a tiny T5.

mod common;

use common::{err, numbers, out, parse, sconce};
use sconce_testkit::{Arrays, golden, json, materialize, plain_words};
use serde_json::{Value, json};
use std::io::Read;
use std::path::Path;
use std::process::{Command, Stdio};
use tempfile::TempDir;

const TEMPLATE: &str = "{% for m in messages %}{{ m.role }}: {{ m.content }}\n{% endfor %}assistant:";

/// A Llama with a tokenizer and a chat template, without the files that make it an embedder.
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

/// Results of a call with --json.
fn results(dir: &TempDir, rest: &[&str]) -> Vec<Value> {
    let mut all = args(dir, rest);
    all.push("--json");
    parse(&out(&all, b""))["results"].as_array().unwrap().clone()
}

#[test]
fn batched_prompts_give_same_answers_as_single_prompts() {
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
        // The text is the same streamed, from standard input, and from a file.
        let text = answer["text"].as_str().unwrap().to_string() + "\n";
        let generate = args(&dir, &["generate", "--max-tokens", "9"]);
        assert_eq!(out(&generate, format!("{prompt}\n").as_bytes()), text);
        let lines = out(&[&generate[..], &["-f", "-"]].concat(), format!("{prompt}\n{prompt}\n").as_bytes());
        assert_eq!(lines, text.repeat(2));
        let echoed = out(&[&generate[..], &["--echo", prompt]].concat(), b"");
        assert_eq!(echoed, format!("{prompt}{text}"));
    }
}

#[test]
fn bad_jsonl_line_fails_alone_and_sets_exit_code() {
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
    let (stderr, stdout) = (String::from_utf8(o.stderr).unwrap(), String::from_utf8(o.stdout).unwrap());
    let all: Vec<Value> = stdout.lines().map(parse).collect();
    assert_eq!(all.len(), 6, "{stdout}");
    assert_eq!((&all[0]["id"], all[0]["answers"][0]["tokens"].as_array().unwrap().len()), (&json!("first"), 3));
    assert_eq!((all[2]["answers"].as_array().unwrap().len(), &all[2]["seed"]), (2, &json!(3)));
    assert_ne!(all[2]["answers"][0]["tokens"], all[2]["answers"][1]["tokens"]);
    for (i, why) in [
        (1, "stdin:2: unknown field `warmth`"),
        (3, "stdin:5: not a JSON object"),
        (4, "stdin:6: max_tokens is 100000"),
        (5, "stdin:7: logit_bias names token 9999"),
    ] {
        let error = all[i]["error"].as_str().unwrap();
        assert!(error.starts_with(why) && stderr.contains(error), "{error}\n{stderr}");
        assert!(all[i].get("answers").is_none());
    }
    assert!(stderr.contains("4 of 6 prompts failed"), "{stderr}");
    // Values that no model accepts are refused before one is loaded.
    assert!(err(&["generate", "-m", "./absent", "--top-p", "2", "x"], b"").contains("top_p is 2"));
    assert!(err(&["generate", "-m", "./absent", "-f", "absent.txt"], b"").contains("absent.txt"));
}

#[test]
fn generate_options_control_sampling_stops_and_logprobs() {
    let dir = model();
    let first = |rest: &[&str]| results(&dir, &[&["generate", "the cat"][..], rest].concat())[0]["answers"][0].clone();
    let forced = first(&["--logit-bias", "300=100", "--max-tokens", "4"]);
    assert_eq!(forced["tokens"], json!([300, 300, 300, 300]));
    // The stop string is the text that the second token adds.
    let word = first(&["--logit-bias", "300=100", "--max-tokens", "1"])["text"].as_str().unwrap().to_string();
    let stopped = first(&["--logit-bias", "300=100", "--stop", "never", "--stop", word.trim()]);
    assert_eq!((&stopped["finish_reason"], &stopped["stop"]), (&json!("stop"), &json!(word.trim())));
    assert!(!stopped["text"].as_str().unwrap().contains(word.trim()));
    // A completion begins with the space after its prompt; a chat answer does not.
    let word = ["--logit-bias", "350=100", "--max-tokens", "1"];
    assert_eq!(first(&word)["text"], " query,");
    assert_eq!(first(&[&word[..], &["--echo"]].concat())["text"], "the cat query,");
    assert_eq!(first(&[&word[..], &["--stop", " query"]].concat())["stop"], " query");
    let chat = json!({"messages": [{"role": "user", "content": "hi"}], "max_tokens": 1, "logit_bias": {"350": 100}});
    let chat = parse(&out(&args(&dir, &["generate", "--jsonl", "--format", "jsonl"]), chat.to_string().as_bytes()));
    assert_eq!(chat["answers"][0]["text"], "query,");
    // The model's end-of-sequence token, and generation beyond it.
    let ended = first(&["--logit-bias", "2=100", "--max-tokens", "4"]);
    assert_eq!((&ended["finish_reason"], &ended["tokens"], &ended["text"]), (&json!("stop"), &json!([]), &json!("")));
    let beyond = first(&["--logit-bias", "2=100", "--max-tokens", "4", "--ignore-eos"]);
    assert_eq!((&beyond["finish_reason"], &beyond["tokens"]), (&json!("length"), &json!([2, 2, 2, 2])));
    // The same seed gives the same answer; without a seed it differs.
    let sampled = ["--temperature", "1.5", "--max-tokens", "12"];
    let seeded = |seed: &str| first(&[&sampled[..], &["--seed", seed]].concat())["tokens"].clone();
    assert_eq!(seeded("7"), seeded("7"));
    assert_ne!(seeded("7"), seeded("8"));
    assert_ne!(first(&sampled)["tokens"], first(&sampled)["tokens"]);
    let with_logprobs = first(&["--max-tokens", "2", "--logprobs", "3"]);
    let logprobs = with_logprobs["logprobs"].as_array().unwrap();
    assert_eq!(logprobs.len(), 2);
    for (pick, id) in logprobs.iter().zip(with_logprobs["tokens"].as_array().unwrap()) {
        // The most likely token was sampled.
        assert_eq!((&pick["id"], &pick["top"][0]["id"]), (id, id));
        assert_eq!((&pick["logprob"], pick["top"].as_array().unwrap().len()), (&pick["top"][0]["logprob"], 3));
        assert!(pick["logprob"].as_f64() < Some(0.0) && pick["token"].is_string());
    }
    let named = first(&["--logit-bias", "350=100", "--max-tokens", "1", "--logprobs", "0"])["logprobs"][0].clone();
    assert_eq!((&named["token"], &named["bytes"]), (&json!(" query,"), &json!(b" query,")));
    assert!(with_logprobs.get("logprobs").is_some() && forced.get("logprobs").is_none());
    let beyond = err(&args(&dir, &["generate", "--context", "8", "one two three four five six seven"]), b"");
    assert!(beyond.contains("the context is 8") && beyond.contains("--context"), "{beyond}");
}

#[test]
fn constrained_answers_match_schema_and_regex() {
    let dir = model();
    let schema = dir.path().join("schema.json");
    let object_schema = json!({"type": "object", "properties": {"age": {"type": "integer", "minimum": 1, "maximum": 99}},
        "required": ["age"], "additionalProperties": false});
    std::fs::write(&schema, object_schema.to_string()).unwrap();
    let constraint = format!("schema:{}", schema.display());
    let sampled = ["--temperature", "1", "--seed", "5", "the cat"];
    for command in ["generate", "chat"] {
        let stdout = out(&args(&dir, &[&[command, "--constrain", &constraint][..], &sampled].concat()), b"");
        assert!((1..=99).contains(&parse(&stdout)["age"].as_i64().unwrap()), "{stdout}");
        let stdout = out(&args(&dir, &[&[command, "--constrain", "regex:[ab]{3}"][..], &sampled].concat()), b"");
        assert!(stdout.len() == 4 && stdout.trim_end().bytes().all(|b| b"ab".contains(&b)), "{stdout}");
    }
    // A line overrides the flag, and a line that fails does not stop the others.
    let lines = [
        json!({"prompt": "the cat", "n": 2}),
        json!({"prompt": "the cat", "constrain": {"regex": "[cd]{3}"}}),
        json!({"prompt": "the cat", "constrain": {"regex": "("}}),
        json!({"prompt": "the cat", "constrain": {"schema": {"type": "integer", "minimum": 3, "maximum": 2}}}),
        json!({"prompt": "the cat", "constrain": constraint}),
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
    // Refused before a model is loaded.
    for (constraint, why) in [("yaml", "schema:FILE"), ("schema:absent.json", "absent.json: ")] {
        let o = sconce(&["generate", "-m", "./absent", "--constrain", constraint, "x"], b"");
        assert!(o.status.code() == Some(2) && String::from_utf8_lossy(&o.stderr).contains(why), "{o:?}");
    }
}

#[test]
fn chat_answers_once_and_reports_usage() {
    let dir = model();
    let chat = args(&dir, &["chat", "--max-tokens", "6", "--system", "be brief"]);
    let all = parse(&out(&[&chat[..], &["--json", "hi"]].concat(), b""));
    assert_eq!((&all["message"]["role"], &all["usage"]["completion_tokens"]), (&json!("assistant"), &json!(6)));
    assert_eq!(all["tokens"].as_array().unwrap().len(), 6);
    let text = all["message"]["content"].as_str().unwrap().to_string() + "\n";
    assert_eq!(out(&[&chat[..], &["hi"]].concat(), b""), text);
    assert_eq!(out(&chat, b"hi\n"), text, "standard input is one message");
    // The rendered template, as `generate` renders the same messages.
    let line = json!({"messages": [{"role": "system", "content": "be brief"}, {"role": "user", "content": "hi"}], "max_tokens": 6});
    let same = parse(&out(&args(&dir, &["generate", "--jsonl", "--format", "jsonl"]), line.to_string().as_bytes()));
    assert_eq!((&same["answers"][0]["text"], &same["usage"]), (&all["message"]["content"], &all["usage"]));
    let o = sconce(&[&chat[..], &["hi"]].concat(), b"");
    let stderr = String::from_utf8(o.stderr).unwrap();
    assert!(stderr.contains("answer of 6 at ") && stderr.contains("cut at the token limit"), "{stderr}");
    assert!(sconce(&[&chat[..], &["-q", "hi"]].concat(), b"").stderr.is_empty());
    // More tokens than fit are limited to those that fit.
    let full =
        parse(&out(&args(&dir, &["chat", "--json", "--max-tokens", "99999", "hi", "--logit-bias", "300=100"]), b""));
    assert_eq!(full["usage"]["total_tokens"], 128);
    let o = sconce(&args(&dir, &["chat", "--logit-bias", "300=100", "hi"]), b"");
    assert!(String::from_utf8_lossy(&o.stderr).contains("the context of 128 tokens is full"));
    let long = "cat ".repeat(200);
    let e = err(&args(&dir, &["chat", &long]), b"");
    assert!(e.contains("the context holds 128") && e.contains("/clear"), "{e}");
    assert!(err(&args(&dir, &["chat"]), b" \n").contains("standard input is empty"));
    edit(dir.path(), "tokenizer_config.json", |config| drop(config.as_object_mut().unwrap().remove("chat_template")));
    assert!(err(&args(&dir, &["chat", "hi"]), b"").contains("no chat template"));
}

#[test]
fn bench_measures_prompt_processing_and_generation() {
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
    assert_eq!(parameters - active, 559 * 32, "the embedding table is not multiplied");
    let few = ["bench", "--prompt-tokens", "0", "--gen-tokens", "4", "--reps", "2", "--parallel", "3"];
    let table = out(&args(&dir, &few), b"");
    let rows: Vec<&str> = table.lines().collect();
    assert!(rows.len() == 3 && rows[0].starts_with("| model ") && rows[1].starts_with("| ---"), "{table}");
    assert!(rows[2].contains("tg4 × 3") && rows[2].contains(" ± "), "{table}");
    assert!(err(&args(&dir, &["bench", "--prompt-tokens", "0", "--gen-tokens", "0"]), b"").contains("nothing to time"));
}

#[test]
fn plan_reports_kv_cache_size() {
    let dir = model();
    let path = dir.path().to_str().unwrap();
    let plan = |rest: &[&str]| parse(&out(&[&["plan", path, "-d", "cpu", "--json"][..], rest].concat(), b""));
    let whole = plan(&[]);
    assert_eq!((&whole["task"], &whole["max_tokens"], &whole["runs"]), (&json!("generate"), &json!(128), &json!(true)));
    // Two layers, keys and values, two heads of eight numbers of four bytes.
    assert_eq!(whole["cache_bytes_per_token"], 2 * 2 * 2 * 8 * 4);
    // Sixty-four answers at once may all have the full length: the cache holds these.
    assert_eq!((&whole["cache_tokens"], &whole["cache_bytes"]), (&json!(64 * 128), &json!(64 * 128 * 256)));
    assert_eq!(plan(&["--context", "64"])["cache_bytes"], 64 * 64 * 256);
    assert_eq!(plan(&["--kv-dtype", "f16"])["cache_bytes"], 64 * 128 * 128);
    assert_eq!(plan(&["--task", "embed"])["cache_bytes"], 0);
    let e = err(&["plan", path, "-d", "cpu", "--kv-dtype", "q8_0"], b"");
    assert!(e.contains("blocks of 32, which do not divide heads of 8") && e.contains("--kv-dtype f16"), "{e}");
    let o = sconce(&["plan", path, "--kv-dtype", "q4_0"], b"");
    assert!(String::from_utf8_lossy(&o.stderr).contains("one of f32, bf16, f16 and q8_0"), "{o:?}");
    let stdout = out(&["plan", path, "-d", "cpu"], b"");
    assert!(stdout.contains("KV cache    2.00 MiB (8192 tokens in f32 at 256 B)"), "{stdout}");
}

#[test]
fn quantized_dtypes_are_for_language_models() {
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
        assert!(String::from_utf8_lossy(&o.stderr).contains("for language models also q4_0, "), "{o:?}");
    }
}

#[test]
fn ctrl_c_ends_generation_and_completes_the_output() {
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
    let mut stdout = child.stdout.take().unwrap();
    // The first byte has arrived, so the answer is being generated.
    let mut first = [0; 1];
    stdout.read_exact(&mut first).unwrap();
    assert!(Command::new("kill").args(["-INT", &child.id().to_string()]).status().unwrap().success());
    let mut rest = String::new();
    stdout.read_to_string(&mut rest).unwrap();
    let o = child.wait_with_output().unwrap();
    let stderr = String::from_utf8_lossy(&o.stderr);
    assert!(o.status.success() && stderr.contains(", interrupted"), "{stderr}");
    assert!(rest.ends_with('\n'));
}

/// A T5 with 67 words.
fn t5() -> TempDir {
    let dir = materialize("t5-seq2seq");
    std::fs::write(dir.path().join("tokenizer.json"), plain_words(67).to_string()).unwrap();
    dir
}

/// The inputs of T5's golden as texts.
fn t5_input_texts() -> Vec<String> {
    let arrays = Arrays::open(&golden("t5-seq2seq").join("golden.safetensors"));
    let (ids, at) = (arrays.u32("ids").values, arrays.u32("cu_seqlens").values);
    // Every text ends with the end-of-sequence token.
    let text = |w: &[u32]| ids[w[0] as usize..w[1] as usize - 1].iter().map(|id| format!("w{id}")).collect::<Vec<_>>();
    at.windows(2).map(|w| text(w).join(" ")).collect()
}

#[test]
fn t5_matches_reference_greedy_and_beam_search() {
    let (dir, texts) = (t5(), t5_input_texts());
    let wanted = Arrays::open(&golden("t5-seq2seq").join("golden.safetensors")).u32("decode.ids").values;
    let greedy = ["generate", "--max-tokens", "32", "--ignore-eos", &texts[1]];
    let answer = results(&dir, &greedy)[0]["answers"][0].clone();
    assert_eq!((&answer["tokens"], &answer["finish_reason"]), (&json!(wanted), &json!("length")));
    // Streamed, from standard input and from a file.
    let text = answer["text"].as_str().unwrap().to_string() + "\n";
    assert_eq!(out(&args(&dir, &greedy), b""), text);
    assert_eq!(out(&args(&dir, &greedy[..4]), texts[1].as_bytes()), text);
    let lines = format!("{}\n{}\n", texts[1], texts[1]);
    assert_eq!(out(&args(&dir, &[&greedy[..4], &["-f", "-"]].concat()), lines.as_bytes()), text.repeat(2));
    // Beam search over all texts together.
    let cases = json(&golden("t5-seq2seq").join("golden.json"))["beams"].as_array().unwrap().clone();
    let cases = cases.iter().filter(|c| c["length_penalty"] == 1.0 && c["early_stopping"] == false);
    let beams = ["generate", "--max-tokens", "24", "--beams", "4", "-n", "2"];
    let found = results(&dir, &[&beams[..], &texts.iter().map(String::as_str).collect::<Vec<_>>()].concat());
    let mut checked = 0;
    for case in cases {
        let answers = &found[case["input"].as_u64().unwrap() as usize]["answers"];
        for (i, wanted) in case["sequences"].as_array().unwrap().iter().enumerate() {
            // The reference's answers end with the end-of-sequence token and padding.
            let wanted: Vec<&Value> = wanted.as_array().unwrap().iter().take_while(|id| **id != 1).collect();
            assert_eq!(answers[i]["tokens"].as_array().unwrap().iter().collect::<Vec<_>>(), wanted);
            assert!((answers[i]["score"].as_f64().unwrap() - case["scores"][i].as_f64().unwrap()).abs() < 1e-3);
            checked += 1;
        }
    }
    assert!(checked >= 4);
}

#[test]
fn t5_accepts_seq2seq_options_and_rejects_llm_options() {
    let dir = t5();
    let lines = [
        r#"{"prompt": "w5 w9", "max_tokens": 4, "id": 7}"#,
        r#"{"prompt": "w5 w9", "max_tokens": 4, "beams": 3, "temperature": 1}"#,
        r#"{"messages": [{"role": "user", "content": "w5"}]}"#,
        r#"{"prompt": "w5 w9", "max_tokens": 4, "beams": 2, "n": 2}"#,
        r#"{"prompt": "w5 w9", "max_tokens": 4, "echo": true}"#,
        r#"{"prompt": "w5 w9", "max_tokens": 9, "temperature": 2, "seed": 3, "n": 2, "ignore_eos": true}"#,
    ];
    let o = sconce(&args(&dir, &["generate", "--jsonl", "--format", "jsonl"]), lines.join("\n").as_bytes());
    assert_eq!(o.status.code(), Some(1), "{o:?}");
    let all: Vec<Value> = String::from_utf8(o.stdout).unwrap().lines().map(parse).collect();
    assert_eq!((&all[0]["id"], &all[0]["usage"]["prompt_tokens"]), (&json!(7), &json!(3)));
    assert_eq!((all[3]["answers"].as_array().unwrap().len(), &all[3]["seed"]), (2, &Value::Null));
    assert_ne!(all[5]["answers"][0]["tokens"], all[5]["answers"][1]["tokens"]);
    for (i, why) in [
        (1, "stdin:2: beam search does not sample, so temperature"),
        (2, "stdin:3: sequence-to-sequence models have no chat template"),
        (4, "stdin:5: echo is for language models"),
    ] {
        assert!(all[i]["error"].as_str().unwrap().starts_with(why), "{}", all[i]);
    }
    let error = |rest: &[&str]| err(&args(&dir, &[&["generate", "w5"][..], rest].concat()), b"");
    assert!(error(&["--logprobs", "2"]).contains("logprobs is for language models"));
    assert!(error(&["--stop", "w9"]).contains("stop is for language models"));
    assert!(error(&["--context", "9"]).contains("--context is for language models"));
    assert!(err(&args(&model(), &["generate", "--beams", "2", "a"]), b"").contains("such as T5"));
    // A text that is too long is truncated, with a warning.
    let long = "w5 ".repeat(600);
    let o = sconce(&args(&dir, &["generate", "--max-tokens", "2", "--json", &long]), b"");
    assert_eq!(parse(&String::from_utf8(o.stdout).unwrap())["results"][0]["truncated"], true);
    assert!(String::from_utf8(o.stderr).unwrap().contains("1 of 1 texts are longer than 512 tokens"));
    let o = sconce(&args(&dir, &["generate", "--max-tokens", "2", &long]), b"");
    assert!(String::from_utf8(o.stderr).unwrap().contains("1 of 1 texts are longer than 512 tokens"));
}

#[test]
fn t5_plan_distinguishes_seq2seq_from_embedder() {
    let dir = t5();
    let path = dir.path().to_str().unwrap();
    let plan = parse(&out(&["plan", path, "-d", "cpu", "--json"], b""));
    assert_eq!((&plan["task"], &plan["max_tokens"], &plan["runs"]), (&json!("seq2seq"), &json!(512), &json!(true)));
    assert!(plan["cache_bytes"].as_u64() > Some(0));
    assert!(out(&["plan", path, "-d", "cpu"], b"").contains("reads       texts up to 512 tokens"));
    assert!(err(&args(&dir, &["bench"]), b"").contains("cannot be benchmarked"));
    // Its encoder alone is an embedder, as is a folder with a pooling configuration.
    edit(dir.path(), "config.json", |config| config["architectures"] = json!(["T5EncoderModel"]));
    assert_eq!(parse(&out(&["plan", path, "-d", "cpu", "--json"], b""))["task"], "embed");
    edit(dir.path(), "config.json", |config| config["architectures"] = json!(["T5ForConditionalGeneration"]));
    std::fs::create_dir(dir.path().join("1_Pooling")).unwrap();
    std::fs::write(
        dir.path().join("1_Pooling/config.json"),
        r#"{"pooling_mode_mean_tokens": true, "word_embedding_dimension": 36}"#,
    )
    .unwrap();
    let module = |i: usize, path: &str, class: &str| json!({"idx": i, "name": i.to_string(), "path": path, "type": format!("sentence_transformers.models.{class}")});
    let modules = json!([module(0, "", "Transformer"), module(1, "1_Pooling", "Pooling")]);
    std::fs::write(dir.path().join("modules.json"), modules.to_string()).unwrap();
    assert_eq!(parse(&out(&["plan", path, "-d", "cpu", "--json"], b""))["task"], "embed");
}
