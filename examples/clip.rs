//! Zero-shot image classification: which text describes an image.
//!
//! `cargo run --release --example clip MODEL IMAGE [TEXT…]`: a CLIP or SigLIP model, as a directory
//! or a hub id.

use sconce::{Clip, Image, LoadOptions};

fn main() -> Result<(), Box<dyn std::error::Error>> {
    let mut args = std::env::args().skip(1);
    let (Some(model), Some(path)) = (args.next(), args.next()) else {
        return Err("usage: clip MODEL IMAGE [TEXT…], for example openai/clip-vit-base-patch32 cat.jpg".into());
    };
    let mut texts: Vec<String> = args.collect();
    if texts.is_empty() {
        texts = ["a photo of a cat", "a photo of a dog", "a diagram"].map(String::from).to_vec();
    }
    // The content determines the image format, not the file name.
    let image = Image::decode(&std::fs::read(&path)?)?;
    let clip = Clip::load(&model.parse()?, &LoadOptions::from_env()?, &())?;

    for label in &clip.classify(std::slice::from_ref(&image), &texts)?[0] {
        println!("{:.4}  {}", label.score, label.label);
    }
    // Text and image embeddings share one space, for a search over many images.
    let (texts, images) = (clip.texts(&texts)?, clip.images(&[image])?);
    let dot = |a: &[f32], b: &[f32]| a.iter().zip(b).map(|(a, b)| a * b).sum::<f32>();
    println!("cosine with the first text: {:.4}", dot(texts.row(0), images.row(0)));
    Ok(())
}
