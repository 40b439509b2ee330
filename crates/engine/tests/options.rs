//! The options of encoders that a server offers: tokens as input, truncation, dimensions, queue
//! statistics, cancellation, and concurrent requests.

use sconce_engine::hub::Options;
use sconce_engine::{
    Classifier, DeviceChoice, EmbedOptions, Embedder, Error, LoadOptions, Loaded, Pooling, Prompt, RankOptions,
    RequestContext, Reranker, SparseEncoder, Tagger, TextOrTokens, Truncate,
};
use sconce_ops::Device;
use sconce_testkit::{golden, materialize};
use std::path::Path;
use std::time::{Duration, Instant};

fn options() -> LoadOptions {
    let cache = std::env::temp_dir();
    LoadOptions::new(Options::new(cache.clone(), cache)).with_device(DeviceChoice::Only(Device::Cpu))
}

fn embedder(dir: &Path) -> Embedder {
    Embedder::load(&dir.to_str().unwrap().parse().unwrap(), &options(), &()).unwrap()
}

const TEXTS: [&str; 3] = ["A man is eating food.", "", "A girl."];

fn ids(embedder: &Embedder, text: &str) -> Vec<u32> {
    embedder.tokenize(text, true).unwrap().iter().map(|token| token.id).collect()
}

#[test]
fn token_inputs_equal_their_text_and_have_offsets() {
    let model = embedder(&golden("st-legacy"));
    let want = model.embed(&TEXTS, &Prompt::Text(String::new())).unwrap();
    let given: Vec<Vec<u32>> = TEXTS.iter().map(|text| ids(&model, text)).collect();
    let inputs: Vec<_> = given.iter().map(|ids| TextOrTokens::Tokens(ids)).collect();
    let got = model.embed_with(&inputs, &EmbedOptions::default()).unwrap();
    assert_eq!((&got.values, &got.tokens), (&want.values, &want.tokens));
    // Texts and tokens in one call.
    let mixed = [TextOrTokens::Text(TEXTS[0]), inputs[2]];
    let none = EmbedOptions::default().with_prompt(Prompt::Default);
    assert_eq!(model.embed_with(&mixed, &none).unwrap().row(1), want.row(2));
    let prompted = EmbedOptions::default().with_prompt(Prompt::Text("query: ".into()));
    assert!(model.embed_with(&inputs, &prompted).unwrap_err().to_string().contains("prompt"));
    let empty = model.embed_with(&[TextOrTokens::Tokens(&[])], &none).unwrap_err().to_string();
    assert!(empty.contains("text 1: it has no tokens"), "{empty}");
    let beyond = model.embed_with(&[TextOrTokens::Tokens(&[9_999_999])], &none).unwrap_err().to_string();
    assert!(beyond.contains("9999999"), "{beyond}");
    // Offsets count characters, not bytes; special tokens have none.
    let text = "Grüße, a man";
    let tokens = model.tokenize(text, true).unwrap();
    assert!(tokens[0].special && tokens[0].place.is_none(), "{:?}", tokens[0]);
    let chars: Vec<char> = text.chars().collect();
    for token in tokens.iter().filter(|token| !token.special) {
        let (start, end) = token.place.unwrap();
        assert_eq!(token.text, chars[start..end].iter().collect::<String>());
    }
    assert!(model.tokenize(text, false).unwrap().iter().all(|token| !token.special));
    let long = "man ".repeat(5000);
    assert!(model.tokenize(&long, true).unwrap().len() > 5000, "tokenize does not truncate");
    for text in [text, &long, ""] {
        assert_eq!(model.token_count(text).unwrap(), model.tokenize(text, false).unwrap().len());
    }
    let words = ids(&model, "a man");
    assert_eq!(model.detokenize(&words, true).unwrap(), "a man");
    assert_ne!(model.detokenize(&words, false).unwrap(), "a man");
    assert!(model.detokenize(&[9_999_999], true).is_err());
}

