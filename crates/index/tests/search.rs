//! Search: every mode against a computation by hand, filters, fusion, and hostile queries.

mod common;

use common::{Corpus, DIMENSIONS, Fake, names, random_text, search};
use sconce_index::{
    Embedding, EmbeddingKind, Error, Filter, Index, Kind, Layout, Metadata, Mode, NewDocument, Query, Rerank, Result,
    Value,
};
use sconce_testkit::Rng;

/// An index of documents with metadata: `n` counts them, `third` is their number modulo 3.
fn numbered(embedder: &Fake, count: usize) -> (Corpus, Index) {
    let corpus = Corpus::new(&[]);
    let index = corpus.open();
    let document = |i: usize| NewDocument {
        key: format!("{i}"),
        title: None,
        kind: Kind::Text,
        text: random_text(i as u64, 12),
        metadata: Metadata::from([
            ("n".into(), Value::Integer(i as i64)),
            ("third".into(), Value::Text(format!("t{}", i % 3))),
        ]),
        layout: Layout::default(),
    };
    let documents: Vec<NewDocument> = (0..count).map(document).collect();
    index.add(&documents, embedder).unwrap();
    (corpus, index)
}

/// What every document scores, best first, as (key, score).
fn by_hand(
    count: usize,
    embedder: &Fake,
    query: &str,
    score: impl Fn(&Embedding, &Embedding) -> f32,
) -> Vec<(String, f32)> {
    let query = embedder.embed(query);
    let mut all: Vec<_> =
        (0..count).map(|i| (i.to_string(), score(&query, &embedder.embed(&random_text(i as u64, 12))))).collect();
    all.sort_by(|a, b| b.1.total_cmp(&a.1));
    all
}

fn cosine(a: &Embedding, b: &Embedding) -> f32 {
    match (a, b) {
        (Embedding::Dense(a), Embedding::Dense(b)) => a.iter().zip(b).map(|(a, b)| a * b).sum(),
        _ => panic!("not dense"),
    }
}

#[test]
fn dense_search_is_exact_with_and_without_codes_and_filters() {
    let embedder = Fake::dense();
    let count = 1_500;
    let (corpus, index) = numbered(&embedder, count);
    // The first search reads vectors from the database; an update then writes codes.
    for coded in [false, true] {
        if coded {
            common::run(&index, &corpus.update(), &embedder).unwrap();
            assert_eq!(index.status().unwrap().coded, count as u64);
        }
        let mut rng = Rng::new(7);
        for round in 0..20 {
            let text = random_text(10_000 + round, 4);
            let least = rng.below(count + 100) as i64;
            let filters = [None, Some(format!("n>={least}")), Some("third=t1".into()), Some("path:1?".into())];
            let expected = by_hand(count, &embedder, &text, cosine);
            for filter in filters {
                let filter = filter.map(|filter: String| Filter::parse(&filter).unwrap());
                let passes = |key: &str| {
                    let i: usize = key.parse().unwrap();
                    let metadata = Metadata::from([
                        ("n".into(), Value::Integer(i as i64)),
                        ("third".into(), Value::Text(format!("t{}", i % 3))),
                        ("path".into(), Value::Text(key.into())),
                    ]);
                    filter.as_ref().is_none_or(|filter| filter.matches(&metadata))
                };
                let expected: Vec<_> = expected.iter().filter(|(key, _)| passes(key)).take(10).collect();
                let query = Query { mode: Mode::Dense, filter: filter.clone(), ..Query::new(&text) };
                let hits = index.search(&query, Some(&embedder), None).unwrap();
                assert_eq!(hits.len(), expected.len(), "{filter:?}");
                for (hit, (key, score)) in hits.iter().zip(expected) {
                    assert!((hit.score - score).abs() < 1e-5, "{key} {score} {}", hit.score);
                    assert!(passes(&hit.path));
                    assert_eq!(hit.ranks.dense.unwrap().score, hit.score);
                }
            }
        }
    }
}

