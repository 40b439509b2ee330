//! Sequence-to-sequence models against their reference: encoder states, logits of every position
//! with and without a KV cache, greedy steps, beam searches; and many inputs at once against one
//! alone.

use sconce_engine::hub::{Options, Reference};
use sconce_engine::{
    Answers, BeamSearch, Checkpoint, DeviceChoice, EarlyStopping, Event, Finish, GenerationParams, LoadOptions, Loaded,
    Search, Seq2Seq, Seq2SeqLimits, Seq2SeqOptions,
};
use sconce_models::{Batch, EncoderKv, Sequence, TokenChunk, seq2seq};
use sconce_ops::case::{devices, half_formats, places};
use sconce_ops::{DType, Device, KvCache, Ladder, Place, Policy, Rung, Tensor, Weights};
use sconce_testkit::{Arrays, Half, Suite, golden, json, materialize, plain_words, worst};
use serde_json::{Value, json};
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
    fn read(&self, inputs: &[&[u32]]) -> (KvCache, Vec<InputTable>, Vec<f32>) {
        let cache = self.cache(32);
        let mut free = (0..32u32).rev();
        let place = |ids: &&[u32]| (free.by_ref().take(ids.len().div_ceil(PAGE)).collect(), ids.len());
        let places: Vec<InputTable> = inputs.iter().map(place).collect();
        let states = self.inner.encoder().forward(&self.packed(inputs), &mut |_, _| ()).expect("states");
        let rows = EncoderKv::new(&places, PAGE, &cache).expect("places").rows(&self.place).expect("rows");
        self.inner.remember(&states, &cache, &rows).expect("keys and values");
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

fn close(what: &str, got: &[f32], want: &[f32]) {
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

fn states_and_logits_are_the_references(kind: &str) {
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
            let (read, at, states) = model.read(&inputs);
            close(&format!("{what}, states"), &states, &arrays.f32("encoder").values);
            // At once, without a KV cache of answers.
            let all = EncoderKv::new(&at, PAGE, &read).expect("inputs");
            close(&what, &model.logits(&model.packed(&outputs), &all, &mut Vec::new()), &wanted);
            // Layer by layer.
            let (mut layers, one) = (Vec::new(), EncoderKv::new(&at[1..2], PAGE, &read).expect("inputs"));
            model.logits(&model.packed(&outputs[1..2]), &one, &mut layers);
            for (i, layer) in layers.iter().enumerate() {
                close(&format!("{what}, layer {i}"), layer, &arrays.f32(&format!("decoder.hidden.{i}")).values);
            }
            assert!(!arrays.has(&format!("decoder.hidden.{}", layers.len())), "{what}: a layer too few");
            chunked(&model, &what, &outputs, (&read, &at), &wanted);
            decoded(&model, &what, (&read, &at), &arrays);
            for dtype in half_formats() {
                let model = Model::load(dir.path(), &place, dtype);
                rounded(&model, &format!("{what} in {dtype}"), (&inputs, &outputs), &arrays);
            }
        }
    }
}

