//! Token classification (NER): names and places in a text.
//!
//! `cargo run --release --example tag [MODEL] [TEXT]`: a directory or a hub id.

use sconce::{LoadOptions, Strategy, Tagger};

fn main() -> Result<(), Box<dyn std::error::Error>> {
    let mut args = std::env::args().skip(1);
    let model = args.next().unwrap_or_else(|| "dslim/bert-base-NER".into());
    let text = args.next().unwrap_or_else(|| "Zoë Lindqvist moved from Malmö to New York.".into());
    let tagger = Tagger::load(&model.parse()?, &LoadOptions::from_env()?, &())?;

    // Label whole words, not word pieces; drop entities with a score below 0.5.
    let found = tagger.tag(&[&text], Strategy::First, 0.5)?;

    if found.results[0].is_empty() {
        println!("nothing found in {} tokens", found.tokens[0]);
    }
    for entity in &found.results[0] {
        // Offsets count characters, not bytes.
        let entity_text: String = text.chars().skip(entity.start).take(entity.end - entity.start).collect();
        println!("{:>3}..{:<3} {:<6} {:.4}  {entity_text}", entity.start, entity.end, entity.label, entity.score);
    }
    Ok(())
}
