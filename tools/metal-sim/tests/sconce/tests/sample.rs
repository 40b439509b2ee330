//! Sampling on the device: it chooses the same tokens as the CPU, and logits are downloaded only if
//! a parameter needs them.

use sconce_engine::{DeviceChoice, GenerationParams, Llm, LoadOptions, Loaded, Request, Start};
use sconce_ops::{Counted, DType, Device, Rung};
use sconce_testkit::materialize;

const TOKENS: usize = 12;

/// The generated tokens for each of the parameters, and the counts of what ran.
fn generate(device: Device, all: &[GenerationParams]) -> Vec<(Vec<u32>, Vec<(Counted, u64)>)> {
    let dir = materialize("task-embed-llama");
    for name in ["modules.json", "config_sentence_transformers.json", "sentence_bert_config.json"] {
        std::fs::remove_file(dir.path().join(name)).expect("a file");
    }
    let reference = dir.path().to_str().expect("a path").parse().expect("a reference");
    // In f32 on both, so that a seed gives the same tokens.
    let options =
        LoadOptions::from_env().expect("caches").with_device(DeviceChoice::Only(device)).with_dtype(DType::F32);
    let one = |params: &GenerationParams| {
        // A new model each time, so that its counts are those of this answer.
        let llm = Llm::load(&reference, &options, &()).expect("a model");
        let request = Request {
            start: Start::Text("the cat".into()),
            params: Some(params.clone()),
            max_tokens: Some(TOKENS),
            ignore_end: true,
            ..Request::default()
        };
        let answer = llm.generate(&[request]).remove(0).expect("an answer").answers.remove(0);
        (answer.sampled.iter().map(|pick| pick.id).collect(), llm.counts())
    };
    all.iter().map(one).collect()
}

#[test]
fn device_sampling_equals_the_cpu_and_downloads_only_tokens() {
    let plain = GenerationParams::default().with_seed(7);
    // Parameters, and whether they need nothing from the logits but a token.
    let (all_params, on_device): (Vec<GenerationParams>, Vec<bool>) = [
        (plain.clone().with_temperature(0.0), true),
        (plain.clone(), true),
        (plain.clone().with_top_k(Some(40)).with_top_p(0.9).with_min_p(0.01).with_temperature(0.7), true),
        (plain.clone().with_logprobs(Some(2)), false),
        (plain.with_repetition_penalty(1.2), false),
    ]
    .into_iter()
    .unzip();
    let (got, want) = (generate(Device::Metal(0), &all_params), generate(Device::Cpu, &all_params));
    for (((got, counts), (want, on_cpu)), (params, on_device)) in
        got.iter().zip(&want).zip(all_params.iter().zip(on_device))
    {
        assert_eq!((got.len(), got), (TOKENS, want), "{params:?}");
        let sampled = |counts: &[(Counted, u64)]| -> u64 {
            let fused = |c: &Counted| c.op == "sample" && c.rung == Rung::Fused;
            counts.iter().filter(|(counted, _)| fused(counted)).map(|(_, n)| n).sum()
        };
        assert_eq!(sampled(counts), if on_device { TOKENS as u64 } else { 0 }, "{params:?}");
        assert_eq!(sampled(on_cpu), 0, "{params:?}");
        assert!(counts.iter().all(|(counted, _)| counted.rung == Rung::Fused), "{params:?}");
    }
}
