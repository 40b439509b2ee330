//! Answers of sequence-to-sequence models, by greedy and by beam search, alone and together,
//! compared with the reference.

use sconce_engine::hub::{Options, Reference};
use sconce_engine::{
    Answers, BeamSearch, DeviceChoice, EarlyStopping, Event, Finish, GenerationParams, LoadOptions, Loaded, Search,
    Seq2Seq, Seq2SeqLimits, Seq2SeqOptions,
};
use sconce_ops::{Device, Rung};
use sconce_testkit::{Arrays, golden, json, materialize, plain_words};
use serde_json::{Value, json};
use std::path::Path;

const MODELS: [&str; 3] = ["t5-seq2seq", "flan-t5-seq2seq", "mt5-seq2seq"];

/// A golden in a folder with that vocabulary.
fn folder(name: &str) -> tempfile::TempDir {
    let dir = materialize(name);
    std::fs::write(dir.path().join("tokenizer.json"), plain_words(67).to_string()).expect("a tokenizer");
    dir
}

fn load(dir: &Path, limits: Seq2SeqLimits, rung: Option<Rung>) -> Seq2Seq {
    let cache = std::env::temp_dir();
    let mut options = LoadOptions::new(Options::new(cache.clone(), cache)).with_device(DeviceChoice::Only(Device::Cpu));
    options.policy.force = rung;
    let reference: Reference = dir.to_str().expect("a path").parse().expect("a reference");
    Seq2Seq::load(&reference, &options.with_seq2seq(limits), &()).unwrap_or_else(|e| panic!("{}: {e}", dir.display()))
}

fn limits() -> Seq2SeqLimits {
    Seq2SeqLimits::default().with_input(Some(48)).with_output(40).with_sequences(12)
}

fn inputs(name: &str) -> Vec<Vec<u32>> {
    let arrays = Arrays::open(&golden(name).join("golden.safetensors"));
    let ids = arrays.u32("ids").values;
    let ends = arrays.u32("cu_seqlens").values;
    ends.windows(2).map(|pair| ids[pair[0] as usize..pair[1] as usize].to_vec()).collect()
}

fn greedy(max_tokens: usize, ignore_end: bool) -> Seq2SeqOptions {
    Seq2SeqOptions::default()
        .with_search(Some(Search::greedy()))
        .with_max_tokens(Some(max_tokens))
        .with_ignore_end(ignore_end)
}

#[test]
fn beam_search_equals_the_reference() {
    for (name, rung) in MODELS.iter().flat_map(|name| [Rung::Fused, Rung::Composed].map(|rung| (*name, rung))) {
        let dir = folder(name);
        let model = load(dir.path(), limits(), Some(rung));
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

#[test]
fn greedy_answers_equal_the_reference_alone_and_batched() {
    for name in MODELS {
        let dir = folder(name);
        let arrays = Arrays::open(&golden(name).join("golden.safetensors"));
        let inputs = inputs(name);
        let model = load(dir.path(), limits(), None);
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

#[test]
fn texts_tokens_and_streams_give_the_same_answers() {
    let dir = folder("flan-t5-seq2seq");
    let model = load(dir.path(), limits(), None);
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
            Event::Progress { .. } => panic!("no progress was asked for"),
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
    let pending: Vec<_> = texts.iter().map(|text| model.begin(text, &greedy(24, false)).expect("pending")).collect();
    let one_by_one: Vec<Answers> = pending.into_iter().map(|answer| answer.wait().expect("answers")).collect();
    assert_eq!(one_by_one, from_texts);
    let (before, bad) = (model.counts(), vec![inputs[0].clone(), vec![99_999]]);
    assert!(model.generate_ids(&bad, &greedy(24, false)).unwrap_err().to_string().starts_with("text 2: token 99999"));
    assert_eq!(model.counts(), before);
    assert!(model.counts().iter().any(|(counted, n)| counted.op == "attention" && *n > 0));
    assert!(model.peak_bytes() <= model.plan().weights + model.plan().cache + model.plan().workspace);
}

#[test]
fn inputs_and_options_beyond_limits_are_refused() {
    let dir = folder("flan-t5-seq2seq");
    let model = load(dir.path(), limits(), None);
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
    let reloaded = std::panic::catch_unwind(|| load(dir.path(), limits(), None));
    assert!(reloaded.is_err_and(|why| why.downcast_ref::<String>().is_some_and(|s| s.contains("decoder.block.1"))));
}

/// Folders of `tools/goldens/gguf_models.py`: the model as transformers saved it, and llama.cpp's
/// conversion beside it.
#[test]
#[ignore = "needs models that tools/goldens/gguf_models.py makes; SCONCE_GGUF_MODELS=DIR"]
fn gguf_answers_equal_those_of_its_folder() {
    let root = std::path::PathBuf::from(std::env::var_os("SCONCE_GGUF_MODELS").expect("SCONCE_GGUF_MODELS"));
    for name in ["t5", "t5-gated", "umt5"] {
        // The folder's own tokenizer is not T5's; only tokens are compared.
        let folder = tempfile::tempdir().expect("a folder");
        for file in ["config.json", "model.safetensors"] {
            std::fs::copy(root.join(name).join(file), folder.path().join(file)).expect("a copy");
        }
        std::fs::write(folder.path().join("tokenizer.json"), plain_words(67).to_string()).expect("a tokenizer");
        let file = root.join(name).join("model.gguf");
        let [from_folder, from_file] = [folder.path(), &file].map(|path| load(path, limits(), None));
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
