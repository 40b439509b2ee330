//! Prefixes of prompts on disk: the same answers to the bit, whatever happens to the files.

use sconce_engine::hub::{Files, Options, Reference};
use sconce_engine::{
    DeviceChoice, Event, GenerationParams, KvCacheFormat, Llm, LlmOptions, LoadOptions, PromptCacheOptions, Request,
    SampledToken, Start, Task,
};
use sconce_ops::{DType, Device};
use sconce_testkit::materialize_llama;
use std::path::{Path, PathBuf};
use tempfile::TempDir;

/// Tokens of a step, and so of a chunk on disk.
const CHUNK: usize = 64;

/// A model, and a folder for its prompts.
struct World {
    model: TempDir,
    cache: TempDir,
}

impl World {
    fn new() -> World {
        World { model: materialize_llama(2048), cache: tempfile::tempdir().expect("a folder") }
    }

    fn folder(&self) -> PathBuf {
        self.cache.path().join("prompts")
    }

    fn options(&self, format: DType) -> LoadOptions {
        let llm = LlmOptions::default().with_sequences(4).with_cache_format(Some(KvCacheFormat::Float(format)));
        LoadOptions::new(Options::from_env().expect("a home for caches"))
            .with_device(DeviceChoice::Only(Device::Cpu))
            .with_batch_tokens(Some(CHUNK))
            .with_llm(llm)
    }

    fn load(&self, options: &LoadOptions) -> Llm {
        let reference: Reference = self.model.path().to_str().expect("a path").parse().expect("a reference");
        Llm::load(&reference, options, &()).expect("a model")
    }

    /// As another process would: a model that has nothing in memory.
    fn fresh(&self, format: DType) -> Llm {
        self.load(&self.options(format).with_prompt_cache(Some(PromptCacheOptions::new(self.folder()))))
    }

    /// Stored chunks.
    fn files(&self) -> Vec<PathBuf> {
        files(&self.folder())
    }
}

fn files(folder: &Path) -> Vec<PathBuf> {
    let mut all: Vec<PathBuf> =
        std::fs::read_dir(folder).expect("a folder").map(|e| e.expect("an entry").path()).collect();
    all.sort();
    all
}

fn prompt(len: usize, last: u32) -> Vec<u32> {
    let mut tokens: Vec<u32> = (0..len as u32).map(|i| 5 + (i * 37 + i / 7) % 500).collect();
    tokens[len - 1] = last;
    tokens
}

/// The answer to a prompt, with log probabilities, and how many of its tokens were cached.
fn answer(llm: &Llm, prompt: &[u32]) -> (Vec<SampledToken>, usize) {
    let params = GenerationParams::default().with_temperature(0.0).with_logprobs(Some(5));
    let start = Start::Tokens(prompt.to_vec());
    let request = Request { start, params: Some(params), max_tokens: Some(24), ignore_end: true, ..Request::default() };
    let (mut all, mut cached) = (Vec::new(), None);
    for event in llm.stream(&request).expect("a stream") {
        match event.expect("an event") {
            Event::Begun { cached_tokens } => cached = Some(cached_tokens),
            Event::Text { sampled, .. } => all.extend(sampled),
            Event::Progress { .. } | Event::End { .. } => {}
        }
    }
    assert_eq!(all.len(), 24);
    (all, cached.expect("a beginning"))
}

#[test]
fn another_process_gives_the_same_answer_to_the_bit() {
    for format in [DType::F32, DType::F16, DType::BF16] {
        let world = World::new();
        let (first, second) = (prompt(200, 5), prompt(5 * CHUNK, 9));
        let plain = world.load(&world.options(format));
        let (expected, other) = (answer(&plain, &first), answer(&world.load(&world.options(format)), &second));
        assert_eq!((expected.1, other.1), (0, 0));
        assert_eq!(answer(&world.fresh(format), &first), expected, "{format}: nothing is stored yet");
        assert_eq!(world.files().len(), 200 / CHUNK, "{format}");
        let again = world.fresh(format);
        assert_eq!(answer(&again, &first), (expected.0.clone(), 200 / CHUNK * CHUNK), "{format}");
        // The prefix is in memory now, and there the blocks are shorter.
        assert_eq!(answer(&again, &first).1, 192, "{format}");
        // It shares three chunks with the first prompt, whose last token is in no chunk.
        assert_eq!(answer(&again, &second).1, 192, "{format}");
        drop(again);
        assert_eq!(world.files().len(), 5, "{format}");
        // The last chunk ends with the prompt, whose last token the model must compute.
        assert_eq!(answer(&world.fresh(format), &second), (other.0, 4 * CHUNK), "{format}");
    }
}

