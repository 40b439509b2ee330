//! Every task, from texts to final results, against the reference libraries.

use sconce_engine::hub::{Options, Reference};
use sconce_engine::{
    Classifier, Clip, DeviceChoice, EmbedOptions, Embedder, Embeddings, Image, LoadOptions, Loaded, M3,
    MultiVectorEncoder, Pooling, Precision, Prompt, Ranges, RankOptions, RankPooling, Reranker, Route, SparseEncoder,
    Strategy, TagOptions, Tagger, Task, TextOrPair, TextOrTokens,
};
use sconce_ops::Device;
use sconce_testkit::{Arrays, golden, json, materialize, worst};
use serde_json::{Value, json};
use std::path::Path;

/// Goldens are f32 runs of small models; ours sums in another order.
const F32: f32 = 1e-5;

fn options() -> LoadOptions {
    let cache = std::env::temp_dir();
    LoadOptions::new(Options::new(cache.clone(), cache)).with_device(DeviceChoice::Only(Device::Cpu))
}

fn reference(dir: &Path) -> Reference {
    dir.to_str().unwrap().parse().unwrap()
}

fn cases(golden: &Value, key: &str) -> Vec<Value> {
    golden[key].as_array().unwrap_or_else(|| panic!("no {key}")).clone()
}

fn text(case: &Value) -> String {
    case["text"].as_str().unwrap().repeat(case.get("times").and_then(Value::as_u64).unwrap_or(1) as usize)
}

fn texts(cases: &[Value]) -> Vec<String> {
    cases.iter().map(text).collect()
}

fn arrays(name: &str) -> Arrays {
    Arrays::open(&golden(name).join("golden.safetensors"))
}

fn answers(name: &str) -> Value {
    json(&golden(name).join("golden.json"))
}

#[test]
fn reranker_equals_the_cross_encoder() {
    for name in ["task-rerank", "task-rerank-roberta"] {
        let (dir, answers, arrays) = (materialize(name), answers(name), arrays(name));
        let strings =
            |key: &str| -> Vec<String> { cases(&answers, key).iter().map(|v| v.as_str().unwrap().into()).collect() };
        let (queries, documents) = (strings("queries"), strings("documents"));
        let poolings: &[(RankPooling, &str)] = match name {
            "task-rerank" => &[(RankPooling::Pooler, "pooler"), (RankPooling::Cls, "cls"), (RankPooling::Mean, "mean")],
            _ => &[(RankPooling::Pooler, "logits")],
        };
        let reranker = Reranker::load(&reference(dir.path()), &options(), &()).unwrap();
        for (pooling, key) in poolings {
            let want = arrays.f32(key).values;
            let raw = RankOptions::default().with_raw(true).with_pooling(*pooling);
            for (q, query) in queries.iter().enumerate() {
                let raw = reranker.rerank(query, &documents, raw).unwrap();
                for ranked in &raw.ranked {
                    let off = (ranked.score - want[q * documents.len() + ranked.index]).abs();
                    assert!(off <= F32, "{name} {key}, query {q}, document {}: off by {off:.1e}", ranked.index);
                }
            }
        }
        if name == "task-rerank-roberta" {
            let error = reranker.rerank(&queries[0], &documents, RankOptions::default().with_pooling(RankPooling::Cls));
            assert!(error.unwrap_err().to_string().contains("no BERT"));
        }
        let sigmoid = arrays.f32("sigmoid").values;
        for (q, (query, order)) in queries.iter().zip(cases(&answers, "ranking")).enumerate() {
            let ranking = reranker.rerank(query, &documents, RankOptions::default().with_texts(true)).unwrap();
            let got: Vec<u64> = ranking.ranked.iter().map(|r| r.index as u64).collect();
            assert_eq!(got, serde_json::from_value::<Vec<u64>>(order).unwrap(), "{name} query {q}");
            for r in &ranking.ranked {
                assert!((r.score - sigmoid[q * documents.len() + r.index]).abs() <= F32);
                assert_eq!(r.text.as_ref(), Some(&documents[r.index]));
            }
            let top = RankOptions::default().with_top_n(Some(2));
            assert_eq!(reranker.rerank(query, &documents, top).unwrap().ranked.len(), 2);
        }
        assert!(reranker.rerank::<&str>("nothing to rank", &[], RankOptions::default()).unwrap().ranked.is_empty());
        // Pairs of several queries in one call, in their order.
        let pairs: Vec<(&str, &str)> =
            queries.iter().flat_map(|q| documents.iter().map(move |d| (q.as_str(), d.as_str()))).collect();
        let got = reranker.logits(&pairs, RankPooling::Pooler).unwrap().results;
        let off = worst(&got, &arrays.f32(poolings[0].1).values);
        assert!(off <= F32, "{name}: pairs are off by {off:.1e}");
    }
}

