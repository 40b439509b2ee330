//! Every case of every op on the simulated Metal device, on every rung.

use metal_sim_sconce::warnings;
use sconce_ops::case::{Variant, check, variants};
use sconce_ops::{
    Cache, CacheFormat, CacheShape, DType, Device, Place, Projected, Raw, Result, Rotary, Rung, Store, Tensor, Vectors,
    Weights, cases,
};
use std::collections::BTreeSet;
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
    // Of our kernels nothing may even be suspected; Candle's are its own affair. Ours are named after an op's folder, or after that
    // of the block formats.
    let ops: BTreeSet<String> =
        cases().iter().map(|case| case.op).chain(["quant"]).map(|op| format!("{op}_")).collect();
    let is_ours = |warning: &&str| ops.iter().any(|op| warning.starts_with(op));
    let ours: Vec<String> = warnings().lines().filter(is_ours).map(String::from).collect();
    assert!(ours.is_empty(), "{}", ours.join("\n"));
}

/// A file of nothing.
struct Nothing;

impl Store for Nothing {
    fn get(&self, _: &str) -> Result<Option<Raw<'_>>> {
        Ok(None)
    }
    fn names(&self) -> Vec<String> {
        Vec::new()
    }
}

/// The one dispatch that turns and stores gives, to the bit, what turning and storing give one after another.
#[test]
fn turning_while_storing_changes_no_number() {
    const TOKENS: usize = 4;
    let place = metal();
    let (positions, rows) = ([3, 0, 40, 17], [2, 5, 0, 4]);
    let (positions, rows) =
        (Tensor::from_u32(&positions, &place).expect("positions"), Tensor::from_u32(&rows, &place).expect("rows"));
    for (dtype, format, (size, dims)) in DType::FLOATS.into_iter().flat_map(|dtype| {
        let shapes = move |format| [(64, 64), (96, 96), (32, 20)].map(|shape| (dtype, format, shape));
        CacheFormat::ALL.into_iter().flat_map(shapes)
    }) {
        let weights = Weights::new(Arc::new(Nothing), dtype, place.clone());
        let rotary = Rotary::new(&weights, &Rotary::frequencies(100.0, dims), 50).expect("tables");
        let values: Vec<f32> = (0..TOKENS * 7 * size).map(|i| ((i * 7919) as f32 * 0.37).sin() * 3.0).collect();
        let x = Tensor::from_f32(&values, &[TOKENS, 7, size], dtype, &place).expect("a projection");
        let part = |from, heads| x.narrow(1, from, heads).expect("a part");
        let (q, k, v) = (part(0, 3), part(3, 2), part(5, 2));
        let caches = [(); 2].map(|()| Cache::new(CacheShape { layers: 1, heads: 2, size }, 6, format, &place));
        let [once, twice] = caches.map(|cache| cache.expect("a cache"));
        let kept = |cache: &Cache| cache.layer(0).expect("a layer").clone();
        let all = Projected { q: &q, k: &k, v: &v, positions: &positions };
        let got = rotary.forward_and_store(all, &kept(&once), &rows).expect("queries");
        let turned = |x| rotary.forward(x, &positions).expect("turned");
        twice.write(0, &turned(&k), &v, &rows).expect("written");
        let floats = |q: &Tensor, cache: &[Vectors; 2]| {
            [q.to_f32(), cache[0].to_f32(), cache[1].to_f32()].map(|x| x.expect("numbers"))
        };
        let (got, want) = (floats(&got, &kept(&once)), floats(&turned(&q), &kept(&twice)));
        assert_eq!(got, want, "{dtype}, {dims} of {size} in {format}");
    }
}
