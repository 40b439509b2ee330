//! Fuzzes chat templates: a template is parsed and rendered or refused, within limits. Keeps
//! libFuzzer's panic hook, so that a panic is found although the crate would turn it into an error.
#![no_main]

use libfuzzer_sys::fuzz_target;
use sconce_jinja::{Clock, Template};
use serde_json::{Map, json};

fuzz_target!(|data: &[u8]| {
    let Ok(source) = std::str::from_utf8(data) else { return };
    let Ok(template) = Template::new(source) else { return };
    let messages = json!([{"role": "system", "content": "S"}, {"role": "user", "content": "ab <b>&amp;</b>"},
        {"role": "assistant", "content": ""}]);
    let tools = json!([{"type": "function", "function": {"name": "f", "parameters": {"x": [1, 2.5, null]}}}]);
    let clock = Clock { unix: 1_790_000_000, offset: 0 };
    let _ = template.render(&[("messages", &messages)], &Map::new(), clock);
    let _ = template.render(&[("messages", &messages), ("tools", &tools)], &Map::new(), clock);
});