#[test]
fn classifier_equals_the_transformers_pipeline() {
    for kind in ["", "-multi", "-one", "-single", "-regression", "-extreme", "-extreme-multi"] {
        let name = &format!("task-classify{kind}");
        let (dir, answers) = (materialize(name), answers(name));
        let logits = arrays(name).f32("logits");
        let cases = cases(&answers, "cases");
        let classifier = Classifier::load(&reference(dir.path()), &options(), &()).unwrap();
        let inputs: Vec<TextOrPair<'_>> = cases
            .iter()
            .map(|c| TextOrPair { text: c["text"].as_str().unwrap(), pair: c.get("text_pair").and_then(Value::as_str) })
            .collect();
        let tolerance = if kind.contains("extreme") { 1e-3 } else { F32 };
        let got = classifier.classify(&inputs, false).unwrap();
        for (i, (case, labels)) in cases.iter().zip(got.results).enumerate() {
            let want = case["scores"].as_array().unwrap();
            assert_eq!(got.tokens[i], case["ids"].as_array().unwrap().len(), "{name}: {case}");
            for (want, got) in want.iter().zip(&labels) {
                assert_eq!(want["label"], got.label, "{name}: {case}");
                assert!(
                    (want["score"].as_f64().unwrap() as f32 - got.score).abs() <= tolerance,
                    "{name}: {want} {got:?}"
                );
            }
        }
        let names = classifier.labels();
        let in_order = classifier.logits(&inputs).unwrap().results.concat();
        let off = worst(&in_order, &logits.values);
        assert!(off <= tolerance, "{name}: logits are off by {off:.1e}");
        let scale = logits.values.iter().fold(1.0f32, |m, v| m.max(v.abs()));
        for (got, want) in
            classifier.classify(&inputs, true).unwrap().results.iter().zip(logits.values.chunks(names.len()))
        {
            for label in got {
                let place = names.iter().position(|n| *n == label.label).unwrap();
                assert!((label.score - want[place]).abs() <= F32 * scale, "{name}: {label:?}");
            }
        }
    }
}

#[test]
fn tagger_equals_the_transformers_pipeline() {
    let strategies = [
        ("none", Strategy::None),
        ("simple", Strategy::Simple),
        ("first", Strategy::First),
        ("average", Strategy::Average),
        ("max", Strategy::Max),
    ];
    for kind in ["", "-cased", "-bpe", "-unigram", "-plain"] {
        let name = &format!("task-tag{kind}");
        let (dir, answers) = (materialize(name), answers(name));
        let cases = cases(&answers, "cases");
        let tagger = Tagger::load(&reference(dir.path()), &options(), &()).unwrap();
        for (key, strategy) in strategies {
            let got = tagger.tag(&texts(&cases), strategy, 0.0).unwrap();
            for (case, got) in cases.iter().zip(got.results) {
                let want = case[key].as_array().unwrap();
                assert_eq!(want.len(), got.len(), "{name} {key}: {case} {got:?}");
                for (want, got) in want.iter().zip(&got) {
                    let label = want.get("entity").or(want.get("entity_group")).unwrap();
                    assert_eq!(*label, got.label, "{name} {key}: {want} {got:?}");
                    assert_eq!(
                        (want["start"].as_u64(), want["end"].as_u64()),
                        (Some(got.start as u64), Some(got.end as u64)),
                        "{name} {key}: {want} {got:?}"
                    );
                    assert_eq!(want["word"], got.word, "{name} {key}: {want} {got:?}");
                    assert_eq!(want.get("index").and_then(Value::as_u64), got.index.map(|i| i as u64));
                    assert!(
                        (want["score"].as_f64().unwrap() as f32 - got.score).abs() <= F32,
                        "{name} {key}: {want} {got:?}"
                    );
                }
            }
        }
        // The best label of each token that is not special, as the strategy "none" has it.
        let scores = tagger.scores(&texts(&cases)).unwrap();
        for (case, tokens) in cases.iter().zip(scores.results) {
            let best = |scores: &[f32]| (0..scores.len()).max_by(|a, b| scores[*a].total_cmp(&scores[*b])).unwrap();
            let labelled =
                tokens.iter().enumerate().filter(|(_, t)| !t.special && tagger.labels()[best(&t.scores)] != "O");
            let got: Vec<_> = labelled.map(|(i, t)| (i as u64, t.start as u64, t.scores[best(&t.scores)])).collect();
            let want = case["none"].as_array().unwrap();
            assert_eq!(want.len(), got.len(), "{name}: {case} {got:?}");
            for (want, (index, start, score)) in want.iter().zip(got) {
                assert_eq!(
                    (want["index"].as_u64(), want["start"].as_u64()),
                    (Some(index), Some(start)),
                    "{name}: {want}"
                );
                assert!((want["score"].as_f64().unwrap() as f32 - score).abs() <= F32, "{name}: {want} {score}");
            }
            assert!(tokens.iter().all(|t| (t.scores.iter().sum::<f32>() - 1.0).abs() <= F32), "{name}");
        }
        let confident = tagger.tag(&texts(&cases), Strategy::None, 0.9).unwrap();
        assert!(confident.results.iter().flatten().all(|e| e.score >= 0.9));
    }
}

