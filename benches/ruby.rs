//! The Rust side of `benches/ruby.rb`: the best time of 1,000 texts in one call.

use sconce_engine::{DeviceChoice, Embedder, LoadOptions, Prompt};
use sconce_ops::Device;
use std::time::Instant;

fn main() {
    let text =
        |i: usize| format!("Text number {i}: a man is eating food, and someone else has lunch. ").repeat(1 + i % 3);
    let texts: Vec<String> = (0..1000).map(text).collect();
    let options = LoadOptions::from_env().expect("options").with_device(DeviceChoice::Only(Device::Cpu));
    let model = Embedder::load(&"minilm".parse().expect("a name"), &options, &()).expect("MiniLM");
    model.embed(&texts[..64], &Prompt::Default).expect("embeddings");
    let seconds = (0..3).map(|_| {
        let begun = Instant::now();
        model.embed(&texts, &Prompt::Default).expect("embeddings");
        begun.elapsed().as_secs_f64()
    });
    println!("seconds {}", seconds.fold(f64::MAX, f64::min));
}
