//! Tiny random BERTs against transformers, layer by layer.

use sconce_engine::Checkpoint;
use sconce_models::{Batch, Sequence, backbone};
use sconce_ops::{Activation, DType, Device, Ladder, Linear, Place, Policy, Rung, Tensor, Weights, Withdrawn};
use sconce_testkit::{Arrays, cosine, golden, json, worst};
use std::sync::Arc;

const MODELS: [&str; 6] =
    ["bert-gelu", "bert-gelu-new", "bert-relu", "bert-masked-lm", "bert-classifier", "bert-wide-head"];

/// Goldens are f64 runs stored in f32. numpy's own f32 comes within 1.5e-6 of them on values of
/// size one to four; ours sums in another order and may be as far off again.
const F32: f32 = 4e-6;

fn sequences(arrays: &Arrays) -> Vec<Sequence> {
    let (ids, types, ends) = (arrays.u32("ids"), arrays.u32("type_ids"), arrays.u32("cu_seqlens"));
    let cut = |v: &[u32], w: &[u32]| v[w[0] as usize..w[1] as usize].to_vec();
    ends.values
        .windows(2)
        .map(|w| Sequence { ids: cut(&ids.values, w), types: cut(&types.values, w), ..Sequence::default() })
        .collect()
}

/// Hidden states of every layer, the embeddings first.
fn layers(name: &str, dtype: DType, sequences: &[Sequence]) -> Vec<Vec<f32>> {
    let dir = golden(name);
    let place = Place::cpu();
    let weights = Weights::new(Arc::new(Checkpoint::open(&dir).unwrap()), dtype, place.clone());
    let model = backbone(&json(&dir.join("config.json")), &weights).unwrap();
    let batch = Batch::new(sequences, model.limits(), &place).unwrap();
    let mut seen = Vec::new();
    model.forward(&batch, &mut |_, x: &Tensor| seen.push(x.to_f32().unwrap())).unwrap();
    seen
}

#[test]
fn every_layer_equals_the_reference() {
    for name in MODELS {
        let arrays = Arrays::open(&golden(name).join("golden.safetensors"));
        let seen = layers(name, DType::F32, &sequences(&arrays));
        assert!(!arrays.has(&format!("hidden.{}", seen.len())), "{name}: fewer layers than the golden");
        for (i, got) in seen.iter().enumerate() {
            let want = arrays.f32(&format!("hidden.{i}")).values;
            let off = worst(got, &want);
            assert!(off <= F32, "{name} layer {i}: off by {off:.2e}");
        }
    }
}

#[test]
fn both_rungs_equal_the_reference() {
    for rung in [Rung::Fused, Rung::Composed] {
        let ladder = Ladder::new(Policy::default().with_force(Some(rung)));
        let _here = ladder.clone().enter();
        let arrays = Arrays::open(&golden("bert-gelu").join("golden.safetensors"));
        let seen = layers("bert-gelu", DType::F32, &sequences(&arrays));
        let off = worst(seen.last().unwrap(), &arrays.f32("hidden.3").values);
        assert!(off <= F32, "{rung}: off by {off:.2e}");
        assert!(ladder.counts().iter().all(|(c, n)| c.rung == rung && *n > 0));
    }
}

/// Half formats round every activation: 8 bits of precision over three layers leave a few
/// hundredths on values of size four, but the direction of each token's vector stays.
#[test]
fn half_formats_keep_the_direction_of_hidden_states() {
    for name in MODELS {
        let arrays = Arrays::open(&golden(name).join("golden.safetensors"));
        let sequences = sequences(&arrays);
        for (dtype, least) in [(DType::BF16, 0.9995), (DType::F16, 0.99999)] {
            for (i, got) in layers(name, dtype, &sequences).iter().enumerate() {
                let want = arrays.f32(&format!("hidden.{i}"));
                let rows = got.chunks(want.dims[1]).zip(want.values.chunks(want.dims[1]));
                let cos = rows.map(|(a, b)| cosine(a, b)).fold(1.0, f64::min);
                assert!(cos >= least, "{name} {dtype} layer {i}: cosine {cos:.6}");
            }
        }
    }
}

#[test]
fn batch_does_not_change_a_sequence() {
    let arrays = Arrays::open(&golden("bert-gelu").join("golden.safetensors"));
    let sequences = sequences(&arrays);
    let together = layers("bert-gelu", DType::F32, &sequences).pop().unwrap();
    let alone: Vec<f32> = sequences
        .iter()
        .flat_map(|s| layers("bert-gelu", DType::F32, std::slice::from_ref(s)).pop().unwrap())
        .collect();
    assert_eq!(together, alone, "a row is computed in the same order in any batch");
}

#[test]
fn pooler_and_classifier_are_linear_on_the_first_token() {
    let dir = golden("bert-classifier");
    let arrays = Arrays::open(&dir.join("golden.safetensors"));
    let hidden = layers("bert-classifier", DType::F32, &sequences(&arrays)).pop().unwrap();
    let n = arrays.f32("pooler").dims[1];
    let starts = arrays.u32("cu_seqlens").values;
    let first: Vec<f32> =
        starts[..starts.len() - 1].iter().flat_map(|s| hidden[*s as usize * n..][..n].to_vec()).collect();
    let w = Weights::new(Arc::new(Checkpoint::open(&dir).unwrap()), DType::F32, Place::cpu());
    let x = Tensor::from_f32(&first, &[starts.len() - 1, n], DType::F32, &Place::cpu()).unwrap();
    let pooled =
        Linear::load(&w.sub("bert.pooler.dense"), n, n, true).unwrap().with(Activation::Tanh).forward(&x).unwrap();
    let logits = Linear::load(&w.sub("classifier"), n, 3, true).unwrap().forward(&pooled).unwrap();
    assert!(worst(&pooled.to_f32().unwrap(), &arrays.f32("pooler").values) <= F32);
    assert!(worst(&logits.to_f32().unwrap(), &arrays.f32("logits").values) <= F32);
}

#[test]
fn forced_rung_with_withdrawn_kernel_is_refused() {
    let dir = golden("bert-gelu");
    let attention = Withdrawn { op: "attention".into(), kind: "cuda".into(), dtype: DType::F16, rung: Rung::Fused };
    let policy = Policy::default().with_force(Some(Rung::Fused)).with_withdrawn(vec![attention]);
    let ladder = Ladder::new(policy);
    let (_, steps) = ladder.trace(|| {
        let place = Place::phantom(Device::Cuda(0));
        let weights = Weights::new(Arc::new(Checkpoint::open(&dir).unwrap()), DType::F16, place.clone());
        let model = backbone(&json(&dir.join("config.json")), &weights).unwrap();
        let batch = Batch::new(&[Sequence { ids: vec![1, 2], ..Sequence::default() }], model.limits(), &place).unwrap();
        model.forward(&batch, &mut |_, _| {}).unwrap();
    });
    let refused = steps.iter().find(|s| s.op == "attention" && s.at == "layer 2").unwrap();
    let why = refused.rung.as_ref().unwrap_err();
    assert!(why.contains("is withdrawn") && why.contains("fused is forced"), "{why}");
    assert!(steps.iter().any(|s| s.op == "layer_norm" && s.rung == Ok(Rung::Fused)));
}
