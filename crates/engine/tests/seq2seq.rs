//! Sequence-to-sequence models against their reference: encoder states, logits of every position
//! with and without a KV cache, greedy steps, beam searches; and many inputs at once against one
//! alone.

use sconce_engine::Checkpoint;
use sconce_models::{Batch, EncoderKv, Sequence, TokenChunk, seq2seq};
use sconce_ops::case::{devices, half_formats, places};
use sconce_ops::{DType, KvCache, Ladder, Place, Policy, Tensor, Weights};
use sconce_testkit::{Arrays, Half, Suite, golden, json, materialize, worst};
use serde_json::Value;
use std::ops::Range;
use std::path::Path;
use std::sync::Arc;

/// The worst value relative to the spread of the reference's, which are computed in f64 throughout.
/// The same model in f32 in the reference implementation is up to 1e-5 away from them.
const WORST: f64 = 1e-4;

/// Rows of bf16 and f16: see [`Half`]. T5 does not divide scores by the root of a head's size, so a
/// softmax amplifies rounding, and its residual stream is not rescaled between blocks. Measured on
/// the CPU, fused and composed: half of the rows within 6.0, the worst 16.3, in f16 as in bf16.
/// These small models do not overflow f16; T5's own weights are known to (the stream grows beyond
/// 65,504 in the larger ones), for which bf16 is the format.
const HALF: [f64; 2] = [8.0, 24.0];

/// Rows per page of a KV cache: few, so that forty tokens take many pages.
const PAGE: usize = 8;

const MODELS: [&str; 3] = ["t5-seq2seq", "flan-t5-seq2seq", "mt5-seq2seq"];

struct Model {
    inner: Box<dyn sconce_models::Seq2Seq>,
    place: Place,
    dtype: DType,
}

/// Block table and length of an input or an answer.
type InputTable = (Arc<[u32]>, usize);

/// An answer, its first new token, its block table, and the input it attends to.
type Step<'a> = (&'a [u32], usize, &'a Arc<[u32]>, &'a InputTable);

impl Model {
    fn load(dir: &Path, place: &Place, dtype: DType) -> Model {
        let config: Value = json(&dir.join("config.json"));
        let store = Checkpoint::open(dir).expect("weights");
        let weights = Weights::new(Arc::new(store), dtype, place.clone());
        let inner = seq2seq(&config, &weights).unwrap_or_else(|e| panic!("{}: {e}", dir.display()));
        assert_eq!(weights.unused(), Vec::<String>::new());
        Model { inner, place: place.clone(), dtype }
    }

    fn cache(&self, pages: usize) -> KvCache {
        KvCache::new(self.inner.cache(), pages * PAGE, self.dtype.into(), &self.place).expect("a cache")
    }

    fn packed(&self, sequences: &[&[u32]]) -> Batch {
        let of = |ids: &&[u32]| Sequence { ids: ids.to_vec(), ..Sequence::default() };
        let sequences: Vec<_> = sequences.iter().map(of).collect();
        Batch::new(&sequences, self.inner.limits(), &self.place).expect("a batch")
    }

    /// Encodes `inputs` into pages of a KV cache, from the last page to the first; returns the
    /// encoder's states too.
    fn encode_inputs(&self, inputs: &[&[u32]]) -> (KvCache, Vec<InputTable>, Vec<f32>) {
        let cache = self.cache(32);
        let mut free = (0..32u32).rev();
        let place = |ids: &&[u32]| (free.by_ref().take(ids.len().div_ceil(PAGE)).collect(), ids.len());
        let places: Vec<InputTable> = inputs.iter().map(place).collect();
        let states = self.inner.encoder().forward(&self.packed(inputs), &mut |_, _| ()).expect("states");
        let rows = EncoderKv::new(&places, PAGE, &cache).expect("places").rows(&self.place).expect("rows");
        self.inner.write_encoder_kv(&states, &cache, &rows).expect("keys and values");
        (cache, places, states.to_f32().expect("numbers"))
    }

    fn logits(&self, batch: &Batch, read: &EncoderKv, watch: &mut Vec<Vec<f32>>) -> Vec<f32> {
        let mut see = |_: usize, x: &Tensor| watch.push(x.to_f32().expect("numbers"));
        let states = self.inner.forward(batch, read, &mut see).expect("states");
        let mut logits = self.inner.head().forward(&states).expect("logits").to_f32().expect("numbers");
        self.inner.head().capped(&mut logits);
        logits
    }