#[test]
fn damaged_codes_change_no_result_and_are_repaired() {
    let embedder = Fake::dense();
    let (corpus, index) = numbered(&embedder, 2_000);
    common::run(&index, &corpus.update(), &embedder).unwrap();
    let codes = corpus.dir.path().join("test.sconce.codes");
    let found = |index: &Index| -> Vec<(String, f32)> {
        let hits = search(index, Mode::Dense, "w1 w2 w3", &embedder);
        hits.into_iter().map(|hit| (hit.path, hit.score)).collect()
    };
    let expected = found(&index);
    assert_eq!(expected.len(), 10);
    let file = || std::fs::read_dir(&codes).unwrap().next().unwrap().unwrap().path();
    let intact = std::fs::read(file()).unwrap();
    let mut rng = Rng::new(3);
    for damage in 0..6 {
        let path = file();
        // A mapped file is replaced, not changed: readers keep the one they have.
        let mut bytes = intact.clone();
        match damage {
            0 => bytes.truncate(bytes.len() / 2),
            1 => bytes.clear(),
            2 => bytes.truncate(bytes.len() - 1),
            3 => bytes.iter_mut().rev().take(400).for_each(|byte| *byte = 0),
            4 => bytes.iter_mut().for_each(|byte| *byte = rng.next_u64() as u8),
            _ => {}
        }
        std::fs::remove_file(&path).unwrap();
        if damage < 5 {
            std::fs::write(&path, bytes).unwrap();
        }
        let fresh = corpus.open();
        assert_eq!(found(&fresh), expected, "damage {damage}");
        assert_eq!(fresh.status().unwrap().damaged.len(), 1, "damage {damage}");
        assert_eq!(found(&index), expected, "an index that was open");
        common::run(&fresh, &corpus.update(), &embedder).unwrap();
        assert_eq!(fresh.status().unwrap().damaged, Vec::<String>::new(), "damage {damage}");
        assert_eq!((found(&fresh), found(&index)), (expected.clone(), expected.clone()));
    }
}

#[test]
fn deleted_documents_are_not_found_in_codes() {
    let embedder = Fake::dense();
    let (corpus, index) = numbered(&embedder, 2_000);
    common::run(&index, &corpus.update(), &embedder).unwrap();
    let mut rng = Rng::new(9);
    let mut left: Vec<String> = (0..2_000).map(|i| i.to_string()).collect();
    // Beyond a tenth, the codes are written again.
    for round in 0..8 {
        let gone: Vec<String> = (0..60).map(|_| left.swap_remove(rng.below(left.len()))).collect();
        let gone: Vec<&str> = gone.iter().map(String::as_str).collect();
        assert_eq!(index.remove(&gone).unwrap(), 60);
        common::run(&index, &corpus.update(), &embedder).unwrap();
        let text = random_text(20_000 + round, 4);
        let expected = by_hand(2_000, &embedder, &text, cosine);
        let expected: Vec<_> = expected.into_iter().filter(|(key, _)| left.contains(key)).take(10).collect();
        let hits = search(&index, Mode::Dense, &text, &embedder);
        assert_eq!(hits.len(), 10);
        for (hit, (key, score)) in hits.iter().zip(&expected) {
            assert!((hit.score - score).abs() < 1e-5 && left.contains(&hit.path), "{key} {score} {}", hit.score);
        }
        assert_eq!(index.status().unwrap().coded, left.len() as u64);
    }
}

