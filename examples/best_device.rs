//! The best device for a model: asked beforehand, taken with a fallback, and counted afterwards.
//!
//! `cargo run --release --example best_device [MODEL]`: a directory, a hub id, or a short name.

use sconce_engine::hub::{Progress, Reference, resolve};
use sconce_engine::ops::Device;
use sconce_engine::{DeviceChoice, Embedder, LoadOptions, Loaded, Prompt, supports};

/// Prints what the engine has to say, such as which device it takes and why.
struct Tell;

impl Progress for Tell {
    fn note(&self, line: &str) {
        println!("  note: {line}");
    }
    fn begin(&self, _: &str, _: u64) {}
    fn advance(&self, _: u64) {}
    fn end(&self) {}
}

fn main() -> Result<(), Box<dyn std::error::Error>> {
    let model: Reference = std::env::args().nth(1).unwrap_or_else(|| "minilm".into()).parse()?;
    let (best, why) = Device::best();
    println!("the best device here: {best} ({why})");

    // Whether a device would run this model is known before a byte of it is loaded, and for devices that are elsewhere.
    let mut options = LoadOptions::from_env()?;
    let files = resolve(&model, &options.source, &Tell)?;
    for device in [Device::Cpu, Device::Cuda(0), Device::Metal(0)] {
        let support = supports(device, &files.dir, &options)?;
        let verdict = if support.is_full() { "runs".into() } else { support.refusals.join("; ") };
        println!("{device:<8} to {}: {} op calls a pass; {verdict}", support.kind, support.plan.steps.len());
    }

    // A named device is a promise: without it, an error. Only who allows a fallback gets one, and is told.
    options.device = DeviceChoice::Only(Device::Cuda(0));
    println!("asked for cuda:0, with a fallback:");
    options.fallback = true;
    let embedder = Embedder::load(&model, &options, &Tell)?;
    embedder.embed(&["A man is eating food."], &Prompt::Default)?;

    println!("what really ran:");
    for (what, calls) in embedder.counts() {
        println!("  {:<12} {} {} {:<8} {calls} calls", what.op, what.device, what.dtype, what.rung.to_string());
    }
    println!("{} bytes at most", embedder.peak_bytes());
    Ok(())
}