    /// Logits of the tokens from `start` on of each sequence, which attends to the input beside it.
    fn decode(&self, cache: &KvCache, read: &KvCache, chunks: &[Step]) -> Vec<f32> {
        let chunk = |(ids, start, table, _): &Step| TokenChunk {
            ids: ids[*start..].to_vec(),
            start: *start,
            table: Arc::clone(table),
            wanted: usize::MAX,
        };
        let token_chunks: Vec<_> = chunks.iter().map(chunk).collect();
        let inputs: Vec<InputTable> = chunks.iter().map(|(.., at)| (*at).clone()).collect();
        let batch = Batch::decode(&token_chunks, PAGE, cache, self.inner.limits(), &self.place).expect("a batch");
        self.logits(&batch, &EncoderKv::new(&inputs, PAGE, read).expect("inputs"), &mut Vec::new())
    }
}

fn assert_close(what: &str, got: &[f32], want: &[f32]) {
    assert_eq!(got.len(), want.len(), "{what}");
    let mean = want.iter().map(|v| f64::from(*v)).sum::<f64>() / want.len() as f64;
    let spread = (want.iter().map(|v| (f64::from(*v) - mean).powi(2)).sum::<f64>() / want.len() as f64).sqrt();
    let off = f64::from(worst(got, want));
    assert!(off <= WORST * spread, "{what}: {off:.2e} off, of a spread of {spread:.2e}");
}

/// Ranges of consecutive sequences.
fn ranges(ends: &[u32]) -> Vec<Range<usize>> {
    ends.windows(2).map(|pair| pair[0] as usize..pair[1] as usize).collect()
}

fn states_and_logits_equal_the_reference(kind: &str) {
    for name in MODELS {
        let dir = materialize(name);
        let arrays = Arrays::open(&golden(name).join("golden.safetensors"));
        let (ids, targets) = (arrays.u32("ids").values, arrays.u32("decoder.ids").values);
        let [inputs, outputs] = ["cu_seqlens", "decoder.cu_seqlens"].map(|key| ranges(&arrays.u32(key).values));
        let inputs: Vec<&[u32]> = inputs.into_iter().map(|range| &ids[range]).collect();
        let outputs: Vec<&[u32]> = outputs.into_iter().map(|range| &targets[range]).collect();
        let wanted = arrays.f32("logits").values;
        for (place, rung) in places(kind) {
            let _here = Ladder::new(Policy::default().with_force(rung)).enter();
            let model = Model::load(dir.path(), &place, DType::F32);
            let what = format!("{name} on {} ({rung:?})", place.device());
            let (read, at, states) = model.encode_inputs(&inputs);
            assert_close(&format!("{what}, states"), &states, &arrays.f32("encoder").values);
            // At once, without a KV cache of answers.
            let all = EncoderKv::new(&at, PAGE, &read).expect("inputs");
            assert_close(&what, &model.logits(&model.packed(&outputs), &all, &mut Vec::new()), &wanted);
            // Layer by layer.
            let (mut layers, one) = (Vec::new(), EncoderKv::new(&at[1..2], PAGE, &read).expect("inputs"));
            model.logits(&model.packed(&outputs[1..2]), &one, &mut layers);
            for (i, layer) in layers.iter().enumerate() {
                assert_close(&format!("{what}, layer {i}"), layer, &arrays.f32(&format!("decoder.hidden.{i}")).values);
            }
            assert!(!arrays.has(&format!("decoder.hidden.{}", layers.len())), "{what}: fewer layers than the golden");
            check_chunks(&model, &what, &outputs, (&read, &at), &wanted);
            check_greedy_decode(&model, &what, (&read, &at), &arrays);
            for dtype in half_formats() {
                let model = Model::load(dir.path(), &place, dtype);
                check_half_format(&model, &format!("{what} in {dtype}"), (&inputs, &outputs), &arrays);
            }
        }
    }
}