#[test]
fn words_under_a_filter_are_the_same_with_and_without_codes() {
    let embedder = Fake::dense();
    let (corpus, index) = numbered(&embedder, 1_500);
    let found = |filter: &str| -> Vec<String> {
        let filter = Some(Filter::parse(filter).unwrap());
        let query = Query { mode: Mode::Bm25, filter, limit: 1_000, ..Query::new("w1 w2 w3 w4 w5") };
        index.search(&query, None, None).unwrap().into_iter().map(|hit| hit.path).collect()
    };
    let filters = ["n>=750", "third=t1", "path:1?", "n>=5000"];
    let expected: Vec<_> = filters.iter().map(|filter| found(filter)).collect();
    assert!(expected[0].len() > 10 && expected[0].iter().all(|path| path.parse::<usize>().unwrap() >= 750));
    common::run(&index, &corpus.update(), &embedder).unwrap();
    assert_eq!(index.status().unwrap().coded, 1_500);
    // Some chunks have codes, one has none, and one with codes is deleted.
    assert_eq!(index.remove(&[expected[1][0].as_str()]).unwrap(), 1);
    let without = |paths: &[String]| paths.iter().filter(|path| **path != expected[1][0]).cloned().collect::<Vec<_>>();
    for (filter, expected) in filters.iter().zip(&expected) {
        let mut found = found(filter);
        let mut expected = without(expected);
        // The removed document changes the weights of words a little.
        found.sort();
        expected.sort();
        assert_eq!(found, expected, "{filter}");
    }
}

#[test]
fn sparse_search_is_the_product_of_weights() {
    let embedder = Fake::new(EmbeddingKind::Sparse);
    let (_corpus, index) = numbered(&embedder, 300);
    let product = |a: &Embedding, b: &Embedding| match (a, b) {
        (Embedding::Sparse(a), Embedding::Sparse(b)) => a
            .iter()
            .flat_map(|(id, x)| b.iter().filter(move |(other, _)| other == id).map(move |(_, y)| x * y))
            .sum::<f32>(),
        _ => panic!("not sparse"),
    };
    let text = random_text(5, 12);
    let expected = by_hand(300, &embedder, &text, product);
    let hits = search(&index, Mode::Sparse, &text, &embedder);
    assert_eq!(hits[0].path, "5");
    for (hit, (_, score)) in hits.iter().zip(&expected) {
        assert!((hit.score - score).abs() < 1e-4, "{} {score}", hit.score);
    }
    let query = Query { mode: Mode::Sparse, filter: Some(Filter::parse("third=t0").unwrap()), ..Query::new(&text) };
    let hits = index.search(&query, Some(&embedder), None).unwrap();
    assert!(hits.len() == 10 && hits.iter().all(|hit| hit.metadata["third"] == Value::Text("t0".into())));
    assert!(search(&index, Mode::Hybrid, &text, &embedder)[0].ranks.sparse.is_some());
}

#[test]
fn late_interaction_ranks_candidates_by_max_sim() {
    let embedder = Fake::new(EmbeddingKind::MultiVector);
    let (_corpus, index) = numbered(&embedder, 300);
    let max_sim = |a: &Embedding, b: &Embedding| match (a, b) {
        (Embedding::MultiVector { values: a, .. }, Embedding::MultiVector { values: b, .. }) => {
            let rows = |values: &[f32]| values.chunks(DIMENSIONS).map(<[f32]>::to_vec).collect::<Vec<_>>();
            let dot = |a: &[f32], b: &[f32]| a.iter().zip(b).map(|(a, b)| a * b).sum::<f32>();
            rows(a).iter().map(|q| rows(b).iter().map(|d| dot(q, d)).fold(f32::MIN, f32::max)).sum::<f32>()
        }
        _ => panic!("not multi-vector"),
    };
    let text = random_text(8, 6);
    let expected = by_hand(300, &embedder, &text, max_sim);
    let hits = search(&index, Mode::MultiVector, &text, &embedder);
    assert_eq!((hits[0].path.as_str(), expected[0].0.as_str()), ("8", "8"));
    for hit in &hits {
        let (_, score) = expected.iter().find(|(key, _)| *key == hit.path).unwrap();
        // Vectors are stored in f16.
        assert!((hit.score - score).abs() < 0.02, "{} {score}", hit.score);
    }
    assert!(hits.is_sorted_by(|a, b| a.score >= b.score));
    assert!(index.search(&Query { mode: Mode::Dense, ..Query::new("w1") }, Some(&embedder), None).is_err());
}

