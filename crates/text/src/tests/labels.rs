//! Compares words and entities with transformers' pipeline.

use super::layouts::goldens;
use crate::aggregate::{Labels, Scored, Strategy, aggregate};
use crate::open::open;
use crate::words::{Continuation, placed};
use sconce_testkit::json;
use tokenizers::Decoder;

fn softmax(logits: &[f32]) -> Vec<f32> {
    let max = logits.iter().copied().fold(f32::NEG_INFINITY, f32::max);
    let exp: Vec<f32> = logits.iter().map(|x| (x - max).exp()).collect();
    let sum: f32 = exp.iter().sum();
    exp.iter().map(|x| x / sum).collect()
}

#[test]
fn entities_match_transformers_pipeline() {
    let mut entities_seen = 0;
    for case in json(&goldens().join("labels.json")).as_array().unwrap() {
        let tokenizer = open(&goldens().join("layouts").join(case["layout"].as_str().unwrap())).unwrap();
        let text = case["text"].as_str().unwrap();
        let chars: Vec<char> = text.chars().collect();
        let names: Vec<String> =
            case["labels"].as_array().unwrap().iter().map(|l| l.as_str().unwrap().to_string()).collect();
        let logits: Vec<f32> = case["logits"].as_array().unwrap().iter().map(|x| x.as_f64().unwrap() as f32).collect();
        let tokens = placed(&tokenizer.encode_char_offsets(text, true).unwrap());
        let continuation = Continuation::of(&tokenizer);
        let scores: Vec<Vec<f32>> = logits.chunks(names.len()).map(softmax).collect();
        assert_eq!(scores.len(), tokens.len());
        let scored: Vec<Scored> = tokens
            .iter()
            .zip(&scores)
            .map(|(t, scores)| {
                let (token, subword) = continuation.of_token(&tokenizer, &chars, t);
                Scored { scores, token, start: t.start, end: t.end, special: t.special, subword }
            })
            .collect();
        let join = |words: Vec<String>| tokenizer.get_decoder().unwrap().decode(words).unwrap();
        let labels = Labels { names: &names, ignore: &["O".to_string()], join: &join };
        let strategies = [
            ("none", Strategy::None),
            ("simple", Strategy::Simple),
            ("first", Strategy::First),
            ("average", Strategy::Average),
            ("max", Strategy::Max),
        ];
        for (name, strategy) in strategies {
            let ours = aggregate(&scored, strategy, &labels);
            let theirs = case["entities"][name].as_array().unwrap();
            let place = format!("{} {name} {text:?}", case["layout"]);
            assert_eq!(ours.len(), theirs.len(), "{place}\n{ours:#?}\n{theirs:?}");
            for (o, t) in ours.iter().zip(theirs) {
                entities_seen += 1;
                let rest = serde_json::json!([o.label, t[1], o.index, o.word, o.start, o.end]);
                assert_eq!(&rest, t, "{place}");
                assert!((f64::from(o.score) - t[1].as_f64().unwrap()).abs() < 2e-6, "{place}: {} {}", o.score, t[1]);
            }
        }
    }
    assert!(entities_seen > 500, "{entities_seen}");
}

#[test]
fn word_starts_are_found_in_both_texts() {
    let tokenizer = open(&goldens().join("layouts/bert")).unwrap();
    let tokens = placed(&tokenizer.encode_char_offsets(("unbelievable é", "dog é"), true).unwrap());
    let starts: Vec<(usize, usize)> =
        tokens.iter().filter(|t| t.starts_word).map(|t| (t.start, t.id as usize)).collect();
    let places: Vec<usize> = starts.iter().map(|s| s.0).collect();
    assert_eq!(places, [0, 13, 0, 4], "{tokens:?}");
    assert!(tokens.iter().filter(|t| t.special).all(|t| !t.starts_word));
    assert_eq!(tokens.iter().filter(|t| t.special).count(), 3);
}