#[test]
fn long_inputs_are_truncated_left_right_or_refused() {
    let model = embedder(&golden("st-legacy"));
    let most = model.plan().max_tokens;
    let (head, tail) = ("man ".repeat(most), "food ".repeat(most));
    let long = format!("{head}{tail}");
    let right = model.embed(&[&long], &Prompt::Default).unwrap();
    let left = model.with_truncation(Truncate::Left).embed(&[&long], &Prompt::Default).unwrap();
    assert_eq!((&right.truncated, &left.truncated), (&vec![0], &vec![0]));
    assert_eq!((right.tokens[0], left.tokens[0]), (most, most));
    assert_eq!(right.values, model.embed(&[&head], &Prompt::Default).unwrap().values);
    assert_eq!(left.values, model.embed(&[&tail], &Prompt::Default).unwrap().values);
    assert_ne!(left.values, right.values);
    let refused =
        model.with_truncation(Truncate::Never).embed(&["a man", &long], &Prompt::Default).unwrap_err().to_string();
    let all = ids(&model, &long).len();
    assert!(refused.contains("text 2") && refused.contains(&format!("{all} tokens")), "{refused}");
    assert!(refused.contains(&most.to_string()), "{refused}");
    assert!(model.with_truncation(Truncate::Never).embed(&["a man"], &Prompt::Default).is_ok());
    // The same for inputs given as tokens.
    let given: Vec<u32> = (0..most as u32 * 2).map(|i| i % 20 + 5).collect();
    let of = |truncate, ids: &[u32]| {
        let inputs = [TextOrTokens::Tokens(ids)];
        model.with_truncation(truncate).embed_with(&inputs, &EmbedOptions::default()).map(|e| e.values)
    };
    assert_eq!(of(Truncate::Right, &given).unwrap(), of(Truncate::Never, &given[..most]).unwrap());
    assert_eq!(of(Truncate::Left, &given).unwrap(), of(Truncate::Never, &given[most..]).unwrap());
    assert!(of(Truncate::Never, &given).unwrap_err().to_string().contains(&format!("{} tokens", most * 2)));
    // Every task supports it.
    let path = materialize("task-rerank");
    let reranker = Reranker::load(&path.path().to_str().unwrap().parse().unwrap(), &options(), &()).unwrap();
    let never = reranker.with_truncation(Truncate::Never).rerank("a", &["b", &long], RankOptions::default());
    assert!(matches!(never, Err(Error::TooLong { text: 1, .. })), "{never:?}");
    assert_eq!(reranker.rerank("a", &["b", &long], RankOptions::default()).unwrap().truncated, [1]);
}

#[test]
fn embeddings_have_the_requested_normalization_and_dimensions() {
    let length = |row: &[f32]| row.iter().map(|v| v * v).sum::<f32>().sqrt();
    // A model that L2-normalizes, and one that does not.
    for name in ["st-legacy", "st-max"] {
        let model = embedder(&golden(name));
        let inputs = TEXTS.map(TextOrTokens::Text);
        let with = |normalize, dimensions| {
            let options = EmbedOptions::default().with_normalize(normalize).with_dimensions(dimensions);
            model.embed_with(&inputs, &options)
        };
        let plain = with(None, None).unwrap();
        let is_normal = (length(plain.row(0)) - 1.0).abs() < 1e-4;
        let (one, raw) = (with(Some(true), None).unwrap(), with(Some(false), None).unwrap());
        for i in 0..inputs.len() {
            assert!((length(one.row(i)) - 1.0).abs() < 1e-5, "{name}");
            let scale = length(raw.row(i));
            assert!(one.row(i).iter().zip(raw.row(i)).all(|(a, b)| (a * scale - b).abs() < 1e-4), "{name}");
        }
        assert_eq!(&plain.values, if is_normal { &one.values } else { &raw.values }, "{name}");
        let few = with(None, Some(4)).unwrap();
        assert_eq!(few.values, plain.clone().cut(4).unwrap().values, "{name}: equals cutting the full embedding");
        assert_eq!(with(Some(false), Some(4)).unwrap().row(1), &raw.row(1)[..4], "{name}");
        assert!(with(None, Some(0)).is_err() && with(None, Some(plain.dimension + 1)).is_err());
    }
}

