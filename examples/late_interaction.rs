//! Multi-vector embeddings (ColBERT): one vector per token, and documents ranked by MaxSim.
//!
//! `cargo run --release --example late_interaction [MODEL]`: a ColBERT model or bge-m3; a directory
//! or a hub id.

use sconce::{LoadOptions, MultiVectorEncoder};

fn main() -> Result<(), Box<dyn std::error::Error>> {
    let model = std::env::args().nth(1).unwrap_or_else(|| "colbert-ir/colbertv2.0".into());
    let multi = MultiVectorEncoder::load(&model.parse()?, &LoadOptions::from_env()?, &())?;

    let documents = [
        "Berlin has a population of 3.7 million people.",
        "Berlin is well known for its museums.",
        "New York City has eight million inhabitants.",
    ];
    // Queries and documents are tokenized differently: markers, query expansion, and a skiplist.
    let query = &multi.queries(&["How many people live in Berlin?"])?.results[0];
    let indexed = multi.documents(&documents)?;

    let mut scored: Vec<(f32, usize)> =
        indexed.results.iter().enumerate().map(|(i, document)| (document.max_sim(query), i)).collect();
    scored.sort_by(|a, b| b.0.total_cmp(&a.0));
    println!("the query has {} vectors of {} dimensions", query.rows().count(), query.dimension);
    for (score, i) in scored {
        println!("{score:.3}  {} ({} vectors)", documents[i], indexed.results[i].rows().count());
    }
    Ok(())
}
