//! The best device for a model: asked beforehand, taken with a fallback, and counted afterwards.
//!
//! `cargo run --release --example best_device [MODEL]`: a directory, a hub id, or a short name.

use sconce_engine::Device;
use sconce_engine::hub::{Progress, Reference, resolve};
use sconce_engine::{DeviceChoice, LoadOptions, Prompt, Request, Start, Task, TaskModel, supports};

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
    let files = resolve(&model, &options.hub, &Tell)?;
    for device in [Device::Cpu, Device::Cuda(0), Device::Metal(0)] {
        let support = supports(device, &files, &options)?;
        let verdict = if support.is_full() { "runs".into() } else { support.refusals.join("; ") };
        println!("{device:<8} to {}: {} op calls a pass; {verdict}", support.task, support.plan.steps.len());
    }

    // A named device is a promise: without it, an error. Only who allows a fallback gets one, and is told.
    options.device = DeviceChoice::Only(Device::Cuda(0));
    println!("asked for cuda:0, with a fallback:");
    options.fallback = true;
    let model = Task::detect(files.root())?.load(&files, &options, &Tell)?;
    match &model {
        TaskModel::Embed(embedder) => drop(embedder.embed(&["A man is eating food."], &Prompt::Default)?),
        TaskModel::Generate(llm) => {
            let start = Start::Text("A man is eating".into());
            let request = Request { start, max_tokens: Some(8), ..Request::default() };
            llm.generate(&[request]).into_iter().try_for_each(|answer| answer.map(drop))?;
        }
        _ => println!("  this example runs models of embeddings and language models only"),
    }
    let model = model.loaded();

    println!("what really ran:");
    for (what, calls) in model.counts() {
        println!("  {:<12} {} {} {:<8} {calls} calls", what.op, what.device, what.dtype, what.rung.to_string());
    }
    println!("{} bytes at most", model.peak_bytes());
    Ok(())
}
