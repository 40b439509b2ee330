//! Fuzzes GGUF files: plans and loads a random or mutated file, and generates with it. Errors are
//! fine; a panic, a crash or a hang is a finding.
//!
//! If the first byte is even, the rest is the file. If it is odd, the rest are mutations of a valid
//! file: two bytes of offset and the byte to write there.
#![no_main]

mod tiny;

use libfuzzer_sys::fuzz_target;
use sconce_engine::Device;
use sconce_engine::hub::Files;
use sconce_engine::{ChatOptions, Message, Request, Start, Task};
use std::path::PathBuf;
use std::sync::LazyLock;

static FILE: LazyLock<PathBuf> = LazyLock::new(|| {
    // As in model_files: panics of the tokenizers library are caught and must not end the run.
    std::panic::set_hook(Box::new(|panic| eprintln!("{panic}")));
    tiny::path()
});
static VALID: LazyLock<Vec<u8>> = LazyLock::new(|| {
    let bytes = tiny::gguf("{% for m in messages %}{{ m.content }}{% endfor %}");
    std::fs::write(&*FILE, &bytes).expect("room for the file");
    // Make sure that the file loads without mutations.
    tiny::load(&FILE).expect("the file without changes");
    bytes
});

fuzz_target!(|data: &[u8]| {
    let [choice, rest @ ..] = data else { return };
    let mut bytes = VALID.clone();
    if choice % 2 == 0 {
        bytes = rest.to_vec();
    } else {
        for [high, low, byte] in rest.as_chunks().0 {
            let at = usize::from(u16::from_be_bytes([*high, *low])) % bytes.len();
            bytes[at] = *byte;
        }
    }
    std::fs::write(&*FILE, &bytes).expect("room for the file");
    let _ = Task::Generate.plan(&Files::local(&FILE), Device::Cpu, &tiny::options(&FILE));
    if let Ok(llm) = tiny::load(&FILE) {
        let messages = [Message::new("user", "ab")];
        let rendered = llm.render(&messages, &ChatOptions::default()).map(|_| ());
        let request = Request { start: Start::Text("ab".into()), max_tokens: Some(2), ..Request::default() };
        let generated = llm.generate(&[request]).into_iter().map(|answer| answer.map(|_| ()));
        for error in generated.chain([rendered]).filter_map(Result::err) {
            let error = error.to_string();
            assert!(!error.contains("internal error"), "{error}");
        }
    }
});