#[test]
fn token_embeddings_pool_to_the_text_embedding() {
    // Max pooling, without modules after it.
    let model = embedder(&golden("st-max"));
    let inputs = TEXTS.map(TextOrTokens::Text);
    let raw = EmbedOptions::default().with_normalize(Some(false));
    let (all, pooled) = (model.embed_all(&inputs, &Prompt::Default).unwrap(), model.embed_with(&inputs, &raw).unwrap());
    assert_eq!(all.tokens, pooled.tokens);
    for (i, text) in all.results.iter().enumerate() {
        assert_eq!(text.rows().count(), all.tokens[i]);
        let largest = (0..text.dimension).map(|k| text.rows().map(|row| row[k]).fold(f32::NEG_INFINITY, f32::max));
        assert_eq!(largest.collect::<Vec<_>>(), pooled.row(i), "{}", TEXTS[i]);
    }
}

#[test]
fn pooling_of_a_call_replaces_the_models_own() {
    // Several poolings, concatenated; max pooling; mean pooling.
    let models =
        [("st-concat-prompts", None), ("st-max", Some(Pooling::Max)), ("st-legacy-lower", Some(Pooling::Mean))];
    for (name, own) in models {
        let model = embedder(&golden(name));
        let inputs = TEXTS.map(TextOrTokens::Text);
        let prompt = Prompt::Text(String::new());
        let all = model.embed_all(&inputs, &prompt).unwrap();
        let raw = EmbedOptions::default().with_normalize(Some(false)).with_prompt(prompt);
        let (hidden, before) = (all.results[0].dimension, model.embed_with(&inputs, &raw).unwrap());
        for pooling in [Pooling::Mean, Pooling::Cls, Pooling::LastToken, Pooling::Max] {
            let options = raw.clone().with_pooling(Some(pooling));
            let got = model.embed_with(&inputs, &options).unwrap();
            assert_eq!((got.dimension, model.dimension(Some(pooling)).unwrap()), (hidden, hidden), "{name}");
            for (i, text) in all.results.iter().enumerate() {
                let rows: Vec<&[f32]> = text.rows().collect();
                let column = |k: usize| rows.iter().map(move |row| f64::from(row[k]));
                let want = |k: usize| match pooling {
                    Pooling::Cls => f64::from(rows[0][k]),
                    Pooling::LastToken => f64::from(rows[rows.len() - 1][k]),
                    Pooling::Max => column(k).fold(f64::NEG_INFINITY, f64::max),
                    _ => column(k).sum::<f64>() / rows.len() as f64,
                };
                let off = (0..hidden).map(|k| (f64::from(got.row(i)[k]) - want(k)).abs()).fold(0.0, f64::max);
                assert!(off < 1e-6, "{name} {pooling:?} text {i}: off by {off:.1e}");
            }
            if own == Some(pooling) {
                assert_eq!(got.values, before.values, "{name}: its own pooling");
            }
        }
    }
    // A dense layer runs after any single pooling, but not if it takes several.
    let several = embedder(&golden("st-legacy"));
    let error = several.embed_with(&[], &EmbedOptions::default().with_pooling(Some(Pooling::Cls))).unwrap_err();
    assert!(error.to_string().contains("takes 2 poolings together"), "{error}");
    let model = embedder(&golden("st-mean-dense"));
    let inputs = TEXTS.map(TextOrTokens::Text);
    let with = |pooling| model.embed_with(&inputs, &EmbedOptions::default().with_pooling(pooling)).unwrap();
    let (own, mean, cls) = (with(None), with(Some(Pooling::Mean)), with(Some(Pooling::Cls)));
    assert_eq!((own.dimension, &own.values), (cls.dimension, &mean.values));
    assert_ne!(own.values, cls.values);
}

