//! Fuzzes model files: replaces one file of a tiny model, then plans, loads and uses the model.
//! Errors are fine; a panic, a crash or a hang is a finding.
//!
//!     cargo install cargo-fuzz
//!     RUSTC_BOOTSTRAP=1 cargo fuzz run model_files fuzz/corpus -- -max_total_time=300
//!
//! The first byte selects the file. `fuzz/seed` fills fuzz/corpus with the real files.
#![no_main]

use libfuzzer_sys::fuzz_target;
use sconce_engine::Device;
use sconce_engine::hub::{Files, Options};
use sconce_engine::{DeviceChoice, Embedder, LoadOptions, Prompt, Task};
use std::path::{Path, PathBuf};
use std::sync::LazyLock;

const FILES: [&str; 10] = [
    "config.json",
    "model.safetensors",
    "tokenizer.json",
    "tokenizer_config.json",
    "modules.json",
    "sentence_bert_config.json",
    "config_sentence_transformers.json",
    "1_Pooling/config.json",
    "2_Dense/config.json",
    "2_Dense/model.safetensors",
];

static MODEL: LazyLock<PathBuf> = LazyLock::new(|| {
    // libFuzzer's panic hook aborts at every panic, but the engine catches those of the tokenizers
    // library and returns errors. An uncaught panic still ends the process and is found.
    std::panic::set_hook(Box::new(|panic| eprintln!("{panic}")));
    let golden = Path::new(env!("CARGO_MANIFEST_DIR")).join("../crates/testkit/goldens/st-cls-dense");
    let copy = tempfile::tempdir().expect("a temporary directory").keep();
    for file in FILES {
        let to = copy.join(file);
        std::fs::create_dir_all(to.parent().expect("a folder")).expect("a folder");
        std::fs::copy(golden.join(file), to).expect("a golden");
    }
    copy
});

fuzz_target!(|data: &[u8]| {
    let [choice, bytes @ ..] = data else { return };
    let file = MODEL.join(FILES[usize::from(*choice) % FILES.len()]);
    let original = std::fs::read(&file).expect("the file");
    std::fs::write(&file, bytes).expect("room for the file");
    let cache = MODEL.join("cache");
    let options = LoadOptions::new(Options::new(&cache, &cache)).with_device(DeviceChoice::Only(Device::Cpu)).with_batch_tokens(Some(64));
    let _ = Task::Embed.plan(&Files::local(&MODEL), Device::Cuda(0), &options);
    if let Ok(reference) = MODEL.to_str().expect("a path").parse()
        && let Ok(embedder) = Embedder::load(&reference, &options, &())
    {
        let result = embedder.embed(&["the cat sat", "", "\u{301}é [MASK]"], &Prompt::Default);
        if let Err(e) = result {
            assert!(!e.to_string().contains("internal error"), "{e}");
        }
    }
    std::fs::write(&file, original).expect("room for the file");
});
