//! The engine's models behind an index: tiny ones with random weights.

mod common;

use common::{Corpus, parser};
use sconce_engine::hub::Options;
use sconce_engine::{Device, DeviceChoice, LoadOptions, MultiVectorEncoder, Reranker, SparseEncoder};
use sconce_index::{
    Control, DenseModel, EmbedPrompts, Embedder, Embedding, EmbeddingKind, LateInteractionModel, Mode, Query,
    RerankModel, Result, SparseModel, Tools,
};
use sconce_testkit::materialize;

fn options() -> LoadOptions {
    let cache = std::env::temp_dir();
    LoadOptions::new(Options::new(cache.clone(), cache)).with_device(DeviceChoice::Only(Device::Cpu))
}

fn dense(dir: &std::path::Path, prompts: EmbedPrompts) -> DenseModel {
    let reference = dir.to_str().unwrap().parse().unwrap();
    let model = sconce_engine::Embedder::load(&reference, &options(), &()).unwrap();
    DenseModel::new(model, "tiny", prompts).unwrap()
}

fn corpus() -> Corpus {
    Corpus::new(&[
        ("a.txt", "hello world"),
        ("b.txt", "the quick brown fox jumps over the lazy dog"),
        ("long.txt", &"a man is eating food. ".repeat(200)),
    ])
}

fn index(corpus: &Corpus, embedder: &dyn Embedder) -> Result<()> {
    let cancel = Default::default();
    let control = Control { progress: &mut |_| {}, cancel: &cancel };
    let report = corpus.open().update(&corpus.update(), &Tools { embedder, parser: &parser() }, control)?;
    assert!(report.failed.is_empty(), "{report:?}");
    assert_eq!(report.indexed, 3);
    Ok(())
}

fn first(corpus: &Corpus, embedder: &dyn Embedder, mode: Mode, text: &str) -> String {
    let query = Query { mode, ..Query::new(text) };
    let hits = corpus.open().search(&query, Some(embedder), None).unwrap();
    hits[0].path.clone()
}

#[test]
fn dense_embeddings_of_the_engine() {
    let dir = materialize("st-cls-dense");
    let model = dense(dir.path(), EmbedPrompts::default());
    assert_eq!((model.identity().kind, model.identity().name.as_str()), (EmbeddingKind::Dense, "tiny"));
    assert!(model.identity().dimensions > 0 && model.count_tokens("hello world") >= 2);
    let corpus = corpus();
    index(&corpus, &model).unwrap();
    assert!(first(&corpus, &model, Mode::Dense, "hello world").ends_with("a.txt"));
    // The same files give the same identity, in another folder too; other weights do not.
    let copy = materialize("st-cls-dense");
    let same = dense(copy.path(), EmbedPrompts::default());
    assert_eq!(same.identity(), model.identity());
    let other = materialize("st-prompts");
    let other = dense(other.path(), EmbedPrompts::default());
    assert!(model.identity().difference(other.identity()).is_some());
    assert!(index(&corpus, &other).is_err());
}

#[test]
fn prompts_belong_to_the_identity() {
    let dir = materialize("st-prompts");
    let own = dense(dir.path(), EmbedPrompts::default());
    let text = |text: &str| Some(sconce_engine::Prompt::Text(text.into()));
    let given = dense(dir.path(), EmbedPrompts { passage: text("text: "), query: text("question: ") });
    assert_eq!(
        (given.identity().passage_prompt.as_str(), given.identity().query_prompt.as_str()),
        ("text: ", "question: ")
    );
    assert!(own.identity().difference(given.identity()).is_some());
    let passages = given.embed_passages(&["hello"]).unwrap();
    assert_ne!(passages[0], given.embed_query("hello").unwrap());
}

#[test]
fn sparse_and_multi_vector_embeddings_of_the_engine() {
    let dir = materialize("task-sparse");
    let reference = dir.path().to_str().unwrap().parse().unwrap();
    let sparse = SparseModel::new(SparseEncoder::load(&reference, &options(), &()).unwrap(), "sparse").unwrap();
    let sparse_corpus = corpus();
    index(&sparse_corpus, &sparse).unwrap();
    let query = Query { mode: Mode::Sparse, ..Query::new("hello world") };
    let hits = sparse_corpus.open().search(&query, Some(&sparse), None).unwrap();
    // The score is the product of the embeddings.
    let [Embedding::Sparse(a), Embedding::Sparse(b)] = [
        sparse.embed_query("hello world").unwrap(),
        sparse.embed_passages(&[hits[0].text.as_str()]).unwrap().remove(0),
    ] else {
        panic!("not sparse")
    };
    let product: f32 = a.iter().filter_map(|(id, x)| b.iter().find(|(other, _)| other == id).map(|(_, y)| x * y)).sum();
    assert!((hits[0].score - product).abs() <= 1e-3 * product.abs().max(1.0), "{} {product}", hits[0].score);

    let dir = materialize("task-colbert-pylate");
    let reference = dir.path().to_str().unwrap().parse().unwrap();
    let encoder = MultiVectorEncoder::load(&reference, &options(), &()).unwrap();
    let multi = LateInteractionModel::new(encoder, "multi").unwrap();
    assert!(multi.identity().dimensions > 0);
    let multi_corpus = corpus();
    index(&multi_corpus, &multi).unwrap();
    let hits = multi_corpus
        .open()
        .search(&Query { mode: Mode::MultiVector, ..Query::new("hello world") }, Some(&multi), None)
        .unwrap();
    assert!(hits.len() > 2 && hits.iter().all(|hit| hit.score.is_finite()));
}

#[test]
fn a_reranker_of_the_engine() {
    let dir = materialize("st-cls-dense");
    let model = dense(dir.path(), EmbedPrompts::default());
    let corpus = corpus();
    index(&corpus, &model).unwrap();
    let dir = materialize("task-rerank");
    let reference = dir.path().to_str().unwrap().parse().unwrap();
    let reranker = RerankModel::new(Reranker::load(&reference, &options(), &()).unwrap());
    let query = Query { limit: 3, ..Query::new("hello world") };
    let hits = corpus.open().search(&query, Some(&model), Some(&reranker)).unwrap();
    assert_eq!(hits.len(), 3);
    assert!(hits.is_sorted_by(|a, b| a.score >= b.score));
    assert!(hits.iter().all(|hit| hit.ranks.reranker.is_some_and(|rank| rank.score == hit.score)));
}
