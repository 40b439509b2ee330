//! Picks a device for a model: checks support before loading, loads with a fallback, and prints
//! which kernels ran.
//!
//! `cargo run --release --example best_device [MODEL]`: a directory, a hub id, or a short name.

use sconce::Device;
use sconce::hub::{Progress, Reference, resolve};
use sconce::{DeviceChoice, LoadOptions, Prompt, Request, Start, Task, TaskModel, supports};

/// Prints the engine's notes, such as which device it chooses and why.
struct PrintNotes;

impl Progress for PrintNotes {
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

    // `supports` plans the model without loading it, also for devices that are not in this machine.
    let mut options = LoadOptions::from_env()?;
    let files = resolve(&model, &options.hub, &PrintNotes)?;
    for device in [Device::Cpu, Device::Cuda(0), Device::Metal(0)] {
        let support = supports(device, &files, &options)?;
        let verdict = if support.is_full() { "runs".into() } else { support.refusals.join("; ") };
        println!("{device:<8} to {}: {} op calls per pass; {verdict}", support.task, support.plan.steps.len());
    }

    // Without `fallback`, a device that cannot run the model is an error. With it, the engine
    // reports every fallback as a note.
    options.device = DeviceChoice::Only(Device::Cuda(0));
    println!("requesting cuda:0 with a fallback:");
    options.fallback = true;
    let model = Task::detect(files.root())?.load(&files, &options, &PrintNotes)?;
    match &model {
        TaskModel::Embed(embedder) => drop(embedder.embed(&["A man is eating food."], &Prompt::Default)?),
        TaskModel::Generate(llm) => {
            let start = Start::Text("A man is eating".into());
            let request = Request { start, max_tokens: Some(8), ..Request::default() };
            llm.generate(&[request]).into_iter().try_for_each(|answer| answer.map(drop))?;
        }
        _ => println!("  this example runs embedding models and language models only"),
    }
    let model = model.loaded();

    println!("ops that ran:");
    for (what, calls) in model.counts() {
        println!("  {:<12} {} {} {:<8} {calls} calls", what.op, what.device, what.dtype, what.rung.to_string());
    }
    println!("peak memory: {} bytes", model.peak_bytes());
    Ok(())
}