/// Texts longer than the model, in windows that share `stride` tokens.
#[test]
fn tagger_with_a_stride_equals_the_transformers_pipeline() {
    let strategies = [
        ("simple", Strategy::Simple),
        ("first", Strategy::First),
        ("average", Strategy::Average),
        ("max", Strategy::Max),
    ];
    for kind in ["", "-cased", "-bpe", "-unigram", "-plain"] {
        let name = &format!("task-tag{kind}");
        let (dir, answers) = (materialize(name), answers(name));
        let tagger = Tagger::load(&reference(dir.path()), &options(), &()).unwrap();
        for case in cases(&answers, "strided") {
            let (text, stride) = (case["text"].as_str().unwrap(), case["stride"].as_u64().unwrap() as usize);
            let windows: Vec<usize> = cases(&case, "windows").iter().map(|ids| ids.as_array().unwrap().len()).collect();
            for (key, strategy) in strategies {
                let what = format!("{name} {key}, stride {stride}: {text}");
                let options = TagOptions::default().with_strategy(strategy).with_stride(Some(stride));
                // Beside a text of one window.
                let got = tagger.tag_with(&["Anna", text], &options).unwrap();
                assert_eq!((got.tokens[1], &got.truncated), (windows.iter().sum(), &Vec::new()), "{what}");
                let (mut want, got) = (case[key].as_array().unwrap().clone(), &got.results[1]);
                // The pipeline lists the first entity twice if it has no characters.
                want.dedup_by(|a, b| a == b && a["start"] == a["end"]);
                assert_eq!(want.len(), got.len(), "{what}: {want:?} {got:?}");
                for (want, got) in want.iter().zip(got) {
                    let place = (want["start"].as_u64(), want["end"].as_u64());
                    assert_eq!(place, (Some(got.start as u64), Some(got.end as u64)), "{what}: {want} {got:?}");
                    assert_eq!((&want["entity_group"], &want["word"]), (&json!(got.label), &json!(got.word)), "{what}");
                    assert!(
                        (want["score"].as_f64().unwrap() as f32 - got.score).abs() <= F32,
                        "{what}: {want} {got:?}"
                    );
                }
            }
        }
        let strided = |strategy, stride| {
            let options = TagOptions::default().with_strategy(strategy).with_stride(Some(stride));
            tagger.tag_with(&["Anna"], &options)
        };
        assert!(strided(Strategy::None, 4).unwrap_err().to_string().contains("aggregation strategy"));
        assert!(strided(Strategy::Simple, 12).unwrap_err().to_string().contains("12 is too many"));
    }
}

