//! Every case of every op on the simulated Metal device, on every rung.

use metal_sim_sconce::warnings;
use sconce_ops::case::{Variant, check, is_rung_wanted, variants, wanted};
use sconce_ops::{
    Activation, DType, Device, ExpertParts, Experts, KvCache, KvCacheFormat, KvCacheShape, KvTensor, Linear, Place,
    Projected, Quant, Raw, Result, Rotary, Rung, Store, Stored, Tensor, WeightFormat, Weights, cases, embed,
};
use std::collections::BTreeSet;
use std::sync::Arc;

const METAL: Device = Device::Metal(0);

fn metal() -> Place {
    Place::open(METAL).expect("the simulated Metal device")
}

#[test]
fn every_case_holds_on_every_rung() {
    let place = metal();
    let (mut fused, mut run, mut failures) = (0, 0, Vec::new());
    let host = Variant { rung: Rung::Host, isa: None };
    // `METAL_SIM_STOP=1` stops at the first failure. With `METAL_SIM_TRACE=1` the dispatches of a
    // case are printed below its name.
    let (stops, traces) = (std::env::var("METAL_SIM_STOP").is_ok(), std::env::var("METAL_SIM_TRACE").is_ok());
    for case in wanted(METAL) {
        if stops && !failures.is_empty() {
            break;
        }
        if traces {
            eprintln!("{} {} {}", case.op, case.name, case.dtype);
        }
        for variant in variants(METAL).into_iter().chain([host]) {
            if !is_rung_wanted(variant.rung) {
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
    // Our kernels must cause no warning; Candle's may. Ours are named after an op's folder, or
    // after `quant`.
    let ops: BTreeSet<String> =
        cases().iter().map(|case| case.op).chain(["quant"]).map(|op| format!("{op}_")).collect();
    let is_ours = |warning: &&str| ops.iter().any(|op| warning.starts_with(op));
    let ours: Vec<String> = warnings().lines().filter(is_ours).map(String::from).collect();
    assert!(ours.is_empty(), "{}", ours.join("\n"));
}

/// A file with one matrix in blocks, no two of which are the same; or with no tensor.
struct File(Option<[usize; 2]>);

impl Store for File {
    fn get(&self, _: &str) -> Result<Option<Raw<'_>>> {
        Ok(self.0.map(|dims| {
            let blocks = dims[0] * dims[1] / 32;
            let bytes = (0..blocks).flat_map(|i| [0x3c00 + i as u16; 17].map(u16::to_le_bytes)).flatten().collect();
            Raw { stored: Stored::Blocks(Quant::Q8_0), dims: dims.to_vec(), bytes }
        }))
    }
    fn names(&self) -> Vec<String> {
        Vec::new()
    }
}

/// The joint dispatch of rotary embedding and KV cache write gives bitwise the same result as the
/// two calls.
#[test]
fn rotary_with_kv_write_equals_separate_calls() {
    const TOKENS: usize = 4;
    let place = metal();
    let (positions, rows) = ([3, 0, 40, 17], [2, 5, 0, 4]);
    let (positions, rows) =
        (Tensor::from_u32(&positions, &place).expect("positions"), Tensor::from_u32(&rows, &place).expect("rows"));
    for (dtype, format, (size, dims)) in DType::FLOATS.into_iter().flat_map(|dtype| {
        let shapes = move |format| [(64, 64), (96, 96), (32, 20)].map(|shape| (dtype, format, shape));
        KvCacheFormat::ALL.into_iter().flat_map(shapes)
    }) {
        let weights = Weights::new(Arc::new(File(None)), dtype, place.clone());
        let rotary = Rotary::new(&weights, &Rotary::frequencies(100.0, dims), 50).expect("tables");
        let values: Vec<f32> = (0..TOKENS * 7 * size).map(|i| ((i * 7919) as f32 * 0.37).sin() * 3.0).collect();
        let x = Tensor::from_f32(&values, &[TOKENS, 7, size], dtype, &place).expect("a projection");
        let part = |from, heads| x.narrow(1, from, heads).expect("a part");
        let (q, k, v) = (part(0, 3), part(3, 2), part(5, 2));
        let caches = [(); 2].map(|()| KvCache::new(KvCacheShape { layers: 1, heads: 2, size }, 6, format, &place));
        let [once, twice] = caches.map(|cache| cache.expect("a cache"));
        let layer = |cache: &KvCache| cache.layer(0).expect("a layer").clone();
        let all = Projected { q: &q, k: &k, v: &v, positions: &positions };
        let got = rotary.forward_and_write_kv(all, &layer(&once), &rows).expect("queries");
        let rotated = |x| rotary.forward(x, &positions).expect("rotated");
        twice.write(0, &rotated(&k), &v, &rows).expect("written");
        let floats = |q: &Tensor, cache: &[KvTensor; 2]| {
            [q.to_f32(), cache[0].to_f32(), cache[1].to_f32()].map(|x| x.expect("numbers"))
        };
        let (got, want) = (floats(&got, &layer(&once)), floats(&rotated(&q), &layer(&twice)));
        assert_eq!(got, want, "{dtype}, {dims} of {size} in {format}");
    }
}

/// Invalid indices read and write nothing out of bounds: a token id or a position beyond the last
/// counts as the last, and a row beyond the KV cache is not written.
#[test]
fn out_of_range_indices_stay_in_bounds() {
    let place = metal();
    let numbers = |values: &[u32]| Tensor::from_u32(values, &place).expect("numbers");
    let floats = |x: Tensor| x.to_f32().expect("floats");
    let table = |rows: usize, n: usize| {
        let values: Vec<f32> = (0..rows * n).map(|i| i as f32).collect();
        Tensor::from_f32(&values, &[rows, n], DType::F32, &place).expect("a table")
    };
    let (beyond, last) = (numbers(&[1, 5, u32::MAX]), numbers(&[1, 4, 4]));

    let words = table(5, 64);
    let look_up = |ids: &Tensor| floats(embed(&[(&words, ids)]).expect("rows"));
    assert_eq!(look_up(&beyond), look_up(&last));
    let weights =
        Weights::new(Arc::new(File(Some([5, 64]))), DType::F32, place.clone()).with_format(WeightFormat::File);
    let blocks = Linear::load(&weights, 64, 5, false).expect("words in blocks");
    let look_up = |ids: &Tensor| floats(blocks.embed(ids, 1.0, Some((&words, ids))).expect("rows"));
    assert_eq!(look_up(&beyond), look_up(&last));

    let weights = Weights::new(Arc::new(File(None)), DType::F32, place.clone());
    let rotary = Rotary::new(&weights, &Rotary::frequencies(100.0, 32), 5).expect("tables of five positions");
    let x = Tensor::from_f32(&floats(table(9, 32)), &[3, 3, 32], DType::F32, &place).expect("a projection");
    let rotated = |at: &Tensor| floats(rotary.forward(&x, at).expect("rotated"));
    assert_eq!(rotated(&beyond), rotated(&last));

    // Only row 1 is written and copied. There are many more rows than tokens, so that a row taken
    // for a token index would be out of bounds of x.
    const ROWS: usize = 4000;
    let rows = numbers(&[1, ROWS as u32, u32::MAX]);
    let part = |from| x.narrow(1, from, 1).expect("a part");
    let (q, k, v) = (part(0), part(1), part(2));
    for format in [KvCacheFormat::Float(DType::F32), KvCacheFormat::Q8] {
        let cache =
            || KvCache::new(KvCacheShape { layers: 1, heads: 1, size: 32 }, ROWS, format, &place).expect("a cache");
        let stored_values =
            |cache: &KvCache| cache.layer(0).expect("a layer").clone().map(|x| x.to_f32().expect("values"));
        let first = |x: &Tensor| x.narrow(0, 0, 1).expect("the first token");
        let (all, one, rotated_cache) = (cache(), cache(), cache());
        all.write(0, &k, &v, &rows).expect("written");
        one.write(0, &first(&k), &first(&v), &numbers(&[1])).expect("written");
        assert_eq!(stored_values(&all), stored_values(&one), "{format}");
        all.copy(&numbers(&[u32::MAX, 1, 1]), &numbers(&[1, u32::MAX, 3])).expect("copied");
        one.copy(&numbers(&[1]), &numbers(&[3])).expect("copied");
        assert_eq!(stored_values(&all), stored_values(&one), "{format}");
        let layer = rotated_cache.layer(0).expect("a layer").clone();
        let rotate = |positions: &Tensor| {
            let all = Projected { q: &q, k: &k, v: &v, positions };
            floats(rotary.forward_and_write_kv(all, &layer, &rows).expect("rotated"))
        };
        assert_eq!(rotate(&beyond), rotate(&last), "{format}");
        let row = &stored_values(&rotated_cache)[1];
        assert!(row.iter().enumerate().all(|(i, v)| (*v != 0.0) == (i / 32 == 1)), "{format}: {row:?}");
    }
}

/// A token whose hidden state is NaN is routed to no expert, and does not change the other tokens.
#[test]
fn nan_token_does_not_affect_other_tokens() {
    const N: usize = 32;
    let place = metal();
    let weights = Weights::new(Arc::new(File(Some([N, N]))), DType::F32, place.clone()).with_format(WeightFormat::File);
    let matrices: Vec<Linear> = (0..4).map(|_| Linear::load(&weights, N, N, false).expect("a matrix")).collect();
    let tensor = |values: &[f32], rows| Tensor::from_f32(values, &[rows, N], DType::F32, &place).expect("a tensor");
    let values: Vec<f32> = (0..4 * N).map(|i| (i as f32 * 0.7).sin()).collect();
    let parts = ExpertParts { up: &matrices, down: &matrices, bias: None };
    let layer = Experts::new(tensor(&values, 4), parts, Activation::Gelu, 2).expect("experts");
    let forward = |x: &[f32]| layer.forward(&tensor(x, 3)).and_then(|y| y.to_f32()).expect("a result");
    let whole = forward(&values[..3 * N]);
    let mut broken = values[..3 * N].to_vec();
    broken[N..2 * N].fill(f32::NAN);
    for (i, (y, whole)) in forward(&broken).into_iter().zip(whole).enumerate() {
        assert!(if i / N == 1 { y.is_nan() } else { y == whole }, "{y} for {whole} at {i}");
    }
}
