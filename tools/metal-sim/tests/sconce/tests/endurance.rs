//! What must hold during the whole life of a process: memory stays flat, nothing is compiled after
//! loading, callers do not deadlock, and a failed command is an error for its own caller only.

use metal_sim_sconce::{allocated, fail_next, pipelines};
use sconce_engine::{DeviceChoice, Embedder, LoadOptions, Prompt};
use sconce_ops::{DType, Device};
use sconce_testkit::materialize;
use std::sync::{Mutex, PoisonError};

/// The counters are per process: one test at a time.
static ALONE: Mutex<()> = Mutex::new(());

fn embedder() -> (Embedder, tempfile::TempDir) {
    let dir = materialize("task-embed-llama");
    let device = DeviceChoice::Only(Device::Metal(0));
    let options = LoadOptions::from_env().expect("caches").with_device(device).with_dtype(DType::F32);
    let reference = dir.path().to_str().expect("a path").parse().expect("a reference");
    (Embedder::load(&reference, &options, &()).expect("a model"), dir)
}

/// `n` texts of various lengths; deterministic.
fn texts(n: usize, seed: usize) -> Vec<String> {
    let words = ["a", "man", "is", "eating", "food", "two", "dogs", "run"];
    let text = |i: usize| (0..1 + (seed * 7 + i * 13) % 23).map(|j| words[(i + j) % words.len()]).collect::<Vec<_>>();
    (0..n).map(|i| text(i).join(" ")).collect()
}

fn embed(embedder: &Embedder, texts: &[String]) -> sconce_engine::Result<Vec<Vec<f32>>> {
    let vectors = embedder.embed(&texts.iter().map(String::as_str).collect::<Vec<_>>(), &Prompt::Default)?;
    Ok((0..texts.len()).map(|i| vectors.row(i).to_vec()).collect())
}

#[test]
fn memory_is_flat_and_nothing_is_compiled_over_a_thousand_batches() {
    let _alone = ALONE.lock().unwrap_or_else(PoisonError::into_inner);
    let (embedder, _dir) = embedder();
    // Every number of texts and every length once, the largest first.
    for n in (1..=4).rev() {
        (0..23).for_each(|seed| drop(embed(&embedder, &texts(n, seed)).expect("vectors")));
    }
    // The arrays uploaded by the last batch are still cached, so both measurements end with the
    // same batch.
    let last = || drop(embed(&embedder, &texts(4, 0)).expect("vectors"));
    last();
    let (bytes, made) = (allocated(), pipelines());
    for i in 0..1000 {
        embed(&embedder, &texts(1 + i % 4, i)).expect("vectors");
    }
    last();
    assert_eq!(pipelines(), made, "kernels were compiled on the way");
    assert!(allocated() <= bytes, "{bytes} bytes before, {} after", allocated());
}

#[test]
fn concurrent_callers_get_their_own_results() {
    let _alone = ALONE.lock().unwrap_or_else(PoisonError::into_inner);
    let (embedder, _dir) = embedder();
    let alone: Vec<_> = (0..64).map(|i| embed(&embedder, &texts(1, i)).expect("a vector")).collect();
    std::thread::scope(|scope| {
        for (i, want) in alone.iter().enumerate() {
            let embedder = &embedder;
            scope.spawn(move || {
                let got = embed(embedder, &texts(1, i)).expect("a vector");
                let off = got[0].iter().zip(&want[0]).map(|(a, b)| (a - b).abs()).fold(0.0, f32::max);
                assert!(off < 1e-6, "caller {i}: off by {off}");
            });
        }
    });
}

#[test]
fn failed_command_fails_only_its_request() {
    let _alone = ALONE.lock().unwrap_or_else(PoisonError::into_inner);
    let (embedder, _dir) = embedder();
    let want = embed(&embedder, &texts(2, 5)).expect("vectors");
    fail_next("rms_norm_f32");
    let error = embed(&embedder, &texts(2, 5)).expect_err("a failed command").to_string();
    assert!(error.contains("rms_norm") || error.contains("ommand"), "{error}");
    assert_eq!(embed(&embedder, &texts(2, 5)).expect("vectors"), want);
}
