//! GLiNER against the `gliner` package: every stage of the forward pass, and the entities with every
//! option.

use sconce_engine::hub::{Options, Reference};
use sconce_engine::{Checkpoint, DeviceChoice, Error, Gliner, GlinerOptions, LoadOptions, Loaded, Truncate};
use sconce_models::{self as models, Batch, GlinerStage, Marks, Sequence};
use sconce_ops::case::{devices, places};
use sconce_ops::{DType, Device, Ladder, Place, Policy, Rung, Tensor, Weights};
use sconce_testkit::{Arrays, Suite, golden, json, materialize, worst};
use serde_json::{Value, json};
use std::path::Path;
use std::sync::Arc;

const MODELS: [&str; 6] =
    ["gliner-deberta", "gliner-modernbert", "gliner-token", "gliner-token-bert", "gliner-mean", "gliner-max"];

/// Relative to the largest value of a stage: goldens are f64 runs stored in f32, and sums in f32 are
/// some roundings of 6e-8 away.
const F32: f32 = 1e-5;

/// The difference of two probabilities, of which the package's is in f32 too.
const SCORE: f64 = 2e-5;

fn options() -> LoadOptions {
    let cache = std::env::temp_dir();
    LoadOptions::new(Options::new(cache.clone(), cache)).with_device(DeviceChoice::Only(Device::Cpu))
}

fn load(dir: &Path, place: &Place) -> models::Gliner {
    let weights = Weights::new(Arc::new(Checkpoint::open(dir).unwrap()), DType::F32, place.clone());
    let model = models::Gliner::load(&json(&dir.join("gliner_config.json")), &weights).unwrap();
    let left: Vec<_> = weights.unused().into_iter().filter(|n| !models::is_ignorable(n)).collect();
    assert!(left.is_empty(), "{}: {left:?}", dir.display());
    model
}

/// The golden's texts that have words: their numbers and sequences.
fn sequences(name: &str, arrays: &Arrays) -> Vec<(usize, Sequence)> {
    let config = json(&golden(name).join("gliner_config.json"));
    let label = config["class_token_index"].as_u64().unwrap() as u32;
    let with = (0..20).filter(|i| arrays.has(&format!("{i}.ids")));
    with.map(|i| {
        let ids = arrays.u32(&format!("{i}.ids")).values;
        let labels = (0..ids.len() as u32).filter(|at| ids[*at as usize] == label).collect();
        let words = arrays.u32(&format!("{i}.word_ranges")).values;
        let words = words.chunks(2).map(|word| word[0]..word[1]).collect();
        let marks = Marks { labels, words };
        (i, Sequence { ids, marks: Some(marks), ..Sequence::default() })
    })
    .collect()
}

/// Every stage and the logits of each sequence.
fn run(model: &models::Gliner, sequences: &[Sequence], place: &Place) -> Vec<Vec<(String, Vec<f32>)>> {
    let batch = Batch::new(sequences, model.limits(), place).unwrap();
    let (tokens, mut labels, mut words) = (batch.segments.observe().iter().collect::<Vec<_>>(), Vec::new(), Vec::new());
    let (mut label, mut word) = (0, 0);
    for Marks { labels: l, words: w } in sequences.iter().flat_map(|s| &s.marks) {
        labels.push(label..label + l.len());
        words.push(word..word + w.len());
        (label, word) = (label + l.len(), word + w.len());
    }
    let mut seen: Vec<Vec<(String, Vec<f32>)>> = vec![Vec::new(); sequences.len()];
    let mut take = |name: &str, x: &[f32], rows: usize, ranges: &[std::ops::Range<usize>]| {
        let width = x.len() / rows;
        for (range, seen) in ranges.iter().zip(&mut seen) {
            seen.retain(|(there, _)| there != name);
            seen.push((name.into(), x[range.start * width..range.end * width].to_vec()));
        }
    };
    let mut hook = |stage: GlinerStage, x: &Tensor| {
        let (name, ranges) = match stage {
            GlinerStage::Tokens => ("tokens", &tokens),
            GlinerStage::Labels => ("labels", &labels),
            GlinerStage::Words => ("words", &words),
            // The last of several layers remains.
            GlinerStage::Lstm(_) => ("lstm", &words),
        };
        take(name, &x.to_f32().unwrap(), x.dims()[0], ranges);
    };
    let parts = model.forward(&batch, &mut hook).unwrap();
    let rows = parts.iter().map(|part| part.dims()[0]).sum();
    let logits: Vec<f32> = parts.iter().flat_map(|part| part.to_f32().unwrap()).collect();
    let ranges = model.result_rows(&batch);
    assert_eq!(ranges.last().unwrap().end, rows);
    take("logits", &logits, rows, &ranges);
    seen
}