/// The same in a half format: the encoder's states, layers and logits at once, and with a KV cache
/// the logits of the last tokens.
fn rounded(model: &Model, what: &str, (inputs, outputs): (&[&[u32]], &[&[u32]]), arrays: &Arrays) {
    let (v, width) = (model.inner.limits().vocabulary, model.inner.encoder().hidden_size());
    let hold = |of: &str, layers: usize, got: &[f32], want: &[f32], width: usize| {
        Half { unit: model.dtype.unit_roundoff(), layers, roundings: HALF, strays: 0.0 }.hold(
            &format!("{what}, {of}"),
            got,
            want,
            width,
        );
    };
    let (read, at, states) = model.read(inputs);
    // The golden has no encoder layers, but there are as many as in the decoder.
    let known: Vec<_> = (0..).map(|i| format!("decoder.hidden.{i}")).take_while(|name| arrays.has(name)).collect();
    hold("states", known.len(), &states, &arrays.f32("encoder").values, width);
    let mut layers = Vec::new();
    let all = EncoderKv::new(&at, PAGE, &read).expect("inputs");
    let (logits, wanted) = (model.logits(&model.packed(outputs), &all, &mut layers), arrays.f32("logits").values);
    hold("logits", 2 * known.len(), &logits, &wanted, v);
    // Of the second input.
    for (i, (layer, name)) in layers.iter().zip(&known).enumerate() {
        let own = &layer[outputs[0].len() * width..][..outputs[1].len() * width];
        hold(&format!("layer {i}"), known.len() + i + 1, own, &arrays.f32(name).values, width);
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
    hold("last tokens", 2 * known.len(), &got, &rows.concat(), v);
}

/// With a KV cache, three tokens at a time, all sequences that still have some together.
fn chunked(model: &Model, what: &str, outputs: &[&[u32]], (read, at): (&KvCache, &[InputTable]), wanted: &[f32]) {
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
            let (own, behind) = rest.split_at((ids.len() - start) * width);
            got[*i].extend(own);
            rest = behind;
        }
    }
    close(&format!("{what}, in chunks"), &got.concat(), wanted);
}

/// Greedy steps, every second one beside a sequence that attends to another input.
fn decoded(model: &Model, what: &str, (read, at): (&KvCache, &[InputTable]), arrays: &Arrays) {
    let (chosen, wanted) = (arrays.u32("decode.ids").values, arrays.f32("decode.logits").values);
    let (cache, width) = (model.cache(32), model.inner.limits().vocabulary);
    let (table, beside): (Arc<[u32]>, Arc<[u32]>) = ([7, 3, 9, 1, 20].into(), [11, 12, 13, 14, 15].into());
    let (mut ids, mut other) = (vec![0u32], Vec::new());
    for (step, token) in chosen.iter().enumerate() {
        let own = (&ids[..], ids.len() - 1, &table, &at[1]);
        let logits = if step % 2 == 1 {
            other.push((step % 7) as u32);
            model.decode(&cache, read, &[(&other, other.len() - 1, &beside, &at[2]), own])[width..].to_vec()
        } else {
            model.decode(&cache, read, &[own])
        };
        close(&format!("{what}, step {step}"), &logits, &wanted[step * width..][..width]);
        let largest = logits.iter().copied().fold(f32::NEG_INFINITY, f32::max);
        assert_eq!(logits.iter().position(|l| *l == largest), Some(*token as usize), "{what}, step {step}");
        ids.push(*token);
    }
}

/// A golden in a folder with that vocabulary.
fn folder(name: &str) -> tempfile::TempDir {
    let dir = materialize(name);
    std::fs::write(dir.path().join("tokenizer.json"), plain_words(67).to_string()).expect("a tokenizer");
    dir
}

fn load(dir: &Path, room: Seq2SeqLimits, rung: Option<Rung>) -> Seq2Seq {
    let cache = std::env::temp_dir();
    let mut options = LoadOptions::new(Options::new(cache.clone(), cache)).with_device(DeviceChoice::Only(Device::Cpu));
    options.policy.force = rung;
    let reference: Reference = dir.to_str().expect("a path").parse().expect("a reference");
    Seq2Seq::load(&reference, &options.with_seq2seq(room), &()).unwrap_or_else(|e| panic!("{}: {e}", dir.display()))
}

fn room() -> Seq2SeqLimits {
    Seq2SeqLimits::default().with_input(Some(48)).with_output(40).with_sequences(12).with_cache_format(None)
}

fn inputs(name: &str) -> Vec<Vec<u32>> {
    let arrays = Arrays::open(&golden(name).join("golden.safetensors"));
    let ids = arrays.u32("ids").values;
    ranges(&arrays.u32("cu_seqlens").values).into_iter().map(|range| ids[range].to_vec()).collect()
}

fn greedy(max_tokens: usize, ignore_end: bool) -> Seq2SeqOptions {
    Seq2SeqOptions::default()
        .with_search(Some(Search::greedy()))
        .with_max_tokens(Some(max_tokens))
        .with_ignore_end(ignore_end)
}

