//! DeBERTa and DeBERTa v2/v3 against transformers, layer by layer, with their heads.

use sconce_engine::Checkpoint;
use sconce_models::{Backbone, Batch, Sequence, Task, backbone, head};
use sconce_ops::case::{devices, half_formats, places};
use sconce_ops::{DType, Ladder, Place, Policy, Rung, Tensor, Weights};
use sconce_testkit::{Arrays, Suite, golden, json, materialize, worst};
use serde_json::{Value, json};
use std::sync::Arc;

const MODELS: [&str; 16] = [
    "deberta-base",
    "deberta-mlm",
    "deberta-mlm-legacy",
    "deberta-sequence",
    "deberta-tiny",
    "deberta-token",
    "deberta-unusual",
    "deberta-v2-conv",
    "deberta-v2-mlm",
    "deberta-v2-mlm-legacy",
    "deberta-v2-sequence",
    "deberta-v2-tiny",
    "deberta-v2-token",
    "deberta-v2-unshared",
    "deberta-v2-unusual",
    "deberta-v3-base",
];

/// Relative to the largest value of a layer: goldens are f64 runs stored in f32, and sums in f32
/// are some roundings of 6e-8 away.
const F32: f32 = 1e-5;

/// A golden's files, written to a folder.
struct Files(tempfile::TempDir);

impl Files {
    fn of(name: &str) -> Files {
        Files(materialize(name))
    }

    fn config(&self) -> Value {
        json(&self.0.path().join("config.json"))
    }

    fn weights(&self, dtype: DType, place: &Place) -> Weights {
        Weights::new(Arc::new(Checkpoint::open(self.0.path()).unwrap()), dtype, place.clone())
    }

    fn encoder(&self, dtype: DType, place: &Place) -> Box<dyn Backbone> {
        backbone(&self.config(), &self.weights(dtype, place)).unwrap()
    }
}

fn sequences(arrays: &Arrays) -> Vec<Sequence> {
    let (ids, types, ends) = (arrays.u32("ids"), arrays.u32("type_ids"), arrays.u32("cu_seqlens"));
    let cut = |v: &[u32], w: &[u32]| v[w[0] as usize..w[1] as usize].to_vec();
    ends.values
        .windows(2)
        .map(|w| Sequence { ids: cut(&ids.values, w), types: cut(&types.values, w), ..Sequence::default() })
        .collect()
}

/// Hidden states of every layer, the embeddings first, and the last as a tensor.
fn layers(model: &dyn Backbone, sequences: &[Sequence], place: &Place) -> (Vec<Vec<f32>>, Tensor, Batch) {
    let batch = Batch::new(sequences, model.limits(), place).unwrap();
    let mut seen = Vec::new();
    let last = model.forward(&batch, &mut |_, x: &Tensor| seen.push(x.to_f32().unwrap())).unwrap();
    (seen, last, batch)
}

/// The largest difference relative to the largest value.
fn relative(got: &[f32], want: &[f32]) -> f32 {
    worst(got, want) / want.iter().fold(0.0, |m, v| v.abs().max(m))
}

fn every_layer_and_head_equals_the_reference(kind: &str) {
    for name in MODELS {
        let (files, arrays) = (Files::of(name), Arrays::open(&golden(name).join("golden.safetensors")));
        for (place, force) in places(kind) {
            let on = format!("{}{}", place.device(), force.map_or_else(String::new, |rung| format!(", {rung}")));
            let ladder = Ladder::new(Policy::default().with_force(force));
            let _here = ladder.clone().enter();
            let (seen, last, batch) = layers(&*files.encoder(DType::F32, &place), &sequences(&arrays), &place);
            assert!(!arrays.has(&format!("hidden.{}", seen.len())), "{name}: fewer layers than the golden");
            for (i, got) in seen.iter().enumerate() {
                let off = relative(got, &arrays.f32(&format!("hidden.{i}")).values);
                println!("{name} on {on} layer {i}: {off:.2e}");
                assert!(off <= F32, "{name} on {on} layer {i}: off by {off:.2e}");
            }
            if arrays.has("logits") {
                let task = match name.rsplit('-').next() {
                    Some("sequence") => Task::Classify,
                    Some("token") => Task::Tag,
                    _ => Task::Vocabulary,
                };
                let head = head(task, &files.config(), &files.weights(DType::F32, &place)).unwrap();
                let rows = match task {
                    Task::Classify => head.pooled(&last, &batch, &vec![0; batch.segments.count()]).unwrap(),
                    _ => last,
                };
                let off = relative(&head.forward(&rows).unwrap().to_f32().unwrap(), &arrays.f32("logits").values);
                println!("{name} on {on} logits: {off:.2e}");
                assert!(off <= F32, "{name} on {on} logits: off by {off:.2e}");
            }
            let is_expected = |rung| force.map_or(rung != Rung::Host, |force| rung == force);
            assert!(ladder.counts().iter().all(|(c, n)| is_expected(c.rung) && *n > 0), "{name} on {on}");
        }
    }
}