fn every_stage_equals_the_package(kind: &str) {
    for name in MODELS {
        let (files, arrays) = (materialize(name), Arrays::open(&golden(name).join("golden.safetensors")));
        let (numbers, sequences): (Vec<_>, Vec<_>) = sequences(name, &arrays).into_iter().unzip();
        for (place, force) in places(kind) {
            let on = format!("{}{}", place.device(), force.map_or_else(String::new, |rung| format!(", {rung}")));
            let ladder = Ladder::new(Policy::default().with_force(force));
            let _here = ladder.clone().enter();
            let model = load(files.path(), &place);
            let packed = run(&model, &sequences, &place);
            let mut most = 0f32;
            for ((i, sequence), packed) in numbers.iter().zip(&sequences).zip(&packed) {
                // A GPU's products may add in another order for more rows, and so may Candle's.
                let alone = &run(&model, std::slice::from_ref(sequence), &place)[0];
                assert!(place.device().is_gpu() || force == Some(Rung::Composed) || alone == packed, "{name} on {on}");
                for (what, got) in packed.iter().chain(alone) {
                    let want = arrays.f32(&format!("{i}.{what}")).values;
                    let off = worst(got, &want) / want.iter().fold(0.0, |m, v| v.abs().max(m));
                    assert!(off <= F32, "{name} on {on}, {what} of text {i}: off by {off:.2e}");
                    most = most.max(off);
                }
                assert_eq!(packed.iter().any(|(what, _)| what == "lstm"), arrays.has(&format!("{i}.lstm")));
            }
            let is_expected = |rung| force.map_or(rung != Rung::Host, |force| rung == force);
            assert!(ladder.counts().iter().all(|(c, n)| is_expected(c.rung) && *n > 0), "{name} on {on}");
            println!("{name} on {on}: {most:.1e} of the largest");
        }
    }
}

fn options_of(value: &Value) -> GlinerOptions {
    GlinerOptions {
        threshold: value["threshold"].as_f64().unwrap() as f32,
        nested: value["flat_ner"] == false,
        multi_label: value["multi_label"] == true,
    }
}

fn open(name: &str) -> (tempfile::TempDir, Gliner) {
    let dir = materialize(name);
    let reference: Reference = dir.path().to_str().unwrap().parse().unwrap();
    let model = Gliner::load(&reference, &options(), &()).unwrap();
    (dir, model)
}

fn entities_equal_those_of_the_package() {
    for name in MODELS {
        let (_dir, model) = open(name);
        let golden = json(&golden(name).join("golden.json"));
        let labels: Vec<&str> = golden["labels"].as_array().unwrap().iter().map(|l| l.as_str().unwrap()).collect();
        let cases = golden["cases"].as_array().unwrap();
        let texts: Vec<&str> = cases.iter().map(|case| case["text"].as_str().unwrap()).collect();
        for (i, options) in golden["options"].as_array().unwrap().iter().enumerate() {
            // A label given twice counts once.
            let twice: Vec<_> = labels.iter().chain(&labels[..1]).collect();
            let got = model.tag(&texts, &twice, &options_of(options)).unwrap();
            for (case, got) in cases.iter().zip(&got.results) {
                let want = case["found"][i].as_array().unwrap();
                let about = format!("{name} {options} {}", case["text"]);
                assert_eq!(got.len(), want.len(), "{about}: {got:?} {want:?}");
                for (got, want) in got.iter().zip(want) {
                    let found = json!({"start": got.start, "end": got.end, "text": got.word, "label": got.label});
                    for field in ["start", "end", "text", "label"] {
                        assert_eq!(found[field], want[field], "{about}: {got:?} {want}");
                    }
                    let off = (f64::from(got.score) - want["score"].as_f64().unwrap()).abs();
                    assert!(off <= SCORE, "{about}: {got:?} {want}");
                }
            }
            // The last text has more words than the models take.
            assert_eq!(got.truncated, [texts.len() - 1]);
        }
    }
}

fn requests_that_cannot_be_answered_are_refused() {
    let (_dir, model) = open("gliner-deberta");
    let none: [&str; 0] = [];
    let options = GlinerOptions::default();
    let refusal = |labels: &[&str], options: &GlinerOptions| model.tag(&["a text"], labels, options).unwrap_err();
    let says = |error: Error, what: &str| {
        let text = error.to_string();
        assert!(matches!(error, Error::Input(_)) && text.contains(what), "{text}");
    };
    says(refusal(&none, &options), "no labels");
    for threshold in [-0.1, 1.5, f32::NAN, f32::INFINITY] {
        says(refusal(&["person"], &GlinerOptions { threshold, ..options.clone() }), "threshold");
    }
    says(refusal(&["person", "a <<ENT>> b"], &options), "`<<ENT>>`");
    let many: Vec<String> = (0..400).map(|i| i.to_string()).collect();
    says(refusal(&many.iter().map(String::as_str).collect::<Vec<_>>(), &options), "400 labels");
    says(refusal(&["x".repeat(100_000).as_str()], &options), "100000 bytes");
    // These fit the model by number and length, and not beside a text.
    for labels in [vec![vec!["word"; 500].join(" ")], many[..200].to_vec()] {
        let error = model.tag(&["fine", "a text"], &labels, &options).unwrap_err();
        assert!(matches!(&error, Error::TooLong { text: 0, why } if why.contains("labels")), "{error}");
    }
    let model = model.with_truncation(Truncate::Never);
    let long = vec!["word"; 51].join(" ");
    let error = model.tag(&["fine", &long], &["person"], &options).unwrap_err();
    assert!(matches!(&error, Error::TooLong { text: 1, why } if why.contains("51 words")), "{error}");
}

