//! Sconce on the simulated Metal device: every case of every op on every rung, and a tiny model of every family.

use metal_sim_sconce::warnings;
use sconce_models::{Batch, Sequence, encoder};
use sconce_ops::case::{Variant, check, variants};
use sconce_ops::{DType, Device, Ladder, Place, Policy, Raw, Stored, Rung, Store, Tensor, Weights, cases};
use sconce_testkit::{Arrays, golden, json, materialize, worst};
use std::sync::Arc;

const METAL: Device = Device::Metal(0);

fn metal() -> Place {
    Place::open(METAL).expect("the simulated Metal device")
}

/// `METAL_SIM_OPS="linear softmax"` runs the cases of these ops only, and `METAL_SIM_RUNGS=fused` these rungs.
fn is_wanted(variable: &str, name: &str) -> bool {
    std::env::var(variable).map_or(true, |wanted| wanted.split(' ').any(|w| w == name))
}

#[test]
fn every_case_holds_on_every_rung() {
    let place = metal();
    let (mut fused, mut run, mut failures) = (0, 0, Vec::new());
    let host = Variant { rung: Rung::Host, isa: None };
    for case in cases().into_iter().filter(|case| is_wanted("METAL_SIM_OPS", case.op)) {
        for variant in variants(METAL).into_iter().chain([host]) {
            if !is_wanted("METAL_SIM_RUNGS", &variant.rung.to_string()) {
                continue;
            }
            let Some(outcome) = check(&case, &place, variant) else { continue };
            run += 1;
            fused += u32::from(variant.rung == Rung::Fused);
            if let Some(failure) = outcome.failure {
                failures.push(format!("{} {} {} {variant}: {failure}", case.op, case.name, case.dtype));
            }
        }
    }
    println!("{fused} fused, {run} in all");
    assert!(failures.is_empty(), "{} of {run} do not hold:\n{}", failures.len(), failures.join("\n"));
    assert!(fused > 0 && run > 0, "{fused} fused, {run} in all");
    // Of our kernels nothing may even be suspected; Candle's are its own affair.
    let ours: Vec<String> = warnings().lines().filter(|l| is_ours(l)).map(String::from).collect();
    assert!(ours.is_empty(), "{}", ours.join("\n"));
}

/// Whether a warning is of a kernel of an op's folder, which its name begins with.
fn is_ours(warning: &str) -> bool {
    cases().iter().any(|case| warning.starts_with(&format!("{}_", case.op)))
}

struct Golden(Vec<u8>);

impl Store for Golden {
    fn get(&self, name: &str) -> sconce_ops::Result<Option<Raw<'_>>> {
        let file = safetensors::SafeTensors::deserialize(&self.0).expect("a golden");
        let raw = |t: safetensors::tensor::TensorView<'_>| {
            assert_eq!(t.dtype(), safetensors::Dtype::F32, "{name}");
            let start = t.data().as_ptr() as usize - self.0.as_ptr() as usize;
            Raw { stored: Stored::Float(DType::F32), dims: t.shape().to_vec(), bytes: (&self.0[start..start + t.data().len()]).into() }
        };
        Ok(file.tensor(name).ok().map(raw))
    }
    fn names(&self) -> Vec<String> {
        Vec::new()
    }
}

/// One golden or more of every family, on Metal against the reference, layer by layer, and nothing of it on the host.
#[test]
fn every_family_equals_the_reference_layer_by_layer() {
    let families = [
        "bert-gelu",
        "distilbert-tiny",
        "roberta-tiny",
        "mpnet-tiny",
        "electra-tiny",
        "jina-tiny",
        "nomic-tiny",
        "nomic-moe-tiny",
        "gte-new-tiny",
        "modernbert-tiny",
        "t5-relu",
        "t5-gated",
        "deberta-tiny",
        "deberta-v2-tiny",
        "deberta-v2-conv",
    ];
    families.iter().for_each(|name| equals_the_reference(name));
}

fn equals_the_reference(name: &str) {
    let written = golden(name).join("tensors.json").exists().then(|| materialize(name));
    let dir = written.as_ref().map_or_else(|| golden(name), |dir| dir.path().to_owned());
    let arrays = Arrays::open(&dir.join("golden.safetensors"));
    let ladder = Ladder::new(Policy::default());
    let _here = ladder.clone().enter();
    let place = metal();
    let store = Arc::new(Golden(std::fs::read(dir.join("model.safetensors")).unwrap()));
    let model = encoder(&json(&dir.join("config.json")), &Weights::new(store, DType::F32, place.clone())).unwrap();
    let (ids, types) = (arrays.u32("ids").values, arrays.u32("type_ids").values);
    let ends = arrays.u32("cu_seqlens").values;
    let cut = |v: &[u32], w: &[u32]| v[w[0] as usize..w[1] as usize].to_vec();
    let sequences: Vec<Sequence> =
        ends.windows(2).map(|w| Sequence { ids: cut(&ids, w), types: cut(&types, w), keys: None }).collect();
    let batch = Batch::new(&sequences, model.limits(), &place).unwrap();
    let mut seen = Vec::new();
    model.forward(&batch, &mut |_, x: &Tensor| seen.push(x.to_f32().unwrap())).unwrap();
    for (i, got) in seen.iter().enumerate() {
        // As on the CPU: of the layer's largest value. Metal's own exp and erf may add a rounding or two to each layer.
        let want = arrays.f32(&format!("hidden.{i}")).values;
        let off = worst(got, &want) / worst(&want, &vec![0.0; want.len()]);
        assert!(off <= 1e-5, "{name}, layer {i}: off by {off:.2e}");
    }
    for (counted, _) in ladder.counts() {
        assert_eq!(counted.device, METAL);
        assert_ne!(counted.rung, Rung::Host, "{name}: {}", counted.op);
    }
}
