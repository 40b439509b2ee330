//! CLIP and SigLIP against transformers, tower by tower and layer by layer.

use sconce_engine::Checkpoint;
use sconce_models::{Batch, Dual, DualKind as Kind, Images, Sequence, TextTower, VisionTower, dual};
use sconce_ops::case::{devices, half_formats, places};
use sconce_ops::{DType, Device, Ladder, Place, Policy, Rung, Tensor, Weights, l2_norm};
use sconce_testkit::{Arrays, Suite, golden, json, materialize, worst};
use serde_json::{Value, json};
use std::sync::Arc;

const MODELS: [&str; 10] = [
    "clip-base",
    "clip-gelu-eos",
    "clip-text",
    "clip-tiny",
    "clip-vision",
    "siglip-base",
    "siglip-projection",
    "siglip-text",
    "siglip-tiny",
    "siglip-vision",
];

/// Relative to the largest value of a layer: goldens are f64 runs stored in f32, and sums in f32
/// are some roundings of 6e-8 away.
const F32: f32 = 1e-5;

/// Half formats round every activation, once per op. On the worst element that leaves some three
/// roundings of a value of the layer's size; a lost term or a wrong row is off by the size itself.
const ROUNDINGS: f32 = 8.0;

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

    fn dual(&self, dtype: DType, place: &Place) -> Dual {
        dual(&self.config(), &self.weights(dtype, place)).unwrap()
    }
}

fn sequences(arrays: &Arrays) -> Vec<Sequence> {
    let (ids, ends) = (arrays.u32("ids"), arrays.u32("cu_seqlens"));
    let cut = |w: &[u32]| ids.values[w[0] as usize..w[1] as usize].to_vec();
    ends.values.windows(2).map(|w| Sequence { ids: cut(w), ..Sequence::default() }).collect()
}

/// Hidden states of every layer, and the embeddings.
type TowerOutputs = (Vec<Vec<f32>>, Tensor);

fn texts(tower: &dyn TextTower, sequences: &[Sequence], place: &Place) -> TowerOutputs {
    let batch = Batch::new(sequences, tower.limits(), place).unwrap();
    let mut seen = Vec::new();
    let vectors = tower.forward(&batch, &mut |_, x: &Tensor| seen.push(x.to_f32().unwrap())).unwrap();
    (seen, vectors)
}

fn images(tower: &dyn VisionTower, pixels: &[&[f32]], dtype: DType, place: &Place) -> TowerOutputs {
    let images = Images::new(pixels, tower.image(), dtype, place).unwrap();
    let mut seen = Vec::new();
    let vectors = tower.forward(&images, &mut |_, x: &Tensor| seen.push(x.to_f32().unwrap())).unwrap();
    (seen, vectors)
}

fn split_images(arrays: &Arrays, tower: &dyn VisionTower) -> Vec<Vec<f32>> {
    let side = tower.image().side;
    arrays.f32("pixels").values.chunks(3 * side * side).map(<[f32]>::to_vec).collect()
}

fn as_slices(pixels: &[Vec<f32>]) -> Vec<&[f32]> {
    pixels.iter().map(Vec::as_slice).collect()
}

/// The largest difference relative to the largest value.
fn relative(got: &[f32], want: &[f32]) -> f32 {
    worst(got, want) / want.iter().fold(0.0, |m, v| v.abs().max(m))
}

fn check(what: &str, got: &[f32], want: &[f32]) {
    let off = relative(got, want);
    println!("{what}: {off:.2e}");
    assert!(off <= F32, "{what}: off by {off:.2e}");
}

/// Compares a tower's layers and embeddings with the golden's, whose names begin with `prefix`.
fn check_tower(what: &str, (seen, vectors): &TowerOutputs, arrays: &Arrays, prefix: &str, embeds: &str) {
    assert!(!arrays.has(&format!("{prefix}hidden.{}", seen.len())), "{what}: fewer layers than the golden");
    for (i, got) in seen.iter().enumerate() {
        check(&format!("{what} {prefix}layer {i}"), got, &arrays.f32(&format!("{prefix}hidden.{i}")).values);
    }
    check(&format!("{what} {embeds}"), &vectors.to_f32().unwrap(), &arrays.f32(embeds).values);
}