#[test]
fn fusion_joins_words_and_meaning() {
    let corpus = Corpus::new(&[
        ("both.txt", "zebras run over the plain"),
        ("words.txt", "zebras zebras zebras and other words that dilute what this text is about entirely"),
        ("none.txt", "lions sleep"),
    ]);
    let embedder = Fake::dense();
    corpus.index(&embedder);
    let index = corpus.open();
    let hits = search(&index, Mode::Hybrid, "zebras run over the plain", &embedder);
    assert_eq!(names(&hits)[0], "both.txt");
    let ranks = hits[0].ranks;
    assert_eq!((ranks.dense.unwrap().position, ranks.bm25.unwrap().position), (1, 1));
    assert!((hits[0].score - 1.0).abs() < 1e-6);
    let last = hits.iter().find(|hit| hit.path.ends_with("none.txt")).unwrap();
    assert!(last.ranks.bm25.is_none() && last.ranks.dense.is_some() && last.ranks.sparse.is_none());
    assert!(hits[0].snippet.highlights.len() >= 3, "{:?}", hits[0].snippet);
    // A given vector needs no model, and no text.
    let Embedding::Dense(vector) = embedder.embed("lions sleep") else { panic!() };
    let long: Vec<f32> = vector.iter().map(|value| value * 7.0).collect();
    let query = Query { vector: Some(Embedding::Dense(long)), mode: Mode::Dense, ..Query::new("") };
    let hits = index.search(&query, None, None).unwrap();
    assert!(hits[0].path.ends_with("none.txt") && (hits[0].score - 1.0).abs() < 1e-5);
}

/// Prefers short passages.
struct Short;

impl Rerank for Short {
    fn scores(&self, _: &str, passages: &[&str]) -> Result<Vec<f32>> {
        Ok(passages.iter().map(|passage| -(passage.len() as f32)).collect())
    }
}

#[test]
fn a_reranker_orders_the_candidates() {
    let corpus =
        Corpus::new(&[("a.txt", "zebras zebras run and run and run"), ("b.txt", "zebras"), ("c.txt", "lions")]);
    let embedder = Fake::dense();
    corpus.index(&embedder);
    let query = Query { limit: 2, mode: Mode::Bm25, ..Query::new("zebras run") };
    let index = corpus.open();
    assert_eq!(names(&index.search(&query, None, None).unwrap()), ["a.txt", "b.txt"]);
    let hits = index.search(&query, None, Some(&Short)).unwrap();
    assert_eq!(names(&hits), ["b.txt", "a.txt"]);
    assert_eq!(hits[0].ranks.reranker.unwrap().score, hits[0].score);
    assert_eq!(hits[0].ranks.bm25.unwrap().position, 2);
}

#[test]
fn bm25_finds_words_in_their_forms_and_other_scripts() {
    let corpus = Corpus::new(&[
        ("en.md", "# Guide to indexes\n\nIndexing files is fast."),
        ("zh.txt", "我爱北京天安门,天安门上太阳升。"),
        ("ja.txt", "東京タワーは東京都港区にある電波塔です。"),
        ("ko.txt", "서울은 대한민국의 수도이다."),
        ("fr.txt", "Le café est déjà prêt."),
        ("code.rs", "fn main() { let map = std::collections::HashMap::new(); }"),
    ]);
    let embedder = Fake::dense();
    corpus.index(&embedder);
    let index = corpus.open();
    for (query, expected) in [
        ("index", "en.md"),
        ("indexed file", "en.md"),
        ("天安门", "zh.txt"),
        ("北京", "zh.txt"),
        ("東京都", "ja.txt"),
        ("電波塔", "ja.txt"),
        ("대한민국", "ko.txt"),
        ("cafe deja", "fr.txt"),
        ("CAFÉ", "fr.txt"),
        ("std::collections::HashMap", "code.rs"),
        ("hashmap", "code.rs"),
    ] {
        assert_eq!(
            names(&search(&index, Mode::Bm25, query, &embedder)).first().map(String::as_str),
            Some(expected),
            "{query}"
        );
    }
    // Characters next to each other in the query must be so in the text.
    assert!(search(&index, Mode::Bm25, "京東", &embedder).is_empty());
}

