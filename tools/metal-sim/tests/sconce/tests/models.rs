//! Whole models on the simulated Metal device, loaded as by a user: they give the results of the
//! CPU, with our kernels only.

use metal_sim_sconce::all_dispatches;
use sconce_engine::{DeviceChoice, Embedder, GenerationParams, Llm, LoadOptions, Loaded, Prompt, Request, Start};
use sconce_ops::{DType, Device, Rung, WeightFormat};
use sconce_testkit::mixed_texts;
use std::sync::{Mutex, PoisonError};

const METAL: Device = Device::Metal(0);

/// Dispatches are counted per process: one test at a time.
static ALONE: Mutex<()> = Mutex::new(());

fn on(device: Device) -> LoadOptions {
    LoadOptions::from_env().expect("caches").with_device(DeviceChoice::Only(device))
}

/// Every call ran on the fused rung of the requested device.
fn assert_fused(counts: &[(sconce_ops::Counted, u64)]) {
    assert!(!counts.is_empty());
    for (counted, _) in counts {
        assert_eq!((counted.device, counted.rung), (METAL, Rung::Fused), "{}", counted.op);
    }
}

#[test]
fn minilm_embeddings_equal_the_cpu() {
    let _alone = ALONE.lock().unwrap_or_else(PoisonError::into_inner);
    let minilm = "minilm".parse().expect("a reference");
    let texts = ["A man is eating food.", "Two dogs."];
    let embed = |device| {
        let embedder = Embedder::load(&minilm, &on(device).with_dtype(DType::F32), &()).expect("MiniLM");
        let before = all_dispatches();
        let vectors = embedder.embed(&texts, &Prompt::Default).expect("vectors");
        (vectors, embedder.counts(), all_dispatches() - before)
    };
    let ((got, counts, dispatches), (want, ..)) = (embed(METAL), embed(Device::Cpu));
    // Seven in each of six layers; and embeddings, a norm, pooling and L2-normalize.
    assert_eq!(dispatches, 6 * 7 + 4);
    for text in 0..texts.len() {
        for (a, b) in got.row(text).iter().zip(want.row(text)) {
            // Both sum in f32, in different orders: a few roundings of a vector's largest element.
            assert!((a - b).abs() < 2e-6, "{a} and {b} of text {text}");
        }
    }
    assert_fused(&counts);
}

/// Without a flag, in f16.
#[test]
fn minilm_in_default_precision_is_close_to_f32() {
    let _alone = ALONE.lock().unwrap_or_else(PoisonError::into_inner);
    let minilm = "minilm".parse().expect("a reference");
    // All 300 take minutes: .ci/long asks for them.
    let step = if std::env::var_os("ALL_TEXTS").is_some() { 1 } else { 15 };
    let texts: Vec<String> = mixed_texts().into_iter().step_by(step).collect();
    let embed = |options: LoadOptions| {
        let embedder = Embedder::load(&minilm, &options, &()).expect("MiniLM");
        (embedder.embed(&texts, &Prompt::Default).expect("vectors"), embedder.plan().dtype)
    };
    let (got, dtype) = embed(on(METAL));
    let (want, _) = embed(on(Device::Cpu));
    assert_eq!(dtype, DType::F16);
    for (text, (a, b)) in got.rows().zip(want.rows()).enumerate() {
        // Both have length 1.
        let cosine: f32 = a.iter().zip(b).map(|(a, b)| a * b).sum();
        assert!(cosine > 0.999, "{:?}: {cosine}", texts[text]);
    }
}

#[test]
fn smollm_generates_the_same_text_as_the_cpu() {
    let _alone = ALONE.lock().unwrap_or_else(PoisonError::into_inner);
    let smollm = "smollm".parse().expect("a reference");
    let params = GenerationParams::default().with_temperature(0.0);
    let start = Start::Text("The capital of France is".into());
    let request = Request { start, params: Some(params), max_tokens: Some(4), ..Request::default() };
    let generate = |device| {
        let llm = Llm::load(&smollm, &on(device), &()).expect("SmolLM2");
        let before = all_dispatches();
        let mut answers = llm.generate(std::slice::from_ref(&request)).remove(0).expect("an answer").answers;
        (answers.remove(0).text, llm.counts(), llm.plan().clone(), all_dispatches() - before)
    };
    let (want, ..) = generate(Device::Cpu);
    let (got, counts, plan, dispatches) = generate(METAL);
    // The simulated GPU is an M2, where bf16 is slow.
    assert_eq!((got, plan.weight_format, plan.dtype), (want, WeightFormat::File, DType::F16));
    assert_fused(&counts);
    // Nine in each of thirty layers; and word embeddings, a norm, the head and sampling. The
    // prompt's pass also selects its last row.
    assert_eq!(dispatches, 4 * (30 * 9 + 4) + 1);
}
