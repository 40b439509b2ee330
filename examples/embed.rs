//! Embeddings of texts, and their cosine similarities.
//!
//! `cargo run --release --example embed [MODEL]`: a directory, a hub id, or a short name (minilm,
//! which can come from a Python wheel).

use sconce::{Embedder, LoadOptions, Precision, Prompt};

fn main() -> Result<(), Box<dyn std::error::Error>> {
    let model = std::env::args().nth(1).unwrap_or_else(|| "minilm".into());
    let embedder = Embedder::load(&model.parse()?, &LoadOptions::from_env()?, &())?;

    let texts = ["A man is eating food.", "Someone has lunch.", "The sky is blue."];
    let embeddings = embedder.embed(&texts, &Prompt::Default)?;

    for (i, text) in texts.iter().enumerate() {
        let cosines: Vec<String> =
            embeddings.rows().map(|row| format!("{:.3}", cosine(embeddings.row(i), row))).collect();
        println!("{}  {text} ({} tokens)", cosines.join(" "), embeddings.tokens[i]);
    }
    // `truncated` lists the texts that were too long.
    println!("truncated: {:?}", embeddings.truncated);

    // One bit per dimension is enough to find candidates quickly.
    let bits = embeddings.quantize(Precision::Ubinary, None)?;
    println!("{} dimensions in {} bytes", embeddings.dimension, bits.dimension);
    Ok(())
}

fn cosine(a: &[f32], b: &[f32]) -> f32 {
    let dot = |a: &[f32], b: &[f32]| a.iter().zip(b).map(|(a, b)| a * b).sum::<f32>();
    dot(a, b) / (dot(a, a) * dot(b, b)).sqrt()
}