fn beams_find_what_the_reference_finds() {
    for (name, rung) in MODELS.iter().flat_map(|name| [Rung::Fused, Rung::Composed].map(|rung| (*name, rung))) {
        let dir = folder(name);
        let model = load(dir.path(), room(), Some(rung));
        let answers: Value = json(&golden(name).join("golden.json"));
        let inputs = inputs(name);
        let number = |key: &str| answers[key].as_u64().expect("a number") as usize;
        let cases = answers["beams"].as_array().expect("searches");
        assert_eq!(cases.len(), 12);
        for penalty in [1.0, 0.6] {
            for early in [false, true] {
                let options = Seq2SeqOptions::default()
                    .with_search(Some(Search::Beams(BeamSearch {
                        num_beams: number("num_beams"),
                        length_penalty: penalty,
                        early_stopping: if early { EarlyStopping::Yes } else { EarlyStopping::No },
                        num_return_sequences: number("num_return_sequences"),
                    })))
                    .with_max_tokens(Some(number("max_new_tokens")))
                    .with_ignore_end(false);
                // All inputs together, and each alone.
                let together = model.generate_ids(&inputs, &options).expect("answers");
                let mut seen = 0;
                for case in cases {
                    let same = (case["length_penalty"].as_f64().expect("a penalty") - f64::from(penalty)).abs() < 1e-6;
                    if !same || case["early_stopping"].as_bool() != Some(early) {
                        continue;
                    }
                    seen += 1;
                    let i = case["input"].as_u64().expect("an input") as usize;
                    let alone = model.generate_ids(&inputs[i..=i], &options).expect("answers");
                    for found in [&together[i], &alone[0]] {
                        check_case(found, case, &format!("{name} ({rung}), {case}"));
                    }
                }
                assert_eq!(seen, 3);
            }
        }
    }
}

fn check_case(found: &Answers, case: &Value, what: &str) {
    let sequences: Vec<Vec<u32>> = serde_json::from_value(case["sequences"].clone()).expect("sequences");
    let scores: Vec<f32> = serde_json::from_value(case["scores"].clone()).expect("scores");
    assert_eq!(found.answers.len(), sequences.len(), "{what}");
    for ((answer, ids), score) in found.answers.iter().zip(&sequences).zip(scores) {
        let (end, own) = match ids.split_last() {
            Some((1, own)) => (Finish::End, own),
            _ => (Finish::Length, &ids[..]),
        };
        assert_eq!((&answer.ids[..], &answer.finish), (own, &end), "{what}");
        let spelled: Vec<String> = own.iter().filter(|id| **id > 1).map(|id| format!("w{id}")).collect();
        assert_eq!(answer.text, spelled.join(" "), "{what}");
        // Sums of up to 24 logarithms in f32; the reference in f32 is within 1e-5.
        assert!(answer.score.is_some_and(|s| (s - score).abs() < 1e-4), "{what}: {:?}", answer.score);
    }
}

fn greedy_answers_are_the_references_and_the_same_in_company() {
    for name in MODELS {
        let dir = folder(name);
        let arrays = Arrays::open(&golden(name).join("golden.safetensors"));
        let inputs = inputs(name);
        let model = load(dir.path(), room(), None);
        let wanted = arrays.u32("decode.ids").values;
        let alone = model.generate_ids(&inputs[1..2], &greedy(32, true)).expect("an answer");
        assert_eq!((&alone[0].answers[0].ids, &alone[0].answers[0].finish), (&wanted, &Finish::Length), "{name}");
        // More than fit at once: some wait until others are done.
        let many: Vec<_> = (0..40).map(|i| inputs[i % 3].clone()).collect();
        let together = model.generate_ids(&many, &greedy(32, true)).expect("answers");
        for (i, output) in together.iter().enumerate() {
            assert_eq!(
                (&output.answers, output.input_tokens),
                (&together[i % 3].answers, inputs[i % 3].len()),
                "{name}"
            );
        }
        assert_eq!(together[1].answers, alone[0].answers, "{name}");
        // Beside samples and beams of other threads, too.
        let (one, model) = (&alone[0], &model);
        std::thread::scope(|scope| {
            for n in 0..4u64 {
                let inputs = &inputs;
                scope.spawn(move || {
                    let params = GenerationParams::default().with_seed(n).with_n(3);
                    let search = if n % 2 == 0 { Search::Sample(params) } else { Search::Beams(BeamSearch::default()) };
                    let options = Seq2SeqOptions::default()
                        .with_search(Some(search))
                        .with_max_tokens(Some(20))
                        .with_ignore_end(false);
                    let first = model.generate_ids(inputs, &options).expect("answers");
                    assert_eq!(model.generate_ids(inputs, &options).expect("answers"), first);
                });
            }
            for _ in 0..4 {
                assert_eq!(&model.generate_ids(&inputs[1..2], &greedy(32, true)).expect("an answer")[0], one);
            }
        });
    }
}

