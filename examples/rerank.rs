//! Documents in the order in which they answer a query, by a cross-encoder.
//!
//! `cargo run --release --example rerank [MODEL]`: a directory or a hub id.

use sconce_engine::{LoadOptions, RankOptions, Reranker};

fn main() -> Result<(), Box<dyn std::error::Error>> {
    let model = std::env::args().nth(1).unwrap_or_else(|| "cross-encoder/ms-marco-MiniLM-L6-v2".into());
    let reranker = Reranker::load(&model.parse()?, &LoadOptions::from_env()?, &())?;

    let query = "How many people live in Berlin?";
    let documents = [
        "Berlin has a population of 3.7 million people.",
        "Berlin is well known for its museums.",
        "New York City has eight million inhabitants.",
    ];
    // Scores lie between 0 and 1; `raw` leaves them as the model gives them.
    let options = RankOptions { top_n: Some(2), ..RankOptions::default() };
    let ranking = reranker.rerank(query, &documents, options)?;

    for place in &ranking.ranked {
        println!("{:.4}  {}", place.score, documents[place.index]);
    }
    println!("{} tokens read; cut: {:?}", ranking.tokens, ranking.truncated);
    Ok(())
}