#[test]
fn sparse_weights_equal_those_of_the_sparse_encoder() {
    for kind in ["", "-legacy", "-log1p", "-log1p-sum", "-plain", "-plain-distilbert"] {
        let name = &format!("task-sparse{kind}");
        let (dir, answers) = (materialize(name), answers(name));
        let cases = cases(&answers, "cases");
        let sparse = SparseEncoder::load(&reference(dir.path()), &options(), &()).unwrap();
        let got = sparse.embed(&texts(&cases)).unwrap();
        for (case, got) in cases.iter().zip(&got.results) {
            assert_same_weights(name, &case["weights"], got, 2e-5);
        }
        assert!(sparse.token(got.results[0].ids[0]).is_some());
        assert!(!sparse.has_routes());
    }
    // The default prompt is put before every text; a query's own before queries.
    let dir = materialize("task-sparse");
    let plain = SparseEncoder::load(&reference(dir.path()), &options(), &()).unwrap();
    let path = dir.path().join("config_sentence_transformers.json");
    let mut prompts = json(&path);
    prompts["prompts"] = json!({"query": "the cat ", "other": "hello "});
    prompts["default_prompt_name"] = json!("other");
    std::fs::write(&path, prompts.to_string()).unwrap();
    let prompted = SparseEncoder::load(&reference(dir.path()), &options(), &()).unwrap();
    assert!(prompted.has_routes());
    for (route, text) in [(Route::Query, "the cat sat"), (Route::Document, "hello sat"), (Route::Default, "hello sat")]
    {
        let got = prompted.embed_as(&["sat"], route).unwrap();
        assert_eq!(got, plain.embed(&[text]).unwrap(), "{route:?}");
    }
    prompts["default_prompt_name"] = json!("missing");
    std::fs::write(&path, prompts.to_string()).unwrap();
    let error = SparseEncoder::load(&reference(dir.path()), &options(), &()).err().unwrap().to_string();
    assert!(error.contains("default_prompt_name"), "{error}");
}

/// A Router: queries have the weights of their tokens, documents those of a masked language model.
#[test]
fn sparse_router_encodes_queries_without_inference() {
    let name = "task-sparse-router";
    let dir = materialize(name);
    assert_eq!(Task::detect(dir.path()).unwrap(), Task::Sparse);
    let sparse = SparseEncoder::load(&reference(dir.path()), &options(), &()).unwrap();
    assert!(sparse.has_routes());
    let cases = cases(&answers(name), "cases");
    for (key, route) in [(None, Route::Default), (Some("query"), Route::Query), (Some("document"), Route::Document)] {
        let cases: Vec<_> = cases.iter().filter(|case| case["route"].as_str() == key).cloned().collect();
        let got = sparse.embed_as(&texts(&cases), route).unwrap();
        for (case, got) in cases.iter().zip(&got.results) {
            assert_same_weights(name, &case["weights"], got, 2e-5);
            let count = case["weights"].as_object().unwrap().len();
            assert!(route != Route::Query || got.ids.len() == count, "{case}");
        }
    }
    let truncated = sparse.embed_as(&["the cat ".repeat(200)], Route::Query).unwrap();
    assert_eq!((truncated.tokens[0], truncated.truncated), (24, vec![0]));
    // A prompt of a route is a part of its texts.
    let path = dir.path().join("config_sentence_transformers.json");
    let mut prompts = json(&path);
    prompts["prompts"] = json!({"query": "the cat ", "passage": "hello "});
    std::fs::write(&path, prompts.to_string()).unwrap();
    let prompted = SparseEncoder::load(&reference(dir.path()), &options(), &()).unwrap();
    for (route, text) in [(Route::Query, "the cat sat"), (Route::Document, "hello sat")] {
        let (got, want) = (prompted.embed_as(&["sat"], route).unwrap(), sparse.embed_as(&[text], route).unwrap());
        assert_eq!(got, want, "{route:?}");
    }
    // What is not supported is named.
    let path = dir.path().join("router_config.json");
    let mut router = json(&path);
    router["structure"]["image"] = router["structure"]["query"].clone();
    std::fs::write(&path, router.to_string()).unwrap();
    let error = SparseEncoder::load(&reference(dir.path()), &options(), &()).err().unwrap().to_string();
    assert!(error.contains("image") && error.contains("router_config.json"), "{error}");
}

/// A weight near zero may be on either side of it.
fn assert_same_weights(name: &str, want: &Value, got: &sconce_engine::SparseVector, tolerance: f64) {
    let want = want.as_object().unwrap();
    let weight = |id: &u32| want.get(&id.to_string()).and_then(Value::as_f64).unwrap_or(0.0);
    for (id, w) in got.ids.iter().zip(&got.weights) {
        assert!((f64::from(*w) - weight(id)).abs() <= tolerance, "{name}: token {id}: {w} for {}", weight(id));
    }
    for (id, w) in want.iter().filter(|(_, w)| w.as_f64().unwrap() > tolerance) {
        assert!(got.ids.contains(&id.parse().unwrap()), "{name}: token {id} with {w} is missing");
    }
}