fn texts_go_in_and_come_out() {
    let dir = folder("flan-t5-seq2seq");
    let model = load(dir.path(), room(), None);
    let inputs = inputs("flan-t5-seq2seq");
    let spell = |ids: &[u32]| ids.iter().map(|id| format!("w{id}")).collect::<Vec<_>>().join(" ");
    let texts: Vec<String> = inputs.iter().map(|ids| spell(&ids[..ids.len() - 1])).collect();
    let from_texts = model.generate(&texts, &greedy(24, false)).expect("answers");
    assert_eq!(from_texts, model.generate_ids(&inputs, &greedy(24, false)).expect("answers"));
    assert!(from_texts.iter().all(|output| !output.truncated));
    // Streamed.
    let mut streamed = String::new();
    for event in model.stream(&texts[1], &greedy(24, false)).expect("a stream") {
        match event.expect("an event") {
            Event::Begun { cached_tokens } => assert_eq!(cached_tokens, 0),
            Event::Text { text, .. } => streamed.push_str(&text),
            Event::End { finish, .. } => assert_eq!(finish, from_texts[1].answers[0].finish),
        }
    }
    assert_eq!(streamed, from_texts[1].answers[0].text);
    // Dropped streams free their capacity for others.
    for _ in 0..30 {
        drop(model.stream(&texts[2], &greedy(40, true)).expect("a stream"));
    }
    assert_eq!(model.generate(&texts, &greedy(24, false)).expect("answers"), from_texts);
    // A text that is too long is truncated, keeps its end token, and is reported as truncated.
    let long = vec!["w5"; 100].join(" ");
    let (ids, cut) = model.encode(&long).expect("tokens");
    assert!(cut && ids.len() == 48 && ids[46..] == [5, 1], "{ids:?}");
    assert!(model.generate(&[&long], &greedy(4, false)).expect("an answer")[0].truncated);
    assert!(model.stream(&long, &greedy(4, false)).expect("a stream").truncated());
    assert!(!model.stream("w5", &greedy(4, false)).expect("a stream").truncated());
    // Started one by one the answers are the same, and one invalid input prevents all from
    // starting.
    let begun: Vec<_> = texts.iter().map(|text| model.begin(text, &greedy(24, false)).expect("begun")).collect();
    let one_by_one: Vec<Answers> = begun.into_iter().map(|writing| writing.wait().expect("answers")).collect();
    assert_eq!(one_by_one, from_texts);
    let (before, bad) = (model.counts(), vec![inputs[0].clone(), vec![99_999]]);
    assert!(model.generate_ids(&bad, &greedy(24, false)).unwrap_err().to_string().starts_with("text 2: token 99999"));
    assert_eq!(model.counts(), before);
    assert!(model.counts().iter().any(|(counted, n)| counted.op == "attention" && *n > 0));
    assert!(model.peak_bytes() <= model.plan().weights + model.plan().cache + model.plan().workspace);
}