fn every_layer_and_embedding_equals_the_reference(kind: &str) {
    for name in MODELS {
        let (files, arrays) = (Files::of(name), Arrays::open(&golden(name).join("golden.safetensors")));
        for (place, force) in places(kind) {
            let ladder = Ladder::new(Policy::default().with_force(force));
            let _here = ladder.clone().enter();
            let on = force.map_or_else(String::new, |rung| format!(", {rung}"));
            let what = format!("{name} on {}{on}", place.device());
            let model = files.dual(DType::F32, &place);
            let text = model.text.as_deref().map(|tower| texts(tower, &sequences(&arrays), &place));
            let image =
                model.vision.as_deref().map(|t| images(t, &as_slices(&split_images(&arrays, t)), DType::F32, &place));
            assert_eq!((text.is_some(), image.is_some()), (arrays.has("ids"), arrays.has("pixels")), "{name}");
            for (seen, prefix, embeds) in [(&text, "", "text_embeds"), (&image, "vision.", "image_embeds")] {
                let Some(seen) = seen else { continue };
                check_tower(&what, seen, &arrays, prefix, embeds);
                assert_eq!(seen.1.dims()[1], model.dimension, "{name}");
            }
            if let (Some((_, text)), Some((_, image))) = (text, image) {
                let [text, image] = [text, image].map(|t| l2_norm(&t).unwrap().to_f32().unwrap());
                check(&format!("{what} normalised texts"), &text, &arrays.f32("text_embeds.normalized").values);
                let dot = |a: &[f32], b: &[f32]| a.iter().zip(b).map(|(a, b)| a * b).sum::<f32>();
                let of_image = |i| text.chunks(model.dimension).map(move |t| dot(i, t));
                let cosines = image.chunks(model.dimension).flat_map(of_image);
                let logits: Vec<f32> = cosines.map(|c| c * model.logit_scale + model.logit_bias).collect();
                // Cosines cancel, so logits are compared relative to the logit of a cosine of one.
                let off = worst(&logits, &arrays.f32("logits_per_image").values) / model.logit_scale;
                println!("{what} logits: {off:.2e}");
                assert!(off <= F32, "{what} logits: off by {off:.2e}");
            }
            let is_expected = |rung| force.map_or(rung != Rung::Host, |force| rung == force);
            assert!(ladder.counts().iter().all(|(c, n)| is_expected(c.rung) && *n > 0), "{what}");
        }
    }
}

fn every_weight_is_read() {
    for name in MODELS {
        let files = Files::of(name);
        let weights = files.weights(DType::F32, &Place::cpu());
        let model = dual(&files.config(), &weights).unwrap();
        assert_eq!(weights.unused(), Vec::<String>::new(), "{name}");
        assert_eq!(model.kind, if name.starts_with("clip") { Kind::Softmax } else { Kind::Sigmoid });
    }
}

fn only_siglip_pads_texts() {
    let padding =
        |name: &str| Files::of(name).dual(DType::F32, &Place::cpu()).text.map(|t| (t.padding(), t.limits().positions));
    assert_eq!(padding("clip-tiny"), Some((None, 20)));
    assert_eq!(padding("siglip-projection"), Some((Some(16), 16)));
}

fn batch_does_not_change_a_text_or_an_image() {
    for name in ["clip-tiny", "siglip-tiny"] {
        let (files, arrays) = (Files::of(name), Arrays::open(&golden(name).join("golden.safetensors")));
        let model = files.dual(DType::F32, &Place::cpu());
        let (text, vision) = (model.text.as_deref().unwrap(), model.vision.as_deref().unwrap());
        let (sequences, pixels) = (sequences(&arrays), split_images(&arrays, vision));
        let pixels = as_slices(&pixels);
        let values = |seen: TowerOutputs| seen.1.to_f32().unwrap();
        let alone: Vec<f32> =
            sequences.iter().flat_map(|s| values(texts(text, std::slice::from_ref(s), &Place::cpu()))).collect();
        assert_eq!(values(texts(text, &sequences, &Place::cpu())), alone, "{name}");
        let alone: Vec<f32> =
            pixels.iter().flat_map(|p| values(images(vision, &[p], DType::F32, &Place::cpu()))).collect();
        assert_eq!(values(images(vision, &pixels, DType::F32, &Place::cpu())), alone, "{name}");
    }
}