#[test]
fn late_interaction_equals_the_reference_in_every_layout() {
    for kind in ["", "-attend", "-pylate", "-pylate-short", "-pylate-attend", "-native", "-modernbert"] {
        let name = &format!("task-colbert{kind}");
        let (dir, answers, arrays) = (materialize(name), answers(name), arrays(name));
        let multi = MultiVectorEncoder::load(&reference(dir.path()), &options(), &()).unwrap();
        let (queries, documents) = (cases(&answers, "queries"), cases(&answers, "documents"));
        let q = multi.queries(&texts(&queries)).unwrap();
        let d = multi.documents(&texts(&documents)).unwrap();
        for (key, cases, got) in [("queries", &queries, &q), ("documents", &documents, &d)] {
            for (i, (case, vectors)) in cases.iter().zip(&got.results).enumerate() {
                assert_eq!(got.tokens[i], case["ids"].as_array().unwrap().len(), "{name} {key}: {case}");
                assert_eq!(vectors.rows().count() as u64, case["vectors"].as_u64().unwrap(), "{name} {key}: {case}");
            }
            let all: Vec<f32> = got.results.iter().flat_map(|t| t.values.clone()).collect();
            let off = worst(&all, &arrays.f32(key).values);
            assert!(off <= F32, "{name} {key}: off by {off:.1e}");
        }
        let scores = arrays.f32("scores").values;
        for (i, (q, d)) in q.results.iter().flat_map(|q| d.results.iter().map(move |d| (q, d))).enumerate() {
            assert!((d.max_sim(q) - scores[i]).abs() <= 1e-4, "{name}: pair {i}");
        }
    }
}

/// A limit of a request truncates like a model whose files have that limit.
#[test]
fn requests_may_have_their_own_token_limit() {
    let dir = materialize("task-rerank");
    let embedder = Embedder::load(&reference(dir.path()), &options(), &()).unwrap();
    let long = "the cat sat on the mat and a man is eating food";
    let whole = embedder.embed(&[long], &Prompt::Default).unwrap();
    for limit in [4, 6, 9] {
        let cut = embedder.with_max_tokens(Some(limit)).embed(&[long], &Prompt::Default).unwrap();
        assert_eq!((cut.tokens[0], cut.truncated.as_slice()), (limit, &[0][..]));
        let words: Vec<&str> = long.split(' ').take(limit - 2).collect();
        let short = embedder.embed(&[words.join(" ")], &Prompt::Default).unwrap();
        assert_eq!(short.tokens[0], limit, "every word is a token");
        assert!(worst(&cut.values, &short.values) <= 1e-6);
    }
    let same = embedder.with_max_tokens(Some(100_000)).embed(&[long], &Prompt::Default).unwrap();
    assert_eq!((same.values, same.tokens), (whole.values, whole.tokens));
    assert!(embedder.with_max_tokens(Some(1)).embed(&[long], &Prompt::Default).is_err());
}

#[test]
fn names_of_poolings_and_strategies_are_parsed() {
    assert_eq!("weighted_mean".parse::<Pooling>().unwrap(), Pooling::WeightedMean);
    assert!("best".parse::<Pooling>().unwrap_err().to_string().contains("last_token"));
    assert_eq!("average".parse::<Strategy>().unwrap(), Strategy::Average);
    assert!("sum".parse::<Strategy>().unwrap_err().to_string().contains("average"));
}

#[test]
fn m3_gives_dense_sparse_and_multi_vectors_in_one_pass() {
    let (dir, answers, arrays) = (materialize("task-m3"), answers("task-m3"), arrays("task-m3"));
    let m3 = M3::load(&reference(dir.path()), &options(), &()).unwrap();
    let cases = cases(&answers, "cases");
    let got = m3.embed(&texts(&cases)).unwrap();
    let dense: Vec<f32> = got.results.iter().flat_map(|t| t.dense.clone()).collect();
    let multi: Vec<f32> = got.results.iter().flat_map(|t| t.multi.values.clone()).collect();
    assert!(worst(&dense, &arrays.f32("dense").values) <= F32);
    assert!(worst(&multi, &arrays.f32("multi").values) <= F32);
    let sparse_scores = arrays.f32("sparse_scores").values;
    for (i, (case, text)) in cases.iter().zip(&got.results).enumerate() {
        assert_same_weights("task-m3", &case["sparse"], &text.sparse, 2e-5);
        for (j, other) in got.results.iter().enumerate() {
            let want = sparse_scores[i * got.results.len() + j];
            assert!((text.sparse.dot(&other.sparse) - want).abs() <= 1e-4 * want.abs().max(1.0));
        }
    }
    // The same model serves each of the three tasks.
    let sparse = SparseEncoder::load(&reference(dir.path()), &options(), &()).unwrap().embed(&texts(&cases)).unwrap();
    assert_eq!(sparse.results[2], got.results[2].sparse);
    let multi =
        MultiVectorEncoder::load(&reference(dir.path()), &options(), &()).unwrap().documents(&texts(&cases)).unwrap();
    assert_eq!(multi.results[2], got.results[2].multi);
}