fn every_encoder_weight_is_read() {
    for name in MODELS {
        let files = Files::of(name);
        let weights = files.weights(DType::F32, &Place::cpu());
        backbone(&files.config(), &weights).unwrap();
        let left: Vec<_> = weights.unused().into_iter().filter(|n| !sconce_models::is_ignorable(n)).collect();
        assert!(left.is_empty(), "{name}: {left:?}");
    }
}

fn batch_does_not_change_a_sequence() {
    for name in ["deberta-tiny", "deberta-v2-conv", "deberta-v2-unusual"] {
        let (files, arrays) = (Files::of(name), Arrays::open(&golden(name).join("golden.safetensors")));
        let (model, sequences) = (files.encoder(DType::F32, &Place::cpu()), sequences(&arrays));
        let together = layers(&*model, &sequences, &Place::cpu()).0.pop().unwrap();
        let alone: Vec<f32> = sequences
            .iter()
            .flat_map(|s| layers(&*model, std::slice::from_ref(s), &Place::cpu()).0.pop().unwrap())
            .collect();
        assert_eq!(together, alone, "{name}: a row is computed in the same order in any batch");
    }
}

/// Half formats round every activation, once per op. On the worst element that leaves some three
/// roundings of a value of the layer's size; a lost term or a wrong row is off by the size itself.
const ROUNDINGS: f32 = 8.0;

fn half_formats_stay_near_f32(kind: &str) {
    let lengths = [1, 2, 17, 512];
    for name in ["deberta-tiny", "deberta-v2-tiny", "deberta-v2-conv"] {
        let files = Files::of(name);
        let ids = |n: usize| (0..n).map(|i| (i * 7 + n) as u32 % 99).collect();
        let sequences = lengths.map(|n| Sequence { ids: ids(n), ..Sequence::default() });
        let want = layers(&*files.encoder(DType::F32, &Place::cpu()), &sequences, &Place::cpu()).0;
        for (place, force) in places(kind).into_iter().filter(|(_, rung)| *rung == Some(Rung::Fused)) {
            let _here = Ladder::new(Policy::default().with_force(force)).enter();
            for dtype in half_formats() {
                let got = layers(&*files.encoder(dtype, &place), &sequences, &place).0;
                for (i, (got, want)) in got.iter().zip(&want).enumerate() {
                    let what = format!("{name} on {} in {dtype}, layer {i}", place.device());
                    assert!(got.iter().all(|v| v.is_finite()), "{what}");
                    let off = relative(got, want) / dtype.unit_roundoff() as f32;
                    println!("{what}: {off:.1} roundings");
                    assert!(off <= ROUNDINGS, "{what}: off by {off:.1} roundings");
                }
            }
        }
    }
}

fn unsupported_settings_are_refused() {
    let error = |name: &str, field: &str, value: Value| {
        let files = Files::of(name);
        let mut config = files.config();
        config[field] = value;
        backbone(&config, &files.weights(DType::F32, &Place::cpu())).err().map(|e| e.to_string()).unwrap_or_default()
    };
    let assert_refused = |name: &str, field: &str, value: Value| {
        let error = error(name, field, value);
        assert!(error.contains(field), "{name} {field}: {error:?}");
    };
    assert_refused("deberta-tiny", "pos_att_type", json!("c2p|p2p"));
    assert_refused("deberta-tiny", "pos_att_type", json!(["c2p", "c2p"]));
    assert_refused("deberta-tiny", "talking_head", json!(true));
    assert_refused("deberta-v2-tiny", "z_steps", json!(2));
    assert_refused("deberta-v2-tiny", "position_buckets", json!(3));
    assert_refused("deberta-v2-tiny", "norm_rel_ebd", json!("batch_norm"));
    assert_refused("deberta-v2-conv", "conv_groups", json!(2));
    assert_refused("deberta-v2-conv", "conv_kernel_size", json!(4));
    assert_refused("deberta-v2-conv", "attention_head_size", json!(24));
    // Sizes whose product overflows.
    assert!(error("deberta-v2-conv", "conv_kernel_size", json!(u64::MAX)).contains("conv.weight"));
    assert!(error("deberta-tiny", "max_relative_positions", json!(i64::MAX)).contains("rel_embeddings"));
    assert!(error("deberta-tiny", "hidden_size", json!(3 * (u64::MAX / 3))).contains("by the configuration"));
}

fn main() {
    Suite::new(devices())
        .on_each("every_layer_and_head_equals_the_reference", every_layer_and_head_equals_the_reference)
        .test("every_encoder_weight_is_read", every_encoder_weight_is_read)
        .test("batch_does_not_change_a_sequence", batch_does_not_change_a_sequence)
        .on_each("half_formats_stay_near_f32", half_formats_stay_near_f32)
        .test("unsupported_settings_are_refused", unsupported_settings_are_refused)
        .run()
}
