//! Chat templates: read and rendered, or refused, within bounds. libFuzzer's own hook stays, so that a panic is found although the
//! engine would make an error of it.
#![no_main]

mod tiny;

use libfuzzer_sys::fuzz_target;
use sconce_engine::{ChatOptions, Message};
use std::path::PathBuf;
use std::sync::LazyLock;

static FILE: LazyLock<PathBuf> = LazyLock::new(tiny::place);

fuzz_target!(|data: &[u8]| {
    let Ok(template) = std::str::from_utf8(data) else { return };
    std::fs::write(&*FILE, tiny::gguf(template)).expect("room for the file");
    // A template that cannot be read is told when it is asked for: the model itself is always sound.
    let llm = tiny::load(&FILE).expect("the model");
    let said = [Message::new("system", "S"), Message::new("user", "ab <b>&amp;</b>"), Message::new("assistant", "")];
    let tools =
        serde_json::json!([{"type": "function", "function": {"name": "f", "parameters": {"x": [1, 2.5, null]}}}]);
    let _ = llm.render(&said, &ChatOptions::default());
    let _ = llm.render(&said, &ChatOptions { tools: Some(tools), ..ChatOptions::default() });
});