/// A tokenizer drops a zero-width space, which then separates words as a space does.
fn words_without_tokens_do_not_shift_the_others() {
    for name in ["gliner-modernbert", "gliner-token-bert"] {
        let (_dir, model) = open(name);
        let golden = json(&golden(name).join("golden.json"));
        let labels: Vec<&str> = golden["labels"].as_array().unwrap().iter().map(|l| l.as_str().unwrap()).collect();
        let options = GlinerOptions { threshold: 0.3, nested: true, multi_label: true };
        let plain = "Anna lives in Paris with José.";
        let dropped = ["Anna\u{200b}lives in Paris with José.", "Anna lives in\u{200b}Paris with José."];
        let texts = [plain, dropped[0], dropped[1], "\u{200b}", "", "\u{feff} \u{200b}"];
        let found = model.tag(&texts, &labels, &options).unwrap();
        let of = |i: usize| found.results[i].iter().map(|e| (e.start, e.end, &*e.label, e.score)).collect::<Vec<_>>();
        assert!(of(0).iter().any(|entity| entity.0 > 4), "{name}: {:?}", of(0));
        assert_eq!((of(1), of(2)), (of(0), of(0)), "{name}");
        for (text, entities) in texts.iter().zip(&found.results) {
            for e in entities {
                assert_eq!(e.word, text.chars().skip(e.start).take(e.end - e.start).collect::<String>());
            }
        }
        assert_eq!((of(3).len() + of(4).len() + of(5).len(), &found.truncated), (0, &Vec::new()), "{name}");
        // A label without tokens is its mark alone, and takes no word from the text.
        let with = |label| model.tag(&[plain], &["person", label], &options).unwrap().results;
        assert_eq!(
            with("\u{200b}").iter().flatten().map(|e| e.start).collect::<Vec<_>>(),
            with("").iter().flatten().map(|e| e.start).collect::<Vec<_>>()
        );
    }
}

fn models_with_other_parts_are_refused_by_name() {
    let changes = [
        ("span_mode", json!("marker"), "span_mode `marker`"),
        ("subtoken_pooling", json!("sum"), "subtoken_pooling `sum`"),
        ("fuse_layers", json!(true), "fuse_layers"),
        ("post_fusion_schema", json!("l2l-l2t"), "post_fusion_schema"),
        ("labels_encoder", json!("BAAI/bge-small-en"), "labels_encoder"),
        ("labels_decoder", json!("gpt2"), "labels_decoder"),
        ("decoder_config", json!({"model_type": "gpt2"}), "decoder_config"),
        ("ent_token", json!("<<NONE>>"), "ent_token `<<NONE>>` is no token"),
        ("class_token_index", json!(3), "class_token_index is 3"),
        ("relations_layer", json!("biaffine"), "relations_layer"),
        ("span_encoder_config", json!({"model_type": "rnn"}), "span_encoder_config"),
        ("represent_spans", json!(true), "represent_spans"),
        ("precomputed_prompts_mode", json!(true), "precomputed_prompts_mode"),
        ("words_splitter_type", json!("spacy"), "words_splitter_type `spacy`"),
        ("encoder_config", Value::Null, "save_pretrained"),
        ("hidden_size", json!(1u64 << 62), ""),
        ("num_rnn_layers", json!(1000), "out of range"),
        ("max_width", json!(0), "out of range"),
        ("max_len", json!(0), "max_len"),
        ("class_token_index", json!(-1), "class_token_index"),
    ];
    for (field, value, message) in changes {
        let dir = materialize("gliner-deberta");
        let path = dir.path().join("gliner_config.json");
        let mut config = json(&path);
        config[field] = value;
        std::fs::write(&path, config.to_string()).unwrap();
        let reference: Reference = dir.path().to_str().unwrap().parse().unwrap();
        let error = Gliner::load(&reference, &options(), &()).err().expect(field).to_string();
        assert!(error.contains(message), "{field}: {error}");
    }
}

fn main() {
    Suite::new(devices())
        .on_each("every_stage_equals_the_package", every_stage_equals_the_package)
        .test("entities_equal_those_of_the_package", entities_equal_those_of_the_package)
        .test("requests_that_cannot_be_answered_are_refused", requests_that_cannot_be_answered_are_refused)
        .test("words_without_tokens_do_not_shift_the_others", words_without_tokens_do_not_shift_the_others)
        .test("models_with_other_parts_are_refused_by_name", models_with_other_parts_are_refused_by_name)
        .run()
}