#[test]
fn quantized_embeddings_equal_sentence_transformers() {
    let arrays = arrays("task-outputs");
    let of = |name: &str| {
        let a = arrays.f32(name);
        Embeddings { values: a.values, dimension: a.dims[1], ..Embeddings::default() }
    };
    let e = of("embeddings");
    let ranges = of("ranges");
    let ranges = Ranges::new(ranges.row(0).to_vec(), ranges.row(1).to_vec()).unwrap();
    let calibrated = Ranges::of(&of("calibration")).unwrap();
    for (key, precision) in [("int8", Precision::Int8), ("uint8", Precision::Uint8)] {
        for (source, ranges) in [("own", None), ("ranges", Some(&ranges)), ("calibration", Some(&calibrated))] {
            let got = e.quantize(precision, ranges).unwrap();
            assert_eq!(got.bytes, arrays.bytes(&format!("{key}.{source}")), "{key}.{source}");
        }
    }
    assert_eq!(e.quantize(Precision::Binary, None).unwrap().bytes, arrays.bytes("binary"));
    assert_eq!(e.quantize(Precision::Ubinary, None).unwrap().bytes, arrays.bytes("ubinary"));
    let one = Embeddings { values: e.row(0).to_vec(), dimension: 20, ..Embeddings::default() };
    assert!(one.quantize(Precision::Int8, None).is_err());
    assert!(e.clone().cut(21).is_err() && e.clone().cut(0).is_err());
}

#[test]
fn truncated_embeddings_are_normalized_after_the_cut() {
    let (dir, answers, arrays) =
        (materialize("task-outputs-truncate"), answers("task-outputs-truncate"), arrays("task-outputs-truncate"));
    let embedder = Embedder::load(&reference(dir.path()), &options(), &()).unwrap();
    let texts: Vec<String> = cases(&answers, "texts").iter().map(|t| t.as_str().unwrap().into()).collect();
    let whole = embedder.embed(&texts, &Prompt::Default).unwrap();
    for n in cases(&answers, "dimensions").iter().map(|n| n.as_u64().unwrap() as usize) {
        let got = whole.clone().cut(n).unwrap();
        let off = worst(&got.values, &arrays.f32(&format!("normalized.{n}")).values);
        assert!(off <= F32, "{n} dimensions: off by {off:.1e}");
    }
}

#[test]
fn static_embeddings_equal_their_library() {
    for kind in [
        "",
        "-normalize",
        "-model2vec",
        "-model2vec-raw",
        "-model2vec-unlimited",
        "-model2vec-mapping",
        "-model2vec-int8",
    ] {
        let name = &format!("task-static{kind}");
        let (dir, answers) = (materialize(name), answers(name));
        let cases = cases(&answers, "cases");
        let embedder = Embedder::load(&reference(dir.path()), &options(), &()).unwrap();
        let got = embedder.embed(&texts(&cases), &Prompt::Default).unwrap();
        for (case, tokens) in cases.iter().zip(&got.tokens) {
            assert_eq!(case["tokens"].as_u64(), Some(*tokens as u64), "{name}: {case}");
        }
        let want = arrays(name).f32("embeddings").values;
        // Values of an int8 table go up to 127.
        let scale = want.iter().fold(1.0f32, |m, v| m.max(v.abs()));
        let off = worst(&got.values, &want);
        assert!(off <= F32 * scale, "{name}: off by {off:.1e}");
    }
}