#[test]
fn the_syntax_of_queries_means_nothing() {
    let corpus = Corpus::new(&[("a.txt", "zebras and lions run"), ("b.txt", "owls fly near rivers")]);
    let embedder = Fake::dense();
    corpus.index(&embedder);
    let index = corpus.open();
    for query in [
        "zebras AND owls",
        "NOT zebras",
        "zebras NOT lions",
        "\"zebras",
        "zebras\"",
        "zeb*",
        "^zebras",
        "title: zebras",
        "{title text}: zebras",
        "NEAR(zebras lions)",
        "zebras OR",
        "(zebras",
        "-zebras",
        "zebras'; DROP TABLE chunks; --",
        "zebras\0lions",
        "zebras + lions",
        "text:zebras",
        "rowid:1 zebras",
        "zebras %",
        "\\zebras",
        "𝓏 zebras",
    ] {
        for mode in [Mode::Bm25, Mode::Hybrid, Mode::Dense] {
            let hits = search(&index, mode, query, &embedder);
            assert!(query == "zeb*" || names(&hits).contains(&"a.txt".to_owned()), "{query} {mode:?}");
        }
    }
    for query in ["***", "\"\"", "()", "؟"] {
        assert!(search(&index, Mode::Bm25, query, &embedder).is_empty(), "{query}");
    }
}

#[test]
fn what_a_query_may_not_be() {
    let corpus = Corpus::new(&[("a.txt", "zebras run")]);
    let embedder = Fake::dense();
    let index = corpus.open();
    assert!(index.search(&Query::new("zebras"), Some(&embedder), None).unwrap().is_empty(), "nothing is indexed");
    corpus.index(&embedder);
    let fails = |query: Query| match index.search(&query, Some(&embedder), None) {
        Err(Error::Input(why)) => why,
        other => panic!("{other:?}"),
    };
    assert!(fails(Query::new("  ")).contains("empty"));
    fails(Query { limit: 100_000, ..Query::new("a") });
    fails(Query::new("a".repeat(2 << 20)));
    let dense = |values: Vec<f32>| Query { vector: Some(Embedding::Dense(values)), ..Query::new("a") };
    fails(dense(vec![1.0; 3]));
    fails(dense(vec![f32::NAN; DIMENSIONS]));
    fails(Query { vector: Some(Embedding::Sparse(vec![(1, 1.0)])), ..Query::new("a") });
    fails(Query { mode: Mode::Sparse, ..Query::new("a") });
    // A given vector does not hide that the model is another one.
    let other = Fake::dense().revision("2");
    let error = index.search(&dense(vec![1.0; DIMENSIONS]), Some(&other), None).unwrap_err();
    assert!(matches!(error, Error::Model(_)), "{error}");
    assert_eq!(index.search(&Query { mode: Mode::Bm25, ..Query::new("zebras") }, Some(&other), None).unwrap().len(), 1);
    let error = index.search(&Query::new("zebras"), None, None).unwrap_err();
    assert!(error.to_string().contains("fake"), "{error}");
    assert!(index.search(&Query { limit: 0, ..Query::new("zebras") }, Some(&embedder), None).unwrap().is_empty());
    let zeros = index.search(&dense(vec![0.0; DIMENSIONS]), None, None).unwrap();
    assert_eq!(zeros.len(), 1);
}