#[test]
fn damaged_files_are_ignored_and_replaced() {
    let world = World::new();
    let prompt = prompt(3 * CHUNK + 10, 5);
    let expected = answer(&world.fresh(DType::F32), &prompt).0;
    let whole: Vec<(PathBuf, Vec<u8>)> =
        world.files().into_iter().map(|path| (path.clone(), std::fs::read(path).expect("a file"))).collect();
    assert_eq!(whole.len(), 3);
    type Damage = fn(&Path, Vec<u8>);
    let damages: [Damage; 4] = [
        |path, mut bytes| {
            let middle = bytes.len() / 2;
            bytes[middle] ^= 0x10;
            std::fs::write(path, bytes).expect("a file");
        },
        |path, bytes| std::fs::write(path, &bytes[..bytes.len() - 1]).expect("a file"),
        |path, _| std::fs::write(path, b"").expect("a file"),
        |path, _| std::fs::remove_file(path).expect("a file"),
    ];
    for damage in damages {
        // One file after another, whichever part of the prompt it has.
        for (path, bytes) in &whole {
            damage(path, bytes.clone());
            let (got, cached) = answer(&world.fresh(DType::F32), &prompt);
            assert_eq!(got, expected);
            assert!(cached < 3 * CHUNK && cached % CHUNK == 0, "{cached} tokens of damaged files");
            for (path, bytes) in &whole {
                assert!(std::fs::read(path).expect("a file") == *bytes, "the file is as before");
            }
            assert_eq!(answer(&world.fresh(DType::F32), &prompt), (expected.clone(), 3 * CHUNK));
        }
    }
}

#[test]
fn the_folder_stays_within_its_size() {
    let world = World::new();
    let first = prompt(4 * CHUNK + 1, 5);
    answer(&world.fresh(DType::F32), &first);
    let one = std::fs::metadata(&world.files()[0]).expect("a file").len();
    assert_eq!(world.files().len(), 4);
    let most = 3 * one + one / 2;
    let small = PromptCacheOptions::new(world.folder()).with_max_bytes(most);
    let options = world.options(DType::F32).with_prompt_cache(Some(small));
    let mut other = first.clone();
    other[0] += 1;
    let plain = answer(&world.load(&world.options(DType::F32)), &other).0;
    assert_eq!(answer(&world.load(&options), &other).0, plain);
    let bytes: u64 = world.files().iter().map(|path| std::fs::metadata(path).expect("a file").len()).sum();
    assert!(bytes <= most && bytes > 2 * one, "{bytes}");
    assert_eq!(answer(&world.load(&options), &other).0, plain);
    // A size that nothing fits into costs nothing but the time.
    let none = PromptCacheOptions::new(world.cache.path().join("none")).with_max_bytes(1);
    let options = world.options(DType::F32).with_prompt_cache(Some(none.clone()));
    assert_eq!(answer(&world.load(&options), &other).0, plain);
    assert!(files(&none.folder).is_empty());
}

#[test]
fn prefixes_belong_to_one_model_and_one_format() {
    let (world, stranger) = (World::new(), World::new());
    let prompt = prompt(3 * CHUNK, 5);
    answer(&world.fresh(DType::F32), &prompt);
    let cached = |world: &World, format| answer(&world.fresh(format), &prompt).1;
    assert_eq!(cached(&world, DType::F16), 0, "another format of the KV cache");
    assert_eq!(cached(&world, DType::F32), 2 * CHUNK);
    // The same files elsewhere could be others.
    let there = PromptCacheOptions::new(world.folder());
    let llm = stranger.load(&stranger.options(DType::F32).with_prompt_cache(Some(there)));
    assert_eq!(answer(&llm, &prompt).1, 0);
    let config = world.model.path().join("config.json");
    let text = std::fs::read_to_string(&config).expect("a file");
    std::fs::write(&config, text + "\n").expect("a file");
    assert_eq!(cached(&world, DType::F32), 0, "the model's files have changed");
}

#[test]
fn requests_together_share_what_is_stored() {
    let world = World::new();
    let shared = prompt(4 * CHUNK, 5);
    answer(&world.fresh(DType::F32), &shared);
    let llm = world.fresh(DType::F32);
    let params = GenerationParams::default().with_temperature(0.0);
    let request = |end: u32| {
        let start = Start::Tokens(shared.iter().copied().chain([end; 9]).collect());
        Request { start, params: Some(params.clone()), max_tokens: Some(8), ignore_end: true, ..Request::default() }
    };
    let requests: Vec<Request> = (0..12).map(|i| request(20 + i)).collect();
    assert!(llm.generate(&requests).iter().all(Result::is_ok));
    let now = llm.activity();
    // The scheduler may look up a prompt once more after a preemption, of which there is none here.
    assert_eq!((now.preemptions, now.prefix_queries), (0, 12 * (4 * CHUNK as u64 + 9)));
    assert_eq!(now.prefix_hits, 12 * 4 * CHUNK as u64);
}

#[test]
fn a_gpu_and_an_unusable_folder_are_refused_by_name() {
    let world = World::new();
    let options = world.options(DType::F32).with_prompt_cache(Some(PromptCacheOptions::new(world.folder())));
    for device in [Device::Cuda(0), Device::Metal(0)] {
        let refused = Task::Generate.plan(&Files::local(world.model.path()), device, &options).unwrap_err().to_string();
        assert!(refused.contains("--prompt-cache") && refused.contains(&device.to_string()), "{refused}");
    }
    let file = world.cache.path().join("file");
    std::fs::write(&file, "").expect("a file");
    let options = options.with_prompt_cache(Some(PromptCacheOptions::new(&file)));
    let reference: Reference = world.model.path().to_str().expect("a path").parse().expect("a reference");
    let refused = Llm::load(&reference, &options, &()).map(drop).unwrap_err().to_string();
    assert!(refused.contains("the prompt cache") && refused.contains("file"), "{refused}");
}
