//! A vector database that embeds with Sconce. The database has a trait for sources of embeddings,
//! as most have; `provider.rs` implements it over Sconce's async provider.
//!
//! ```sh
//! cargo run --release --manifest-path examples/vector-database/Cargo.toml
//! ```

mod database;
mod provider;

use database::Database;
use provider::Sconce;

#[tokio::main]
async fn main() -> Result<(), Box<dyn std::error::Error>> {
    let mut database = Database::new(Sconce::load("minilm")?);
    let texts = ["A man is eating food.", "The sky is blue.", "A monkey is playing drums."];
    database.insert(texts.map(String::from).to_vec()).await?;
    for (text, score) in database.search("Somebody has lunch.", 2).await? {
        println!("{score:.3} {text}");
    }
    println!("{}", database.status().await);
    Ok(())
}
