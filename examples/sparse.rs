//! Sparse embeddings (SPLADE): weights over the vocabulary, for an inverted index.
//!
//! `cargo run --release --example sparse [MODEL]`: a SPLADE model or bge-m3; a directory or a hub
//! id.

use sconce::{LoadOptions, SparseEncoder};

fn main() -> Result<(), Box<dyn std::error::Error>> {
    let model = std::env::args().nth(1).unwrap_or_else(|| "prithivida/Splade_PP_en_v2".into());
    let sparse = SparseEncoder::load(&model.parse()?, &LoadOptions::from_env()?, &())?;

    let texts = ["A man is eating food.", "Someone has lunch.", "The sky is blue."];
    let embeddings = sparse.embed(&texts)?;

    for (text, vector) in texts.iter().zip(&embeddings.results) {
        let mut heaviest: Vec<(f32, u32)> = vector.weights.iter().copied().zip(vector.ids.iter().copied()).collect();
        heaviest.sort_by(|a, b| b.0.total_cmp(&a.0));
        let name = |id: u32| sparse.token(id).unwrap_or_else(|| format!("#{id}"));
        let words: Vec<String> = heaviest.iter().take(6).map(|(w, id)| format!("{} {w:.2}", name(*id))).collect();
        println!("{text}\n  {} weights: {}, …", vector.ids.len(), words.join(", "));
        println!("  with the first text: {:.3}", embeddings.results[0].dot(vector));
    }
    Ok(())
}
