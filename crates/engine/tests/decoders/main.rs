//! Every language model against its reference: hidden states of each layer, logits of every
//! position, and 32 greedy steps with a KV cache; and batched against alone, chunked against at
//! once.

mod formats;

use sconce_engine::Checkpoint;
use sconce_models::{Backbone, Batch, CONTEXT, KvView, LmHead, Sequence, TokenChunk, backbone, lm_head};
use sconce_ops::case::{devices, half_formats, places};
use sconce_ops::{DType, KvCache, KvCacheFormat, KvCacheShape, Ladder, Place, Policy, WeightFormat, Weights};
use sconce_testkit::{Arrays, Half, Suite, golden, json, materialize, worst};
use serde_json::Value;
use std::sync::Arc;

/// The worst logit, relative to the spread of the reference's. References are computed in f64
/// throughout, and the same model in f32 in the reference implementation is up to 4e-5 away from
/// them.
const WORST: f64 = 1e-4;

/// Rows of bf16 and f16: see [`Half`]. Measured on the CPU, fused and composed: half of the rows of
/// a model within 4.5, the worst 15, in Phi-3 with factors for long texts, whose scores are larger
/// than others'; without it 3.3 and 12. If a sequence reads another's pages they are 40 to 190.
const HALF: [f64; 2] = [6.0, 20.0];

/// The fraction of a mixture's rows (some sixty) that may be routed to another expert, or attend to
/// such a row.
const STRAYS: f64 = 0.25;

/// Rows per page of the KV cache: few, so that forty tokens take many pages.
const PAGE: usize = 8;

/// The part of a golden that is compared.
struct Part {
    name: &'static str,
    /// The longest sequence; the model's own limit by default.
    context: Option<usize>,
    prompts: &'static [usize],
    /// How many of the greedy steps.
    steps: usize,
}

const fn all(name: &'static str) -> Part {
    Part { name, context: None, prompts: &[0, 1, 2], steps: 32 }
}

struct Model {
    encoder: Box<dyn Backbone>,
    head: LmHead,
    place: Place,
    dtype: DType,
    vocabulary: usize,
}

/// One sequence in the KV cache.
#[derive(Clone)]
struct CachedSequence {
    ids: Vec<u32>,
    table: Arc<[u32]>,
}

/// The contents of a golden.
struct Expected<'a> {
    prompts: Vec<&'a [u32]>,
    /// Logits of every token of the prompts.
    logits: Vec<f32>,
    /// The index of one prompt and its hidden states.
    layers: Option<(usize, Vec<Vec<f32>>)>,
    /// See [`Half`].
    strays: f64,
}

/// Sequences in pages from the last to the first, so that no table is in order.
fn scatter_pages(prompts: &[&[u32]]) -> Vec<CachedSequence> {
    let mut free = (0..32u32).rev();
    let mut table = |ids: &[u32]| free.by_ref().take(ids.len().div_ceil(PAGE)).collect();
    prompts.iter().map(|ids| CachedSequence { ids: ids.to_vec(), table: table(ids) }).collect()
}

impl Model {
    fn load(dir: &std::path::Path, context: Option<usize>, place: &Place) -> Model {
        Model::load_as(dir, context, place, (DType::F32, WeightFormat::default()))
    }

    fn load_as(
        dir: &std::path::Path,
        context: Option<usize>,
        place: &Place,
        (dtype, weight_format): (DType, WeightFormat),
    ) -> Model {
        let mut config: Value = json(&dir.join("config.json"));
        if let Some(context) = context {
            config[CONTEXT] = context.into();
        }
        let store = Checkpoint::open(dir).expect("weights");
        let weights = Weights::new(Arc::new(store), dtype, place.clone()).with_format(weight_format);
        let encoder = backbone(&config, &weights).unwrap_or_else(|e| panic!("{}: {e}", dir.display()));
        let head = lm_head(&config, &weights).expect("a head");
        let vocabulary = encoder.limits().vocabulary;
        Model { encoder, head, place: place.clone(), dtype, vocabulary }
    }

    fn cache(&self, pages: usize) -> KvCache {
        self.cache_in(self.dtype.into(), pages)
    }

    fn cache_in(&self, format: KvCacheFormat, pages: usize) -> KvCache {
        let shape: KvCacheShape = self.encoder.cache().expect("a language model");
        KvCache::new(shape, pages * PAGE, format, &self.place).expect("a cache")
    }

    fn logits(&self, batch: &Batch, watch: &mut Vec<Vec<f32>>) -> Vec<f32> {
        let mut see = |_: usize, x: &sconce_ops::Tensor| watch.push(x.to_f32().expect("numbers"));
        let hidden = self.encoder.forward(batch, &mut see).expect("forward");
        let mut logits = self.head.forward(&hidden).expect("logits").to_f32().expect("numbers");
        self.head.capped(&mut logits);
        logits
    }