#[test]
fn concurrent_requests_equal_single_ones_and_cancelled_ones_fail() {
    let model = embedder(&golden("st-legacy"));
    let texts: Vec<String> = (0..120)
        .map(|i| format!("{} {}", "the man is eating food".repeat(i % 7), ["a", "baby", "girl"][i % 3]))
        .collect();
    let want = model.embed(&texts, &Prompt::Default).unwrap();
    let caller = RequestContext::new(Some(Instant::now() + Duration::from_secs(600)));
    std::thread::scope(|scope| {
        for part in 0..12 {
            let (model, texts, want) = (model.with_context(&caller), &texts, &want);
            scope.spawn(move || {
                for i in (part..texts.len()).step_by(12) {
                    let several = part == 3;
                    let own = if several { &texts[..] } else { &texts[i..=i] };
                    let got = model.embed(own, &Prompt::Default).unwrap();
                    let at = if several { i } else { 0 };
                    assert_eq!(got.row(at), want.row(i), "text {i} in a batch");
                }
            });
        }
    });
    let times = caller.times();
    assert!(times.tokenization > Duration::ZERO && times.inference > Duration::ZERO, "{times:?}");
    assert_eq!((model.queue().requests, model.queue().tokens), (0, 0));
    assert!(model.queue().batch_sequences > 0 && model.queue().batch_tokens > 0);
    caller.cancel();
    let result = model.with_context(&caller).embed(&texts, &Prompt::Default);
    assert!(matches!(result, Err(Error::Cancelled)), "{result:?}");
    let late = model.with_context(&RequestContext::new(Some(Instant::now()))).embed(&texts, &Prompt::Default);
    assert!(matches!(late, Err(Error::DeadlineExceeded { .. })), "{late:?}");
    assert!(model.embed(&texts, &Prompt::Default).is_ok(), "other requests are not cancelled");
    // The model is unloaded with its last handle, whichever that is.
    let last = model.with_context(&RequestContext::default());
    drop(model);
    assert_eq!(last.embed(&texts[..3], &Prompt::Default).unwrap().values, want.values[..3 * want.dimension]);
}

#[test]
fn every_encoder_obeys_cancellation() {
    let cancelled = RequestContext::default();
    cancelled.cancel();
    let load = |name: &str| {
        let dir = materialize(name);
        (dir.path().to_str().unwrap().parse().unwrap(), dir)
    };
    let (reference, _dir) = load("task-classify");
    let classifier = Classifier::load(&reference, &options(), &()).unwrap().with_context(&cancelled);
    assert!(matches!(classifier.classify(&["a".into()], false), Err(Error::Cancelled)));
    let (reference, _dir) = load("task-rerank");
    let reranker = Reranker::load(&reference, &options(), &()).unwrap().with_context(&cancelled);
    assert!(matches!(reranker.rerank("a", &["b"], RankOptions::default()), Err(Error::Cancelled)));
    let (reference, _dir) = load("task-tag");
    let tagger = Tagger::load(&reference, &options(), &()).unwrap().with_context(&cancelled);
    let tagged = tagger.tag(&["a"], sconce_engine::Strategy::Simple, 0.0);
    assert!(matches!(tagged, Err(Error::Cancelled)));
    let (reference, _dir) = load("task-sparse");
    let sparse = SparseEncoder::load(&reference, &options(), &()).unwrap();
    assert!(matches!(sparse.with_context(&cancelled).embed(&["a"]), Err(Error::Cancelled)));
    let tokens: Vec<u32> = sparse.tokenize("a", true).unwrap().iter().map(|t| t.id).collect();
    let given = sparse.embed_inputs(&[TextOrTokens::Tokens(&tokens)]).unwrap();
    assert_eq!(given.results, sparse.embed(&["a"]).unwrap().results);
}