fn half_formats_stay_near_f32(kind: &str) {
    for name in ["clip-tiny", "siglip-tiny"] {
        let (files, arrays) = (Files::of(name), Arrays::open(&golden(name).join("golden.safetensors")));
        let run = |dtype, place: &Place| {
            let model = files.dual(dtype, place);
            let (text, vision) = (model.text.as_deref().unwrap(), model.vision.as_deref().unwrap());
            let longest = text.limits().positions;
            let ids = |n: usize| (0..n).map(|i| (i * 7 + n) as u32 % 99).collect();
            let sequences = [1, 2, 17, longest].map(|n| Sequence { ids: ids(n), ..Sequence::default() });
            [texts(text, &sequences, place), images(vision, &as_slices(&split_images(&arrays, vision)), dtype, place)]
        };
        let want = run(DType::F32, &Place::cpu());
        for (place, force) in places(kind).into_iter().filter(|(_, rung)| *rung == Some(Rung::Fused)) {
            let _here = Ladder::new(Policy::default().with_force(force)).enter();
            for dtype in half_formats() {
                for ((got, vectors), (want, exact)) in run(dtype, &place).iter().zip(&want) {
                    assert_eq!(vectors.dtype(), DType::F32);
                    let last = (&vectors.to_f32().unwrap(), &exact.to_f32().unwrap());
                    for (i, (got, want)) in got.iter().zip(want).chain([last]).enumerate() {
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
}

fn phantom_run_gives_the_output_shapes() {
    for name in ["clip-tiny", "siglip-tiny"] {
        let (files, place) = (Files::of(name), Place::phantom(Device::Metal(0)));
        let model = dual(&files.config(), &files.weights(DType::F16, &place)).unwrap();
        let (text, vision) = (model.text.unwrap(), model.vision.unwrap());
        let batch = Batch::new(&[Sequence { ids: vec![0; 9], ..Sequence::default() }], text.limits(), &place).unwrap();
        assert_eq!(text.forward(&batch, &mut |_, _| {}).unwrap().dims(), [1, model.dimension]);
        let side = vision.image().side;
        let pixels = vec![0.0; 3 * side * side];
        let images = Images::new(&[&pixels, &pixels], vision.image(), DType::F16, &place).unwrap();
        assert_eq!(vision.forward(&images, &mut |_, _| {}).unwrap().dims(), [2, model.dimension]);
    }
}

fn unsupported_settings_are_refused() {
    let assert_refused = |name: &str, change: &dyn Fn(&mut Value), why: &str| {
        let files = Files::of(name);
        let mut config = files.config();
        change(&mut config);
        let error = dual(&config, &files.weights(DType::F32, &Place::cpu())).err().map(|e| e.to_string());
        assert!(error.as_ref().is_some_and(|e| e.contains(why)), "{name} {why}: {error:?}");
    };
    assert_refused("siglip-tiny", &|c| c["model_type"] = json!("siglip2"), "variable image sizes");
    assert_refused("siglip-tiny", &|c| c["model_type"] = json!("bert"), "no text and image towers");
    assert_refused("siglip-tiny", &|c| c["vision_config"]["vision_use_head"] = json!(false), "vision_use_head");
    assert_refused("siglip-tiny", &|c| c["vision_config"]["image_size"] = json!(48), "position_embedding");
    assert_refused("siglip-projection", &|c| c["text_config"]["projection_size"] = json!(36), "head");
    assert_refused("clip-tiny", &|c| c["vision_config"]["num_channels"] = json!(1), "num_channels");
    assert_refused("clip-tiny", &|c| c["vision_config"]["patch_size"] = json!(0), "patch_size");
    let huge = |c: &mut Value| {
        for size in ["image_size", "patch_size"] {
            c["vision_config"][size] = json!(1u64 << 40);
        }
    };
    assert_refused("clip-tiny", &huge, "patch_size");
    assert_refused("clip-tiny", &|c| c["text_config"]["eos_token_id"] = json!([2, 3]), "invalid type");
    assert_refused("clip-tiny", &|c| c["text_config"] = json!([]), "not an object");
}

/// The oldest files repeat a tower's configuration, and transformers uses the repetition.
fn text_config_dict_overrides_text_config() {
    let files = Files::of("clip-tiny");
    let mut config = files.config();
    config["text_config_dict"] = config["text_config"].take();
    config["text_config"] = json!({ "hidden_size": 12 });
    config["vision_config_dict"] = Value::Null;
    assert!(dual(&config, &files.weights(DType::F32, &Place::cpu())).is_ok());
}

fn main() {
    Suite::new(devices())
        .on_each("every_layer_and_embedding_equals_the_reference", every_layer_and_embedding_equals_the_reference)
        .test("every_weight_is_read", every_weight_is_read)
        .test("only_siglip_pads_texts", only_siglip_pads_texts)
        .test("batch_does_not_change_a_text_or_an_image", batch_does_not_change_a_text_or_an_image)
        .on_each("half_formats_stay_near_f32", half_formats_stay_near_f32)
        .test("phantom_run_gives_the_output_shapes", phantom_run_gives_the_output_shapes)
        .test("unsupported_settings_are_refused", unsupported_settings_are_refused)
        .test("text_config_dict_overrides_text_config", text_config_dict_overrides_text_config)
        .run()
}