    /// Logits of every token of `prompts`, packed and without a KV cache.
    fn packed(&self, prompts: &[&[u32]], watch: &mut Vec<Vec<f32>>) -> Vec<f32> {
        let of = |ids: &&[u32]| Sequence { ids: ids.to_vec(), ..Sequence::default() };
        let sequences: Vec<_> = prompts.iter().map(of).collect();
        let batch = Batch::new(&sequences, self.encoder.limits(), &self.place).expect("a batch");
        self.logits(&batch, watch)
    }

    /// Logits of the next tokens of several sequences: (sequence, first new token, wanted).
    fn decode(&self, cache: &KvCache, chunks: &[(&CachedSequence, usize, usize)]) -> Vec<f32> {
        let chunk = |(s, start, wanted): &(&CachedSequence, usize, usize)| TokenChunk {
            ids: s.ids[*start..].to_vec(),
            start: *start,
            table: s.table.clone(),
            wanted: *wanted,
        };
        let chunks: Vec<_> = chunks.iter().map(chunk).collect();
        let batch = Batch::decode(&chunks, PAGE, cache, self.encoder.limits(), &self.place).expect("a batch");
        assert!(matches!(batch.kv, Some(KvView { .. })));
        self.logits(&batch, &mut Vec::new())
    }
}

/// Relative to the largest distance of the reference from its mean, which is about its spread.
fn assert_close(what: &str, got: &[f32], want: &[f32], allowed: f64) {
    assert_eq!(got.len(), want.len(), "{what}");
    let mean = want.iter().map(|v| f64::from(*v)).sum::<f64>() / want.len() as f64;
    let spread = (want.iter().map(|v| (f64::from(*v) - mean).powi(2)).sum::<f64>() / want.len() as f64).sqrt();
    let off = got.iter().zip(want).map(|(a, b)| f64::from((a - b).abs())).fold(0.0, f64::max);
    assert!(off <= allowed * spread, "{what}: {off:.2e} off, of a spread of {spread:.2e}");
    assert!(got.iter().all(|v| v.is_finite()), "{what}");
}

fn check(part: &Part, kind: &str) {
    let dir = materialize(part.name);
    let arrays = Arrays::open(&golden(part.name).join("golden.safetensors"));
    let (ids, ends) = (arrays.u32("ids").values, arrays.u32("cu_seqlens").values);
    let range = |i: usize| ends[i] as usize..ends[i + 1] as usize;
    let all_logits = arrays.f32("logits").values;
    let v = all_logits.len() / ids.len();
    let states = (0..).map(|i| format!("hidden.{i}")).take_while(|name| arrays.has(name));
    let expected = Expected {
        prompts: part.prompts.iter().map(|i| &ids[range(*i)]).collect(),
        logits: part.prompts.iter().flat_map(|i| all_logits[range(*i).start * v..range(*i).end * v].to_vec()).collect(),
        // Of the second prompt.
        layers: (part.prompts.iter().position(|i| *i == 1))
            .map(|which| (which, states.map(|name| arrays.f32(&name).values).collect())),
        strays: if part.name.contains("moe") || part.name == "mixtral" { STRAYS } else { 0.0 },
    };
    for (place, rung) in places(kind) {
        let _here = Ladder::new(Policy::default().with_force(rung)).enter();
        let model = Model::load(dir.path(), part.context, &place);
        let what = format!("{} on {} ({rung:?})", part.name, place.device());
        assert_eq!(v, model.vocabulary, "{what}");

        // Packed, without a KV cache.
        let got = model.packed(&expected.prompts, &mut Vec::new());
        assert_close(&format!("{what}, packed"), &got, &expected.logits, WORST);
        // Layer by layer.
        if let Some((which, wanted)) = &expected.layers {
            let mut layers = Vec::new();
            model.packed(&expected.prompts[*which..=*which], &mut layers);
            assert_eq!(layers.len(), wanted.len(), "{what}: layers");
            for (i, (layer, want)) in layers.iter().zip(wanted).enumerate() {
                let off = worst(layer, want);
                assert!(off <= 1e-4, "{what}, layer {i}: {off:.2e} of the largest");
            }
            if part.steps > 0 {
                check_greedy_decode(&model, &what, expected.prompts[*which], &arrays, part.steps);
            }
        }
        check_kv_cache(&model, &what, &expected.prompts, &expected.logits);
        for dtype in half_formats() {
            let model = Model::load_as(dir.path(), part.context, &place, (dtype, WeightFormat::default()));
            check_half_format(&model, &format!("{what} in {dtype}"), &expected);
        }
    }
}

