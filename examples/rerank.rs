//! Reranking: documents sorted by relevance to a query, with a cross-encoder.
//!
//! `cargo run --release --example rerank [MODEL]`: a directory or a hub id.

use sconce::{LoadOptions, RankOptions, Reranker};

fn main() -> Result<(), Box<dyn std::error::Error>> {
    let model = std::env::args().nth(1).unwrap_or_else(|| "cross-encoder/ms-marco-MiniLM-L6-v2".into());
    let reranker = Reranker::load(&model.parse()?, &LoadOptions::from_env()?, &())?;

    let query = "How many people live in Berlin?";
    let documents = [
        "Berlin has a population of 3.7 million people.",
        "Berlin is well known for its museums.",
        "New York City has eight million inhabitants.",
    ];
    // Scores are between 0 and 1; with `raw` they are the model's logits.
    let options = RankOptions::default().with_top_n(Some(2));
    let ranking = reranker.rerank(query, &documents, options)?;

    for place in &ranking.ranked {
        println!("{:.4}  {}", place.score, documents[place.index]);
    }
    println!("{} tokens; truncated: {:?}", ranking.tokens, ranking.truncated);
    Ok(())
}