fn what_does_not_fit_is_refused() {
    let dir = folder("flan-t5-seq2seq");
    let model = load(dir.path(), room(), None);
    let refused =
        |ids: Vec<u32>, options: Seq2SeqOptions| model.generate_ids(&[ids], &options).unwrap_err().to_string();
    assert!(refused(vec![5; 49], greedy(4, false)).contains("use 1 to 48"));
    assert!(refused(Vec::new(), greedy(4, false)).contains("0 tokens"));
    assert!(refused(vec![67], greedy(4, false)).contains("outside of the model's vocabulary of 67"));
    assert!(refused(vec![5], greedy(41, false)).contains("use 1 to 40"));
    assert!(refused(vec![5], greedy(0, false)).contains("answers of 0 tokens"));
    let beams = |search| Seq2SeqOptions::default().with_search(Some(Search::Beams(search)));
    assert!(
        refused(vec![5], beams(BeamSearch { num_beams: 13, ..BeamSearch::default() })).contains("13 answers at once")
    );
    assert!(refused(vec![5], beams(BeamSearch { num_beams: 0, ..BeamSearch::default() })).contains("0 beams"));
    assert!(
        refused(vec![5], beams(BeamSearch { num_return_sequences: 5, ..BeamSearch::default() })).contains("5 answers")
    );
    assert!(model.stream("w5", &beams(BeamSearch::default())).err().is_some_and(|e| e.to_string().contains("stream")));
    // An encoder-only model, and one whose decoder is deeper than its configuration says.
    let file = dir.path().join("config.json");
    let mut config: Value = json(&file);
    config["num_decoder_layers"] = json!(1);
    std::fs::write(&file, config.to_string()).expect("a configuration");
    let again = std::panic::catch_unwind(|| load(dir.path(), room(), None));
    assert!(again.is_err_and(|why| why.downcast_ref::<String>().is_some_and(|s| s.contains("decoder.block.1"))));
}

/// Folders of `tools/goldens/gguf_models.py`: the model as transformers saved it, and llama.cpp's
/// conversion beside it.
fn a_gguf_answers_as_the_folder_it_was_made_from(root: &Path) {
    for name in ["t5", "t5-gated", "umt5"] {
        // The folder's own tokenizer is not T5's; only tokens are compared.
        let folder = tempfile::tempdir().expect("a folder");
        for file in ["config.json", "model.safetensors"] {
            std::fs::copy(root.join(name).join(file), folder.path().join(file)).expect("a copy");
        }
        std::fs::write(folder.path().join("tokenizer.json"), plain_words(67).to_string()).expect("a tokenizer");
        let file = root.join(name).join("model.gguf");
        let [from_folder, from_file] = [folder.path(), &file].map(|path| load(path, room(), None));
        let inputs = vec![vec![5, 9, 14, 1], (3..40).chain([1]).collect(), vec![1]];
        for options in [greedy(24, true), greedy(24, false).with_search(Some(Search::Beams(BeamSearch::default())))] {
            let [a, b] =
                [&from_folder, &from_file].map(|model| model.generate_ids(&inputs, &options).expect("answers"));
            for (a, b) in a.iter().zip(&b) {
                assert_eq!(a.answers[0].ids, b.answers[0].ids, "{name}");
                let scores = [a, b].map(|output| output.answers[0].score.unwrap_or_default());
                // The file keeps matrices in f32 here, and tables are read as they are.
                assert!((scores[0] - scores[1]).abs() < 1e-4, "{name}: {scores:?}");
            }
        }
    }
}

fn main() {
    Suite::new(devices())
        .on_each("states_and_logits_are_the_references", states_and_logits_are_the_references)
        .test("beams_find_what_the_reference_finds", beams_find_what_the_reference_finds)
        .test(
            "greedy_answers_are_the_references_and_the_same_in_company",
            greedy_answers_are_the_references_and_the_same_in_company,
        )
        .test("texts_go_in_and_come_out", texts_go_in_and_come_out)
        .test("what_does_not_fit_is_refused", what_does_not_fit_is_refused)
        .with_folder(
            "SCONCE_GGUF_MODELS",
            "a_gguf_answers_as_the_folder_it_was_made_from",
            a_gguf_answers_as_the_folder_it_was_made_from,
        )
        .run()
}