/// The same in a half format: layers and logits packed, and with a KV cache the logits of the last
/// tokens, computed alone and batched. The likeliest token may differ from f32's if two are close.
fn check_half_format(model: &Model, what: &str, expected: &Expected) {
    let (v, width) = (model.vocabulary, model.encoder.hidden_size());
    let half =
        |layers: usize| Half { unit: model.dtype.unit_roundoff(), layers, roundings: HALF, strays: expected.strays };
    let mut seen = Vec::new();
    let got = model.packed(&expected.prompts, &mut seen);
    half(seen.len() + 1).assert_close(&format!("{what}, packed"), &got, &expected.logits, v);
    if let Some((which, layers)) = &expected.layers {
        let from = expected.prompts[..*which].concat().len() * width;
        for (i, (got, want)) in seen.iter().zip(layers).enumerate() {
            half(i + 1).assert_close(&format!("{what}, layer {i}"), &got[from..][..want.len()], want, width);
        }
    }
    let (cache, sequences) = (model.cache(32), scatter_pages(&expected.prompts));
    let but_last = |s: &CachedSequence| CachedSequence { ids: s.ids[..s.ids.len() - 1].to_vec(), ..s.clone() };
    let begun: Vec<_> = sequences.iter().filter(|s| s.ids.len() > 1).map(but_last).collect();
    model.decode(&cache, &begun.iter().map(|s| (s, 0, 1)).collect::<Vec<_>>());
    let last: Vec<_> = sequences.iter().map(|s| (s, s.ids.len() - 1, 1)).collect();
    let got = [model.decode(&cache, &last), model.decode(&cache, &last[..1])].concat();
    let ends = expected.prompts.iter().scan(0, |end, ids| {
        *end += ids.len();
        Some(*end)
    });
    let rows: Vec<_> = ends.map(|end| &expected.logits[(end - 1) * v..end * v]).collect();
    half(seen.len() + 1).assert_close(
        &format!("{what}, last tokens"),
        &got,
        &[&rows[..], &rows[..1]].concat().concat(),
        v,
    );
}

/// With a KV cache: at once, in chunks, and after a prefix that another sequence wrote.
fn check_kv_cache(model: &Model, what: &str, prompts: &[&[u32]], wanted: &[f32]) {
    let (cache, sequences) = (model.cache(32), scatter_pages(prompts));
    let whole: Vec<_> = sequences.iter().map(|s| (s, 0, s.ids.len())).collect();
    assert_close(&format!("{what}, cached"), &model.decode(&cache, &whole), wanted, WORST);
    // In chunks of three, each with all sequences that still have tokens.
    let cache = model.cache(32);
    let mut got: Vec<Vec<f32>> = vec![Vec::new(); sequences.len()];
    for start in (0..sequences.iter().map(|s| s.ids.len()).max().unwrap_or(0)).step_by(3) {
        let cut =
            |s: &CachedSequence| CachedSequence { ids: s.ids[..(start + 3).min(s.ids.len())].to_vec(), ..s.clone() };
        let live: Vec<(usize, CachedSequence)> =
            sequences.iter().enumerate().filter(|(_, s)| s.ids.len() > start).map(|(i, s)| (i, cut(s))).collect();
        let chunks: Vec<_> = live.iter().map(|(_, s)| (s, start, usize::MAX)).collect();
        let logits = model.decode(&cache, &chunks);
        let mut rest = &logits[..];
        for (i, s) in &live {
            let (own, tail) = rest.split_at((s.ids.len() - start) * model.vocabulary);
            got[*i].extend(own);
            rest = tail;
        }
    }
    assert_close(&format!("{what}, in chunks"), &got.concat(), wanted, WORST);
}

/// Greedy steps, alone and beside another sequence.
fn check_greedy_decode(model: &Model, what: &str, prompt: &[u32], arrays: &Arrays, steps: usize) {
    let (chosen, wanted) = (arrays.u32("decode.ids").values, arrays.f32("decode.logits").values);
    let v = model.vocabulary;
    let cache = model.cache(32);
    let mut sequence = CachedSequence { ids: prompt.to_vec(), table: [7, 3, 9, 1, 20, 4, 30].into() };
    let mut other = CachedSequence { ids: vec![5, 6, 7], table: [11, 12, 13, 14, 15].into() };
    model.decode(&cache, &[(&other, 0, 1)]);
    for step in 0..steps {
        let start = if step == 0 { 0 } else { sequence.ids.len() - 1 };
        // Every second step runs beside the other sequence.
        let logits = if step % 2 == 1 {
            other.ids.push((step % 7) as u32);
            let both = model.decode(&cache, &[(&other, other.ids.len() - 1, 1), (&sequence, start, 1)]);
            both[v..].to_vec()
        } else {
            model.decode(&cache, &[(&sequence, start, 1)])
        };
        assert_close(&format!("{what}, step {step}"), &logits, &wanted[step * v..][..v], WORST);
        let largest = logits.iter().copied().fold(f32::NEG_INFINITY, f32::max);
        let id = logits.iter().position(|l| *l == largest).unwrap_or(0) as u32;
        assert_eq!(id, chosen[step], "{what}, step {step}");
        sequence.ids.push(id);
    }
}

