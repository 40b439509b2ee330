//! Names and places in a text.
//!
//! `cargo run --release --example tag [MODEL] [TEXT]`: a directory or a hub id.

use sconce_engine::{LoadOptions, Strategy, Tagger};

fn main() -> Result<(), Box<dyn std::error::Error>> {
    let mut args = std::env::args().skip(1);
    let model = args.next().unwrap_or_else(|| "dslim/bert-base-NER".into());
    let text = args.next().unwrap_or_else(|| "Zoë Lindqvist moved from Malmö to New York.".into());
    let tagger = Tagger::load(&model.parse()?, &LoadOptions::from_env()?, &())?;

    // Words rather than pieces of them; nothing that the model is less than half sure of.
    let found = tagger.tag(&[&text], Strategy::First, 0.5)?;

    if found.results[0].is_empty() {
        println!("nothing found in {} tokens", found.tokens[0]);
    }
    for entity in &found.results[0] {
        // Places count characters, so that they are right for any script.
        let own: String = text.chars().skip(entity.start).take(entity.end - entity.start).collect();
        println!("{:>3}..{:<3} {:<6} {:.4}  {own}", entity.start, entity.end, entity.label, entity.score);
    }
    Ok(())
}