/// The same in a half format: the encoder's states, layers and logits at once, and with a KV cache
/// the logits of the last tokens.
fn check_half_format(model: &Model, what: &str, (inputs, outputs): (&[&[u32]], &[&[u32]]), arrays: &Arrays) {
    let (v, width) = (model.inner.limits().vocabulary, model.inner.encoder().hidden_size());
    let check = |of: &str, layers: usize, got: &[f32], want: &[f32], width: usize| {
        Half { unit: model.dtype.unit_roundoff(), layers, roundings: HALF, strays: 0.0 }.assert_close(
            &format!("{what}, {of}"),
            got,
            want,
            width,
        );
    };
    let (read, at, states) = model.encode_inputs(inputs);
    // The golden has no encoder layers, but there are as many as in the decoder.
    let known: Vec<_> = (0..).map(|i| format!("decoder.hidden.{i}")).take_while(|name| arrays.has(name)).collect();
    check("states", known.len(), &states, &arrays.f32("encoder").values, width);
    let mut layers = Vec::new();
    let all = EncoderKv::new(&at, PAGE, &read).expect("inputs");
    let (logits, wanted) = (model.logits(&model.packed(outputs), &all, &mut layers), arrays.f32("logits").values);
    check("logits", 2 * known.len(), &logits, &wanted, v);
    // Of the second input.
    for (i, (layer, name)) in layers.iter().zip(&known).enumerate() {
        let own = &layer[outputs[0].len() * width..][..outputs[1].len() * width];
        check(&format!("layer {i}"), known.len() + i + 1, own, &arrays.f32(name).values, width);
    }
    let (cache, mut free) = (model.cache(32), (0..32u32).rev());
    let tables: Vec<Arc<[u32]>> =
        outputs.iter().map(|ids| free.by_ref().take(ids.len().div_ceil(PAGE)).collect()).collect();
    let begun: Vec<Step> = (0..outputs.len())
        .filter(|i| outputs[*i].len() > 1)
        .map(|i| (&outputs[i][..outputs[i].len() - 1], 0, &tables[i], &at[i]))
        .collect();
    model.decode(&cache, &read, &begun);
    let last: Vec<Step> = (0..outputs.len()).map(|i| (outputs[i], outputs[i].len() - 1, &tables[i], &at[i])).collect();
    let got = [model.decode(&cache, &read, &last), model.decode(&cache, &read, &last[..1])].concat();
    let mut end = 0;
    let mut rows: Vec<&[f32]> = Vec::new();
    for ids in outputs {
        end += ids.len();
        rows.push(&wanted[(end - 1) * v..end * v]);
    }
    rows.push(rows[0]);
    check("last tokens", 2 * known.len(), &got, &rows.concat(), v);
}

/// With a KV cache, three tokens at a time, all sequences that still have some together.
fn check_chunks(model: &Model, what: &str, outputs: &[&[u32]], (read, at): (&KvCache, &[InputTable]), wanted: &[f32]) {
    let (cache, width) = (model.cache(32), model.inner.limits().vocabulary);
    let mut free = (0..32u32).rev();
    let tables: Vec<Arc<[u32]>> =
        outputs.iter().map(|ids| free.by_ref().take(ids.len().div_ceil(PAGE)).collect()).collect();
    let mut got: Vec<Vec<f32>> = vec![Vec::new(); outputs.len()];
    for start in (0..40).step_by(3) {
        let live: Vec<usize> = (0..outputs.len()).filter(|i| outputs[*i].len() > start).collect();
        let cut = |i: &usize| (&outputs[*i][..(start + 3).min(outputs[*i].len())], start, &tables[*i], &at[*i]);
        let chunks: Vec<_> = live.iter().map(cut).collect();
        let logits = model.decode(&cache, read, &chunks);
        let mut rest = &logits[..];
        for (i, (ids, ..)) in live.iter().zip(&chunks) {
            let (own, tail) = rest.split_at((ids.len() - start) * width);
            got[*i].extend(own);
            rest = tail;
        }
    }
    assert_close(&format!("{what}, in chunks"), &got.concat(), wanted);
}

/// Greedy steps, every second one beside a sequence that attends to another input.
fn check_greedy_decode(model: &Model, what: &str, (read, at): (&KvCache, &[InputTable]), arrays: &Arrays) {
    let (chosen, wanted) = (arrays.u32("decode.ids").values, arrays.f32("decode.logits").values);
    let (cache, width) = (model.cache(32), model.inner.limits().vocabulary);
    let (table, other_table): (Arc<[u32]>, Arc<[u32]>) = ([7, 3, 9, 1, 20].into(), [11, 12, 13, 14, 15].into());
    let (mut ids, mut other) = (vec![0u32], Vec::new());
    for (step, token) in chosen.iter().enumerate() {
        let own = (&ids[..], ids.len() - 1, &table, &at[1]);
        let logits = if step % 2 == 1 {
            other.push((step % 7) as u32);
            model.decode(&cache, read, &[(&other, other.len() - 1, &other_table, &at[2]), own])[width..].to_vec()
        } else {
            model.decode(&cache, read, &[own])
        };
        assert_close(&format!("{what}, step {step}"), &logits, &wanted[step * width..][..width]);
        let largest = logits.iter().copied().fold(f32::NEG_INFINITY, f32::max);
        assert_eq!(logits.iter().position(|l| *l == largest), Some(*token as usize), "{what}, step {step}");
        ids.push(*token);
    }
}

fn main() {
    let name = "states_and_logits_equal_the_reference";
    Suite::new(devices()).on_each(name, states_and_logits_equal_the_reference).run()
}
