//! Throughput of ONNX Runtime behind the engine, and driven from Python on the same batches, in turns
//! in one run:
//!
//! ```sh
//! SCONCE_ONNX_MODEL=DIR SCONCE_ONNX_PYTHON=venv/bin/python cargo bench --workspace --bench onnx
//! ```
//!
//! The Python needs onnxruntime and numpy; `ORT_DYLIB_PATH` names the same package's library. Fails
//! below 0.97 of its throughput.

use sconce_engine::{Device, DeviceChoice, EmbedOptions, Embedder, EngineChoice, LoadOptions, TextOrTokens};
use std::io::Write;
use std::process::{Command, Stdio};
use std::time::Instant;

/// Texts of a batch.
const BATCH: usize = 32;
const ROUNDS: usize = 5;
/// The least throughput, as a part of that from Python.
const LEAST: f64 = 0.97;

fn main() -> Result<(), Box<dyn std::error::Error>> {
    let (Ok(model), Ok(python)) = (std::env::var("SCONCE_ONNX_MODEL"), std::env::var("SCONCE_ONNX_PYTHON")) else {
        println!("set SCONCE_ONNX_MODEL to a folder with an ONNX model, and SCONCE_ONNX_PYTHON");
        return Ok(());
    };
    let count_of_threads = threads();
    sconce_engine::set_threads(Some(count_of_threads), false)?;
    let mut options = LoadOptions::from_env()?.with_device(DeviceChoice::Only(Device::Cpu));
    options.graph = sconce_onnx::options().with_engine(EngineChoice::Onnx);
    let embedder = Embedder::load(&model.parse()?, &options, &())?;
    let graph = sconce_engine::Loaded::plan(&embedder).graph.as_ref().ok_or("no graph")?.files[0].summary.path.clone();
    let tokenize = |text: &String| -> Result<Vec<u32>, sconce_engine::Error> {
        let tokens = sconce_engine::Loaded::tokenize(&embedder, text, true)?;
        Ok(tokens.iter().map(|token| token.id).take(256).collect())
    };
    let mut texts = sconce_testkit::mixed_texts().iter().map(tokenize).collect::<Result<Vec<_>, _>>()?;
    // Batches of similar lengths, as a caller who pads by hand makes them.
    texts.sort_by_key(Vec::len);
    let batches: Vec<&[Vec<u32>]> = texts.chunks(BATCH).collect();
    let mut ours = f64::INFINITY;
    let mut theirs = f64::INFINITY;
    for _ in 0..ROUNDS {
        let start = Instant::now();
        for batch in &batches {
            let inputs: Vec<_> = batch.iter().map(|ids| TextOrTokens::Tokens(ids)).collect();
            embedder.embed_with(&inputs, &EmbedOptions::default())?;
        }
        ours = ours.min(start.elapsed().as_secs_f64());
        theirs = theirs.min(by_hand(&python, &graph, &batches, count_of_threads)?);
    }
    let count = texts.len() as f64;
    let ratio = theirs / ours;
    println!(
        "sconce: {:.1} texts/s; onnxruntime from Python: {:.1} texts/s; {ratio:.3}×",
        count / ours,
        count / theirs
    );
    match ratio >= LEAST {
        true => Ok(()),
        false => Err(format!("{ratio:.3}× of the throughput from Python; at least {LEAST} is required").into()),
    }
}

/// The threads of both: `SCONCE_THREADS`, or one.
fn threads() -> usize {
    std::env::var("SCONCE_THREADS").ok().and_then(|n| n.parse().ok()).unwrap_or(1)
}

/// Seconds for all batches in `benches/onnx.py`, without its start and one warm-up.
fn by_hand(
    python: &str,
    graph: &std::path::Path,
    batches: &[&[Vec<u32>]],
    threads: usize,
) -> Result<f64, Box<dyn std::error::Error>> {
    let script = concat!(env!("CARGO_MANIFEST_DIR"), "/../../benches/onnx.py");
    let mut child = Command::new(python)
        .args([script, "time", &graph.to_string_lossy(), &threads.to_string()])
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .spawn()?;
    let json = serde_json::to_vec(batches)?;
    child.stdin.take().ok_or("no stdin")?.write_all(&json)?;
    let out = child.wait_with_output()?;
    Ok(String::from_utf8(out.stdout)?.trim().parse()?)
}
