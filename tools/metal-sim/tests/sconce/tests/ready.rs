//! Warm-up: loading a model prepares every kernel that it will call, from the archive of an earlier
//! process or by compiling it. Nothing is compiled later.

use metal_sim_sconce::{archived_pipelines, pipelines};
use sconce_engine::hub::Options;
use sconce_engine::{
    DeviceChoice, Embedder, GenerationParams, Llm, LoadOptions, Prompt, Request, Seq2Seq, Seq2SeqLimits,
    Seq2SeqOptions, Start,
};
use sconce_ops::Device;
use sconce_testkit::{materialize, plain_words};
use std::path::Path;
use std::process::Command;
use std::sync::{Mutex, PoisonError};

/// The counters are per process: one test at a time.
static ALONE: Mutex<()> = Mutex::new(());

/// The variable that passes the kernel cache's folder to the child process.
const CACHE: &str = "SCONCE_TEST_KERNELS";

fn options(cache: &Path) -> LoadOptions {
    let device = DeviceChoice::Only(Device::Metal(0));
    LoadOptions::new(Options::new(cache, cache)).with_device(device)
}

fn embedder(name: &str, cache: &Path) -> (Embedder, tempfile::TempDir) {
    let dir = materialize(name);
    let reference = dir.path().to_str().expect("a path").parse().expect("a reference");
    (Embedder::load(&reference, &options(cache), &()).expect("a model"), dir)
}

/// Text `i`; lengths vary.
fn text(i: usize) -> String {
    let words = ["a", "man", "is", "eating", "food", "two", "dogs", "run"];
    (0..1 + i * 13 % 47).map(|j| words[(i + j) % words.len()]).collect::<Vec<_>>().join(" ")
}

/// Runs in child processes, for the test below.
#[test]
#[ignore = "a part of another test"]
fn load_and_count() {
    let cache = std::env::var(CACHE).expect("a folder");
    drop(embedder("task-embed-llama", Path::new(&cache)));
    println!("made {} archived {}.", pipelines(), archived_pipelines());
}

/// Number of pipelines that a process makes when it loads a model with this cache, and how many
/// came from an archive.
fn count_pipelines(cache: &Path) -> (u64, u64) {
    let this = std::env::current_exe().expect("this program");
    let run = Command::new(this)
        .args(["--ignored", "--exact", "load_and_count", "--nocapture"])
        .env(CACHE, cache)
        .output()
        .expect("a process");
    let stdout = String::from_utf8_lossy(&run.stdout).into_owned();
    assert!(run.status.success(), "{stdout}{}", String::from_utf8_lossy(&run.stderr));
    let number = |from: &str, to: &str| {
        let rest = stdout.split_once(from).expect("a count").1;
        rest.split_once(to).expect("its end").0.parse::<u64>().expect("a number")
    };
    (number("made ", " "), number("archived ", "."))
}

#[test]
fn second_process_loads_kernels_from_the_archive() {
    let cache = tempfile::tempdir().expect("a folder");
    let (made, archived) = count_pipelines(cache.path());
    assert!(made > 0 && archived == 0, "{made} made, {archived} from an archive");
    assert_eq!(count_pipelines(cache.path()), (made, made));
}

#[test]
fn unwritable_kernel_cache_is_ignored() {
    let file = tempfile::NamedTempFile::new().expect("a file");
    let (made, archived) = count_pipelines(&file.path().join("not a folder"));
    assert!(made > 0 && archived == 0, "{made} made, {archived} from an archive");
}

#[test]
fn second_load_compiles_nothing() {
    let _alone = ALONE.lock().unwrap_or_else(PoisonError::into_inner);
    let cache = tempfile::tempdir().expect("a folder");
    drop(embedder("task-embed-llama", cache.path()));
    let made = pipelines();
    drop(embedder("task-embed-llama", cache.path()));
    assert_eq!(pipelines(), made);
}

#[test]
fn embedding_compiles_nothing() {
    let _alone = ALONE.lock().unwrap_or_else(PoisonError::into_inner);
    let cache = tempfile::tempdir().expect("a folder");
    for name in ["task-embed-llama", "task-m3"] {
        let (embedder, _dir) = embedder(name, cache.path());
        let made = pipelines();
        for n in [1, 2, 3, 4, 7, 8, 9, 16, 25, 33, 40] {
            let texts: Vec<String> = (0..n).map(|i| text(n + i)).collect();
            embedder.embed(&texts.iter().map(String::as_str).collect::<Vec<_>>(), &Prompt::Default).expect("vectors");
            assert_eq!(pipelines(), made, "{name}: {n} texts");
        }
    }
}

#[test]
fn generating_compiles_nothing() {
    let _alone = ALONE.lock().unwrap_or_else(PoisonError::into_inner);
    let (cache, dir) = (tempfile::tempdir().expect("a folder"), materialize("task-embed-llama"));
    // Long enough for keys to be split between threadgroups.
    let config = dir.path().join("config.json");
    let text = std::fs::read_to_string(&config).expect("a configuration");
    let longer = text.replace("\"max_position_embeddings\": 128", "\"max_position_embeddings\": 1024");
    assert_ne!(text, longer);
    std::fs::write(&config, longer).expect("a configuration");
    let reference = dir.path().to_str().expect("a path").parse().expect("a reference");
    let llm = Llm::load(&reference, &options(cache.path()), &()).expect("a model");
    let made = pipelines();
    for (n, answers, length) in [(1, 1, 1), (1, 1, 7), (1, 1, 300), (3, 1, 40), (12, 1, 5), (1, 5, 7), (2, 2, 140)] {
        let params = GenerationParams::default().with_temperature(0.0).with_n(answers);
        let request = |i: usize| Request {
            start: Start::Tokens((0..length).map(|j| 5 + ((i + j) % 50) as u32).collect()),
            params: Some(params.clone()),
            max_tokens: Some(3),
            ignore_end: true,
            ..Request::default()
        };
        let requests: Vec<Request> = (0..n).map(request).collect();
        llm.generate(&requests).into_iter().for_each(|answer| drop(answer.expect("an answer")));
        assert_eq!(pipelines(), made, "{n} prompts of {length} tokens, {answers} answers each");
    }
}

#[test]
fn seq2seq_generation_compiles_nothing() {
    let _alone = ALONE.lock().unwrap_or_else(PoisonError::into_inner);
    let (cache, dir) = (tempfile::tempdir().expect("a folder"), materialize("t5-seq2seq"));
    std::fs::write(dir.path().join("tokenizer.json"), plain_words(67).to_string()).expect("a tokenizer");
    let reference = dir.path().to_str().expect("a path").parse().expect("a reference");
    let limits =
        Seq2SeqLimits::default().with_input(Some(256)).with_output(200).with_sequences(12).with_cache_format(None);
    let model = Seq2Seq::load(&reference, &options(cache.path()).with_seq2seq(limits), &()).expect("a model");
    let made = pipelines();
    for (n, length) in [(1, 1), (1, 200), (2, 30), (11, 9)] {
        let input = |i: usize| (0..length).map(|j| 3 + ((i + j) % 20) as u32).collect();
        let wanted = Seq2SeqOptions::default().with_max_tokens(Some(3));
        model.generate_ids(&(0..n).map(input).collect::<Vec<_>>(), &wanted).expect("answers");
        assert_eq!(pipelines(), made, "{n} inputs of {length} tokens");
    }
}
