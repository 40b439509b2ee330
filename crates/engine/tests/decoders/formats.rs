//! Formats of weights and of the KV cache that round: the logits stay close to those in f32.

use crate::{CachedSequence, Model, PAGE, assert_close};
use sconce_ops::case::places;
use sconce_ops::{DType, Device, KvCache, KvCacheFormat, Ladder, Place, Policy, Quant, Rung, Tensor, WeightFormat};
use sconce_testkit::{Arrays, golden, json, materialize, worst};
use serde_json::Value;

/// Quantization shows in the logits, but no more than its bits allow.
pub(crate) fn quantization_while_loading_keeps_logits_close() {
    let (dir, arrays) = (materialize("phi-4-mini"), Arrays::open(&golden("phi-4-mini").join("golden.safetensors")));
    let (ids, bounds) = (arrays.u32("ids").values, arrays.u32("cu_seqlens").values);
    let want = arrays.f32("logits").values;
    let prompt = &ids[bounds[1] as usize..bounds[2] as usize];
    let vocabulary = want.len() / ids.len();
    let want = &want[bounds[1] as usize * vocabulary..bounds[2] as usize * vocabulary];
    // Its rows of 64 are whole blocks of 32; they are not whole blocks of 256, and Q8_0 is used
    // instead. Logits of another model would be off by four spreads and more.
    for (quant, least, most) in [(Quant::Q8_0, 1e-3, 0.25), (Quant::Q4_0, 0.02, 2.0), (Quant::Q4K, 1e-3, 0.25)] {
        let model = Model::load_as(dir.path(), Some(16), &Place::cpu(), (DType::F32, WeightFormat::Blocks(quant)));
        let got = model.packed(&[prompt], &mut Vec::new());
        assert_close(&format!("in {quant}"), &got, want, most);
        assert!(f64::from(worst(&got, want)) > least, "{quant} rounds nothing: {}", worst(&got, want));
    }
}

/// The root mean square error.
fn rms(got: &[f32], want: &[f32]) -> f64 {
    let sum: f64 = got.iter().zip(want).map(|(a, b)| f64::from(a - b).powi(2)).sum();
    (sum / want.len() as f64).sqrt()
}

/// A KV cache in blocks of 8 bits: close to f32; and reading stored blocks gives the same result in
/// a batch, after a shared prefix, and in copied pages.
pub(crate) fn q8_kv_cache_stays_close_to_f32(kind: &str) {
    let (dir, arrays) =
        (materialize("llama-head-dim"), Arrays::open(&golden("llama-head-dim").join("golden.safetensors")));
    let (ids, bounds) = (arrays.u32("ids").values, arrays.u32("cu_seqlens").values);
    let prompt = &ids[bounds[2] as usize..bounds[3] as usize];
    // The same matrices, with half as many heads of twice the size, which is a block.
    let path = dir.path().join("config.json");
    let mut config: Value = json(&path);
    for (key, n) in [("num_attention_heads", 2), ("num_key_value_heads", 1), ("head_dim", 32)] {
        config[key] = n.into();
    }
    std::fs::write(&path, config.to_string()).expect("a configuration");
    for (place, rung) in places(kind) {
        let _here = Ladder::new(Policy::default().with_force(rung)).enter();
        let model = Model::load(dir.path(), None, &place);
        let what = format!("on {} ({rung:?})", place.device());
        let v = model.vocabulary;
        let whole = |table: &[u32]| CachedSequence { ids: prompt.to_vec(), table: table.into() };
        let (a, b) = (whole(&[7, 3, 9, 1, 20]), whole(&[11, 12, 13, 14, 15]));
        // The prompt except its last tokens at once, and then these one by one.
        let (n, first) = (prompt.len(), 30);
        let cut = |s: &CachedSequence, n: usize| CachedSequence { ids: s.ids[..n].to_vec(), ..s.clone() };
        let decode_stepwise = |cache: &KvCache, s: &CachedSequence, read: usize| -> Vec<f32> {
            let mut all = Vec::new();
            if read < first {
                all = model.decode(cache, &[(&cut(s, first), read, first - read)]);
            }
            (first.max(read)..n).for_each(|i| all.extend(model.decode(cache, &[(&cut(s, i + 1), i, 1)])));
            all
        };
        let cache = model.cache_in(KvCacheFormat::Q8, 32);
        let (got, want) = (decode_stepwise(&cache, &a, 0), decode_stepwise(&model.cache(32), &a, 0));
        let f16 = decode_stepwise(&model.cache_in(KvCacheFormat::Float(DType::F16), 32), &a, 0);
        // A code is off by at most 1/254 of its block's largest value, which among 32 normal ones
        // is about twice their deviation: half a percent of that on average, 18 times the error of
        // f16. Measured: 23 times (f16 by 1.8e-3, logits spread by 2.3).
        let times = rms(&got, &want) / rms(&f16, &want);
        assert!((5.0..40.0).contains(&times), "{what}: {times} times as far off as in f16");
        // A stored block is read again to the bit: alone, beside another, and after a prefix that
        // another sequence wrote. Candle's products differ in the last bits with the batch, and so
        // do cuBLAS's.
        let assert_same = |got: &[f32], want: &[f32], case: &str| match rung {
            Some(Rung::Fused) if !matches!(place.device(), Device::Cuda(_)) => assert_eq!(got, want, "{what}, {case}"),
            _ => assert_close(&format!("{what}, {case}"), got, want, 1e-5),
        };
        let last = |s: &CachedSequence| model.decode(&cache, &[(s, n - 1, 1)]);
        assert_same(&last(&a), &got[(n - 1) * v..], "again");
        decode_stepwise(&cache, &b, 0);
        let both = model.decode(&cache, &[(&b, n - 1, 1), (&a, n - 1, 1)]);
        both.chunks(v).for_each(|one| assert_same(one, &got[(n - 1) * v..], "in a batch"));
        let shared = whole(&[7, 3, 9, 25, 26]);
        assert_same(&decode_stepwise(&cache, &shared, 24), &decode_stepwise(&cache, &b, 24), "after a shared prefix");
        // A shared page that is copied.
        let rows = |page: u32| page * PAGE as u32..(page + 1) * PAGE as u32;
        let rows = |page| Tensor::from_u32(&rows(page).collect::<Vec<_>>(), &place).expect("rows");
        cache.copy(&rows(9), &rows(30)).expect("a copy");
        assert_same(&last(&whole(&[7, 3, 30, 25, 26])), &last(&shared), "in a copied page");
    }
}