/// jina-embeddings-v3's layout: the prompt of a task's name selects the task's weights.
#[test]
fn each_task_of_an_embedder_has_weights_of_its_own() {
    let dir = materialize("task-embed-tasks");
    let embedder = Embedder::load(&reference(dir.path()), &options(), &()).unwrap();
    let (cases, want) = (answers("task-embed-tasks"), arrays("task-embed-tasks").f32("embeddings"));
    let cases = cases.as_array().unwrap();
    let prompt = |case: &Value| case["prompt_name"].as_str().map_or(Prompt::Default, |n| Prompt::Named(n.into()));
    let check = |i: usize, got: &[f32]| {
        let off = worst(got, &want.values[i * want.dims[1]..][..want.dims[1]]);
        assert!(off <= F32, "case {i} ({:?}): off by {off:.1e}", prompt(&cases[i]));
    };
    // All requests at once, so that texts of several tasks wait in one queue.
    std::thread::scope(|scope| {
        for (i, case) in cases.iter().enumerate() {
            let (embedder, check) = (&embedder, &check);
            scope.spawn(move || {
                let got = embedder.embed(&[text(case)], &prompt(case)).unwrap();
                assert_eq!(got.tokens[0], case["ids"].as_array().unwrap().len(), "case {i}");
                check(i, got.row(0));
            });
        }
    });
    // And the texts of a task together.
    let of_one_task = cases.len() / 4;
    for (batch, cases) in cases.chunks(of_one_task).enumerate() {
        let got = embedder.embed(&texts(cases), &prompt(&cases[0])).unwrap();
        (0..cases.len()).for_each(|i| check(batch * of_one_task + i, got.row(i)));
    }
    // The same task, named by itself, with its prompt as text.
    let (batch, name) = (&cases[of_one_task..2 * of_one_task], "retrieval.query");
    let words = texts(batch);
    let inputs: Vec<_> = words.iter().map(|text| TextOrTokens::Text(text)).collect();
    let options = EmbedOptions::default().with_prompt(Prompt::Text("query: ".into())).with_task(Some(name.into()));
    let got = embedder.embed_with(&inputs, &options).unwrap();
    (0..batch.len()).for_each(|i| check(of_one_task + i, got.row(i)));
    let unknown = embedder.embed_with(&inputs, &options.with_task(Some("separation".into()))).unwrap_err().to_string();
    assert!(unknown.contains("separation") && unknown.contains(name), "{unknown}");
    // The plan knows the larger of the two passes.
    assert!(embedder.peak_bytes() <= embedder.plan().weights + embedder.plan().workspace);
    let is_planned = embedder.plan().steps.iter().any(|step| step.op == "glu");
    assert!(is_planned, "the activation after an update is not in the plan");
    assert_eq!(embedder.prompts().count(), 3);
}

#[test]
fn image_and_text_embeddings_equal_transformers() {
    for name in ["task-clip", "task-clip-end", "task-siglip"] {
        let (dir, answers, arrays) = (materialize(name), answers(name), arrays(name));
        let strings =
            |key: &str| -> Vec<String> { cases(&answers, key).iter().map(|v| v.as_str().unwrap().into()).collect() };
        let (texts, files) = (texts(&cases(&answers, "texts")), strings("images"));
        let clip = Clip::load(&reference(dir.path()), &options(), &()).unwrap();
        let open = |file: &String| Image::decode(&std::fs::read(golden("task-images").join(file)).unwrap()).unwrap();
        let images: Vec<Image> = files.iter().map(open).collect();
        let off = worst(&clip.texts(&texts).unwrap().values, &arrays.f32("text_embeds").values);
        assert!(off <= F32, "{name} texts: off by {off:.1e}");
        let got = clip.images(&images).unwrap();
        let want = arrays.f32("image_embeds");
        let scored = clip.classify(&images, &texts).unwrap();
        let probabilities = arrays.f32("probabilities");
        for (i, file) in files.iter().enumerate() {
            // Another decoder's JPEG may differ from Pillow's by a few levels of 255.
            let tolerance = if file.ends_with(".jpg") { 2e-2 } else { F32 };
            let off = worst(got.row(i), &want.values[i * want.dims[1]..][..want.dims[1]]);
            assert!(off <= tolerance, "{name} {file}: off by {off:.1e}");
            let scores: Vec<f32> = scored[i].iter().map(|label| label.score).collect();
            let off = worst(&scores, &probabilities.values[i * texts.len()..][..texts.len()]);
            assert!(off <= tolerance * 2.0, "{name} {file}: scores off by {off:.1e}");
            assert_eq!(scored[i][0].label, texts[0]);
        }
    }
}