fn llama(kind: &str) {
    let names = [
        "llama-2",
        "llama-3",
        "llama-biases",
        "llama-linear",
        "llama-3.1",
        "llama-yarn",
        "llama-yarn-full",
        "llama-head-dim",
        "llama-rope-parameters",
        "smollm",
    ];
    names.map(all).iter().for_each(|part| check(part, kind));
    // Beyond the trained length dynamic RoPE scaling changes with the length, which no KV cache can
    // follow, so the context ends there.
    check(&Part { prompts: &[0, 1], steps: 0, ..all("llama-dynamic") }, kind);
}

fn mistral(kind: &str) {
    ["mistral", "mistral-head-dim", "mixtral"].map(all).iter().for_each(|part| check(part, kind));
}

fn qwen(kind: &str) {
    let names = [
        "qwen",
        "qwen-unscaled",
        "qwen2",
        "qwen2-window",
        "qwen2-yarn",
        "qwen2-moe",
        "qwen2-moe-mixed",
        "qwen3",
        "qwen3-moe",
        "qwen3-moe-mixed",
    ];
    names.map(all).iter().for_each(|part| check(part, kind));
}

/// Beyond `seq_length` Qwen 1 changes RoPE with the length, so the context ends there.
fn qwen_ends_at_the_trained_length() {
    let positions = |name| Model::load(materialize(name).path(), None, &Place::cpu()).encoder.limits().positions;
    assert_eq!((positions("qwen"), positions("qwen-unscaled")), (64, 256));
    let mut config: Value = json(&golden("qwen").join("config.json"));
    config["seq_length"] = Value::Null;
    let dir = materialize("qwen");
    let weights = Weights::new(Arc::new(Checkpoint::open(dir.path()).expect("weights")), DType::F32, Place::cpu());
    let why = backbone(&config, &weights).err().expect("a refusal").to_string();
    assert!(why.contains("need seq_length"), "{why}");
}

/// LongRoPE has two sets of factors, chosen by the maximum length.
fn phi(kind: &str) {
    ["phi-2", "phi-qk-layernorm", "phi-3"].map(all).iter().for_each(|part| check(part, kind));
    check(&Part { context: Some(64), ..all("phi-3-short") }, kind);
    check(&Part { prompts: &[1, 2], ..all("phi-3-long") }, kind);
    for name in ["phi-3-crossed", "phi-4-mini"] {
        check(&Part { context: Some(16), prompts: &[0, 1], steps: 6, ..all(name) }, kind);
        check(&Part { prompts: &[2], steps: 0, ..all(name) }, kind);
    }
}

fn stablelm(kind: &str) {
    ["stablelm-3b", "stablelm-1.6b", "stablelm-12b"].map(all).iter().for_each(|part| check(part, kind));
}

fn falcon(kind: &str) {
    ["falcon-7b", "falcon-40b", "falcon-11b", "falcon-rw"].map(all).iter().for_each(|part| check(part, kind));
}

fn gemma(kind: &str) {
    let names = ["gemma", "gemma-2", "gemma-3", "gemma-3-linear", "gemma-3-rope-parameters"];
    names.map(all).iter().for_each(|part| check(part, kind));
}

fn gpt2(kind: &str) {
    ["gpt2", "gpt2-scaled"].map(all).iter().for_each(|part| check(part, kind));
}

fn gpt_neox(kind: &str) {
    let names = ["gpt-neox", "pythia", "gpt-neox-sequential", "gpt-neox-rope-parameters"];
    names.map(all).iter().for_each(|part| check(part, kind));
}

fn main() {
    Suite::new(devices())
        .on_each("llama", llama)
        .on_each("mistral", mistral)
        .on_each("qwen", qwen)
        .on_each("phi", phi)
        .on_each("stablelm", stablelm)
        .on_each("falcon", falcon)
        .on_each("gemma", gemma)
        .on_each("gpt2", gpt2)
        .on_each("gpt_neox", gpt_neox)
        .test("qwen_ends_at_the_trained_length", qwen_ends_at_the_trained_length)
        .test("quantization_while_loading_keeps_logits_close", formats::quantization_while_loading_keeps_logits_close)
        .on_each("q8_kv_cache_stays_close_to_f32", formats::q8_kv_cache_stays_close_to_f32)
        .run()
}
