//! Sequence classification of texts and of a text pair.
//!
//! `cargo run --release --example classify [MODEL]`: a directory or a hub id.

use sconce::{Classifier, LoadOptions, TextOrPair};

fn main() -> Result<(), Box<dyn std::error::Error>> {
    let default = "distilbert/distilbert-base-uncased-finetuned-sst-2-english";
    let model = std::env::args().nth(1).unwrap_or_else(|| default.into());
    let classifier = Classifier::load(&model.parse()?, &LoadOptions::from_env()?, &())?;
    println!("labels: {}", classifier.labels().join(", "));

    // Models for entailment or duplicate detection take pairs; others read the first text only.
    let pair = TextOrPair { text: "A man is eating.", pair: Some("Somebody has food.") };
    let texts = ["What a lovely day.".into(), "The train is late again.".into(), pair];
    for (text, labels) in texts.iter().zip(classifier.classify(&texts, false)?.results) {
        let labels: Vec<String> = labels.iter().map(|l| format!("{} {:.4}", l.label, l.score)).collect();
        println!("{}  {}{}", labels.join(", "), text.text, text.pair.map(|p| format!(" / {p}")).unwrap_or_default());
    }
    Ok(())
}
